# ruff: noqa: E501 - the rows of a table
"""Parsing a TASPolicy: lenient, and with a list of all problems."""

from typing import Any

import msgspec
import pytest

from nodewise.policies import taspolicy_parser as policies
from nodewise.policies.policy_objects import PolicyMetadata, PolicyObject
from tests.unit.policies.policy_snapshot_builders import policy, rule


def problems(spec: Any, name: str = "pol") -> list[str]:
    policy_object = PolicyObject(PolicyMetadata(name, "d"), msgspec.Raw(msgspec.json.encode(spec)))
    return [str(problem) for problem in policies.parse_policy(policy_object).problems]


def one_rule(**fields: Any) -> dict[str, Any]:
    return {"strategies": {"dontschedule": {"rules": [{"metricname": "m", "operator": "Equals"} | fields]}}}


RULE = "spec.strategies.dontschedule.rules[0]"
PROBLEMS = {
    "an operator": (one_rule(operator="Above"), f"{RULE}.operator: 'Above'; expected LessThan or GreaterThan or Equals"),
    "an operator in lower case": (one_rule(operator="greaterthan"), 'or Equals; did you mean "GreaterThan"?'),
    "a target": (one_rule(target="warm"), f"{RULE}.target: 'warm'; expected a Kubernetes quantity such as 3, 0.5, 250m or 64Mi"),
    "a boolean target": (one_rule(target=True), f"{RULE}.target: True; expected a Kubernetes quantity"),
    "a metric's name": (one_rule(metricname="a:b"), f"{RULE}.metricname: 'a:b'; expected letters, digits, _ and - (a PlacementPolicy also accepts : and .)"),
    "a metric's name that YAML reads as another value": (one_rule(metricname=False), f"{RULE}.metricname: False; expected a name of at most 253 characters in quotes"),
    "no metric": (one_rule(metricname=""), f"{RULE}.metricname: ''; expected a name"),
    "when_missing": (one_rule(when_missing="keep"), f"{RULE}.when_missing: 'keep'; expected pass or reject"),
    "max_age": (one_rule(max_age="0s"), f"{RULE}.max_age: '0s'; expected a duration such as 30s or 5m"),
    "an unknown field": (one_rule(treshold=3), f"{RULE}.treshold: an unknown field; expected metricname"),
    "a misspelt field": (one_rule(maxAge="90s"), '; did you mean "max_age"?'),
    "a strategy": ({"strategies": {"dontSchedule": {"rules": []}}}, "spec.strategies.dontSchedule: an unknown strategy; expected dontschedule"),
    "a strategy that nearly is one": ({"strategies": {"dont-shedule": {"rules": []}}}, '; did you mean "dontschedule"?'),
    "a strategy with a line break": ({"strategies": {"a\nb": {"rules": []}}}, "spec.strategies.'a\\nb': an unknown strategy"),
    "an unknown field of a strategy": ({"strategies": {"deschedule": {"logicaloperator": "allOf", "rules": [rule("m")]}}}, 'deschedule.logicaloperator: an unknown field; expected policyName, logicalOperator, rules; did you mean "logicalOperator"?'),
    "an unknown field of the spec": ({"strategies": {}, "rules": []}, "spec.rules: an unknown field; expected strategies"),
    "a strategy that is a list": ({"strategies": {"dontschedule": []}}, "spec.strategies.dontschedule: []; expected an object"),
    "strategies that are text": ({"strategies": "x"}, "spec.strategies: 'x'; expected an object"),
    "no strategies": ({}, "spec.strategies: no value; expected dontschedule or"),
    "a spec that is a number": (7, "spec: 7; expected an object"),
    "allOf in other case": ({"strategies": {"dontschedule": {"logicalOperator": "ALLOF", "rules": [rule("m")]}}}, "logicalOperator: 'ALLOF'; expected allOf or anyOf (taken as anyOf); did you mean \"allOf\"?"),
    "Equals as a preference": ({"strategies": {"scheduleonmetric": {"rules": [rule("m", "Equals")]}}}, "which define an order"),
    "an operator of strategies that is a list": ({"strategies": {"dontschedule": {"logicalOperator": [], "rules": [rule("m")]}}}, "logicalOperator: []; expected allOf or anyOf"),
    "when_missing that is a list": (one_rule(when_missing=["pass"]), f"{RULE}.when_missing: ['pass']; expected pass or reject"),
    "a metric's name that is too long": (one_rule(metricname="m" * 254), "expected a name of at most 253 characters"),
    "a query that is an object": (one_rule(query={"a": 1}), f"{RULE}.query: 8 characters; expected an expression of at most 4096"),
    "a max_age beyond all time": (one_rule(max_age="9" * 40 + "h"), "max_age: '9999999999999999999999999999999999999999h'; expected a duration"),
    "a max_age as long as an object": (one_rule(max_age="1s" * 30_000), "expected a duration such as 30s or 5m, of at most a year"),
    "an aggregation": (one_rule(aggregate="median"), f"{RULE}.aggregate: 'median'; expected max or min or sum or avg"),
    "what an empty result means": (one_rule(query="up", empty_means="bad"), f"{RULE}.empty_means: 'bad'; expected healthy"),
    "an empty result without a query": (one_rule(empty_means="healthy"), f"{RULE}.empty_means: 'healthy'; expected only together with query"),
    "too many rules": ({"strategies": {"dontschedule": {"rules": [rule("m")] * 101}}}, "dontschedule.rules: 101 rules; expected at most 100"),
    "too many labels": (one_rule(labels=["a=b"] * 65), f"{RULE}.labels: 65 labels; expected at most 16"),
    "more than anybody reads": ({"strategies": {"dontschedule": {"rules": [rule("m", "Unlike")] * 64}}}, "spec: 34 more problems"),
    "no rules": ({"strategies": {"dontschedule": {"rules": []}}}, "a strategy without rules"),
}  # fmt: skip


