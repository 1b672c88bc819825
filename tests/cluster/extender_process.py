"""Runs the nodewise extender as operators do: the command, a kubeconfig with the shipped rights, and mutual TLS."""

import contextlib
import functools
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
import yaml

from tests import plain_http
from tests.cluster import admission_policy_waits, api_user_kubeconfigs, child_processes, kubernetes_objects
from tests.cluster.api_client import ClusterApi, Object, path_of
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.certificates import CertificateAuthority, CertificatePair
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.filter_responses import rejected_nodes
from tests.forked_commands import ForkedProcess

ROOT = Path(__file__).parents[2]
NODEWISE = Path(sys.executable).parent / "nodewise"
MANAGED = [{"name": "telemetry/scheduling", "ignoredByScheduler": True}]
OWN_NAMESPACE = "default"
SERVICE = "nodewise"
LIMITS = {"telemetry/scheduling": "1"}
"""The limits that a pod needs so that kube-scheduler calls nodewise for it."""
HOT = {"metricname": "heat", "operator": "GreaterThan", "target": 80}
COOLEST = {"metricname": "heat", "operator": "LessThan"}
POLICY_KINDS = (
    ("telemetry.intel.com", "taspolicies"),
    ("nodewise.io", "placementpolicies"),
    ("nodewise.io", "clusterplacementpolicies"),
)
"""API group and plural of the kinds of policies."""


def manifest(name: str) -> list[Object]:
    """The objects of a file below `deploy/`."""
    return list(yaml.load_all((ROOT / "deploy" / name).read_text(), yaml.CSafeLoader))


def rules(kind: str = "ClusterRole") -> list[Object]:
    """The shipped rights: in the cluster (`ClusterRole`), or in nodewise's own namespace (`Role`)."""
    rules: list[Object] = next(document for document in manifest("rbac.yaml") if document["kind"] == kind)[
        "rules"
    ]
    return rules


def define(api: ClusterApi) -> None:
    """Creates the definitions of all kinds of policies if necessary, and waits until the API server serves them."""
    for _, plural in POLICY_KINDS:
        for definition in manifest(f"crds/{plural}.yaml"):
            api.ensure(definition)
    for group, plural in POLICY_KINDS:
        path = f"/apis/{group}/v1alpha1/{plural}"
        wait(f"{plural} are served", functools.partial(_is_served, api, path))


def _is_served(api: ClusterApi, path: str) -> bool | None:
    return api.answers(path) or None


@contextlib.contextmanager
def refusing_unknown_fields(api: ClusterApi) -> Iterator[None]:
    """Enforces `deploy/policy-fields.yaml` while the context is open."""
    wrong = tas_policy("wrong", {"dontschedule": {"rules": [HOT | {"colour": "red"}]}}, OWN_NAMESPACE)
    made = [api.create(document) for document in manifest("policy-fields.yaml")]
    try:
        admission_policy_waits.wait_denied(lambda: admission_policy_waits.try_create(api, wrong))
        yield
    finally:
        for document in made:
            api.delete(path_of(document))
        admission_policy_waits.wait_allowed(lambda: admission_policy_waits.try_create(api, wrong))


def tas_policy(name: str, strategies: Object, namespace: str = "") -> Object:
    """A TASPolicy in a namespace, or without one for `Sandbox.put`."""
    return {
        "apiVersion": "telemetry.intel.com/v1alpha1",
        "kind": "TASPolicy",
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "spec": {"strategies": strategies},
    }


def policy(sandbox: Sandbox, **strategies: list[Object]) -> None:
    """Creates a TASPolicy `pol` in the test's namespace."""
    define(sandbox.api)
    sandbox.put(tas_policy("pol", {name: {"rules": rules} for name, rules in strategies.items()}))


def pod(name: str, **more: Any) -> Object:
    """A pod of the policy `pol`, for which kube-scheduler calls nodewise; see `kubernetes_objects.pod`."""
    return kubernetes_objects.pod(name, labels={"telemetry-policy": "pol"}, limits=LIMITS, **more)


def small_pod(name: str) -> Object:
    """A pod of the policy `pol` that requests almost nothing, so that thousands fit on a node."""
    return pod(name, cpu="1m", memory="1Mi")


