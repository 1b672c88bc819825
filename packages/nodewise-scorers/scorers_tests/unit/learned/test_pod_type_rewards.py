"""Stored rewards: their form, their limits, and invalid ones."""

import msgspec
import pytest

from nodewise.agent import NodeIndex
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import BadInput
from nodewise_scorers.learned import LearnedOptions
from nodewise_scorers.learned import pod_type_rewards as memories
from nodewise_scorers.learned.pod_type_rewards import LearningRule, RewardEstimate, RewardMemory
from scorers_tests.unit.learned.pod_histories import (
    NEVER_FADES,
    START,
    PodHistory,
    end,
    pod,
    running,
    terminated,
    waiting,
)


def stored_rewards(types: dict[str, dict[str, list[float]]], until: float = START) -> bytes:
    return msgspec.json.encode({"version": 1, "until": until, "types": types})


def estimates(history: PodHistory) -> list[tuple[float, int]]:
    return [(history.reward(node), history.numbers(node)["tried"]) for node in range(len(history.index))]


def restart(history: PodHistory, text: bytes | None) -> PodHistory:
    """Start a new process with the same pods."""
    other = PodHistory(history.options, now=history.now)
    other.pods = history.pods
    if text is not None:
        other.state.recall(text)
    return other


def store(history: PodHistory, before: bytes | None = None) -> bytes:
    text = history.state.keep(before)
    assert text is not None
    history.state.recall(text)
    return text


def test_the_state_is_one_that_remembers() -> None:
    history = PodHistory()
    assert history.state.memory_scope == "leader"


class TestRestart:
    def history(self) -> PodHistory:
        history = PodHistory()
        history.update()
        history.update(pod("a", "n1", phase="Failed"), pod("b", "n2", running()))
        return history

    def test_nothing_is_lost(self) -> None:
        history = self.history()
        other = restart(history, store(history))
        other.update()
        assert estimates(other) == estimates(history) == [(0.9, 1), (1.0, 1), (1.0, 0)]

    def test_nothing_is_learned_twice(self) -> None:
        history = self.history()
        text = store(history)
        for _ in range(3):
            history = restart(history, text)
            history.update(after_s=10)
            history.update(after_s=10)
        assert estimates(history) == [(0.9, 1), (1.0, 1), (1.0, 0)]

    def test_outcomes_since_the_stored_time_are_learned(self) -> None:
        history = self.history()
        text = store(history)
        other = restart(history, text)
        other.update(
            pod("b", "n2", running(1, end(0, 60), at_s=61)),
            pod("c", "n3", terminated(10, 60), phase="Failed"),
            pod("e", "n1", running(at_s=60)),
            after_s=100,
        )
        assert estimates(other) == [(0.91, 2), (0.95, 2), (0.9, 1)]
        other.update(after_s=100)
        assert estimates(other) == [(0.91, 2), (0.95, 2), (0.9, 1)]

    def test_without_a_memory_the_pods_that_are_there_are_where_one_begins(self) -> None:
        other = restart(self.history(), None)
        other.update()
        assert estimates(other) == [(1.0, 0)] * 3

    def test_late_stored_rewards_precede_rewards_learned_since(self) -> None:
        history = self.history()
        text = store(history)
        late = restart(history, None)
        late.update(pod("c", "n3", terminated(3, 4), phase="Failed"), pod("w", "n2", waiting()))
        late.update(pod("d", "n1", phase="Failed"))
        assert estimates(late) == [(0.9, 1), (1.0, 0), (1.0, 0)]
        late.state.recall(text)
        late.update()
        assert estimates(late) == [(0.81, 2), (1.0, 1), (0.9, 1)]
        assert late.state.keep(text) is not None


