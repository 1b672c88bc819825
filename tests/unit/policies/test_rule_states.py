"""Rules with `for`, `release` and `keepFor` in the state builder: replicas, restarts, edits, and the status between."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewise.agent import ClusterState, NodeIndex, Snapshot
from nodewise.base import cooperative_scheduling
from nodewise.base.clock import format_rfc3339
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.series import Sample, Series
from nodewise.policies import hysteresis, policy_status
from nodewise.policies.agent import TelemetryAgent
from nodewise.policies.hysteresis import NodeStates
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.policy_objects import PolicyMetadata, PolicyObject
from nodewise.policies.policy_status import StatusFacts
from nodewise.policies.policy_status_fields import PlacementPolicyStatus
from nodewise.policies.state import PolicyState, TelemetryStateBuilder
from tests.unit.policies.placement_policy_cluster import pod

T0 = 1_700_000_000.0
HOT = {"metric": "heat", "above": 80}
NO_STATUS = msgspec.Raw(b"null")


class Replica:
    """A state builder. Each `see` is a refresh at a time, in seconds since `T0`."""

    def __init__(self, *rules: Any, status: msgspec.Raw = NO_STATUS, nodes: str = "a b c") -> None:
        self.builder = TelemetryStateBuilder(TelemetryOptions(), 60.0)
        self.metrics, self.status, self.nodes = MetricsSnapshot(), status, NodeIndex(nodes.split())
        self.edit(*rules)

    def edit(self, *rules: Any) -> None:
        self.spec = msgspec.Raw(msgspec.json.encode({"podSelector": {}, "avoid": rules}))

    def see(self, at: float, **values: float) -> set[str]:
        """The nodes that are rejected."""
        if values:
            samples = {node: Sample(round(value * 10**9), T0 + at) for node, value in values.items()}
            self.metrics = self.metrics.with_series(Series("heat", "s", T0 + at, samples))
        policy = PolicyObject(PolicyMetadata("cool", "d", "uid", 1), self.spec, self.status)
        objects: dict[str, Any] = {"placementpolicies": {("d", "cool"): policy}}
        cluster = ClusterState(self.nodes, objects, self.metrics, T0 + at)
        state = cooperative_scheduling.run_without_pauses(self.builder.build(cluster))
        self.snapshot = Snapshot(self.nodes, {"telemetry": state}, T0 + at)
        [self.state] = state.policies.values()
        assert self.state.verdict is not None
        codes = self.state.verdict.codes
        return {name for name in self.nodes.known if codes[self.nodes.numbers([name])[0]]}

    def written(self, at: float, before: PlacementPolicyStatus | None = None) -> PlacementPolicyStatus:
        """The status that a leader writes."""
        return written_status(self.state, at, before)

    def publish(self, *followers: "Replica", at: float) -> None:
        """Write the status as the leader, for all."""
        raw = msgspec.Raw(msgspec.json.encode(self.written(at)))
        for replica in (self, *followers):
            replica.status = raw

    def texts(self) -> list[str]:
        """The details of each node, as `explain` prints them."""
        verdict = TelemetryAgent().filter(pod(), self.nodes.every, self.snapshot)
        assert verdict is not None
        if verdict.details is None:
            return [""] * len(self.nodes)
        return [verdict.details.text(number) for number in range(len(self.nodes))]


def written_status(
    state: PolicyState, at: float, before: PlacementPolicyStatus | None = None
) -> PlacementPolicyStatus:
    now, known = format_rfc3339(T0 + at), before or PlacementPolicyStatus()
    return policy_status.desired_status(state, StatusFacts(), known, now)


def test_for_release_and_explanation() -> None:
    replica = Replica(HOT | {"for": "1m", "release": 75})
    assert replica.see(0, a=85, b=85, c=70) == set()
    assert replica.see(40, a=85, b=79, c=70) == set()
    assert replica.texts() == ["heat above 80 (release 75): broken for 40s of 1m", "", ""]
    assert replica.see(60, a=85, b=79, c=70) == {"a"}
    assert replica.see(90, a=76, b=70, c=70) == {"a"}
    assert replica.texts()[0] == "heat above 80 (release 75): rejected for 30s"
    assert replica.see(100, a=75, b=70, c=70) == set()


def test_a_gap_shorter_than_the_maximum_age_holds_the_state() -> None:
    replica = Replica(HOT | {"for": "90s"}, nodes="a b c d e")
    rest = {"c": 70, "d": 70, "e": 70}
    assert replica.see(0, a=85, b=85, **rest) == set()
    assert replica.see(55, **rest) == set()
    assert replica.texts()[:2] == ["heat above 80: broken for 55s of 1m30s"] * 2
    assert replica.see(70, a=85, **rest) == set(), "the time counts on in a gap"
    assert replica.see(95, a=85, **rest) == {"a"}, "b had its last value 95 s ago"
    assert replica.see(100, a=85, b=85, **rest) == {"a"}
    assert replica.see(160, a=85, b=85, **rest) == {"a"}, "after a longer gap, b starts again"
    assert replica.see(190, a=85, b=85, **rest) == {"a", "b"}


def test_no_node_is_rejected_without_a_value_because_the_time_passes() -> None:
    replica = Replica(HOT | {"for": "30s"})
    replica.see(0, a=85, b=70, c=70)
    assert replica.see(29, a=85, b=70, c=70) == set()
    assert replica.see(50, b=70, c=70) == set()
    assert replica.see(55, a=85, b=70, c=70) == {"a"}


def test_a_gap_keeps_a_node_rejected_until_the_maximum_age() -> None:
    replica = Replica(HOT | {"keepFor": "5s", "maxAge": "40s"})
    assert replica.see(0, a=85, b=70, c=70) == {"a"}
    assert replica.see(40, b=70, c=70) == {"a"}
    assert replica.see(41, b=70, c=70) == {"a"}, "released, and kept"
    assert replica.see(46, b=70, c=70) == set()


def test_a_restart_in_a_gap_continues_with_the_states_of_the_status() -> None:
    rule = HOT | {"for": "1m"}
    leader = Replica(rule)
    for at in (0, 60):
        leader.see(at, a=85, b=70, c=70)
        leader.publish(at=at)
    new = Replica(rule, status=leader.status)
    assert new.see(70, b=70, c=70) == {"a"}
    new.publish(at=70)
    assert new.see(75, a=85, b=70, c=70) == {"a"}
    new.publish(at=75)
    assert new.see(80, a=85, b=70, c=70) == {"a"}


def test_a_gap_of_a_part_holds_the_state() -> None:
    replica = Replica({"all": [HOT, {"metric": "heat", "below": 99, "maxAge": "10s"}], "for": "20s"})
    replica.see(0, a=85, b=85, c=70)
    assert replica.see(10, c=70) == set()
    assert replica.see(20, a=85, c=70) == {"a"}


def test_keep_for() -> None:
    replica = Replica(HOT | {"keepFor": "1m"})
    assert replica.see(0, a=85) == {"a"}
    assert replica.see(10, a=70) == {"a"}
    assert replica.see(69, a=70) == {"a"}
    assert replica.texts()[0] == "heat above 80: no longer broken for 59s of 1m"
    assert replica.see(70, a=70) == set()


def test_the_reason_names_times_and_release_and_no_counterfactual_is_computed() -> None:
    replica = Replica({"all": [HOT | {"release": 75}, {"metric": "heat", "below": 99}], "for": "5s"})
    replica.see(0, a=85)
    assert replica.see(5, a=85) == {"a"}
    verdict = TelemetryAgent().filter(pod(), replica.nodes.every, replica.snapshot)
    assert verdict is not None
    reason = verdict.reasons[verdict.codes[0] - 1].text()
    assert reason == "placement policy d/cool: heat above 80 (release 75) and heat below 99 for 5s"
    assert (verdict.joined, verdict.policies[0].joined) == (None, None)


@pytest.mark.parametrize("restart", range(5))
def test_a_restart_at_any_time_continues_with_the_states_of_the_status(restart: int) -> None:
    rule = HOT | {"for": "1m", "release": 75}
    values = [(0, 85), (60, 85), (90, 78), (120, 85), (150, 74)]
    leader = Replica(rule)
    seen = []
    for number, (at, value) in enumerate(values):
        if number == restart:
            leader = Replica(rule, status=leader.status)
        seen.append(leader.see(at, a=value))
        leader.publish(at=at)
        assert leader.see(at) == ({"a"} if number in (1, 2, 3) else set())
    assert seen[0] == set()


def test_all_replicas_reject_the_nodes_in_the_status_that_the_leader_wrote() -> None:
    rule = HOT | {"for": "1m"}
    leader, follower = Replica(rule), Replica(rule)
    for replica in (leader, follower):
        replica.see(0, a=85, b=70)
    leader.publish(follower, at=0)
    assert follower.see(60, a=85, b=70) == set(), "the leader decides"
    assert leader.see(61, a=85, b=70) == set(), "not yet written"
    leader.publish(follower, at=61)
    assert leader.see(62) == follower.see(62) == {"a"}
    late = Replica(rule, status=leader.status)
    assert late.see(62, a=70) == {"a"}, "a replica that starts agrees, whatever it sees"


def test_without_a_leader_a_node_that_breaks_the_rule_is_rejected_a_minute_later() -> None:
    leader, follower = Replica(HOT | {"for": "1m"}), Replica(HOT | {"for": "1m"})
    leader.see(0, a=70)
    leader.publish(follower, at=0)
    rejections = {at: follower.see(at, a=85) for at in range(10, 200, 10)}
    assert next(at for at, rejected in rejections.items() if rejected) == 130
    assert follower.see(200, a=79) == set(), "only a node that breaks the rule now"


def test_edits_of_times_and_release_keep_the_states_and_another_target_does_not() -> None:
    replica = Replica(HOT | {"for": "1m"})
    replica.see(0, a=85)
    assert replica.see(60, a=85) == {"a"}
    replica.publish(at=60)
    replica.edit(HOT | {"for": "10m", "release": 70})
    assert replica.see(70, a=75) == {"a"}
    replica.edit(HOT | {"above": 81, "for": "10m"})
    assert replica.see(80, a=85) == set()


def test_states_survive_metrics_that_are_not_there_after_a_start() -> None:
    leader = Replica(HOT | {"release": 75}, nodes="a b")
    assert leader.see(0, a=85, b=70) == {"a"}
    leader.publish(at=0)
    restarted = Replica(HOT | {"release": 75}, status=leader.status, nodes="a b")
    assert restarted.see(5) == {"a", "b"}, "never fetched"
    restarted.publish(at=5)
    assert restarted.see(10, a=78, b=78) == {"a"}


def test_a_missing_value_counts_as_when_missing_says() -> None:
    allows, rejects = Replica(HOT | {"release": 75}), Replica(HOT | {"release": 75, "whenMissing": "Reject"})
    for replica in (allows, rejects):
        assert replica.see(0, a=85, b=70, c=70) >= {"a"}
    assert allows.see(61, b=70, c=70) == set()
    assert allows.see(70, a=78, b=70, c=70) == set()
    assert rejects.see(61, b=70, c=70) == {"a"}
    assert rejects.see(70, a=78, b=70, c=70) == {"a"}
    assert rejects.see(80, a=75, b=70, c=70) == set()


def test_nodes_that_come_and_go_keep_the_states_of_others() -> None:
    replica = Replica(HOT | {"release": 75})
    assert replica.see(0, a=85, b=70, c=85) == {"a", "c"}
    replica.nodes = NodeIndex(["c", "new", "b"])
    assert replica.see(10, c=78, new=78, b=78) == {"c"}


def test_the_status_lists_nodes_with_states() -> None:
    replica = Replica(HOT | {"for": "1m"}, {"metric": "heat", "above": 99})
    replica.see(0, a=85, b=70, c=70)
    replica.see(60, a=85, b=85, c=70)
    rules = msgspec.to_builtins(replica.written(60).rules)
    assert rules[0]["nodeStates"] == (
        {"state": "Rejected", "since": format_rfc3339(T0 + 60), "nodes": ("a",)},
        {"state": "Pending", "since": format_rfc3339(T0 + 60), "nodes": ("b",)},
    )
    assert rules[0]["expression"] == "heat above 80 for 1m"
    assert "nodeStates" not in rules[1]


def test_only_new_rejections_are_written_at_once() -> None:
    replica = Replica(HOT | {"for": "1m"})
    replica.see(0, a=70)
    passing = replica.written(0)
    replica.see(10, a=85)
    assert replica.written(10, passing).has_same_conditions(passing)
    replica.see(70, a=85)
    assert not replica.written(70, passing).has_same_conditions(passing)


def test_a_status_that_does_not_list_all_nodes_fails_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hysteresis, "MAX_NODES", 1)
    rule = HOT | {"release": 75}
    leader = Replica(rule)
    assert leader.see(0, a=85, b=85, c=70) == {"a", "b"}
    leader.publish(at=0)
    [counts] = leader.written(0).rules
    assert (counts.unlisted_nodes, len(counts.rejected_nodes())) == (1, 1)
    assert leader.see(5, a=78, b=78, c=78) == {"a", "b"}, "this replica knows the others"
    restarted = Replica(rule, status=leader.status)
    assert restarted.see(5, a=78, b=78, c=78) == {"a", "b", "c"}
    restarted.publish(at=5)
    assert restarted.see(10, a=78, b=75, c=75) == {"a"}


@pytest.mark.parametrize("time", ["yesterday", "1969-12-31T23:59:59Z", "2300-01-01T00:00:00Z"])
def test_a_status_with_an_unreadable_time_counts_as_none(time: str) -> None:
    leader = Replica(HOT | {"release": 75})
    leader.see(0, a=85)
    leader.publish(at=0)
    text = bytes(leader.status).replace(format_rfc3339(T0).encode(), time.encode())
    assert Replica(HOT | {"release": 75}, status=msgspec.Raw(text)).see(5, a=78) == set()


def test_flaps_are_counted_and_a_for_is_suggested() -> None:
    replica = Replica(HOT)
    for round_ in range(11):
        replica.see(round_ * 200, a=85, b=70)
        replica.see(round_ * 200 + 90, a=70, b=70)
        status = replica.written(round_ * 200)
        assert status.rules[0].flaps_per_hour == round_
        flapping = status.conditions_by_type().get("Flapping")
        assert (flapping is not None) == (round_ >= 10)
    assert flapping is not None
    text = "avoid[0] rejected nodes again at least 10 times in the last hour (a); consider for: 2m"
    assert flapping.message == text
    quiet = written_status(replica.state, 2200 + 3600)
    assert quiet.rules[0].flaps_per_hour == 0


def test_the_condition_of_a_rule_that_goes_on_to_flap_is_the_same() -> None:
    names = [f"n{number}" for number in range(8)]
    replica, statuses = Replica(HOT, nodes=" ".join(names)), [PlacementPolicyStatus()]
    for round_ in range(8):
        replica.see(round_ * 20, **dict.fromkeys(names[: round_ + 1], 85))
        replica.see(round_ * 20 + 10, **dict.fromkeys(names, 70))
        statuses.append(replica.written(round_ * 20 + 10, statuses[-1]))
    *_, before, last = statuses
    messages = [status.conditions_by_type()["Flapping"].message for status in (before, last)]
    assert messages[0] != messages[1], "another node"
    assert last.has_same_conditions(before)
    flap_counts = [status.rules[0].flaps_per_hour for status in (before, last)]
    assert flap_counts[0] < flap_counts[1]


PHASES = st.lists(
    st.tuples(st.sampled_from([0, 0, 1, 2, 3]), st.integers(1_700_000_000, 1_700_000_003)), max_size=12
)


@given(PHASES, st.integers(0, 12))
def test_records_contain_the_states_of_all_listed_nodes(phases: list[tuple[int, int]], most: int) -> None:
    nodes = NodeIndex([f"n{number}" for number in range(len(phases))])
    states = NodeStates(
        np.array([phase for phase, _ in phases] + [0], np.uint8),
        np.array([since if phase else 0 for phase, since in phases] + [0], np.uint32),
    )
    groups, unlisted = hysteresis.encode(states, nodes, most)
    decoded = hysteresis.decode(groups, unlisted, nodes)
    listed = decoded.states.phases > 0
    assert listed.sum() == min(most, (states.phases > 0).sum())
    assert np.array_equal(decoded.states.phases[listed], states.phases[listed])
    assert np.array_equal(decoded.states.since[listed], states.since[listed])
    assert unlisted == hysteresis.rejects(states)[~listed].sum()
    assert decoded.unlisted == unlisted


RULES = st.sampled_from(
    [{"for": "20s"}, {"for": "20s", "release": 75}, {"release": 75}, {"for": "10s", "keepFor": "20s"}]
)
SAMPLES = st.lists(st.tuples(st.sampled_from([5.0, 10.5, 30.0]), st.sampled_from([70, 78, 85])), max_size=15)


@given(RULES, st.sampled_from(["Allow", "Reject"]), SAMPLES, st.integers(0, 15))
def test_a_restart_at_any_time_gives_the_same_verdicts_as_none(
    times: Any, when_missing: str, samples: list[tuple[float, int]], restart: int
) -> None:
    rule = HOT | times | {"whenMissing": when_missing}
    steady, restarted, at = Replica(rule), Replica(rule), 0.0
    for number, (interval_s, value) in enumerate(samples):
        if number == restart:
            restarted = Replica(rule, status=restarted.status)
        at += interval_s
        assert steady.see(at, a=value, b=70, c=70) == restarted.see(at, a=value, b=70, c=70)
        steady.publish(at=at)
        restarted.publish(at=at)
        assert steady.see(at) == restarted.see(at)
