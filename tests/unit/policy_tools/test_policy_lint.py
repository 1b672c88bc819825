# ruff: noqa: E501 - the rows of a table
"""Checks of `policy lint` beyond the parser; tests/cluster/test_policy_lint.py compares them with a real API server."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from nodewise.policies.placement_policy import PolicyKind
from nodewise.policy_tools import policy_lint
from tests.unit.policies.policy_snapshot_builders import rule

RULE = "spec.strategies.dontschedule.rules[0]"


def lint(spec: Any, **metadata: Any) -> list[str]:
    whole = {
        "apiVersion": "telemetry.intel.com/v1alpha1",
        "kind": "TASPolicy",
        "metadata": {"name": "p"} | metadata,
        "spec": spec,
    }
    return [str(problem) for problem in policy_lint.lint(msgspec.json.encode(whole), "TASPolicy")]


def one_rule(**fields: Any) -> Any:
    return {"strategies": {"dontschedule": {"rules": [rule("m", target=1) | fields]}}}


PROBLEMS = {
    "a fraction as a number": (one_rule(target=0.8), f'{RULE}.target: 0.8; expected an integer of 64 bits, or a string such as "0.8"'),
    "a metric's name that YAML reads as another value": (one_rule(metricname=False), f"{RULE}.metricname: False; expected a string in quotes"),
    "an operator in lower case": (one_rule(operator="equals"), 'GreaterThan; did you mean "Equals"?'),
    "an age without a unit": (one_rule(max_age="90"), f"{RULE}.max_age: '90'; expected a duration such as 30s"),
    "a line break after a name": (one_rule(metricname="m\n"), f"{RULE}.metricname: 'm\\n'; expected letters, digits, _ and - ("),
    "a name that is too long": (one_rule(metricname="m" * 254), "254 characters; expected at most 253"),
    "a strategy without rules": ({"strategies": {"dontschedule": {}}}, "dontschedule.rules: no value; expected a value, which is required"),
    "too many rules": ({"strategies": {"dontschedule": {"rules": [rule("m", target=1)] * 101}}}, "dontschedule.rules: 101 entries; expected at most 100"),
    "a misspelt strategy": ({"strategies": {"dontSchedule": {"rules": []}}}, 'did you mean "dontschedule"?'),
    "a misspelt field": (one_rule(whenMissing="reject"), 'did you mean "when_missing"?'),
    "a rule without a target": ({"strategies": {"deschedule": {"rules": [{"metricname": "m", "operator": "Equals"}]}}}, "deschedule.rules[0].target: no target; expected a target; without one the value is compared with 0"),
    "labeling without labels": ({"strategies": {"labeling": {"rules": [rule("m", target=1)]}}}, "labeling.rules[0].labels: no labels; expected at least one label"),
}  # fmt: skip


@pytest.mark.parametrize(("spec", "message"), PROBLEMS.values(), ids=PROBLEMS)
def test_a_problem_is_reported(spec: Any, message: str) -> None:
    assert any(message in problem for problem in lint(spec)), lint(spec)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"name": "Web"}, "metadata.name: 'Web'"),
        ({"name": ""}, "metadata.name: no name"),
        ({"generateName": True}, "metadata.generateName: True; expected a string"),
        ({"generateName": "-a"}, "metadata.generateName: '-a'"),
        ({"namespace": "a.b"}, "metadata.namespace: 'a.b'"),
        ({"labels": {"a b": "c"}}, "metadata.labels.a b: 'a b'"),
        ({"labels": {"a": "-"}}, "metadata.labels.a: '-'"),
        ({"annotations": {"a": 5}}, 'metadata.annotations.a: 5; expected a string, such as "5"'),
    ],
    ids=str,
)
def test_a_problem_of_the_metadata_is_reported(metadata: Any, message: str) -> None:
    assert any(message in problem for problem in lint(one_rule(), **metadata))


@pytest.mark.parametrize(
    ("kind", "metadata", "messages"),
    [
        ("PlacementPolicy", {"name": "p", "namespace": "web"}, []),
        (
            "PlacementPolicy",
            {"name": "P", "namespace": "web"},
            ["metadata.name: 'P'; expected at most 253 lower-case letters, digits, - and ."],
        ),
        (
            "PlacementPolicy",
            {"name": "p", "namespace": "kube-system"},
            [
                "metadata.namespace: 'kube-system'; expected another namespace; a PlacementPolicy selects no pods of this one"
            ],
        ),
        (
            "ClusterPlacementPolicy",
            {"name": "p"},
            [
                "spec.namespaceSelector: no value; expected a label selector together with avoid or prefer; {} selects all namespaces"
            ],
        ),
    ],
    ids=str,
)
def test_problems_of_placement_policies(kind: PolicyKind, metadata: Any, messages: list[str]) -> None:
    spec = {"podSelector": {}, "avoid": [{"metric": "m", "above": 1}]}
    whole = {"apiVersion": "nodewise.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}
    assert [str(problem) for problem in policy_lint.lint(msgspec.json.encode(whole), kind)] == messages


def test_a_field_is_reported_once() -> None:
    assert len(lint(one_rule(operator="equals"))) == 1


def test_a_preference_needs_no_target() -> None:
    assert (
        lint({"strategies": {"scheduleonmetric": {"rules": [{"metricname": "m", "operator": "LessThan"}]}}})
        == []
    )


def test_every_keyword_of_the_definition_is_understood() -> None:
    assert {key for schema in schemas(policy_lint.spec()) for key in schema} <= policy_lint.KEYWORDS


def schemas(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A schema and all nested ones."""
    yield schema
    inner = [*schema.get("properties", {}).values(), schema.get("additionalProperties"), schema.get("items")]
    for subschema in inner:
        if subschema:
            yield from schemas(subschema)
