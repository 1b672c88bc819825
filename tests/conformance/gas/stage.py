"""Real processes on a real API server for the tables of this folder, and the ways to ask them.

All rows are laid into one cluster: a request names its candidates, so the nodes of other rows do not matter.
"""

import contextlib
import json
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx2

from tests.cluster import served
from tests.cluster.api import Object, path_of
from tests.cluster.certificates import Authority
from tests.cluster.sandbox import Sandbox, wait
from tests.cluster.served import Papers, Served
from tests.conformance.gas import between, notation
from tests.conformance.gas.between import PODS
from tests.conformance.gas.rows import Books, Case, Flags, HttpRow

BELONGS: Final = "conformance"
"""The label of our nodes."""
NOBODYS_SCHEDULER: Final = "conformance"
"""No scheduler places our pods but the test."""
LEDGERS: Final = f"/apis/coordination.k8s.io/v1/namespaces/{served.OWN_NAMESPACE}/leases"
COMMON: Final = ("--agents=gpu", "--kube-qps=200", "--kube-burst=400")
FLAGS: Final[dict[str, str]] = {"allow": "--enableAllowlist", "deny": "--enableDenylist"}


BEACON: Final = "beacon"
PATIENCE_S: Final = 60.0
"""With the process and the beacon; no limit on speed."""

S = TypeVar("S", bound="Stage")


class Stage:
    """Makes nodes and pods, and starts one process for each set of flags, when it is asked for."""

    def __init__(self, corner: Sandbox, folder: Path) -> None:
        self.corner, self.api = corner, corner.api
        self._folder = folder
        self._common = COMMON
        self._papers = Papers(folder)
        self._user = served.user(corner.plane)
        self._running: dict[Flags, Served] = {}
        self._open = contextlib.ExitStack()
        context = self._papers.authority.client_context(self._papers.client)
        self._http = self._open.enter_context(_client(context))

    def close(self) -> None:
        self._open.close()
        for path, selector in (("/api/v1/nodes", BELONGS), (LEDGERS, "nodewise.io/ledger=gpu")):
            self.api.request("DELETE", path, params={"labelSelector": selector})

    def extender(self, flags: Flags = "") -> Served:
        """The process with these flags."""
        if flags not in self._running:
            more = [*self._common, *_arguments(flags)]
            started = served.extender(
                self.corner.plane, self._folder, *more, papers=self._papers, by=self._user
            )
            self._running[flags] = self._open.enter_context(started)
        return self._running[flags]

    def node(self, name: str, text: str, driver: str = "i915") -> None:
        made = notation.node(name, text, driver)
        made["metadata"]["labels"][BELONGS] = "gas"
        self.api.create(made)

    def pod(
        self, name: str, text: str, driver: str = "i915", *, node: str = "", **annotations: str
    ) -> Object:
        """Makes a pod, on a node if one is named; as the API server has it."""
        made = notation.pod(name, text, annotations, driver)
        made["metadata"]["namespace"] = self.corner.namespace
        made["spec"] |= {"schedulerName": NOBODYS_SCHEDULER} | ({"nodeName": node} if node else {})
        return self.api.create(made)

    def set_phase(self, pod: Object, phase: str) -> None:
        self.api.patch(f"{path_of(pod)}/status", {"status": {"phase": phase}})

    def find(self, name: str) -> Object:
        """A pod as it is now."""
        return self.api.get(f"/api/v1/namespaces/{self.corner.namespace}/pods/{name}")

    def lay(self, cases: Sequence[Case]) -> None:
        """The nodes of all cases, and the pods that run there already."""
        for case in cases:
            for name, text in case.row.nodes.items():
                self.node(f"{case.tag}-{name}", text, case.driver)
            for number, text in enumerate(case.row.running):
                told = notation.running(text)
                on, name = f"{case.tag}-{told.node}", f"{case.tag}-running-{number}"
                pod = self.pod(name, told.containers, case.driver, node=on, **told.annotations)
                self.set_phase(pod, "Running")

    def filter(self, served: Served, pod: Object, names: Sequence[str]) -> httpx2.Response:
        return self._http.post(
            f"{served.url}/scheduler/filter", json={"Pod": pod, "Nodes": None, "NodeNames": names}
        )

    def bind(self, served: Served, name: str, uid: str, node: str) -> httpx2.Response:
        asked = {"PodName": name, "PodNamespace": self.corner.namespace, "PodUID": uid, "Node": node}
        return self._http.post(f"{served.url}/scheduler/bind", json=asked)

    def books(self, served: Served, node: str) -> Books:
        """What is held on a node, by card and resource."""
        raise NotImplementedError

    def call(self, row: HttpRow, node: str) -> httpx2.Response:
        """The request of a row; `n1` in its body is the node. A handshake that fails is an httpx2.TransportError."""
        content = row.body.replace("n1", node).encode()
        headers = {} if row.content_type is None else {"Content-Type": row.content_type}
        url = f"{self.extender().url}{row.path}"
        with _client(self._context(row)) as client:
            return client.request(row.method, url, content=content, headers=headers)

    def _context(self, row: HttpRow) -> ssl.SSLContext:
        papers = self._papers
        if row.client == "stranger":
            context = papers.authority.client_context()
            pair = Authority(self._folder, "strange-ca").issue("stranger")
            context.load_cert_chain(pair.cert, pair.key)
            return context
        return papers.authority.client_context(papers.client if row.client == "scheduler" else None)


