"""The controller of the telemetry agent, in the leader: the only package of the agent that calls the API server.

It writes node labels, the status of policies, events and the advertised resource, and in native mode it removes the
scheduling gates of pods. What to write is computed in the modules of the agent, without I/O.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final

from nodewise.agent import Snapshot
from nodewise.agent.controller_interface import Controller, Handle
from nodewise.base import cooperative_scheduling
from nodewise.kube.api_server_interface import run_api_calls
from nodewise.kube.leader_election import NATIVE_MODE_ANNOTATION
from nodewise.observe import logs
from nodewise.policies import native_mode_admission, node_labels, selected_pods
from nodewise.policies.controller.native_mode import NativeMode, NativeStatusReset
from nodewise.policies.controller.node_writer import LabelWriter, ResourceAdvertiser
from nodewise.policies.controller.policy_guard import GuardWatch
from nodewise.policies.controller.policy_status_writer import SelectedPodWatch, StatusWriter
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.policy_status import StatusFacts
from nodewise.policies.state import TelemetryState

_BY_PODS: Final = frozenset({"NoPodsSelected", "NoCanaryPods", "AllNodesRejected"})
"""Conditions that depend on the pods that policies select."""
_BY_NATIVE_MODE: Final = frozenset({"NotEnforced", "PodsNotCovered", "LabelRefused", "PodsGated"})
"""Conditions that depend on what native mode finds out."""


class TelemetryController(Controller):
    """Updates node labels and the status of policies from the snapshot."""

    def __init__(self, options: TelemetryOptions, handle: Handle) -> None:
        self._labels = LabelWriter(handle)
        self._statuses = StatusWriter(handle)
        self._pods = SelectedPodWatch(handle)
        self._guards = GuardWatch(handle)
        self._advertiser = ResourceAdvertiser(options.advertise_resource, handle)
        # where the admission policies are not watched, as in the extender, native mode is off by default
        follows = options.native_mode is None and native_mode_admission.POLICIES in handle.objects
        may_be_on = options.native_mode or follows
        self._native_mode = NativeMode(handle) if may_be_on else NativeStatusReset(handle)
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
        self._native_mode.begin()

    def tasks(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        return (self._pods.run, self._guards.run, *self._native_mode.tasks())

    async def step(self, snapshot: Snapshot) -> None:
        """Write labels, status and the advertised resource. A failure of one does not affect the others."""
        agent_state: TelemetryState | None = snapshot.agent_states.get("telemetry")
        if agent_state is not None:
            if agent_state.native_mode != bool(self._is_native_mode_on):
                logs.emit("native_mode_changed", native_mode="on" if agent_state.native_mode else "off")
            self._is_native_mode_on = agent_state.native_mode
            parts = (
                partial(self._write, snapshot, agent_state),
                self._advertiser.step,
                partial(self._native_mode.step, snapshot, agent_state),
            )
            await run_api_calls(part() for part in parts)

    def lease_annotations(self) -> Mapping[str, str]:
        if self._is_native_mode_on is None:
            return {}
        return {NATIVE_MODE_ANNOTATION: "on" if self._is_native_mode_on else "off"}

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
            await self._write_statuses(snapshot, agent_state, conflicts)

    async def _write_statuses(
        self, snapshot: Snapshot, agent_state: TelemetryState, conflicts: Mapping[PolicyKey, str]
    ) -> None:
        states = agent_state.policies
        pods = await self._pods.count(agent_state)
        rejecting: Mapping[PolicyKey, tuple[PolicyKey, ...]] = {}
        if pods is not None:
            finding = selected_pods.find_rejecting_policies(states, len(snapshot.nodes), pods.selections)
            rejecting = await cooperative_scheduling.run(finding)
        native = self._native_mode.findings
        unknown: frozenset[str] = frozenset() if native.is_complete else _BY_NATIVE_MODE
        unknown |= _BY_PODS if pods is None else frozenset()
        step_backs = await self._guards.step_backs(agent_state)
        facts = {
            key: StatusFacts(
                label_conflict=conflicts.get(key, ""),
                selected_pods=None if pods is None else pods.by_policy.get(key, 0),
                canary_pods=None if pods is None else pods.in_canary.get(key, 0),
                rejecting_policies=rejecting.get(key, ()),
                no_node_label=native.not_enforced.get(state.policy.uid, ""),
                step_back=step_backs.get(key),
                label_refusal=native.refusals.get(state.policy.uid, ""),
                uncovered_pod=native.uncovered.get(state.policy.uid, ""),
                unknown=unknown,
                gated_pods=native.gated.get(state.policy.uid, ""),
            )
            for key, state in states.items()
        }
        await self._statuses.step(states, facts)
