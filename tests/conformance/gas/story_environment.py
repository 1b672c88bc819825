"""Extender processes for the tables of this folder, their API server, and requests to them.

All rows are laid into one cluster: a request names its candidates, so the nodes of other rows do not matter. The API
server is a real one or that in memory; both are asked alike.
"""

import contextlib
import ssl
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import httpx2

from nodewise.simulate import in_memory_api_server
from nodewise.simulate.in_memory_api import FakeApi
from tests.cluster import asgi_server_thread, extender_process, gpu_cluster, namespace_sandboxes
from tests.cluster.api_client import ClusterApi, Object, path_of
from tests.cluster.certificates import CertificateAuthority
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import CertificateFiles, ExtenderProcess
from tests.cluster.namespace_sandboxes import wait
from tests.conformance.gas import faulty_proxy, table_notation
from tests.conformance.gas.faulty_proxy import PODS
from tests.conformance.gas.table_rows import Books, Flags, GasHttpRow, PlacementCase

BELONGS: Final = "conformance"
"""The label of our nodes."""
NOBODYS_SCHEDULER: Final = "conformance"
"""No scheduler places our pods but the test."""
NODES: Final = "/api/v1/nodes"
ALLOCATION_RECORDS: Final = f"/apis/coordination.k8s.io/v1/namespaces/{extender_process.OWN_NAMESPACE}/leases"
FLAGS: Final[dict[str, str]] = {"allow": "--enableAllowlist", "deny": "--enableDenylist"}
BEACON: Final = "beacon"
SIGNAL: Final = "signal"
TOLD: Final = "gpu.aware.scheduling/deschedule-pod"
PATIENCE_S: Final = 60.0
"""With the process and the beacon; no limit on speed."""


class GasApiServer(NamedTuple):
    """An API server and the part of it that is ours."""

    api: ClusterApi
    namespace: str
    """Of our pods."""
    kubeconfig: Path
    """The processes'."""


