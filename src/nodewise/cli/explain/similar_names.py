"""Suggests names of namespaces and pods that are similar to those of a pod that does not exist."""

import asyncio
from typing import Final

import msgspec

from nodewise.errors import UNREADABLE, NodewiseError, did_you_mean
from nodewise.kube.api_server_interface import Api, NotFound
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
        _exists(api, namespace, timeout_s), _list_names(api, PODS, namespace, timeout_s)
    )
    if has_namespace:
        return f"pod {namespace}/{name} does not exist{did_you_mean(name, pods)}"
    namespaces = await _list_names(api, NAMESPACES, "", timeout_s)
    return f"namespace {namespace} does not exist{did_you_mean(namespace, namespaces)}"


async def _exists(api: Api, namespace: str, timeout_s: float) -> bool:
    """Whether the namespace exists; True also if the user may not know."""
    try:
        await api.get(NAMESPACES.path(name=namespace), timeout_s=timeout_s)
    except NotFound:
        return False
    except NodewiseError:
        return True
    return True


async def _list_names(api: Api, resource: Resource, namespace: str, timeout_s: float) -> list[str]:
    """The first names; none if the user may not list them."""
    try:
        body = await api.get(resource.path(namespace), {"limit": _MAX_LISTED}, timeout_s=timeout_s)
        return [item.metadata.name for item in msgspec.json.decode(body, type=_ObjectList).items]
    except (NodewiseError, *UNREADABLE):
        return []
