"""Third-party agents raise exceptions and return invalid results: their own pods are rejected, others pass."""

import re
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from nodewise.agent import Evidence, Inputs, MetricRequest, PolicyRejections, Scores, ValueState, Verdict
from nodewise.agent.controller_interface import ControllerKind
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import BadSettings
from nodewise.engine import third_party_result_validation
from nodewise.engine.agent_chain import AgentChain, AgentFailed
from nodewise.engine.decision import Decision
from nodewise.engine.third_party_agents import NoState, ThirdPartyKind
from nodewise.engine.third_party_result_validation import InvalidResult
from tests.unit.engine import replaceable_agent
from tests.unit.engine.replaceable_agent import ORIGIN, STRANGER, No, OddKind, OddSetup, pod

REJECTED = np.array([False, True, False])


def fails(error: BaseException) -> Callable[[], Any]:
    def raises() -> Any:
        raise error

    return raises


def gives(answer: Any) -> Callable[[], Any]:
    return lambda: answer


def ranked(setup: OddSetup, snapshot: Any = None) -> Decision:
    return AgentChain([setup.agent]).prioritize(
        pod(), replaceable_agent.NAMES, snapshot or setup.snapshot, 1.0
    )


def unscored(setup: OddSetup, snapshot: Any = None) -> str:
    """The reason for missing scores. The pod is placed without them."""
    decision = ranked(setup, snapshot)
    assert decision.scores == ()
    assert decision.points().tolist() == [0, 0, 0]
    return decision.description.removeprefix("no scores of odd-score: ")


def filtered(setup: OddSetup, asking: Any = None, snapshot: Any = None) -> Decision:
    chain = AgentChain([setup.agent])
    return chain.filter(asking or pod(), replaceable_agent.NAMES, snapshot or setup.snapshot, 1.0)


def why(decision: Decision) -> str:
    """The common reason for which all candidates are rejected."""
    [(_, verdict)] = decision.verdicts
    assert verdict.codes.tolist() == [1] * len(replaceable_agent.NAMES)
    (reason,) = verdict.reasons
    assert isinstance(reason, AgentFailed)
    assert reason.is_failure
    assert "nodewise-odd" in reason.remedy()
    return reason.text().removeprefix("nodewise: agent odd failed: ")


class TestAnswers:
    def test_a_good_agent_is_asked_as_if_it_were_ours(self) -> None:
        setup = OddSetup(filter=gives(Verdict(np.array([0, 1, 0], np.int64), (No(),))))
        decision = AgentChain([setup.agent]).filter(pod(), replaceable_agent.NAMES, setup.snapshot, 1.0)
        assert decision.names[decision.feasible()].tolist() == ["a", "c"]
        assert [reason.text() for _, verdict in decision.verdicts for reason in verdict.reasons] == [
            "odd says no"
        ]
        scored = ranked(setup)
        assert [(name, scores.label, scores.points.tolist()) for name, scores in scored.scores] == [
            ("odd", "odd-score", [3, 3, 3])
        ]
        assert setup.failures() == {}

    def test_its_names_are_there(self) -> None:
        agent = OddSetup().agent
        assert (list(agent.predicates), list(agent.priorities)) == (["odd-filter"], ["odd-score"])

    def test_it_sees_its_own_slot_only(self) -> None:
        setup = OddSetup()
        seen: list[Any] = []
        setup.agent._agent.filter = lambda _pod, names, snapshot: (
            seen.append(snapshot) or replaceable_agent.passes(len(names))
        )
        setup.agent.filter(pod(), setup.names, setup.snapshot)
        assert seen[0].agent_states == {"odd": "build"}

    def test_results_are_copied(self) -> None:
        codes = np.zeros(3, np.int16)
        setup = OddSetup(filter=gives(Verdict(codes, (No(),))))
        verdict = setup.agent.filter(pod(), setup.names, setup.snapshot)
        codes[:] = 1
        assert verdict.codes.tolist() == [0, 0, 0]

    def test_a_pod_of_no_question_passes_unasked(self) -> None:
        setup = OddSetup(filter=fails(ZeroDivisionError()), score=fails(ZeroDivisionError()))
        assert setup.agent.filter(STRANGER, setup.names, setup.snapshot) is None
        assert setup.agent.score(STRANGER, setup.names, setup.snapshot) is None
        assert setup.failures() == {}


