"""Reads what places a pod in native mode: its requirements, the labels of nodes, and whether the controller works."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.base import clock
from nodewise.base.errors import UNREADABLE, NodewiseError
from nodewise.cli.explain.pod_policies import PolicyOfLabel
from nodewise.kube import object_listing
from nodewise.kube.api_server_interface import Api, NotFound
from nodewise.kube.leader_election_rules import CONTROLLER_LEASE, EVALUATION_ANNOTATION, EXTENDER_LEASE
from nodewise.kube.reflector import ReflectorTarget
from nodewise.kube.resource_kinds import LEASES, NODES
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.policies import native_mode_pods
from nodewise.policies.node_labels import VERDICT_LABELS
from nodewise.policies.verdict_labels import NodeConstraints, VerdictRequirement, verdict_requirements

_LEASE_EXPIRED: Final = 2
"""A Lease that was not renewed for so many of its durations has no leader; clocks may differ by one."""


class RequiredLabel(NamedTuple):
    """What the pod requires, or prefers, of the label of a policy. `-o json` prints it under these names."""

    policy: str
    """As decisions name it; empty if the policy does not exist any more, or is of another namespace."""
    label: str
    needs_ok: bool
    """Whether nodes without the label do not pass."""
    preferred: bool
    rejected: int | None
    """How many nodes do not pass; None if nodes cannot be read."""
    active: bool
    """Whether all nodes had the label once."""
    problem: str = ""
    """Why the policy rejects every node, has no effect, or keeps its last verdicts; empty if all is well."""


class LabelledNode(NamedTuple):
    """A node with its labels of the pod's policies."""

    node: str
    passes: bool
    labels: tuple[str, ...]
    """In the order of the requirements; empty without the label."""
    written: str | None
    """When nodewise last changed such labels of the node, RFC 3339."""


class ControllerState(NamedTuple):
    """The leader in native mode, from its Lease."""

    leader: str
    """Empty if no replica leads."""
    renewed: str
    evaluated: str
    """When the policies were last evaluated, RFC 3339; empty if that is not known."""


class NativeState(NamedTuple):
    """What places a pod in native mode."""

    gated: bool
    """Whether it has nodewise's scheduling gate."""
    requirements: tuple[RequiredLabel, ...]
    not_covering: tuple[str, ...]
    """Why policies that select the pod have no effect on it, one sentence each."""
    nodes: tuple[LabelledNode, ...] = ()
    nodes_error: str = ""
    controller: ControllerState | None = None
    """None if the Lease cannot be read."""


class _Gate(msgspec.Struct, frozen=True):
    name: str = ""


class _PodSpec(NodeConstraints, frozen=True, rename="camel"):
    scheduling_gates: tuple[_Gate, ...] | None = None


class _PodMetadata(msgspec.Struct, frozen=True, rename="camel"):
    creation_timestamp: str = ""


class _Pod(msgspec.Struct, frozen=True):
    metadata: _PodMetadata = _PodMetadata()
    spec: _PodSpec = _PodSpec()


class _FieldsOfManager(msgspec.Struct, frozen=True):
    manager: str = ""
    time: str | None = None


