"""Scores of `scheduleonmetric`."""

from typing import Any

import pytest

from tests.unit.policies.policy_snapshot_builders import (
    cluster_state,
    metrics_snapshot,
    pod,
    policy,
    rule,
    scores,
    series,
    snapshot,
)

ELEVEN = {f"n{number:02}": number for number in range(11)}
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, int]]] = {
    "large values first": ("GreaterThan", "a b c", {"a": 1, "b": 3, "c": 2}, {"b": 10, "c": 9, "a": 8}),
    "small values first": ("LessThan", "a b c", {"a": 1, "b": 3, "c": 2}, {"a": 10, "c": 9, "b": 8}),
    "equal values share a rank": (
        "GreaterThan",
        "a b c",
        {"a": 7, "b": 7, "c": 1},
        {"a": 10, "b": 10, "c": 8},
    ),
    "no value": ("GreaterThan", "a x b", {"a": 1, "b": None}, {"a": 10, "x": 0, "b": 0}),
    "candidates only": ("GreaterThan", "c a", {"a": 1, "b": 3, "c": 2}, {"c": 10, "a": 9}),
    "eleven candidates use the whole scale": ("GreaterThan", " ".join(ELEVEN), ELEVEN, ELEVEN),
    **{
        f"all nodes with a value alike, operator {operator}": (
            operator,
            "a b x",
            {"a": 1, "b": 2},
            {"a": 10, "b": 10, "x": 0},
        )
        for operator in ("Equals", "Foo", "")
    },
}


def ranked(operator: str, names: str, values: dict[str, Any]) -> dict[str, int] | None:
    cluster = cluster_state(
        [policy(scheduleonmetric=[rule("m", operator)])],
        metrics_snapshot(series("m", **values)),
        " ".join(values),
    )
    return scores(snapshot(cluster), names)


@pytest.mark.parametrize(("operator", "names", "values", "expected"), CASES.values(), ids=CASES)
def test_scores(operator: str, names: str, values: dict[str, Any], expected: dict[str, int]) -> None:
    assert ranked(operator, names, values) == expected


def test_more_than_eleven_share_the_scale() -> None:
    values = {f"n{number:02}": number for number in range(1, 14)}
    points = ranked("GreaterThan", " ".join(values), values) or {}
    assert list(points.values()) == [0, 1, 2, 2, 3, 4, 5, 6, 7, 8, 8, 9, 10]


def test_exact_quantities_are_compared_not_floats() -> None:
    texts = ["0.1", "1e3", "1Ki", "-3", "41020m", "41", "100u", "9223372036854775808", "12E", "1.5Gi"]
    points = ranked("GreaterThan", " ".join("abcdefghij"), dict(zip("abcdefghij", texts, strict=True))) or {}
    assert sorted(points, key=lambda name: -points[name]) == list("ihjcbefagd")


def test_only_the_first_rule_counts_and_its_target_does_not() -> None:
    cluster = cluster_state(
        [policy(scheduleonmetric=[rule("m", "LessThan", 99), rule("k", "GreaterThan")])],
        metrics_snapshot(series("m", n1=1, n2=2), series("k", n1=1, n2=2)),
    )
    assert scores(snapshot(cluster), "n2 n1") == {"n1": 10, "n2": 9}


def test_a_metric_without_values_scores_nothing() -> None:
    cluster = cluster_state([policy(scheduleonmetric=[rule("absent")])], metrics_snapshot())
    assert scores(snapshot(cluster), "n1 n2") == {"n1": 0, "n2": 0}


def test_without_the_strategy_or_a_policy_there_are_no_scores() -> None:
    cluster = cluster_state([policy(dontschedule=[rule("m")])], metrics_snapshot(series("m", n1=1)))
    assert [scores(snapshot(cluster), of=of) for of in (pod(), pod("nope"), pod(None))] == [None] * 3