@pytest.mark.parametrize(("spec", "message"), PROBLEMS.values(), ids=PROBLEMS)
def test_a_problem_names_field_seen_and_wanted(spec: Any, message: str) -> None:
    assert any(message in problem for problem in problems(spec)), problems(spec)


def test_all_problems_are_named_together() -> None:
    assert len(problems(one_rule(operator="x", target="y", when_missing="z"), name="n" * 64)) == 4


def test_a_good_policy_has_none() -> None:
    policy_object = policy(
        dontschedule=[rule("m", target=3, labels=["a=b"], query="up", max_age="90s", when_missing="reject")]
    )
    read = policies.parse_policy(policy_object)
    assert read.problems == ()
    assert [rule_read.max_age_s for rule_read in read.avoided()] == [90]
    assert read.node_labels == ()


@pytest.mark.parametrize("spec", [7, [], {"strategies": []}, {"strategies": "all"}, {"strategies": 0}])
def test_an_unreadable_policy_rejects_every_node(spec: Any) -> None:
    policy_object = PolicyObject(PolicyMetadata("pol", "d"), msgspec.Raw(msgspec.json.encode(spec)))
    (only,) = policies.parse_policy(policy_object).avoided()
    assert only.unusable


@pytest.mark.parametrize(
    "strategies",
    [
        {"dontSchedule": {"rules": [rule("m")]}},
        {"deschedule": {"logicaloperator": "allOf", "rules": [rule("m")]}},
        {"deschedule": {"rules": [rule("m", whenMissing="reject")]}},
    ],
    ids=["a strategy", "a field of a strategy", "a field of a rule"],
)
def test_a_policy_with_an_unknown_name_lets_no_node_pass_and_labels_none_by_it(strategies: Any) -> None:
    policy_object = PolicyObject(
        PolicyMetadata("pol", "d"), msgspec.Raw(msgspec.json.encode({"strategies": strategies}))
    )
    read = policies.parse_policy(policy_object)
    assert read.avoid
    assert not any(read.usable_comparisons())


def test_the_strategies_beside_an_unknown_one_count() -> None:
    policy_object = policy(dontSchedule=[rule("m")], deschedule=[rule("m")])
    [labelling] = policies.parse_policy(policy_object).node_labels
    assert not labelling.parts[0].unusable


def test_an_unknown_strategy_that_is_null_is_dropped_as_by_the_api_server() -> None:
    strategies = one_rule()["strategies"]
    assert problems({"strategies": strategies | {"name": None}}) == problems({"strategies": strategies})


def test_deep_nesting_is_a_problem_not_a_crash() -> None:
    policy_object = PolicyObject(
        PolicyMetadata("deep", "d"), msgspec.Raw(b'{"strategies":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    )
    assert policies.parse_policy(policy_object).problems


@pytest.mark.parametrize(
    "name", ['up"} or secret #', "a/../b", "..", "a b", "a\nb", "a%2fb", "sum(secret)", "é"]
)
def test_a_rule_with_an_invalid_metric_name_requests_no_metric(name: str) -> None:
    """The CRD refuses such names; an object that was stored without it must not reach a source."""
    [read] = policies.parse_policy(policy(dontschedule=[rule(name)])).avoided()
    assert "metricname" in read.unusable
