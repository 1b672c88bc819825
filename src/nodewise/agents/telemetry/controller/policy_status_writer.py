"""Writes the status of policies, and records changes of conditions as events."""

from collections.abc import Mapping
from itertools import takewhile
from typing import Final

from nodewise.agent import Resource
from nodewise.agent_controller_interface import Handle
from nodewise.agents.telemetry import taspolicy_status
from nodewise.agents.telemetry.node_label_ownership import FIELD_MANAGER
from nodewise.agents.telemetry.placement_policy import PolicyKey
from nodewise.agents.telemetry.policy_objects import PolicyObject
from nodewise.agents.telemetry.state import POLICIES, PolicyState
from nodewise.agents.telemetry.taspolicy_status import PolicyStatus
from nodewise.clock import format_rfc3339
from nodewise.errors import Conflict, Refused
from nodewise.kube.concurrent_calls import run_api_calls
from nodewise.kube.event_recorder import ObjectReference
from nodewise.observe import logs

_STEP_S: Final = 2.0
"""The longest time that statuses are written from one snapshot. Otherwise policies of one namespace that change all the
time would delay all node labels."""
_COUNTS_S: Final = 30.0
"""The shortest time between writes of a status of which only counts changed."""
_REFUSED_S: Final = 60.0
"""The time after which a status that was refused is tried again."""
_APPLY: Final = {"fieldManager": FIELD_MANAGER}


class StatusWriter:
    """Writes the status of policies, and records changes of conditions as events."""

    def __init__(self, taspolicies: Resource, handle: Handle) -> None:
        self._taspolicies = taspolicies
        self._handle = handle
        self._written: dict[PolicyKey, tuple[PolicyStatus, float]] = {}
        self._refused: dict[PolicyKey, float] = {}

    def begin(self) -> None:
        self._written, self._refused = {}, {}

    async def step(self, states: Mapping[PolicyKey, PolicyState], conflicts: dict[PolicyKey, str]) -> None:
        """Write the statuses that differ, for `_STEP_S` at most, in the order of their last write.

        The next snapshot continues. A policy that was deleted, or may not be written, does not affect the others.
        """
        self._written = {key: written for key, written in self._written.items() if key in states}
        self._refused = {key: until_s for key, until_s in self._refused.items() if key in states}
        suspended = sum(len(state.suspended) for state in states.values())
        self._handle.metrics_registry.set("rules_suspended", suspended)
        oldest_first = sorted((key for key in states if key.kind == "TASPolicy"), key=self._last_write_time)
        until_s = self._handle.clock.monotonic() + _STEP_S
        due = takewhile(lambda _: self._handle.clock.monotonic() < until_s, oldest_first)
        await run_api_calls(self._update_status(key, states[key], conflicts.get(key, "")) for key in due)

    def _last_write_time(self, key: PolicyKey) -> float:
        return self._written[key][1] if key in self._written else float("-inf")

    async def _update_status(self, key: PolicyKey, state: PolicyState, conflict: str) -> None:
        policy_object: PolicyObject | None = self._handle.objects[POLICIES].get(key.namespace, key.name)
        if policy_object is None:
            return
        before, written_s = self._written.get(
            key, (taspolicy_status.parse_status(policy_object.status), float("-inf"))
        )
        now_s = self._handle.clock.monotonic()
        now = format_rfc3339(self._handle.clock.now())
        wanted = taspolicy_status.desired_status(
            state, policy_object.metadata.generation, conflict, before, now
        )
        only_counts = wanted.conditions == before.conditions and (
            wanted.observed_generation == before.observed_generation
        )
        if wanted == before or (only_counts and now_s - written_s < _COUNTS_S):
            return
        if self._refused.get(key, now_s) > now_s:
            return
        if await self._write(policy_object, wanted):
            self._written[key] = (wanted, now_s)
            self._record_events(policy_object, before, wanted)
        else:
            self._refused[key] = now_s + _REFUSED_S

    def _record_events(self, policy_object: PolicyObject, before: PolicyStatus, wanted: PolicyStatus) -> None:
        """Record an event for each condition that became bad or good."""
        known = before.conditions_by_type()
        metadata = policy_object.metadata
        about = ObjectReference(self._taspolicies, metadata.namespace, metadata.name, metadata.uid)
        for condition in wanted.conditions:
            old = known.get(condition.type)
            good = taspolicy_status.GOOD[condition.type]
            if condition.status != good and (
                old is None or old.status == good or old.message != condition.message
            ):
                self._handle.recorder.record(
                    about, "Warning", condition.reason, condition.message, condition.type
                )
            elif condition.status == good and old is not None and old.status != good:
                self._handle.recorder.record(about, "Normal", "AllWell", condition.message, condition.type)

    async def _write(self, policy_object: PolicyObject, wanted: PolicyStatus) -> bool:
        """Returns whether the API server accepted it. While it starts, it may refuse what it grants later."""
        metadata = policy_object.metadata
        path = self._taspolicies.path(metadata.namespace, metadata.name, "status")
        identity = {"name": metadata.name, "namespace": metadata.namespace, "uid": metadata.uid}
        resource = self._taspolicies
        body = taspolicy_status.status_apply_body(resource.api_version, resource.kind, identity, wanted)
        try:
            await self._handle.api.patch(path, body, "apply", {**_APPLY, "force": "true"})
        except (Conflict, Refused) as error:
            # deleted or replaced, or no right to write it; this must not affect other policies
            logs.emit("status_failed", policy=path, error=str(error))
            return False
        return True