def _client(context: ssl.SSLContext) -> httpx2.Client:
    return httpx2.Client(verify=context, timeout=30, trust_env=False)


def _arguments(flags: Flags) -> list[str]:
    words = flags.split()
    if words[:1] == ["balanced"]:
        return [f"--balancedResource={words[1]}"]
    return [FLAGS[word] for word in words]


class Troubled(Stage):
    """A stage whose process reaches the API server through `trouble`, and sees what a beacon says."""

    def __init__(self, corner: Sandbox, folder: Path) -> None:
        super().__init__(corner, folder)
        context = corner.plane.authority.client_context(self._user.pair)
        serving = between.serving(corner.plane.url, context)
        self.trouble, address = self._open.enter_context(serving)
        self._common = (*COMMON, f"--kubeconfig={_kubeconfig(folder, address)}")
        self._lit = 0

    def light(self) -> None:
        """Make the beacon, before the process starts."""
        self.node(BEACON, "gn=0; i915=1000")

    def settle(self) -> None:
        """Wait until the process knows all that happened to pods so far: they come by one watch, in order."""
        self._lit += 1
        self.pod(f"{BEACON}-{self._lit}", "[i915=1]", node=BEACON, **{notation.CARDS: "card0"})
        wanted = full({"card0": {"i915": self._lit}})
        wait("the beacon", lambda: self.books(self.extender(), BEACON) == wanted or None, PATIENCE_S)

    @contextlib.contextmanager
    def blind(self) -> Iterator[None]:
        """The process cannot see pods until the block is left, and then lists them anew."""
        self.trouble.lose(PODS)
        before = self.trouble.in_vain[PODS]
        wait("pods are asked for in vain", lambda: self.trouble.in_vain[PODS] > before or None, PATIENCE_S)
        yield
        self.trouble.find(PODS, expired=True)


def _kubeconfig(folder: Path, address: str) -> Path:
    file = folder / "between.kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": {"server": address}}],
        "contexts": [{"name": "here", "context": {"cluster": "here"}}],
        "current-context": "here",
    }
    file.write_text(json.dumps(config))
    return file


def full(books: Books, driver: str = "i915") -> Books:
    """Books with the whole names of resources."""
    return {
        card: {notation.resource(name, driver): amount for name, amount in held.items()}
        for card, held in books.items()
    }


def named(answer: Any, node: str) -> Any:
    """An answer of the table about a node."""
    return json.loads(json.dumps(answer).replace('"n1"', f'"{node}"'))


@contextlib.contextmanager
def opened(kind: type[S], corner: Sandbox, folder: Path) -> Iterator[S]:
    """A stage of which nothing is left afterwards."""
    made = kind(corner, folder)
    try:
        yield made
    finally:
        made.close()


def fields(answer: httpx2.Response) -> list[str]:
    """The fields that a refusal names."""
    return [problem["field"] for problem in answer.json()["problems"]]
