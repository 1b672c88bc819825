"""Extender processes for the tables of this folder, their API server, and requests to them.

One cluster holds the objects of all rows. A request names its candidates, so the nodes of other rows do not matter.
The API server is a real one or the in-memory one; the tests call both in the same way.
"""

import contextlib
import ssl
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import httpx2

from nodewise.scheduling_model import in_memory_api_http_server
from nodewise.scheduling_model.in_memory_api import FakeApi
from tests import plain_http
from tests.cluster import asgi_server_thread, extender_process, gpu_cluster, namespace_sandboxes
from tests.cluster.api_client import ClusterApi, Object, path_of
from tests.cluster.certificates import CertificateAuthority
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import CertificateFiles, ExtenderProcess
from tests.cluster.namespace_sandboxes import wait
from tests.conformance.gas import faulty_proxy, node_and_pod_notation
from tests.conformance.gas.case_table_rows import Books, Flags, GasHttpRow, PlacementCase
from tests.conformance.gas.faulty_proxy import PODS

BELONGS: Final = "conformance"
"""The key of the label on every node of the tests."""
NOBODYS_SCHEDULER: Final = "conformance"
"""A scheduler name that no scheduler has: only the test binds the pods."""
NODES: Final = "/api/v1/nodes"
ALLOCATION_RECORDS: Final = f"/apis/coordination.k8s.io/v1/namespaces/{extender_process.OWN_NAMESPACE}/leases"
FLAGS: Final[dict[str, str]] = {"allow": "--enableAllowlist", "deny": "--enableDenylist"}
BEACON: Final = "beacon"
SIGNAL: Final = "signal"
DESCHEDULE_LABEL: Final = "gpu.aware.scheduling/deschedule-pod"
PATIENCE_S: Final = 60.0
"""The timeout of waits for the process and the beacon. It is generous, because no test measures speed."""


class GasApiServer(NamedTuple):
    """An API server, with the namespace and the kubeconfig that the tests use."""

    api: ClusterApi
    namespace: str
    """The namespace of the tests' pods."""
    kubeconfig: Path
    """The kubeconfig of the extender processes."""


class GasEnvironment:
    """Creates nodes and pods, and starts one process per set of flags on first use.

    `more` are additional arguments of every process.
    """

    def __init__(self, api_server: GasApiServer, folder: Path, more: Sequence[str] = ()) -> None:
        self.api, self.namespace, self._kubeconfig = api_server
        self._more = more
        self._folder = folder
        self._certificates = CertificateFiles(folder)
        self._running: dict[Flags, ExtenderProcess] = {}
        self._open = contextlib.ExitStack()
        context = self._certificates.authority.client_context(self._certificates.client)
        self._http = self._open.enter_context(_client(context))

    def close(self) -> None:
        self._http.close()  # a process that stops waits for clients to end their connections
        self._open.close()

    def extender(self, flags: Flags = "") -> ExtenderProcess:
        """The process with these flags."""
        if flags not in self._running:
            started = extender_process.started(self._folder, self._arguments(flags), self._certificates)
            running = self._open.enter_context(started)
            running.process.wait_ready(running.is_ready)
            self._running[flags] = running
        return self._running[flags]

    def _arguments(self, flags: Flags) -> list[str]:
        return [
            f"--kubeconfig={self._kubeconfig}",
            f"--namespace={extender_process.OWN_NAMESPACE}",
            *extender_process.tls_arguments(self._certificates),
            "--agents=gpu",
            "--kube-qps=200",
            "--kube-burst=400",
            *_old_flags(flags),
            *self._more,
        ]

    def node(self, name: str, text: str, driver: str = "i915") -> None:
        made = node_and_pod_notation.node(name, text, driver)
        made["metadata"]["labels"][BELONGS] = "gas"
        self.api.create(made)

    def pod(
        self, name: str, text: str, driver: str = "i915", *, node: str = "", **annotations: str
    ) -> Object:
        """Create a pod, on `node` if it is not empty. Returns the pod as the API server stores it."""
        made = node_and_pod_notation.pod(name, text, annotations, driver)
        made["metadata"]["namespace"] = self.namespace
        made["spec"] |= {"schedulerName": NOBODYS_SCHEDULER} | ({"nodeName": node} if node else {})
        return self.api.create(made)

    def set_phase(self, pod: Object, phase: str) -> None:
        self.api.patch(f"{path_of(pod)}/status", {"status": {"phase": phase}})

    def find(self, name: str) -> Object:
        """The current state of a pod."""
        return self.api.get(f"/api/v1/namespaces/{self.namespace}/pods/{name}")

    def create_objects(self, cases: Sequence[PlacementCase]) -> None:
        """Create the nodes of all cases, and the pods that run on them before the request."""
        for case in cases:
            for name, text in case.row.nodes.items():
                self.node(f"{case.tag}-{name}", text, case.driver)
            for number, text in enumerate(case.row.running):
                running = node_and_pod_notation.running(text)
                node, name = f"{case.tag}-{running.node}", f"{case.tag}-running-{number}"
                pod = self.pod(name, running.containers, case.driver, node=node, **running.annotations)
                self.set_phase(pod, "Running")

    def filter(self, served: ExtenderProcess, pod: Object, names: Sequence[str]) -> httpx2.Response:
        return self._ask(served, "filter", pod, names)

    def points(self, served: ExtenderProcess, pod: Object, names: Sequence[str]) -> dict[str, int]:
        """The score of each candidate, from a prioritize request."""
        answer = self._ask(served, "prioritize", pod, names).raise_for_status()
        return {priority["Host"]: priority["Score"] for priority in answer.json()}

    def _ask(self, served: ExtenderProcess, verb: str, pod: Object, names: Sequence[str]) -> httpx2.Response:
        request = {"Pod": pod, "Nodes": None, "NodeNames": names}
        return self._http.post(f"{served.url}/scheduler/{verb}", json=request)

    def bind(self, served: ExtenderProcess, name: str, uid: str, node: str) -> httpx2.Response:
        request = {"PodName": name, "PodNamespace": self.namespace, "PodUID": uid, "Node": node}
        return self._http.post(f"{served.url}/scheduler/bind", json=request)

    def allocations(self, served: ExtenderProcess, node: str) -> Books:
        """The allocated amounts on a node, by GPU and resource."""
        answer = plain_http.get(f"{served.health}/state/gpu", params={"node": node}).raise_for_status()
        cards = answer.json()["nodes"].get(node, {"cards": {}})["cards"]
        return {name: card["held"] for name, card in cards.items() if card["held"]}

    def call(self, row: GasHttpRow, node: str) -> httpx2.Response:
        """Send the request of a row, with `node` in place of `n1`. httpx2.TransportError: the handshake failed."""
        content = row.body.replace("n1", node).encode()
        headers = {} if row.content_type is None else {"Content-Type": row.content_type}
        url = f"{self.extender().url}{row.path}"
        with _client(self._context(row)) as client:
            return client.request(row.method, url, content=content, headers=headers)

    def _context(self, row: GasHttpRow) -> ssl.SSLContext:
        certificates = self._certificates
        if row.client == "stranger":
            context = certificates.authority.client_context()
            pair = CertificateAuthority(self._folder, "strange-ca").issue("stranger")
            context.load_cert_chain(pair.cert, pair.key)
            return context
        return certificates.authority.client_context(
            certificates.client if row.client == "scheduler" else None
        )


