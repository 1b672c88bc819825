"""Laws of the learned agent: it finds the better of two nodes, notices recovery, and counts each pod once."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewise_scorers.learned import LearnedOptions, pod_types_and_outcomes
from nodewise_scorers.learned.agent import LearnedStateBuilder
from nodewise_scorers.learned.pod_type_rewards import LearningRule, RewardEstimate
from nodewise_scorers.learned.pod_types_and_outcomes import ObservedPod
from scorers_tests.unit.learned.pod_histories import (
    START,
    PodHistory,
    end,
    pod,
    running,
    stamp,
    terminated,
    waiting,
)

PODS = 400
PERIOD_S = 60.0
GREEDY = LearnedOptions()
EXPLORING = LearnedOptions(learned_prior=0.5, learned_exploration=0.3)


class Simulation:
    """Places one pod per minute on the node with the best score, or on a random one of those with the same score.

    Each pod starts, and then fails with the probability of its node.
    """

    def __init__(self, options: LearnedOptions, seed: int) -> None:
        self.random = random.Random(seed)
        self.history = PodHistory(options, nodes=2)
        self.history.update()

    def run(self, pods: int, failing: tuple[float, float]) -> list[int]:
        """The node number of each pod."""
        return [self._place(failing) for _ in range(pods)]

    def _place(self, failing: tuple[float, float]) -> int:
        scores = self.history.points()
        node = self.random.choice([at for at, score in enumerate(scores) if score == max(scores)])
        name, place = f"p{self.history.now:.0f}", f"n{node + 1}"
        self.history.update(pod(name, place, running()), after_s=PERIOD_S / 2)
        if self.random.random() < failing[node]:
            self.history.update(pod(name, place, terminated(), phase="Failed"), after_s=PERIOD_S / 2)
        else:
            self.history.update(after_s=PERIOD_S / 2)
        self.history.forget_pod(name)
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
    """How many of the last 200 pods run on a node where most pods failed before and none fails now."""
    simulated = Simulation(options, seed)
    simulated.run(PODS, failing=(0.9, 0.3))
    return simulated.run(2 * PODS, failing=(0.0, 0.3))[-PODS // 2 :].count(0)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=40), st.floats(0, 1), st.floats(0, 1e5))
def test_rewards_stay_between_0_and_1_and_a_failure_never_raises_one(
    rewards: list[float], prior: float, half_life_s: float
) -> None:
    rule = LearningRule(prior, half_life_s)
    pair: RewardEstimate | None = None
    for number, reward in enumerate(rewards):
        before = prior if pair is None else pair.reward
        pair = rule.update(pair, reward, 1, START)
        assert 0 <= pair.reward <= 1
        assert reward != 0.0 or pair.reward <= before
        assert reward != 1.0 or pair.reward >= before
        assert pair.tried == number + 1
        assert pair.recent <= pair.tried + 1e-9


class _Kubelet:
    """The states of a container as the kubelet reports them."""

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
            outcome = pod_types_and_outcomes.outcome_between(before, after, 600.0)
            assert outcome is None or outcome.reward < 1
            counted += outcome.times if outcome else 0
            before = after
    assert counted == ends


TIMES = st.none() | st.text(max_size=30) | st.integers(0, 10**6).map(stamp)
ENDS = st.fixed_dictionaries({}, optional={"startedAt": TIMES, "finishedAt": TIMES})
STATES = st.fixed_dictionaries(
    {}, optional={"running": st.just({}) | st.none(), "terminated": ENDS | st.none()}
)
CONTAINERS = st.fixed_dictionaries(
    {},
    optional={
        "state": STATES | st.none(),
        "lastState": STATES | st.none(),
        "restartCount": st.integers(-(2**31), 2**31),
    },
)
ODD_PODS = st.builds(
    lambda phase, containers: pod("p", "n1", *containers, phase=phase),
    st.sampled_from(["Running", "Failed", "Unknown", "Pending", "Succeeded", "", "?"]),
    st.lists(CONTAINERS, max_size=3),
)


@given(st.none() | ODD_PODS, ODD_PODS, st.floats(0, 1e9))
def test_whatever_a_status_says_there_is_a_reward_or_none(
    before: ObservedPod | None, after: ObservedPod, until_s: float
) -> None:
    for outcome in (
        pod_types_and_outcomes.outcome_between(before, after, 600.0),
        pod_types_and_outcomes.outcome_since(after, START + until_s, 600.0),
    ):
        assert outcome is None or (outcome.reward in {0.0, 0.5, 1.0} and 1 <= outcome.times <= 10)
    assert pod_types_and_outcomes.outcome_between(after, after, 600.0) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=25), st.integers(0, 25))
def test_a_restart_loses_nothing_and_counts_nothing_twice(steps: list[tuple[int, bool]], stop: int) -> None:
    """Pods start or fail on four nodes. One process watches all of them, the other one restarts in between."""
    whole, history = PodHistory(nodes=4), PodHistory(nodes=4)
    whole.update()
    history.update()
    for number, (node, fails) in enumerate(steps):
        at_s = whole.now + 1 - START
        status = terminated(at_s, at_s) if fails else running(at_s=at_s)
        changed_pod = pod(f"p{number}", f"n{node + 1}", status, phase="Failed" if fails else "Running")
        if number == stop:  # a restart; the new process learns of this pod by its first list
            text = history.state.keep(None)
            history.state = LearnedStateBuilder(history.options)
            if text is not None:
                history.state.recall(text)
            else:
                history.update()
        whole.update(changed_pod, after_s=2)
        history.update(changed_pod, after_s=2)
    assert [history.numbers(node) for node in range(4)] == [whole.numbers(node) for node in range(4)]
