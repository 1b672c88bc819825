"""The kinds that the API server in memory serves: their discovery documents, and the paths of requests for them."""

from typing import Any, NamedTuple
from urllib.parse import unquote

from nodewise.kube import api_server_interface
from nodewise.kube.api_server_interface import ApiCall, ErrorStatus
from nodewise.kube.resource_kinds import Resource

_NOT_FOUND = 404


class RequestPath(NamedTuple):
    """The parsed path of a request; an empty name is a collection, an empty namespace means all namespaces."""

    resource: Resource
    namespace: str
    name: str
    sub: str


class ServedKinds:
    """The kinds of an API server, which change with its CustomResourceDefinitions."""

    def __init__(self, *resources: Resource) -> None:
        self._by_path = {(resource.api_version, resource.plural): resource for resource in resources}

    def add(self, resource: Resource) -> None:
        self._by_path[resource.api_version, resource.plural] = resource

    def remove(self, resource: Resource) -> None:
        del self._by_path[resource.api_version, resource.plural]

    def discovery_document(self, path: str) -> dict[str, Any] | None:
        """The API groups, or the kinds of one version of a group; None for other paths."""
        resources = [resource for resource in self._by_path.values() if resource.group]
        if path == "/apis":
            versions = sorted({(resource.group, resource.api_version) for resource in resources})
            groups = [{"name": group, "versions": [{"groupVersion": text}]} for group, text in versions]
            return {"kind": "APIGroupList", "groups": groups}
        version = path.removeprefix("/apis/")
        names = [{"name": resource.plural} for resource in resources if resource.api_version == version]
        return {"kind": "APIResourceList", "resources": names} if names else None

    def parse_path(self, verb: str, path: str) -> RequestPath:
        """The kind and the names in a path. Raises NotFound for a kind that is not served."""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        size = 2 if parts[0] == "api" else 3
        version, rest = "/".join(parts[1:size]), parts[size:]
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces":  # noqa: PLR2004 - /namespaces/NAME/KIND, not /namespaces/NAME
            namespace, rest = rest[1], rest[2:]
        rest += [""] * 3
        resource = self._by_path.get((version, rest[0]))
        if resource is None:
            known = any(version == api_version for api_version, _ in self._by_path)
            text = "the server could not find the requested resource" if known else "404 page not found"
            status = ErrorStatus(kind="Status", message=text, code=_NOT_FOUND)
            raise api_server_interface.error_from_status(ApiCall(verb, path), _NOT_FOUND, status)
        return RequestPath(resource, namespace, rest[1], rest[2])
