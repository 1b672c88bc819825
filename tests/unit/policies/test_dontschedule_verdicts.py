"""Verdicts of `dontschedule`: the table of the specification (section 29.4) and further cases."""

import weakref
from typing import Any

import pytest

from nodewise.engine.decision import Decision, DecisionRing, PodRef
from nodewise.metrics.series import Sample, Series
from nodewise.policies.agent import TelemetryAgent
from nodewise.policies.options import TelemetryOptions
from tests.unit.policies.policy_snapshot_builders import (
    candidates,
    cluster_state,
    metrics_snapshot,
    pod,
    policy,
    rejected,
    rule,
    series,
    snapshot,
)

POL = "telemetry policy d/pol: "
REJECT = TelemetryOptions(when_missing="reject")


def values(text: str) -> list[Series]:
    """Metrics with values of nodes: `m n1=5 n2=-; k n1=1`. `-` is a value that cannot be read."""
    metrics = [part.split() for part in text.split(";") if part]
    return [
        series(
            name,
            **{node: None if value == "-" else value for node, value in (each.split("=") for each in nodes)},
        )
        for name, *nodes in metrics
    ]


def verdict(
    rules: Any, metrics: str | Series, names: str = "n1 n2 n3", logical: str | None = None, **more: Any
) -> dict[str, str]:
    """The rejected nodes with their reasons, without the part that names the policy."""
    strategy = {"rules": rules} | ({} if logical is None else {"logicalOperator": logical})
    listed = values(metrics) if isinstance(metrics, str) else [metrics]
    cluster = cluster_state([policy(dontschedule=strategy)], metrics_snapshot(*listed))
    reasons = rejected(snapshot(cluster, **more), names)
    assert reasons is not None
    return {node: reason.removeprefix(POL) for node, reason in reasons.items()}


VIOLATIONS = {
    "one rule, broken": ([rule("memory", target=9)], True, True),
    "one rule, kept": ([rule("memory", target=11)], False, False),
    "first of two broken": ([rule("memory", target=9), rule("cpu", target=900)], True, False),
    "none of two broken": ([rule("memory", target=90), rule("cpu", target=900)], False, False),
    "both broken": ([rule("memory", target=9), rule("cpu", target=90)], True, True),
}


@pytest.mark.parametrize(("rules", "any_of", "all_of"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_any_of_and_all_of(rules: list[Any], any_of: bool, all_of: bool) -> None:
    operators = (None, "", "anyOf", "ALLOF", "allOf")
    broken = [bool(verdict(rules, "memory n1=10; cpu n1=200", "n1", operator)) for operator in operators]
    assert broken == [any_of] * 4 + [all_of]


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
    assert bool(verdict([rule("m", operator, target)], f"m n1={value}", "n1")) is expected


HIGH = "m GreaterThan 1"
ABOVE_1 = [rule("m", target=1)]
STRICT = [rule("m", target=1, when_missing="reject")]
LAX = [rule("m", target=1, when_missing="pass")]
PATIENT = [rule("m", target=1, max_age="5m")]
SHARE = [rule("m", target="0.8")]
RANGE = [rule("m", target=1), rule("m", "LessThan", 10)]
TWO = [rule("a", "Equals", 1), rule("b", "Equals", 1)]
OLD = Series("m", "test", 1000.0, {"n1": Sample(5 * 10**9, 900.0), "n2": Sample(0, 1000.0)})
AT_800, TIMELESS = series("m", at=800.0, n1=5), series("m", at=None, n1=5)
NEVER = "metric m was never fetched: no source has responded yet"
MISSING = dict.fromkeys(("n2", "n3", "nX"), "no fresh value of m")
FOUR = {"names": "n1 n2 n3 nX"}
REASONS: dict[str, tuple[Any, str | Series, dict[str, Any], dict[str, str]]] = {
    "threshold as written": (SHARE, "m n1=1 n2=2 n3=0", {}, dict.fromkeys(("n1", "n2"), "m GreaterThan 0.8")),
    "first broken rule": (TWO, "a n1=1 n2=0; b n1=1 n2=1", {}, {"n1": "a Equals 1", "n2": "b Equals 1"}),
    "all of": (RANGE, "m n1=5 n2=50", {"logical": "allOf"}, {"n1": f"{HIGH} and m LessThan 10"}),
    "all of needs every value": (TWO, "a n2=1; b n1=1", {"logical": "allOf"}, {}),
    "never fetched": (ABOVE_1, "", {"names": "n1 nX"}, {"n1": NEVER, "nX": NEVER}),
    "missing passes": (ABOVE_1, "m n1=5", {"names": "n1 n2 nX"}, {"n1": HIGH}),
    "missing, rejected by option": (ABOVE_1, "m n1=0 n3=-", {**FOUR, "options": REJECT}, MISSING),
    "missing, rejected by rule": (STRICT, "m n1=0 n3=-", FOUR, MISSING),
    "missing, passes by rule": (LAX, "m n1=0", {"options": REJECT}, {}),
    "too old": (ABOVE_1, OLD, {"max_age_s": 99}, {}),
    "not too old": (ABOVE_1, OLD, {"max_age_s": 100}, {"n1": HIGH}),
    "age of the rule": (PATIENT, AT_800, {"max_age_s": 60}, {"n1": HIGH}),
    "unknown age is fresh": (ABOVE_1, TIMELESS, {"max_age_s": 1}, {"n1": HIGH}),
}


@pytest.mark.parametrize(("rules", "metrics", "more", "expected"), REASONS.values(), ids=REASONS)
def test_reasons(rules: Any, metrics: str | Series, more: dict[str, Any], expected: dict[str, str]) -> None:
    assert verdict(rules, metrics, **more) == expected


GIVEN = snapshot(cluster_state([policy(dontschedule=ABOVE_1)], metrics_snapshot(series("m", n1=5))))


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        (pod(None), None),
        (pod("nope"), "nodewise: policy d/nope does not exist"),
        (pod(namespace="e"), "nodewise: policy e/pol does not exist"),
        (pod(""), "nodewise: pod label telemetry-policy is empty, it must name a policy"),
    ],
    ids=["no policy", "an absent policy", "a policy of another namespace", "an empty label"],
)
def test_pod_that_names(of: Any, reason: str | None) -> None:
    assert rejected(GIVEN, "n1 n2", of=of) == (None if reason is None else {"n1": reason, "n2": reason})