def heated(
    sandbox: Sandbox, metrics: FakeCustomMetricsApi, heat: Mapping[str, str | int], **strategies: list[Object]
) -> None:
    """Creates nodes with these values of `heat`, and a policy with `strategies`, which by default rejects hot nodes."""
    sandbox.nodes(*kubernetes_objects.nodes(" ".join(heat)))
    metrics.set("heat", heat)
    policy(sandbox, **(strategies or {"dontschedule": [HOT]}))


def status(sandbox: Sandbox, name: str = "pol") -> Object:
    """The status of a policy in the test's namespace; empty if it has none."""
    path = f"/apis/telemetry.intel.com/v1alpha1/namespaces/{sandbox.namespace}/taspolicies/{name}"
    status: Object = sandbox.api.get(path).get("status", {})
    return status


def condition(sandbox: Sandbox, kind: str, name: str = "pol") -> Object:
    """A condition of a policy's status; if it is missing, one with empty status and message."""
    conditions = status(sandbox, name).get("conditions", [])
    return next(
        (condition for condition in conditions if condition["type"] == kind), {"status": "", "message": ""}
    )


def logged_events(process: Process, name: str = "") -> list[Object]:
    """The events that an extender or controller logged as JSON, oldest first; all, or those with this name."""
    lines = [line for line in process.log.read_text().splitlines() if line.startswith("{")]
    events = [json.loads(line) for line in lines]
    return [event for event in events if name in {"", event["event"]}]


def gauge(process: Process, name: str) -> float | None:
    """The value of a metric without labels of an extender or controller; None before it is exported."""
    for event in logged_events(process, "started"):
        match = re.search(rf"(?m)^nodewise_{name} (\S+)$", plain_http.get(f"{event['health']}/metrics").text)
        return float(match[1]) if match else None
    return None


class ExtenderProcess:
    """A running `nodewise extender`."""

    def __init__(self, process: Process, certificates: "CertificateFiles") -> None:
        self.process = process
        self.certificates = certificates
        self.url = ""
        self.health = ""

    def events(self, name: str = "") -> list[Object]:
        """The logged events, oldest first; all, or those with this name."""
        return logged_events(self.process, name)

    def wait_events(self, name: str, count: int = 1) -> list[Object]:
        """Waits until an event was logged `count` times, and returns all events with this name, oldest first.

        The log line follows the effect: a pod is bound, or an object is written, before the extender logs it.
        """

        def logged() -> list[Object] | None:
            events = self.events(name)
            return events if len(events) >= count else None

        return wait(f"{name} is logged {count} times", logged, show=self.process.tail)

    def find_address(self) -> bool:
        """Reads the addresses from the log. Returns whether they are known."""
        for event in self.events("started"):
            self.url, self.health = event["address"], event["health"]
        return bool(self.url)

    def is_ready(self) -> bool:
        with contextlib.suppress(httpx2.TransportError):
            return plain_http.get(f"{self.health}/readyz").status_code == httpx2.codes.OK
        return False

    def decisions(self, pod: str) -> list[Object]:
        """The newest decisions about a pod."""
        decisions: list[Object] = plain_http.get(f"{self.health}/decisions", params={"pod": pod}).json()[
            "decisions"
        ]
        return decisions

    def fetched(self, metric: str) -> bool:
        """Whether a metric was fetched successfully."""
        return f'nodewise_metric_age_seconds{{metric="{metric}"}}' in self._metrics()

    def repeats_events(self) -> bool:
        """Whether the count of an event was written after the event."""
        return bool(
            re.search(r'^nodewise_events_total{outcome="repeated"} [1-9]', self._metrics(), re.MULTILINE)
        )

    def _metrics(self) -> str:
        return plain_http.get(f"{self.health}/metrics").text

    def wait_fetched(self, metric: str) -> None:
        """Waits until nodewise is ready and has fetched a metric."""
        wait(f"{metric} is known", lambda: (self.is_ready() and self.fetched(metric)) or None)

    def wait_leading(self) -> None:
        """Waits until this replica is the leader. If the previous leader was killed, its Lease must expire first."""
        self.wait_events("leading")

    def rejects(
        self,
        namespace: str,
        node: str,
        policy: str = "pol",
        labels: Mapping[str, str] | None = None,
        pod: str = "probe",
    ) -> bool:
        """Whether a filter call, as kube-scheduler sends it, rejects a node now for a pod with a policy or labels."""
        labels = labels or {"telemetry-policy": policy}
        body = {
            "Pod": {"metadata": {"name": pod, "namespace": namespace, "labels": labels}},
            "NodeNames": [node],
        }
        context = self.certificates.authority.client_context(self.certificates.client)
        with httpx2.Client(verify=context, trust_env=False) as client:
            answer = client.post(f"{self.url}/scheduler/filter", json=body)
        return node in rejected_nodes(answer.json())

    def entry(self, **fields: Any) -> Object:
        """The extender's entry of a scheduler configuration."""
        tls = {
            "caFile": str(self.certificates.authority.ca_file),
            "certFile": str(self.certificates.client.cert),
            "keyFile": str(self.certificates.client.key),
        }
        return {
            "urlPrefix": f"{self.url}/scheduler",
            "filterVerb": "filter",
            "prioritizeVerb": "prioritize",
            "preemptVerb": "preempt",
            "weight": 5,
            "enableHTTPS": True,
            "nodeCacheCapable": True,
            "httpTimeout": "30s",
            "ignorable": False,
            "managedResources": MANAGED,
            "tlsConfig": tls,
        } | fields


