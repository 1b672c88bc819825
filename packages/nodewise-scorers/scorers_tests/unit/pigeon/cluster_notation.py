"""Nodes and pods in the notation of the specification: `n1(4,8Gi;1000,2Gi)` has 4 CPUs and requests of 1000m."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
from tests.unit.incremental_agent_states import built

from nodewise.agent import ClusterState, NodeIndex, Snapshot
from nodewise.base import quantity
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise_scorers import pigeon
from nodewise_scorers.pigeon.agent import (
    PODS,
    HoldingPod,
    NodeFields,
    PigeonAgent,
    PigeonStateBuilder,
    PodFields,
)
from nodewise_scorers.pigeon.options import PigeonOptions

RESOURCES = ("cpu", "memory", "pods", "gpu", "ephemeral-storage")
N3 = "n1(4,8Gi;1000,2Gi) n2(4,8Gi;2000,4Gi) n3(4,8Gi;3000,6Gi)"


def node(allocatable: dict[str, Any] | None, annotations: dict[str, str] | None) -> NodeFields:
    document = {"metadata": {"annotations": annotations}, "status": {"allocatable": allocatable}}
    return msgspec.json.decode(msgspec.json.encode(document), type=NodeFields)


def nodes(text: str) -> dict[str, NodeFields]:
    """Parse nodes such as `n1(4,8Gi;1000,2Gi)`: capacity; requested amounts, in the order of `RESOURCES`."""
    result = {}
    for name, capacity, used in re.findall(r"(\w+)\(([^;)]*);?([^)]*)\)", text):
        allocatable = dict(zip(RESOURCES, capacity.split(","), strict=False))
        units = [str(quantity.parse(amount) // quantity.NANO) for amount in used.split(",") if amount]
        annotations = {f"requested-{key}": amount for key, amount in zip(RESOURCES, units, strict=False)}
        result[name] = node(allocatable, annotations or None)
    return result


def pod(*containers: str, uid: str = "", init: Iterable[str] = ()) -> PodFields:
    """A pod whose containers request amounts in the form `500m,1Gi`."""
    spec = {
        "containers": [_container(requests) for requests in containers],
        "initContainers": [_container(requests) for requests in init],
    }
    document = {"metadata": {"uid": uid}, "spec": spec}
    return msgspec.json.decode(msgspec.json.encode(document), type=PodFields)


def _container(text: str) -> dict[str, Any]:
    requests = dict(zip(RESOURCES, text.split(","), strict=False))
    return {"resources": {"requests": {key: amount for key, amount in requests.items() if amount}}}


P1 = "500m,1Gi"


class PigeonResult(NamedTuple):
    """Scores and details of all nodes."""

    scores: list[int]
    objectives: list[float]
    demand_variability: float | None
    texts: list[str]


class PigeonCluster:
    """The agent state and the agent, as in one process."""

    def __init__(self, node_texts: str | dict[str, NodeFields] = N3, **options: Any) -> None:
        self.options = PigeonOptions(**options)
        self.state: PigeonStateBuilder = pigeon.KIND.state(self.options, 5.0)
        self.agent: PigeonAgent = pigeon.KIND.agent(self.options)
        self.snapshot = Snapshot(NodeIndex(()), {}, 0.0)
        self.set_nodes(node_texts)

    def set_nodes(self, node_texts: str | dict[str, NodeFields], pods: Mapping[Any, HoldingPod] = {}) -> None:
        """Replace the nodes and the pods on them."""
        node_objects = nodes(node_texts) if isinstance(node_texts, str) else node_texts
        index = (
            self.snapshot.nodes
            if tuple(node_objects) == self.snapshot.nodes.known
            else NodeIndex(node_objects)
        )
        cluster_state = ClusterState(
            index,
            {PODS: pods},
            MetricsSnapshot(),
            0.0,
            {("", name): node_object for name, node_object in node_objects.items()},
        )
        self.snapshot = Snapshot(index, {"pigeon": built(self.state, cluster_state)}, 0.0)

    def prioritize(self, of: PodFields | str = P1, names: str = "") -> PigeonResult:
        """Score the nodes and count the pod, as a prioritize request does."""
        pigeon_pod = pod(of) if isinstance(of, str) else of
        result = self.score(pigeon_pod, names)
        self.state.count_request(pigeon_pod)
        return result

    def score(self, of: PodFields | str = P1, names: str = "") -> PigeonResult:
        """Score the nodes without counting the pod."""
        pigeon_pod = pod(of) if isinstance(of, str) else of
        candidates = self.snapshot.nodes.named(names.split() or list(self.snapshot.nodes.known))
        scores = self.agent.score(pigeon_pod, candidates, self.snapshot)
        assert scores is not None
        details: Any = scores.details
        numbers = [details.numbers(at) for at in range(len(candidates))]
        return PigeonResult(
            scores.points.tolist(),
            [float(details["objective"]) for details in numbers],
            next((details.get("demand_variability") for details in numbers), None),
            [details.text(at) for at in range(len(candidates))],
        )


def close(values: Any, wanted: Any, tolerance: float) -> bool:
    return np.allclose(values, wanted, rtol=0, atol=tolerance, equal_nan=True)
