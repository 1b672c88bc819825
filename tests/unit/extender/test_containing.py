"""Agents of other packages crash, hang and answer nonsense; nobody else is harmed, and no pod is placed by it."""

import re
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from nodewise import turns
from nodewise.agent import Evidence, Inputs, Named, NodeIndex, Scores, ValueState, Verdict, Want
from nodewise.errors import BadSettings
from nodewise.extender import containing, shapes
from nodewise.extender.chain import Chain
from nodewise.extender.contained_agent import OutsideFailed
from nodewise.extender.deadlines import Failed
from nodewise.extender.decision import Decision
from nodewise.extender.warden import NoSlot
from tests.unit.extender import outsiders
from tests.unit.extender.outsiders import ORIGIN, STRANGER, Hang, Held, No, OddKind, pod

SOON_S = 0.05
"""A deadline that is meant to pass."""


def fails(error: BaseException) -> Callable[[], Any]:
    def raises() -> Any:
        raise error

    return raises


def gives(answer: Any) -> Callable[[], Any]:
    return lambda: answer


def ranked(held: Held, snapshot: Any = None) -> Decision:
    return turns.result(
        Chain([held.agent]).prioritize(pod(), outsiders.NAMES, snapshot or held.snapshot, 1.0)
    )


def unscored(held: Held, snapshot: Any = None) -> str:
    """Why there are no scores; the pod is placed without them."""
    decision = ranked(held, snapshot)
    assert decision.scores == ()
    assert decision.points().tolist() == [0, 0, 0]
    return decision.told.removeprefix("no scores of odd-score: ")


def why(verdict: Verdict | None) -> str:
    """The one reason for which all are rejected."""
    assert verdict is not None
    assert verdict.codes.tolist() == [1] * len(outsiders.NAMES)
    (reason,) = verdict.reasons
    assert isinstance(reason, OutsideFailed)
    assert reason.is_failure
    assert "nodewise-odd" in reason.remedy()
    return reason.text().removeprefix("nodewise: agent odd failed: ")


class TestAnswers:
    def test_a_good_agent_is_asked_as_if_it_were_ours(self) -> None:
        held = Held(filter=gives(Verdict(np.array([0, 1, 0], np.int64), (No(),))))
        decision = turns.result(Chain([held.agent]).filter(pod(), outsiders.NAMES, held.snapshot, 1.0))
        assert decision.names[decision.kept()].tolist() == ["a", "c"]
        assert [reason.text() for _, verdict in decision.verdicts for reason in verdict.reasons] == [
            "odd says no"
        ]
        scored = ranked(held)
        assert [(name, scores.label, scores.points.tolist()) for name, scores in scored.scores] == [
            ("odd", "odd-score", [3, 3, 3])
        ]
        assert held.failures() == {}

    def test_its_names_are_there(self) -> None:
        agent = Held().agent
        assert isinstance(agent, Named)
        assert (list(agent.predicates), list(agent.priorities)) == (["odd-filter"], ["odd-score"])

    def test_it_sees_its_own_slot_only(self) -> None:
        held = Held()
        seen: list[Any] = []
        held.agent._inner.filter = lambda _pod, names, snapshot: (
            seen.append(snapshot) or outsiders.passes(len(names))
        )
        held.agent.filter(pod(), held.names, held.snapshot)
        assert seen[0].agent_states == {"odd": "slot"}

    def test_what_it_keeps_of_its_answer_is_not_ours(self) -> None:
        codes = np.zeros(3, np.int16)
        held = Held(filter=gives(Verdict(codes, (No(),))))
        verdict = held.agent.filter(pod(), held.names, held.snapshot)
        codes[:] = 1
        assert verdict.codes.tolist() == [0, 0, 0]

    def test_a_pod_of_no_question_passes_unasked(self) -> None:
        held = Held(filter=fails(ZeroDivisionError()), score=fails(ZeroDivisionError()))
        assert held.agent.filter(STRANGER, held.names, held.snapshot) is None
        assert held.agent.score(STRANGER, held.names, held.snapshot) is None
        assert held.failures() == {}