def test_before_policies_are_read_a_pod_that_one_may_select_is_rejected() -> None:
    empty = type(GIVEN)(GIVEN.nodes, {}, 0.0)
    assert rejected(empty, "n1") == {"n1": "nodewise: starting, policies are not read yet"}
    assert rejected(empty, "n1", of=pod(None)) == rejected(empty, "n1")
    assert rejected(empty, of=pod(None, "kube-system")) is None


def reasons_of(**strategies: Any) -> dict[str, str] | None:
    return rejected(snapshot(cluster_state([policy(**strategies)], metrics_snapshot(series("m", n1=1)))))


def test_an_unknown_strategy_rejects_every_node() -> None:
    """The misspelt strategy may be the one that excludes nodes."""
    reason = (
        f"{POL}spec.strategies.dontSchedule: an unknown strategy; expected dontschedule, "
        'scheduleonmetric, deschedule, labeling; did you mean "dontschedule"?'
    )
    reasons = reasons_of(dontSchedule=[rule("m")], scheduleonmetric=[rule("m")])
    assert reasons == dict.fromkeys(("n1", "n2", "n3"), reason)


@pytest.mark.parametrize("strategy", ["dontschedule", "scheduleonmetric", "deschedule", "labeling"])
def test_an_unknown_field_of_any_rule_rejects_every_node(strategy: str) -> None:
    reasons = reasons_of(**{strategy: [rule("m", whenMissing="reject")]}) or {}
    assert len(reasons) == 3
    assert all('did you mean "when_missing"?' in reason for reason in reasons.values())


@pytest.mark.parametrize("strategies", [{}, {"dontschedule": []}, {"scheduleonmetric": [rule("m")]}])
def test_a_policy_that_filters_nothing_passes_untouched(strategies: dict[str, Any]) -> None:
    assert reasons_of(**strategies) is None


UNUSABLE: dict[str, Any] = {
    "a target that is no quantity": [rule("m", target="warm")],
    "no metric": [{"operator": "Equals"}],
    "a rule that is no object": ["m > 3"],
    "rules that are no list": {"rules": "m"},
    "when_missing that is neither": [rule("m", when_missing="maybe")],
    "a max_age that is none": [rule("m", max_age="soon")],
}


@pytest.mark.parametrize("rules", UNUSABLE.values(), ids=UNUSABLE)
def test_a_rule_that_cannot_be_evaluated_rejects_with_the_problem(rules: Any) -> None:
    reason = (reasons_of(dontschedule=rules) or {})["n1"]
    assert "spec.strategies.dontschedule.rules" in reason
    assert "expected" in reason


def test_reasons_are_short() -> None:
    """The response contains them once for every node."""
    nothing = snapshot(cluster_state([], metrics_snapshot()))
    assert len((rejected(nothing, "n1", pod("x" * 100_000, "y" * 100_000)) or {})["n1"]) < 200
    many = [rule("m" * 200, target=9)] * 100
    assert len(verdict(many, f"{'m' * 200} n1=10", logical="allOf")["n1"]) < 600


def test_stored_decision_does_not_keep_the_snapshot() -> None:
    cluster = cluster_state([policy(dontschedule=[rule("m", target=4)])], metrics_snapshot(series("m", n1=5)))
    cluster_snapshot = snapshot(cluster)
    [state] = cluster_snapshot.agent_states["telemetry"].policies.values()
    of_all_nodes = weakref.ref(state.filter_rules[0].inputs.states)
    names = candidates(cluster_snapshot, "n1 n2")
    result = TelemetryAgent().filter(pod(), names, cluster_snapshot)
    assert result is not None
    decision = Decision("filter", PodRef("d", "p"), 1.0, 1, names, verdicts=(("telemetry", result),))
    del cluster, cluster_snapshot, state, result
    DecisionRing().add(decision)
    assert of_all_nodes() is None
    assert [rule.values.tolist()[0] for rule in decision.evidence()] == [5_000_000_000]
