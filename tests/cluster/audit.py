"""The API server's own record of who asked for what, and what it answered."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.cluster.access import ADMIN_GROUP
from tests.cluster.api import Object

POLICY: Object = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "None", "userGroups": [ADMIN_GROUP]}, {"level": "Metadata"}],
}
"""Every request but the administrator's, without what was sent. A watch is there as soon as it is answered."""


class Request(NamedTuple):
    """One request as it was authorized; `resource` has its subresource, as in a rule: `nodes/status`."""

    verb: str
    group: str
    resource: str
    name: str
    """Empty for a collection, and for what is created: authorization does not know its name. Where the custom metrics
    API asks for all objects by `*`, empty too."""
    namespace: str
    path: str
    code: int
    """HTTP status."""
    allowed_by: str
    """In the authorizer's words, such as `RBAC: allowed by ClusterRoleBinding "nodewise" of ...`."""
    message: str
    """Why the API server refused the request; mostly empty otherwise."""

    @property
    def is_refused(self) -> bool:
        """Whether authentication, RBAC or an admission policy refused it."""
        return self.code in {401, 403} or "ValidatingAdmissionPolicy" in self.message


class AuditLog:
    """Give its `flags` to an API server."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "audit.log"
        self._policy = folder / "audit-policy.json"
        self._policy.write_text(json.dumps(POLICY))

    @property
    def flags(self) -> dict[str, str]:
        return {"audit-policy-file": str(self._policy), "audit-log-path": str(self._log)}

    def requests(self, user: str) -> list[Request]:
        """All of a user so far, oldest first; a watch that ended is there twice. Dry runs are the tests' own."""
        return [
            _request(entry)
            for entry in self._entries()
            if entry["user"]["username"] == user and "dryRun=" not in entry["requestURI"]
        ]

    def _entries(self) -> Iterator[Object]:
        *whole, _ = self._log.read_text().split("\n")  # the last line may still be written
        return map(json.loads, whole)


def _request(entry: Object) -> Request:
    about = entry.get("objectRef", {})
    subresource = about.get("subresource")
    return Request(
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
