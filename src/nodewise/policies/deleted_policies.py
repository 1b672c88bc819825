"""Policies that were deleted while pods waited for their labels, in native mode. No I/O.

The API server adds the requirement for the label of a policy when a pod is created, and the pod keeps it when the
policy is deleted. So the labels stay while such pods wait, for an hour at most. They stay only for pods that the policy
selected: everyone who may create pods can name any key.
"""

from collections.abc import Container, Generator, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from nodewise.base import clock
from nodewise.base.errors import UNREADABLE
from nodewise.policies.native_mode_pods import UnscheduledPod
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.policy_selection import SelectionIndex
from nodewise.policies.selected_pods import PodLabelGroup
from nodewise.policies.verdict_labels import label_key

LEASE: Final = "nodewise-deleted-policies"
"""The name of the Lease with the records. It has no holder; only an annotation is used."""
HELD_S: Final = 3600.0
"""The longest time that the labels of a deleted policy stay."""
_SEEN_LATER_S: Final = 3.0
"""The time after which all pods are seen that were created before a deletion: pods and policies have separate watches.
Labels of a deleted policy stay for so long whether or not pods wait for them."""
_MAX_NAMESPACES: Final = 16
"""Namespaces of one record. Records of as many policies as have labels then fit into the annotations of one object."""


class DeletedPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """A policy that was deleted."""

    deleted_at: str
    """RFC 3339 with microseconds."""
    namespaces: tuple[str, ...]
    """The namespaces of the pods that waited for its labels then, and that it selected."""

    def age_s(self, now_s: float) -> float:
        """The seconds since the deletion; `now_s` is since 1970. A time in the future, by another clock, is now."""
        return max(0.0, now_s - clock.parse_rfc3339(self.deleted_at))


Records = Mapping[str, DeletedPolicy]
"""Deleted policies by uid."""


def encode(records: Records) -> str:
    """The records as JSON, for an annotation."""
    return msgspec.json.encode(records, order="sorted").decode()


def decode(text: str) -> dict[str, DeletedPolicy]:
    """The records in an annotation; none if it cannot be read, so that no label stays for it."""
    try:
        records = msgspec.json.decode(text, type=dict[str, DeletedPolicy])
        for record in records.values():
            record.age_s(0.0)
    except UNREADABLE:
        return {}
    return records


class _JustDeleted(NamedTuple):
    """A policy whose deletion was seen a moment ago. Pods that it selected may be seen later."""

    policy: PolicyKey
    selection: SelectionIndex
    """The selection of pods by the policies of that time."""
    at_s: float


class DeletedPolicies:
    """Records policies deleted while pods wait for their labels, and forgets them after the last of these pods."""

    def __init__(self) -> None:
        self.records: Records = {}
        self._live: Mapping[str, PolicyKey] = {}
        """By label key, the policies of the last update."""
        self._selection: SelectionIndex | None = None
        self._just_deleted: dict[str, _JustDeleted] = {}
        """By label key."""

    def begin(self, records: Records) -> None:
        """Continue with the records of an earlier leader."""
        self.records, self._live, self._selection, self._just_deleted = records, {}, None, {}

    def update(
        self,
        live: Mapping[str, PolicyKey],
        selection: SelectionIndex,
        pods: Iterable[UnscheduledPod],
        now_s: float,
    ) -> Generator[None, None, None]:
        """Compare the policies (`live`, by label key) with those of the last update. Yields between pods.

        `selection` selects pods by these policies. `now_s` is in seconds since 1970.
        """
        just_deleted = dict(self._just_deleted)
        if self._selection is not None:
            for key in self._live.keys() - live.keys():
                just_deleted[key] = _JustDeleted(self._live[key], self._selection, now_s)
        self._just_deleted = {
            key: deleted
            for key, deleted in just_deleted.items()
            if key not in live and now_s - deleted.at_s < _SEEN_LATER_S
        }
        waiting = yield from self._waiting_namespaces(live, pods)
        now = clock.format_micro_time(now_s)  # policies that are deleted in one second have an order, too
        records = {}
        for key, namespaces in waiting.items():
            uid = key.rpartition("/")[2]
            record = self.records.get(uid) or DeletedPolicy(now, tuple(sorted(namespaces)[:_MAX_NAMESPACES]))
            if record.age_s(now_s) < HELD_S:
                records[uid] = record
        self.records, self._live, self._selection = records, live, selection

    def _waiting_namespaces(
        self, live: Mapping[str, PolicyKey], pods: Iterable[UnscheduledPod]
    ) -> Generator[None, None, dict[str, set[str]]]:
        """By key of a deleted policy, the namespaces of the pods that wait for its label.

        For a policy that was just deleted, pods that it selected count; later, pods of the namespaces in the record.
        """
        recorded = {label_key(uid): frozenset(record.namespaces) for uid, record in self.records.items()}
        recorded = {key: namespaces for key, namespaces in recorded.items() if key not in live}
        selecting: dict[tuple[PodLabelGroup, int], frozenset[PolicyKey]] = {}
        """By group of pods and selection, the policies that select them."""
        waiting: dict[str, set[str]] = {}
        for pod in pods:
            yield
            namespace = pod.metadata.namespace
            keys = {key for key in pod.keys & recorded.keys() if namespace in recorded[key]}
            for key in pod.keys & self._just_deleted.keys() - recorded.keys():
                deleted = self._just_deleted[key]
                if pod.group is None:
                    continue
                place = pod.group, id(deleted.selection)
                if place not in selecting:
                    selecting[place] = frozenset(deleted.selection.select(pod.group.pod()))
                if deleted.policy in selecting[place]:
                    keys.add(key)
            for key in keys:
                waiting.setdefault(key, set()).add(namespace)
        return waiting

    def keep(self, admitted: Container[str]) -> None:
        """Forget the policies whose label keys are not `admitted`: their labels are removed, and do not come back."""
        self.records = {uid: record for uid, record in self.records.items() if label_key(uid) in admitted}
        self._just_deleted = {key: each for key, each in self._just_deleted.items() if key in admitted}

    def wanted_labels(self) -> list[tuple[str, frozenset[str]]]:
        """The keys of labels that stay if there is space for them, each with its namespaces; the newest first."""
        ordered = sorted(self.records.items(), key=lambda item: (item[1].deleted_at, item[0]), reverse=True)
        recorded = {label_key(uid): frozenset(record.namespaces) for uid, record in ordered}
        just_deleted = {
            key: frozenset([deleted.policy.namespace])
            for key, deleted in sorted(self._just_deleted.items())
            if key not in recorded
        }
        return [*just_deleted.items(), *recorded.items()]
