"""Asking agents, keeping decisions, keeping the View."""

import asyncio
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

from nodewise.agent import Names, NodeIndex, Scores, Verdict, Victims, View, Want, World
from nodewise.clock import ManualClock
from nodewise.extender import report
from nodewise.extender.chain import Chain
from nodewise.extender.decision import Decision, DecisionRing, PodRef
from nodewise.extender.world import WorldKeeper
from nodewise.kube.store import Writer
from nodewise.metrics.refresher import Refresher, RefreshOptions
from nodewise.observe.meters import Meters

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


class Counting:
    """A state whose slot counts nodes."""

    def __init__(self) -> None:
        self.computed = 0

    def wants(self, objects: Any) -> frozenset[Want]:
        return frozenset(Want(name) for _, name in objects["things"])

    def problems(self, objects: Any) -> dict[str, tuple[str, ...]]:
        return {name: ("odd",) for _, name in objects["things"] if name == "odd"}

    def slot(self, world: World) -> Generator[None, None, int]:
        yield
        self.computed += 1
        return len(world.nodes)


def named(*names: str) -> list[Any]:
    return [SimpleNamespace(metadata=SimpleNamespace(namespace="", name=name)) for name in names]


@pytest.fixture
def parts() -> Any:
    nodes: Writer[Any] = Writer()
    things: Writer[Any] = Writer()
    clock, meters = ManualClock(50.0), Meters()
    refresher = Refresher((), RefreshOptions(), clock, meters)
    keeper = WorldKeeper({"t": Counting()}, nodes.store, {"things": things.store}, refresher, clock, meters)
    return SimpleNamespace(nodes=nodes, things=things, keeper=keeper, refresher=refresher)


class TestWorldKeeper:
    def test_nothing_is_published_before_every_store_is_full(self, parts: Any) -> None:
        parts.nodes.replace(named("a"))
        asyncio.run(parts.keeper.publish())
        assert parts.keeper.view.slots == {}
        assert parts.keeper.waiting_for() == ["the list of things"]

    def test_a_view_holds_the_slots_of_one_world(self, parts: Any) -> None:
        async def play() -> None:
            parts.nodes.replace(named("a", "b"))
            parts.things.replace(named("heat"))
            await parts.keeper.publish()
            assert parts.keeper.waiting_for() == ["a first answer about metric heat"]
            await parts.refresher.settle()
            assert parts.keeper.waiting_for() == ["a first answer about metric heat"], (
                "the view is still older"
            )
            await parts.keeper.publish()
            assert parts.keeper.waiting_for() == []

        asyncio.run(play())
        view = parts.keeper.view
        assert (view.slots, view.at, view.generation) == ({"t": 2}, 50.0, 2)

    def test_the_index_stays_while_the_nodes_do(self, parts: Any) -> None:
        async def play() -> list[NodeIndex]:
            parts.things.replace([])
            indices = []
            for names in ("ab", "ab", "abc"):
                parts.nodes.replace(named(*names))
                await parts.keeper.publish()
                indices.append(parts.keeper.view.nodes)
            return indices

        first, second, third = asyncio.run(play())
        assert first is second
        assert third.known == ("a", "b", "c")

    def test_a_view_under_way_keeps_what_it_began_with(self, parts: Any) -> None:
        async def play() -> View:
            parts.nodes.replace(named("a"))
            parts.things.replace([])
            await parts.keeper.publish()
            before: View = parts.keeper.view
            parts.nodes.replace(named("a", "b"))
            await parts.keeper.publish()
            return before

        assert asyncio.run(play()).slots == {"t": 1}
        assert parts.keeper.view.slots == {"t": 2}
