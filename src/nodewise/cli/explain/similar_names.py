"""Suggests names of namespaces and pods that are similar to names that do not exist."""

import asyncio
from typing import Final

import msgspec

from nodewise.base.errors import UNREADABLE, NodewiseError, did_you_mean
from nodewise.kube.api_server_interface import Api
from nodewise.kube.resource_kinds import NAMESPACES, PODS, Resource

_MAX_LISTED: Final = "500"
"""Names that are compared."""


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""


class _Object(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()


class _ObjectList(msgspec.Struct, frozen=True):
    items: tuple[_Object, ...] = ()


async def describe_missing_pod(api: Api, namespace: str, name: str, timeout_s: float) -> str:
    """What does not exist, the namespace or the pod, with a similar name if there is one that the user may list."""
    has_namespace, pods = await asyncio.gather(
        namespace_exists(api, namespace, timeout_s), _list_names(api, PODS, namespace, timeout_s)
    )
    if has_namespace:
        return f"pod {namespace}/{name} does not exist{did_you_mean(name, pods)}"
    return f"namespace {namespace} does not exist{await similar_namespace(api, namespace, timeout_s)}"


async def similar_namespace(api: Api, namespace: str, timeout_s: float) -> str:
    """The end of a message about a namespace that does not exist: `; did you mean "web"?`, or nothing."""
    return did_you_mean(namespace, await _list_names(api, NAMESPACES, "", timeout_s))


async def namespace_exists(api: Api, namespace: str, timeout_s: float) -> bool:
    """Whether the namespace exists; True also if the user may not know. It needs only the right to list namespaces."""
    try:
        selector = {"fieldSelector": f"metadata.name={namespace}"}
        body = await api.get(NAMESPACES.path(), selector, timeout_s=timeout_s)
        return bool(msgspec.json.decode(body, type=_ObjectList).items)
    except (NodewiseError, *UNREADABLE):
        return True


async def _list_names(api: Api, resource: Resource, namespace: str, timeout_s: float) -> list[str]:
    """The first names; none if the user may not list them."""
    try:
        body = await api.get(resource.path(namespace), {"limit": _MAX_LISTED}, timeout_s=timeout_s)
        return [item.metadata.name for item in msgspec.json.decode(body, type=_ObjectList).items]
    except (NodewiseError, *UNREADABLE):
        return []
