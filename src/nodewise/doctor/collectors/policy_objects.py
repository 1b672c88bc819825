"""Policies of all kinds as the telemetry agent reads them, and which pods their selectors select."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from nodewise.agent import ObjectKey
from nodewise.base.errors import UNREADABLE
from nodewise.doctor.collectors.session import ClusterReader, Session
from nodewise.doctor.facts import UnavailableFact
from nodewise.kube import resource_kinds
from nodewise.policies import policy_selection
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.placement_policy import Comparison, Policy, PolicyKey
from nodewise.policies.policy_namespace_trust import NAMESPACES, NamespaceObject, drop_oversized_labels
from nodewise.policies.policy_objects import RESOURCES, PolicyObject, drop_oversized_spec
from nodewise.policies.policy_selection import PodFields, SelectionIndex
from nodewise.policies.state import POLICY_KINDS, TelemetryStateBuilder

T = TypeVar("T")


class PolicyObjects(NamedTuple):
    """All policies that doctor could read."""

    objects: Mapping[str, Mapping[ObjectKey, Any]]
    """Policies, and namespaces if a ClusterPlacementPolicy exists, as in `ClusterState.objects`."""
    policies: Mapping[PolicyKey, Policy]
    """The parsed policies. Every namespace counts as trusted: replicas write into the status what is not."""
    unavailable: tuple[UnavailableFact, ...] = ()
    """Kinds that could not be read."""


def policy_objects(
    objects: Mapping[str, Mapping[ObjectKey, Any]],
    own_namespace: str = "",
    unavailable: Sequence[UnavailableFact] = (),
) -> PolicyObjects:
    """The parsed policies. `own_namespace` is that of nodewise."""
    options = TelemetryOptions(trust_all_namespaces=True, own_namespace=own_namespace)
    policies = TelemetryStateBuilder(options, 0.0).policies(objects)
    return PolicyObjects(objects, policies, tuple(unavailable))


def rules_naming_metrics(policy: Policy) -> list[Comparison]:
    """The usable rules that name a metric and have no query."""
    return [rule for rule in policy.usable_comparisons() if rule.metric and not rule.query]


async def collect_policy_objects(session: Session) -> PolicyObjects | UnavailableFact:
    """All policies. Unavailable if no kind can be read."""
    objects, missing = await _read_policies(session.reader)
    if not objects:
        return missing[0]._replace(right=", ".join(filter(None, (fact.right for fact in missing))))
    if any(objects.get(name) for name, kind in POLICY_KINDS.items() if kind == "ClusterPlacementPolicy"):
        namespaces = await _read_namespaces(session.reader)
        if isinstance(namespaces, UnavailableFact):
            missing.append(namespaces)
        else:
            objects[NAMESPACES] = namespaces
    return policy_objects(objects, next(iter(session.target.namespaces), ""), missing)


async def _read_policies(
    reader: ClusterReader,
) -> tuple[dict[str, Mapping[ObjectKey, Any]], list[UnavailableFact]]:
    """The policies of each kind that can be read, as in `ClusterState.objects`, and the other kinds."""
    names = list(POLICY_KINDS)
    lists = await asyncio.gather(
        *(reader.get_list(RESOURCES[POLICY_KINDS[name]], parse_policy) for name in names)
    )
    objects: dict[str, Mapping[ObjectKey, Any]] = {}
    missing: list[UnavailableFact] = []
    for name, listed in zip(names, lists, strict=True):
        if isinstance(listed, UnavailableFact):
            missing.append(listed)
        else:
            objects[name] = {(item.metadata.namespace, item.metadata.name): item for item in listed}
    return objects, missing


def parse_policy(body: bytes) -> PolicyObject | None:
    """A policy; None if the API server would not have accepted it."""
    return _decode(body, PolicyObject, drop_oversized_spec)


async def _read_namespaces(reader: ClusterReader) -> Mapping[ObjectKey, Any] | UnavailableFact:
    listed = await reader.get_list(
        resource_kinds.NAMESPACES, lambda body: _decode(body, NamespaceObject, drop_oversized_labels)
    )
    return (
        listed if isinstance(listed, UnavailableFact) else {("", item.metadata.name): item for item in listed}
    )


def _decode(body: bytes, type_: type[T], keep: Callable[[T], T]) -> T | None:
    """An object as the agent stores it; None if it has another shape."""
    try:
        return keep(msgspec.json.decode(body, type=type_))
    except UNREADABLE:
        return None


class PolicySelectors(NamedTuple):
    """The selectors of all policies."""

    selection: SelectionIndex = SelectionIndex((), {})
    policies: Mapping[PolicyKey, Policy] = {}

    def is_enforced_for(self, key: PolicyKey, pod: PodFields) -> bool:
        """Whether a policy that selects a pod has an effect on it; True for a TASPolicy that does not exist."""
        return key not in self.policies or policy_selection.is_enforced_for(self.policies[key], pod)


async def collect_selectors(session: Session) -> PolicySelectors:
    """The selectors of all policies; none if policies cannot be read, which the collector of policies reports."""
    read = await session.get(collect_policy_objects)
    if isinstance(read, UnavailableFact):
        return PolicySelectors()
    own_namespace = next(iter(session.target.namespaces), "")
    selection = SelectionIndex(read.policies.values(), read.objects.get(NAMESPACES, {}), own_namespace)
    return PolicySelectors(selection, read.policies)
