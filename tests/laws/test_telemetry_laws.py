"""Laws of the telemetry agent, for any policy and values."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from nodewise.policies import taspolicy_parser as policies
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.policy_objects import PolicyMetadata, PolicyObject
from tests.unit.policies.policy_snapshot_builders import (
    cluster_state,
    metrics_snapshot,
    policy,
    rejected,
    rule,
    scores,
    series,
    snapshot,
)

NODES = [f"n{i}" for i in range(14)]
NAMES = " ".join(NODES)
VALUES = st.dictionaries(st.sampled_from(NODES), st.integers(-20, 20) | st.just(10**25), max_size=14)
OPERATORS = st.sampled_from(["LessThan", "GreaterThan", "Equals"])
RULES = st.lists(
    st.builds(rule, st.sampled_from(["a", "b"]), OPERATORS, st.integers(-20, 20)), min_size=1, max_size=3
)


def evaluate_strategy(rules: list[Any], logical: str, a: dict[str, int], b: dict[str, int]) -> set[str]:
    strategy = {"rules": rules, "logicalOperator": logical}
    state_inputs = cluster_state(
        [policy(dontschedule=strategy)], metrics_snapshot(series("a", **a), series("b", **b)), " ".join(NODES)
    )
    return set(rejected(snapshot(state_inputs), NAMES) or ())


def is_violated(rule: dict[str, Any], value: int | None) -> bool:
    if value is None:
        return False
    target = rule["target"]
    return {"LessThan": value < target, "GreaterThan": value > target, "Equals": value == target}[
        rule["operator"]
    ]


@given(RULES, VALUES, VALUES)
def test_any_of_rejects_a_node_that_meets_one_rule_and_all_of_a_node_that_meets_all(
    rules: list[Any], a: dict[str, int], b: dict[str, int]
) -> None:
    values = {"a": a, "b": b}
    if not all(values[rule["metricname"]] for rule in rules):
        # a metric without any value counts as never fetched
        assert (
            evaluate_strategy(rules, "anyOf", a, b) == evaluate_strategy(rules, "allOf", a, b) == set(NODES)
        )
        return
    broken = {
        node: [is_violated(rule, values[rule["metricname"]].get(node)) for rule in rules] for node in NODES
    }
    assert evaluate_strategy(rules, "anyOf", a, b) == {node for node in NODES if any(broken[node])}
    assert evaluate_strategy(rules, "allOf", a, b) == {node for node in NODES if all(broken[node])}


@given(VALUES, st.integers(-20, 20), st.integers(0, 10))
def test_raising_a_greater_than_target_rejects_no_more_nodes(
    a: dict[str, int], target: int, more: int
) -> None:
    low = evaluate_strategy([rule("a", target=target)], "anyOf", a, {})
    assert evaluate_strategy([rule("a", target=target + more)], "anyOf", a, {}) <= low


@given(RULES, VALUES, VALUES)
def test_rejecting_the_unmeasured_rejects_no_fewer_nodes(
    rules: list[Any], a: dict[str, int], b: dict[str, int]
) -> None:
    state_inputs = cluster_state(
        [policy(dontschedule=rules)], metrics_snapshot(series("a", **a), series("b", **b)), " ".join(NODES)
    )
    lax = rejected(snapshot(state_inputs), NAMES) or {}
    strict = rejected(snapshot(state_inputs, TelemetryOptions(when_missing="reject")), NAMES) or {}
    assert lax.keys() <= strict.keys()


@given(VALUES, OPERATORS, st.lists(st.sampled_from([*NODES, "nX"]), unique=True))
def test_scores_lie_in_0_to_10_and_keep_the_order_of_the_values(
    a: dict[str, int], operator: str, candidates: list[str]
) -> None:
    state_inputs = cluster_state(
        [policy(scheduleonmetric=[rule("a", operator)])], metrics_snapshot(series("a", **a)), " ".join(NODES)
    )
    scores_by_node = scores(snapshot(state_inputs), " ".join(candidates)) or {}
    measured = [node for node in candidates if node in a]
    assert all(0 <= score <= 10 for score in scores_by_node.values())
    assert all(scores_by_node[node] == 0 for node in candidates if node not in a)
    assert not measured or max(scores_by_node[node] for node in measured) == 10
    sign = {"LessThan": -1, "GreaterThan": 1, "Equals": 0}[operator]
    for first in measured:
        for other in measured:
            if sign * a[first] >= sign * a[other]:
                assert scores_by_node[first] >= scores_by_node[other]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["strategies", "dontschedule", "scheduleonmetric", "labeling", "rules", "metricname", "operator", "target",
             "labels", "max_age", "when_missing", "logicalOperator", "query",
             "aggregate", "empty_means", "x"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=20,
)  # fmt: skip


@given(JSON)
def test_any_spec_is_read_and_judged_without_an_error(spec: Any) -> None:
    given_policy = PolicyObject(PolicyMetadata("pol", "d"), msgspec.Raw(msgspec.json.encode(spec)))
    read = policies.parse_policy(given_policy)
    assert all(rule.unusable or rule.metric for rule in read.comparisons())
    given_snapshot = snapshot(cluster_state([given_policy], metrics_snapshot(series("m", n1=1))))
    rejected(given_snapshot)
    scores(given_snapshot)
