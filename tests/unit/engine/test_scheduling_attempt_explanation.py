"""The last attempt among decisions, and its explanation."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from nodewise.agent import Evidence, Names, Scores, Verdict
from nodewise.engine import scheduling_attempt_explanation
from nodewise.engine.decision import Decision, PodRef
from nodewise.engine.decision_json import StaticReason
from nodewise.engine.scheduling_attempt_explanation import Attempt
from tests.unit.engine.decision_notation import AT, decision, evidence, of, verdict


def call(verb: Any, at: float, names: str = "a b", uid: str = "u") -> Decision:
    return Decision(verb, PodRef("d", "p", uid), at, 1, Names.of(names.split()))


def told(*decisions: Decision, uid: str = "") -> tuple[float | None, float | None, float | None]:
    """The times of the calls of the last attempt."""
    attempt = scheduling_attempt_explanation.last_attempt(decisions, uid)
    assert attempt
    times = [decision.at if decision else None for decision in attempt]
    return times[0], times[1], times[2]


class TestAttempts:
    def test_no_decision_is_no_attempt(self) -> None:
        assert scheduling_attempt_explanation.last_attempt([]) is None
        assert scheduling_attempt_explanation.last_attempt([call("filter", 1.0)], uid="another") is None

    @pytest.mark.parametrize(
        ("calls", "expected"),
        [
            pytest.param([("filter", 1), ("prioritize", 1.1)], (1, 1.1, None), id="filter and prioritize"),
            pytest.param([("filter", 1), ("preempt", 1.1)], (1, None, 1.1), id="filter and preempt"),
            pytest.param([("filter", 1), ("filter", 300)], (300, None, None), id="the newest counts"),
            pytest.param(
                [("filter", 1), ("prioritize", 1.1), ("filter", 61)],
                (61, None, None),
                id="what belongs to an attempt before is left out",
            ),
            pytest.param(
                [("prioritize", 59.5), ("filter", 60)],
                (60, 59.5, None),
                id="two replicas whose clocks differ a little",
            ),
            pytest.param([("prioritize", 5)], (None, 5, None), id="asked for scores only"),
            pytest.param([("filter", 1), ("prioritize", 30)], (None, 30, None), id="the filter call is lost"),
        ],
    )
    def test_which_calls_are_one_attempt(self, calls: list[Any], expected: Any) -> None:
        decisions = [call(verb, at) for verb, at in calls]
        assert told(*decisions) == told(*reversed(decisions)) == expected

    def test_scores_of_nodes_that_did_not_pass_belong_to_another_attempt(self) -> None:
        assert told(call("prioritize", 59.5, names="a x"), call("filter", 60.0)) == (60.0, None, None)

    def test_a_pod_that_was_made_anew_is_another_pod(self) -> None:
        old, new = call("filter", 1.0, uid="old"), call("filter", 2.0, uid="new")
        assert told(old, new)[0] == 2.0
        assert told(old, new, uid="old")[0] == 1.0


def scored(points: dict[str, int], *rules: Evidence) -> Decision:
    names = Names.of(list(points))
    scores = Scores(np.array(list(points.values()), np.int64), rules)
    return Decision("prioritize", PodRef("d", "p", "u"), AT, 7, names, scores=(("telemetry", scores),))


class TestFindings:
    def test_passing_by_score_then_rejected_by_closeness(self) -> None:
        attempt = Attempt(decision(heat="95 70 82 60 -"), scored({"n2": 9, "n4": 10, "n5": 0}))
        findings = scheduling_attempt_explanation.explain(attempt).findings
        expected = [("n4", 10), ("n2", 9), ("n5", 0), ("n3", None), ("n1", None)]
        assert [(finding.node, finding.score) for finding in findings] == expected

    def test_fewer_broken_rules_are_closer_than_a_smaller_excess(self) -> None:
        findings = scheduling_attempt_explanation.explain(
            Attempt(decision(heat="81 99", dust="81 10"))
        ).findings
        assert [finding.node for finding in findings] == ["n2", "n1"]

    def test_without_a_value_is_farthest(self) -> None:
        rejected = of(("t", verdict(evidence("heat", "- 1000", rejects_missing=True))))
        assert [
            finding.node for finding in scheduling_attempt_explanation.explain(Attempt(rejected)).findings
        ] == ["n2", "n1"]

    def test_all_of_counts_the_nearest_of_its_rules(self) -> None:
        rules = evidence("heat", "99 95 90"), evidence("dust", "81 90 99")
        findings = scheduling_attempt_explanation.explain(
            Attempt(of(("t", verdict(*rules, joined="all"))))
        ).findings
        assert [finding.node for finding in findings] == ["n1", "n2", "n3"]

    def test_measured_rules_of_a_node(self) -> None:
        rank = replace(evidence("power", "5"), target=None)
        attempt = Attempt(decision(heat="70 85"), scored({"n1": 10}, rank))
        first, second = scheduling_attempt_explanation.explain(attempt).findings
        heat, power = first.measured
        assert (heat.value, heat.target, heat.age_s, heat.rejects) == (70 * 10**9, 80 * 10**9, 2.5, False)
        assert (power.metric, power.target, power.rejects) == ("power", None, False)
        assert [measured.rejects for measured in second.measured] == [True]

    def test_a_stale_value_is_shown_and_a_missing_one_is_not(self) -> None:
        stale, missing = (
            finding.measured[0]
            for finding in scheduling_attempt_explanation.explain(Attempt(decision(heat="9~ -"))).findings
        )
        assert (stale.value, stale.age_s) == (9 * 10**9, 2.5)
        assert (missing.value, missing.age_s) == (None, None)

    def test_before_any_answer_there_is_nothing_to_measure(self) -> None:
        rejected = of(("t", Verdict(np.ones(2, np.int16), (StaticReason("no policy", failure=True),))))
        explanation = scheduling_attempt_explanation.explain(Attempt(rejected))
        assert [finding.measured for finding in explanation.findings] == [(), ()]
        assert (explanation.changes, explanation.held) == ((), False)


class TestGroups:
    def test_nodes_with_one_reason_are_one_group(self) -> None:
        groups = scheduling_attempt_explanation.explain(
            Attempt(decision(heat="81 70 82 10", dust="1 90 2 3"))
        ).groups
        assert [(group.reason.text(), [finding.node for finding in group.nodes]) for group in groups] == [
            ("policy d/pol: heat GreaterThan 80", ["n1", "n3"]),
            ("policy d/pol: dust GreaterThan 80", ["n2"]),
        ]

    def test_of_two_agents_the_first_gives_the_reason(self) -> None:
        rejected = of(
            ("gpu", verdict(evidence("cards", "90 1"))), ("telemetry", verdict(evidence("heat", "90 90")))
        )
        groups = scheduling_attempt_explanation.explain(Attempt(rejected)).groups
        expected = {"gpu": ["n1"], "telemetry": ["n2"]}
        assert {group.agent: [finding.node for finding in group.nodes] for group in groups} == expected


def test_rejections_that_do_not_follow_from_the_values_are_held() -> None:
    rule = evidence("heat", "- 70")
    held = replace(verdict(evidence("heat", "90 70")), evidence=(rule,))
    explanation = scheduling_attempt_explanation.explain(Attempt(of(("t", held))))
    assert (explanation.held, explanation.changes) == (True, ())
