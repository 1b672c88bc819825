"""The notes for waiting pods of native mode: which rules reject how many nodes, and which pods get a note when."""

from typing import Any

import msgspec
import numpy as np
import pytest

from nodewise.base import cooperative_scheduling
from nodewise.metrics import missing_values
from nodewise.metrics.missing_values import NEVER_FETCHED, Cause
from nodewise.policies import native_mode_admission, native_mode_pods
from nodewise.policies.native_mode_pods import NoteSchedule, UnscheduledPod, UnscheduledTimes
from nodewise.policies.placement_policy import Comparison, Policy, PolicyKey
from nodewise.policies.policy_rejection_reasons import NeverFetched, RuleBroken
from nodewise.policies.rule_evaluation import AvoidVerdict
from nodewise.policies.state import PolicyState
from nodewise.policies.verdict_labels import label_key

MISMATCH = "0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector."


def state(name: str, *codes: int) -> PolicyState:
    """A policy with the codes of its nodes: 1 is too hot, 2 is too busy."""
    key = PolicyKey("PlacementPolicy", "web", name)
    reasons = tuple(
        RuleBroken(key, (Comparison(metric, "above", 80 * 10**9),)) for metric in ("temp", "load")
    )
    verdict = AvoidVerdict(np.array([*codes, 0], np.int16), reasons)
    return PolicyState(Policy(key, uid=name), verdict, ())


def note(*states: PolicyState, keys: tuple[str, ...] = ("cool", "calm")) -> str:
    by_key = native_mode_pods.states_by_label_key(states)
    return native_mode_pods.rejection_note(map(label_key, keys), by_key, 4)


def pod(name: str, namespace: str = "web", *, message: str = MISMATCH, gated: bool = False) -> UnscheduledPod:
    expression = {"key": label_key("cool"), "operator": "NotIn", "values": ["violating"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    body: dict[str, Any] = {
        "metadata": {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}"},
        "spec": {
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
            "schedulingGates": [{"name": native_mode_admission.GATE}] if gated else [],
        },
        "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]},
    }
    kept = native_mode_pods.keep_pod(msgspec.convert(body, UnscheduledPod))
    assert kept is not None
    return kept


def test_the_note_names_policies_rules_and_numbers_of_nodes() -> None:
    cool, calm = state("cool", 1, 1, 0, 0), state("calm", 0, 1, 2, 0)
    assert note(cool, calm) == (
        "policies reject 3 of 4 nodes: 2 placement policy web/cool: temp above 80;"
        " 1 placement policy web/calm: load above 80; 1 placement policy web/calm: temp above 80"
    )
    assert note(state("cool", 1, 1, 1, 1), calm, keys=("cool",)) == (
        "policies reject all 4 nodes: 4 placement policy web/cool: temp above 80"
    )
    assert note(state("cool", 0, 0, 0, 0), keys=("cool", "deleted")) == ""


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (NEVER_FETCHED, "no source has responded yet"),
        (
            missing_values.cause(
                "SourceUnreachable", "prometheus http://10.1.2.3", "is unreachable: no connection"
            ),
            "Prometheus is unreachable: no connection",
        ),
        (
            Cause("SeveralValuesPerNode", "Prometheus: values 7 and 8 of one node differ"),
            "values of one node differ",
        ),
        (Cause("InvalidValues", "Prometheus has invalid values: 7x"), "its values are invalid"),
        (Cause("InvalidQuery", "Prometheus cannot run the query: 1:6: secret{"), "the query cannot be run"),
    ],
)
def test_the_note_contains_the_cause_of_missing_values_without_data(cause: Cause, text: str) -> None:
    key = PolicyKey("PlacementPolicy", "web", "cool")
    verdict = AvoidVerdict(np.ones(5, np.int16), (NeverFetched(key, "temp", cause),))
    never_fetched = "policies reject all 4 nodes: 4 placement policy web/cool: metric temp was never fetched"
    assert note(PolicyState(Policy(key, uid="cool"), verdict, ())) == f"{never_fetched}: {text}"


def test_the_note_is_short() -> None:
    states = [state(f"p{number}", 1, 0, 0, 0) for number in range(30)]
    text = note(*states, keys=tuple(f"p{number}" for number in range(30)))
    assert text.endswith("; and 25 more reasons")
    assert len(text) < 500


def texts(pods: list[UnscheduledPod], *states: PolicyState, deleted: tuple[str, ...] = ()) -> list[str]:
    """The texts of the Events that are due."""
    by_key = native_mode_pods.states_by_label_key(states)
    due = NoteSchedule().due(pods, by_key, frozenset(map(label_key, deleted)), 4, 0.0)
    notes = cooperative_scheduling.run_without_pauses(due)
    return [native_mode_pods.event_text(waiting, text) for waiting, text in notes]


def test_the_event_has_a_remedy() -> None:
    (text,) = texts([pod("waits")], state("cool", 1, 1, 0, 0))
    assert text == (
        "policies reject 2 of 4 nodes: 2 placement policy web/cool: temp above 80; relax a rule, or wait until nodes"
        " recover: nodewise explain web/waits shows each node"
    )


def test_event_about_a_metric_without_values_proposes_no_other_rule() -> None:
    key = PolicyKey("PlacementPolicy", "web", "cool")
    reason = NeverFetched(key, "temp", Cause("NoSeries", "no series of temp"))
    verdict = AvoidVerdict(np.ones(5, np.int16), (reason,))
    (text,) = texts([pod("waits")], PolicyState(Policy(key, uid="cool"), verdict, ()))
    assert "; the status of the policy has the remedy: nodewise explain web/waits shows each node" in text
    assert "relax" not in text