class CertificateFiles:
    """The certificates of one extender and its scheduler."""

    def __init__(self, folder: Path, *hosts: str) -> None:
        self.authority = CertificateAuthority(folder, "nodewise-ca")
        self.server: CertificatePair = self.authority.issue("nodewise", "127.0.0.1", "localhost", *hosts)
        self.client: CertificatePair = self.authority.issue("system:kube-scheduler")


@contextlib.contextmanager
def started(
    folder: Path, arguments: Sequence[str], certificates: CertificateFiles
) -> Iterator[ExtenderProcess]:
    """Runs the command with these arguments, yields it once its addresses are known, and stops it."""
    process = ForkedProcess(
        [NODEWISE, "extender", "--log-format=json", "--shutdown-delay=0s", *arguments],
        folder / f"nodewise-{child_processes.number()}.log",
    )
    with process:
        served = ExtenderProcess(process, certificates)
        process.wait_ready(served.find_address)
        yield served


@contextlib.contextmanager
def controller(user: User, folder: Path, *more: str) -> Iterator[Process]:
    """Runs `nodewise controller` with a short sync period, and yields it before it is ready."""
    command = [
        NODEWISE,
        "controller",
        "--log-format=json",
        f"--kubeconfig={user.kubeconfig}",
        "--health-port=0",
        "--sync-period=500ms",
        *more,
    ]
    with ForkedProcess(command, folder / f"controller-{child_processes.number()}.log") as process:
        yield process


def endpoint(name: str, url: str, *, ready: bool = True) -> Object:
    """An EndpointSlice of one replica behind the Service `SERVICE`."""
    address, _, port = url.removeprefix("https://").rpartition(":")
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": SERVICE}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": ready}}],
        "ports": [{"name": "https", "port": int(port)}],
    }


def user(plane: ControlPlane) -> User:
    """A user with the shipped rights; nodewise's own namespace is `OWN_NAMESPACE`."""
    made = plane.user(f"nodewise-{child_processes.number()}", rules())
    api_user_kubeconfigs.grant(plane.api, made.name, rules("Role"), OWN_NAMESPACE)
    return made


def tls_arguments(certificates: CertificateFiles) -> list[str]:
    """Arguments for mutual TLS on free loopback ports."""
    return [
        "--address=127.0.0.1",
        "--port=0",
        "--health-port=0",
        f"--cert={certificates.server.cert}",
        f"--key={certificates.server.key}",
        f"--client-ca={certificates.authority.ca_file}",
    ]


def arguments(user: User, certificates: CertificateFiles) -> list[str]:
    """Arguments for mutual TLS on free loopback ports, and for a short sync period. Later arguments override them."""
    return [
        f"--kubeconfig={user.kubeconfig}",
        f"--namespace={OWN_NAMESPACE}",
        *tls_arguments(certificates),
        "--sync-period=500ms",
    ]


@contextlib.contextmanager
def extender(
    plane: ControlPlane,
    folder: Path,
    *more: str,
    certificates: CertificateFiles | None = None,
    by: User | None = None,
) -> Iterator[ExtenderProcess]:
    """Runs an extender with this control plane and yields it once it is ready. By default, `by` is a user with the
    shipped rights.
    """
    define(plane.api)
    certificates = certificates or CertificateFiles(folder)
    with started(folder, [*arguments(by or user(plane), certificates), *more], certificates) as served:
        served.process.wait_ready(served.is_ready)
        yield served