class TestCrashes:
    @pytest.mark.parametrize(
        "error",
        [ZeroDivisionError("n17"), SystemExit(1), KeyboardInterrupt(), RecursionError(), StopIteration()],
    )
    def test_it_rejects_with_the_kind_of_error(self, error: BaseException) -> None:
        held = Held(filter=fails(error), score=fails(error))
        assert why(held.agent.filter(pod(), held.names, held.snapshot)) == type(error).__name__
        assert why(held.agent.preempt(pod(), held.names, held.snapshot, {})) == type(error).__name__
        assert unscored(held) == type(error).__name__
        assert held.failures() == {"exception": 3.0}

    def test_a_pod_whose_question_crashes_waits(self) -> None:
        held = Held(equivalence_key=fails(ZeroDivisionError()))
        assert why(held.agent.filter(STRANGER, held.names, held.snapshot)) == "ZeroDivisionError"
        assert held.agent.equivalence_key(pod()) != held.agent.equivalence_key(pod())

    def test_deep_recursion_is_a_crash(self) -> None:
        def deeper() -> Any:
            return deeper()

        held = Held(filter=deeper)
        assert why(held.agent.filter(pod(), held.names, held.snapshot)) == "RecursionError"

    def test_others_are_asked_all_the_same(self) -> None:
        broken, good = Held(filter=fails(ZeroDivisionError())), Held()
        decision = turns.result(
            Chain([broken.agent, good.agent]).filter(pod(), outsiders.NAMES, good.snapshot, 1.0)
        )
        assert [verdict.codes.tolist() for _, verdict in decision.verdicts] == [[1, 1, 1], [0, 0, 0]]


class TestDeadline:
    def test_one_hang_costs_one_deadline_and_is_got_over(self) -> None:
        hang = Hang()
        held = Held(SOON_S, filter=hang)
        assert why(held.agent.filter(pod(), held.names, held.snapshot)) == f"no answer within {SOON_S} s"
        for _ in range(20):
            assert (
                why(held.agent.filter(pod(), held.names, held.snapshot))
                == "it has not come back from an earlier call"
            )
            assert unscored(held) == "it has not come back from an earlier call"
        assert (hang.times, held.failures()) == (1, {"deadline": 1.0, "busy": 40.0})
        hang.let_go()
        held.odd.instead.clear()
        self.until(
            lambda: (
                not turns.result(
                    Chain([held.agent]).prioritize(pod(), outsiders.NAMES, held.snapshot, 1.0)
                ).told
            )
        )
        assert held.agent.filter(pod(), held.names, held.snapshot).codes.tolist() == [0, 0, 0]

    def test_no_call_waits_while_it_hangs(self) -> None:
        """Forty deadlines of a minute would show, on any machine."""
        hang = Hang()
        held = Held(SOON_S, filter=hang)
        held.agent.filter(pod(), held.names, held.snapshot)
        held.kind.warden.serve(held.kind.warden.limits._replace(answer_s=60.0), held.clock, held.meters)
        for _ in range(40):
            why(held.agent.filter(pod(), held.names, held.snapshot))
        assert hang.times == 1
        hang.let_go()

    def test_pods_that_do_not_concern_it_go_on_while_it_hangs(self) -> None:
        hang = Hang()
        held = Held(SOON_S, filter=hang)
        why(held.agent.filter(pod(), held.names, held.snapshot))
        assert held.agent.filter(STRANGER, held.names, held.snapshot) is None
        assert held.agent.score(STRANGER, held.names, held.snapshot) is None
        assert held.failures() == {"deadline": 1.0}
        hang.let_go()

    def test_all_pods_wait_while_its_question_hangs(self) -> None:
        hang = Hang()
        held = Held(SOON_S, equivalence_key=hang)
        assert why(held.agent.filter(STRANGER, held.names, held.snapshot)) == f"no answer within {SOON_S} s"
        assert (
            why(held.agent.filter(STRANGER, held.names, held.snapshot))
            == "it has not come back from an earlier call"
        )
        assert hang.times == 1
        hang.let_go()

    def test_one_that_computes_for_ever_is_left_alone(self) -> None:
        stop = SimpleNamespace(now=False)

        def spin() -> None:
            while not stop.now:
                sum(range(1000))

        held = Held(SOON_S, filter=spin)
        assert why(held.agent.filter(pod(), held.names, held.snapshot)) == f"no answer within {SOON_S} s"
        stop.now = True

    def until(self, holds: Callable[[], bool]) -> None:
        ends = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < ends
            time.sleep(0.01)


