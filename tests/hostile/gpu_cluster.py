"""Nodes with GPUs, pods that request them, and the process that allocates them, for hostile tests."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nodewise.kube.resource_kinds import LEASES, NODES, PODS
from tests.hostile import malformed_metrics_api_server, response_checks, three_node_cluster_objects
from tests.hostile.extender_process import AttackedExtender, RawResponse
from tests.hostile.malformed_metrics_api_server import MalformedApiServer

PREFIX = "gpu.intel.com/"
OWN = "nodewise"
"""The namespace of the allocation records."""
GOOD = ("good1", "good2")
"""Valid nodes with two GPUs each."""


def node(
    name: str, labels: Any = None, allocatable: Any = None, annotations: Any = None, **more: Any
) -> dict[str, Any]:
    """A node with arbitrary parts."""
    meta = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
    return {"kind": "Node", "metadata": meta, "status": {"allocatable": allocatable}} | more


def amounts(**numbers: Any) -> dict[str, Any]:
    """Resource amounts with the GPU prefix: `i915=2` becomes `gpu.intel.com/i915: "2"`."""
    return {PREFIX + name: str(value) for name, value in numbers.items()}


def container(name: str, requests: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": requests}}


def pod(name: str, *containers: Any, uid: str = "", **annotations: Any) -> dict[str, Any]:
    """A pod in the namespace `d`; `gas_deny="card0"` becomes the annotation `gas-deny`."""
    notes = {key.replace("_", "-"): value for key, value in annotations.items()}
    meta = {"name": name, "namespace": "d", "uid": uid or f"uid-{name}", "labels": {}, "annotations": notes}
    return {"kind": "Pod", "metadata": meta, "spec": {"containers": list(containers)}}


def one_gpu_pod(name: str, uid: str = "", **annotations: Any) -> dict[str, Any]:
    """A pod that requests one `i915` and 100 millicores."""
    return pod(name, container("main", amounts(i915=1, millicores=100)), uid=uid, **annotations)


def request_body(pod: Any, names: Sequence[str]) -> bytes:
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": list(names)}).encode()


class GpuCluster(NamedTuple):
    """The API server in memory and the extender process."""

    server: MalformedApiServer
    target: AttackedExtender

    def put(self, resource: Any, made: Any) -> Any:
        return self.server.call(lambda api: api.put(resource, made))

    def remove(self, resource: Any, name: str, namespace: str = "") -> None:
        self.server.call(lambda api: api.remove(resource, name, namespace))

    def bound(self, made: dict[str, Any], node: str) -> None:
        """Creates a pod that another scheduler has bound."""
        self.put(PODS, made | {"spec": made["spec"] | {"nodeName": node}})

    def put_record(self, node: str, text: Any) -> None:
        meta = {"name": f"gpu-{node}", "namespace": OWN, "labels": {"nodewise.io/ledger": "gpu"}}
        self.put(LEASES, {"metadata": meta | {"annotations": {"nodewise.io/holdings": text}}})

    def allocations(self, node: str) -> dict[str, Any]:
        """The state of a node in the process; {} if it does not know the node."""
        with self.target.admin() as line:
            answer = line.ask(f"/state/gpu?node={node}", b"", "GET", {})
        assert answer.status == 200, answer.body
        state: dict[str, Any] = json.loads(answer.body)["nodes"].get(node, {})
        return state

    def held(self, node: str) -> dict[str, int]:
        """The held amount of `i915`, by GPU."""
        cards = self.allocations(node).get("cards", {})
        return {name: card["held"].get(f"{PREFIX}i915", 0) for name, card in cards.items()}

    def filter(self, pod: Any, names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        with self.target.line() as line:
            answer = line.ask("/scheduler/filter", request_body(pod, names))
        assert answer.status == 200, answer.body[:500]
        return response_checks.check_filtered(answer, names)

    def bind(self, pod: Any, node: str) -> RawResponse:
        meta = pod["metadata"]
        body = {"PodName": meta["name"], "PodNamespace": "d", "PodUID": meta["uid"], "Node": node}
        with self.target.line() as line:
            return line.ask("/scheduler/bind", json.dumps(body).encode())

    def find(self, name: str) -> dict[str, Any]:
        pod: dict[str, Any] = self.server.call(lambda api: api.objects(PODS)["d", name])
        return pod

    def settle(self) -> None:
        """Waits until the process has seen all changes of pods, nodes and allocation records so far.

        Each kind has its own watch, so each gets a probe: a pod with an annotation for card0, a pod with an entry in
        the record for card1, and a new capacity of the node.
        """
        here = [
            name for _, name in self.server.call(lambda api: api.objects(PODS)) if name.startswith("seen-")
        ]
        number = len(here) // 2
        self.put(NODES, node("seen", {f"{PREFIX}gpu-numbers": "0.1"}, amounts(i915=2000 + 2 * number)))
        main = container("main", amounts(i915=1))
        self.bound(pod(f"seen-{number}-old", main, gas_container_cards="card0"), "seen")
        self.bound(pod(f"seen-{number}-new", main), "seen")
        entries = {}
        for at in range(number + 1):
            meta = self.find(f"seen-{at}-new")["metadata"]
            seen = {"pod": f"d/seen-{at}-new", "cards": "card1", "seen": meta["resourceVersion"]}
            entries[meta["uid"]] = seen
        self.put_record("seen", json.dumps(entries))
        wanted = {"card0": number + 1, "card1": number + 1}
        self.target.until("the process has seen pods and records", lambda: self.held("seen") == wanted)
        self.target.until("the process has seen the node", lambda: self.room("seen") == 1000 + number)

    def room(self, node: str) -> int:
        """The capacity of card0 for `i915`."""
        capacity: int = self.allocations(node)["cards"]["card0"]["capacity"][f"{PREFIX}i915"]
        return capacity

    def check_others(self) -> None:
        """Checks that both agents respond correctly for valid pods and nodes, and that no failure was logged."""
        answer = self.target.filter(three_node_cluster_objects.NODES)
        expected = (["n1", "n2"], {three_node_cluster_objects.HOT: three_node_cluster_objects.WHY})
        assert response_checks.check_filtered(answer, three_node_cluster_objects.NODES) == expected
        kept, failed = self.filter(one_gpu_pod("honest"), [*GOOD, "n1"])
        assert kept == list(GOOD)
        assert "the node has no GPUs" in failed["n1"]
        for event in ("task_failed", "agent_failed", "request_failed"):
            assert not self.target.events(event)


@contextlib.contextmanager
def running_cluster(folder: Path) -> Iterator[GpuCluster]:
    """Runs an extender with the agents telemetry and gpu, and its API server."""
    with malformed_metrics_api_server.serving() as server:
        for name in GOOD:
            good = node(name, {f"{PREFIX}gpu-numbers": "0.1"}, amounts(i915=2000, millicores=200_000))
            server.call(lambda api, good=good: api.put(NODES, good))  # type: ignore[misc]
        options = {
            "--kubeconfig": server.kubeconfig(folder),
            "--agents": "telemetry,gpu",
            "--namespace": OWN,
            "--sync-period": "500ms",
            "--max-age": "1h",
            "--bind-errors": "field",
            "--kube-qps": "500",
            "--kube-burst": "1000",
        }
        with AttackedExtender(folder, [part for pair in options.items() for part in pair]) as target:
            yield GpuCluster(server, target)
