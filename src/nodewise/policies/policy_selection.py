"""Which policies select a pod, by its labels, its namespace and the labels of the namespace, and which of them have an
effect on it, by their mode (`spec.mode`). No I/O.

A pod names a TASPolicy by its label `telemetry-policy`. PlacementPolicies and ClusterPlacementPolicies select pods by
selectors. They never select pods of a DaemonSet, which belong to one node each, nor pods of `kube-system` and of
nodewise's own namespace, without which a cluster or nodewise could not recover. Everyone who may create pods can write
an owner reference, so a pod counts as one of a DaemonSet only if it can run on a single node: its creator could name
this node in `nodeName` as well. The admission policies know the creator, and compare that.

A policy is evaluated in each mode. For a pod on which it has no effect, decisions contain what it would reject, and
responses are those without the policy.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from nodewise.policies.placement_policy import Canary, LabelSelector, Mode, PodSelection, Policy, PolicyKey
from nodewise.policies.policy_namespace_trust import NamespaceObject

if TYPE_CHECKING:
    from nodewise.agent import ObjectKey

POLICY_LABEL: Final = "telemetry-policy"
"""The pod label that names a TASPolicy of the pod's own namespace."""
SYSTEM_NAMESPACE: Final = "kube-system"
"""The namespace without whose pods a cluster could not recover. As nodewise's own, it has no enforced policies."""
NAME_LABEL: Final = "kubernetes.io/metadata.name"
"""The label with the name of a namespace, which the API server sets (KEP-2161)."""
_MAX_REMEMBERED: Final = 64
"""Different pods of one namespace whose policies are remembered."""
_MAX_SHOWN_NOT_ENFORCED: Final = 10
"""Policies of one scope that are not enforced, and that decisions name all the same."""


class PodOwner(msgspec.Struct, frozen=True, gc=False):
    kind: str = ""
    name: str = ""
    controller: bool | None = None
    apiVersion: str = ""  # noqa: N815 - the API's name


class PodMetadata(msgspec.Struct, frozen=True):
    namespace: str = ""
    labels: dict[str, str] | None = None
    """All labels, because selectors may name any."""
    ownerReferences: tuple[PodOwner, ...] | None = None  # noqa: N815 - the API's name
    name: str = ""


