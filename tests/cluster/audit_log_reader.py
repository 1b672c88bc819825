"""The audit log of the API server: each request with its user and its response."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.cluster.api_client import Object
from tests.cluster.api_user_kubeconfigs import ADMIN_GROUP

POLICY: Object = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "None", "userGroups": [ADMIN_GROUP]}, {"level": "Metadata"}],
}
"""The audit policy: all requests except the administrator's, without bodies. A watch is logged when its response
starts.
"""


class AuditedRequest(NamedTuple):
    """A request as it was authorized; `resource` includes the subresource, as in an RBAC rule: `nodes/status`."""

    verb: str
    group: str
    resource: str
    name: str
    """Empty for a collection, for a created object, whose name authorization does not know, and for `*`, by which the
    custom metrics API names all objects.
    """
    namespace: str
    path: str
    code: int
    """The HTTP status."""
    allowed_by: str
    """The reason of the authorizer, such as `RBAC: allowed by ClusterRoleBinding "nodewise" of ...`."""
    message: str
    """Why the API server refused the request; mostly empty otherwise."""

    @property
    def is_refused(self) -> bool:
        """Whether authentication, RBAC or an admission policy refused it."""
        return self.code in {401, 403} or "ValidatingAdmissionPolicy" in self.message


def flags(folder: Path) -> dict[str, str]:
    """The flags of an API server that records requests in a folder."""
    policy = folder / "audit-policy.json"
    policy.write_text(json.dumps(POLICY))
    return {"audit-policy-file": str(policy), "audit-log-path": str(folder / "audit.log")}


class AuditLog:
    """The requests that an API server has recorded in a folder since this object was created."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "audit.log"
        self._begin = self._file.stat().st_size if self._file.exists() else 0

    def requests(self, user: str) -> list[AuditedRequest]:
        """All requests of a user so far, oldest first. A watch that ended is listed twice. Dry runs, which only tests
        send, are omitted.
        """
        return [
            _request(entry)
            for entry in self._entries()
            if entry["user"]["username"] == user and "dryRun=" not in entry["requestURI"]
        ]

    def _entries(self) -> Iterator[Object]:
        with self._file.open() as file:
            file.seek(self._begin)
            *whole, _ = file.read().split("\n")  # the last line may still be written
        return map(json.loads, whole)


def _request(entry: Object) -> AuditedRequest:
    about = entry.get("objectRef", {})
    subresource = about.get("subresource")
    return AuditedRequest(
        verb=entry["verb"],
        group=about.get("apiGroup", ""),
        resource=about.get("resource", "") + (f"/{subresource}" if subresource else ""),
        name="" if entry["verb"] == "create" else about.get("name", "").replace("*", ""),
        namespace=about.get("namespace", ""),
        path=entry["requestURI"].partition("?")[0],
        code=entry["responseStatus"]["code"],
        allowed_by=entry["annotations"].get("authorization.k8s.io/reason", ""),
        message=entry["responseStatus"].get("message", ""),
    )
