"""What counts as a change for `nodewise explain --watch`."""

import numpy as np
import pytest

from nodewise.agent import Verdict
from nodewise.cli.explain.explanation import PodExplanation, VisibleState, comparable_answer
from nodewise.cli.explain.pod_state import PodReadResult, SelectingPolicy
from nodewise.engine.decision_json import StaticDetails, StaticReason
from tests.unit.cli.test_explain_output import WAITS, create_explanation
from tests.unit.engine.decision_notation import AT, of


def answer(text: str, *, rejected: bool = False) -> object:
    """What counts of an attempt at one node with these details."""
    details = StaticDetails([text], np.zeros(1))
    verdict = Verdict(np.array([rejected], np.int16), (StaticReason("policy d/pol: heat"),), details=details)
    return comparable_answer(create_explanation(of(("telemetry", verdict))))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("heat above 80: broken for 950ms of 2m", "heat above 80: broken for 1m59s of 2m"),
        ("heat above 80: rejected for 9m59s", "heat above 80: rejected for 1h10m"),
        ("heat above 80: no longer broken for 1s of 10m", "heat above 80: no longer broken for 2s of 10m"),
        ("cpu 62 % ± 10 %, risk 0.03 %", "cpu 61.5 % ± 9.21 %, risk 1.2e-05 %"),
        ("type web: reward 0.81 after 12 tries", "type web: reward -0.2 after 1,300 tries"),
        ("card0 has 3G left, 5G wanted", "card0 has 4G left, 5G wanted"),
    ],
)
def test_time_that_passes_and_values_are_no_change(before: str, after: str) -> None:
    assert answer(before) == answer(after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "heat above 80: broken for 0ms of 2m"),
        ("heat above 80: broken for 2m of 2m", "heat above 80: rejected for 0ms"),
        ("heat above 80: rejected for 5m", "heat above 80: no longer broken for 0ms of 10m"),
        ("heat above 80: rejected for 5m", "heat above 80: rejected for 5m; power above 9: rejected for 0ms"),
        ("train: card0", "train: card1"),
        ("train: card0 gt0", "train: card0 gt1"),
    ],
)
def test_another_state_of_a_node_is_a_change(before: str, after: str) -> None:
    assert answer(before) != answer(after)


def test_another_verdict_is_a_change() -> None:
    assert answer("same", rejected=True) != answer("same")


def with_status(line: str, visible: VisibleState | None) -> PodExplanation:
    """The explanation of a pod with a policy that has this status."""
    policy = SelectingPolicy("placement policy d/pol", "2026-11-21T09:00:00Z", "", (line,))
    return PodExplanation("d/p", PodReadResult(WAITS, policies=(policy,)), (), None, AT, visible)


@pytest.mark.parametrize("visible", [None, VisibleState((), "", "no right")])
def test_the_status_of_policies_counts_where_it_is_shown(visible: VisibleState | None) -> None:
    answers = [comparable_answer(with_status(f"1 heat above 80: {n} nodes met", visible)) for n in (3, 4)]
    assert (answers[0] != answers[1]) == (visible is not None)
