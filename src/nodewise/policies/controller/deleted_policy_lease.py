"""Keeps in a Lease for which deleted policies labels stay, so that their hour does not begin again with each leader."""

import contextlib
from typing import Any, Final

import msgspec

from nodewise.agent.controller_interface import Handle
from nodewise.base.errors import UNREADABLE, Conflict, NodewiseError, Unavailable
from nodewise.kube.api_server_interface import NotFound
from nodewise.kube.resource_kinds import LEASES
from nodewise.observe import logs
from nodewise.policies import deleted_policies
from nodewise.policies.deleted_policies import LEASE, DeletedPolicy, Records

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