class _NodeMetadata(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    labels: dict[str, str] | None = None
    managedFields: tuple[_FieldsOfManager, ...] | None = None  # noqa: N815 - the API's name


class _Node(msgspec.Struct, frozen=True):
    metadata: _NodeMetadata = _NodeMetadata()


async def read_native_state(
    api: Api, pod: bytes, policies: Mapping[str, PolicyOfLabel], own_namespace: str
) -> NativeState | None:
    """The state of a pod, given the policies by label key; None if native mode does not concern the pod."""
    try:
        decoded = msgspec.json.decode(pod, type=_Pod)
    except UNREADABLE:
        return None
    wanted = verdict_requirements(decoded.spec)
    gated = any(gate.name == native_mode_pods.GATE for gate in decoded.spec.scheduling_gates or ())
    not_covering = _policies_not_covering(policies, wanted, decoded.metadata.creation_timestamp)
    if not (wanted or gated or not_covering):
        return None
    is_labelled = any(policy.is_labelled for policy in policies.values())
    (nodes, error), controller = await asyncio.gather(
        _read_nodes(api), _read_leader(api, own_namespace, is_labelled=is_labelled)
    )
    requirements = tuple(_required_label(requirement, policies, nodes, error) for requirement in wanted)
    labelled = tuple(_labelled_node(node, wanted) for node in nodes)
    return NativeState(gated, requirements, not_covering, labelled, error, controller)


def _policies_not_covering(
    policies: Mapping[str, PolicyOfLabel], wanted: tuple[VerdictRequirement, ...], created: str
) -> tuple[str, ...]:
    keys = {requirement.key for requirement in wanted}
    return tuple(
        f"{policy.policy} selects the pod and has no effect on it: {why_not_covering(policy, created)};"
        " create the pod again"
        for key, policy in policies.items()
        if policy.selects and policy.is_labelled and key not in keys
    )


def why_not_covering(policy: PolicyOfLabel, created: str) -> str:
    """Why a pod of this age lacks the requirement for the label of a policy that selects it."""
    is_newer = bool(policy.created and created) and policy.created > created
    return (
        "it is newer than the pod"
        if is_newer
        else "its selector or the pod's labels have changed since, or deploy/native.yaml was not installed"
    )


def _required_label(
    requirement: VerdictRequirement, policies: Mapping[str, PolicyOfLabel], nodes: list[_Node], error: str
) -> RequiredLabel:
    policy = policies.get(requirement.key)
    values = ((node.metadata.labels or {}).get(requirement.key) for node in nodes)
    rejected = None if error else sum(not requirement.accepts(value) for value in values)
    name, is_active, problem = (policy.policy, policy.is_active, policy.problem) if policy else ("", True, "")
    return RequiredLabel(
        name, requirement.key, requirement.needs_ok, requirement.is_preferred, rejected, is_active, problem
    )


def _labelled_node(node: _Node, wanted: tuple[VerdictRequirement, ...]) -> LabelledNode:
    labels = node.metadata.labels or {}
    passes = all(
        requirement.accepts(labels.get(requirement.key))
        for requirement in wanted
        if not requirement.is_preferred
    )
    times = (
        entry.time
        for entry in node.metadata.managedFields or ()
        if entry.manager == VERDICT_LABELS.field_manager and entry.time
    )
    values = tuple(labels.get(requirement.key, "") for requirement in wanted)
    return LabelledNode(node.metadata.name, passes, values, max(times, default=None))


async def _read_nodes(api: Api) -> tuple[list[_Node], str]:
    """The nodes by name, and why they cannot be read."""
    target = ReflectorTarget(NODES, _Node)
    try:
        store = await object_listing.list_objects(api, target, MetricsRegistry(), lambda _: None)
    except NodewiseError as error:
        return [], str(error)
    return sorted(store.values(), key=lambda node: node.metadata.name), ""


async def _read_leader(api: Api, namespace: str, *, is_labelled: bool) -> ControllerState | None:
    """The leader in native mode; None if its Lease cannot be read. Users of other namespaces usually may not.

    Where no controller has led, an extender may lead. Its Lease does not tell whether it runs in native mode, but a
    leader without native mode removes the label from the status of all policies (`is_labelled`).
    """
    controller = await _read_lease(api, namespace, CONTROLLER_LEASE)
    if controller is None or controller.renewed or not is_labelled:
        return controller
    return await _read_lease(api, namespace, EXTENDER_LEASE)


async def _read_lease(api: Api, namespace: str, name: str) -> ControllerState | None:
    """The holder of a Lease; None if it cannot be read."""
    try:
        lease: Any = msgspec.json.decode(await api.get(LEASES.path(namespace, name)))
        spec = lease.get("spec") or {}
        renewed = str(spec.get("renewTime") or "")
        expired_s = _LEASE_EXPIRED * float(spec.get("leaseDurationSeconds") or 0)
        is_held = bool(renewed) and clock.SystemClock().now() - clock.parse_rfc3339(renewed) < expired_s
        evaluated = str((lease["metadata"].get("annotations") or {}).get(EVALUATION_ANNOTATION, ""))
        return ControllerState(str(spec.get("holderIdentity") or "") if is_held else "", renewed, evaluated)
    except NotFound:
        return ControllerState("", "", "")
    except (NodewiseError, ValueError, AttributeError, KeyError, *UNREADABLE):
        return None
