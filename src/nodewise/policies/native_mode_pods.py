"""Pods of native mode that have no node: the labels with verdicts that they require or lack, their gate, and the Event
that says why kube-scheduler finds no node. No I/O.

A pod may require labels with verdicts of policies of its namespace, and of ClusterPlacementPolicies that select it.
Everyone who may create pods can name any key, and the uids of all policies stand on nodes. A key of another policy must
neither cause labels nor tell anything about the policy.

The API server adds the requirement for the label of a policy when a pod is created. A pod lacks it if it is older than
the policy, if selectors or labels have changed since, or if the admission policies of `deploy/native.yaml` are not in
effect. kube-scheduler then places the pod without the policy.

The Event names the rules that reject nodes, and the labels that the pod requires of deleted policies. It tells nothing
about policies that are not the pod's own. kube-scheduler itself only counts nodes that "didn't match Pod's node
affinity/selector".
"""

from collections import Counter
from collections.abc import Container, Generator, Iterable, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from nodewise.base.errors import list_first
from nodewise.policies import policy_selection, verdict_labels
from nodewise.policies.native_mode_admission import GATE
from nodewise.policies.node_labels import interleave
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.policy_selection import PodFields, PodMetadata, SelectionIndex
from nodewise.policies.rule_evaluation import AvoidVerdict
from nodewise.policies.selected_pods import ListedPodMetadata, PodLabelGroup, PodLabelGroups
from nodewise.policies.state import PolicyState
from nodewise.policies.verdict_labels import LabelledPolicy, NodeConstraints, PodConditions

_NAME_FIELD: Final = "metadata.name"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_MAX_TERMS: Final = 64
"""Node selector terms of a pod to which requirements are added."""
_MISMATCH: Final = "didn't match Pod's node affinity/selector"
"""A part of kube-scheduler's message (v1.36 plugins/nodeaffinity/node_affinity.go, ErrReasonPod)."""


class _Gate(msgspec.Struct, frozen=True):
    name: str = ""


class _Spec(NodeConstraints, frozen=True):
    schedulingGates: tuple[_Gate, ...] | None = None  # noqa: N815


class _Metadata(ListedPodMetadata, frozen=True):
    uid: str = ""


class _TermShape(NamedTuple):
    """A required node selector term, as far as a JSON patch needs it."""

    is_empty: bool
    """Without requirements it matches no node."""
    has_fields: bool
    excluded: frozenset[str]
    """The nodes that it excludes by name."""


class _AffinityShape(NamedTuple):
    """The parts of a pod's affinity that a JSON patch needs to exclude nodes by name."""

    has_affinity: bool
    has_node_affinity: bool
    terms: tuple[_TermShape, ...] | None
    """None if the pod has no required node affinity."""


class UnscheduledPod(msgspec.Struct, frozen=True):
    """A pod without a node."""

    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()
    status: PodConditions = PodConditions()
    keys: frozenset[str] = frozenset()
    """The keys of labels with verdicts that it requires. Set for a stored pod, whose spec and status are dropped."""
    keys_with_ok: frozenset[str] = frozenset()
    """Those of which it requires the value `ok`."""
    gate: int = -1
    """The position of our gate among its gates; -1 without it, and if the pod requires so many labels that it stays."""
    lacks_matching_node: bool = False
    """Whether kube-scheduler reports nodes that do not match the node affinity or node selector of the pod."""
    affinity: _AffinityShape | None = None
    """Set for a stored pod with our gate and a limited number of terms."""
    group: PodLabelGroup | None = None
    """Its labels, by which policies select it. The leader sets it; None for a pod with very many labels."""
    names_foreign_key: bool = False
    """Whether it requires labels of policies that are not its own."""


def keep_pod(pod: UnscheduledPod) -> UnscheduledPod | None:
    """The pod as it is stored; None for a pod that native mode does not concern."""
    required = verdict_labels.required_verdicts(pod.spec)
    gates = [gate.name for gate in pod.spec.schedulingGates or ()]
    # of more keys, those that are not read may be of policies that are not active; only tenants add so many
    gate = gates.index(GATE) if GATE in gates and len(required) < verdict_labels.MAX_KEYS else -1
    if not required and gate < 0:
        return None
    metadata = pod.metadata
    return UnscheduledPod(
        _Metadata(metadata.name, metadata.namespace, uid=metadata.uid),
        keys=frozenset(requirement.key for requirement in required),
        keys_with_ok=frozenset(requirement.key for requirement in required if requirement.needs_ok),
        gate=gate,
        lacks_matching_node=_MISMATCH in pod.status.unscheduled_message(),
        affinity=_affinity_shape(pod.spec) if gate >= 0 else None,
    )


