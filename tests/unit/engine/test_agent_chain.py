"""The agent chain, the ring buffer of decisions and the weights of scores."""

from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

from nodewise.agent import FilterPlugin, Names, NodeIndex, ScorePlugin, Scores, Snapshot, Verdict, Victims
from nodewise.base.errors import BadSettings
from nodewise.engine import decision_json
from nodewise.engine.agent_chain import AgentChain, ChainOptions, Priority, assign_weights
from nodewise.engine.decision import Decision, DecisionRing, PodRef

POD: Any = SimpleNamespace(metadata=SimpleNamespace(namespace="d", name="p", uid="u"))
VIEW = Snapshot(NodeIndex(["a", "b", "c"]), {}, 0.0, 7)


class ConstantReason(msgspec.Struct, frozen=True):
    why: str
    is_failure: ClassVar[bool] = False

    def text(self) -> str:
        return self.why

    def remedy(self) -> str:
        return ""


class Rejecting(FilterPlugin[Any, Any], ScorePlugin[Any, Any]):
    """An agent that rejects some nodes. With None, no pod concerns it."""

    def __init__(self, name: str, rejects: str | None) -> None:
        self.name = name
        self.rejects = rejects

    def equivalence_key(self, _pod: Any, _snapshot: Snapshot) -> str:
        return self.name

    def filter(self, _pod: Any, candidates: Names, _view: Snapshot) -> Verdict | None:
        if self.rejects is None:
            return None
        codes = np.array([name in self.rejects.split() for name in candidates], np.int16)
        return Verdict(codes, (ConstantReason(f"{self.name} says no"),))

    def preempt(self, pod: Any, candidates: Names, snapshot: Snapshot, _victims: Victims) -> Verdict | None:
        return self.filter(pod, candidates, snapshot)

    def score(self, _pod: Any, candidates: Names, _view: Snapshot) -> Scores | None:
        return None if self.rejects is None else Scores(np.arange(len(candidates)))


class FailingAgent(Rejecting):
    def equivalence_key(self, _pod: Any, _snapshot: Snapshot) -> str:
        raise ZeroDivisionError

    def filter(self, _pod: Any, candidates: Names, _view: Snapshot) -> Verdict | None:
        raise ZeroDivisionError

    score = filter  # type: ignore[assignment]


def kept(*agents: Any, names: str = "a b c") -> list[str]:
    decision = AgentChain(agents).filter(POD, names.split(), VIEW, 1.0)
    feasible: list[str] = decision.names[decision.feasible()].tolist()
    return feasible


class TestChain:
    def test_a_node_passes_if_every_agent_lets_it(self) -> None:
        assert kept(Rejecting("t", "a"), Rejecting("g", "c")) == ["b"]

    def test_pods_that_ask_the_same_have_equal_questions(self) -> None:
        chain = AgentChain([Rejecting("t", "a"), Rejecting("g", "")])
        assert chain.equivalence_key(POD, VIEW) == chain.equivalence_key(POD, VIEW) == ("t", "g")
        broken = AgentChain([FailingAgent("t", "")])
        assert broken.equivalence_key(POD, VIEW) != broken.equivalence_key(POD, VIEW)

    def test_order_and_repetitions_are_those_of_the_request(self) -> None:
        assert kept(Rejecting("t", "a"), names="c x a c") == ["c", "x", "c"]

    def test_without_an_opinion_everything_passes(self) -> None:
        assert kept(Rejecting("t", None)) == ["a", "b", "c"]

    def test_a_defect_of_an_agent_rejects_and_says_so(self) -> None:
        decision = AgentChain([FailingAgent("t", ""), Rejecting("g", "a")]).filter(POD, ["a", "b"], VIEW, 1.0)
        assert decision.feasible().tolist() == [False, False]
        assert decision_json.rejection_reasons(decision)["a"] == [
            {"agent": "t", "reason": "nodewise: agent t failed, see the log of nodewise"},
            {"agent": "g", "reason": "g says no"},
        ]
        assert decision_json.failure_text(decision) == "nodewise: agent t failed, see the log of nodewise"

    def test_a_defect_while_scoring_costs_the_scores_only(self) -> None:
        decision = AgentChain([FailingAgent("t", ""), Rejecting("g", "")]).prioritize(
            POD, ["a", "b"], VIEW, 1.0
        )
        assert decision.points().tolist() == [0, 1]

    def test_a_node_is_scored_once(self) -> None:
        decision = AgentChain([Rejecting("g", "")]).prioritize(POD, ["b", "x", "b", "x", "y"], VIEW, 1.0)
        assert decision.names.tolist() == ["b", "x", "y"]


def decision(name: str, nodes: int = 100, namespace: str = "d", at: float = 0.0) -> Decision:
    return Decision("filter", PodRef(namespace, name), at, 1, Names.of(["n"] * nodes))


