"""Counterfactuals of `explain` equal a second decision with the changed rule."""

from types import SimpleNamespace
from typing import Any

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from nodewise.agent import Snapshot
from nodewise.base import cooperative_scheduling, quantity
from nodewise.engine import counterfactuals, decision_json, scheduling_attempt_explanation
from nodewise.engine.agent_chain import AgentChain
from nodewise.engine.decision import Decision, DecisionRing
from nodewise.engine.scheduling_attempt_explanation import Attempt
from nodewise.policies.agent import TelemetryAgent
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.state import TelemetryStateBuilder
from tests.unit.policies.policy_snapshot_builders import (
    cluster_state,
    metrics_snapshot,
    policy,
    series,
    snapshot,
)

NODES = [f"n{i}" for i in range(12)]
NUMBERS = st.integers(-20, 20) | st.fractions(-5, 5, max_denominator=8).map(float) | st.just(10**25)
VALUES = st.dictionaries(st.sampled_from(NODES), NUMBERS | st.none(), max_size=12)
RULES = st.lists(
    st.fixed_dictionaries(
        {
            "metricname": st.sampled_from(["a", "b"]),
            "operator": st.sampled_from(["LessThan", "GreaterThan", "Equals"]),
            "target": st.integers(-10, 10) | st.sampled_from(["0.5", "-250m"]),
        },
        optional={"when_missing": st.sampled_from(["pass", "reject"])},
    ),
    min_size=1,
    max_size=3,
)
POD: Any = SimpleNamespace(
    metadata=SimpleNamespace(
        namespace="d", name="p", uid="u", labels={"telemetry-policy": "pol"}, ownerReferences=None
    )
)


class RuleInputs(SimpleNamespace):
    """Rules with values, and decisions of the real agent about them."""

    def filter(self, rules: Any = None) -> Decision:
        strategy = {"rules": rules or self.rules, "logicalOperator": self.logical}
        metrics = metrics_snapshot(series("a", **self.a), series("b", **self.b))
        state_inputs = cluster_state([policy(dontschedule=strategy)], metrics, " ".join(NODES))
        return AgentChain([TelemetryAgent()]).filter(POD, NODES, snapshot(state_inputs), 1000.0)

    def with_rule(self, number: int, **fields: Any) -> Decision:
        changed = list(self.rules)
        changed[number] = changed[number] | fields
        return self.filter(changed)


RULE_INPUTS = st.builds(
    RuleInputs, rules=RULES, logical=st.sampled_from(["anyOf", "allOf"]), a=VALUES, b=VALUES
)


def passing(decision: Decision) -> set[str]:
    return set(decision.names[decision.feasible()].tolist())


@given(RULE_INPUTS)
def test_so_many_more_nodes_pass_with_the_other_target_as_it_says(of: RuleInputs) -> None:
    before = of.filter()
    for change in counterfactuals.changes(before):
        for step in change.relaxed:
            after = of.with_rule(change.number, target=quantity.nano_to_text(step.target))
            assert passing(after) >= passing(before)
            assert len(passing(after) - passing(before)) == step.more


@given(RULE_INPUTS)
def test_so_many_more_nodes_pass_where_missing_values_pass_as_it_says(of: RuleInputs) -> None:
    before = of.filter()
    by_number = {change.number: change.unmeasured for change in counterfactuals.changes(before)}
    for number in range(len(of.rules)):
        after = of.with_rule(number, when_missing="pass")
        assert len(passing(after) - passing(before)) == by_number.get(number, 0)


@given(RULE_INPUTS)
def test_the_last_target_is_the_one_beyond_which_nothing_is_gained(of: RuleInputs) -> None:
    for change in counterfactuals.changes(of.filter()):
        counts = [step.more for step in change.relaxed]
        assert counts == sorted(set(counts))
        assert change.rule.operator == "Equals" or not change.alone or counts[-1] == change.alone


@given(RULE_INPUTS)
def test_every_verdict_of_a_rule_that_is_not_held_follows_from_its_evidence(of: RuleInputs) -> None:
    # a metric without a value on any node counts as never fetched
    values = (getattr(of, rule["metricname"]).values() for rule in of.rules)
    assume(all(any(value is not None for value in of_nodes) for of_nodes in values))
    for _, verdict in of.filter().verdicts:
        assert all(rule_set.joined is not None for rule_set in counterfactuals.rule_sets(verdict))
        assert not counterfactuals.is_held(verdict)


@given(RULE_INPUTS)
def test_every_node_is_listed_once_and_passing_nodes_first(of: RuleInputs) -> None:
    decision = of.filter()
    findings = scheduling_attempt_explanation.explain(Attempt(decision)).findings
    assert sorted(finding.node for finding in findings) == sorted(NODES)
    passes = [not finding.reasons for finding in findings]
    assert passes == sorted(passes, reverse=True)
    assert {finding.node for finding in findings if not finding.reasons} == passing(decision)


@given(RULE_INPUTS)
def test_another_process_reads_the_decision(of: RuleInputs) -> None:
    ring = DecisionRing()
    ring.add(of.filter())
    _, (decoded,) = decision_json.decode_page(
        cooperative_scheduling.run_without_pauses(decision_json.encode_page(ring, {"form": "arrays"}))
    )
    assert cooperative_scheduling.run_without_pauses(
        decision_json.encode_arrays(decoded)
    ) == cooperative_scheduling.run_without_pauses(decision_json.encode_arrays(of.filter()))


@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_a_round_number_is_never_short_of_the_value(target: int, value: int) -> None:
    rounded = counterfactuals.round_target(target, value)
    if value != target:
        assert abs(rounded - target) >= abs(value - target)
        assert abs(rounded - value) * 4 <= abs(value - target)


def test_a_rule_that_holds_its_verdicts_is_not_argued_with() -> None:
    """When the source fails, earlier verdicts remain valid, so no change of a target is certain to change them."""
    hot = {"metricname": "a", "operator": "GreaterThan", "target": 5}
    state = TelemetryStateBuilder(TelemetryOptions(), 60.0)

    def filter_at(now: float, values: dict[str, int]) -> Decision:
        state_inputs = cluster_state(
            [policy(dontschedule=[hot])], metrics_snapshot(series("a", **values)), " ".join(NODES)
        )
        agent_state = cooperative_scheduling.run_without_pauses(
            state.build(msgspec.structs.replace(state_inputs, now=now))
        )
        return AgentChain([TelemetryAgent()]).filter(
            POD, NODES, Snapshot(state_inputs.nodes, {"telemetry": agent_state}, now), now
        )

    before, after = filter_at(1000.0, dict.fromkeys(NODES, 9)), filter_at(1001.0, {})
    assert not after.feasible().any()
    actual = [scheduling_attempt_explanation.explain(Attempt(decision)).held for decision in (before, after)]
    assert actual == [False, True]
    assert list(counterfactuals.changes(after)) == []
