"""Rules that lose the values of most nodes are suspended."""

import msgspec

from nodewise.agent import Snapshot
from nodewise.base import cooperative_scheduling
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.series import Sample, Series
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.state import TelemetryStateBuilder
from tests.unit.policies.policy_snapshot_builders import cluster_state, policy, rejected, rule

POLICY = policy(dontschedule=[rule("m", target=10)])
MAX_AGE_S = 60.0


class SuspensionTimeline:
    """A state builder and its refreshes. Each `see` is a refresh at that time, with or without new values."""

    def __init__(self, nodes: str = "n1 n2 n3 n4", policy_object: object = POLICY) -> None:
        self.state = TelemetryStateBuilder(TelemetryOptions(), MAX_AGE_S)
        self.nodes = nodes
        self.policy = policy_object
        self.snapshot = MetricsSnapshot()

    def see(self, at: float, **values: int) -> set[str]:
        """The nodes that are rejected."""
        if values:
            samples = {node: Sample(value * 10**9, at) for node, value in values.items()}
            self.snapshot = self.snapshot.with_series(Series("m", "s", at, samples))
        cluster = cluster_state([self.policy], self.snapshot, self.nodes)  # type: ignore[list-item]
        cluster = msgspec.structs.replace(cluster, now=at)
        agent_state = cooperative_scheduling.run_without_pauses(self.state.build(cluster))
        self.suspended = bool(next(iter(agent_state.policies.values())).suspended)
        return set(rejected(Snapshot(cluster.nodes, {"telemetry": agent_state}, at), self.nodes) or ())


def test_a_source_that_dies_leaves_the_last_verdicts() -> None:
    timeline = SuspensionTimeline()
    assert timeline.see(0, n1=50, n2=5, n3=50, n4=5) == {"n1", "n3"}
    assert timeline.see(59) == {"n1", "n3"}
    assert not timeline.suspended
    for at in (61, 100, 1000, 100_000):
        assert timeline.see(at) == {"n1", "n3"}
        assert timeline.suspended


def test_and_they_end_when_half_of_the_nodes_are_back() -> None:
    timeline = SuspensionTimeline()
    timeline.see(0, n1=50, n2=5, n3=50, n4=5)
    timeline.see(100)
    assert timeline.see(200, n1=5) == {"n3"}, "fresh values count at once, the others hold"
    assert timeline.suspended
    assert timeline.see(210, n1=5, n2=50) == {"n2"}
    assert not timeline.suspended


def test_one_node_of_many_that_vanishes_passes() -> None:
    timeline = SuspensionTimeline()
    timeline.see(0, n1=50, n2=50, n3=50, n4=50)
    assert timeline.see(5, n2=50, n3=50, n4=50) == {"n2", "n3", "n4"}
    assert not timeline.suspended


def test_most_of_the_nodes_that_vanish_at_once_hold() -> None:
    timeline = SuspensionTimeline()
    timeline.see(0, n1=50, n2=50, n3=50, n4=50)
    assert timeline.see(5, n4=50) == {"n1", "n2", "n3", "n4"}
    assert timeline.suspended


def test_nodes_that_leave_the_cluster_are_not_lost_values() -> None:
    timeline = SuspensionTimeline()
    timeline.see(0, n1=50, n2=50, n3=50, n4=50)
    timeline.nodes = "n4 n5"
    assert timeline.see(5, n4=50) == {"n4"}
    assert not timeline.suspended


def test_nodes_get_other_numbers_and_keep_their_verdicts() -> None:
    timeline = SuspensionTimeline()
    timeline.see(0, n1=50, n2=5, n3=50, n4=5)
    timeline.nodes = "n0 n4 n3 n2 n1"
    assert timeline.see(100) == {"n1", "n3"}


def test_nodes_lost_slowly_pass_one_by_one() -> None:
    timeline = SuspensionTimeline()
    for step in range(5):
        left = {f"n{n}": 50 for n in range(1, 5 - step)} or {"x": 1}
        labelled = timeline.see(step * 100, **left)
        assert labelled == set(left) - {"x"} or timeline.suspended
    assert timeline.suspended, "the last two of two within one max age are more than half"


def test_where_the_unmeasured_are_rejected_a_held_pass_still_passes() -> None:
    strict = policy(dontschedule=[rule("m", target=10, when_missing="reject")])
    timeline = SuspensionTimeline(policy_object=strict)
    timeline.see(0, n1=50, n2=5, n3=50, n4=5)
    assert timeline.see(100) == {"n1", "n3"}