class TestRing:
    def test_the_oldest_make_room(self) -> None:
        ring = DecisionRing(max_bytes=10 * decision("p24").size_bytes())
        for number in range(25):
            ring.add(decision(f"p{number}"))
        assert len(ring) == 10
        assert ring.size_bytes <= 10 * decision("p24").size_bytes()
        assert [decision.pod.name for decision in ring.about()][-2:] == ["p23", "p24"]

    def test_a_namespace_with_very_many_decisions_displaces_its_own(self) -> None:
        ring = DecisionRing(max_bytes=10 * decision("p24", namespace="attacker").size_bytes())
        ring.add(decision("victim", namespace="v", at=1.0))
        for number in range(25):
            ring.add(decision(f"p{number}", namespace="attacker", at=2.0 + number))
        assert len(ring) == 10
        actual = [decision.pod.name for decision in ring.about()]
        assert actual == ["victim", *(f"p{n}" for n in range(16, 25))]
        expected = (1.0, 1.0, 18.0, 1.0)
        assert (ring.since(), ring.since("v"), ring.since("attacker"), ring.since("x")) == expected

    def test_namespaces_have_equal_shares_of_the_ring(self) -> None:
        ring = DecisionRing(max_bytes=12 * decision("p24").size_bytes())
        for namespace in "abc":
            for number in range(10, 30):
                ring.add(decision(f"p{number}", namespace=namespace))
        assert [len(ring.about(namespace)) for namespace in "abc"] == [4, 4, 4]

    def test_one_that_is_larger_than_the_ring_is_not_kept(self) -> None:
        ring = DecisionRing(max_bytes=5000)
        ring.add(decision("large", nodes=10_000))
        assert (len(ring), ring.size_bytes) == (0, 0)

    def test_a_long_name_counts(self) -> None:
        assert decision("x" * 1_000_000).size_bytes() > decision("x").size_bytes() + 999_000

    def test_by_pod(self) -> None:
        ring = DecisionRing()
        for name in ("a", "b", "a"):
            ring.add(decision(name))
        assert len(ring.about("d", "a")) == len(ring.about(name="a")) == 2
        assert not ring.about("e", "a")

    def test_by_pod_the_oldest_make_room_too(self) -> None:
        ring = DecisionRing(max_bytes=3 * decision("a").size_bytes())
        for name in "abab":
            ring.add(decision(name))
        assert (len(ring.about("d", "a")), len(ring.about("d", "b"))) == (1, 2)
        for _ in range(3):
            ring.add(decision("c"))
        assert not ring.about("d", "a")
        assert len(ring) == len(ring.about("d", "c")) == 3


class TwoPriorities(Rejecting):
    """An agent with two named priorities and a named predicate."""

    def __init__(self) -> None:
        super().__init__("two", "a")
        self.predicates = {"two-fits": self.filter}
        self.priorities = {"two-low": self._low, "two-high": self._high}

    def _low(self, pod, candidates, snapshot):
        return Scores(np.full(len(candidates), 2, np.int64))

    def _high(self, pod, candidates, snapshot):
        return Scores(np.full(len(candidates), 10, np.int64))


class ScoringOnly(TwoPriorities):
    """An agent without an enabled filter."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "liking"
        self.filter_enabled = False
        self.predicates = {}
        self.priorities = {"liking": self._high}


def weights(text: str, *agents) -> dict:
    return assign_weights(agents, ChainOptions(weights=text))


class TestPriorities:
    def test_each_counts_by_its_weight(self) -> None:
        two = TwoPriorities()
        chain = AgentChain([two], weights("two-low=3,two-high=1", two))
        decision = chain.prioritize(POD, ["b"], VIEW, 1.0)
        expected = [("two", "two-low", 3.0), ("two", "two-high", 1.0)]
        assert [(name, scores.label, scores.weight) for name, scores in decision.scores] == expected
        assert decision.points().tolist() == [4]

    def test_a_priority_s_own_weight_wins_over_its_agent_s(self) -> None:
        two = TwoPriorities()
        for text in ("two=5,two-low=0", "two-low=0,two=5"):
            chosen = weights(text, two)
            assert [chosen[Priority("two", label)] for label in ("two-low", "two-high")] == [0.0, 5.0]

    @pytest.mark.parametrize(
        ("text", "seen"),
        [
            ("two-lo=1", "one of two, two-high, two-low"),
            ("two=-1", "from 0"),
            ("two=nan", "from 0"),
            ("two", "name=number"),
            ("two=0", "at least one weight above 0"),
            ("two=1e308", "from 0 to 1000000"),
            ("two=1,two=2", "each name once"),
        ],
    )
    def test_a_weight_that_cannot_be_used_is_named(self, text: str, seen: str) -> None:
        with pytest.raises(BadSettings, match=seen):
            weights(text, TwoPriorities())

    def test_an_empty_name_is_no_priority_without_a_label(self) -> None:
        with pytest.raises(BadSettings, match="name=number"):
            weights("=5", TwoPriorities(), Rejecting("nameless", "a"))

    def test_a_disabled_filter_is_not_called(self) -> None:
        assert AgentChain([ScoringOnly()]).filter(POD, ["a"], VIEW, 1.0).verdicts == ()

    def test_prioritize_counts_the_pod_once_per_call(self) -> None:
        class Counting:
            def __init__(self) -> None:
                self.pods: list[object] = []

            def count_request(self, pod) -> None:
                self.pods.append(pod)

        counting = Counting()
        chain = AgentChain([TwoPriorities()], None, {"two": counting, "other": Counting()})
        chain.filter(POD, ["a"], VIEW, 1.0)
        chain.prioritize(POD, ["a"], VIEW, 1.0)
        assert counting.pods == [POD]
