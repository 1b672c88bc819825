"""Scores of `scheduleonmetric`."""

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


def ranked(operator: str, names: str | None = None, **values: object) -> dict[str, int] | None:
    cluster = cluster_state(
        [policy(scheduleonmetric=[rule("m", operator)])],
        metrics_snapshot(series("m", **values)),
        " ".join(values),
    )
    return scores(snapshot(cluster), names or " ".join(values))


def test_greater_than_likes_large_values() -> None:
    assert ranked("GreaterThan", a=1, b=3, c=2) == {"b": 10, "c": 9, "a": 8}


def test_less_than_likes_small_values() -> None:
    assert ranked("LessThan", a=1, b=3, c=2) == {"a": 10, "c": 9, "b": 8}


def test_equal_values_share_a_rank_and_the_next_is_behind_all_of_them() -> None:
    assert ranked("GreaterThan", a=7, b=7, c=1) == {"a": 10, "b": 10, "c": 8}


@pytest.mark.parametrize("operator", ["Equals", "Foo", ""])
def test_an_operator_without_order_likes_all_measured_nodes_alike(operator: str) -> None:
    assert ranked(operator, "a b x", a=1, b=2) == {"a": 10, "b": 10, "x": 0}


def test_nodes_without_a_value_get_nothing() -> None:
    assert ranked("GreaterThan", "a x b", a=1, b=None) == {"a": 10, "x": 0, "b": 0}


def test_only_the_candidates_are_ranked() -> None:
    assert ranked("GreaterThan", "c a", a=1, b=3, c=2) == {"c": 10, "a": 9}


def test_eleven_candidates_use_the_whole_scale_one_by_one() -> None:
    values = {f"n{i:02}": i for i in range(11)}
    assert ranked("GreaterThan", **values) == {f"n{i:02}": i for i in range(11)}


def test_more_than_eleven_share_the_scale() -> None:
    points = ranked("GreaterThan", **{f"n{i:02}": i for i in range(1, 14)})
    assert points is not None
    assert list(points.values()) == [0, 1, 2, 2, 3, 4, 5, 6, 7, 8, 8, 9, 10]


def test_exact_quantities_are_compared_not_floats() -> None:
    values = dict(
        zip(
            "abcdefghij",
            ["0.1", "1e3", "1Ki", "-3", "41020m", "41", "100u", "9223372036854775808", "12E", "1.5Gi"],
            strict=True,
        )
    )
    points = ranked("GreaterThan", **values)
    assert points is not None
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


def test_without_the_strategy_or_a_policy_there_is_no_opinion() -> None:
    cluster_snapshot = snapshot(
        cluster_state([policy(dontschedule=[rule("m")])], metrics_snapshot(series("m", n1=1)))
    )
    assert scores(cluster_snapshot) is None
    assert scores(cluster_snapshot, of=pod("nope")) is None
    assert scores(cluster_snapshot, of=pod(None)) is None
