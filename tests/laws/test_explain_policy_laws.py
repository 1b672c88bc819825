"""Counterfactuals of several policies equal those of an evaluation node by node, rule by rule."""

import operator
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nodewise.agent import Evidence, PolicyRejections, ValueState, Verdict
from nodewise.engine import counterfactuals
from nodewise.engine.decision import Decision
from nodewise.engine.decision_json import StaticReason
from tests.unit.engine.decision_notation import of

COMPARE: Final[dict[str, Callable[[int, int], bool]]] = {
    "above": operator.gt,
    "atLeast": operator.ge,
    "below": operator.lt,
    "atMost": operator.le,
    "equals": operator.eq,
    "notEquals": operator.ne,
    "GreaterThan": operator.gt,
    "LessThan": operator.lt,
    "Equals": operator.eq,
}
SIZE: Final = 4
POLICIES: Final = ("placement policy d/a", "placement policy d/b", "cluster placement policy c")


class Rule(SimpleNamespace):
    """A rule with the values of all nodes; None is a missing value."""

    policy: str
    group: int
    operator: str
    target: int
    values: list[int | None]
    rejects_missing: bool

    def rejects(self, node: int) -> bool:
        value = self.values[node]
        return self.rejects_missing if value is None else COMPARE[self.operator](value, self.target)

    def with_(self, **fields: Any) -> "Rule":
        return Rule(**{**vars(self), **fields})

    def evidence(self) -> Evidence:
        states = [ValueState.MISSING if value is None else ValueState.FRESH for value in self.values]
        return Evidence(
            "m",
            self.operator,
            self.target,
            np.array([value or 0 for value in self.values], np.int64),
            np.array(states, np.uint8),
            np.zeros(SIZE),
            self.rejects_missing,
            self.policy,
            self.group,
        )


class AcceptingRule(Rule):
    """The rule with a target that no value violates: only missing values are rejected."""

    def rejects(self, node: int) -> bool:
        return self.values[node] is None and self.rejects_missing


RULES = st.lists(
    st.builds(
        Rule,
        policy=st.sampled_from(POLICIES),
        group=st.integers(-1, 1),
        operator=st.sampled_from(list(COMPARE)),
        target=st.integers(-2, 2),
        values=st.lists(st.none() | st.integers(-3, 3), min_size=SIZE, max_size=SIZE),
        rejects_missing=st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


def groups(rules: Sequence[Rule]) -> list[list[Rule]]:
    """The rules that reject a node together."""
    by_group: dict[tuple[str, int], list[Rule]] = {}
    for number, rule in enumerate(rules):
        key = rule.policy, rule.group if rule.group >= 0 else -1 - number
        by_group.setdefault(key, []).append(rule)
    return list(by_group.values())


def policy_rejects(rules: Sequence[Rule], policy: str, node: int) -> bool:
    own = [rule for rule in rules if rule.policy == policy]
    return any(all(rule.rejects(node) for rule in group) for group in groups(own))


def passing(rules: Sequence[Rule], policies: Sequence[str] = POLICIES) -> set[int]:
    return {
        node for node in range(SIZE) if not any(policy_rejects(rules, policy, node) for policy in policies)
    }


def decide(rules: Sequence[Rule]) -> Decision:
    parts = tuple(
        PolicyRejections(
            policy, np.array([policy_rejects(rules, policy, node) for node in range(SIZE)]), "any"
        )
        for policy in POLICIES
    )
    codes = np.array([node not in passing(rules) for node in range(SIZE)], np.int16)
    evidence = tuple(rule.evidence() for rule in rules)
    return of(("t", Verdict(codes, (StaticReason("no"),), evidence, "any", policies=parts)))


def passing_with(rules: Sequence[Rule], number: int, rule: Rule) -> set[int]:
    return passing([*rules[:number], rule, *rules[number + 1 :]])


@given(RULES)
def test_rules_of_each_policy_reject_the_same_nodes_as_the_policy(rules: list[Rule]) -> None:
    ((_, verdict),) = decide(rules).verdicts
    assert all(rule_set.joined is not None for rule_set in counterfactuals.rule_sets(verdict))
    assert not counterfactuals.is_held(verdict)


@given(RULES)
def test_another_target_lets_as_many_nodes_pass_as_it_says(rules: list[Rule]) -> None:
    before = passing(rules)
    changes = {change.number: change for change in counterfactuals.changes(decide(rules))}
    for number, rule in enumerate(rules):
        change = changes.get(number)
        accepting = passing_with(rules, number, AcceptingRule(**vars(rule)))
        lenient = passing_with(rules, number, rule.with_(rejects_missing=False))
        assert (change.alone if change else 0) == len(accepting - before)
        assert (change.unmeasured if change else 0) == len(lenient - before)
        for step in change.relaxed if change else ():
            after = passing_with(rules, number, rule.with_(target=step.target))
            assert after >= before
            assert len(after - before) == step.more
        if change:
            (group,) = (group for group in groups(rules) if any(other is rule for other in group))
            assert change.enough == (len(group) > 1)


@given(RULES)
def test_without_a_policy_as_many_nodes_pass_as_it_says(rules: list[Rule]) -> None:
    before = passing(rules)
    for removal in counterfactuals.policy_removals(decide(rules)):
        rest = [policy for policy in POLICIES if policy != removal.policy]
        assert removal.more == len(passing(rules, rest) - before)
        assert removal.rejected == SIZE - len(passing(rules, [removal.policy]))


@given(RULES)
def test_the_distance_counts_the_groups_that_reject_a_node(rules: list[Rule]) -> None:
    distances = counterfactuals.distance_from_passing(decide(rules))
    for node in range(SIZE):
        rejecting = sum(all(rule.rejects(node) for rule in group) for group in groups(rules))
        assert rejecting <= distances[node] <= 2 * rejecting


@given(RULES)
def test_a_node_that_one_change_lets_pass_is_not_stuck(rules: list[Rule]) -> None:
    released = set[int]()
    for number, rule in enumerate(rules):
        accepting = AcceptingRule(**{**vars(rule), "rejects_missing": False})
        released |= passing_with(rules, number, accepting)
    stuck = set(np.flatnonzero(counterfactuals.stuck(decide(rules))).tolist())
    assert stuck == set(range(SIZE)) - released - passing(rules)
