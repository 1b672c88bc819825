"""The controller of the telemetry agent, in the leader: the only package of the agent that calls the API server.

It writes node labels, the status of policies, events and the advertised resource, and in native mode it removes the
scheduling gates of pods. What to write is computed in the modules of the agent, without I/O.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from nodewise.agent import Snapshot
from nodewise.agent.controller_interface import Controller, Handle
from nodewise.base import clock, cooperative_scheduling
from nodewise.kube.api_server_interface import run_api_calls
from nodewise.kube.leader_election import NATIVE_MODE_ANNOTATION
from nodewise.kube.shard_election import Tenure
from nodewise.observe import logs
from nodewise.policies import (
    native_mode_admission,
    node_labels,
    policy_status,
    selected_pods,
    shard_reports,
)
from nodewise.policies.controller.device_taint_writer import DeviceTaintWriter
from nodewise.policies.controller.native_mode import NativeMode, NativeStatusReset
from nodewise.policies.controller.node_writer import LabelWriter, ResourceAdvertiser
from nodewise.policies.controller.object_patcher import find_policy_object
from nodewise.policies.controller.policy_guard import GuardWatch
from nodewise.policies.controller.policy_status_writer import SelectedPodWatch, StatusWriter
from nodewise.policies.device_taints import DeviceReport
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.policy_status import StatusFacts
from nodewise.policies.selected_pods import SelectedPods
from nodewise.policies.shard_reports import ShardReport, ShardReports
from nodewise.policies.state import PolicyState, TelemetryState

_BY_PODS: Final = frozenset({"NoPodsSelected", "NoCanaryPods", "AllNodesRejected"})
"""Conditions that depend on the pods that policies select."""
_BY_NATIVE_MODE: Final = frozenset({"NotEnforced", "PodsNotCovered", "LabelRefused", "PodsGated"})
"""Conditions that depend on what native mode finds out."""

_BY_DEVICES: Final = frozenset({"DevicesUnmatched", "DeviceLimitReached", "DeviceTaintsRefused", "Flapping"})
"""Conditions that depend on device rules."""


class TelemetryController(Controller):
    """Updates node labels and the status of policies from the snapshot."""

    def __init__(self, options: TelemetryOptions, handle: Handle) -> None:
        self._handle = handle
        self._labels = LabelWriter(handle)
        self._statuses = StatusWriter(handle)
        self._pods = SelectedPodWatch(handle)
        self._guards = GuardWatch(handle)
        self._devices = DeviceTaintWriter(handle)
        self._device_reports: Mapping[PolicyKey, DeviceReport] = {}
        """Of the last step that evaluated device rules."""
        self._advertiser = ResourceAdvertiser(options.advertise_resource, handle)
        # where the admission policies are not watched, as in the extender, native mode is off by default
        follows = options.native_mode is None and native_mode_admission.POLICIES in handle.objects
        may_be_on = options.native_mode or follows
        self._reports: ShardReports | None = None
        """Those of other replicas, with shards."""
        self._report: tuple[Tenure, str] = (Tenure(), "")
        """That of this replica, with what it held."""
        if handle.ownership is not None and handle.ownership.shards > 1:
            self._reports = ShardReports(handle.ownership)
        self._native_mode = NativeMode(handle, self._reports) if may_be_on else NativeStatusReset(handle)
        self._is_native_mode_on: bool | None = None
        """None before the first step."""
        if options.trust_all_namespaces:
            logs.emit("all_namespaces_trusted")
        if options.label_policies_from:
            instead = "kubectl label namespace NAME nodewise.io/trusted=true"
            logs.emit("option_deprecated", option="--label-policies-from", instead=instead)

    def begin(self) -> None:
        """Start as the leader. Labels and statuses that another leader wrote are read again."""
        self._labels.begin()
        self._statuses.begin()
        self._guards.begin()
        self._devices.begin()
        self._device_reports = {}
        self._native_mode.begin()

    def tasks(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        return (self._pods.run, self._guards.run, self._devices.run, *self._native_mode.tasks())

    async def step(self, snapshot: Snapshot) -> None:
        """Write labels, status and the advertised resource. A failure of one does not affect the others."""
        if self._reports is not None:
            self._reports.at = snapshot.at
        agent_state: TelemetryState | None = snapshot.agent_states.get("telemetry")
        if agent_state is not None:
            if agent_state.native_mode != bool(self._is_native_mode_on):
                logs.emit("native_mode_changed", native_mode="on" if agent_state.native_mode else "off")
            self._is_native_mode_on = agent_state.native_mode
            parts = (
                partial(self._write, snapshot, agent_state),
                partial(self._advertiser.step, snapshot.at),
                partial(self._native_mode.step, snapshot, agent_state),
                partial(self._taint_devices, snapshot, agent_state),
            )
            await run_api_calls(part() for part in parts)

    async def _taint_devices(self, snapshot: Snapshot, agent_state: TelemetryState) -> None:
        if self._handle.leads():
            self._device_reports = await self._devices.step(snapshot, agent_state)

    def lease_annotations(self) -> Mapping[str, str]:
        if self._is_native_mode_on is None:
            return {}
        return {NATIVE_MODE_ANNOTATION: "on" if self._is_native_mode_on else "off"}

    def shard_annotations(self, shard: int) -> Mapping[str, str]:
        ownership = self._handle.ownership
        if ownership is None:
            return {}
        tenure, report = self._report
        # not that of earlier nodes
        is_valid = (
            shard == min(ownership.own_shards(), default=None) and tenure.shards == ownership.tenure().shards
        )
        return {shard_reports.ANNOTATION: report if is_valid else ""}

    async def _write(self, snapshot: Snapshot, agent_state: TelemetryState) -> None:
        """Write labels, and then the status, which reports conflicts of labels."""
        policies = {key: (state.policy, state.labels) for key, state in agent_state.policies.items()}
        assignment = node_labels.combine_policy_labels(policies)
        conflicts = dict(assignment.conflicts)
        try:
            await self._labels.step(snapshot, assignment.columns)
        finally:
            for key, state in agent_state.policies.items():
                conflicts.setdefault(key, self._labels.conflict(state))
            if self._reports is not None:
                await self._create_report(snapshot, agent_state, conflicts)
            if self._handle.leads():
                await self._write_statuses(snapshot, agent_state, conflicts)

    async def _create_report(
        self, snapshot: Snapshot, agent_state: TelemetryState, conflicts: Mapping[PolicyKey, str]
    ) -> None:
        """What this replica tells the others, with the next write of its Leases."""
        ownership = self._handle.ownership
        assert ownership is not None
        tenure = ownership.tenure()
        if not ownership.is_whole(snapshot.at):
            self._report = Tenure(), ""
            return
        now = clock.format_rfc3339(self._handle.clock.now())
        reports = {}
        for key, state in agent_state.policies.items():
            policy_object = find_policy_object(self._handle, key, state.policy.uid)
            if policy_object is None:
                continue
            facts = StatusFacts(policy_object.metadata.generation, conflicts.get(key, ""))
            labelled_s, excluded, refusal = self._native_mode.progress(state.policy.uid)
            reports[state.policy.uid] = msgspec.structs.replace(
                policy_status.create_report(state, facts, now),
                labelled_s=labelled_s,
                excluded_nodes=excluded,
                refusal=refusal,
            )
        counting = shard_reports.count_rejections(list(agent_state.policies.values()))
        reasons, patterns = await cooperative_scheduling.run(counting)
        report = ShardReport(
            tuple(sorted(shard for shard, _ in tenure.shards)),
            len(snapshot.nodes),
            dict(agent_state.own_values),
            reports,
            reasons,
            patterns,
        )
        namespaces = {state.policy.uid: key.namespace for key, state in agent_state.policies.items()}
        self._report = tenure, shard_reports.encode(report, namespaces)

    async def _write_statuses(
        self, snapshot: Snapshot, agent_state: TelemetryState, conflicts: Mapping[PolicyKey, str]
    ) -> None:
        others = self._reports.others() if self._reports is not None else []
        if others is None:  # another replica has not counted its nodes yet
            return
        node_count = len(snapshot.nodes) + sum(other.nodes for other in others)
        whole = agent_state.policies
        if others:
            whole = await cooperative_scheduling.run(shard_reports.extend_states(whole, others))
        states = {
            key: state for key, state in agent_state.policies.items() if self._is_reported(state, others)
        }
        pods = await self._pods.count(agent_state)
        rejecting: Mapping[PolicyKey, tuple[PolicyKey, ...]] = {}
        if pods is not None:
            finding = selected_pods.find_rejecting_policies(whole, node_count, pods.selections)
            rejecting = await cooperative_scheduling.run(finding)
        step_backs = await self._guards.step_backs(agent_state, whole)
        facts = {
            key: self._facts(state, pods, others)._replace(
                label_conflict=conflicts.get(key, ""),
                rejecting_policies=rejecting.get(key, ()),
                step_back=step_backs.get(key),
            )
            for key, state in states.items()
        }
        await self._statuses.step(states, facts)

    def _facts(
        self, state: PolicyState, pods: SelectedPods | None, others: Sequence[ShardReport]
    ) -> StatusFacts:
        native, uid = self._native_mode.findings, state.policy.uid
        unknown: frozenset[str] = frozenset() if native.is_complete else _BY_NATIVE_MODE
        devices = self._device_reports.get(state.policy.key)
        if devices is None and state.policy.device_taints:
            unknown |= _BY_DEVICES
        return StatusFacts(
            selected_pods=None if pods is None else pods.by_policy.get(state.policy.key, 0),
            canary_pods=None if pods is None else pods.in_canary.get(state.policy.key, 0),
            no_node_label=native.not_enforced.get(uid, ""),
            label_refusal=native.refusals.get(uid, ""),
            uncovered_pod=native.uncovered.get(uid, ""),
            unknown=unknown | (_BY_PODS if pods is None else frozenset()),
            gated_pods=native.gated.get(uid, ""),
            others=tuple(other.policies[uid] for other in others),
            devices=devices,
        )

    def _is_reported(self, state: PolicyState, others: Sequence[ShardReport]) -> bool:
        """Whether all replicas have evaluated the policy as it is now. Until then, its status stays as it is."""
        if not others:
            return True
        policy = state.policy
        policy_object = find_policy_object(self._handle, policy.key, policy.uid)
        return policy_object is not None and all(
            policy.uid in other.policies
            and other.policies[policy.uid].generation == policy_object.metadata.generation
            for other in others
        )
