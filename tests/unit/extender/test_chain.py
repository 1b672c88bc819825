"""Asking agents, keeping decisions, keeping the View."""

from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import numpy as np

from nodewise.agent import Names, NodeIndex, Scores, Verdict, Victims, View
from nodewise.extender import report
from nodewise.extender.chain import Chain
from nodewise.extender.decision import Decision, DecisionRing, PodRef

POD: Any = SimpleNamespace(metadata=SimpleNamespace(namespace="d", name="p", uid="u"))
VIEW = View(NodeIndex(["a", "b", "c"]), {}, 0.0, 7)


class Because(msgspec.Struct, frozen=True):
    why: str
    is_failure: ClassVar[bool] = False

    def text(self) -> str:
        return self.why

    def remedy(self) -> str:
        return ""


class Rejecting:
    """Rejects some nodes; None makes it silent."""

    def __init__(self, name: str, rejects: str | None) -> None:
        self.name = name
        self.rejects = rejects

    def question(self, _pod: Any) -> str:
        return self.name

    def filter(self, _pod: Any, candidates: Names, _view: View) -> Verdict | None:
        if self.rejects is None:
            return None
        codes = np.array([name in self.rejects.split() for name in candidates], np.int16)
        return Verdict(codes, (Because(f"{self.name} says no"),))

    def preempt(self, pod: Any, candidates: Names, view: View, _victims: Victims) -> Verdict | None:
        return self.filter(pod, candidates, view)

    def score(self, _pod: Any, candidates: Names, _view: View) -> Scores | None:
        return None if self.rejects is None else Scores(np.arange(len(candidates)))


class Broken(Rejecting):
    def question(self, _pod: Any) -> str:
        raise ZeroDivisionError

    def filter(self, _pod: Any, candidates: Names, _view: View) -> Verdict | None:
        raise ZeroDivisionError

    score = filter  # type: ignore[assignment]


def kept(*agents: Any, names: str = "a b c") -> list[str]:
    decision = Chain(agents).filter(POD, names.split(), VIEW, 1.0)
    found: list[str] = decision.names[decision.kept()].tolist()
    return found


class TestChain:
    def test_a_node_passes_if_every_agent_lets_it(self) -> None:
        assert kept(Rejecting("t", "a"), Rejecting("g", "c")) == ["b"]

    def test_pods_that_ask_the_same_have_equal_questions(self) -> None:
        chain = Chain([Rejecting("t", "a"), Rejecting("g", "")])
        assert chain.question(POD) == chain.question(POD) == ("t", "g")
        broken = Chain([Broken("t", "")])
        assert broken.question(POD) != broken.question(POD)

    def test_order_and_repetitions_are_those_of_the_request(self) -> None:
        assert kept(Rejecting("t", "a"), names="c x a c") == ["c", "x", "c"]

    def test_without_an_opinion_everything_passes(self) -> None:
        assert kept(Rejecting("t", None)) == ["a", "b", "c"]

    def test_a_defect_of_an_agent_rejects_and_says_so(self) -> None:
        decision = Chain([Broken("t", ""), Rejecting("g", "a")]).filter(POD, ["a", "b"], VIEW, 1.0)
        assert decision.kept().tolist() == [False, False]
        assert report.rejected(decision)["a"] == [
            {"agent": "t", "reason": "nodewise: agent t failed, see the log of nodewise"},
            {"agent": "g", "reason": "g says no"},
        ]
        assert report.failure(decision) == "nodewise: agent t failed, see the log of nodewise"

    def test_a_defect_while_scoring_costs_the_scores_only(self) -> None:
        decision = Chain([Broken("t", ""), Rejecting("g", "")]).prioritize(POD, ["a", "b"], VIEW, 1.0)
        assert decision.points().tolist() == [0, 1]

    def test_a_node_is_scored_once(self) -> None:
        decision = Chain([Rejecting("g", "")]).prioritize(POD, ["b", "x", "b", "x", "y"], VIEW, 1.0)
        assert decision.names.tolist() == ["b", "x", "y"]


def decision(name: str, nodes: int = 100) -> Decision:
    return Decision("filter", PodRef("d", name), 0.0, 1, Names.of(["n"] * nodes))


class TestRing:
    def test_the_oldest_make_room(self) -> None:
        ring = DecisionRing(max_bytes=10 * decision("p24").size_bytes())
        for number in range(25):
            ring.add(decision(f"p{number}"))
        assert len(ring) == 10
        assert ring.size_bytes <= 10 * decision("p24").size_bytes()
        assert [one.pod.name for one in ring.about()][-2:] == ["p23", "p24"]

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