class TestStoredForm:
    def test_the_stored_form_is_readable_json(self) -> None:
        history = PodHistory()
        history.update()
        history.update(pod("a", "n1", terminated(), phase="Failed"), pod("b", "n1", running(at_s=1)))
        assert msgspec.json.decode(store(history)) == {
            "version": 1,
            "until": int(history.now),
            "types": {"d/D": {"n1": [0.91, 2, 2.0, int(history.now)]}},
        }

    def test_unchanged_rewards_are_not_stored_again(self) -> None:
        history = PodHistory()
        history.update()
        assert history.state.keep(None) is None
        history.update(pod("a", "n1", phase="Failed"))
        text = store(history)
        assert history.state.keep(text) is None
        history.update()
        assert history.state.keep(text) is None
        history.update(pod("b", "n1", phase="Failed"))
        assert history.state.keep(text) is not None

    def test_rewards_whose_write_failed_are_stored_again(self) -> None:
        history = PodHistory()
        history.update()
        history.update(pod("a", "n1", phase="Failed"))
        text = history.state.keep(None)
        assert history.state.keep(None) == text

    def test_deleted_stored_rewards_are_written_again(self) -> None:
        history = PodHistory()
        history.update()
        history.update(pod("a", "n1", phase="Failed"))
        text = store(history)
        assert history.state.keep(None) == text

    def test_rewards_of_another_replica_are_not_lost(self) -> None:
        history = PodHistory()
        history.update()
        history.update(pod("a", "n1", phase="Failed"))
        theirs = stored_rewards({"d/E": {"n2": [0.5, 9, 4.5, START]}, "d/D": {"n1": [0.81, 2, 2, START]}})
        text = store(history, theirs)
        actual = msgspec.json.decode(text)["types"]
        assert actual == {"d/D": {"n1": [0.81, 2, 2.0, int(START)]}, "d/E": {"n2": [0.5, 9, 4.5, int(START)]}}
        assert history.state.keep(text) is None

    def test_unreadable_rewards_are_overwritten_after_a_change(self) -> None:
        history = PodHistory()
        history.update()
        assert history.state.keep(b"{}") is None
        history.update(pod("a", "n1", phase="Failed"))
        assert history.state.keep(b"{}") is not None

    def test_a_follower_that_comes_to_lead_goes_on(self) -> None:
        histories = [PodHistory(), PodHistory()]
        for history in histories:
            history.update()
            history.update(pod("a", "n1", phase="Failed"))
        text = store(histories[0])
        store(histories[1], text)
        assert estimates(histories[1]) == estimates(histories[0])