class TestCrashes:
    @pytest.mark.parametrize(
        "error", [ZeroDivisionError("n17"), SystemExit(1), RecursionError(), StopIteration()]
    )
    def test_it_rejects_with_the_kind_of_error(self, error: BaseException) -> None:
        setup = OddSetup(filter=fails(error), score=fails(error))
        assert why(filtered(setup)) == type(error).__name__
        victims: Any = dict.fromkeys(replaceable_agent.NAMES, frozenset())
        actual = why(AgentChain([setup.agent]).preempt(pod(), victims, setup.snapshot, 1.0))
        assert actual == type(error).__name__
        assert unscored(setup) == type(error).__name__
        assert setup.failures() == {"exception": 3.0}

    def test_a_pod_whose_question_crashes_waits(self) -> None:
        setup = OddSetup(equivalence_key=fails(ZeroDivisionError()))
        assert why(filtered(setup, STRANGER)) == "ZeroDivisionError"
        first, second = (setup.agent.equivalence_key(pod(), setup.snapshot) for _ in range(2))
        assert first != second

    def test_a_key_whose_version_crashes_is_computed_in_every_snapshot(self) -> None:
        setup = OddSetup(equivalence_version=fails(ZeroDivisionError()))
        first, second = (setup.agent.equivalence_version(setup.snapshot) for _ in range(2))
        assert first is not second

    def test_deep_recursion_is_a_crash(self) -> None:
        def deeper() -> Any:
            return deeper()

        setup = OddSetup(filter=deeper)
        assert why(filtered(setup)) == "RecursionError"

    def test_others_are_asked_all_the_same(self) -> None:
        broken, good = OddSetup(filter=fails(ZeroDivisionError())), OddSetup()
        decision = AgentChain([broken.agent, good.agent]).filter(
            pod(), replaceable_agent.NAMES, good.snapshot, 1.0
        )
        assert [verdict.codes.tolist() for _, verdict in decision.verdicts] == [[1, 1, 1], [0, 0, 0]]


