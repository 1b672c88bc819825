"""What holds for the learned agent: it finds the better of two nodes, sees one that heals, and counts nothing twice."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewise.agents.learned import outcomes
from nodewise.agents.learned.options import LearnedOptions
from nodewise.agents.learned.rewards import Pair, Rule
from tests.unit.agents.learned.lives import START, Life, end, pod, running, terminated, waiting

PODS = 400
PERIOD_S = 60.0
GREEDY = LearnedOptions()
EXPLORING = LearnedOptions(learned_prior=0.5, learned_exploration=0.3)


class Simulation:
    """A pod a minute goes to the node with the best score; among equals chance decides, as in kube-scheduler.

    Each starts, and then fails with the probability of its node.
    """

    def __init__(self, options: LearnedOptions, seed: int) -> None:
        self.random = random.Random(seed)
        self.life = Life(options, nodes=2)
        self.life.tell()

    def run(self, pods: int, failing: tuple[float, float]) -> list[int]:
        """By pod: the node where it went."""
        return [self._place(failing) for _ in range(pods)]

    def _place(self, failing: tuple[float, float]) -> int:
        scores = self.life.points()
        node = self.random.choice([at for at, score in enumerate(scores) if score == max(scores)])
        name, place = f"p{self.life.now:.0f}", f"n{node + 1}"
        self.life.tell(pod(name, place, running()), after_s=PERIOD_S / 2)
        if self.random.random() < failing[node]:
            self.life.tell(pod(name, place, terminated(), phase="Failed"), after_s=PERIOD_S / 2)
        else:
            self.life.tell(after_s=PERIOD_S / 2)
        self.life.forget_pod(name)
        return node


@pytest.mark.parametrize("options", [GREEDY, EXPLORING], ids=["greedy", "exploring"])
@pytest.mark.parametrize("seed", range(5))
def test_pods_come_to_go_to_the_better_of_two_nodes(options: LearnedOptions, seed: int) -> None:
    went = Simulation(options, seed).run(PODS, failing=(0.7, 0.05))
    assert went[PODS // 2 :].count(1) > 0.9 * PODS / 2


@pytest.mark.parametrize("options", [GREEDY, EXPLORING], ids=["greedy", "exploring"])
@pytest.mark.parametrize("seed", range(5))
def test_a_node_that_heals_is_found_again(options: LearnedOptions, seed: int) -> None:
    assert _healed(options, seed) > 0.9 * PODS / 2


def test_where_nothing_fades_it_may_be_avoided_for_ever() -> None:
    assert _healed(LearnedOptions(learned_half_life_s=0.0), seed=2) == 0


def _healed(options: LearnedOptions, seed: int) -> int:
    """How many of the last 200 pods go to a node that failed most and now fails never."""
    simulated = Simulation(options, seed)
    simulated.run(PODS, failing=(0.9, 0.3))
    return simulated.run(2 * PODS, failing=(0.0, 0.3))[-PODS // 2 :].count(0)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=40), st.floats(0, 1), st.floats(0, 1e5))
def test_rewards_stay_between_0_and_1_and_a_failure_never_raises_one(
    rewards: list[float], prior: float, half_life_s: float
) -> None:
    rule = Rule(prior, half_life_s)
    pair: Pair | None = None
    for number, reward in enumerate(rewards):
        before = prior if pair is None else pair.reward
        pair = rule.taught(pair, reward, 1, START)
        assert 0 <= pair.reward <= 1
        assert reward != 0.0 or pair.reward <= before
        assert reward != 1.0 or pair.reward >= before
        assert pair.tried == number + 1
        assert pair.recent <= pair.tried + 1e-9


class _Kubelet:
    """One container's life as the kubelet tells it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.restarts = 0
        self.last: dict[str, Any] | None = None
        self.began = 0.0
        self.is_up = True
        self.told = running()

    def end(self) -> None:
        if self.is_up:
            self.now += 10
            self.told = terminated(self.began, self.now, self.restarts, self.last)
            self.last = end(self.began, self.now)
            self.is_up = False

    def wait(self) -> None:
        if not self.is_up:
            self.told = waiting(self.restarts, self.last)

    def start(self) -> None:
        if not self.is_up:
            self.now += 10
            self.began = self.now
            self.restarts += 1
            self.told = running(self.restarts, self.last, self.now)
            self.is_up = True


STEPS: dict[str, Callable[[_Kubelet], None]] = {
    "end": _Kubelet.end,
    "wait": _Kubelet.wait,
    "start": _Kubelet.start,
}


@given(st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.booleans()), max_size=30))
def test_every_end_of_a_container_counts_once_however_many_steps_are_seen(
    steps: list[tuple[str, bool]],
) -> None:
    kubelet, counted, ends = _Kubelet(), 0, 0
    before = pod("p", "n1", kubelet.told)
    for step, is_seen in [*steps, ("wait", True)]:
        was_up = kubelet.is_up
        STEPS[step](kubelet)
        ends += was_up and not kubelet.is_up
        if is_seen:
            after = pod("p", "n1", kubelet.told)
            found = outcomes.between(before, after, 600.0)
            assert found is None or found.reward < 1
            counted += found.times if found else 0
            before = after
    assert counted == ends
