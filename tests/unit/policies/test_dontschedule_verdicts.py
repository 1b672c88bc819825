"""Verdicts of `dontschedule`: the table of the specification (section 29.4) and further cases."""

from typing import Any, ClassVar

import pytest

from nodewise.metrics.series import Sample, Series
from nodewise.policies.options import TelemetryOptions
from tests.unit.policies.policy_snapshot_builders import (
    cluster_state,
    metrics_snapshot,
    pod,
    policy,
    rejected,
    rule,
    series,
    snapshot,
)

TWO = (series("memory", n1=10), series("cpu", n1=200))


def broken(rules: list[Any], logical: str | None = None, metrics: Any = TWO) -> bool:
    strategy = {"rules": rules} | ({} if logical is None else {"logicalOperator": logical})
    reasons = rejected(
        snapshot(cluster_state([policy(dontschedule=strategy)], metrics_snapshot(*metrics))), "n1"
    )
    assert reasons is not None
    return bool(reasons)


VIOLATIONS = {
    "one rule, broken": ([rule("memory", target=9)], True, True),
    "one rule, kept": ([rule("memory", target=11)], False, False),
    "first of two broken": ([rule("memory", target=9), rule("cpu", target=900)], True, False),
    "none of two broken": ([rule("memory", target=90), rule("cpu", target=900)], False, False),
    "both broken": ([rule("memory", target=9), rule("cpu", target=90)], True, True),
}


