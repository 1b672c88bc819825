"""Writes the status of policies with the number of their pods, and records changes of conditions as events."""

import asyncio
import random
from collections.abc import Mapping
from functools import partial
from typing import Final

from nodewise.agent.controller_interface import Handle
from nodewise.base import cooperative_scheduling
from nodewise.base.clock import format_rfc3339
from nodewise.base.errors import Conflict, Refused
from nodewise.kube.event_recorder import ObjectReference
from nodewise.kube.reflector import Reflector, ReflectorTarget
from nodewise.kube.resource_kinds import PODS
from nodewise.observe import logs
from nodewise.policies import policy_status
from nodewise.policies.controller.object_patcher import StatusPatcher
from nodewise.policies.node_labels import FIELD_MANAGER, interleave
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.policy_objects import RESOURCES, PolicyObject
from nodewise.policies.policy_status import Status, StatusFacts
from nodewise.policies.selected_pods import ListedPod, PodLabelGroups, SelectedPodCounter, SelectedPods
from nodewise.policies.state import PolicyState, TelemetryState

_UNUSED_S: Final = 60.0
"""The watch ends if no count is requested for this time: the replica no longer leads, or there is no policy."""
_CHECK_S: Final = 10.0
_NOT_FINISHED: Final = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
_LABEL: Final = "Pod (selected)"
"""The kind in metrics, which the other watches of pods do not have."""


class SelectedPodWatch:
    """Counts the pods of policies. The watch runs only while counts are requested."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._requested = asyncio.Event()
        self._requested_s = float("-inf")
        self._watched: tuple[Reflector[ListedPod], SelectedPodCounter] | None = None

    async def count(self, agent_state: TelemetryState) -> SelectedPods | None:
        """The pods that policies select; None while pods are not listed yet, or if no policy has selectors."""
        if not any(state.policy.selection for state in agent_state.policies.values()):
            return None
        self._requested_s = self._handle.clock.monotonic()
        self._requested.set()
        if self._watched is None or not self._watched[0].synced:
            return None
        return await cooperative_scheduling.run(self._watched[1].count(agent_state.selection))

    async def run(self) -> None:
        """Watch pods while counts are requested, until cancelled."""
        handle, registry = self._handle, self._handle.metrics_registry
        while True:
            await self._requested.wait()
            groups = PodLabelGroups()
            target = ReflectorTarget(PODS, ListedPod, selectors=_NOT_FINISHED, keep=groups.keep, label=_LABEL)
            reflector = Reflector(handle.metadata_api, target, handle.clock, registry, random.random)
            reflector.store.subscribe(partial(groups.update, reflector.store.values))
            self._watched = reflector, SelectedPodCounter(groups)
            watching = asyncio.ensure_future(reflector.run())
            try:
                while handle.clock.monotonic() - self._requested_s < _UNUSED_S and not watching.done():
                    await handle.clock.sleep(_CHECK_S)
                if watching.done():
                    watching.result()
            finally:
                self._watched = None
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                for metric in ("kube_connected", "kube_contact_timestamp_seconds", "kube_objects"):
                    registry.forget(metric, kind=_LABEL)
            self._requested.clear()


_COUNTS_S: Final = 30.0
"""The shortest time between writes of a status of which only counts changed."""
_FIRST_RESPONSE_S: Final = 30.0
"""The longest time that a status waits for the first response about a metric: of a new policy, or in a new process.
Until then every node would count as without a value."""
_REFUSED_S: Final = 60.0
"""The time after which a status that was refused is tried again. While the API server starts, it may refuse what it
grants later."""
_CONFIRMED_S: Final = 60.0
"""The time after which a status is written again if the watch does not show it."""


class StatusWriter:
    """Writes the status of policies, and records changes of conditions as events."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._patcher: StatusPatcher[Status] = StatusPatcher(
            handle,
            FIELD_MANAGER,
            policy_status.status_of,
            (Conflict, Refused),
            pause_s=_REFUSED_S,
            confirmed_s=_CONFIRMED_S,
        )
        self._awaiting_since_s: Mapping[PolicyKey, float] = {}
        """The monotonic time since which a metric of the policy has had no response."""

    def begin(self) -> None:
        """Start as the leader: statuses that another leader wrote are read again."""
        self._patcher.begin()

    async def step(
        self, states: Mapping[PolicyKey, PolicyState], facts: Mapping[PolicyKey, StatusFacts]
    ) -> None:
        """Write the statuses that differ, for `STEP_S` at most. Namespaces take turns, and in each the policy comes
        first whose status was written the longest time ago.

        The next snapshot continues. A policy that was deleted, or may not be written, does not affect the others.
        """
        self._patcher.retain(states)
        registry = self._handle.metrics_registry
        registry.set("rules_suspended", sum(len(state.suspended) for state in states.values()))
        registry.set("policies_without_nodes", sum(bool(each.rejecting_policies) for each in facts.values()))
        registry.set("label_conflicts", sum(bool(each.label_conflict) for each in facts.values()))
        now_s = self._handle.clock.monotonic()
        self._awaiting_since_s = {
            key: self._awaiting_since_s.get(key, now_s)
            for key, state in states.items()
            if state.awaits_first_response
        }
        queues: dict[str, list[PolicyKey]] = {}
        for key in sorted(states, key=self._patcher.written_s):
            if now_s - self._awaiting_since_s.get(key, float("-inf")) < _FIRST_RESPONSE_S:
                continue
            queues.setdefault(key.namespace, []).append(key)
        await self._patcher.run(
            (key, partial(self._update_status, key, states[key], facts.get(key, StatusFacts())))
            for key in interleave(queues.values())
        )

    async def _update_status(self, key: PolicyKey, state: PolicyState, facts: StatusFacts) -> None:
        resource = RESOURCES[key.kind]
        policy_object: PolicyObject | None = self._handle.objects[resource.plural].get(
            key.namespace, key.name
        )
        if policy_object is None:
            return
        metadata = policy_object.metadata
        before = self._patcher.current(key, policy_object)
        now = format_rfc3339(self._handle.clock.now())
        facts = facts._replace(generation=metadata.generation)
        wanted = policy_status.desired_status(state, facts, before.status, now)
        age_s = self._handle.clock.monotonic() - before.at_s
        only_counts = wanted.has_same_conditions(before.status)
        if wanted == before.status or (only_counts and age_s < _COUNTS_S):
            return
        try:
            await self._patcher.write(key, metadata.uid, wanted)
        except (Conflict, Refused) as error:
            # deleted or replaced, or no right to write it; this must not affect other policies
            path = resource.path(key.namespace, key.name, "status")
            logs.emit("status_failed", policy=path, error=str(error))
            raise
        about = ObjectReference(resource, metadata.namespace, metadata.name, metadata.uid)
        for event_kind, reason, condition in policy_status.condition_events(before.status, wanted):
            self._handle.recorder.record(about, event_kind, reason, condition.message, condition.type)
