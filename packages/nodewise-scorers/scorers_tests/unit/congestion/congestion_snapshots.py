"""Nodes with a congestion factor: `snapshot({"n1": "50", "n2": None})`."""

from collections.abc import Mapping

from nodewise.agent import ClusterState, NodeIndex, Snapshot
from nodewise.base import cooperative_scheduling
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise_scorers.congestion import CongestionOptions
from nodewise_scorers.congestion.agent import (
    CongestionAgent,
    CongestionStateBuilder,
    NodeFields,
    NodeMetadata,
    PodFields,
)
from nodewise_scorers.statistics.load_annotations import CongestionAnnotations

NOW = 1000.0
POD = PodFields()


def node(factor: str | None) -> NodeFields:
    if factor is None:
        return NodeFields()
    return NodeFields(NodeMetadata(CongestionAnnotations(congestion_factor=factor)))


def cluster_state(factors: Mapping[str, str | None]) -> ClusterState:
    nodes = {("", name): node(factor) for name, factor in factors.items()}
    return ClusterState(NodeIndex(factors), {}, MetricsSnapshot(), NOW, nodes)


def snapshot(factors: Mapping[str, str | None], options: CongestionOptions | None = None) -> Snapshot:
    cluster = cluster_state(factors)
    agent_state = cooperative_scheduling.run_without_pauses(
        CongestionStateBuilder(options or CongestionOptions()).build(cluster)
    )
    return Snapshot(cluster.nodes, {"congestion": agent_state}, NOW, 1)


def scores(factors: Mapping[str, str | None], options: CongestionOptions | None = None) -> dict[str, int]:
    cluster_snapshot = snapshot(factors, options)
    scores = CongestionAgent(options or CongestionOptions()).score(
        POD, cluster_snapshot.nodes.named(list(factors)), cluster_snapshot
    )
    assert scores is not None
    return dict(zip(factors, scores.points.tolist(), strict=True))
