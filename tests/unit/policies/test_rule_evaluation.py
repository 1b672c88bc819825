"""Rules that are suspended while most values are missing, and nodes whose series differ."""

from typing import Any

import msgspec
import pytest

from nodewise.agent import ClusterState, NodeIndex
from nodewise.base import cooperative_scheduling
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.series import DifferingValues, Sample, Series
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.policy_objects import PolicyMetadata, PolicyObject
from nodewise.policies.state import TelemetryStateBuilder
from tests.unit.policies.policy_snapshot_builders import PolicyTimeline, policy, rule, series

POLICY = policy(dontschedule=[rule("m", target=10)])


class SuspensionTimeline(PolicyTimeline):
    """Four nodes, and whole numbers as values."""

    def __init__(self, policy_object: PolicyObject = POLICY) -> None:
        super().__init__(policy_object, "n1 n2 n3 n4")

    def values(self, at: float, **values: int) -> set[str]:
        """The nodes that are rejected after a response."""
        return self.see(at, series("m", at, **values))

    @property
    def suspended(self) -> bool:
        return bool(self.state.suspended)


def test_a_source_that_dies_leaves_the_last_verdicts() -> None:
    timeline = SuspensionTimeline()
    assert timeline.values(0, n1=50, n2=5, n3=50, n4=5) == {"n1", "n3"}
    assert timeline.see(59) == {"n1", "n3"}
    assert not timeline.suspended
    for at in (61, 100, 1000, 100_000):
        assert timeline.see(at) == {"n1", "n3"}
        assert timeline.suspended


def test_and_they_end_when_half_of_the_nodes_are_back() -> None:
    timeline = SuspensionTimeline()
    timeline.values(0, n1=50, n2=5, n3=50, n4=5)
    timeline.see(100)
    assert timeline.values(200, n1=5) == {"n3"}, "fresh values count at once, the others hold"
    assert timeline.suspended
    assert timeline.values(210, n1=5, n2=50) == {"n2"}
    assert not timeline.suspended


def test_one_node_of_many_that_vanishes_passes() -> None:
    timeline = SuspensionTimeline()
    timeline.values(0, n1=50, n2=50, n3=50, n4=50)
    assert timeline.values(5, n2=50, n3=50, n4=50) == {"n2", "n3", "n4"}
    assert not timeline.suspended


def test_most_of_the_nodes_that_vanish_at_once_hold() -> None:
    timeline = SuspensionTimeline()
    timeline.values(0, n1=50, n2=50, n3=50, n4=50)
    assert timeline.values(5, n4=50) == {"n1", "n2", "n3", "n4"}
    assert timeline.suspended


def test_nodes_that_leave_the_cluster_are_not_lost_values() -> None:
    timeline = SuspensionTimeline()
    timeline.values(0, n1=50, n2=50, n3=50, n4=50)
    timeline.nodes = "n4 n5"
    assert timeline.values(5, n4=50) == {"n4"}
    assert not timeline.suspended


def test_nodes_get_other_numbers_and_keep_their_verdicts() -> None:
    timeline = SuspensionTimeline()
    timeline.values(0, n1=50, n2=5, n3=50, n4=5)
    timeline.nodes = "n0 n4 n3 n2 n1"
    assert timeline.see(100) == {"n1", "n3"}


def test_nodes_lost_slowly_pass_one_by_one() -> None:
    timeline = SuspensionTimeline()
    for step in range(5):
        left = {f"n{n}": 50 for n in range(1, 5 - step)} or {"x": 1}
        labelled = timeline.values(step * 100, **left)
        assert labelled == set(left) - {"x"} or timeline.suspended
    assert timeline.suspended, "the last two of two within one max age are more than half"


def test_where_the_unmeasured_are_rejected_a_held_pass_still_passes() -> None:
    strict = policy(dontschedule=[rule("m", target=10, when_missing="reject")])
    timeline = SuspensionTimeline(strict)
    timeline.values(0, n1=50, n2=5, n3=50, n4=5)
    assert timeline.see(100) == {"n1", "n3"}


T0 = 1_700_000_000.0
NANO = 10**9
NODES = NodeIndex(["fan-1", "fan-2", "fan-3"])


