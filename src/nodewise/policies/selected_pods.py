"""How many pods each policy selects, and which policies together leave a pod no node. No I/O.

Pods of a ReplicaSet have the same labels, so pods are counted in groups, and each group is matched once.
"""

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.metrics.node_index import node_bits
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.policy_selection import (
    PodFields,
    PodMetadata,
    PodOwner,
    SelectionIndex,
    daemon_set_pod,
    has_daemon_set_owner,
)
from nodewise.policies.state import PolicyState

_MAX_LABEL_BYTES: Final = 16 * 1024
"""JSON of the labels of a pod that is counted. A pod can have a megabyte of them."""
_MAX_SELECTIONS: Final = 100
"""Different sets of policies of one namespace that are examined for policies that together reject every node. With 50
policies, each pod can have a set of its own, and examining 10,000 sets takes longer than all else that the leader does.
"""


class PodLabelGroup(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """Pods of one namespace with the same labels."""

    namespace: str
    labels: bytes
    """JSON, a third of the memory of a dict: in StatefulSets every pod has labels of its own."""
    is_of_daemon_set: bool

    def pod(self) -> PodFields:
        """A pod of the group."""
        labels = msgspec.json.decode(self.labels)
        if self.is_of_daemon_set:
            return daemon_set_pod(self.namespace, labels)
        return PodFields(PodMetadata(self.namespace, labels))


class ListedPodMetadata(msgspec.Struct, frozen=True):
    """The metadata that a group of pods follows from. Not all of it is set for a stored pod."""

    name: str = ""
    namespace: str = ""
    labels: dict[str, str] | None = None
    ownerReferences: tuple[PodOwner, ...] | None = None  # noqa: N815 - the API's name


class ListedPod(msgspec.Struct, frozen=True):
    """A pod of which only the metadata was listed."""

    metadata: ListedPodMetadata = ListedPodMetadata()
    group: PodLabelGroup | None = None
    """Set for a stored pod, whose other metadata is dropped. The API server sends no such field."""


class PodLabelGroups:
    """Counts the pods of a store by group. Its decoder uses `keep`, and the others take what is in the store."""

    def __init__(self) -> None:
        self._groups: weakref.WeakValueDictionary[tuple[str, bytes, bool], PodLabelGroup] = (
            weakref.WeakValueDictionary()
        )
        self.counts: Counter[PodLabelGroup] = Counter()
        """The pods of each group, without groups that have none."""
        self.has_changed = True
        """Whether a group came or a count changed since the flag was last reset."""

    def group(self, metadata: ListedPodMetadata) -> PodLabelGroup | None:
        """The group of a pod; None for a pod with too many labels."""
        labels = msgspec.json.encode(metadata.labels or {}, order="sorted")
        if len(labels) > _MAX_LABEL_BYTES:
            return None
        is_of_daemon_set = has_daemon_set_owner(metadata.ownerReferences)
        key = (metadata.namespace, labels, is_of_daemon_set)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = PodLabelGroup(*key)
        return group

    def keep(self, pod: ListedPod) -> ListedPod | None:
        """The pod as it is stored, with its group; None for a pod that is not counted."""
        group = self.group(pod.metadata)
        if group is None:
            return None
        # all pods of a group share the string of their namespace
        return ListedPod(ListedPodMetadata(pod.metadata.name, group.namespace), group)

    def update(
        self,
        stored: Callable[[], Iterable[ListedPod]],
        changes: Mapping[Any, tuple[ListedPod | None, ListedPod | None]] | None,
    ) -> None:
        """Count changes of stored pods, each before and after; without `changes`, all of them."""
        self.has_changed = True
        if changes is None:
            self.counts = Counter(pod.group for pod in stored() if pod.group is not None)
            return
        for pods in changes.values():
            for pod, count in zip(pods, (-1, 1), strict=True):
                if pod is None or pod.group is None:
                    continue
                self.counts[pod.group] += count
                if not self.counts[pod.group]:
                    del self.counts[pod.group]


class SelectedPods(NamedTuple):
    """The pods that policies select."""

    by_policy: Mapping[PolicyKey, int]
    """Without policies that select none."""
    selections: frozenset[tuple[PolicyKey, ...]]
    """The different sets of policies that select a pod, up to `_MAX_SELECTIONS` of each namespace."""
    in_canary: Mapping[PolicyKey, int] = {}
    """By policy with a canary by labels, those of its pods that are part of it; without policies that have none."""


class SelectedPodCounter:
    """Counts the pods of policies; groups are matched again only if selectors for their namespace change."""

    def __init__(self, groups: PodLabelGroups) -> None:
        self._groups = groups
        self._selection: SelectionIndex | None = None
        self._keys_by_group: dict[PodLabelGroup, tuple[PolicyKey, ...]] = {}
        self._versions: dict[str, object] = {}
        """By namespace, of the selectors that the groups were matched with."""
        self._result = SelectedPods({}, frozenset())

    def count(self, selection: SelectionIndex) -> Generator[None, None, SelectedPods]:
        """The selected pods. Yields between groups."""
        if selection is self._selection and not self._groups.has_changed:
            return self._result
        self._selection = selection
        self._groups.has_changed = False
        groups = list(self._groups.counts.items())
        self._forget_changed_namespaces(selection, {group.namespace for group, _ in groups})
        keys_by_group: dict[PodLabelGroup, tuple[PolicyKey, ...]] = {}
        by_policy: Counter[PolicyKey] = Counter()
        in_canary: Counter[PolicyKey] = Counter()
        selections: dict[str, set[tuple[PolicyKey, ...]]] = {}
        for group, count in groups:
            keys = self._keys_by_group.get(group)
            if keys is None:
                keys = selection.select(group.pod())
            keys_by_group[group] = keys
            for key in keys:
                by_policy[key] += count
            for key in selection.canaries.keys() & set(keys):
                if selection.canaries[key].selects(group.pod().metadata.labels or {}):
                    in_canary[key] += count
            own = selections.setdefault(group.namespace, set())
            if keys and len(own) < _MAX_SELECTIONS:
                own.add(keys)
            yield
        self._keys_by_group = keys_by_group
        self._result = SelectedPods(by_policy, frozenset().union(*selections.values()), in_canary)
        return self._result

    def _forget_changed_namespaces(self, selection: SelectionIndex, namespaces: Iterable[str]) -> None:
        """Keep what was matched only of namespaces for which the selectors are the same."""
        before, self._versions = self._versions, {name: selection.version(name) for name in namespaces}
        unchanged = {name for name, version in self._versions.items() if before.get(name) is version}
        self._keys_by_group = {
            group: keys for group, keys in self._keys_by_group.items() if group.namespace in unchanged
        }


def find_rejecting_policies(  # complexity: a policy alone, or several together
    states: Mapping[PolicyKey, PolicyState], node_count: int, selections: Iterable[tuple[PolicyKey, ...]]
) -> Generator[None, None, dict[PolicyKey, tuple[PolicyKey, ...]]]:
    """For each policy that leaves no node for some of its pods, the policies that together reject every node for them.

    `selections` are the sets of policies that select a pod. If one policy of a set rejects every node, it is the only
    cause. Yields between the sets: there may be as many as pods.
    """
    result: dict[PolicyKey, tuple[PolicyKey, ...]] = {}
    if not node_count:
        return result
    every_node = (1 << node_count) - 1
    masks: dict[PolicyKey, int] = {}
    for keys in sorted(selections):
        for key in keys:
            if key not in masks:
                masks[key] = _rejected_nodes(states.get(key), every_node)
        causes: list[tuple[PolicyKey, ...]] = [(key,) for key in keys if masks[key] == every_node]
        together = tuple(key for key in keys if masks[key])
        if not causes and functools.reduce(int.__or__, (masks[key] for key in together), 0) == every_node:
            causes = [together]
        for cause in causes:
            for key in cause:
                result.setdefault(key, cause)
        yield
    return result


def _rejected_nodes(state: PolicyState | None, every_node: int) -> int:
    """The nodes that a policy rejects, one bit for each: all if a pod names a policy that does not exist, none before
    the first response about its metrics.
    """
    if state is None:
        return every_node
    policy = state.policy
    if (
        state.verdict is None
        or state.awaits_metrics
        or policy.not_enforced
        or policy.only_prefers
        or policy.only_observes
        or policy.mode == "Canary"
    ):
        return 0
    return node_bits(state.verdict.codes[:-1] != 0)
