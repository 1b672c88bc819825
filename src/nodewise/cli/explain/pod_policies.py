"""Reads which policies select a pod now, also if kube-scheduler does not ask nodewise about it."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.agent import ObjectKey, Watched
from nodewise.agents.telemetry import KIND
from nodewise.agents.telemetry.options import TelemetryOptions
from nodewise.agents.telemetry.policy_namespace_trust import NAMESPACES
from nodewise.agents.telemetry.policy_selection import PodFields, SelectionIndex
from nodewise.agents.telemetry.state import POLICIES
from nodewise.errors import UNREADABLE
from nodewise.kube import object_listing
from nodewise.kube.api_server_interface import Api, NotFound
from nodewise.kube.reflector import ReflectorTarget
from nodewise.observe.metrics_registry import MetricsRegistry

_SYNC_PERIOD_S: Final = 5.0
"""Only ages of metrics depend on it."""


class SelectingPolicy(NamedTuple):
    """A policy whose selectors select the pod. `-o json` prints it under these names."""

    policy: str
    """As decisions name it: `placement policy web/cool`."""
    created: str
    """RFC 3339."""
    not_enforced: str = ""
    """Why it has no effect; empty if it has."""


async def read_selecting_policies(api: Api, pod: bytes, own_namespace: str) -> tuple[SelectingPolicy, ...]:
    """The policies that select the pod with this JSON, in the order in which they are evaluated.

    A TASPolicy is not among them: the pod's label names it. Errors are those of `Api.get`.
    """
    try:
        fields = msgspec.json.decode(pod, type=PodFields)
    except UNREADABLE:
        return ()
    options = TelemetryOptions(own_namespace=own_namespace)
    watched = [kind for kind in KIND.watched(options) if kind.name != POLICIES]
    listed = await asyncio.gather(*(_list_objects(api, kind, fields.metadata.namespace) for kind in watched))
    objects = dict(zip((kind.name for kind in watched), listed, strict=True))
    policies = KIND.state(options, _SYNC_PERIOD_S).policies(objects)
    selection = SelectionIndex(policies.values(), objects.get(NAMESPACES, {}), own_namespace)
    return tuple(
        SelectingPolicy(key.text(), policies[key].created, policies[key].not_enforced)
        for key in selection.select(fields)
        if key.kind != "TASPolicy"
    )


async def _list_objects(api: Api, watched: Watched, namespace: str) -> Mapping[ObjectKey, Any]:
    """The objects that may select a pod of this namespace; none of a kind that the API server does not have."""
    resource = watched.resource
    selectors = {"fieldSelector": f"metadata.name={namespace}"} if watched.name == NAMESPACES else {}
    target = ReflectorTarget[Any](
        resource, watched.type, namespace if resource.namespaced else "", selectors, watched.keep
    )
    try:
        store = await object_listing.list_objects(api, target, MetricsRegistry(), lambda _: None)
    except NotFound:
        return {}
    return store.snapshot()
