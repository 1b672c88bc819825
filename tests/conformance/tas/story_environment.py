"""The environment of all stories: an API server with metrics, one process behind a faulty proxy, and a watch."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx2

from tests.cluster import (
    api_user_kubeconfigs,
    asgi_server_thread,
    extender_process,
    fake_custom_metrics_server,
    kubernetes_objects,
    label_watch,
    namespace_sandboxes,
    processes,
)
from tests.cluster.api_client import JSON_PATCH, ApiError, Object, path_of
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import CertificateFiles, ExtenderProcess
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.label_watch import LabelWatch
from tests.cluster.namespace_sandboxes import Sandbox
from tests.conformance.tas import faulty_proxy
from tests.conformance.tas.story_definitions import PREFIX, Labels

ROW = "conformance"
"""The label by which a node belongs to a row; no story speaks of it."""
BEACON = "beacon"
POLICIES = "/apis/telemetry.intel.com/v1alpha1/taspolicies"
PERIOD = "250ms"
PATIENCE_S = 60.0
"""With the process and the beacon."""

Seen = TypeVar("Seen")


class TasEnvironment:
    """The process is not running until `start`."""

    def __init__(
        self, plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, folder: Path
    ) -> None:
        self.sandbox, self.metrics = sandbox, metrics
        self.api = sandbox.api
        self._folder = folder
        self._papers = CertificateFiles(folder)
        self._port = processes.free_port()
        self._plane = plane
        self._running = contextlib.ExitStack()
        self._open = contextlib.ExitStack()
        self._round = 0
        self.runs: list[ExtenderProcess] = []
        """Every start of the process."""
        name = f"conformance-{self._port}"
        self._user = plane.user(name, extender_process.rules())
        api_user_kubeconfigs.grant(
            self.api, name, extender_process.rules("Role"), extender_process.OWN_NAMESPACE
        )
        context = plane.authority.client_context(self._user.pair)
        self.proxy, self._address = self._open.enter_context(faulty_proxy.serving(plane.url, context))
        self.watch: LabelWatch = self._open.enter_context(label_watch.watch_labels(plane))
        self._http = self._open.enter_context(self._client())

    def close(self) -> None:
        self.stop()
        self._open.close()

    def start(self, *, until_ready: bool = True) -> None:
        run = self._running.enter_context(
            extender_process.started(self._folder, self._arguments(), self._papers)
        )
        self.runs.append(run)
        if until_ready:
            self.wait_ready()

    def schedule(self) -> None:
        """Have pods scheduled by a kube-scheduler that asks the process, over all its restarts."""
        scheduler = self._plane.start_scheduler({"extenders": [self.run.entry()]})
        self._open.callback(scheduler.stop)

    def wait_ready(self) -> None:
        self.runs[-1].process.wait_ready(self.runs[-1].is_ready)

    def stop(self) -> None:
        self._running.close()

    @property
    def run(self) -> ExtenderProcess:
        """The process that runs now, or the last one."""
        return self.runs[-1]

    def logged(self, event: str) -> list[str]:
        """The lines of one event, of all runs."""
        return [str(line) for run in self.runs for line in run.events(event)]

    def labels(self) -> Labels:
        """By node: what its story speaks of."""
        listed = self.api.get(faulty_proxy.NODES, labelSelector=ROW)["items"]
        return {node["metadata"]["name"]: _told(node["metadata"]["labels"]) for node in listed}

    def ask(self, verb: str, pod: Object, nodes: list[str]) -> Any:
        """An answer of the process, asked as kube-scheduler would."""
        body = {"Pod": pod, "NodeNames": nodes}
        return self._http.post(f"{self.run.url}/scheduler/{verb}", json=body).json()

    def policy(self, space: str, name: str, strategies: Object | None) -> None:
        """Make a policy, or change its spec, or delete it."""
        path = POLICIES.replace("taspolicies", f"namespaces/{space}/taspolicies/{name}")
        if strategies is None:
            return self.api.delete(path)
        spec = {"strategies": strategies}
        if self.api.find(path):
            self.api.patch(path, [{"op": "replace", "path": "/spec", "value": spec}], JSON_PATCH)
            return None
        self.sandbox.create(
            {
                "apiVersion": "telemetry.intel.com/v1alpha1",
                "kind": "TASPolicy",
                "metadata": {"namespace": space, "name": name},
                "spec": spec,
            }
        )
        return None

    def light(self) -> None:
        """Make the beacon, which tells that everything before it was seen."""
        self.api.ensure(kubernetes_objects.namespace(BEACON))
        self.sandbox.nodes(kubernetes_objects.node(BEACON))

    def settle(self) -> None:
        """Wait until the process has seen, decided and written all that happened so far.

        Every metric is asked for as often as the beacon's; policies come by one watch, in order; and a view's labels
        are all written before the next view's.
        """
        self.pass_periods(2)
        self._round += 1
        number = str(self._round)
        self.metrics.set(BEACON, {BEACON: number})
        rule = {
            "metricname": BEACON,
            "operator": "Equals",
            "target": self._round,
            "labels": [f"lit={number}"],
        }
        self.policy(BEACON, BEACON, {"labeling": {"rules": [rule]}})
        key = f"{PREFIX}{BEACON}/lit"
        self.wait("the beacon", lambda: self.watch._labels.get(BEACON, {}).get(key) == number or None)

    def pass_periods(self, count: int) -> None:
        """Wait for so many more refreshes, if metrics are asked for at all."""
        if not self._round:
            return
        wanted = self.metrics.asked.count(BEACON) + count
        self.wait("a refresh", lambda: self.metrics.asked.count(BEACON) >= wanted or None)

    def wait(self, what: str, see: Callable[[], Seen | None]) -> Seen:
        return namespace_sandboxes.wait(what, see, PATIENCE_S, self.run.process.tail)

    def _client(self) -> httpx2.Client:
        context = self._papers.authority.client_context(self._papers.client)
        return httpx2.Client(verify=context, trust_env=False)

    def _arguments(self) -> list[str]:
        file = asgi_server_thread.kubeconfig(self._folder, self._address)
        papers = self._papers
        return [
            f"--kubeconfig={file}",
            f"--namespace={extender_process.OWN_NAMESPACE}",
            "--address=127.0.0.1",
            f"--port={self._port}",
            "--health-port=0",
            f"--cert={papers.server.cert}",
            f"--key={papers.server.key}",
            f"--client-ca={papers.authority.ca_file}",
            f"--sync-period={PERIOD}",
            "--trust-all-namespaces",  # as the older system did
            "--kube-qps=200",
            "--kube-burst=400",
        ]


def _told(labels: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in labels.items() if key not in {ROW, "kubernetes.io/hostname"}}


@contextlib.contextmanager
def _older_definition(plane: ControlPlane) -> Iterator[None]:
    """The API server takes unknown strategies, as under the older definition, until the block is left."""
    (ours,) = extender_process.manifest("crds/taspolicies.yaml")
    path = path_of(ours)
    older = json.loads(json.dumps(ours))
    spec = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["strategies"]["x-kubernetes-validations"]
    _define(plane, path, older, takes=True)
    try:
        yield
    finally:
        _define(plane, path, ours, takes=False)


def _define(plane: ControlPlane, path: str, definition: Object, *, takes: bool) -> None:
    """Replaces the definition, and waits until the API server goes by it."""
    metadata = plane.api.get(path)["metadata"]
    body = definition | {
        "metadata": definition["metadata"] | {"resourceVersion": metadata["resourceVersion"]}
    }
    plane.api.request("PUT", path, json=body)
    spec = {"strategies": {"unknown": {"rules": []}}}
    probe = {"apiVersion": "telemetry.intel.com/v1alpha1", "kind": "TASPolicy", "spec": spec}
    probe["metadata"] = {"name": "probe", "namespace": "default"}

    def is_taken() -> bool:
        folder = POLICIES.replace("taspolicies", "namespaces/default/taspolicies")
        try:
            plane.api.request("POST", folder, json=probe, params={"dryRun": "All"})
        except ApiError:
            return False
        return True

    namespace_sandboxes.wait("the definition counts", lambda: is_taken() == takes or None)


@contextlib.contextmanager
def open_environment(plane: ControlPlane, folder: Path) -> Iterator[TasEnvironment]:
    """An environment that is ready for stories; afterwards all its objects are removed."""
    extender_process.define(plane.api)
    with (
        _older_definition(plane),
        namespace_sandboxes.created(plane) as sandbox,
        fake_custom_metrics_server.behind(sandbox, folder) as metrics,
    ):
        made = TasEnvironment(plane, sandbox, metrics, folder)
        try:
            made.light()
            yield made
        finally:
            made.close()
