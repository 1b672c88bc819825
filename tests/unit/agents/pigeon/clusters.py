"""Nodes and pods as the specification writes them: `n1(4,8Gi;1000,2Gi)` has 4 CPUs, of which 1000m are requested."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from nodewise import quantity
from nodewise.agent import ClusterState, NodeIndex, Snapshot
from nodewise.agents import pigeon
from nodewise.agents.pigeon.agent import PigeonAgent
from nodewise.agents.pigeon.node_requests import HoldingPod
from nodewise.agents.pigeon.options import PigeonOptions
from nodewise.agents.pigeon.state import PODS, PigeonNode, PigeonPod, PigeonStateBuilder
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from tests.unit.state_changes import built

RESOURCES = ("cpu", "memory", "pods", "gpu", "ephemeral-storage")
N3 = "n1(4,8Gi;1000,2Gi) n2(4,8Gi;2000,4Gi) n3(4,8Gi;3000,6Gi)"


def node(allocatable: dict[str, Any] | None, annotations: dict[str, str] | None) -> PigeonNode:
    given = {"metadata": {"annotations": annotations}, "status": {"allocatable": allocatable}}
    return msgspec.json.decode(msgspec.json.encode(given), type=PigeonNode)


def nodes(text: str) -> dict[str, PigeonNode]:
    """`n1(4,8Gi;1000,2Gi)`: capacity; requested, in the order of the resources."""
    found = {}
    for name, capacity, used in re.findall(r"(\w+)\(([^;)]*);?([^)]*)\)", text):
        allocatable = dict(zip(RESOURCES, capacity.split(","), strict=False))
        units = [str(quantity.parse(one) // quantity.NANO) for one in used.split(",") if one]
        annotations = {f"requested-{key}": one for key, one in zip(RESOURCES, units, strict=False)}
        found[name] = node(allocatable, annotations or None)
    return found


def pod(*containers: str, uid: str = "", init: Iterable[str] = ()) -> PigeonPod:
    """Each container as `500m,1Gi`."""
    spec = {
        "containers": [_container(one) for one in containers],
        "initContainers": [_container(one) for one in init],
    }
    given = {"metadata": {"uid": uid}, "spec": spec}
    return msgspec.json.decode(msgspec.json.encode(given), type=PigeonPod)


def _container(text: str) -> dict[str, Any]:
    given = dict(zip(RESOURCES, text.split(","), strict=False))
    return {"resources": {"requests": {key: one for key, one in given.items() if one}}}


P1 = "500m,1Gi"


class Told(NamedTuple):
    """What the agent says of all nodes."""

    scores: list[int]
    objectives: list[float]
    demand_variability: float | None
    texts: list[str]


class Cluster:
    """A process that serves the agent."""

    def __init__(self, given: str | dict[str, PigeonNode] = N3, **options: Any) -> None:
        self.options = PigeonOptions(**options)
        self.state: PigeonStateBuilder = pigeon.KIND.state(self.options, 5.0)
        self.agent: PigeonAgent = pigeon.KIND.agent(self.options)
        self.snapshot = Snapshot(NodeIndex(()), {}, 0.0)
        self.has(given)

    def has(self, given: str | dict[str, PigeonNode], pods: Mapping[Any, HoldingPod] = {}) -> None:
        """The nodes that there are now, and the pods on them."""
        found = nodes(given) if isinstance(given, str) else given
        index = self.snapshot.nodes if tuple(found) == self.snapshot.nodes.known else NodeIndex(found)
        cluster_state = ClusterState(
            index, {PODS: pods}, MetricsSnapshot(), 0.0, {("", name): one for name, one in found.items()}
        )
        self.snapshot = Snapshot(index, {"pigeon": built(self.state, cluster_state)}, 0.0)

    def asked(self, given: PigeonPod | str = P1, names: str = "") -> Told:
        """A prioritize call."""
        one = pod(given) if isinstance(given, str) else given
        told = self.judged(one, names)
        self.state.asked(one)
        return told

    def judged(self, given: PigeonPod | str = P1, names: str = "") -> Told:
        """The same without a trace."""
        one = pod(given) if isinstance(given, str) else given
        candidates = self.snapshot.nodes.named(names.split() or list(self.snapshot.nodes.known))
        scores = self.agent.score(one, candidates, self.snapshot)
        assert scores is not None
        details: Any = scores.details
        numbers = [details.numbers(at) for at in range(len(candidates))]
        return Told(
            scores.points.tolist(),
            [float(one["objective"]) for one in numbers],
            next((one.get("demand_variability") for one in numbers), None),
            [details.text(at) for at in range(len(candidates))],
        )


def close(found: Any, wanted: Any, tolerance: float) -> bool:
    return np.allclose(found, wanted, rtol=0, atol=tolerance, equal_nan=True)