class Replica:
    """A state builder that evaluates one rule about node fan-1, whose series differ. The other nodes have values."""

    def __init__(self, **rule: Any) -> None:
        self.builder = TelemetryStateBuilder(TelemetryOptions(), 60.0)
        self.spec = msgspec.Raw(
            msgspec.json.encode({"podSelector": {}, "avoid": [{"metric": "heat", **rule}]})
        )

    def rejects(
        self,
        at: float,
        lowest: float,
        highest: float,
        *,
        oldest: float | None = 0.0,
        fetched: float | None = None,
    ) -> bool:
        """Whether fan-1 is rejected at a time, in seconds since `T0`; all nodes with `lowest` above `highest` have the
        value 50.
        """
        fetched_at = T0 + (at if fetched is None else fetched)
        samples = {node: Sample(50 * NANO, fetched_at) for node in ("fan-2", "fan-3")}
        invalid, differing = {"fan-1": "2 series differ"}, {}
        if lowest <= highest:
            measured_at = None if oldest is None else fetched_at - oldest
            differing = {"fan-1": DifferingValues(int(lowest * NANO), int(highest * NANO), measured_at)}
        else:
            samples["fan-1"], invalid = Sample(50 * NANO, fetched_at), {}
        answer = Series("heat", "s", fetched_at, samples, invalid, differing)
        stored = PolicyObject(PolicyMetadata("cool", "d", "uid", 1), self.spec)
        objects: dict[str, Any] = {"placementpolicies": {("d", "cool"): stored}}
        cluster = ClusterState(NODES, objects, MetricsSnapshot().with_series(answer), T0 + at)
        [state] = cooperative_scheduling.run_without_pauses(self.builder.build(cluster)).policies.values()
        assert state.verdict is not None
        return bool(state.verdict.codes[0])


RULES: list[tuple[dict[str, Any], float, float, bool]] = [
    ({"above": 80}, 85.5, 97.0, True),
    ({"above": 80}, 80.0, 97.0, False),
    ({"atLeast": 80}, 80.0, 97.0, True),
    ({"below": 30}, 10.0, 29.0, True),
    ({"below": 30}, 10.0, 31.0, False),
    ({"atMost": 30}, 10.0, 30.0, True),
    ({"notEquals": 0}, 1.0, 2.0, True),
    ({"notEquals": 0}, -1.0, 2.0, False),
    ({"equals": 1}, 1.0, 2.0, False),
]


@pytest.mark.parametrize(("rule", "lowest", "highest", "is_rejected"), RULES, ids=str)
def test_rule_that_all_values_meet_rejects_the_node(
    rule: dict[str, Any], lowest: float, highest: float, is_rejected: bool
) -> None:
    assert Replica(**rule).rejects(0, lowest, highest) is is_rejected


def test_old_values_do_not_count() -> None:
    replica = Replica(above=80)
    assert replica.rejects(0, 90, 95, oldest=59)
    assert not replica.rejects(0, 90, 95, oldest=61)
    assert replica.rejects(0, 90, 95, oldest=None)
    assert not replica.rejects(5, 1, 0), "a value of 50"
    assert not replica.rejects(66, 90, 95, oldest=None, fetched=5), "the response is old"


def test_rule_with_for_counts_values_that_agree() -> None:
    replica = Replica(above=80, release=75, **{"for": "30s"})
    assert not replica.rejects(0, 85, 90)
    assert not replica.rejects(20, 82, 99)
    assert replica.rejects(30, 85, 90)
    assert not replica.rejects(40, 60, 90), "whenMissing: Allow releases a node without a value"


def test_node_is_rejected_when_its_values_begin_to_agree() -> None:
    replica = Replica(above=80)
    assert not replica.rejects(0, 1, 0), "a value of 50"
    assert not replica.rejects(5, 70, 90)
    assert replica.rejects(10, 85, 90)


def test_suspended_rule_keeps_rejecting_the_node() -> None:
    replica = Replica(above=80)
    assert replica.rejects(0, 88, 93)
    assert replica.rejects(200, 88, 93, fetched=0), "no node has a fresh value"
    assert not replica.rejects(205, 1, 0), "a value of 50"
