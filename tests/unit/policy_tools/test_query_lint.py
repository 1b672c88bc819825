"""The checks of queries report what is certain, and nothing else."""

from typing import Any

import msgspec
import pytest

from nodewise.policy_tools import policy_lint

IMPOSSIBLE: list[tuple[str, dict[str, Any]]] = [
    ('probe_success{job="ping"} == 0', {"above": 0}),
    ("probe_success == 0", {"equals": 1}),
    ("(fan_speed < 200)", {"above": 200}),
    ("fan_speed <= 200", {"above": 200}),
    ("fan_speed < 200", {"atLeast": 200}),
    ("fan_speed > 9e3", {"below": "9k"}),
    ("0.5 > fan_share", {"above": "0.5"}),
    ("fan_speed < 0x10 and on (node) fan_on == 1", {"above": 20}),
    ("fan_speed < 3 or fan_level < 2", {"above": 3}),
    ("max by (node) (fan_speed < 200)", {"above": 300}),
    ("topk(3, fan_speed < 200) # slow", {"above": 300}),
    ("fan_speed < bool 200", {"above": 1}),
    ("fan_speed != 7", {"equals": 7}),
    ("fan_speed < -5", {"above": "-1"}),
    ("fan_speed * 2 < 10", {"above": 10}),
    ("fan_speed < 10", {"aggregate": "max", "above": 10}),
    ('fan_speed{name="> 5 # ("} < 10', {"above": 10}),
]
POSSIBLE: list[tuple[str, dict[str, Any]]] = [
    ("probe_success == 0", {"equals": 0}),
    ("probe_success == 0", {"below": 1}),
    ("fan_speed <= 200", {"atLeast": 200}),
    ("fan_speed > 200", {"above": 300}),
    ("fan_speed < 200", {"aggregate": "sum", "above": 300}),
    ("fan_speed < 200 or fan_level", {"above": 300}),
    ("sum by (node) (fan_speed < 200)", {"above": 300}),
    ("avg by (node) (fan_speed < 200) * 2", {"above": 300}),
    ("fan_speed < fan_limit", {"above": 300}),
    ("fan_speed < 10 * 20", {"above": 100}),
    ("fan_speed < bool 200", {"above": 0}),
    ("fan_speed unless fan_level < 10", {"above": 300}),
    ("fan_speed < 1e999", {"above": 300}),
    ("fan_speed < 0x" + "f" * 4000, {"above": 300}),
    ("fan_speed < 10", {"order": "Ascending"}),
    ("fan_speed < 10", {"above": "warm"}),
    ("or", {"above": 1}),
    ("< 5", {"above": 7}),
    ("", {"above": 7}),
    ("max(" * 900 + "x" + ")" * 900, {"above": 7}),
]


def problems(query: str, **fields: Any) -> list[str]:
    return [
        str(problem)
        for problem in policy_lint.check_queries({"avoid": [{"query": query, **fields}]}).problems
    ]


def notes(query: str) -> list[str]:
    return [str(note) for note in policy_lint.check_queries({"avoid": [{"query": query}]}).notes]


@pytest.mark.parametrize(("query", "fields"), IMPOSSIBLE, ids=str)
def test_rule_that_no_result_meets_is_a_problem(query: str, fields: dict[str, Any]) -> None:
    [problem] = problems(query, **fields)
    assert problem.startswith("spec.avoid[0].query: only results ")


@pytest.mark.parametrize(("query", "fields"), POSSIBLE, ids=lambda value: str(value)[:60])
def test_rule_that_a_result_may_meet_is_no_problem(query: str, fields: dict[str, Any]) -> None:
    assert problems(query, **fields) == []


UNBALANCED = {
    "rate(fan_turns_total[5m)": '")" at character 24; expected "]"',
    "max by (node (fan_speed)": '"(" without ")"; expected balanced brackets',
    "fan_speed{": '"{" without "}"; expected balanced brackets',
    "fan_speed)": '")" at character 10; expected no closing bracket',
    'fan_speed{name="a}': '" at character 16 without its end; expected a closing quote',
}


@pytest.mark.parametrize(("query", "problem"), UNBALANCED.items(), ids=UNBALANCED)
def test_unbalanced_bracket_is_a_problem(query: str, problem: str) -> None:
    assert problems(query, above=1) == [f"spec.avoid[0].query: {problem}"]


@pytest.mark.parametrize(
    "query", ['a{b="("}', "a{b='\\'['}", "a{b=`\\`}", "a # (\n", '{"room.fan", b=~"]+"}']
)
def test_brackets_in_strings_and_comments_do_not_count(query: str) -> None:
    assert problems(query, above=1) == []


@pytest.mark.parametrize(
    "query",
    [
        "sum(fan_speed)",
        "SUM (rate(x[5m])) / 2",
        "avg by (job) (x) > 5",
        "(count(x) by (zone))",
        "sum(x) / sum(y)",
    ],
)
def test_aggregation_without_a_label_of_the_node_is_noted(query: str) -> None:
    [note] = notes(query)
    assert "without a label that names a node; expected" in note


@pytest.mark.parametrize(
    "query",
    [
        "sum by (instance) (x)",
        "sum(x) by (rack_node)",
        "max without (cpu) (x)",
        "x / on () group_left sum(y)",
        "sum(x) or y",
        "y and sum(x)",
        "topk(1, sum(x))",
        "sum",
    ],
)
def test_query_whose_results_may_have_a_node_is_not_noted(query: str) -> None:
    assert notes(query) == []


def test_queries_of_all_sections_and_kinds_are_checked() -> None:
    rules = {"all": [{"query": "a < 1", "above": 1}]}
    listed = policy_lint.check_queries({"avoid": [rules], "nodeLabels": [rules]}).problems
    assert [problem.field for problem in listed] == [
        "spec.avoid[0].all[0].query",
        "spec.nodeLabels[0].all[0].query",
    ]
    rule = {"metricname": "m", "operator": "GreaterThan", "target": 1, "query": "a < 1"}
    policy = {
        "apiVersion": "telemetry.intel.com/v1alpha1",
        "metadata": {"name": "fans", "namespace": "web"},
        "spec": {"strategies": {"dontschedule": {"rules": [rule]}}},
    }
    [problem] = policy_lint.lint(msgspec.json.encode(policy), "TASPolicy")
    assert problem.field == "spec.strategies.dontschedule.rules[0].query"


def test_notes_about_queries_are_shown_beside_problems() -> None:
    rules = [{"query": "sum(a)", "above": 1}, {"query": "b == 0", "above": 0}]
    policy = {
        "apiVersion": "nodewise.io/v1alpha1",
        "metadata": {"name": "fans"},
        "spec": {"namespaceSelector": {}, "podSelector": {}, "avoid": rules},
    }
    text = msgspec.json.encode(policy)
    assert [problem.field for problem in policy_lint.lint(text, "ClusterPlacementPolicy")] == [
        "spec.avoid[1].query"
    ]
    assert [note.field for note in policy_lint.notes(text, "ClusterPlacementPolicy", 5.0)] == [
        "spec.avoid[0].query"
    ]