def _affinity_shape(  # complexity: every level may be absent
    spec: _Spec,
) -> _AffinityShape | None:
    node_affinity = spec.affinity.nodeAffinity if spec.affinity else None
    required = node_affinity.requiredDuringSchedulingIgnoredDuringExecution if node_affinity else None
    terms = (required.nodeSelectorTerms or ()) if required else ()
    if len(terms) > _MAX_TERMS:
        return None
    shapes = []
    for term in terms:
        excluded = [
            field.values or ()
            for field in term.matchFields or ()
            if (field.key, field.operator) == (_NAME_FIELD, "NotIn")
        ]
        is_empty = not (term.matchExpressions or term.matchFields)
        names = frozenset(chain.from_iterable(excluded))
        shapes.append(_TermShape(is_empty, bool(term.matchFields), names))
    return _AffinityShape(
        spec.affinity is not None, node_affinity is not None, tuple(shapes) if required else None
    )


def required_keys(pods: Iterable[UnscheduledPod]) -> frozenset[str]:
    """The keys of all labels that pods require."""
    return frozenset(chain.from_iterable(pod.keys for pod in pods))


def keys_with_ok(pods: Iterable[UnscheduledPod]) -> frozenset[tuple[str, str]]:
    """The keys of which pods require the value `ok`, each with the namespace of a pod, and with an empty one.

    A policy selects no pods of other namespaces, so what they require must not cause labels. An empty namespace stands
    for a ClusterPlacementPolicy.
    """
    required = {(pod.metadata.namespace, key) for pod in pods for key in pod.keys_with_ok}
    return frozenset(required | {("", key) for _, key in required})


def count_rejected(pods: Iterable[UnscheduledPod]) -> int:
    """The number of pods that kube-scheduler rejected by node labels. It examines them whenever a label changes."""
    return sum(pod.lacks_matching_node and pod.gate < 0 for pod in pods)


def releasable_pods(pods: Iterable[UnscheduledPod], settled: frozenset[str]) -> list[UnscheduledPod]:
    """The pods whose gate is to be removed: all their keys are `settled`. Namespaces take turns."""
    queues: dict[str, list[UnscheduledPod]] = {}
    for pod in pods:
        if pod.gate >= 0 and pod.keys <= settled:
            queues.setdefault(pod.metadata.namespace, []).append(pod)
    return interleave(queues.values())


def gate_removal(pod: UnscheduledPod, excluded: frozenset[str] = frozenset()) -> list[dict[str, Any]] | None:
    """The JSON patch that removes our gate and excludes nodes by their names; None for a pod with too many terms.

    It fails if the pod is another one or its gates have changed. The API server lets requirements be added to the node
    affinity of a pod with gates, and not be removed (validation.go of v1.36, `validateNodeAffinityMutation`).
    """
    path = f"/spec/schedulingGates/{pod.gate}"
    exclusions = _exclusions(pod.affinity, sorted(excluded)) if excluded else []
    if exclusions is None:
        return None
    return [
        {"op": "test", "path": "/metadata/uid", "value": pod.metadata.uid},
        {"op": "test", "path": path, "value": {"name": GATE}},
        *exclusions,
        {"op": "remove", "path": path},
    ]


