"""The Event of a pod of native mode that kube-scheduler finds no node for. No I/O.

It names the rules that reject nodes, and the labels that the pod requires of deleted policies. It tells nothing about
policies that are not the pod's own.

kube-scheduler itself only counts nodes that "didn't match Pod's node affinity/selector".
"""

from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from itertools import chain, zip_longest
from typing import Final

import numpy as np

from nodewise.agent.verdicts import Reason
from nodewise.policies import policy_selection, verdict_labels
from nodewise.policies.state import PolicyState
from nodewise.policies.unscheduled_pods import UnscheduledPod

_MAX_REASONS: Final = 5
"""Reasons, and labels of deleted policies, that a note names."""
_CHANGED_S: Final = 30.0
"""The shortest time between two notes with different texts for one pod. Counts of nodes may change all the time."""
_REPEATED_S: Final = 600.0
"""The time after which a pod that still waits gets the same note again."""


def rejection_note(keys: Iterable[str], states: Mapping[str, PolicyState], node_count: int) -> str:
    """How many nodes the policies with these label keys reject, and the most frequent reasons; empty if none.

    `states` are the policies by label key. Everyone who may read a pod's events reads the note, so it contains no
    measured value; a metric may belong to another tenant.
    """
    rejected = np.zeros(node_count, np.bool_)
    counts: Counter[Reason] = Counter()
    for key in sorted(keys):
        state = states.get(key)
        if state is None or state.verdict is None or state.policy.no_verdict_label:
            continue
        codes = state.verdict.codes[:-1]
        rejected |= codes > 0
        for code, count in zip(*np.unique(codes[codes > 0], return_counts=True), strict=True):
            counts[state.verdict.reasons[int(code) - 1]] += int(count)
    total = int(np.count_nonzero(rejected))
    if not total:
        return ""
    common = sorted(counts.items(), key=lambda item: (-item[1], item[0].text()))
    listed = "; ".join(f"{count} {reason.text()}" for reason, count in common[:_MAX_REASONS])
    more = f"; and {len(common) - _MAX_REASONS} more reasons" if len(common) > _MAX_REASONS else ""
    many = "all" if total == node_count else f"{total} of"
    return f"policies reject {many} {node_count} nodes: {listed}{more}"


def deletion_note(keys: Iterable[str]) -> str:
    """That the pod requires the labels with these keys, whose policies do not exist any more; empty for no keys."""
    ordered = sorted(keys)
    if not ordered:
        return ""
    listed = ", ".join(ordered[:_MAX_REASONS])
    more = f" and {len(ordered) - _MAX_REASONS} more" if len(ordered) > _MAX_REASONS else ""
    return (
        f"the pod requires node labels of policies that do not exist any more: {listed}{more};"
        " create it again to remove the requirement"
    )


def _missing_label_note(keys: Iterable[str], states: Mapping[str, PolicyState]) -> str:
    """That the pod requires the label of a policy beyond the budget, which has none; empty for no such key."""
    policies = [
        states[key].policy for key in sorted(keys) if key in states and states[key].policy.no_verdict_label
    ]
    if not policies:
        return ""
    more = f"; the same for {len(policies) - 1} more policies" if len(policies) > 1 else ""
    policy = policies[0]
    return (
        f"the pod requires the node label of {policy.key.text()}, which is not set: {policy.no_verdict_label}{more};"
        " create it again to remove the requirement"
    )


_FOREIGN: Final = (
    "the pod requires node labels of policies that are not its own; create it again to remove the requirement"
)
"""Without the key, the policy or the nodes that it rejects: the policy may be of another tenant."""


def _note(
    pod: UnscheduledPod, states: Mapping[str, PolicyState], deleted: frozenset[str], node_count: int
) -> str:
    """Why no node matches the requirements of a pod, and what to do; empty if nodewise is not why."""
    rejection = rejection_note(pod.keys, states, node_count)
    parts = [f"{rejection}; relax a rule, or wait until nodes recover" if rejection else ""]
    parts.append(_missing_label_note(pod.keys, states))
    parts.append(deletion_note(pod.keys & deleted))
    parts.append(_FOREIGN if pod.names_foreign_key else "")
    return "; ".join(filter(None, parts))


def event_text(pod: UnscheduledPod, note: str) -> str:
    """The text of the Event with a note for a pod."""
    return f"{note}: nodewise explain {pod.metadata.namespace}/{pod.metadata.name} shows each node"


def states_by_label_key(states: Iterable[PolicyState]) -> dict[str, PolicyState]:
    """The policies that have a label, by its key."""
    return {
        verdict_labels.label_key(state.policy.uid): state
        for state in states
        if state.policy.uid and policy_selection.has_labels(state.policy)
    }


class NoteSchedule:
    """Which pods get a note now."""

    def __init__(self) -> None:
        self._sent: dict[str, tuple[str, float]] = {}
        """By uid of a pod, its last note and the monotonic time."""
        self._turns: dict[str, float] = {}
        """By namespace, the monotonic time of its last note."""

    def due(
        self,
        pods: Iterable[UnscheduledPod],
        states: Mapping[str, PolicyState],
        deleted: frozenset[str],
        node_count: int,
        now_s: float,
    ) -> Generator[None, None, list[tuple[UnscheduledPod, str]]]:
        """The pods whose note is due. Namespaces take turns, beginning with the one whose turn was longest ago.

        The pods have only keys of their own policies, and of deleted ones (`pod_policy_keys`). `states` are the
        policies by label key, `deleted` the keys of policies that do not exist any more. Pods with the same
        requirements have the same note. Yields between pods.
        """
        notes: dict[tuple[frozenset[str], bool], str] = {}
        queues: dict[str, list[tuple[UnscheduledPod, str]]] = {}
        sent: dict[str, tuple[str, float]] = {}
        for pod in pods:
            yield
            uid = pod.metadata.uid
            if uid in self._sent:
                sent[uid] = self._sent[uid]
            if not pod.lacks_matching_node or pod.gate >= 0:
                continue
            required = (pod.keys, pod.names_foreign_key)
            if required not in notes:
                notes[required] = _note(pod, states, deleted, node_count)
            note = notes[required]
            if note and self._is_due(uid, note, now_s):
                queues.setdefault(pod.metadata.namespace, []).append((pod, note))
        self._sent = sent
        return self._in_turns(queues)

    def _in_turns(
        self, queues: Mapping[str, list[tuple[UnscheduledPod, str]]]
    ) -> list[tuple[UnscheduledPod, str]]:
        self._turns = {name: at_s for name, at_s in self._turns.items() if name in queues}
        names = sorted(queues, key=lambda name: (self._turns.get(name, float("-inf")), name))
        turns = chain.from_iterable(zip_longest(*(queues[name] for name in names)))
        return [pod_note for pod_note in turns if pod_note is not None]

    def record(self, pod: UnscheduledPod, note: str, now_s: float) -> None:
        """The pod got this note."""
        self._sent[pod.metadata.uid] = note, now_s
        self._turns[pod.metadata.namespace] = now_s

    def _is_due(self, uid: str, note: str, now_s: float) -> bool:
        if uid not in self._sent:
            return True
        sent, at_s = self._sent[uid]
        return now_s - at_s >= (_REPEATED_S if sent == note else _CHANGED_S)
