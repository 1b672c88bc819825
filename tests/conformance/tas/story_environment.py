"""The environment of all stories: an API server with metrics, a process behind a faulty proxy, and a label watch."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx2

from tests.cluster import (
    api_user_kubeconfigs,
    asgi_server_thread,
    child_processes,
    extender_process,
    fake_custom_metrics_server,
    kubernetes_objects,
    label_watch,
    namespace_sandboxes,
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
"""The key of the label that names the story of a node. Expected labels leave it out."""
BEACON = "beacon"
POLICIES = "/apis/telemetry.intel.com/v1alpha1/taspolicies"
PERIOD = "250ms"
PATIENCE_S = 60.0
"""The timeout of waits for the process and the beacon."""

Seen = TypeVar("Seen")


class TasEnvironment:
    """The environment. The process does not run before `start`."""

    def __init__(
        self, plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, folder: Path
    ) -> None:
        self.sandbox, self.metrics = sandbox, metrics
        self.api = sandbox.api
        self._folder = folder
        self._certificates = CertificateFiles(folder)
        self._port = child_processes.free_port()
        self._plane = plane
        self._running = contextlib.ExitStack()
        self._open = contextlib.ExitStack()
        self._round = 0
        self.runs: list[ExtenderProcess] = []
        """All processes that were started, one after the other."""
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
            extender_process.started(self._folder, self._arguments(), self._certificates)
        )
        self.runs.append(run)
        if until_ready:
            self.wait_ready()

    def schedule(self) -> None:
        """Start a kube-scheduler that calls the process. It runs until the environment closes."""
        scheduler = self._plane.start_scheduler({"extenders": [self.run.entry()]})
        self._open.callback(scheduler.stop)

    def wait_ready(self) -> None:
        self.runs[-1].process.wait_ready(self.runs[-1].is_ready)

    def stop(self) -> None:
        self._running.close()

    @property
    def run(self) -> ExtenderProcess:
        """The running process, or the last one."""
        return self.runs[-1]

    def logged(self, event: str) -> list[str]:
        """The log lines of one event, of all processes."""
        return [str(line) for run in self.runs for line in run.events(event)]

    def labels(self) -> Labels:
        """The labels of all nodes of stories, without those of the environment."""
        listed = self.api.get(faulty_proxy.NODES, labelSelector=ROW)["items"]
        return {node["metadata"]["name"]: _row_labels(node["metadata"]["labels"]) for node in listed}

    def ask(self, verb: str, pod: Object, nodes: list[str]) -> Any:
        """Send a request in the form of kube-scheduler, and return the JSON of the response."""
        body = {"Pod": pod, "NodeNames": nodes}
        return self._http.post(f"{self.run.url}/scheduler/{verb}", json=body).json()

    def policy(self, space: str, name: str, strategies: Object | None) -> None:
        """Create a policy, change its spec, or delete it if `strategies` is None."""
        path = POLICIES.replace("taspolicies", f"namespaces/{space}/taspolicies/{name}")
        if strategies is None:
            return self.api.delete(path)
        policy = extender_process.tas_policy(name, strategies, space)
        if self.api.find(path):
            self.api.patch(path, [{"op": "replace", "path": "/spec", "value": policy["spec"]}], JSON_PATCH)
            return None
        self.sandbox.create(policy)
        return None

    def light(self) -> None:
        """Create the beacon node. Its label shows that the process has seen all earlier changes."""
        self.api.ensure(kubernetes_objects.namespace(BEACON))
        self.sandbox.nodes(kubernetes_objects.node(BEACON))

    def settle(self) -> None:
        """Wait until the process has received and processed all changes so far.

        Every metric is requested as often as the beacon's, one watch delivers policies in order, and all labels of a
        snapshot are written before those of the next one.
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
        """Wait until the beacon's metric was requested `count` more times. Before the first `settle`, do not wait."""
        if not self._round:
            return
        wanted = self.metrics.asked.count(BEACON) + count
        self.wait("a refresh", lambda: self.metrics.asked.count(BEACON) >= wanted or None)

    def wait(self, what: str, see: Callable[[], Seen | None]) -> Seen:
        return namespace_sandboxes.wait(what, see, PATIENCE_S, self.run.process.tail)

    def _client(self) -> httpx2.Client:
        context = self._certificates.authority.client_context(self._certificates.client)
        return httpx2.Client(verify=context, trust_env=False)

    def _arguments(self) -> list[str]:
        file = asgi_server_thread.kubeconfig(self._folder, self._address)
        return [
            f"--kubeconfig={file}",
            f"--namespace={extender_process.OWN_NAMESPACE}",
            *extender_process.tls_arguments(self._certificates),
            f"--port={self._port}",
            f"--sync-period={PERIOD}",
            "--trust-all-namespaces",  # as in the older system, every namespace may use every metric
            "--kube-qps=200",
            "--kube-burst=400",
        ]


def _row_labels(labels: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in labels.items() if key not in {ROW, "kubernetes.io/hostname"}}


@contextlib.contextmanager
def _older_definition(plane: ControlPlane) -> Iterator[None]:
    """Until the block ends, the API server accepts unknown strategies, as with the older definition."""
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
    """Replace the definition, and wait until the API server applies it."""
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
    """An environment that is ready for stories. All its objects are deleted when the block ends."""
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