class TestBounds:
    RULE = LearningRule(1.0, 0.0)

    def test_types(self) -> None:
        memory = RewardMemory(self.RULE)
        for number in range(3000):
            memory.learn(f"d/t{number}", "n1", 0.0, 1, START)
            memory.learn("d/used", "n1", 1.0, 1, START)
        assert len(memory) == 1000
        assert memory.estimate("d/used", "n1") is not None
        assert memory.estimate("d/t2999", "n1") is not None
        assert memory.estimate("d/t0", "n1") is None

    def test_a_tenant_with_many_types_pushes_out_only_its_own(self) -> None:
        memory = RewardMemory(self.RULE)
        memory.learn("other/quiet", "n1", 0.0, 1, START)
        for number in range(3000):
            memory.learn(f"d/t{number}", "n1", 0.0, 1, START)
        assert len(memory) == 1000
        assert memory.estimate("other/quiet", "n1") is not None

    def test_pairs(self) -> None:
        memory = RewardMemory(self.RULE)
        for type_ in range(14):
            for node in range(5000):
                memory.learn(f"d/t{type_}", f"n{node}", 0.0, 1, START)
        assert len(memory) == 10
        assert memory.estimate("d/t4", "n0") is not None

    def test_bytes(self) -> None:
        memory = RewardMemory(self.RULE)
        for type_ in range(8):
            for node in range(5000):
                reward = 0.0 if node % 100 == 7 else 1.0
                memory.learn(f"d/t{type_}", f"a-node-with-a-rather-long-name-{node:05d}", reward, 1, START)
        text = memory.text(START)
        assert 400_000 < len(text) < 2**19
        restored = memories.parse_stored_rewards(text)
        assert list(restored.types)[-1] == "d/t7"
        partly = next(iter(restored.types.values()))
        assert len(partly) < 5000
        assert {pair.reward for pair in list(partly.values())[:50]} == {0.9}

    def test_rewards_are_in_the_order_of_node_numbers(self) -> None:
        memory = RewardMemory(self.RULE)
        for node, times in (("n3", 3), ("n1", 1), ("gone", 5)):
            memory.learn("d/D", node, 0.0, times, START)
        known = cooperative_scheduling.run_without_pauses(
            memory.lay_out(NodeIndex(["n1", "n2", "n3"]), START)
        )["d/D"]
        assert known.nodes.tolist() == [0, 2]
        assert known.tried.tolist() == [1, 3]
        assert known.rewards.tolist() == pytest.approx([0.9, 0.729])

    def test_times_at_once_are_the_same_as_one_after_another(self) -> None:
        rule = LearningRule(0.5, 3600.0)
        pair = None
        for _ in range(4):
            pair = rule.update(pair, 0.0, 1, START)
        assert rule.update(None, 0.0, 4, START) == pytest.approx(pair, abs=2e-6)

    def test_merged_earlier_rewards_equal_rewards_learned_in_order(self) -> None:
        rule = LearningRule(0.6, 3600.0)
        first = rule.update(rule.update(None, 0.0, 2, START), 1.0, 1, START + 50)
        whole = rule.update(rule.update(first, 0.0, 1, START + 900), 0.5, 3, START + 2000)
        later = rule.update(rule.update(None, 0.0, 1, START + 900), 0.5, 3, START + 2000)
        assert rule.after(first, later) == pytest.approx(whole, abs=2e-3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "Input data was truncated"),
        (b"{}", "missing required field"),
        (b'{"version":2,"until":0,"types":{}}', "version: 2; expected 1"),
        (b'{"version":1,"until":"x","types":{}}', "Expected `float`"),
        (stored_rewards({"d/D": {"n1": [1.5, 1, 1, 0]}}), "Expected `float` <= 1"),
        (stored_rewards({"d/D": {"n1": [0.5, 0, 0, 0]}}), "Expected `int` >= 1"),
        (stored_rewards({"d/D": {"n1": [0.5, 1, -1, 0]}}), "Expected `float` >= 0"),
        (stored_rewards({"d/D": {"n1": [0.5, 1, 1, 1e300]}}), "Expected `float` <= "),
        (stored_rewards({"d" * 700: {"n1": [0.5, 1, 1, 0]}}), "Expected `str` of length <= 400"),
        (stored_rewards({"d/D": {"n1": [0.5, 1, 1]}}), "Expected `array` of length 4"),
        (b'{"version":1,"until":0,"types":{"a":{"n":[0.5,1,1,' + b"9" * 400 + b"]}}}", "."),
        (b'{"version":1,"until":0,"types":{"a":{"n":[0.5,' + b"9" * 5000 + b",1,1]}}}", "."),
        (b'{"version":1,"until":1e999,"types":{}}', "."),
        (b"[" * 100_000, "."),
        (b"\xff" * 10, "."),
        (b'{"version":1,"until":0,"types":{' + b" " * 2**20 + b"}}", "expected at most 1048576"),
    ],
)
def test_unreadable_rewards_are_refused_and_change_nothing(text: bytes, words: str) -> None:
    history = PodHistory(NEVER_FADES)
    with pytest.raises(BadInput, match=words):
        history.state.recall(text)
    history.update()
    assert estimates(history) == [(1.0, 0)] * 3


def test_a_time_to_come_is_as_good_as_now() -> None:
    history = PodHistory(LearnedOptions(learned_half_life_s=3600.0))
    history.state.recall(stored_rewards({"d/D": {"n1": [0.5, 1, 1, START + 1e6]}}, START + 1e6))
    history.update(pod("a", "n2", running()))
    assert estimates(history)[0] == (0.5, 1)
    history.update(pod("b", "n1", phase="Failed"))
    assert history.reward() == 0.45


def test_pairs_are_read_as_they_were_written() -> None:
    memory = RewardMemory(LearningRule(1.0, 0.0))
    memory.learn("d/D", "n1", 0.0, 3, START)
    restored = memories.parse_stored_rewards(memory.text(START + 5))
    assert restored.until == START + 5
    assert restored.types == {"d/D": {"n1": RewardEstimate(pytest.approx(0.729), 3, 3.0, START)}}