class TestShapes:
    @pytest.mark.parametrize(
        ("answer", "words"),
        [
            ({"a": True}, "an answer of type dict; wanted Verdict"),
            (True, "an answer of type bool"),
            (Scores(np.ones(3, np.int64)), "an answer of type Scores"),
            (Verdict([0, 0, 0], ()), "codes of type list"),  # type: ignore[arg-type]
            (Verdict(np.zeros(2, np.int16), ()), "codes of shape (2,) for 3 candidates"),
            (Verdict(np.zeros((3, 1), np.int16), ()), "codes of shape (3, 1)"),
            (Verdict(np.zeros(3), ()), "codes of type float64; wanted whole numbers"),  # type: ignore[arg-type]
            (Verdict(np.zeros(3, bool), ()), "codes of type bool"),  # type: ignore[arg-type]
            (Verdict(np.array([0, 1, 0], np.int16), ()), "codes from 0 to 1; wanted from 0 to 0"),
            (Verdict(np.array([0, -1, 0], np.int16), (No(),)), "codes from -1 to 0"),
            (Verdict(np.zeros(3, np.int16), [No()]), "reasons of type list"),  # type: ignore[arg-type]
            (Verdict(np.zeros(3, np.int16), (No(),) * 1000), "1000 reasons; wanted at most 256"),
            (Verdict(np.zeros(3, np.int16), ("no",)), "AttributeError"),  # type: ignore[arg-type]
            (Verdict(np.zeros(3, np.int16), (No(7),)), "words of type int; wanted str"),
            (Verdict(np.zeros(3, np.int16), (No(fails(ZeroDivisionError())),)), "ZeroDivisionError"),
            (Verdict(np.zeros(3, np.int16), (), (), "some"), "joined is 'some'"),  # type: ignore[arg-type]
            (Verdict(np.zeros(3, np.int16), (), ("e",)), "evidence of type str"),  # type: ignore[arg-type]
            (Verdict(np.zeros(3, np.int16), (), details="none"), "AttributeError"),  # type: ignore[arg-type]
        ],
    )
    def test_of_a_verdict(self, answer: Any, words: str) -> None:
        held = Held(filter=gives(answer))
        assert words in why(held.agent.filter(pod(), held.names, held.snapshot))

    @pytest.mark.parametrize(
        ("points", "words"),
        [
            (np.array([0, 5, 11]), "scores from 0 to 11; wanted from 0 to 10"),
            (np.array([0, -5, 10]), "scores from -5 to 10"),
            (np.array([1.0, 2.0, 3.0]), "scores of type float64; wanted whole numbers"),
            (np.array([1, 2, None]), "scores of type object"),
            (np.array([2**64 - 1, 2, 3], np.uint64), "scores from -1 to 3"),
            (np.ones(4, np.int64), "scores of shape (4,) for 3 candidates"),
            ([1, 2, 3], "scores of type list"),
            (3, "scores of type int"),
        ],
    )
    def test_of_scores(self, points: Any, words: str) -> None:
        held = Held(score=gives(Scores(points)))
        with capture_logs() as lines:
            assert words in unscored(held)
        assert words in lines[0]["why"]
        assert held.failures() == {"shape": 1.0}

    def test_of_evidence(self) -> None:
        good = Evidence("m", "LessThan", 3, np.array([1, 2, 3]), np.zeros(3, np.uint8), np.full(3, np.nan))
        assert shapes.scores(Scores(np.ones(3, np.int64), (good,)), 3) is not None
        for bad in (
            replace(good, operator="Near"),
            replace(good, metric=7),
            replace(good, target="3"),
            replace(good, values=np.ones(3)),
            replace(good, values=np.ones(2, np.int64)),
            replace(good, states=np.full(3, max(ValueState) + 1)),
            replace(good, ages_s=None),
        ):
            with pytest.raises(Failed):
                shapes.scores(Scores(np.ones(3, np.int64), (bad,)), 3)

    def test_no_answer_about_no_candidates(self) -> None:
        held = Held()
        none = held.index.named([])
        assert held.agent.filter(pod(), none, held.snapshot).codes.tolist() == []
        assert held.agent.score(pod(), none, held.snapshot).points.tolist() == []

    def test_words_that_cannot_be_written_are_mended(self) -> None:
        assert shapes.text("a\ud800b") == "a?b"
        assert len(shapes.text("x" * 10_000)) == 500