class TestShapes:
    @pytest.mark.parametrize(
        ("answer", "words"),
        [
            ({"a": True}, "a result of type dict, expected Verdict"),
            (True, "a result of type bool"),
            (Scores(np.ones(3, np.int64)), "a result of type Scores"),
            (Verdict([0, 0, 0], ()), "codes of type list"),  # type: ignore[arg-type]
            (Verdict(np.zeros(2, np.int16), ()), "codes of shape (2,) for 3 candidates"),
            (Verdict(np.zeros((3, 1), np.int16), ()), "codes of shape (3, 1)"),
            (Verdict(np.zeros(3), ()), "codes of type float64, expected whole numbers"),  # type: ignore[arg-type]
            (Verdict(np.zeros(3, bool), ()), "codes of type bool"),  # type: ignore[arg-type]
            (Verdict(np.array([0, 1, 0], np.int16), ()), "codes from 0 to 1, expected from 0 to 0"),
            (Verdict(np.array([0, -1, 0], np.int16), (No(),)), "codes from -1 to 0"),
            (Verdict(np.zeros(3, np.int16), [No()]), "reasons of type list"),  # type: ignore[arg-type]
            (Verdict(np.zeros(3, np.int16), (No(),) * 1000), "1000 reasons, expected at most 256"),
            (Verdict(np.zeros(3, np.int16), ("no",)), "AttributeError"),  # type: ignore[arg-type]
            (Verdict(np.zeros(3, np.int16), (No(7),)), "a text of type int, expected str"),
            (Verdict(np.zeros(3, np.int16), (No(fails(ZeroDivisionError())),)), "ZeroDivisionError"),
            (Verdict(np.zeros(3, np.int16), (), (), "some"), "joined is 'some'"),  # type: ignore[arg-type]
            (Verdict(np.zeros(3, np.int16), (), ("e",)), "evidence of type str"),  # type: ignore[arg-type]
            (Verdict(np.zeros(3, np.int16), (), details="none"), "AttributeError"),  # type: ignore[arg-type]
        ],
    )
    def test_of_a_verdict(self, answer: Any, words: str) -> None:
        setup = OddSetup(filter=gives(answer))
        assert words in why(filtered(setup))

    @pytest.mark.parametrize(
        ("points", "words"),
        [
            (np.array([0, 5, 11]), "scores from 0 to 11, expected from 0 to 10"),
            (np.array([0, -5, 10]), "scores from -5 to 10"),
            (np.array([1.0, 2.0, 3.0]), "scores of type float64, expected whole numbers"),
            (np.array([1, 2, None]), "scores of type object"),
            (np.array([2**64 - 1, 2, 3], np.uint64), "scores from -1 to 3"),
            (np.ones(4, np.int64), "scores of shape (4,) for 3 candidates"),
            ([1, 2, 3], "scores of type list"),
            (3, "scores of type int"),
        ],
    )
    def test_of_scores(self, points: Any, words: str) -> None:
        setup = OddSetup(score=gives(Scores(points)))
        with capture_logs() as lines:
            assert words in unscored(setup)
        assert words in lines[0]["why"]
        assert setup.failures() == {"shape": 1.0}

    def test_of_evidence(self) -> None:
        good = Evidence("m", "LessThan", 3, np.array([1, 2, 3]), np.zeros(3, np.uint8), np.full(3, np.nan))
        assert (
            third_party_result_validation.validate_scores(Scores(np.ones(3, np.int64), (good,)), 3)
            is not None
        )
        for bad in (
            replace(good, operator="Near"),
            replace(good, metric=7),
            replace(good, target="3"),
            replace(good, values=np.ones(3)),
            replace(good, values=np.ones(2, np.int64)),
            replace(good, states=np.full(3, max(ValueState) + 1)),
            replace(good, ages_s=None),
            replace(good, group=-2),
            replace(good, group="a"),
            replace(good, weight=np.nan),
            replace(good, policy=7),
        ):
            with pytest.raises(InvalidResult):
                third_party_result_validation.validate_scores(Scores(np.ones(3, np.int64), (bad,)), 3)

    @pytest.mark.parametrize(
        ("policies", "words"),
        [
            ([], "policies of type list"),
            (("web",), "a policy of type str, expected PolicyRejections"),
            ((PolicyRejections("p", np.ones(3)),), "rejected of type float64 and shape (3,)"),
            ((PolicyRejections("p", np.ones(2, bool)),), "a bool for each of 3 candidates"),
            ((PolicyRejections("p", [True] * 3),), "rejected of type list"),  # type: ignore[arg-type]
            ((PolicyRejections("p", REJECTED, "some"),), "joined is 'some'"),  # type: ignore[arg-type]
            ((PolicyRejections("p", ~REJECTED),), "do not reject the same candidates as the codes"),
            ((PolicyRejections(7, REJECTED),), "a text of type int"),  # type: ignore[arg-type]
        ],
    )
    def test_of_policies(self, policies: Any, words: str) -> None:
        verdict = Verdict(REJECTED.astype(np.int16), (No(),), policies=policies)
        assert words in why(filtered(OddSetup(filter=gives(verdict))))

    def test_policies_are_copied(self) -> None:
        policies = (
            PolicyRejections("p", REJECTED, "any"),
            PolicyRejections("q", np.zeros(3, bool), not_enforced="x"),
        )
        verdict = Verdict(REJECTED.astype(np.int16), (No(),), policies=policies)
        validated = third_party_result_validation.validate_verdict(verdict, 3)
        assert validated is not None
        assert [
            (part.policy, part.rejected.tolist(), part.joined, part.not_enforced)
            for part in validated.policies
        ] == [("p", [False, True, False], "any", ""), ("q", [False] * 3, None, "x")]

    def test_a_reason_is_resolvable_unless_it_declares_otherwise(self) -> None:
        class Declared(No):
            is_unresolvable = True

        verdict = Verdict(np.array([1, 0, 2], np.int16), (No(), Declared()))
        validated = third_party_result_validation.validate_verdict(verdict, 3)
        assert validated is not None
        assert validated.unresolvable().tolist() == [False, False, True]

    def test_no_answer_about_no_candidates(self) -> None:
        setup = OddSetup()
        none = setup.index.named([])
        assert setup.agent.filter(pod(), none, setup.snapshot).codes.tolist() == []
        assert setup.agent.score(pod(), none, setup.snapshot).points.tolist() == []

    def test_words_that_cannot_be_written_are_mended(self) -> None:
        assert third_party_result_validation.validate_text("a\ud800b") == "a?b"
        assert len(third_party_result_validation.validate_text("x" * 10_000)) == 500


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
        setup = OddSetup(filter=gives(Verdict(np.zeros(3, np.int16), (), details=self.Details())))
        details = setup.agent.filter(pod(), setup.names, setup.snapshot).details
        assert [details.text(candidate) for candidate in range(3)] == ["fine", "", ""]
        assert details.distances().tolist() == [1.0, 1.0, 1.0]
        expected = (10, {"value": 1.5}, {"value": None})
        assert (details.nbytes, details.numbers(0), details.numbers(1)) == expected
        assert setup.failures() == {"shape": 2.0, "exception": 1.0}

    def test_to_keep_them_never_costs_less_than_nothing(self) -> None:
        details = self.Details()
        details.nbytes = -(2**40)
        setup = OddSetup(filter=gives(Verdict(np.zeros(3, np.int16), (), details=details)))
        assert setup.agent.filter(pod(), setup.names, setup.snapshot).details.nbytes == 0


