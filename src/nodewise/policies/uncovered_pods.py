"""Which policies native mode does not apply to pods that they select. No I/O.

The API server adds the requirement for the label of a policy when a pod is created. A pod lacks it if it is older than
the policy, if selectors or labels have changed since, or if the admission policies of `deploy/native.yaml` are not in
effect. kube-scheduler then places the pod without the policy.
"""

from collections.abc import Generator, Mapping
from itertools import chain
from typing import Final, NamedTuple

from nodewise.policies import policy_selection, verdict_labels
from nodewise.policies.placement_policy import Policy, PolicyKey
from nodewise.policies.policy_selection import SelectionIndex
from nodewise.policies.selected_pods import ListedPod, ListedPodMetadata, PodLabelGroup, PodLabelGroups
from nodewise.policies.unscheduled_pods import UnscheduledPod

_REMEMBERED_S: Final = 3600.0
_MAX_GROUPS: Final = 100
"""Groups of pods with equal labels that are remembered of each namespace: those that were seen last. The labels of a
group may take 16 KiB.
"""


class LabelledSelector(NamedTuple):
    """A policy of which selected pods are to require a label."""

    policy: Policy
    label: str


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
        fields = ListedPodMetadata(
            metadata.name, metadata.namespace, metadata.labels, metadata.ownerReferences
        )
        listed = self._groups.keep(ListedPod(fields))
        if listed is None or listed.group is None:
            return None
        required = verdict_labels.verdict_requirements(pod.spec)
        keys = frozenset(requirement.key for requirement in required)
        newest = self._newest.setdefault(metadata.namespace, {})
        newest.pop(listed.group, None)
        newest[listed.group] = _NewestPod(metadata.name, keys, now_s)
        if len(newest) > _MAX_GROUPS:
            del newest[next(iter(newest))]
        return listed.group

    def find(
        self, selection: SelectionIndex, policies: Mapping[PolicyKey, LabelledSelector], now_s: float
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
