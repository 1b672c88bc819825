"""Outcomes of pod states. Cases 181 and 182 of the older system, and its errors."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from nodewise.agents.gpu.gpu_pod_fields import GpuPod
from nodewise.kube.struct_type_merge import merge
from nodewise.policies.policy_selection import PodFields as TelemetryPod
from nodewise_scorers.learned import LearnedKind, LearnedOptions, pod_types_and_outcomes
from nodewise_scorers.learned.pod_types_and_outcomes import (
    ObservedPod,
    PodFields,
    PodOutcome,
    bound_pod_type,
    make_pod_reducer,
    pending_pod_type,
)
from scorers_tests.unit.learned.pod_histories import START, end, pod, running, stamp, terminated, waiting

MTTF_S = 600.0
HOUR = 3600.0


def reward_and_times(outcome: PodOutcome | None) -> tuple[float, int] | None:
    return None if outcome is None else (outcome.reward, outcome.times)


def first(*containers: dict[str, Any], phase: str = "Running") -> tuple[float, int] | None:
    return reward_and_times(
        pod_types_and_outcomes.outcome_between(None, pod("p", "n1", *containers, phase=phase), MTTF_S)
    )


def then(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> tuple[float, int] | None:
    return reward_and_times(
        pod_types_and_outcomes.outcome_between(pod("p", "n1", *before), pod("p", "n1", *after), MTTF_S)
    )


@pytest.mark.parametrize(
    ("containers", "reward"),
    [
        pytest.param([], 1.0, id="no status yet"),
        pytest.param([running()], 1.0, id="running"),
        pytest.param([terminated()], 0.5, id="ended for the first time"),
        pytest.param([terminated(HOUR, HOUR, 1, end(0, 10))], 0.5, id="ended again after more than the mttf"),
        pytest.param([terminated(40, 50, 1, end(0, 10))], 0.0, id="ended again at once"),
        pytest.param([terminated(40, HOUR, 1, end(0, 10))], 0.5, id="ended again after a long run"),
        pytest.param([waiting()], None, id="waiting"),
        pytest.param([running(1, end(0, 10))], None, id="running again"),
        pytest.param([terminated(), waiting()], 0.5, id="a container that waits hides no end"),
        pytest.param([waiting(), terminated()], 0.5, id="in whatever order"),
        pytest.param([running(), waiting()], None, id="not all run yet"),
        pytest.param([waiting(), running()], None, id="not all run yet either"),
        pytest.param([running(), terminated()], 0.5, id="one ended"),
        pytest.param([terminated(), running()], 0.5, id="one ended, not the last"),
        pytest.param([terminated(), terminated(40, 50, 1, end(0, 10))], 0.0, id="the worst decides"),
    ],
)
def test_the_first_look_at_a_running_pod(containers: list[dict[str, Any]], reward: float | None) -> None:
    assert first(*containers) == (None if reward is None else (reward, 1))


@pytest.mark.parametrize(
    ("phase", "reward"),
    [("Failed", 0.0), ("Unknown", 0.0), ("Succeeded", None), ("Pending", None), ("", None)],
)
def test_the_first_look_by_phase(phase: str, reward: float | None) -> None:
    assert first(running(), phase=phase) == (None if reward is None else (reward, 1))


def test_an_end_without_times_counts_as_failed_if_it_is_not_the_first() -> None:
    nothing: dict[str, Any] = {
        "state": {"terminated": {}},
        "restartCount": 3,
        "lastState": {"terminated": {}},
    }
    assert first(nothing) == (0.0, 1)
    assert first({**nothing, "restartCount": 0, "lastState": {}}) == (0.5, 1)


class TestOutcomesThatCountOnce:
    def test_a_start(self) -> None:
        assert then([waiting()], [running()]) == (1.0, 1)
        assert then([running()], [running()]) is None
        assert then([], [running()]) is None

    def test_an_end_and_the_start_after_it(self) -> None:
        history = [
            running(),
            terminated(0, 10),
            waiting(0, end(0, 10)),
            running(1, end(0, 10)),
            terminated(20, 30, 1, end(0, 10)),
            waiting(1, end(20, 30)),
            running(2, end(20, 30)),
        ]
        steps = [then([a], [b]) for a, b in pairwise(history)]
        assert steps == [(0.5, 1), None, None, (0.0, 1), None, None]

    def test_an_unobserved_termination_counts(self) -> None:
        assert then([running()], [running(1, end(0, 10))]) == (0.5, 1)
        assert then([running()], [waiting(0, end(0, 10))]) == (0.5, 1)
        assert then([running(1, end(0, 10))], [running(2, end(20, 30))]) == (0.0, 1)
        assert then([running(1, end(0, 10))], [running(2, end(20, HOUR))]) == (0.5, 1)

    def test_several_unobserved_terminations_count(self) -> None:
        assert then([running()], [running(3, end(20, 30))]) == (0.0, 3)
        assert then([running()], [running(3, end(20, HOUR))]) == (0.5, 3)
        assert then([running()], [running(10**6, end(20, 30))]) == (0.0, 10)

    def test_several_containers_that_end_at_once(self) -> None:
        before = [running(), running()]
        assert then(before, [terminated(0, 10), terminated(0, 12)]) == (0.5, 1)

    def test_a_phase(self) -> None:
        runs, failed, unknown = (pod("p", "n1", running(), phase=p) for p in ("Running", "Failed", "Unknown"))
        steps = [(runs, failed), (failed, failed), (runs, unknown), (unknown, failed), (unknown, runs)]
        rewards = [
            reward_and_times(pod_types_and_outcomes.outcome_between(before, after, MTTF_S))
            for before, after in steps
        ]
        assert rewards == [(0.0, 1), None, (0.0, 1), None, (1.0, 1)]

    def test_a_count_that_was_set_back(self) -> None:
        assert then([running(5, end(0, 10))], [running(0)]) == (1.0, 1)
        assert then([running(5, end(0, 10))], [running(1, end(20, 30))]) is None


class TestSince:
    """Outcomes after a time that the status still shows."""

    @pytest.mark.parametrize(
        ("containers", "phase", "reward"),
        [
            ([running(at_s=50)], "Running", None),
            ([running(at_s=150)], "Running", 1.0),
            ([running(at_s=50), running(at_s=150)], "Running", 1.0),
            ([waiting()], "Running", None),
            ([], "Running", None),
            ([terminated(0, 50)], "Running", None),
            ([terminated(0, 150)], "Running", 0.5),
            ([running(1, end(0, 150), at_s=160)], "Running", 0.5),
            ([running(2, end(140, 150), at_s=160)], "Running", 0.0),
            ([running(1, end(0, 50), at_s=60)], "Running", None),
            ([terminated(0, 150)], "Failed", 0.0),
            ([terminated(0, 50)], "Failed", None),
            ([], "Failed", None),
            ([terminated(0, 150)], "Succeeded", None),
        ],
    )
    def test_a_time(self, containers: list[dict[str, Any]], phase: str, reward: float | None) -> None:
        outcome = pod_types_and_outcomes.outcome_since(
            pod("p", "n1", *containers, phase=phase), START + 100, MTTF_S
        )
        assert reward_and_times(outcome) == (None if reward is None else (reward, 1))


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01T00:00:00Z", "9" * 1000, None])
def test_a_time_that_is_none(text: str | None) -> None:
    odd = {"startedAt": text, "finishedAt": text}
    assert first({"state": {"terminated": odd}, "lastState": {"terminated": odd}}) == (0.0, 1)
    assert first({"state": {"running": {"startedAt": text}}}) == (1.0, 1)
    assert stamp(0) == "2026-11-21T11:00:00Z"


REPLICA_SET = {"kind": "ReplicaSet", "name": "web-5d4f8c7b9", "controller": True}
OWNED = {"kind": "Thing", "name": "other"}


@pytest.mark.parametrize(
    ("metadata", "type_"),
    [
        ({"labels": {"app": "x", "podtype": "D"}}, "D"),
        ({"labels": {"app": "x", "name": "y"}}, "x"),
        ({"labels": {"name": "y"}}, "y"),
        ({}, "p"),
        ({"labels": {"podtype": "", "app": "x"}}, "x"),
        ({"labels": {"other": "x"}, "ownerReferences": [OWNED, REPLICA_SET]}, "web-5d4f8c7b9"),
        ({"ownerReferences": [OWNED]}, "p"),
        ({"ownerReferences": [{**REPLICA_SET, "name": ""}]}, "p"),
        ({"labels": None, "ownerReferences": None}, "p"),
    ],
)
def test_a_pod_has_one_type_before_and_after_it_is_placed(metadata: dict[str, Any], type_: str) -> None:
    text = msgspec.json.encode({"metadata": {"name": "p", **metadata}})
    for kinds in ((PodFields,), (TelemetryPod, GpuPod, PodFields), (PodFields, GpuPod, TelemetryPod)):
        asking = msgspec.json.decode(text, type=merge("Pod", *kinds))
        assert pending_pod_type(asking) == type_
    assert bound_pod_type(msgspec.json.decode(text, type=ObservedPod)) == type_


@pytest.mark.parametrize(
    ("observed_pod", "held"),
    [
        (pod("p", "n1", running()), True),
        (pod("p", "", running()), False),
        (pod("p", "n1", phase="Pending"), False),
        (pod("p", "n1", phase="Succeeded"), False),
        (pod("p", "n1", phase="Failed"), True),
        (pod("p", "n1", running(), namespace="other"), False),
        (pod("p", "n1", *[running()] * 64), True),
        (pod("p", "n1", *[running()] * 65), False),
    ],
)
def test_a_reduced_pod_has_only_the_fields_that_are_read(observed_pod: ObservedPod, held: bool) -> None:
    assert (make_pod_reducer(["d"])(observed_pod) is not None) is held


def test_a_reduced_pod_has_the_same_type_and_outcome() -> None:
    keep = make_pod_reducer(())
    held = keep(pod("p", "n1", running(), ownerReferences=[OWNED, REPLICA_SET]))
    assert held is not None
    assert msgspec.json.decode(msgspec.json.encode(held), type=ObservedPod) == held
    assert keep(held) == held
    assert bound_pod_type(held) == "D"


def test_the_kind_watches_pods() -> None:
    (watched,) = LearnedKind().watched(LearnedOptions())
    assert (watched.name, watched.resource.plural) == ("learned_pods", "pods")
