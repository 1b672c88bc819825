"""A node whose series differ has no value, and a rule that all of its values meet rejects it nevertheless."""

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
        series = Series("heat", "s", fetched_at, samples, invalid, differing)
        policy = PolicyObject(PolicyMetadata("cool", "d", "uid", 1), self.spec)
        objects: dict[str, Any] = {"placementpolicies": {("d", "cool"): policy}}
        cluster = ClusterState(NODES, objects, MetricsSnapshot().with_series(series), T0 + at)
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