class TestDetails:
    class Details:
        nbytes = 10

        def text(self, candidate: int) -> Any:
            return ["fine", None, 1 / 0 if candidate == 2 else ""][candidate]

        def distances(self) -> Any:
            return np.zeros(2)

        def numbers(self, candidate: int) -> Any:
            return {"value": np.nan if candidate else np.float64(1.5)}

    def test_whatever_is_wrong_with_them_is_left_out(self) -> None:
        held = Held(filter=gives(Verdict(np.zeros(3, np.int16), (), details=self.Details())))
        details = held.agent.filter(pod(), held.names, held.snapshot).details
        assert [details.text(candidate) for candidate in range(3)] == ["fine", "", ""]
        assert details.distances().tolist() == [1.0, 1.0, 1.0]
        assert (details.nbytes, details.numbers(0), details.numbers(1)) == (
            10,
            {"value": 1.5},
            {"value": None},
        )
        assert held.failures() == {"shape": 2.0, "exception": 1.0}

    def test_to_keep_them_never_costs_less_than_nothing(self) -> None:
        details = self.Details()
        details.nbytes = -(2**40)
        held = Held(filter=gives(Verdict(np.zeros(3, np.int16), (), details=details)))
        assert held.agent.filter(pod(), held.names, held.snapshot).details.nbytes == 0


class TestSlots:
    def test_a_slot_is_computed_for_each_world(self) -> None:
        held = Held()
        assert turns.result(held.state.build(held.cluster_state(1.0))) == ("slot of", 1.0)
        assert turns.result(held.state.build(held.cluster_state(2.0))) == ("slot of", 2.0)

    def test_a_crash_leaves_none_until_it_works_again(self) -> None:
        held = Held(build=fails(ZeroDivisionError("by zero")))
        agent_state = turns.result(held.state.build(held.cluster_state()))
        assert agent_state == NoSlot("ZeroDivisionError")
        snapshot = msgspec.structs.replace(held.snapshot, agent_states={"odd": agent_state})
        assert why(held.agent.filter(pod(), held.names, snapshot)) == "ZeroDivisionError"
        assert unscored(held, snapshot) == "ZeroDivisionError"
        assert held.agent.filter(STRANGER, held.names, snapshot) is None
        assert held.failures() == {"exception": 1.0}
        held.odd.instead.clear()
        assert turns.result(held.state.build(held.cluster_state())) == ("slot of", 1.0)

    def test_before_the_first_view_its_pods_wait(self) -> None:
        held = Held()
        snapshot = msgspec.structs.replace(held.snapshot, agent_states={})
        assert why(held.agent.filter(pod(), held.names, snapshot)) == "it has not seen the nodes yet"
        assert held.failures() == {}

    async def test_a_view_does_not_wait_for_a_slot_that_hangs(self) -> None:
        hang = Hang()
        held = Held(patience_s=SOON_S, build=hang)
        assert await turns.paced_result(held.state.build(held.cluster_state())) == NoSlot(
            "its slot is not computed yet"
        )
        held.clock.advance(30.0)
        assert await turns.paced_result(held.state.build(held.cluster_state())) == NoSlot(
            "no slot within 30 s"
        )
        assert (hang.times, held.failures()) == (1, {"deadline": 1.0})
        hang.let_go()
        held.odd.instead.clear()
        await self.until(held, ("slot of", 5.0))

    async def test_while_one_is_computed_the_one_before_holds_for_the_same_nodes(self) -> None:
        held = Held(patience_s=SOON_S)
        held.kind.warden.serve(held.kind.warden.limits._replace(patience_s=30.0), held.clock, held.meters)
        assert await turns.paced_result(held.state.build(held.cluster_state(1.0))) == ("slot of", 1.0)
        held.kind.warden.serve(held.kind.warden.limits._replace(patience_s=SOON_S), held.clock, held.meters)
        hang = Hang()
        held.odd.instead["build"] = hang
        assert await turns.paced_result(held.state.build(held.cluster_state(2.0))) == ("slot of", 1.0)
        others = held.cluster_state(3.0, NodeIndex(["a", "b"]))
        assert await turns.paced_result(held.state.build(others)) == NoSlot("its slot is not computed yet")
        hang.let_go()

    def test_wants_and_problems_that_fail_are_those_of_before(self) -> None:
        held = Held(wants=fails(ZeroDivisionError()), problems=gives({"p": "text"}))
        assert held.state.wants({}) == frozenset()
        assert held.state.problems({}) == {"p": ("t", "e", "x", "t")}
        held.odd.instead |= {"wants": gives(["metric"]), "problems": gives({"p": (7,)})}
        assert (held.state.wants({}), held.state.problems({})) == (frozenset(), {})

    def test_a_want_is_taken_whole(self) -> None:
        want = Want("m", "m > 0", 60.0, "max", empty_is_healthy=True)
        assert shapes.wants(frozenset({want})) == {want}
        with pytest.raises(Failed, match="aggregate 'median'; wanted one of max, min, sum, avg"):
            shapes.wants(frozenset({want._replace(aggregate="median")}))

    async def until(self, held: Held, wanted: Any) -> None:
        ends = time.monotonic() + 60
        while await turns.paced_result(held.state.build(held.cluster_state(5.0))) != wanted:
            assert time.monotonic() < ends


