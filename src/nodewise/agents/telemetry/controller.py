"""The telemetry agent's hand on the API server. Only here does the agent touch it, and only in the leader."""

from typing import Final

from nodewise.agent import Hands, Resource, View
from nodewise.agents.telemetry import status
from nodewise.agents.telemetry.policy import PolicyObject
from nodewise.agents.telemetry.state import POLICIES, PolicySlot, Slot
from nodewise.clock import format_rfc3339
from nodewise.errors import Conflict, Refused
from nodewise.observe import logs

FIELD_MANAGER: Final = "nodewise-telemetry"
"""Who owns what we write, for server-side apply."""


class TelemetryController:
    """Makes policies' status say what the View says."""

    def __init__(self, taspolicies: Resource, hands: Hands) -> None:
        self._taspolicies = taspolicies
        self._hands = hands

    async def step(self, view: View) -> None:
        slot: Slot | None = view.slots.get("telemetry")
        if slot is None:
            return
        for key, decided in slot.items():
            given: PolicyObject | None = self._hands.objects[POLICIES].get(*key)
            if given is not None:
                await self._write_status(given, decided)

    async def _write_status(self, given: PolicyObject, decided: PolicySlot) -> None:
        before = status.conditions_of(given.status)
        now = format_rfc3339(self._hands.clock.now())
        wanted = status.desired(decided.policy, given.metadata.generation, before, now)
        if all(before.get(one.type) == one for one in wanted):
            return
        metadata = {
            "name": given.metadata.name,
            "namespace": given.metadata.namespace,
            "uid": given.metadata.uid,  # or an apply to a policy that was just deleted would make it anew
        }
        resource = self._taspolicies
        path = resource.path(given.metadata.namespace, given.metadata.name, "status")
        body = status.document(resource.api_version, resource.kind, metadata, wanted)
        try:
            await self._hands.api.patch(path, body, "apply", {"fieldManager": FIELD_MANAGER, "force": "true"})
        except (Conflict, Refused) as error:
            # deleted or replaced meanwhile, or no right to write it: the others' status matters no less
            logs.emit("status_failed", policy=path, error=str(error))
