"""States of nodes under rules with hold times, and the history of flaps."""

import numpy as np
import pytest

from nodewise.agent import NodeIndex
from nodewise.policies import hysteresis
from nodewise.policies.hysteresis import BETWEEN, BROKEN, RELEASED, UNKNOWN, FlapHistory, RulePart
from nodewise.policies.placement_policy import HoldTimes

LEVELS = {"B": BROKEN, "r": RELEASED, "-": BETWEEN, "?": UNKNOWN}
PHASES = "pnRk"
"""Passing, pending, rejected and kept."""


def phases(times: HoldTimes, samples: str, interval_s: float = 30.0) -> str:
    """The phase after each sample, one letter each."""
    states = hysteresis.initial_states(1)
    shown = ""
    for number, letter in enumerate(samples):
        sample = np.array([LEVELS[letter]])
        states = hysteresis.advance(states, sample, times, 1000.0 + number * interval_s)
        shown += PHASES[states.phases[0]]
    return shown


@pytest.mark.parametrize(
    ("times", "samples", "expected"),
    [
        pytest.param(HoldTimes(), "rBBrB", "pRRpR", id="no-times"),
        pytest.param(HoldTimes(60), "BBBBr", "nnRRp", id="for"),
        pytest.param(HoldTimes(60), "BrBBB", "npnnR", id="for-starts-again"),
        pytest.param(HoldTimes(60), "BB-BB", "nnpnn", id="between-ends-pending"),
        pytest.param(HoldTimes(60), "B??B?", "nnnRR", id="unknown-changes-nothing"),
        pytest.param(HoldTimes(), "B--r-B", "RRRppR", id="release"),
        pytest.param(HoldTimes(0, 60), "Brrrr", "Rkkpp", id="keep-for"),
        pytest.param(HoldTimes(0, 60), "BrBrrr", "RkRkkp", id="keep-for-starts-again"),
        pytest.param(HoldTimes(60, 60), "BBBrBrrr", "nnRkRkkp", id="broken-while-kept-needs-no-for"),
        pytest.param(HoldTimes(0, 30), "Br???r", "Rkkkkp", id="unknown-while-kept"),
    ],
)
def test_phases(times: HoldTimes, samples: str, expected: str) -> None:
    assert phases(times, samples) == expected


def part(known: str, broken: str, held: str, *, missing_releases: bool = True) -> RulePart:
    masks = (np.array([flag == "1" for flag in text]) for text in (known, broken, held))
    return RulePart(*masks, np.array(missing_releases))


def test_levels_of_one_part() -> None:
    allows = part("1110", "1001", "1101")
    assert list(hysteresis.levels([allows])) == [BROKEN, BETWEEN, RELEASED, RELEASED]
    assert list(hysteresis.levels([allows._replace(missing_releases=False)]))[3] == UNKNOWN


def test_one_released_part_releases_the_rule_and_all_must_be_broken() -> None:
    first = part("1111", "1111", "1111")
    second = part("1110", "1000", "1100", missing_releases=False)
    assert list(hysteresis.levels([first, second])) == [BROKEN, BETWEEN, RELEASED, UNKNOWN]


def test_a_clock_that_is_set_back_starts_the_time_again() -> None:
    states = hysteresis.advance(hysteresis.initial_states(1), np.array([BROKEN]), HoldTimes(60), 5000.0)
    states = hysteresis.advance(states, np.array([BROKEN]), HoldTimes(60), 1000.0)
    assert states.since[0] == 1000.0
    assert not hysteresis.rejects(hysteresis.advance(states, np.array([BROKEN]), HoldTimes(60), 1059.0))[0]
    assert hysteresis.rejects(hysteresis.advance(states, np.array([BROKEN]), HoldTimes(60), 1060.0))[0]


def test_unchanged_states_are_the_same_object() -> None:
    states = hysteresis.initial_states(3)
    assert hysteresis.advance(states, np.full(3, RELEASED), HoldTimes(60), 1.0) is states
    states = hysteresis.advance(states, np.full(3, BROKEN), HoldTimes(60), 1.0)
    assert hysteresis.advance(states, np.full(3, BROKEN), HoldTimes(60), 2.0) is states


NODES = NodeIndex(tuple(f"n{number}" for number in range(1000)))


def test_the_history_of_a_rule_that_rejects_other_nodes_each_time_is_limited() -> None:
    """A tenant can have 128 such rules."""
    random = np.random.default_rng(1)
    history, before = FlapHistory(), np.zeros(1001, np.bool_)
    for time in range(50):
        rejected = random.random(1001) < 0.5
        history = history.update(before, rejected, NODES, 5.0 * time)
        before = rejected
    assert len(history.changes) <= 64
    assert len(history.recent(250.0)) == 100


def test_the_newest_flaps_count() -> None:
    history, passes, rejects = FlapHistory(), np.array([False, False]), np.array([True, False])
    nodes = NodeIndex(("a",))
    for time in range(130):
        history = history.update(passes, rejects, nodes, 2.0 * time)
        history = history.update(rejects, passes, nodes, 2.0 * time + 1.0)
    flaps = history.recent(260.0)
    assert [flap.at for flap in flaps] == [2.0 * time for time in range(30, 130)]
    assert {(flap.node, flap.rejected_s) for flap in flaps} == {("a", 1.0)}
