"""Laws of `for`, `release` and `keepFor`, for any sequence of samples of one node."""

from itertools import accumulate
from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nodewise.policies import hysteresis
from nodewise.policies.hysteresis import NodeStates, RulePart
from nodewise.policies.placement_policy import HoldTimes

TARGET = 80
Sample = tuple[float, int | None]
"""Time, and the value; None for a missing one."""

TIMES = st.builds(HoldTimes, st.sampled_from([0.0, 30.0, 60.0]), st.sampled_from([0.0, 30.0, 60.0]))
RELEASES = st.sampled_from([80, 75])
INTERVALS = st.lists(st.sampled_from([0.5, 5.0, 14.9, 30.0, 45.25]), max_size=40)
VALUES = st.sampled_from([85, 85, 85, 78, 70, 70, None])


class Rule(NamedTuple):
    times: HoldTimes
    release: int
    missing_releases: bool

    def part(self, value: int | None) -> RulePart:
        number = -1 if value is None else value
        flags = (value is not None, number > TARGET, number > self.release)
        known, broken, held = (np.array([flag]) for flag in flags)
        return RulePart(known, broken, held, np.array([self.missing_releases]))

    def level(self, value: int | None) -> int:
        return int(hysteresis.levels([self.part(value)])[0])

    def replay(self, samples: list[Sample], states: NodeStates | None = None) -> list[NodeStates]:
        history = []
        states = states or hysteresis.initial_states(1)
        for now, value in samples:
            states = hysteresis.advance(states, hysteresis.levels([self.part(value)]), self.times, now)
            history.append(states)
        return history


RULES = st.builds(Rule, TIMES, RELEASES, st.booleans())


@st.composite
def samples(draw: st.DrawFn) -> list[Sample]:
    times = accumulate(draw(INTERVALS), initial=1_700_000_000.0)
    return [(now, draw(VALUES)) for now in times]


def rejections(rule: Rule, sequence: list[Sample]) -> list[bool]:
    return [bool(hysteresis.rejects(states)[0]) for states in rule.replay(sequence)]


@given(RULES, samples())
def test_no_node_is_rejected_before_it_broke_the_rule_for_the_whole_time(
    rule: Rule, sequence: list[Sample]
) -> None:
    rejected = rejections(rule, sequence)
    for position, (now, value) in enumerate(sequence):
        if not rejected[position] or (position and rejected[position - 1]):
            continue
        assert rule.level(value) == hysteresis.BROKEN
        run = sequence[: position + 1]
        for start in range(position, -1, -1):
            if rule.level(run[start][1]) not in (hysteresis.BROKEN, hysteresis.UNKNOWN):
                run = run[start + 1 :]
                break
        first_broken = next(time for time, past in run if rule.level(past) == hysteresis.BROKEN)
        assert now - first_broken >= rule.times.for_s


@given(RULES, samples())
def test_no_node_passes_before_it_is_released_for_the_whole_time(rule: Rule, sequence: list[Sample]) -> None:
    rejected = rejections(rule, sequence)
    for position in range(1, len(sequence)):
        if rejected[position] or not rejected[position - 1]:
            continue
        now, value = sequence[position]
        assert rule.level(value) == hysteresis.RELEASED
        last_broken = max(time for time, past in sequence[:position] if rule.level(past) == hysteresis.BROKEN)
        assert now - last_broken >= rule.times.keep_for_s


@given(RULES, samples())
def test_a_node_that_breaks_the_rule_all_the_time_is_rejected_at_the_first_sample_after_the_time(
    rule: Rule, sequence: list[Sample]
) -> None:
    begun = sequence[0][0]
    rejected = rejections(rule, [(now, 85) for now, _ in sequence])
    # starts are rounded up to whole seconds
    late = [
        flag for flag, (now, _) in zip(rejected, sequence, strict=True) if now - begun >= rule.times.for_s + 1
    ]
    assert all(late)


@given(RULES, samples(), st.integers(0, 40))
def test_states_of_the_same_samples_are_the_same_after_a_restart(
    rule: Rule, sequence: list[Sample], restart: int
) -> None:
    whole = rule.replay(sequence)
    first = rule.replay(sequence[:restart])
    stored = NodeStates(first[-1].phases.copy(), first[-1].since.copy()) if first else None
    resumed = first + rule.replay(sequence[restart:], stored)
    assert [(list(s.phases), list(s.since)) for s in whole] == [
        (list(s.phases), list(s.since)) for s in resumed
    ]


@given(samples(), st.booleans())
def test_without_times_and_release_the_verdict_is_that_of_the_last_known_value(
    sequence: list[Sample], missing_releases: bool
) -> None:
    rule = Rule(HoldTimes(), TARGET, missing_releases)
    expected, last = [], False
    for _, value in sequence:
        if value is not None:
            last = value > TARGET
        elif missing_releases:
            last = False
        expected.append(last)
    assert rejections(rule, sequence) == expected
