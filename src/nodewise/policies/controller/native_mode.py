"""Native mode in the leader: labels nodes with the verdicts of policies, and releases the pods that wait for it.

It records in a Lease for which deleted policies labels stay, so that their hour does not begin again with each leader,
and records Events on pods that kube-scheduler finds no node for, because of policies or of deleted ones.
"""

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, takewhile
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.agent import Snapshot
from nodewise.agent.controller_interface import Handle
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import UNREADABLE, BadInput, Conflict, NodewiseError, Refused, Unavailable
from nodewise.kube.api_server_interface import Api, NotFound, TokenBucket, run_api_calls
from nodewise.kube.event_recorder import NO_NODE_PASSES, ObjectReference
from nodewise.kube.reflector import Reflector, ReflectorTarget
from nodewise.kube.resource_kinds import LEASES, PODS
from nodewise.observe import logs
from nodewise.policies import (
    deleted_policies,
    native_mode_pods,
    policy_budgets,
    policy_selection,
    verdict_labels,
)
from nodewise.policies.controller.node_writer import LabelWriter
from nodewise.policies.deleted_policies import LEASE, DeletedPolicies, DeletedPolicy, Records
from nodewise.policies.labelling_progress import LabellingProgress
from nodewise.policies.native_mode_pods import LabelledSelector, NoteSchedule, UncoveredPods, UnscheduledPod
from nodewise.policies.node_labels import VERDICT_LABELS, LabelColumn
from nodewise.policies.placement_policy import Policy, PolicyKey
from nodewise.policies.policy_objects import RESOURCES, PolicyObject, decode_status
from nodewise.policies.policy_selection import SelectionIndex
from nodewise.policies.state import PolicyState
from nodewise.policies.verdict_labels import LabelledPolicy

ANNOTATION: Final = "nodewise.io/deleted-policies"
"""The annotation with the deleted policies, JSON by uid."""
_MAX_ATTEMPTS: Final = 3
"""Attempts to read the Lease. Labels of policies that exist must not wait for it forever."""


class DeletedPolicyLease:
    """Reads and writes the records. Where that fails, they last as long as the leader."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._path = LEASES.path(handle.namespace, LEASE)
        self._object: dict[str, Any] | None = None
        """As it was last read or written; None if there is none."""
        self._saved: Records | None = None
        """What the object contains; None while that is unknown."""
        self._is_refused = False
        self._attempts = 0
        self._error = ""

    async def load(self) -> dict[str, DeletedPolicy]:
        """The records of earlier leaders; none if the Lease cannot be read.

        Raises Unavailable for the first `_MAX_ATTEMPTS` - 1 times, so that the next step tries again.
        """
        self._object, self._saved, self._is_refused = None, {}, False
        try:
            self._remember(await self._handle.api.get(self._path))
        except NotFound:
            return {}
        except Unavailable as error:
            self._attempts += 1
            if self._attempts < _MAX_ATTEMPTS:
                raise
            self._report(error)
            return {}
        except NodewiseError as error:
            self._is_refused = True
            self._report(error)
            return {}
        self._attempts = 0
        metadata: dict[str, Any] = self._object.get("metadata") or {} if self._object else {}
        records = deleted_policies.decode(str((metadata.get("annotations") or {}).get(ANNOTATION, "{}")))
        self._saved = records
        return records

    async def save(self, records: Records) -> None:
        """Write the records if they have changed. Without any, no Lease is created."""
        if records == self._saved or self._is_refused:
            return
        metadata = dict(
            (self._object or {}).get("metadata") or {"name": LEASE, "namespace": self._handle.namespace}
        )
        annotations = {**(metadata.get("annotations") or {}), ANNOTATION: deleted_policies.encode(records)}
        body = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            **(self._object or {}),
            "metadata": {**metadata, "annotations": annotations},
        }
        try:
            if self._object is None:
                written = await self._handle.api.create(LEASES.path(self._handle.namespace), body)
            else:
                written = await self._handle.api.replace(self._path, body)
        except (Conflict, NotFound):
            # another client wrote or deleted it; the next step reads and writes it again
            self._object, self._saved = None, None
            with contextlib.suppress(NodewiseError):
                self._remember(await self._handle.api.get(self._path))
            return
        except NodewiseError as error:
            self._is_refused = not isinstance(error, Unavailable)
            self._report(error)
            return
        self._remember(written)
        self._saved, self._error = dict(records), ""

    def _remember(self, body: bytes) -> None:
        try:
            self._object = msgspec.json.decode(body, type=dict[str, Any])
        except UNREADABLE:
            self._object = None

    def _report(self, error: NodewiseError) -> None:
        """Log an error once, not at every step."""
        if str(error) != self._error:
            self._error = str(error)
            logs.emit("deleted_policies_failed", lease=self._path, error=str(error))


_EVENTS_PER_S: Final = 5.0
_BURST: Final = 50
"""The limit of events. They share the limit of writes to the API server with labels, which are more important."""


class NativePodEvents:
    """Records an event for each waiting pod of native mode whose policies reject nodes."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._schedule = NoteSchedule()
        self._limit = TokenBucket(_EVENTS_PER_S, _BURST)

    async def step(
        self,
        pods: Iterable[UnscheduledPod],
        states: Mapping[PolicyKey, PolicyState],
        deleted: frozenset[str],
        node_count: int,
    ) -> None:
        """Record the events that are due, within the limit; the next step continues.

        `deleted` are the label keys of policies that do not exist any more.
        """
        now_s = self._handle.clock.monotonic()
        by_key = native_mode_pods.states_by_label_key(states.values())
        due = await cooperative_scheduling.run(self._schedule.due(pods, by_key, deleted, node_count, now_s))
        for pod, note in due:
            if self._limit.take(now_s, 0.0) is None:
                return
            metadata = pod.metadata
            about = ObjectReference(PODS, metadata.namespace, metadata.name, metadata.uid)
            text = native_mode_pods.event_text(pod, note)
            self._handle.recorder.record(about, "Warning", NO_NODE_PASSES, text, "Filtering")
            self._schedule.record(pod, note, now_s)


