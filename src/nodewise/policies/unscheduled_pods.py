"""Pods without a node that native mode concerns: what they require of labels with verdicts, and their gate. No I/O."""

from collections.abc import Iterable
from itertools import chain, zip_longest
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.policies import verdict_labels
from nodewise.policies.policy_selection import PodOwner
from nodewise.policies.selected_pods import PodLabelGroup
from nodewise.policies.verdict_labels import NodeConstraints, Term

GATE: Final = "nodewise.io/policy-not-active"
"""The scheduling gate of pods that were created before all nodes had the label of their policy."""

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


class _Condition(msgspec.Struct, frozen=True):
    type: str = ""
    status: str = ""
    message: str = ""


class _Status(msgspec.Struct, frozen=True):
    conditions: tuple[_Condition, ...] | None = None


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    ownerReferences: tuple[PodOwner, ...] | None = None  # noqa: N815
    """Not set for a stored pod, nor are its labels."""


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
    status: _Status = _Status()
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
    """Whether it requires labels of policies that are not its own (`pod_policy_keys`)."""


def keep_pod(pod: UnscheduledPod) -> UnscheduledPod | None:
    """The pod as it is stored; None for a pod that native mode does not concern."""
    required = [
        requirement
        for requirement in verdict_labels.verdict_requirements(pod.spec)
        if not requirement.is_preferred
    ]
    gate = _gate_position(pod.spec, len(required))
    if not required and gate < 0:
        return None
    keys = frozenset(requirement.key for requirement in required)
    with_ok = frozenset(requirement.key for requirement in required if requirement.needs_ok)
    metadata = _Metadata(pod.metadata.name, pod.metadata.namespace, pod.metadata.uid)
    lacks_node, shape = _reports_mismatch(pod.status), _affinity_shape(pod.spec) if gate >= 0 else None
    return UnscheduledPod(metadata, _Spec(), _Status(), keys, with_ok, gate, lacks_node, shape)


def _gate_position(spec: _Spec, key_count: int) -> int:
    """The position of our gate; -1 without it, or if it must stay.

    Keys that are not read may be those of policies that are not active; only tenants add so many.
    """
    gates = [gate.name for gate in spec.schedulingGates or ()]
    return gates.index(GATE) if GATE in gates and key_count < verdict_labels.MAX_KEYS else -1


def _affinity_shape(spec: _Spec) -> _AffinityShape | None:
    node_affinity = spec.affinity.nodeAffinity if spec.affinity else None
    required = node_affinity.requiredDuringSchedulingIgnoredDuringExecution if node_affinity else None
    terms = (required.nodeSelectorTerms or ()) if required else ()
    if len(terms) > _MAX_TERMS:
        return None
    shapes = tuple(map(_term_shape, terms))
    return _AffinityShape(spec.affinity is not None, node_affinity is not None, shapes if required else None)


def _term_shape(term: Term) -> _TermShape:
    excluded = [
        field.values or ()
        for field in term.matchFields or ()
        if (field.key, field.operator) == (_NAME_FIELD, "NotIn")
    ]
    is_empty = not (term.matchExpressions or term.matchFields)
    return _TermShape(is_empty, bool(term.matchFields), frozenset(chain.from_iterable(excluded)))


def _reports_mismatch(status: _Status) -> bool:
    return any(
        (condition.type, condition.status) == ("PodScheduled", "False") and _MISMATCH in condition.message
        for condition in status.conditions or ()
    )


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
    turns = chain.from_iterable(zip_longest(*queues.values()))
    return [pod for pod in turns if pod is not None]


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


def _exclusions(shape: _AffinityShape | None, excluded: list[str]) -> list[dict[str, Any]] | None:
    """The operations that exclude nodes by name in every term. Nodes have to meet one term only."""
    if shape is None:
        return None
    fields = {name: {"key": _NAME_FIELD, "operator": "NotIn", "values": [name]} for name in excluded}
    if shape.terms is None:
        return [_first_term(shape, {"matchFields": list(fields.values())})]
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


def _first_term(shape: _AffinityShape, term: dict[str, Any]) -> dict[str, Any]:
    """The operation that adds required node affinity to a pod without it."""
    value: dict[str, Any] = {"nodeSelectorTerms": [term]}
    path = f"/spec/affinity/nodeAffinity/{_REQUIRED}"
    if not shape.has_node_affinity:
        path, value = "/spec/affinity/nodeAffinity", {_REQUIRED: value}
    if not shape.has_affinity:
        path, value = "/spec/affinity", {"nodeAffinity": value}
    return {"op": "add", "path": path, "value": value}