class TestSlots:
    def test_a_slot_is_computed_for_each_world(self) -> None:
        setup = OddSetup()
        actual = cooperative_scheduling.run_without_pauses(setup.state.build(setup.cluster_state(1.0)))
        assert actual == ("slot of", 1.0)
        actual = cooperative_scheduling.run_without_pauses(setup.state.build(setup.cluster_state(2.0)))
        assert actual == ("slot of", 2.0)

    def test_a_crash_leaves_none_until_it_works_again(self) -> None:
        setup = OddSetup(build=fails(ZeroDivisionError("by zero")))
        slot = cooperative_scheduling.run_without_pauses(setup.state.build(setup.cluster_state()))
        assert slot == NoState("ZeroDivisionError")
        snapshot = msgspec.structs.replace(setup.snapshot, agent_states={"odd": slot})
        assert why(filtered(setup, snapshot=snapshot)) == "ZeroDivisionError"
        assert unscored(setup, snapshot) == "ZeroDivisionError"
        assert setup.agent.filter(STRANGER, setup.names, snapshot) is None
        assert setup.failures() == {"exception": 1.0}
        setup.odd.replacements.clear()
        expected = ("slot of", 1.0)
        assert cooperative_scheduling.run_without_pauses(setup.state.build(setup.cluster_state())) == expected

    def test_before_the_first_snapshot_its_pods_wait(self) -> None:
        setup = OddSetup()
        snapshot = msgspec.structs.replace(setup.snapshot, agent_states={})
        assert why(filtered(setup, snapshot=snapshot)) == "its state is not computed yet"
        assert setup.failures() == {}

    def test_wants_and_problems_that_fail_are_those_of_before(self) -> None:
        setup = OddSetup(metric_requests=fails(ZeroDivisionError()), problems=gives({"p": "text"}))
        assert setup.state.metric_requests({}) == frozenset()
        assert setup.state.problems({}) == {"p": ("t", "e", "x", "t")}
        setup.odd.replacements |= {"metric_requests": gives(["metric"]), "problems": gives({"p": (7,)})}
        assert (setup.state.metric_requests({}), setup.state.problems({})) == (frozenset(), {})

    def test_a_want_is_taken_whole(self) -> None:
        metric_request = MetricRequest("m", "m > 0", 60.0, "max", True, frozenset({"d"}))
        assert third_party_result_validation.validate_metric_requests(frozenset({metric_request})) == {
            metric_request
        }
        with pytest.raises(InvalidResult, match="aggregate 'median', expected one of max, min, sum, avg"):
            third_party_result_validation.validate_metric_requests(
                frozenset({metric_request._replace(aggregate="median")})
            )