def _exclusions(  # complexity: every level of the affinity may be absent
    shape: _AffinityShape | None, excluded: list[str]
) -> list[dict[str, Any]] | None:
    """The operations that exclude nodes by name in every term. Nodes have to meet one term only."""
    if shape is None:
        return None
    fields = {name: {"key": _NAME_FIELD, "operator": "NotIn", "values": [name]} for name in excluded}
    if shape.terms is None:
        path = f"/spec/affinity/nodeAffinity/{_REQUIRED}"
        value: dict[str, Any] = {"nodeSelectorTerms": [{"matchFields": list(fields.values())}]}
        if not shape.has_node_affinity:
            path, value = "/spec/affinity/nodeAffinity", {_REQUIRED: value}
        if not shape.has_affinity:
            path, value = "/spec/affinity", {"nodeAffinity": value}
        return [{"op": "add", "path": path, "value": value}]
    patch: list[dict[str, Any]] = []
    for number, term in enumerate(shape.terms):
        path = f"/spec/affinity/nodeAffinity/{_REQUIRED}/nodeSelectorTerms/{number}/matchFields"
        missing = [field for name, field in fields.items() if name not in term.excluded]
        if term.is_empty or not missing:
            continue
        if term.has_fields:
            patch += [{"op": "add", "path": f"{path}/-", "value": field} for field in missing]
        else:
            patch.append({"op": "add", "path": path, "value": missing})
    return patch


def remove_foreign_keys(
    pods: Iterable[UnscheduledPod], policies: Mapping[str, PolicyKey], selection: SelectionIndex
) -> Generator[None, None, list[UnscheduledPod]]:
    """The pods without the keys of policies that are not theirs (`names_foreign_key`). Keys of no policy stay.

    `policies` are all policies by label key. Use the result for everything that others can see. A scheduling gate has
    to wait for all keys of a pod: its labels may have changed since a ClusterPlacementPolicy selected it. Yields
    between pods.
    """
    selected: dict[PodLabelGroup, frozenset[PolicyKey]] = {}

    def is_foreign(policy: PolicyKey, pod: UnscheduledPod) -> bool:
        # without known labels, no ClusterPlacementPolicy selects the pod
        if policy.namespace or pod.group is None:
            return policy.namespace != pod.metadata.namespace
        if pod.group not in selected:
            # without its owners: a pod that the DaemonSet controller did not create has requirements, whoever it names
            fields = PodFields(PodMetadata(pod.group.namespace, pod.group.pod().metadata.labels))
            selected[pod.group] = frozenset(selection.select(fields))
        return policy not in selected[pod.group]

    result = []
    for pod in pods:
        yield
        foreign = {key for key in pod.keys & policies.keys() if is_foreign(policies[key], pod)}
        if not foreign:
            result.append(pod)
            continue
        keys, keys_with_ok = pod.keys - foreign, pod.keys_with_ok - foreign
        result.append(
            msgspec.structs.replace(pod, keys=keys, keys_with_ok=keys_with_ok, names_foreign_key=True)
        )
    return result


_REMEMBERED_S: Final = 3600.0
_MAX_GROUPS: Final = 100
"""Groups of pods with equal labels that are remembered of each namespace: those that were seen last. The labels of a
group may take 16 KiB.
"""


class _NewestPod(NamedTuple):
    """The pod of a group that was last seen without a node."""

    name: str
    keys: frozenset[str]
    """The labels with verdicts that it requires or prefers."""
    at_s: float


class UncoveredPods:
    """Remembers the newest unscheduled pod of each group of pods with equal labels."""

    def __init__(self) -> None:
        self._groups = PodLabelGroups()
        self._newest: dict[str, dict[PodLabelGroup, _NewestPod]] = {}
        """By namespace, those seen last at the end."""

    def record(self, pod: UnscheduledPod, now_s: float) -> PodLabelGroup | None:
        """A pod as the API server returned it, before it has a node, and its group; None for a pod that is not counted.
        `now_s` is monotonic.
        """
        metadata = pod.metadata
        group = self._groups.group(metadata)
        if group is None:
            return None
        required = verdict_labels.verdict_requirements(pod.spec)
        keys = frozenset(requirement.key for requirement in required)
        newest = self._newest.setdefault(metadata.namespace, {})
        newest.pop(group, None)
        newest[group] = _NewestPod(metadata.name, keys, now_s)
        if len(newest) > _MAX_GROUPS:
            del newest[next(iter(newest))]
        return group

    def find(
        self, selection: SelectionIndex, policies: Mapping[PolicyKey, LabelledPolicy], now_s: float
    ) -> Generator[None, None, dict[str, str]]:
        """By uid of a policy, a pod that it selects and that does not require its label. Yields between groups."""
        result: dict[str, str] = {}
        self._forget(now_s)
        for group, newest in list(chain.from_iterable(groups.items() for groups in self._newest.values())):
            fields = group.pod()
            for key in selection.select(fields):
                labelled = policies.get(key)
                if labelled is None or labelled.label in newest.keys:
                    continue
                if policy_selection.is_enforced_for(labelled.policy, fields):
                    result[labelled.policy.uid] = f"{group.namespace}/{newest.name}"
            yield
        return result

    def _forget(self, now_s: float) -> None:
        """Drop groups that were not seen for `_REMEMBERED_S`, and namespaces without a group."""
        for namespace, groups in list(self._newest.items()):
            for group, newest in list(groups.items()):
                if now_s - newest.at_s <= _REMEMBERED_S:
                    break  # the others were seen later
                del groups[group]
            if not groups:
                del self._newest[namespace]


