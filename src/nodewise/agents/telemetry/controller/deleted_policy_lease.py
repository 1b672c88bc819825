"""Keeps in a Lease for which deleted policies labels stay, so that their hour does not begin again with each leader."""

from typing import Any, Final

import msgspec

from nodewise.agent_controller_interface import Handle
from nodewise.agents.telemetry import deleted_policies
from nodewise.agents.telemetry.deleted_policies import LEASE, DeletedPolicy, Records
from nodewise.errors import UNREADABLE, BadInput, Conflict, Refused
from nodewise.kube.api_server_interface import NotFound
from nodewise.kube.resource_kinds import LEASES
from nodewise.observe import logs

ANNOTATION: Final = "nodewise.io/deleted-policies"
"""The annotation with the deleted policies, JSON by uid."""


class DeletedPolicyLease:
    """Reads and writes the records. Where the account may not, they last as long as the leader."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._path = LEASES.path(handle.namespace, LEASE)
        self._object: dict[str, Any] | None = None
        """As it was last read or written; None if there is none."""
        self._saved: Records | None = None
        """What the object contains; None while that is unknown."""
        self._is_refused = False

    async def load(self) -> dict[str, DeletedPolicy]:
        """The records of earlier leaders."""
        self._object, self._saved, self._is_refused = None, {}, False
        try:
            self._remember(await self._handle.api.get(self._path))
        except NotFound:
            return {}
        except Refused as error:
            self._report(error)
            return {}
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
            # another client wrote or deleted it; the next step writes again
            await self.load()
            self._saved = None
            return
        except (Refused, BadInput) as error:
            self._report(error)
            return
        self._remember(written)
        self._saved = dict(records)

    def _remember(self, body: bytes) -> None:
        try:
            self._object = msgspec.json.decode(body, type=dict[str, Any])
        except UNREADABLE:
            self._object = None

    def _report(self, error: Exception) -> None:
        self._is_refused = True
        logs.emit("deleted_policies_failed", lease=self._path, error=str(error))