def test_a_pod_of_a_deleted_policy_gets_an_event() -> None:
    (text,) = texts([pod("waits")], deleted=("cool", "other"))
    assert text == (
        "the pod requires node labels of policies that do not exist any more:"
        " policy.nodewise.node-restriction.kubernetes.io/cool; create it again to remove the requirement: nodewise"
        " explain web/waits shows each node"
    )
    assert texts([pod("waits")], deleted=("other",)) == []
    assert texts([pod("new", message=""), pod("gated", gated=True)], deleted=("cool",)) == []


def test_a_pod_that_requires_the_label_of_a_policy_beyond_the_budget_gets_an_event() -> None:
    beyond = state("cool", 1, 0, 0, 0)
    policy = msgspec.structs.replace(
        beyond.policy, no_verdict_label="native mode does not enforce it: no space"
    )
    (text,) = texts([pod("waits")], beyond._replace(policy=policy))
    assert text == (
        "the pod requires the node label of placement policy web/cool, which is not set: native mode does not enforce"
        " it: no space; create it again to remove the requirement: nodewise explain web/waits shows each node"
    )


def test_the_note_names_some_labels_of_many_deleted_policies() -> None:
    assert native_mode_pods.deletion_note(map(str, range(9))) == (
        "the pod requires node labels of policies that do not exist any more: 0, 1, 2, 3, 4 and 4 more;"
        " create it again to remove the requirement"
    )


def test_the_note_about_policies_of_others_names_no_detail() -> None:
    foreign = "the pod requires node labels of policies that are not its own; create it again to remove the requirement"
    only_foreign = msgspec.structs.replace(pod("other"), keys=frozenset(), names_foreign_key=True)
    assert texts([only_foreign]) == [f"{foreign}: nodewise explain web/other shows each node"]
    both = msgspec.structs.replace(pod("both"), names_foreign_key=True)
    (text,) = texts([both], deleted=("cool",))
    assert f"; {foreign}: " in text


def due(
    schedule: NoteSchedule,
    now_s: float,
    *pods: UnscheduledPod,
    codes: tuple[int, ...] = (1, 0, 0, 0),
    waits: UnscheduledTimes | None = None,
) -> Any:
    """The pods whose note is due, by namespace and name; all count as having got it."""
    states = native_mode_pods.states_by_label_key([state("cool", *codes)])
    new = cooperative_scheduling.run_without_pauses(waits.find_new(pods, states, 4, now_s)) if waits else ()
    notes = cooperative_scheduling.run_without_pauses(schedule.due(pods, states, frozenset(), 4, now_s, new))
    for waiting, text in notes:
        schedule.record(waiting, text, now_s)
    return [f"{waiting.metadata.namespace}/{waiting.metadata.name}" for waiting, _ in notes]


def test_only_pods_that_kube_scheduler_found_no_node_for_get_a_note() -> None:
    pods = [
        pod("waits"),
        pod("gated", gated=True),
        pod("new", message=""),
        pod("large", message="0/4 nodes are available: 4 Insufficient cpu."),
    ]
    schedule = NoteSchedule()
    assert due(schedule, 0.0, *pods) == ["web/waits"]
    assert schedule.waiting_pods == 2, "with the gated pod"
    assert due(schedule, 1.0, *pods) == []
    assert schedule.waiting_pods == 2, "although the note is not repeated"
    assert due(schedule, 2.0, *pods, codes=(0, 0, 0, 0)) == []
    assert schedule.waiting_pods == 1


def test_a_note_is_repeated_rarely_and_a_new_one_not_at_once() -> None:
    schedule, waits = NoteSchedule(), pod("waits")
    assert due(schedule, 0.0, waits) == ["web/waits"]
    assert due(schedule, 29.0, waits, codes=(1, 1, 0, 0)) == []
    assert due(schedule, 30.0, waits, codes=(1, 1, 0, 0)) == ["web/waits"]
    assert due(schedule, 629.0, waits, codes=(1, 1, 0, 0)) == []
    assert due(schedule, 630.0, waits, codes=(1, 1, 0, 0)) == ["web/waits"]


def test_a_note_is_not_repeated_because_a_node_was_accepted_for_a_moment() -> None:
    schedule, waits, waiting = NoteSchedule(), UnscheduledTimes(), pod("waits")
    every_node, some_nodes = (1, 1, 1, 1), (1, 1, 1, 0)
    assert due(schedule, 0.0, waiting, codes=every_node, waits=waits) == ["web/waits"]
    assert due(schedule, 5.0, waiting, codes=some_nodes, waits=waits) == []
    assert due(schedule, 10.0, waiting, codes=every_node, waits=waits) == []
    assert due(schedule, 40.0, waiting, codes=some_nodes, waits=waits) == []
    assert due(schedule, 600.0, waiting, codes=every_node, waits=waits) == ["web/waits"]


def test_namespaces_take_turns() -> None:
    schedule = NoteSchedule()
    pods = [pod(name, namespace) for namespace in ("a", "b") for name in "xyz"]
    assert due(schedule, 0.0, *pods[:1]) == ["a/x"]
    assert due(schedule, 1.0, *pods) == ["b/x", "a/y", "b/y", "a/z", "b/z"]