_STEP_S: Final = 2.0
"""The longest time that statuses and gates are written from one snapshot."""
_UNKNOWN_S: Final = 30.0
"""The time after which the policy of a key counts as deleted. A pod may be seen before its policy."""
_VISIBLE_S: Final = 2.0
"""The time between the last label of a new policy and its first pods. kube-scheduler watches nodes and pods by separate
requests, so it may see a pod without a gate before it sees labels that were written earlier.
"""
_CONFIRMED_S: Final = 60.0
"""The time after which a status is written again if the watch does not show it."""
_ONLY_EXTENDER: Final = (
    "native mode does not enforce it: a canary by percent needs an extender; use canary.podSelector"
)
_APPLY: Final = {"fieldManager": VERDICT_LABELS.field_manager, "force": "true"}
_UNSCHEDULED: Final = {"fieldSelector": "spec.nodeName=,status.phase=Pending"}


class _NativeStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a policy's status that native mode writes, and the admission policies read. A policy without a
    label (`policy_selection.has_labels`) has the values of a new one, so that its pods wait for labels when it is
    enforced.
    """

    node_label: str | msgspec.UnsetType = msgspec.UNSET
    active: bool = False
    excluded_nodes: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class _Statuses(NamedTuple):
    """The statuses of policies, and the keys that no pod has to wait for."""

    wanted: dict[PolicyKey, _NativeStatus]
    settled: frozenset[str]


class NativeMode:
    """Writes the labels with verdicts, the status that the admission policies read, and removes gates."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._labels = LabelWriter(handle, VERDICT_LABELS)
        target = ReflectorTarget(
            PODS, UnscheduledPod, selectors=_UNSCHEDULED, keep=self._keep_pod, label="Pod (unscheduled)"
        )
        self._pods = Reflector(handle.api, target, handle.clock, handle.metrics_registry, random.random)
        self._events = NativePodEvents(handle)
        self._written: dict[str, tuple[_NativeStatus, float]] = {}
        """By uid of a policy, the last write of its status and its monotonic time."""
        self._progress = LabellingProgress()
        self._unknown_since_s: dict[str, float] = {}
        """By key of unscheduled pods without a policy, when it was first seen."""
        self.not_enforced: Mapping[str, str] = {}
        """By uid of a policy, why it has no label, as of the last step."""
        self._deleted = DeletedPolicies()
        self._deleted_lease = DeletedPolicyLease(handle)
        self._is_new_leader = True
        self._uncovered = UncoveredPods()
        self.uncovered: Mapping[str, str] = {}
        """By uid of a policy, a pod that it selects and that does not require its label, as of the last step."""

    def begin(self) -> None:
        self._labels.begin()
        self._progress.begin()
        self._written = {}
        self._is_new_leader = True

    def tasks(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        return (self._pods.run,)

    def _keep_pod(self, pod: UnscheduledPod) -> UnscheduledPod | None:
        group = self._uncovered.record(pod, self._handle.clock.monotonic())
        kept = native_mode_pods.keep_pod(pod)
        return None if kept is None else msgspec.structs.replace(kept, group=group)

    @property
    def refusals(self) -> Mapping[str, str]:
        """By uid of a policy, a message about the nodes that refuse its label, as of the last step."""
        return self._progress.refusals

    async def step(
        self, snapshot: Snapshot, states: Mapping[PolicyKey, PolicyState], selection: SelectionIndex
    ) -> None:
        """Write what differs from the snapshot. A failure of one node, policy or pod does not affect the others."""
        if not self._pods.synced:
            return
        if self._is_new_leader:
            self._deleted.begin(await self._deleted_lease.load())
            self._is_new_leader = False
        pods = list(self._pods.store.values())
        policies = {key: _labelled_policy(state) for key, state in states.items() if state.policy.uid}
        unknown = self._update_unknown_keys(pods, policies.values())
        live = {verdict_labels.label_key(labelled.policy.uid): key for key, labelled in policies.items()}
        now_s = self._handle.clock.now()
        await cooperative_scheduling.run(self._deleted.update(live, selection, pods, now_s))
        pods_with_own_keys = await cooperative_scheduling.run(
            native_mode_pods.remove_foreign_keys(pods, live, selection)
        )
        required_ok = native_mode_pods.keys_with_ok(pods_with_own_keys)
        waited_for = self._labels_of_waiting_pods(policies.values(), required_ok)
        self._deleted.keep(waited_for)
        await self._deleted_lease.save(self._deleted.records)
        columns = await cooperative_scheduling.run(
            verdict_labels.verdict_labels(
                policies.values(), len(snapshot.nodes) + 1, required_ok, waited_for & live.keys()
            )
        )
        self.not_enforced = {
            labelled.policy.uid: reason
            for labelled in policies.values()
            if (reason := _not_enforced(labelled.policy))
        }
        try:
            held = waited_for - live.keys()
            await self._labels.step(snapshot, columns, held, native_mode_pods.count_rejected(pods))
        finally:
            deleted = frozenset(key for key, age_s in unknown.items() if age_s > _UNKNOWN_S)
            statuses = self._statuses(policies, columns, deleted)
            self.uncovered = await cooperative_scheduling.run(
                self._uncovered.find(
                    selection, _labelled_selectors(policies, statuses), self._handle.clock.monotonic()
                )
            )
            await self._write_statuses_and_gates(statuses, pods, policies)
            await self._events.step(pods_with_own_keys, states, deleted, len(snapshot.nodes))

    def _labels_of_waiting_pods(
        self, policies: Iterable[LabelledPolicy], required_ok: frozenset[tuple[str, str]]
    ) -> frozenset[str]:
        """The keys of labels that only waiting pods need, within the budget: those of policies that reject no node any
        more, and those of deleted policies.
        """
        wanted = []
        counts: Counter[str] = Counter()
        for labelled in policies:
            policy, key = labelled.policy, verdict_labels.label_key(labelled.policy.uid)
            if labelled.codes is None:
                if (policy.namespace, key) in required_ok:
                    wanted.append((key, frozenset([policy.namespace])))
            elif not policy.no_verdict_label:
                counts[policy.namespace] += 1
        wanted += self._deleted.wanted_labels()
        if not wanted:
            return frozenset()
        free = policy_budgets.free_bytes(labelled.policy for labelled in policies)
        return policy_budgets.admit_labels_of_waiting_pods(wanted, counts, free)

    def _update_unknown_keys(
        self, pods: Iterable[UnscheduledPod], policies: Iterable[LabelledPolicy]
    ) -> dict[str, float]:
        """The keys of pods that belong to no policy, and for how many seconds that is known."""
        now_s = self._handle.clock.monotonic()
        known = {verdict_labels.label_key(labelled.policy.uid) for labelled in policies}
        unknown = frozenset(chain.from_iterable(pod.keys for pod in pods)) - known
        self._unknown_since_s = {key: self._unknown_since_s.get(key, now_s) for key in unknown}
        return {key: now_s - since_s for key, since_s in self._unknown_since_s.items()}

    def _statuses(
        self,
        policies: Mapping[PolicyKey, LabelledPolicy],
        columns: Mapping[str, LabelColumn],
        deleted: frozenset[str],
    ) -> _Statuses:
        wanted: dict[PolicyKey, _NativeStatus] = {}
        settled = set(deleted)
        now_s = self._handle.clock.monotonic()
        pending = self._labels.pending_labels(self._progress.unlabelled_keys(policies.values()))
        self._progress.update(policies.values(), pending, self._labels.failures(), now_s)
        for key, labelled in policies.items():
            label = verdict_labels.label_key(labelled.policy.uid)
            if not policy_selection.has_labels(labelled.policy):
                wanted[key] = _NativeStatus()
                settled.add(label)
                continue
            node_label = label if label in columns else ""
            before = self._status_before(labelled.policy)
            was_active = before.active and before.node_label == node_label
            is_visible = self._progress.labelled_s(labelled.policy.uid, now_s) >= _VISIBLE_S
            excluded = self._progress.excluded_nodes(labelled.policy.uid)
            active = was_active or not node_label or is_visible
            wanted[key] = _NativeStatus(node_label, active, excluded or msgspec.UNSET)
            if wanted[key].active:
                settled.add(label)
        return _Statuses(wanted, frozenset(settled))

    def _status_before(self, policy: Policy) -> _NativeStatus:
        """The status as the watch shows it, or as it was written a moment ago."""
        written = self._written.get(policy.uid)
        if written is not None and self._handle.clock.monotonic() - written[1] < _CONFIRMED_S:
            return written[0]
        policy_object = _policy_object(self._handle, policy)
        return decode_status(policy_object, _NativeStatus) if policy_object else _NativeStatus()

    async def _write_statuses_and_gates(
        self,
        statuses: _Statuses,
        pods: Iterable[UnscheduledPod],
        policies: Mapping[PolicyKey, LabelledPolicy],
    ) -> None:
        uids = {labelled.policy.uid for labelled in policies.values()}
        self._written = {uid: written for uid, written in self._written.items() if uid in uids}
        until_s = self._handle.clock.monotonic() + _STEP_S
        calls = chain(
            (
                partial(self._write_status, policies[key].policy, status)
                for key, status in statuses.wanted.items()
                if status != self._status_before(policies[key].policy)
            ),
            (
                partial(self._remove_gate, pod, self._excluded_nodes(pod, policies))
                for pod in native_mode_pods.releasable_pods(pods, statuses.settled)
            ),
        )
        due = takewhile(lambda _: self._handle.clock.monotonic() < until_s, calls)
        await run_api_calls(call() for call in due)

    async def _write_status(self, policy: Policy, status: _NativeStatus) -> None:
        if _policy_object(self._handle, policy) is None:
            return
        try:
            await _apply_status(self._handle.api, policy, status)
        except (Conflict, NotFound):
            return  # deleted or replaced
        self._written[policy.uid] = status, self._handle.clock.monotonic()

    def _excluded_nodes(
        self, pod: UnscheduledPod, policies: Mapping[PolicyKey, LabelledPolicy]
    ) -> frozenset[str]:
        """The nodes that the policies of a pod exclude by name."""
        uids = {labelled.policy.uid for labelled in policies.values()}
        excluded = (
            self._progress.excluded_nodes(uid) for key in pod.keys if (uid := key.rpartition("/")[2]) in uids
        )
        return frozenset(chain.from_iterable(excluded))

    async def _remove_gate(self, pod: UnscheduledPod, excluded: frozenset[str]) -> None:
        path = PODS.path(pod.metadata.namespace, pod.metadata.name)
        params = {"fieldManager": VERDICT_LABELS.field_manager}
        patch = native_mode_pods.gate_removal(pod, excluded)
        if patch is None:
            return  # it waits until the nodes have their labels
        try:
            await self._handle.api.patch(path, patch, "json", params)
        except (Conflict, NotFound, BadInput):
            return  # the pod has changed, and the watch shows it soon


class NativeStatusReset:
    """Resets what native mode wrote to the status of policies, in a leader that does not run in native mode.

    Nothing updates the labels of native mode then. A policy that stayed active would not gate its pods when native mode
    is installed again, although nodes have old labels or none. Each leader resets a policy once: if a controller in
    native mode runs as well, against the documentation, they do not overwrite each other all the time.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._examined: set[str] = set()
        """Policies by uid."""

    def begin(self) -> None:
        self._examined = set()

    async def step(self, states: Mapping[PolicyKey, PolicyState]) -> None:
        """Reset the policies that this leader has not examined, for `_STEP_S` at most."""
        until_s = self._handle.clock.monotonic() + _STEP_S
        policies = [state.policy for state in states.values() if state.policy.uid]
        self._examined &= {policy.uid for policy in policies}
        due = (policy for policy in policies if policy.uid not in self._examined)
        in_time = takewhile(lambda _: self._handle.clock.monotonic() < until_s, due)
        await run_api_calls(self._reset(policy) for policy in in_time)

    async def _reset(self, policy: Policy) -> None:
        policy_object = _policy_object(self._handle, policy)
        if policy_object and decode_status(policy_object, _NativeStatus) != _NativeStatus():
            # deleted, replaced, or no right to write it
            with contextlib.suppress(Conflict, NotFound, Refused):
                await _apply_status(self._handle.api, policy, _NativeStatus())
        self._examined.add(policy.uid)


def _policy_object(handle: Handle, policy: Policy) -> PolicyObject | None:
    """The object of exactly this policy; None if it is gone."""
    store = handle.objects[RESOURCES[policy.key.kind].plural]
    policy_object: PolicyObject | None = store.get(policy.namespace, policy.name)
    return policy_object if policy_object and policy_object.metadata.uid == policy.uid else None


async def _apply_status(api: Api, policy: Policy, status: _NativeStatus) -> None:
    """Write the fields of native mode to the status of a policy. Raises NodewiseError."""
    resource = RESOURCES[policy.key.kind]
    metadata = {"name": policy.name, "namespace": policy.namespace, "uid": policy.uid}
    body = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": metadata,
        "status": status,
    }
    await api.patch(resource.path(policy.namespace, policy.name, "status"), body, "apply", _APPLY)


def _not_enforced(policy: Policy) -> str:
    """Why native mode does not enforce the policy; empty if it does, or if the policy needs no label."""
    if policy.mode == "Canary" and not policy_selection.has_labels(policy):
        return _ONLY_EXTENDER
    return policy.no_verdict_label


def _labelled_selectors(
    policies: Mapping[PolicyKey, LabelledPolicy], statuses: _Statuses
) -> dict[PolicyKey, LabelledSelector]:
    """The policies with a label that select pods. The pods of a TASPolicy without the requirement are denied."""
    return {
        key: LabelledSelector(policies[key].policy, status.node_label)
        for key, status in statuses.wanted.items()
        if status.node_label and key.kind != "TASPolicy"
    }


def _labelled_policy(state: PolicyState) -> LabelledPolicy:
    has_labels = state.verdict is not None and policy_selection.has_labels(state.policy)
    codes = state.verdict.codes if state.verdict is not None and has_labels else None
    return LabelledPolicy(state.policy, codes, state.awaits_metrics)
