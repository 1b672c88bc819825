"""Counterfactuals: targets, missing values, and rules that must all be violated."""

import numpy as np
import pytest
from msgspec.structs import replace

from nodewise.agent import COMPARISONS, Verdict
from nodewise.base import quantity
from nodewise.engine import counterfactuals
from nodewise.engine.counterfactuals import RuleChange
from nodewise.engine.decision import Decision
from nodewise.engine.decision_json import StaticDetails, StaticReason
from tests.unit.engine.decision_notation import decision, evidence, of, policies_verdict, verdict

ROUND = [
    pytest.param("80", "84.7", "85", id="up, to a round number beyond"),
    pytest.param("80", "81", "81", id="a round number stays"),
    pytest.param("80", "81.3", "81.5", id="near is rounded finely"),
    pytest.param("80", "97", "100", id="far is rounded coarsely"),
    pytest.param("0.8", "0.83", "0.83", id="a share"),
    pytest.param("50", "42", "40", id="down, for LessThan"),
    pytest.param("0", "-3", "-3", id="below zero"),
    pytest.param("-100", "-3", "0", id="up, from below zero"),
    pytest.param("0", "1n", "1n", id="the smallest step there is"),
    pytest.param("0", "100E", "100E", id="beyond 64 bits"),
]


@pytest.mark.parametrize(("target", "value", "wanted"), ROUND)
def test_targets_are_round_numbers(target: str, value: str, wanted: str) -> None:
    assert counterfactuals.round_target(quantity.parse(target), quantity.parse(value)) == quantity.parse(
        wanted
    )


def told(change: RuleChange) -> str:
    """The relaxed targets as text: `3 at 85, 4 at 90`."""
    return ", ".join(
        f"{relaxed.more} at {quantity.nano_to_text(relaxed.target)}" for relaxed in change.relaxed
    )


@pytest.mark.parametrize(
    ("rule", "values", "wanted"),
    [
        pytest.param("GreaterThan 80", "84.7 82 70", "1 at 82, 2 at 85", id="over a threshold"),
        pytest.param("GreaterThan 80", "90 90 90", "3 at 90", id="equal values go together"),
        pytest.param(
            "GreaterThan 80", "81 1000 70", "1 at 81, 2 at 1000", id="one far off hides no near one"
        ),
        pytest.param("LessThan 10", "4 9 50", "1 at 9, 2 at 4", id="under a threshold"),
        pytest.param("GreaterThan 80", "80 79 -", "", id="nobody is rejected"),
        pytest.param("Equals 2", "2 2 1", "", id="another number would reject others"),
        pytest.param("above 80", "84.7 82 80", "1 at 82, 2 at 85", id="above"),
        pytest.param("above 80", "84.7 70", "1 at 84.7", id="the nearest that suffices is not rounded"),
        pytest.param("above 0.8", "0.834512345", "1 at 0.8346", id="but has no more digits than it needs"),
        pytest.param("below 50", "42.3 60", "1 at 42.3", id="nor is it rounded down"),
        pytest.param("atLeast 80", "85 84.7 79", "1 at 85, 2 at 86", id="at least: beyond the value"),
        pytest.param("atLeast 80", "80 80 79", "2 at 80.5", id="at least: a value at the target"),
        pytest.param("atLeast 0", "0 -1", "1 at 0.000000001", id="at least: no number is round beside zero"),
        pytest.param("below 10", "4 9 50", "1 at 9, 2 at 4", id="below"),
        pytest.param("atMost 10", "5 10 11", "1 at 9.9, 2 at 4", id="at most: beyond the value"),
        pytest.param("equals 2", "2 2 1", "", id="equals has no direction"),
        pytest.param("notEquals 2", "2 3 1", "", id="notEquals has no direction"),
    ],
)
def test_one_rule(rule: str, values: str, wanted: str) -> None:
    changes = list(counterfactuals.changes(of(("t", verdict(evidence("heat", values, rule))))))
    assert [told(change) for change in changes if change.relaxed] == ([wanted] if wanted else [])
    rejected = sum(counterfactuals.rejects(evidence("heat", values, rule)))
    assert [change.alone for change in changes] == ([rejected] if rejected else [])


def test_many_nodes_have_at_most_four_proposed_targets() -> None:
    values = " ".join(str(81 + number / 10) for number in range(500))
    (change,) = counterfactuals.changes(decision(heat=values))
    assert len(change.relaxed) == 4
    assert change.relaxed[-1].more == change.alone == 500
    assert change.relaxed[0].more >= 1


def test_only_nodes_that_no_other_rule_rejects_count() -> None:
    heat, dust = counterfactuals.changes(decision(heat="85 85 70", dust="10 90 90"))
    assert (told(heat), told(dust)) == ("1 at 85", "1 at 90")


def test_only_nodes_that_no_other_agent_rejects_count() -> None:
    rejected = of(
        ("gpu", verdict(evidence("cards", "90 1"))), ("telemetry", verdict(evidence("heat", "85 85")))
    )
    texts = {change.agent: told(change) for change in counterfactuals.changes(rejected)}
    assert texts == {"telemetry": "1 at 85"}


def test_rules_that_must_all_be_broken_are_each_enough() -> None:
    rules = evidence("heat", "85 99 70"), evidence("dust", "90 82 90")
    heat, dust = counterfactuals.changes(of(("t", verdict(*rules, joined="all"))))
    assert heat.enough
    assert dust.enough
    assert (told(heat), told(dust)) == ("1 at 85, 2 at 100", "1 at 82, 2 at 90")