@pytest.mark.parametrize(("rules", "any_of", "all_of"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_any_of_and_all_of(rules: list[Any], any_of: bool, all_of: bool) -> None:
    assert [broken(rules, logical) for logical in (None, "", "anyOf", "ALLOF", "allOf")] == [any_of] * 4 + [
        all_of
    ]


OPERATORS = {
    "less": ("100", "LessThan", 1000, True),
    "not less": ("10000", "LessThan", 10, False),
    "a tie is not less": ("10", "LessThan", 10, False),
    "greater": ("100000", "GreaterThan", 1, True),
    "a tie is not greater": ("1", "GreaterThan", 1, False),
    "equal": ("1", "Equals", 1, True),
    "not equal": ("1", "Equals", 100, False),
    "an operator that does not exist": ("100", "ABCDE", 1, True),
    "milli is exact": ("41020m", "Equals", 41, False),
    "milli is greater": ("41020m", "GreaterThan", 41, True),
    "negative": ("-10", "GreaterThan", -12, True),
    "no target is zero": ("-3", "LessThan", None, True),
    "below nano": ("0.0000000001", "GreaterThan", 0, True),
    "beyond 64 bits": ("12E", "GreaterThan", "11E", True),
    "a fraction as target": ("0.81", "GreaterThan", "0.8", True),
    "a quantity as target": ("65Gi", "GreaterThan", "64Gi", True),
    "a target beyond 64 bits": ("5", "LessThan", "12E", True),
}


@pytest.mark.parametrize(("value", "operator", "target", "expected"), OPERATORS.values(), ids=OPERATORS)
def test_operator(value: str, operator: str, target: Any, expected: bool) -> None:
    assert broken([rule("m", operator, target)], metrics=[series("m", n1=value)]) is expected


def test_a_reason_names_policy_rule_and_threshold_and_never_the_node() -> None:
    cluster = cluster_state(
        [policy(dontschedule=[rule("m", target="0.8")])], metrics_snapshot(series("m", n1=1, n2=2, n3=0))
    )
    text = "telemetry policy d/pol: m GreaterThan 0.8"
    assert rejected(snapshot(cluster)) == {"n1": text, "n2": text}


def test_of_several_broken_rules_the_first_is_the_reason() -> None:
    cluster = cluster_state(
        [policy(dontschedule=[rule("a", "Equals", 1), rule("b", "Equals", 1)])],
        metrics_snapshot(series("a", n1=1, n2=0), series("b", n1=1, n2=1)),
    )
    assert rejected(snapshot(cluster), "n1 n2") == {
        "n1": "telemetry policy d/pol: a Equals 1",
        "n2": "telemetry policy d/pol: b Equals 1",
    }


def test_all_of_names_every_rule() -> None:
    strategy = {"logicalOperator": "allOf", "rules": [rule("m", target=1), rule("m", "LessThan", 10)]}
    cluster = cluster_state([policy(dontschedule=strategy)], metrics_snapshot(series("m", n1=5, n2=50)))
    assert rejected(snapshot(cluster), "n1 n2") == {
        "n1": "telemetry policy d/pol: m GreaterThan 1 and m LessThan 10"
    }


class TestValuesThatAreNotThere:
    def test_a_metric_that_was_never_fetched_rejects_every_node(self) -> None:
        cluster = cluster_state([policy(dontschedule=[rule("absent", target=1)])], metrics_snapshot())
        text = "telemetry policy d/pol: metric absent was never fetched: no source has responded yet"
        assert rejected(snapshot(cluster), "n1 nX") == {"n1": text, "nX": text}

    def test_a_node_without_a_value_passes(self) -> None:
        cluster = cluster_state(
            [policy(dontschedule=[rule("m", target=1)])], metrics_snapshot(series("m", n1=5))
        )
        assert rejected(snapshot(cluster), "n1 n2 nX") == {"n1": "telemetry policy d/pol: m GreaterThan 1"}

    @pytest.mark.parametrize("by", ["option", "rule"])
    def test_or_is_rejected_where_that_is_asked_for(self, by: str) -> None:
        rules = [rule("m", target=1) if by == "option" else rule("m", target=1, when_missing="reject")]
        options = TelemetryOptions(when_missing="reject" if by == "option" else "pass")
        cluster = cluster_state([policy(dontschedule=rules)], metrics_snapshot(series("m", n1=0, n3=None)))
        text = "telemetry policy d/pol: no fresh value of m"
        assert rejected(snapshot(cluster, options), "n1 n2 n3 nX") == dict.fromkeys(("n2", "n3", "nX"), text)

    def test_the_rule_wins_over_the_option(self) -> None:
        rules = [rule("m", target=1, when_missing="pass")]
        cluster = cluster_state([policy(dontschedule=rules)], metrics_snapshot(series("m", n1=0)))
        assert rejected(snapshot(cluster, TelemetryOptions(when_missing="reject")), "n2") == {}

    def test_a_value_that_is_too_old_counts_as_missing(self) -> None:
        old = Series("m", "test", 1000.0, {"n1": Sample(5 * 10**9, 900.0), "n2": Sample(0, 1000.0)})
        cluster = cluster_state([policy(dontschedule=[rule("m", target=1)])], metrics_snapshot(old))
        assert rejected(snapshot(cluster, max_age_s=99), "n1") == {}
        assert rejected(snapshot(cluster, max_age_s=100), "n1") != {}

    def test_a_rule_may_have_its_own_max_age(self) -> None:
        cluster = cluster_state(
            [policy(dontschedule=[rule("m", target=1, max_age="5m")])],
            metrics_snapshot(series("m", at=800.0, n1=5)),
        )
        assert rejected(snapshot(cluster, max_age_s=60), "n1") != {}

    def test_a_value_of_unknown_age_is_fresh(self) -> None:
        cluster = cluster_state(
            [policy(dontschedule=[rule("m", target=1)])], metrics_snapshot(series("m", at=None, n1=5))
        )
        assert rejected(snapshot(cluster, max_age_s=1), "n1") != {}

    def test_all_of_needs_every_value(self) -> None:
        strategy = {"logicalOperator": "allOf", "rules": [rule("a", target=3), rule("b", "Equals", 7)]}
        cluster = cluster_state(
            [policy(dontschedule=strategy)], metrics_snapshot(series("a", n2=4), series("b", n1=7))
        )
        assert rejected(snapshot(cluster), "n1 n2") == {}


class TestPodsAndPolicies:
    given = snapshot(
        cluster_state([policy(dontschedule=[rule("m", target=1)])], metrics_snapshot(series("m", n1=5)))
    )

    def test_a_pod_that_names_no_policy_passes_untouched(self) -> None:
        assert rejected(self.given, of=pod(None)) is None

    def test_a_policy_that_does_not_exist_rejects_every_node(self) -> None:
        text = "nodewise: policy d/nope does not exist"
        assert rejected(self.given, "n1 n2", of=pod("nope")) == {"n1": text, "n2": text}

    def test_a_policy_of_another_namespace_does_not_exist(self) -> None:
        assert rejected(self.given, "n1", of=pod(namespace="e")) == {
            "n1": "nodewise: policy e/pol does not exist"
        }

    def test_an_empty_label_rejects_every_node(self) -> None:
        text = "nodewise: pod label telemetry-policy is empty, it must name a policy"
        assert rejected(self.given, "n1", of=pod("")) == {"n1": text}

    def test_before_policies_are_read_a_pod_that_one_may_select_is_rejected(self) -> None:
        cluster_snapshot = snapshot(cluster_state([], metrics_snapshot()))
        empty = type(cluster_snapshot)(cluster_snapshot.nodes, {}, 0.0)
        assert rejected(empty, "n1") == {"n1": "nodewise: starting, policies are not read yet"}
        assert rejected(empty, "n1", of=pod(None)) == rejected(empty, "n1")
        assert rejected(empty, of=pod(None, "kube-system")) is None

    def test_an_unknown_strategy_rejects_every_node(self) -> None:
        """The misspelt strategy may be the one that excludes nodes."""
        misspelt = policy(dontSchedule=[rule("m")], scheduleonmetric=[rule("m")])
        reason = (
            "telemetry policy d/pol: spec.strategies.dontSchedule: an unknown strategy; expected dontschedule, "
            'scheduleonmetric, deschedule, labeling; did you mean "dontschedule"?'
        )
        reasons = rejected(snapshot(cluster_state([misspelt], metrics_snapshot(series("m", n1=1)))))
        assert reasons is not None
        assert set(reasons.values()) == {reason}

    @pytest.mark.parametrize("strategy", ["dontschedule", "scheduleonmetric", "deschedule", "labeling"])
    def test_an_unknown_field_of_any_rule_rejects_every_node(self, strategy: str) -> None:
        misspelt = policy(**{strategy: [rule("m", whenMissing="reject")]})
        reasons = rejected(snapshot(cluster_state([misspelt], metrics_snapshot(series("m", n1=1)))))
        assert reasons is not None
        assert all('did you mean "when_missing"?' in reason for reason in reasons.values())

    @pytest.mark.parametrize("strategies", [{}, {"dontschedule": []}, {"scheduleonmetric": [rule("m")]}])
    def test_a_policy_that_filters_nothing_passes_untouched(self, strategies: dict[str, Any]) -> None:
        assert (
            rejected(snapshot(cluster_state([policy(**strategies)], metrics_snapshot(series("m", n1=1)))))
            is None
        )

    UNUSABLE: ClassVar[dict[str, Any]] = {
        "a target that is no quantity": [rule("m", target="warm")],
        "no metric": [{"operator": "Equals"}],
        "a rule that is no object": ["m > 3"],
        "rules that are no list": {"rules": "m"},
        "when_missing that is neither": [rule("m", when_missing="maybe")],
        "a max_age that is none": [rule("m", max_age="soon")],
    }

    @pytest.mark.parametrize("rules", UNUSABLE.values(), ids=UNUSABLE)
    def test_a_rule_that_cannot_be_evaluated_rejects_and_says_why(self, rules: Any) -> None:
        cluster_snapshot = snapshot(
            cluster_state([policy(dontschedule=rules)], metrics_snapshot(series("m", n1=1)))
        )
        reasons = rejected(cluster_snapshot, "n1")
        assert reasons is not None
        assert "spec.strategies.dontschedule.rules" in reasons["n1"]
        assert "expected" in reasons["n1"]


def test_a_label_that_is_no_name_does_not_make_the_answer_longer() -> None:
    """The response contains it once for every node."""
    reasons = rejected(
        snapshot(cluster_state([], metrics_snapshot())), "n1", pod("x" * 100_000, "y" * 100_000)
    )
    assert reasons is not None
    assert len(reasons["n1"]) < 200


def test_the_reason_of_many_rules_is_truncated() -> None:
    many = {"rules": [rule("m" * 200, target=9)] * 100, "logicalOperator": "allOf"}
    reasons = rejected(
        snapshot(cluster_state([policy(dontschedule=many)], metrics_snapshot(series("m" * 200, n1=10)))), "n1"
    )
    assert reasons is not None
    assert len(reasons["n1"]) < 600
