"""The kinds that an API server serves, from its discovery documents (`APIGroupList`, `APIResourceList`)."""

from typing import Final

import msgspec

from nodewise.base.errors import UNREADABLE, Problem, Unavailable
from nodewise.kube import resource_kinds
from nodewise.kube.api_server_interface import Api
from nodewise.kube.resource_kinds import Resource


class _GroupVersion(msgspec.Struct, frozen=True):
    group_version: str = msgspec.field(name="groupVersion")


class _Group(msgspec.Struct, frozen=True):
    versions: tuple[_GroupVersion, ...]


class _GroupList(msgspec.Struct, frozen=True, tag_field="kind", tag="APIGroupList"):
    groups: tuple[_Group, ...]


class _ResourceName(msgspec.Struct, frozen=True):
    name: str


class _ResourceList(msgspec.Struct, frozen=True, tag_field="kind", tag="APIResourceList"):
    resources: tuple[_ResourceName, ...]


_GROUPS: Final = msgspec.json.Decoder(_GroupList)
_RESOURCES: Final = msgspec.json.Decoder(_ResourceList)


async def is_served(api: Api, resource: Resource) -> bool:
    """Whether the API server serves a kind of a named API group; kinds of the core group always are.

    Only a complete discovery document without the kind says that it is not. A status such as 404 raises, because a
    proxy before the API server can respond with it. An API server that starts responds 503 until all kinds of its
    definitions are known. Errors are those of `Api.get`, and `Unavailable` for a response of another form.
    """
    if not resource.group:
        return True
    root = resource_kinds.escape_path("apis")
    version_root = resource_kinds.escape_path("apis", resource.group, resource.version)
    try:
        groups = _GROUPS.decode(await api.get(root)).groups
        versions = {version.group_version for group in groups for version in group.versions}
        if resource.api_version not in versions:
            return False
        names = {entry.name for entry in _RESOURCES.decode(await api.get(version_root)).resources}
    except UNREADABLE as error:
        raise Unavailable("discovery", [Problem("", str(error), "a list of API groups or kinds")]) from error
    return resource.plural in names