class GasEnvironment:
    """Makes nodes and pods, and starts one process for each set of flags, when it is asked for; `more` has each."""

    def __init__(self, api_server: GasApiServer, folder: Path, more: Sequence[str] = ()) -> None:
        self.api, self.namespace, self._kubeconfig = api_server
        self._more = more
        self._folder = folder
        self._papers = CertificateFiles(folder)
        self._running: dict[Flags, ExtenderProcess] = {}
        self._open = contextlib.ExitStack()
        context = self._papers.authority.client_context(self._papers.client)
        self._http = self._open.enter_context(_client(context))

    def close(self) -> None:
        self._open.close()

    def extender(self, flags: Flags = "") -> ExtenderProcess:
        """The process with these flags."""
        if flags not in self._running:
            started = extender_process.started(self._folder, self._arguments(flags), self._papers)
            running = self._open.enter_context(started)
            running.process.wait_ready(running.is_ready)
            self._running[flags] = running
        return self._running[flags]

    def _arguments(self, flags: Flags) -> list[str]:
        papers = self._papers
        return [
            f"--kubeconfig={self._kubeconfig}",
            f"--namespace={extender_process.OWN_NAMESPACE}",
            "--address=127.0.0.1",
            "--port=0",
            "--health-port=0",
            f"--cert={papers.server.cert}",
            f"--key={papers.server.key}",
            f"--client-ca={papers.authority.ca_file}",
            "--agents=gpu",
            "--kube-qps=200",
            "--kube-burst=400",
            *_old_flags(flags),
            *self._more,
        ]

    def node(self, name: str, text: str, driver: str = "i915") -> None:
        made = table_notation.node(name, text, driver)
        made["metadata"]["labels"][BELONGS] = "gas"
        self.api.create(made)

    def pod(
        self, name: str, text: str, driver: str = "i915", *, node: str = "", **annotations: str
    ) -> Object:
        """Makes a pod, on a node if one is named; as the API server has it."""
        made = table_notation.pod(name, text, annotations, driver)
        made["metadata"]["namespace"] = self.namespace
        made["spec"] |= {"schedulerName": NOBODYS_SCHEDULER} | ({"nodeName": node} if node else {})
        return self.api.create(made)

    def set_phase(self, pod: Object, phase: str) -> None:
        self.api.patch(f"{path_of(pod)}/status", {"status": {"phase": phase}})

    def find(self, name: str) -> Object:
        """A pod as it is now."""
        return self.api.get(f"/api/v1/namespaces/{self.namespace}/pods/{name}")

    def create_objects(self, cases: Sequence[PlacementCase]) -> None:
        """The nodes of all cases, and the pods that run there already."""
        for case in cases:
            for name, text in case.row.nodes.items():
                self.node(f"{case.tag}-{name}", text, case.driver)
            for number, text in enumerate(case.row.running):
                running = table_notation.running(text)
                node, name = f"{case.tag}-{running.node}", f"{case.tag}-running-{number}"
                pod = self.pod(name, running.containers, case.driver, node=node, **running.annotations)
                self.set_phase(pod, "Running")

    def filter(self, served: ExtenderProcess, pod: Object, names: Sequence[str]) -> httpx2.Response:
        return self._ask(served, "filter", pod, names)

    def points(self, served: ExtenderProcess, pod: Object, names: Sequence[str]) -> dict[str, int]:
        """What prioritize says of each candidate."""
        answer = self._ask(served, "prioritize", pod, names).raise_for_status()
        return {priority["Host"]: priority["Score"] for priority in answer.json()}

    def _ask(self, served: ExtenderProcess, verb: str, pod: Object, names: Sequence[str]) -> httpx2.Response:
        request = {"Pod": pod, "Nodes": None, "NodeNames": names}
        return self._http.post(f"{served.url}/scheduler/{verb}", json=request)

    def bind(self, served: ExtenderProcess, name: str, uid: str, node: str) -> httpx2.Response:
        request = {"PodName": name, "PodNamespace": self.namespace, "PodUID": uid, "Node": node}
        return self._http.post(f"{served.url}/scheduler/bind", json=request)

    def allocations(self, served: ExtenderProcess, node: str) -> Books:
        """What is held on a node, by card and resource."""
        answer = httpx2.get(f"{served.health}/state/gpu", params={"node": node}).raise_for_status()
        cards = answer.json()["nodes"].get(node, {"cards": {}})["cards"]
        return {name: card["held"] for name, card in cards.items() if card["held"]}

    def call(self, row: GasHttpRow, node: str) -> httpx2.Response:
        """The request of a row; `n1` in its body is the node. httpx2.TransportError: the handshake failed."""
        content = row.body.replace("n1", node).encode()
        headers = {} if row.content_type is None else {"Content-Type": row.content_type}
        url = f"{self.extender().url}{row.path}"
        with _client(self._context(row)) as client:
            return client.request(row.method, url, content=content, headers=headers)

    def _context(self, row: GasHttpRow) -> ssl.SSLContext:
        papers = self._papers
        if row.client == "stranger":
            context = papers.authority.client_context()
            pair = CertificateAuthority(self._folder, "strange-ca").issue("stranger")
            context.load_cert_chain(pair.cert, pair.key)
            return context
        return papers.authority.client_context(papers.client if row.client == "scheduler" else None)


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
        """Make the beacons, before the process starts."""
        self.node(BEACON, "gn=0; i915=1000")
        self.node(SIGNAL, "gn=0 D:gas-deschedule-pods-card0; i915=1000")

    def settle(self) -> None:
        """Wait until the process knows all that happened to pods so far: they come by one watch, in order."""
        self._light(BEACON)
        wanted = with_full_names({"card0": {"i915": self._lit[BEACON]}})
        wait("the beacon", lambda: self.allocations(self.extender(), BEACON) == wanted or None, PATIENCE_S)

    def settle_told(self) -> None:
        """Wait until the leader has begun to tell pods whatever it knows of so far."""
        name = self._light(SIGNAL)
        wait("the signal", lambda: is_marked(self.find(name)) or None, PATIENCE_S)

    def _light(self, node: str) -> str:
        """One more pod on a beacon; its name."""
        self._lit[node] += 1
        name = f"{node}-{self._lit[node]}"
        self.pod(name, "[i915=1]", node=node, **{table_notation.CARDS: "card0"})
        return name

    @contextlib.contextmanager
    def blind(self) -> Iterator[None]:
        """The process cannot see pods until the block is left, and then lists them anew."""
        self.trouble.lose(PODS)
        before = self.trouble.in_vain[PODS]
        wait("pods are asked for in vain", lambda: self.trouble.in_vain[PODS] > before or None, PATIENCE_S)
        yield
        self.trouble.find(PODS, expired=True)


def is_marked(pod: Object) -> bool:
    """Whether a pod is labelled to go."""
    return bool(pod["metadata"].get("labels", {}).get(TOLD) == "gpu")


def with_full_names(books: Books, driver: str = "i915") -> Books:
    """Allocations with the full names of resources."""
    return {
        card: {table_notation.resource(name, driver): amount for name, amount in held.items()}
        for card, held in books.items()
    }


@contextlib.contextmanager
def on_control_plane(plane: ControlPlane) -> Iterator[GasApiServer]:
    """A real API server. Nothing of ours is left there afterwards."""
    with namespace_sandboxes.created(plane) as sandbox:
        yield GasApiServer(plane.api, sandbox.namespace, gpu_cluster.user(plane).kubeconfig)
        for path, selector in ((NODES, BELONGS), (ALLOCATION_RECORDS, "nodewise.io/ledger=gpu")):
            plane.api.request("DELETE", path, params={"labelSelector": selector})


@contextlib.contextmanager
def running_in_memory(folder: Path) -> Iterator[GasApiServer]:
    """The API server in memory."""
    with (
        in_memory_api_server.serving(FakeApi()) as server,
        ClusterApi(server.url, ssl.create_default_context()) as api,
    ):
        yield GasApiServer(api, "default", server.kubeconfig(folder))
