"""`--in-flight`: the scoring agents count pods that the statistics of a node do not include yet."""

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from nodewise.agent import ClusterState, Names, NodeIndex, Snapshot
from nodewise.base import cooperative_scheduling
from nodewise.base.clock import format_rfc3339
from nodewise.kube import struct_type_merge
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise_scorers import congestion, learned, pigeon, safe
from nodewise_scorers.load.bound_pods import BOUND_PODS
from scorers_tests.unit.load.load_clusters import NOW, bound_pod, pod_body

KINDS = {
    "safe": (safe.KIND, safe.SafeOptions),
    "congestion": (congestion.KIND, congestion.CongestionOptions),
    "learned": (learned.KIND, learned.LearnedOptions),
    "pigeon": (pigeon.KIND, pigeon.PigeonOptions),
}
NODES = ("a", "b")
GIB = 2**30


def node(kind: Any, name: str, measured_s: float) -> Any:
    """A node of 10 cores and 10 GiB, half used and half requested, with all annotations of a time before NOW."""
    annotations = {
        "mean-free-cpu": "5000",
        "std-free-cpu": "500",
        "mean-free-memory": str(5 * GIB),
        "std-free-memory": str(GIB // 10),
        "congestion-factor": "30",
        "requested-cpu": "5000",
        "requested-memory": str(5 * GIB),
        "nodewise.io/annotated-at": format_rfc3339(NOW - measured_s),
    }
    body = {
        "metadata": {"name": name, "annotations": annotations},
        "status": {"allocatable": {"cpu": "10", "memory": "10Gi"}},
    }
    return msgspec.json.decode(json.dumps(body), type=struct_type_merge.merge("Node", kind.node_fields))


class ScoredNodes:
    """An agent and its scores of two nodes that are the same but for their pods."""

    def __init__(self, agent: str, *, in_flight: bool, measured_s: float = 0.0) -> None:
        self.kind, options = KINDS[agent]
        self.name = agent
        self.options = options(in_flight=in_flight)
        self.builder = self.kind.state(self.options, 5.0)
        self.index = NodeIndex(NODES)
        self.nodes = {("", name): node(self.kind, name, measured_s) for name in NODES}
        body = pod_body("new", cpu="1")
        self.pod = msgspec.json.decode(
            json.dumps(body), type=struct_type_merge.merge("Pod", self.kind.pod_fields)
        )
        self.state: Any = None

    def build(self, *pods: Any) -> None:
        objects = {("default", pod.metadata.name): pod for pod in pods}
        watched = {entry.name: {} for entry in self.kind.watched(self.options)}
        cluster_state = ClusterState(
            self.index, watched | {BOUND_PODS: objects}, MetricsSnapshot(), NOW, self.nodes
        )
        self.state = cooperative_scheduling.run_without_pauses(self.builder.build(cluster_state))

    def points(self) -> list[float]:
        snapshot = Snapshot(self.index, {self.name: self.state}, NOW)
        plugin = self.kind.agent(self.options)
        names = Names(self.index, np.arange(len(NODES)))
        scores = [score(self.pod, names, snapshot).points for score in plugin.priorities.values()]
        points: list[float] = np.mean(scores, axis=0).tolist()
        return points


@pytest.mark.parametrize("agent", KINDS)
def test_a_pod_in_flight_lowers_the_score_of_its_node_only_with_the_option(agent: str) -> None:
    pods = [bound_pod(f"p{number}", "a", cpu="3", bound=1) for number in range(2)]
    for in_flight in (False, True):
        nodes = ScoredNodes(agent, in_flight=in_flight, measured_s=60.0)
        nodes.build()
        before = nodes.points()
        assert before[0] == before[1]
        nodes.build(*pods)
        after = nodes.points()
        assert (after[0] < after[1]) == in_flight
        assert in_flight or after == before


@pytest.mark.parametrize("agent", KINDS)
def test_a_pod_that_the_statistics_include_does_not_count(agent: str) -> None:
    nodes = ScoredNodes(agent, in_flight=True, measured_s=60.0)
    nodes.build(*(bound_pod(f"p{number}", "a", cpu="3", bound=4000, started=3990) for number in range(2)))
    points = nodes.points()
    assert points[0] == points[1]


@pytest.mark.parametrize("agent", KINDS)
def test_a_pod_that_was_just_prioritized_counts_on_the_best_node(agent: str) -> None:
    nodes = ScoredNodes(agent, in_flight=True)
    nodes.build()
    for number in range(4):
        body = pod_body(f"waiting-{number}", cpu="2")
        waiting = msgspec.json.decode(json.dumps(body), type=type(nodes.pod))
        nodes.builder.count_prioritized(waiting, np.array([1]))
    if agent == "pigeon":
        nodes.build()  # its objective is computed for the whole cluster, with each state
    points = nodes.points()
    assert points[0] > points[1]


def test_agents_without_the_option_watch_no_pods_for_it() -> None:
    for kind, options in KINDS.values():
        names = [watched.name for watched in kind.watched(options())]
        assert BOUND_PODS not in names
        assert BOUND_PODS in [watched.name for watched in kind.watched(options(in_flight=True))]