_MAX_REASONS: Final = 5
"""Reasons, and labels of deleted policies, that a note names."""
_CHANGED_S: Final = 30.0
"""The shortest time between two notes with different texts for one pod. Counts of nodes may change all the time."""
_GRACE_S: Final = 5.0
"""The time that a pod must wait for a note if its policies accept a node, to which kube-scheduler may be about to bind
it: labels may just have been written. It is the default refresh period."""
_REPEATED_S: Final = 600.0
"""The time after which a pod that still waits gets the same note again."""


def rejection_note(keys: Iterable[str], states: Mapping[str, PolicyState], node_count: int) -> str:
    """How many nodes the policies with these label keys reject, and the most frequent reasons; empty if none.

    `states` are the policies by label key. Everyone who may read a pod's events reads the note, so it contains no
    measured value; a metric may belong to another tenant.
    """
    counts: Counter[str] = Counter()
    verdicts = _labelled_verdicts(keys, states)
    for verdict in verdicts:
        codes = verdict.codes[:-1]
        for code, count in zip(*np.unique(codes[codes > 0], return_counts=True), strict=True):
            counts[verdict.reasons[int(code) - 1].text()] += int(count)
    total = _count_rejected_nodes(verdicts, node_count)
    if not total:
        return ""
    common = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    listed = "; ".join(f"{count} {reason}" for reason, count in common[:_MAX_REASONS])
    more = f"; and {len(common) - _MAX_REASONS} more reasons" if len(common) > _MAX_REASONS else ""
    many = "all" if total == node_count else f"{total} of"
    return f"policies reject {many} {node_count} nodes: {listed}{more}"


def _rejection_remedy(keys: Iterable[str], states: Mapping[str, PolicyState]) -> str:
    """What to do about rejected nodes: where no rule was evaluated, no rule has to be relaxed."""
    for verdict in _labelled_verdicts(keys, states):
        codes = np.unique(verdict.codes[:-1])
        if any(not verdict.reasons[int(code) - 1].is_failure for code in codes if code):
            return "relax a rule, or wait until nodes recover"
    return "the status of the policy has the remedy"


def _labelled_verdicts(keys: Iterable[str], states: Mapping[str, PolicyState]) -> list[AvoidVerdict]:
    """The verdicts of the policies with these label keys, as far as nodes have the labels."""
    known = (states[key] for key in sorted(keys) if key in states)
    return [
        state.verdict for state in known if state.verdict is not None and not state.policy.no_verdict_label
    ]


def _count_rejected_nodes(verdicts: Iterable[AvoidVerdict], node_count: int) -> int:
    """The number of nodes that one of the verdicts rejects."""
    rejected = np.zeros(node_count, np.bool_)
    for verdict in verdicts:
        rejected |= verdict.codes[:-1] > 0
    return int(np.count_nonzero(rejected))