class WithInputs(replaceable_agent.OddState):
    def __init__(self, objects: Any) -> None:
        super().__init__(OddKind())
        self.inputs = Inputs(objects)


class TestStart:
    @pytest.mark.parametrize(
        ("part", "does", "words"),
        [
            ("agent", fails(ZeroDivisionError("by zero")), "ZeroDivisionError"),
            ("agent", gives(object()), "an agent of type object, expected a FilterPlugin or ScorePlugin"),
            ("state", gives(7), "a state of type int, expected a StateBuilder"),
            ("state", gives(WithInputs(None)), "inputs.objects of type NoneType"),
            ("watched", gives(["pods"]), "watched of type str"),
        ],
    )
    def test_an_agent_that_cannot_start_is_a_bad_setting(
        self, part: str, does: Callable[[], Any], words: str
    ) -> None:
        with pytest.raises(BadSettings, match=f"--agents: 'odd', {part}: {words}"):
            OddSetup(**{part: does}).kind.watched(replaceable_agent.OddOptions())

    def test_its_pods_are_known_by_the_resources_that_it_names(self) -> None:
        class Marked(OddKind):
            def resources(self, _options: Any) -> Any:
                return self.does("resources", {"odd.example/pods": 1})

        known = ThirdPartyKind(Marked(), ORIGIN)
        assert known.resources(replaceable_agent.OddOptions()) == {"odd.example/pods": True}
        assert OddSetup().kind.resources(replaceable_agent.OddOptions()) == {}
        bad = ThirdPartyKind(Marked(resources=gives(["odd.example/pods"])), ORIGIN)
        with pytest.raises(BadSettings, match="resources: resources of type list, expected dict"):
            bad.resources(replaceable_agent.OddOptions())

    def test_it_has_no_controller(self) -> None:
        assert not isinstance(OddSetup().kind, ControllerKind)


class Nameless(OddKind):
    summary: Any = None


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
        (7, "KIND of type int, expected an AgentKind"),
        (None, "KIND of type NoneType, expected an AgentKind"),
        (Nameless(), "KIND.summary is missing"),
        (Renamed(), "KIND is named 'other'"),
        (Optionless(), "KIND.options is no msgspec.Struct"),
        (Meddling(), "the option 'sync_period_s', expected a name that begins with 'odd_'"),
        (Disagreeing(), "Pod.metadata"),
    ],
)
def test_a_kind_of_the_wrong_shape(kind: Any, words: str) -> None:
    with pytest.raises(InvalidResult, match=re.escape(words)):
        third_party_result_validation.validate_kind(kind, "odd", [OddKind()])


class TestTold:
    def test_a_kind_of_failure_is_logged_once_a_minute_with_its_cause(self) -> None:
        setup = OddSetup(filter=fails(ZeroDivisionError("by zero")), score=gives(7))
        with capture_logs() as lines:
            for _ in range(5):
                filtered(setup)
                unscored(setup)
        assert [(line["failure"], line["what"], line["why"]) for line in lines] == [
            ("exception", "filter", "ZeroDivisionError"),
            ("shape", "score", "a result of type int, expected Scores"),
        ]
        assert (lines[0]["agent"], lines[0]["package"], lines[0]["version"]) == replaceable_agent.ORIGIN
        assert str(lines[0]["exc_info"]) == "by zero"
        setup.clock.advance(60.0)
        with capture_logs() as lines:
            filtered(setup)
        assert [line["unlogged"] for line in lines] == [4]
        assert setup.failures() == {"exception": 6.0, "shape": 5.0}
