"""Nodes with a congestion factor: `view({"n1": "50", "n2": None})`."""

from collections.abc import Mapping

from nodewise import turns
from nodewise.agent import NodeIndex, View, World
from nodewise.agents.congestion.agent import CongestionAgent, PodFields
from nodewise.agents.congestion.options import CongestionOptions
from nodewise.agents.congestion.state import CongestionNode, CongestionState, NodeMetadata
from nodewise.metrics.snapshot import Snapshot
from nodewise.statistics.annotations import CongestionAnnotations

NOW = 1000.0
POD = PodFields()


def node(factor: str | None) -> CongestionNode:
    if factor is None:
        return CongestionNode()
    return CongestionNode(NodeMetadata(CongestionAnnotations(congestion_factor=factor)))


def world(factors: Mapping[str, str | None]) -> World:
    nodes = {("", name): node(factor) for name, factor in factors.items()}
    return World(NodeIndex(factors), {}, Snapshot(), NOW, nodes)


def view(factors: Mapping[str, str | None], options: CongestionOptions | None = None) -> View:
    given = world(factors)
    slot = turns.result(CongestionState(options or CongestionOptions()).slot(given))
    return View(given.nodes, {"congestion": slot}, NOW, 1)


def scores(factors: Mapping[str, str | None], options: CongestionOptions | None = None) -> dict[str, int]:
    given = view(factors, options)
    found = CongestionAgent(options or CongestionOptions()).score(
        POD, given.nodes.named(list(factors)), given
    )
    assert found is not None
    return dict(zip(factors, found.points.tolist(), strict=True))