class WithInputs(outsiders.OddState):
    def __init__(self, objects: Any) -> None:
        super().__init__(OddKind())
        self.inputs = Inputs(objects)


class TestStart:
    @pytest.mark.parametrize(
        ("part", "does", "words"),
        [
            ("agent", fails(ZeroDivisionError("by zero")), "ZeroDivisionError"),
            ("agent", gives(object()), "agent.name is missing"),
            ("state", gives(7), "state.inputs is missing"),
            ("state", gives(WithInputs(None)), "inputs.objects of type NoneType"),
            ("watched", gives(["pods"]), "watched of type str"),
        ],
    )
    def test_what_cannot_begin_is_a_bad_setting(self, part: str, does: Callable[[], Any], words: str) -> None:
        with pytest.raises(BadSettings, match=f"--agents: 'odd', {part}: {words}"):
            Held(**{part: does}).kind.watched(outsiders.Options())

    def test_its_pods_are_known_by_the_resources_that_it_names(self) -> None:
        class Marked(OddKind):
            def resources(self, _options: Any) -> Any:
                return self.does("resources", {"odd.example/pods": 1})

        known = containing.contained(Marked(), ORIGIN)
        assert known.resources(outsiders.Options()) == {"odd.example/pods": True}
        assert Held().kind.resources(outsiders.Options()) == {}
        bad = containing.contained(Marked(resources=gives(["odd.example/pods"])), ORIGIN)
        with pytest.raises(BadSettings, match="resources: resources of type list; wanted dict"):
            bad.resources(outsiders.Options())

    def test_no_controller_runs(self) -> None:
        assert Held().kind.controller(outsiders.Options(), None) is None  # type: ignore[func-returns-value]


class Renamed(OddKind):
    name = "other"


class Optionless(OddKind):
    options: ClassVar[Any] = dict


class Meddling(OddKind):
    class options(msgspec.Struct, frozen=True):  # noqa: N801
        sync_period_s: float = 1.0


class Disagreeing(OddKind):
    class pod_fields(msgspec.Struct, frozen=True):  # noqa: N801
        metadata: str = ""


class Needing(OddKind):
    class pod_fields(msgspec.Struct, frozen=True):  # noqa: N801
        spec: str


class Dated(msgspec.Struct, frozen=True):
    creationTimestamp: float = 0.0  # noqa: N815


class Mistaken(OddKind):
    class node_fields(msgspec.Struct, frozen=True):  # noqa: N801
        metadata: Dated = Dated()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Needing(), "KIND.pod_fields: Expected `str`, got `object` - at `$.spec`"),
        (Mistaken(), "KIND.node_fields: Expected `float`, got `str` - at `$.metadata.creationTimestamp`"),
        (7, "KIND.name is missing"),
        (None, "KIND.name is missing"),
        (SimpleNamespace(name="odd"), "KIND.summary is missing"),
        (Renamed(), "KIND is named 'other'"),
        (Optionless(), "KIND.options is no msgspec.Struct"),
        (Meddling(), "the option 'sync_period_s'; wanted 'odd_' before its name"),
        (Disagreeing(), "Pod.metadata"),
    ],
)
def test_a_kind_of_the_wrong_shape(kind: Any, words: str) -> None:
    with pytest.raises(Failed, match=re.escape(words)):
        shapes.kind(kind, "odd", [OddKind()])


class TestTold:
    def test_a_kind_of_failure_is_logged_once_a_minute_with_its_cause(self) -> None:
        held = Held(filter=fails(ZeroDivisionError("by zero")), score=gives(7))
        with capture_logs() as lines:
            for _ in range(5):
                held.agent.filter(pod(), held.names, held.snapshot)
                unscored(held)
        assert [(line["failure"], line["what"], line["why"]) for line in lines] == [
            ("exception", "filter", "ZeroDivisionError"),
            ("shape", "score", "an answer of type int; wanted Scores"),
        ]
        assert (lines[0]["agent"], lines[0]["package"], lines[0]["version"]) == outsiders.ORIGIN
        assert str(lines[0]["exc_info"]) == "by zero"
        held.clock.advance(60.0)
        with capture_logs() as lines:
            held.agent.filter(pod(), held.names, held.snapshot)
        assert [line["unlogged"] for line in lines] == [4]
        assert held.failures() == {"exception": 6.0, "shape": 5.0}