def _client(context: ssl.SSLContext) -> httpx2.Client:
    return httpx2.Client(verify=context, timeout=30, trust_env=False)


def _old_flags(flags: Flags) -> list[str]:
    words = flags.split()
    if words[:1] == ["balanced"]:
        return [f"--balancedResource={words[1]}"]
    return [FLAGS[word] for word in words]


class FaultyGasEnvironment(GasEnvironment):
    """An environment whose process reaches the API server through a faulty proxy, with a beacon node for waits."""

    def __init__(self, api_server: GasApiServer, folder: Path, plane: ControlPlane) -> None:
        super().__init__(api_server, folder)
        context = plane.authority.client_context(gpu_cluster.user(plane).pair)
        self.trouble, address = self._open.enter_context(faulty_proxy.serving(plane.url, context))
        self._kubeconfig = asgi_server_thread.kubeconfig(folder, address)
        self._lit: Counter[str] = Counter()

    def light(self) -> None:
        """Create the beacon nodes. They must exist before the process starts."""
        self.node(BEACON, "gn=0; i915=1000")
        self.node(SIGNAL, "gn=0 D:gas-deschedule-pods-card0; i915=1000")

    def settle(self) -> None:
        """Wait until the process has received all changes of pods so far. One watch delivers them in order."""
        self._light(BEACON)
        wanted = with_full_names({"card0": {"i915": self._lit[BEACON]}})
        wait("the beacon", lambda: self.allocations(self.extender(), BEACON) == wanted or None, PATIENCE_S)

    def settle_labels(self) -> None:
        """Wait until the leader labels a new pod. It has then begun to act on all changes that it knew before."""
        name = self._light(SIGNAL)
        wait("the signal", lambda: is_marked(self.find(name)) or None, PATIENCE_S)

    def _light(self, node: str) -> str:
        """Create one more pod on a beacon node, and return its name."""
        self._lit[node] += 1
        name = f"{node}-{self._lit[node]}"
        self.pod(name, "[i915=1]", node=node, **{node_and_pod_notation.CARDS: "card0"})
        return name

    @contextlib.contextmanager
    def blind(self) -> Iterator[None]:
        """Until the block ends, the process can neither list nor watch pods. It lists them again afterwards."""
        self.trouble.lose(PODS)
        before = self.trouble.in_vain[PODS]
        wait("pods are asked for in vain", lambda: self.trouble.in_vain[PODS] > before or None, PATIENCE_S)
        yield
        self.trouble.find(PODS, expired=True)


def is_marked(pod: Object) -> bool:
    """Whether a pod has the label that asks the descheduler to evict it."""
    return bool(pod["metadata"].get("labels", {}).get(DESCHEDULE_LABEL) == "gpu")


def with_full_names(books: Books, driver: str = "i915") -> Books:
    """Allocations with the full names of resources."""
    return {
        card: {node_and_pod_notation.resource(name, driver): amount for name, amount in held.items()}
        for card, held in books.items()
    }


@contextlib.contextmanager
def on_control_plane(plane: ControlPlane) -> Iterator[GasApiServer]:
    """A real API server. All objects of the tests are deleted when the block ends."""
    with namespace_sandboxes.created(plane) as sandbox:
        yield GasApiServer(plane.api, sandbox.namespace, gpu_cluster.user(plane).kubeconfig)
        for path, selector in ((NODES, BELONGS), (ALLOCATION_RECORDS, "nodewise.io/ledger=gpu")):
            plane.api.request("DELETE", path, params={"labelSelector": selector})


@contextlib.contextmanager
def running_in_memory(folder: Path) -> Iterator[GasApiServer]:
    """An in-memory API server."""
    with (
        in_memory_api_http_server.serving(FakeApi()) as server,
        ClusterApi(server.url, ssl.create_default_context()) as api,
    ):
        yield GasApiServer(api, "default", server.kubeconfig(folder))
