"""Writes the status of policies, and records changes of conditions as events."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import takewhile
from operator import itemgetter
from typing import Final, NamedTuple

from nodewise.agent import Resource
from nodewise.agent.controller_interface import Handle
from nodewise.base.clock import format_rfc3339
from nodewise.base.errors import Conflict, Refused
from nodewise.kube.api_server_interface import run_api_calls
from nodewise.kube.event_recorder import ObjectReference
from nodewise.observe import logs
from nodewise.policies import policy_status
from nodewise.policies.node_labels import FIELD_MANAGER
from nodewise.policies.placement_policy import PolicyKey, PolicyKind
from nodewise.policies.policy_objects import RESOURCES, PolicyObject
from nodewise.policies.policy_status import Status, StatusFacts
from nodewise.policies.state import PolicyState

_STEP_S: Final = 2.0
"""The longest time that statuses are written from one snapshot. Otherwise policies of one namespace that change all the
time would delay all node labels."""
_COUNTS_S: Final = 30.0
"""The shortest time between writes of a status of which only counts changed."""
_REFUSED_S: Final = 60.0
"""The time after which a status that was refused is tried again."""
_APPLY: Final = {"fieldManager": FIELD_MANAGER}


class _WrittenStatus(NamedTuple):
    uid: str
    """Of the policy; another policy may have the same name later."""
    status: Status
    at_s: float


class StatusWriter:
    """Writes the status of policies, and records changes of conditions as events."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._written: dict[PolicyKey, _WrittenStatus] = {}
        self._refused: dict[PolicyKey, float] = {}

    def begin(self) -> None:
        self._written, self._refused = {}, {}

    async def step(
        self, states: Mapping[PolicyKey, PolicyState], facts: Mapping[PolicyKey, StatusFacts]
    ) -> None:
        """Write the statuses that differ, for `_STEP_S` at most. Namespaces take turns, and in each the policy comes
        first whose status was written the longest time ago.

        The next snapshot continues. A policy that was deleted, or may not be written, does not affect the others.
        """
        self._written = {key: written for key, written in self._written.items() if key in states}
        self._refused = {key: until_s for key, until_s in self._refused.items() if key in states}
        suspended = sum(len(state.suspended) for state in states.values())
        self._handle.metrics_registry.set("rules_suspended", suspended)
        conflicts = sum(bool(each.label_conflict) for each in facts.values())
        self._handle.metrics_registry.set("label_conflicts", conflicts)
        until_s = self._handle.clock.monotonic() + _STEP_S
        due = takewhile(lambda _: self._handle.clock.monotonic() < until_s, self._in_turns(states))
        await run_api_calls(
            self._update_status(key, states[key], facts.get(key, StatusFacts())) for key in due
        )

    def _in_turns(self, keys: Iterable[PolicyKey]) -> list[PolicyKey]:
        turns: Counter[str] = Counter()
        in_order = []
        for key in sorted(keys, key=self._last_write_time):
            in_order.append((turns[key.namespace], key))
            turns[key.namespace] += 1
        return [key for _, key in sorted(in_order, key=itemgetter(0))]

    def _last_write_time(self, key: PolicyKey) -> float:
        return self._written[key].at_s if key in self._written else float("-inf")

    async def _update_status(self, key: PolicyKey, state: PolicyState, facts: StatusFacts) -> None:
        store = self._handle.objects[RESOURCES[key.kind].plural]
        policy_object: PolicyObject | None = store.get(key.namespace, key.name)
        if policy_object is None:
            return
        uid = policy_object.metadata.uid
        written = self._written.get(key)
        if written is None or written.uid != uid:
            written = _WrittenStatus(uid, policy_status.status_of(key.kind, policy_object), float("-inf"))
        before = written.status
        now_s = self._handle.clock.monotonic()
        facts = facts._replace(generation=policy_object.metadata.generation)
        wanted = policy_status.desired_status(state, facts, before, format_rfc3339(self._handle.clock.now()))
        only_counts = wanted.has_same_conditions(before)
        if wanted == before or (only_counts and now_s - written.at_s < _COUNTS_S):
            return
        if self._refused.get(key, now_s) > now_s:
            return
        if await self._write(RESOURCES[key.kind], policy_object, wanted):
            self._written[key] = _WrittenStatus(uid, wanted, now_s)
            self._record_events(key.kind, policy_object, before, wanted)
        else:
            self._refused[key] = now_s + _REFUSED_S

    def _record_events(
        self, kind: PolicyKind, policy_object: PolicyObject, before: Status, wanted: Status
    ) -> None:
        metadata = policy_object.metadata
        about = ObjectReference(RESOURCES[kind], metadata.namespace, metadata.name, metadata.uid)
        for event_kind, reason, condition in policy_status.condition_events(before, wanted):
            self._handle.recorder.record(about, event_kind, reason, condition.message, condition.type)

    async def _write(self, resource: Resource, policy_object: PolicyObject, wanted: Status) -> bool:
        """Returns whether the API server accepted it. While it starts, it may refuse what it grants later."""
        metadata = policy_object.metadata
        path = resource.path(metadata.namespace, metadata.name, "status")
        identity = {"name": metadata.name, "namespace": metadata.namespace, "uid": metadata.uid}
        body = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {field: value for field, value in identity.items() if value},
            "status": wanted,
        }
        try:
            await self._handle.api.patch(path, body, "apply", {**_APPLY, "force": "true"})
        except (Conflict, Refused) as error:
            # deleted or replaced, or no right to write it; this must not affect other policies
            logs.emit("status_failed", policy=path, error=str(error))
            return False
        return True