def test_nodes_without_a_value_are_no_matter_of_a_threshold() -> None:
    (change,) = counterfactuals.changes(
        of(("t", verdict(evidence("heat", "- ! 9~ 85", rejects_missing=True))))
    )
    assert (change.alone, change.unmeasured, told(change)) == (1, 3, "1 at 85")


@pytest.mark.parametrize("joined", ["any", None])
def test_no_counterfactuals_without_a_rule_that_decides(joined: None) -> None:
    held = replace(verdict(evidence("heat", "90 70")), evidence=(evidence("heat", "- 70"),), joined=joined)
    assert list(counterfactuals.changes(of(("t", held)))) == []


def test_a_change_names_the_rule_that_it_is_about() -> None:
    rejected = decision(heat="85 70", dust="1 90")
    for change in counterfactuals.changes(rejected):
        rule = replace(change.rule, target=change.relaxed[-1].target)
        passing = counterfactuals.feasible_with_changed_rule(rejected, change.agent, change.number, rule)
        assert int((passing & ~rejected.feasible()).sum()) == change.relaxed[-1].more


def test_an_unknown_operator_rejects_no_node() -> None:
    rule = replace(evidence("heat", "85 70"), operator="Above")
    assert not counterfactuals.rejects(rule).any()
    assert not counterfactuals.rejects(counterfactuals.rule_without_effect(rule)).any()


@pytest.mark.parametrize("operator", COMPARISONS)
def test_a_rule_without_effect_rejects_only_missing_values(operator: str) -> None:
    rule = evidence("heat", "85 80 70 -5 -", f"{operator} 80", rejects_missing=True)
    assert counterfactuals.rejects(counterfactuals.rule_without_effect(rule)).tolist() == [False] * 4 + [True]


def test_details_say_how_far_a_node_is_from_passing() -> None:
    details = StaticDetails(["", "lacks 1", "lacks 3"], np.array([1.0, 0.25, 0.75]))
    rejected = of(("gpu", Verdict(np.array([0, 1, 1], np.int16), (StaticReason("full"),), details=details)))
    assert counterfactuals.distance_from_passing(rejected).tolist() == [0.0, 1.25, 1.75]


def test_rules_of_a_group_reject_together() -> None:
    rules = [
        evidence("heat", "85 85 70 70", "above 80"),
        evidence("load", "1 9 9 9", "atLeast 9", group=0),
        evidence("dust", "1 9 9 1", "above 5", group=0),
    ]
    rejected = of(("t", policies_verdict((COOL, rules))))
    assert rejected.feasible().tolist() == [False, False, False, True]
    changes = {change.rule.metric: change for change in counterfactuals.changes(rejected)}
    expected = {"heat": ("1 at 85", False), "load": ("1 at 9.05", True), "dust": ("1 at 9", True)}
    assert {metric: (told(change), change.enough) for metric, change in changes.items()} == expected
    # n1 breaks a rule alone, n2 that one and the group, n3 the group
    assert counterfactuals.distance_from_passing(rejected).astype(int).tolist() == [1, 2, 1, 0]
    assert counterfactuals.stuck(rejected).tolist() == [False, True, False, False]


def test_groups_of_two_policies_are_different() -> None:
    rules = [evidence("heat", "85 70", "above 80", group=0)]
    others = [evidence("dust", "1 90", "above 80", group=0)]
    rejected = of(("t", policies_verdict((COOL, rules), (WIDE, others))))
    assert not rejected.feasible().any()
    expected = [("heat", False), ("dust", False)]
    assert [(change.rule.metric, change.enough) for change in counterfactuals.changes(rejected)] == expected


COOL, WIDE = "placement policy web/cool", "cluster placement policy wide"


def removals(decision_: Decision) -> list[tuple[str, int, int]]:
    """By policy: the nodes that it rejects, and those that would pass without it."""
    return [
        (removal.policy, removal.rejected, removal.more)
        for removal in counterfactuals.policy_removals(decision_)
    ]


def test_nodes_that_pass_without_a_policy() -> None:
    heat, dust = evidence("heat", "85 85 70 85"), evidence("dust", "1 90 90 90")
    both = policies_verdict((COOL, [heat]), (WIDE, [dust]))
    assert removals(of(("t", both))) == [(COOL, 3, 1), (WIDE, 3, 1)]
    gpu = verdict(evidence("cards", "90 1 1 1"))
    assert removals(of(("gpu", gpu), ("t", both))) == [(COOL, 3, 0), (WIDE, 3, 1)]


def test_a_policy_that_cannot_be_evaluated_hides_no_change_of_another() -> None:
    heat, dust = evidence("heat", "85 85 70"), evidence("dust", "- - -")
    both = policies_verdict((COOL, [heat]), (WIDE, [dust]))
    cool, wide = both.policies
    fails = np.array([True, False, False])
    changed = replace(
        both, codes=np.array([2, 1, 0], np.int16), policies=(cool, replace(wide, rejected=fails, joined=None))
    )
    (change,) = counterfactuals.changes(of(("t", changed)))
    assert (change.rule.metric, told(change)) == ("heat", "1 at 85")
    assert not counterfactuals.is_held(changed)
    assert counterfactuals.is_held(
        replace(changed, policies=(cool, replace(wide, rejected=fails, joined="any")))
    )
    assert removals(of(("t", changed))) == [(COOL, 2, 1), (WIDE, 1, 0)]
