"""Writes the status of policies, and records changes of conditions as events."""

from collections.abc import Mapping
from functools import partial
from typing import Final

from nodewise.agent.controller_interface import Handle
from nodewise.base.clock import format_rfc3339
from nodewise.base.errors import Conflict, Refused
from nodewise.kube.event_recorder import ObjectReference
from nodewise.observe import logs
from nodewise.policies import policy_status
from nodewise.policies.controller.object_patcher import StatusPatcher
from nodewise.policies.node_labels import FIELD_MANAGER, interleave
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.policy_objects import RESOURCES, PolicyObject
from nodewise.policies.policy_status import Status, StatusFacts
from nodewise.policies.state import PolicyState

_COUNTS_S: Final = 30.0
"""The shortest time between writes of a status of which only counts changed."""
_REFUSED_S: Final = 60.0
"""The time after which a status that was refused is tried again. While the API server starts, it may refuse what it
grants later."""


class StatusWriter:
    """Writes the status of policies, and records changes of conditions as events."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._patcher: StatusPatcher[Status] = StatusPatcher(
            handle, FIELD_MANAGER, policy_status.status_of, (Conflict, Refused), pause_s=_REFUSED_S
        )

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
        registry.set("label_conflicts", sum(bool(each.label_conflict) for each in facts.values()))
        queues: dict[str, list[PolicyKey]] = {}
        for key in sorted(states, key=self._patcher.written_s):
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
