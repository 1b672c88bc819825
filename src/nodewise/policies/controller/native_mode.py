"""Native mode in the leader: labels nodes with the verdicts of policies, and releases the pods that wait for it.

It records in a Lease for which deleted policies labels stay, so that their hour does not begin again with each leader,
and records Events on pods that kube-scheduler finds no node for, because of policies or of deleted ones.
"""

import contextlib
import random
from collections import Counter
from collections.abc import (
    Callable,
    Collection,
    Container,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.agent import Snapshot
from nodewise.agent.controller_interface import Handle
from nodewise.base import clock, cooperative_scheduling
from nodewise.base.errors import UNREADABLE, BadInput, Conflict, NodewiseError, Refused, Unavailable
from nodewise.kube.api_server_interface import NotFound, TokenBucket
from nodewise.kube.event_recorder import NO_NODE_PASSES, ObjectReference
from nodewise.kube.reflector import Reflector, ReflectorTarget
from nodewise.kube.resource_kinds import LEASES, PODS
from nodewise.observe import logs
from nodewise.policies import (
    native_mode_pods,
    policy_budgets,
    policy_selection,
    preference_classes,
    shard_reports,
    verdict_labels,
)
from nodewise.policies.controller.node_writer import LabelWriter, decode_node_labels
from nodewise.policies.controller.object_patcher import StatusPatcher, Write, find_policy_object
from nodewise.policies.labelling_progress import MAX_EXCLUDED_NODES, LabellingProgress
from nodewise.policies.native_mode_pods import NoteSchedule, UncoveredPods, UnscheduledPod, UnscheduledTimes
from nodewise.policies.node_labels import VERDICT_LABELS, LabelColumn
from nodewise.policies.placement_policy import Policy, PolicyKey
from nodewise.policies.policy_objects import decode_status
from nodewise.policies.policy_selection import SelectionIndex
from nodewise.policies.preference_classes import PreferenceClasses
from nodewise.policies.selected_pods import PodLabelGroup
from nodewise.policies.shard_reports import PolicyShardReport, ShardReports
from nodewise.policies.state import PolicyState, TelemetryState
from nodewise.policies.verdict_labels import LabelledPolicy, label_key

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


ANNOTATION: Final = "nodewise.io/deleted-policies"
"""The annotation with the deleted policies, JSON by uid."""
_MAX_ATTEMPTS: Final = 3
"""Attempts to read the Lease. Labels of policies that exist must not wait for it forever."""


class DeletedPolicyLease:
    """Reads and writes the records. Where that fails, they last as long as the leader."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._path = LEASES.path(handle.namespace, LEASE)
        self._object: dict[str, Any] = {}
        """As it was last read or written; empty if there is none."""
        self._saved: Records | None = None
        """What the object contains; None while that is unknown."""
        self._is_refused = False
        self._attempts = 0
        self._error = ""

    async def load(self) -> Records:
        """The records of earlier leaders; none if the Lease cannot be read.

        Raises Unavailable for the first `_MAX_ATTEMPTS` - 1 times, so that the next step tries again.
        """
        self._object, self._saved, self._is_refused = {}, {}, False
        try:
            self._object = _decode_object(await self._handle.api.get(self._path))
        except NotFound:
            return {}
        except NodewiseError as error:
            self._attempts += isinstance(error, Unavailable)
            if isinstance(error, Unavailable) and self._attempts < _MAX_ATTEMPTS:
                raise
            self._remember_failure(error)
            return {}
        self._attempts = 0
        annotations = (self._object.get("metadata") or {}).get("annotations") or {}
        self._saved = decode(str(annotations.get(ANNOTATION, "{}")))
        return self._saved

    async def save(self, records: Records) -> None:
        """Write the records in the leader if they have changed. Without any, no Lease is created."""
        if records == self._saved or self._is_refused or not self._handle.leads():
            return
        api, namespace = self._handle.api, self._handle.namespace
        metadata = self._object.get("metadata") or {"name": LEASE, "namespace": namespace}
        annotations = {**(metadata.get("annotations") or {}), ANNOTATION: encode(records)}
        kind = {"apiVersion": LEASES.api_version, "kind": LEASES.kind}
        body = {**kind, **self._object, "metadata": {**metadata, "annotations": annotations}}
        try:
            if self._object:
                written = await api.replace(self._path, body)
            else:
                written = await api.create(LEASES.path(namespace), body)
        except (Conflict, NotFound):
            # another client wrote or deleted it; the next step reads and writes it again
            self._object, self._saved = {}, None
            with contextlib.suppress(NodewiseError):
                self._object = _decode_object(await api.get(self._path))
        except NodewiseError as error:
            self._remember_failure(error)
        else:
            self._object = _decode_object(written)
            self._saved, self._error = dict(records), ""

    def _remember_failure(self, error: NodewiseError) -> None:
        """Log an error once, not at every step. A refusal is not tried again."""
        self._is_refused = not isinstance(error, Unavailable)
        if str(error) != self._error:
            self._error = str(error)
            logs.emit("deleted_policies_failed", lease=self._path, error=str(error))


def _decode_object(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except UNREADABLE:
        return {}


_EVENTS_PER_S: Final = 5.0
_BURST: Final = 50
"""The limit of events. They share the limit of writes to the API server with labels, which are more important."""
_UNKNOWN_S: Final = 30.0
"""The time after which the policy of a key counts as deleted. A pod may be seen before its policy."""
_VISIBLE_S: Final = 2.0
"""The time between the last label of a new policy and its first pods. kube-scheduler watches nodes and pods by separate
requests, so it may see a pod without a gate before it sees labels that were written earlier.
"""
_REMOVED_S: Final = 10.0
"""The time after which absent admission policies count as removed. An update may delete and create them."""
_CONFIRMED_S: Final = 60.0
"""The time after which a status is written again if the watch does not show it."""
_ONLY_EXTENDER: Final = (
    "native mode does not enforce it: a canary by percent needs an extender; use canary.podSelector"
)
_GATED: Final = (
    "new pods of the policy wait with a scheduling gate that nothing removes: native mode is off, and its admission"
    " policies are installed; run the controller with --native-mode, or delete these admission policies"
)
_UNSCHEDULED: Final = {"fieldSelector": "spec.nodeName=,status.phase=Pending"}


class _NativeStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a policy's status that native mode writes, and the admission policies read. A policy without a
    label (`policy_selection.has_labels`) has the values of a new one, so that its pods wait for labels when it is
    enforced.
    """

    node_label: str | msgspec.UnsetType = msgspec.UNSET
    active: bool = False
    excluded_nodes: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class NativeFindings(NamedTuple):
    """What the last step of native mode found about policies, by their uids."""

    not_enforced: Mapping[str, str] = {}
    """Why a policy has no label."""
    refusals: Mapping[str, str] = {}
    """A message about the nodes that refuse the label of a policy."""
    uncovered: Mapping[str, str] = {}
    """A pod that a policy selects and that does not require its label."""
    is_complete: bool = False
    """Whether a step of this leader has ended."""
    gated: Mapping[str, str] = {}
    """Why the new pods of a policy get a scheduling gate that nothing removes."""


class NativeMode:
    """Writes the labels with verdicts, the status that the admission policies read, and removes gates."""

    def __init__(self, handle: Handle, reports: ShardReports | None = None) -> None:
        self._handle = handle
        self._reports = reports
        """Those of other replicas, with shards."""
        self._labels = LabelWriter(handle, VERDICT_LABELS)
        target = ReflectorTarget(
            PODS, UnscheduledPod, selectors=_UNSCHEDULED, keep=self._keep_pod, label="Pod (unscheduled)"
        )
        self._pods = Reflector(handle.api, target, handle.clock, handle.metrics_registry, random.random)
        self._statuses = _status_patcher(handle, Conflict, NotFound, confirmed_s=_CONFIRMED_S)
        self._progress = LabellingProgress()
        self._preferences = PreferenceClasses()
        self._unknown_since_s: dict[str, float] = {}
        """By key of unscheduled pods without a policy, when it was first seen."""
        self._deleted = DeletedPolicies()
        self._deleted_lease = DeletedPolicyLease(handle)
        self._is_new_leader = True
        self._uncovered = UncoveredPods()
        self._notes = NoteSchedule()
        self._waits = UnscheduledTimes()
        self._event_limit = TokenBucket(_EVENTS_PER_S, _BURST)
        self._last_on_s = float("-inf")
        """The monotonic time of the last step in which native mode was on."""
        self._is_on = False
        self.findings = NativeFindings()

    def begin(self) -> None:
        """Start as the leader: another one may have written labels and statuses."""
        self._labels.begin()
        self._progress.begin()
        self._preferences = PreferenceClasses()
        self._statuses.begin()
        self.findings = self.findings._replace(refusals={}, is_complete=False)
        self._is_new_leader = True

    def tasks(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        return (self._pods.run,)

    def _keep_pod(self, pod: UnscheduledPod) -> UnscheduledPod | None:
        group = self._uncovered.record(pod, self._handle.clock.monotonic())
        kept = native_mode_pods.keep_pod(pod)
        return None if kept is None else msgspec.structs.replace(kept, group=group)

    async def step(self, snapshot: Snapshot, agent_state: TelemetryState) -> None:
        """Write what differs from the snapshot. A failure of one node, policy or pod does not affect the others.

        After the admission policies were removed, only policies have labels for whose pods there is a requirement, so
        that these pods do not wait for ever.
        """
        if not self._pods.synced:
            return
        if self._is_new_leader:
            self._deleted.begin(await self._deleted_lease.load())
            self._is_new_leader = False
        clock = self._handle.clock
        states, selection = agent_state.policies, agent_state.selection
        pods = list(self._pods.store.values())
        policies = {key: _labelled_policy(state) for key, state in states.items() if state.policy.uid}
        live = {labelled.label: key for key, labelled in policies.items()}
        deleted = self._deleted_keys(pods, live)
        await cooperative_scheduling.run(self._deleted.update(live, selection, pods, clock.now()))
        own_pods = await cooperative_scheduling.run(
            native_mode_pods.remove_foreign_keys(pods, live, selection)
        )
        needed = self._labels_in_effect(agent_state, own_pods, live.keys())
        policies = {
            key: labelled if labelled.label in needed else labelled._replace(codes=None)
            for key, labelled in policies.items()
        }
        required_ok = native_mode_pods.keys_with_ok(own_pods)
        waited_for = self._labels_of_waiting_pods(policies.values(), required_ok)
        self._deleted.keep(waited_for)
        await self._deleted_lease.save(self._deleted.records)
        columns = await cooperative_scheduling.run(
            verdict_labels.verdict_labels(
                policies.values(), len(snapshot.nodes) + 1, required_ok, waited_for & live.keys()
            )
        )
        columns |= await self._preference_columns(snapshot, agent_state)
        not_enforced = {
            labelled.policy.uid: _not_enforced(labelled.policy)
            for labelled in policies.values()
            if labelled.label in needed
        }
        # the status is written at the same time as the labels
        self.findings = self.findings._replace(
            not_enforced={uid: reason for uid, reason in not_enforced.items() if reason}
        )
        try:
            rejected = native_mode_pods.count_rejected(pods)
            required = native_mode_pods.required_keys(own_pods)
            await self._labels.step(snapshot, columns, waited_for - live.keys(), rejected, required)
        finally:
            wanted = self._desired_statuses(policies, columns, needed)
            finding = self._find_uncovered(selection, policies, wanted)
            uncovered = await cooperative_scheduling.run(finding)
            self.findings = self.findings._replace(
                refusals=self._refusals(), uncovered=uncovered, is_complete=True
            )
            unused = frozenset(live.keys() - needed)
            await self._write_statuses_and_gates(wanted, pods, policies, deleted | unused)
            await self._record_events(own_pods, states, deleted, len(snapshot.nodes))

    async def _preference_columns(
        self, snapshot: Snapshot, agent_state: TelemetryState
    ) -> dict[str, LabelColumn]:
        """By key, the labels with classes of preference, while new pods prefer them."""
        states = [
            state
            for state in agent_state.policies.values()
            if policy_budgets.has_preference_label(state.policy) and not state.policy.no_preference_label
        ]
        others = self._reports.others() if self._reports is not None else []
        if not self._is_on or not states:
            return {}

        def current_labels(name: str) -> Mapping[str, str]:
            node = self._handle.nodes.get("", name)
            return {} if node is None else decode_node_labels(node)

        # until the replicas know each other, few classes change, because all of them share the limit of changes
        nodes = len(snapshot.nodes)
        share = 0.0 if others is None else nodes / max(nodes + sum(other.nodes for other in others), 1)
        now_s = self._handle.clock.monotonic()
        return await cooperative_scheduling.run(
            self._preferences.columns(
                (preference_classes.rank_policy(state, nodes + 1) for state in states),
                snapshot.nodes,
                current_labels,
                now_s,
                agent_state.period_s,
                share,
            )
        )

    def progress(self, uid: str) -> tuple[float, tuple[str, ...], str]:
        """How far the label of a policy is on the nodes of this replica: for how many seconds all nodes have had it,
        negative if some lack it; the nodes that new pods exclude; and a message about nodes that refuse it.
        """
        now_s = self._handle.clock.monotonic()
        progress = self._progress
        return progress.labelled_s(uid, now_s), progress.excluded_nodes(uid), progress.refusals.get(uid, "")

    def _progress_on_all_nodes(self, uid: str) -> tuple[float, tuple[str, ...]]:
        """The first two of `progress`, on the nodes of all replicas."""
        labelled_s, excluded, _ = self.progress(uid)
        if self._reports is None:
            return labelled_s, excluded
        others = self._reports.others()
        if others is None:
            return -1.0, excluded
        reports = [other.policies.get(uid, PolicyShardReport()) for other in others]
        nodes = sorted({*excluded, *chain.from_iterable(report.excluded_nodes for report in reports)})
        if len(nodes) > MAX_EXCLUDED_NODES:
            return -1.0, ()
        return min([labelled_s, *(report.labelled_s for report in reports)]), tuple(nodes)

    def _refusals(self) -> Mapping[str, str]:
        """By uid of a policy, a message about nodes of any replica that refuse its label."""
        others = (self._reports and self._reports.others()) or []
        elsewhere = {
            uid: report.refusal
            for other in others
            for uid, report in other.policies.items()
            if report.refusal
        }
        return {**elsewhere, **self._progress.refusals}

    def _labels_in_effect(
        self, agent_state: TelemetryState, pods: Iterable[UnscheduledPod], live: Collection[str]
    ) -> Collection[str]:
        """The keys of the policies that native mode enforces: all, or those that waiting pods still require."""
        now_s = self._handle.clock.monotonic()
        self._last_on_s = now_s if agent_state.native_mode else self._last_on_s
        self._is_on = now_s - self._last_on_s < _REMOVED_S
        if self._is_on:
            return live
        namespaces: dict[str, set[str]] = {}
        for pod in pods:
            for key in pod.keys.intersection(live):
                namespaces.setdefault(key, set()).add(pod.metadata.namespace)
        required = [(key, frozenset(names)) for key, names in sorted(namespaces.items())]
        return policy_budgets.admit_labels_of_waiting_pods(required, {}, policy_budgets.MAX_NODE_LABEL_BYTES)

    def _find_uncovered(
        self,
        selection: SelectionIndex,
        policies: Mapping[PolicyKey, LabelledPolicy],
        statuses: Mapping[PolicyKey, _NativeStatus],
    ) -> Generator[None, None, dict[str, str]]:
        """By uid of a policy, a pod that does not require its label. Pods of a TASPolicy without it are denied."""
        covered = {
            key: policies[key]
            for key, status in statuses.items()
            if self._is_on and status.node_label and key.kind != "TASPolicy"
        }
        return self._uncovered.find(selection, covered, self._handle.clock.monotonic())

    def _deleted_keys(self, pods: Iterable[UnscheduledPod], live: Container[str]) -> frozenset[str]:
        """The keys of pods that have belonged to no policy for some time."""
        now_s = self._handle.clock.monotonic()
        keys = dict.fromkeys(chain.from_iterable(pod.keys for pod in pods))
        self._unknown_since_s = {
            key: self._unknown_since_s.get(key, now_s) for key in keys if key not in live
        }
        return frozenset(
            key for key, since_s in self._unknown_since_s.items() if now_s - since_s > _UNKNOWN_S
        )

    def _labels_of_waiting_pods(
        self, policies: Iterable[LabelledPolicy], required_ok: frozenset[tuple[str, str]]
    ) -> frozenset[str]:
        """The keys of labels that only waiting pods need, within the budget: those of policies that reject no node any
        more, and those of deleted policies.
        """
        wanted = []
        counts: Counter[str] = Counter()
        for labelled in policies:
            namespace = labelled.policy.namespace
            if labelled.codes is None:
                if (namespace, labelled.label) in required_ok:
                    wanted.append((labelled.label, frozenset([namespace])))
            elif not labelled.policy.no_verdict_label:
                counts[namespace] += 1
        wanted += self._deleted.wanted_labels()
        if not wanted:
            return frozenset()
        free = policy_budgets.free_bytes(labelled.policy for labelled in policies)
        return policy_budgets.admit_labels_of_waiting_pods(wanted, counts, free)

    def _desired_statuses(
        self, policies: Mapping[PolicyKey, LabelledPolicy], columns: Container[str], needed: Container[str]
    ) -> dict[PolicyKey, _NativeStatus]:
        """The status of each policy. `needed` are the keys of the policies that native mode enforces."""
        now_s = self._handle.clock.monotonic()
        enforced = [labelled for labelled in policies.values() if labelled.label in needed]
        pending = self._labels.pending_labels(self._progress.unlabelled_keys(enforced))
        self._progress.update(enforced, pending, self._labels.failures(), now_s)
        wanted = {}
        for key, labelled in policies.items():
            if not policy_selection.has_labels(labelled.policy) or labelled.label not in needed:
                wanted[key] = _NativeStatus()
                continue
            uid, node_label = labelled.policy.uid, labelled.label if labelled.label in columns else ""
            before = self._current_status(key, uid) or _NativeStatus()
            was_active = before.active and before.node_label == node_label
            labelled_s, excluded = self._progress_on_all_nodes(uid)
            active = was_active or not node_label or labelled_s >= _VISIBLE_S
            wanted[key] = _NativeStatus(node_label, active, excluded or msgspec.UNSET)
        return wanted

    def _current_status(self, key: PolicyKey, uid: str) -> _NativeStatus | None:
        """The status as the watch shows it, or as it was written a moment ago; None if the policy is gone."""
        policy_object = find_policy_object(self._handle, key, uid)
        return self._statuses.current(key, policy_object).status if policy_object else None

    async def _write_statuses_and_gates(
        self,
        wanted: Mapping[PolicyKey, _NativeStatus],
        pods: Iterable[UnscheduledPod],
        policies: Mapping[PolicyKey, LabelledPolicy],
        without_effect: frozenset[str],
    ) -> None:
        """Pods do not wait for policies that are active, that have no label, or that have no effect: `without_effect`
        are the label keys of deleted policies, and of those that native mode does not enforce any more. Without the
        reports of all shards nothing is written: new pods would not exclude the nodes of others that refuse labels.
        """
        if not self._handle.leads() or (self._reports is not None and self._reports.others() is None):
            return
        self._statuses.retain(policies)
        released = {
            policies[key].label
            for key, status in wanted.items()
            if status.active or not policy_selection.has_labels(policies[key].policy)
        }
        excluded = {
            labelled.label: self._progress_on_all_nodes(labelled.policy.uid)[1]
            for labelled in policies.values()
        }

        def writes() -> Iterator[tuple[tuple[str, ...], Write]]:
            for key, status in wanted.items():
                uid = policies[key].policy.uid
                if self._current_status(key, uid) not in (None, status):
                    yield key, partial(self._statuses.write, key, uid, status)
            for pod in native_mode_pods.releasable_pods(pods, without_effect | released):
                nodes = frozenset(chain.from_iterable(excluded.get(key, ()) for key in pod.keys))
                patch = native_mode_pods.gate_removal(pod, nodes)
                if patch is not None:  # otherwise it waits until the nodes have their labels
                    name = (pod.metadata.namespace, pod.metadata.name)
                    yield name, partial(self._remove_gate, PODS.path(*name), patch)

        await self._statuses.run(writes())

    async def _remove_gate(self, path: str, patch: list[dict[str, Any]]) -> None:
        params = {"fieldManager": VERDICT_LABELS.field_manager}
        # the pod may have changed, and the watch shows it soon
        with contextlib.suppress(Conflict, NotFound, BadInput):
            await self._handle.api.patch(path, patch, "json", params)

    async def _record_events(
        self,
        pods: Iterable[UnscheduledPod],
        states: Mapping[PolicyKey, PolicyState],
        deleted: frozenset[str],
        node_count: int,
    ) -> None:
        """Record an event for waiting pods whose policies reject nodes, within a limit; the next step continues.

        `deleted` are the label keys of policies that do not exist any more.
        """
        if not self._handle.leads():
            return
        now_s = self._handle.clock.monotonic()
        if self._reports is not None:
            others = self._reports.others()
            if others is None:
                return
            states = await cooperative_scheduling.run(shard_reports.extend_states(states, others))
            node_count += sum(other.nodes for other in others)
        # until the metrics have been fetched, labels stay as they are
        evaluated = (state for state in states.values() if not state.awaits_metrics)
        by_key = native_mode_pods.states_by_label_key(evaluated)
        new = await cooperative_scheduling.run(self._waits.find_new(pods, by_key, node_count, now_s))
        due = await cooperative_scheduling.run(self._notes.due(pods, by_key, deleted, node_count, now_s, new))
        self._handle.metrics_registry.set("native_pods_waiting", self._notes.waiting_pods)
        for pod, note in due:
            if self._event_limit.take(now_s, 0.0) is None:
                return
            metadata = pod.metadata
            about = ObjectReference(PODS, metadata.namespace, metadata.name, metadata.uid)
            text = native_mode_pods.event_text(pod, note)
            self._handle.recorder.record(about, "Warning", NO_NODE_PASSES, text, "Filtering")
            self._notes.record(pod, note, now_s)


class NativeStatusReset:
    """Resets what native mode wrote to the status of policies, in a leader that does not run in native mode.

    Nothing updates the labels of native mode then. A policy that stayed active would not gate its pods when native mode
    is installed again, although nodes have old labels or none. Each leader resets a policy once: if a controller in
    native mode runs as well, against the documentation, they do not overwrite each other all the time.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.findings = NativeFindings()
        self._statuses = _status_patcher(handle)
        self._examined: set[str] = set()
        """Policies by uid."""

    def begin(self) -> None:
        """Start as the leader: all policies are examined again."""
        self._examined, self.findings = set(), NativeFindings()

    def tasks(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        return ()

    def progress(self, _: str) -> tuple[float, tuple[str, ...], str]:
        """As of `NativeMode`, which labels no node."""
        return 0.0, (), ""

    async def step(self, _: Snapshot, agent_state: TelemetryState) -> None:
        """Reset the policies that this leader has not examined, for `STEP_S` at most."""
        if not self._handle.leads():
            return
        policies = [state.policy for state in agent_state.policies.values() if state.policy.uid]
        gated = {
            policy.uid: _GATED
            for policy in policies
            if agent_state.has_native_admission and policy_budgets.has_verdict_label(policy)
        }
        if gated and not self.findings.gated:
            logs.emit("native_mode_off", policies=len(gated))
        self.findings = NativeFindings(gated=gated, is_complete=True)
        self._examined &= {policy.uid for policy in policies}
        await self._statuses.run(
            (policy.key, partial(self._reset, policy))
            for policy in policies
            if policy.uid not in self._examined
        )

    async def _reset(self, policy: Policy) -> None:
        policy_object = find_policy_object(self._handle, policy.key, policy.uid)
        if policy_object and decode_status(policy_object, _NativeStatus) != _NativeStatus():
            # deleted, replaced, or no right to write it: not tried again
            with contextlib.suppress(Conflict, NotFound, Refused):
                await self._statuses.write(policy.key, policy.uid, _NativeStatus())
        self._examined.add(policy.uid)


def _status_patcher(
    handle: Handle, *isolated: type[NodewiseError], confirmed_s: float = 0.0
) -> StatusPatcher[_NativeStatus]:
    return StatusPatcher(
        handle,
        VERDICT_LABELS.field_manager,
        lambda _, policy_object: decode_status(policy_object, _NativeStatus),
        isolated,
        confirmed_s=confirmed_s,
    )


def _labelled_policy(state: PolicyState) -> LabelledPolicy:
    has_labels = state.verdict is not None and policy_selection.has_labels(state.policy)
    codes = state.verdict.codes if state.verdict is not None and has_labels else None
    return LabelledPolicy(state.policy, codes, state.awaits_metrics)


def _not_enforced(policy: Policy) -> str:
    """Why native mode does not enforce the policy; empty if it does, or if the policy needs no label. A policy that has
    stepped back has a condition of its own.
    """
    is_canary_by_percent = policy.mode == "Canary" and not policy_selection.has_labels(policy)
    if is_canary_by_percent and not policy.stepped_back:
        return _ONLY_EXTENDER
    return policy.no_verdict_label