def deletion_note(keys: Iterable[str]) -> str:
    """That the pod requires the labels with these keys, whose policies do not exist any more; empty for no keys."""
    ordered = sorted(keys)
    if not ordered:
        return ""
    return (
        "the pod requires node labels of policies that do not exist any more:"
        f" {list_first(ordered, _MAX_REASONS)}; create it again to remove the requirement"
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
    parts = [f"{rejection}; {_rejection_remedy(pod.keys, states)}" if rejection else ""]
    policies = [states[key].policy for key in sorted(pod.keys) if key in states]
    without_label = [policy for policy in policies if policy.no_verdict_label]
    if without_label:  # beyond the budget
        policy, count = without_label[0], len(without_label) - 1
        more = f"; the same for {count} more policies" if count else ""
        parts.append(
            f"the pod requires the node label of {policy.key.text()}, which is not set:"
            f" {policy.no_verdict_label}{more}; create it again to remove the requirement"
        )
    parts.append(deletion_note(pod.keys & deleted))
    parts.append(_FOREIGN if pod.names_foreign_key else "")
    return "; ".join(filter(None, parts))


def event_text(pod: UnscheduledPod, note: str) -> str:
    return f"{note}: nodewise explain {pod.metadata.namespace}/{pod.metadata.name} shows each node"


def states_by_label_key(states: Iterable[PolicyState]) -> dict[str, PolicyState]:
    """The policies that have a label, by its key."""
    return {
        verdict_labels.label_key(state.policy.uid): state
        for state in states
        if state.policy.uid and policy_selection.has_labels(state.policy)
    }


class UnscheduledTimes:
    """Since when pods wait although their policies accept a node."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        """By uid of a pod that kube-scheduler rejected by node labels, the monotonic time."""

    def find_new(
        self,
        pods: Iterable[UnscheduledPod],
        states: Mapping[str, PolicyState],
        node_count: int,
        now_s: float,
    ) -> Generator[None, None, frozenset[str]]:
        """The uids of the pods that wait for less than `_GRACE_S` although their policies accept a node.

        `states` are the policies by label key. Yields between pods.
        """
        since_s: dict[str, float] = {}
        rejected: dict[frozenset[str], int] = {}
        for pod in pods:
            yield
            uid = pod.metadata.uid
            if pod.keys not in rejected:
                rejected[pod.keys] = _count_rejected_nodes(_labelled_verdicts(pod.keys, states), node_count)
            if pod.lacks_matching_node and 0 < rejected[pod.keys] < node_count:
                since_s[uid] = self._since_s.get(uid, now_s)
        self._since_s = since_s
        return frozenset(uid for uid, at_s in since_s.items() if now_s - at_s < _GRACE_S)


class NoteSchedule:
    """Which pods get a note now."""

    def __init__(self) -> None:
        self.waiting_pods = 0
        """Pods of the last call that wait for policies: with our gate, or rejected while a note applies to them."""
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
        new: Container[str] = (),
    ) -> Generator[None, None, list[tuple[UnscheduledPod, str]]]:
        """The pods whose note is due. Namespaces take turns, beginning with the one whose turn was longest ago.

        The pods have only keys of their own policies, and of deleted ones. `states` are the policies by label key,
        `deleted` the keys of policies that do not exist any more, and `new` the uids of pods that get no note yet. Pods
        with the same requirements have the same note. Yields between pods.
        """
        notes: dict[tuple[frozenset[str], bool], str] = {}
        queues: dict[str, list[tuple[UnscheduledPod, str]]] = {}
        sent: dict[str, tuple[str, float]] = {}
        waiting_pods = 0
        for pod in pods:
            yield
            uid = pod.metadata.uid
            if uid in self._sent:
                sent[uid] = self._sent[uid]
            waiting_pods += pod.gate >= 0
            if not pod.lacks_matching_node or pod.gate >= 0 or uid in new:
                continue
            required = (pod.keys, pod.names_foreign_key)
            if required not in notes:
                notes[required] = _note(pod, states, deleted, node_count)
            note = notes[required]
            waiting_pods += bool(note)
            if note and self._is_due(uid, note, now_s):
                queues.setdefault(pod.metadata.namespace, []).append((pod, note))
        self._sent, self.waiting_pods = sent, waiting_pods
        self._turns = {name: at_s for name, at_s in self._turns.items() if name in queues}
        names = sorted(queues, key=lambda name: (self._turns.get(name, float("-inf")), name))
        return interleave(queues[name] for name in names)

    def record(self, pod: UnscheduledPod, note: str, now_s: float) -> None:
        """The pod got this note."""
        self._sent[pod.metadata.uid] = note, now_s
        self._turns[pod.metadata.namespace] = now_s

    def _is_due(self, uid: str, note: str, now_s: float) -> bool:
        if uid not in self._sent:
            return True
        sent, at_s = self._sent[uid]
        return now_s - at_s >= (_REPEATED_S if sent == note else _CHANGED_S)