class _FieldRequirement(msgspec.Struct, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class _Term(msgspec.Struct, frozen=True):
    matchFields: tuple[_FieldRequirement, ...] | None = None  # noqa: N815


class _NodeSelector(msgspec.Struct, frozen=True):
    nodeSelectorTerms: tuple[_Term, ...] | None = None  # noqa: N815


class _NodeAffinity(msgspec.Struct, frozen=True):
    requiredDuringSchedulingIgnoredDuringExecution: _NodeSelector | None = None  # noqa: N815


class _Affinity(msgspec.Struct, frozen=True):
    nodeAffinity: _NodeAffinity | None = None  # noqa: N815


class PodSpec(msgspec.Struct, frozen=True):
    """The field of a pod's spec by which the DaemonSet controller selects its node."""

    affinity: _Affinity | None = None

    def is_for_one_node(self) -> bool:
        """Whether required node affinity names one node in every term."""
        node_affinity = (self.affinity and self.affinity.nodeAffinity) or _NodeAffinity()
        required = node_affinity.requiredDuringSchedulingIgnoredDuringExecution or _NodeSelector()
        terms = required.nodeSelectorTerms or ()
        nodes = {_node_of_term(term) for term in terms}
        return len(nodes) == 1 and "" not in nodes


def _node_of_term(term: _Term) -> str:
    """The only node that a term can match; empty if it may match others."""
    for field in term.matchFields or ():
        if (field.key, field.operator) == ("metadata.name", "In") and len(field.values or ()) == 1:
            return (field.values or ("",))[0]
    return ""


class PodFields(msgspec.Struct, frozen=True):
    """The fields of a pod that are read."""

    metadata: PodMetadata = PodMetadata()
    spec: PodSpec = PodSpec()


def daemon_set_pod(namespace: str, labels: dict[str, str] | None) -> PodFields:
    """A pod as the DaemonSet controller creates it."""
    owner = PodOwner("DaemonSet", "", controller=True, apiVersion="apps/v1")
    term = _Term((_FieldRequirement("metadata.name", "In", ("any",)),))
    spec = PodSpec(_Affinity(_NodeAffinity(_NodeSelector((term,)))))
    return PodFields(PodMetadata(namespace, labels, (owner,)), spec)


class _Selecting(NamedTuple):
    """A policy, and which pods of a namespace it selects."""

    key: PolicyKey
    pods: LabelSelector
    is_by_policy_label: bool
    """Whether it is enforced, and selects only pods that name certain TASPolicies."""
    mode: Mode
    canary: Canary | None
    is_stepped_back: bool
    """A change of these three changes the equivalence keys of pods."""


class _Candidates(NamedTuple):
    """The policies that may select pods of one namespace."""

    policies: tuple[_Selecting, ...]
    label_keys: tuple[str, ...]
    """The label keys that their selectors name."""
    named: frozenset[PolicyKey]
    """The TASPolicies of the namespace."""
    selected: dict[tuple[str | None, ...], tuple[_Selecting, ...]]
    """By the values of these labels, the policies that select the pod: most pods are one of few replicas of another."""


class SelectionIndex:
    """The selectors of all policies, by namespace. It is computed again only if they or namespaces change."""

    def __init__(
        self,
        policies: Iterable[Policy],
        namespaces: "Mapping[ObjectKey, NamespaceObject]",
        own_namespace: str = "",
        before: "SelectionIndex | None" = None,
    ) -> None:
        """`before` is the index of the last state, whose unchanged parts are kept."""
        listed = list(policies)
        self._named: dict[str, set[PolicyKey]] = {}
        self._namespaces = namespaces
        self._excluded = frozenset(filter(None, (SYSTEM_NAMESPACE, own_namespace)))
        self._by_namespace: dict[str, list[_Selecting]] = {}
        self._cluster: list[tuple[_Selecting, LabelSelector]] = []
        """With the selectors of namespaces."""
        self._candidates: dict[str, _Candidates] = {}
        """By namespace, of earlier calls."""
        self._earlier: dict[str, _Candidates] = before.reusable_candidates(namespaces) if before else {}
        """By namespace, of earlier indexes."""
        for policy in listed:
            if policy.key.kind == "TASPolicy":
                self._named.setdefault(policy.namespace, set()).add(policy.key)
        self.canaries: Final[Mapping[PolicyKey, LabelSelector]] = {
            policy.key: policy.canary.pods
            for policy in listed
            if policy.mode == "Canary" and policy.canary is not None and policy.canary.pods is not None
        }
        """The pods for which policies in the mode Canary have an effect, among those that they select."""
        for policy in selectable_policies(listed):
            selection = policy.selection or PodSelection()
            selecting = _selecting(policy, selection)
            if policy.key.kind == "ClusterPlacementPolicy":
                self._cluster.append((selecting, selection.namespaces))
            else:
                self._by_namespace.setdefault(policy.namespace, []).append(selecting)

    def select(self, pod: PodFields) -> tuple[PolicyKey, ...]:
        """The policies of a pod: the TASPolicy that it names, PlacementPolicies, and ClusterPlacementPolicies; of one
        kind the oldest first.

        A TASPolicy that does not exist is one of them, unless another policy selects the pod by its label. So you can
        delete a TASPolicy after its conversion, and its pods keep their label.
        """
        metadata = pod.metadata
        labels = metadata.labels or {}
        keys = named_by_label(pod)
        namespace = metadata.namespace
        if namespace in self._excluded or is_of_daemon_set(pod):
            return keys
        policies, label_keys, named, selected_by_values = self._candidates_of(namespace)
        values = tuple(map(labels.get, label_keys))
        selecting = selected_by_values.get(values)
        if selecting is None:
            selecting = tuple(candidate for candidate in policies if candidate.pods.selects(labels))
            if len(selected_by_values) >= _MAX_REMEMBERED:
                selected_by_values.clear()
            selected_by_values[values] = selecting
        if not named.issuperset(keys) and any(candidate.is_by_policy_label for candidate in selecting):
            keys = ()
        return (*keys, *(candidate.key for candidate in selecting))

    def reusable_candidates(
        self, namespaces: "Mapping[ObjectKey, NamespaceObject]"
    ) -> dict[str, _Candidates]:
        """What the next index keeps if it is unchanged, by namespace."""
        known = self._earlier | self._candidates
        return {name: candidates for name, candidates in known.items() if ("", name) in namespaces}

    def version(self, namespace: str) -> object:
        """What the policies of pods of a namespace depend on: the same object unless that changed."""
        return self._candidates_of(namespace) if ("", namespace) in self._namespaces else self

    def _candidates_of(self, namespace: str) -> _Candidates:
        """The policies that may select pods of a namespace."""
        if namespace in self._candidates:
            return self._candidates[namespace]
        policies = (
            *self._by_namespace.get(namespace, ()),
            *(each for each, selector in self._cluster if self._selects(selector, namespace)),
        )
        requirements = (requirement for policy in policies for requirement in policy.pods.requirements)
        label_keys = tuple(dict.fromkeys(requirement.key for requirement in requirements))
        candidates = _Candidates(policies, label_keys, frozenset(self._named.get(namespace, ())), {})
        before = self._earlier.get(namespace)
        if before is not None and before[:3] == candidates[:3]:
            candidates = before
        if ("", namespace) in self._namespaces:  # the number of others has no limit
            self._candidates[namespace] = candidates
        return candidates

    def _selects(self, selector: LabelSelector, name: str) -> bool:
        """Whether a selector selects a namespace. Fails closed: it selects one whose labels are unknown.

        Where no namespace is known, as in files without Namespace objects, each has only the label with its name.
        """
        namespace = self._namespaces.get(("", name))
        if namespace is None:
            return bool(self._namespaces) or selector.selects({NAME_LABEL: name})
        # Namespace objects in files usually lack the label that the API server sets
        labels = {**(namespace.metadata.labels or {}), NAME_LABEL: name}
        return namespace.has_unknown_labels or selector.selects(labels)


def _selecting(policy: Policy, selection: PodSelection) -> _Selecting:
    by_label = any(
        requirement.key == POLICY_LABEL and requirement.operator == "In"
        for requirement in selection.pods.requirements
    )
    is_enforced = not policy.not_enforced and policy.mode == "Enforce"
    return _Selecting(
        policy.key, selection.pods, by_label and is_enforced, policy.mode, policy.canary, policy.stepped_back
    )


def selectable_policies(policies: Iterable[Policy]) -> list[Policy]:
    """The policies with selectors, the oldest first, with only a few of those that are not enforced."""
    shown: dict[str, int] = {}
    selectable = []
    for policy in sorted(policies, key=lambda policy: (policy.created, policy.name)):
        if policy.selection is None:
            continue
        if policy.not_enforced:
            count = shown[policy.namespace] = shown.get(policy.namespace, 0) + 1
            if count > _MAX_SHOWN_NOT_ENFORCED:
                continue
        selectable.append(policy)
    return selectable


def named_by_label(pod: PodFields) -> tuple[PolicyKey, ...]:
    """The TASPolicy that a pod names by its label; none without the label."""
    name = (pod.metadata.labels or {}).get(POLICY_LABEL)
    return () if name is None else (PolicyKey("TASPolicy", pod.metadata.namespace, name),)


def may_be_selected(pod: PodFields) -> bool:
    """Whether some policy might select the pod."""
    is_never_selected = pod.metadata.namespace == SYSTEM_NAMESPACE or is_of_daemon_set(pod)
    return bool(named_by_label(pod)) or not is_never_selected


def is_of_daemon_set(pod: PodFields) -> bool:
    """Whether the DaemonSet controller may have created the pod."""
    return has_daemon_set_owner(pod.metadata.ownerReferences) and pod.spec.is_for_one_node()


def has_daemon_set_owner(owners: tuple[PodOwner, ...] | None) -> bool:
    """Whether a DaemonSet of Kubernetes is the controller; not one of another API group, such as OpenKruise's."""
    return any(
        owner.kind == "DaemonSet" and owner.apiVersion.startswith("apps/") and owner.controller
        for owner in owners or ()
    )


_TEMPLATE_HASH_LABEL: Final = "pod-template-hash"
"""The label of a Deployment's pods with the end of the name of their ReplicaSet."""


def is_enforced_for(policy: Policy, pod: PodFields) -> bool:
    """Whether a policy has an effect on a pod that it selects."""
    if policy.stepped_back:
        return False
    if policy.mode != "Canary":
        return policy.mode == "Enforce"
    canary = policy.canary
    if canary is None:  # the policy is invalid, and fails closed
        return True
    if canary.pods is not None:
        return canary.pods.selects(pod.metadata.labels or {})
    return workload_place(policy.key, pod) < canary.percent


def taints_devices_of(policy: Policy, node: str) -> bool:
    """Whether the device rules of a policy have an effect on a node, or on a pool without a node.

    A canary has its percent of the nodes. A taint is for all pods, so a canary of pods has none.
    """
    if policy.stepped_back or policy.not_enforced or policy.mode != "Canary":
        return policy.mode == "Enforce" and not policy.stepped_back and not policy.not_enforced
    canary = policy.canary
    return canary is not None and canary.pods is None and _place_of(*policy.key, node) < canary.percent


def has_labels(policy: Policy) -> bool:
    """Whether pods can require labels with the verdicts of the policy, in native mode.

    The mutation has no hash function, so that a canary by percent is not possible there.
    """
    if policy.mode == "Canary":
        return not policy.stepped_back and (policy.canary is None or policy.canary.pods is not None)
    return not policy.only_observes


def workload_place(key: PolicyKey, pod: PodFields) -> int:
    """The place of a pod's workload, from 0 to 99: part of a canary if it is below its percent.

    It follows from the names of the policy and of the workload, so that all pods of a workload are in the canary or
    none, also after a roll-out or a restart, and a larger percent keeps the workloads of a smaller one.
    """
    metadata = pod.metadata
    owner = next((owner for owner in metadata.ownerReferences or () if owner.controller), None)
    kind, name = (owner.kind, owner.name) if owner else ("Pod", metadata.name)
    template_hash = (metadata.labels or {}).get(_TEMPLATE_HASH_LABEL)
    if kind == "ReplicaSet" and template_hash:
        kind, name = "Deployment", name.removesuffix(f"-{template_hash}")
    return _place_of(*key, metadata.namespace, kind, name)


def _place_of(*names: str) -> int:
    text = "\0".join(names)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 100
