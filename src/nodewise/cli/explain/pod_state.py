"""Reads a pod, the policies that select it, and what places it in native mode; suggests similar names for unknown ones.

Policies are read also if kube-scheduler does not ask nodewise about the pod.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.agent import ObjectKey, Watched
from nodewise.agents.telemetry import KIND
from nodewise.base import clock
from nodewise.base.errors import UNREADABLE, BadInput, NodewiseError, Problem, Refused, counted, did_you_mean
from nodewise.cli.completion import ListedNames, list_names
from nodewise.devices import resource_claims
from nodewise.devices.resource_claims import (
    ClaimingPodSpec,
    ClaimingPodStatus,
    PodClaimReference,
    ResourceClaimObject,
)
from nodewise.engine import object_feed
from nodewise.kube.api_server_interface import Api, NotFound
from nodewise.kube.leader_election import CONTROLLER_LEASE, EVALUATION_ANNOTATION, EXTENDER_LEASE
from nodewise.kube.resource_kinds import LEASES, NODES, PODS, RESOURCE_CLAIMS, Resource
from nodewise.kube.resource_kinds import NAMESPACES as NAMESPACE_RESOURCE
from nodewise.policies import policy_selection
from nodewise.policies.agent import find_misspelt_policy_label
from nodewise.policies.native_mode_admission import GATE
from nodewise.policies.node_labels import PREFERENCE_SUFFIX, VERDICT_LABEL_PREFIX, VERDICT_LABELS
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.placement_policy import Policy, PolicyKey
from nodewise.policies.policy_namespace_trust import NAMESPACES
from nodewise.policies.policy_objects import RESOURCES, PolicyObject, decode_status
from nodewise.policies.policy_selection import POLICY_LABEL, PodFields, SelectionIndex, named_by_label
from nodewise.policies.policy_status import GOOD_STATUSES
from nodewise.policies.policy_status_fields import PlacementPolicyStatus, StatusWithConditions
from nodewise.policies.preference_classes import CLASS_VALUES
from nodewise.policies.state import POLICIES
from nodewise.policies.verdict_labels import (
    NodeConstraints,
    VerdictRequirement,
    label_key,
    preferred_class_keys,
    verdict_requirements,
)

_MOST_RULES: Final = 10
_MOST_CLAIMS: Final = 8
_CONDITION: Final = re.compile(r"[A-Za-z]+ is (?:True|False|Unknown): (?P<message>.*)", re.DOTALL)
_SYNC_PERIOD_S: Final = 5.0  # only ages of metrics depend on it
_LEASE_EXPIRED: Final = 2
"""A Lease that was not renewed for so many of its durations has no leader; clocks may differ by one."""
DEFAULT_SCHEDULER = "default-scheduler"
_PROBLEMS: Final = (
    ("Ready", "False"),
    ("Valid", "False"),
    ("MetricsFetched", "False"),
    ("SteppedBack", "True"),
    ("Suspended", "True"),
)
"""Conditions of all kinds of policies that explain verdicts, the most important one first."""


class SelectingPolicy(NamedTuple):
    """A policy whose selectors select the pod. `-o json` prints it under these names."""

    policy: str
    """As decisions name it: `placement policy web/cool`."""
    created: str
    """RFC 3339."""
    not_enforced: str = ""
    """Why it has no effect; empty if it has."""
    status: tuple[str, ...] = ()
    """What its status says: how many nodes meet each rule, and which conditions are not as in a healthy policy."""

    @property
    def problems(self) -> list[str]:
        """The conditions in `status`, each message once."""
        conditions = filter(None, map(_CONDITION.fullmatch, self.status))
        return list({match["message"]: match[0] for match in conditions}.values())


class PolicyOfLabel(NamedTuple):
    """A policy that may have a label in native mode."""

    policy: str
    """As decisions name it."""
    created: str
    """RFC 3339."""
    selects: bool
    """Whether its selectors select the pod now, and in the mode Canary also those of the canary."""
    is_labelled: bool
    """Whether native mode enforces it."""
    is_active: bool
    """Whether all nodes had its label once."""
    problem: str = ""
    """Why it rejects every node, has no effect, or keeps its last verdicts, according to its status; empty if all is
    well."""


class PodPolicies(NamedTuple):
    """The policies that matter for a pod."""

    selecting: tuple[SelectingPolicy, ...] = ()
    """In the order in which they are evaluated. A TASPolicy is not among them: the pod's label names it."""
    by_label: Mapping[str, PolicyOfLabel] = {}
    """By the key of their label: those of the pod's namespace, and cluster policies. TASPolicies only if the pod
    requires a label or names one."""
    missing: str = ""
    """That the TASPolicy that the pod names does not exist, with a similar name; empty if it exists or is
    not known."""
    unreadable: str = ""
    """Which right is missing to read all of them."""


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


class PreferredClasses(NamedTuple):
    """The classes of a policy that the pod prefers. `-o json` prints it under these names."""

    policy: str
    """As decisions name it."""
    label: str
    nodes: tuple[int, ...]
    """How many nodes are in each class, the best first; empty if nodes cannot be read."""


class LabelledNode(NamedTuple):
    """A node with its labels of the pod's policies."""

    node: str
    passes: bool
    labels: tuple[str, ...]
    """In the order of the requirements; empty without the label."""
    written: str | None
    """When nodewise last changed such labels of the node, RFC 3339."""
    classes: tuple[str, ...] = ()
    """In the order of the preferences; empty without the label."""


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
    preferences: tuple[PreferredClasses, ...] = ()


class PodState(NamedTuple):
    """The fields of a pod that explain its placement. `-o json` prints them under these names."""

    uid: str
    created: str
    """RFC 3339."""
    node: str
    """Empty while it waits."""
    phase: str
    scheduler: str
    gates: tuple[str, ...]
    asks: tuple[str, ...]
    """The extended resources that its containers request; they decide whether kube-scheduler calls nodewise."""
    reason: str = ""
    message: str = ""
    """Reason and message of the condition PodScheduled while it is not true."""
    policy: str | None = None
    """The TASPolicy that its label names; None without the label."""
    misspelt: str = ""
    """A label key that is nearly the one that names a policy; empty if there is none."""
    devices: tuple[str, ...] = ()
    """The DRA devices of its claims, such as `gpu: gpu-3, gpu-4`."""
    binding_conditions: tuple[str, ...] = ()
    """The conditions that devices which were allocated for it must have before it is bound."""
    has_claims: bool = False
    """Whether its spec has ResourceClaims."""


class PodReadResult(NamedTuple):
    """The result of reading the pod; without a cluster all fields are empty."""

    state: PodState | None
    gone: bool = False
    missing: str = ""
    """What does not exist, with similar names, if the pod is gone."""
    error: str = ""
    policies: tuple[SelectingPolicy, ...] = ()
    """The policies that select the pod now."""
    policies_error: str = ""
    """Why these are not known."""
    missing_policy: str = ""
    """That the TASPolicy that the pod's label names does not exist, with a similar name; empty if it exists."""
    native: NativeState | None = None
    """What places the pod in native mode; None if that does not concern the pod."""


class _Resources(msgspec.Struct, frozen=True):
    requests: dict[str, msgspec.Raw] | None = None
    limits: dict[str, msgspec.Raw] | None = None


class _Container(msgspec.Struct, frozen=True):
    resources: _Resources | None = None


class _Gate(msgspec.Struct, frozen=True):
    name: str = ""


class _Spec(NodeConstraints, frozen=True):
    nodeName: str = ""  # noqa: N815 - the API's name
    schedulerName: str = DEFAULT_SCHEDULER  # noqa: N815
    schedulingGates: tuple[_Gate, ...] | None = None  # noqa: N815
    resourceClaims: tuple[PodClaimReference, ...] | None = None  # noqa: N815
    containers: tuple[_Container, ...] | None = None
    initContainers: tuple[_Container, ...] | None = None  # noqa: N815


class _Condition(msgspec.Struct, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class _Status(ClaimingPodStatus, frozen=True, rename="camel"):
    phase: str = ""
    conditions: tuple[_Condition, ...] | None = None


class _Metadata(msgspec.Struct, frozen=True):
    uid: str = ""
    labels: dict[str, str] | None = None
    creationTimestamp: str = ""  # noqa: N815


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _NativeStatus(StatusWithConditions, frozen=True, rename="camel"):
    node_label: str | None = None
    active: bool = False


class _FieldsOfManager(msgspec.Struct, frozen=True):
    manager: str = ""
    time: str | None = None


class _NodeMetadata(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    labels: dict[str, str] | None = None
    managedFields: tuple[_FieldsOfManager, ...] | None = None  # noqa: N815


class _Node(msgspec.Struct, frozen=True):
    metadata: _NodeMetadata = _NodeMetadata()


async def read_pod(
    api: Api, namespace: str, name: str, timeout_s: float, *, own_namespace: str
) -> PodReadResult:
    """The current state of a pod, and the policies that select it. `own_namespace` is that of nodewise."""
    try:
        body = await api.get(PODS.path(namespace, name), timeout_s=timeout_s)
        pod = decode_pod(body)
    except NotFound:
        missing = await describe_missing_pod(api, namespace, name, timeout_s)
        return PodReadResult(None, gone=True, missing=missing)
    except NodewiseError as error:
        return PodReadResult(None, error=str(error))
    state = await _add_devices(to_pod_state(pod), api, namespace, pod, timeout_s)
    try:
        policies = await _read_pod_policies(api, body, own_namespace)
        native = await _read_native_state(api, pod, policies.by_label, own_namespace)
    except (NodewiseError, *UNREADABLE) as error:
        return PodReadResult(state, policies_error=str(error))
    return PodReadResult(
        state,
        policies=policies.selecting,
        policies_error=policies.unreadable,
        missing_policy=policies.missing,
        native=native,
    )


async def _add_devices(
    state: PodState, api: Api, namespace: str, pod: _Pod, timeout_s: float
) -> PodState:  # complexity: the devices of each claim
    """The state with the devices of the pod's claims by request; without the right to read claims, with none."""
    by_request: dict[str, list[str]] = {}
    conditions: dict[str, None] = {}
    claims = resource_claims.claims_of_pod(ClaimingPodSpec(pod.spec.resourceClaims), pod.status)
    for name in [each.claim for each in claims if each.claim][:_MOST_CLAIMS]:
        try:
            body = await api.get(RESOURCE_CLAIMS.path(namespace, name), timeout_s=timeout_s)
            claim = resource_claims.parse_resource_claim(msgspec.json.decode(body, type=ResourceClaimObject))
        except (NodewiseError, *UNREADABLE):
            continue
        for each in claim.devices:
            by_request.setdefault(each.request, []).append(each.device.device)
            if any(consumer.uid == state.uid for consumer in claim.reserved_for):
                conditions.update(dict.fromkeys(each.binding_conditions))
    devices = tuple(f"{request}: {', '.join(devices)}" for request, devices in by_request.items())
    return state._replace(devices=devices, binding_conditions=tuple(conditions))


def decode_pod(body: bytes) -> _Pod:
    """The fields of a Pod's JSON that `to_pod_state` reads. `BadInput` if it is not a Pod."""
    try:
        return msgspec.json.decode(body, type=_Pod)
    except UNREADABLE as error:
        raise BadInput("the pod", [Problem("", str(error), "a Pod")]) from error


def to_pod_state(pod: _Pod) -> PodState:
    """The state of a Pod as `explain` describes it."""
    spec, labels = pod.spec, pod.metadata.labels or {}
    scheduled = (each for each in pod.status.conditions or () if each.type == "PodScheduled")
    condition = next((each for each in scheduled if each.status != "True"), _Condition())
    return PodState(
        pod.metadata.uid,
        pod.metadata.creationTimestamp,
        spec.nodeName,
        pod.status.phase,
        spec.schedulerName,
        tuple(gate.name for gate in spec.schedulingGates or ()),
        _extended_resources(spec),
        condition.reason,
        condition.message,
        labels.get(POLICY_LABEL),
        find_misspelt_policy_label(labels),
        has_claims=bool(spec.resourceClaims),
    )


def _extended_resources(spec: _Spec) -> tuple[str, ...]:
    """Requested resources with a domain. kube-scheduler considers containers and init containers only."""
    containers = (*(spec.containers or ()), *(spec.initContainers or ()))
    resources = [container.resources for container in containers if container.resources]
    names = {name for each in resources for name in (*(each.requests or ()), *(each.limits or ()))}
    return tuple(sorted(name for name in names if "/" in name))


async def _read_pod_policies(  # complexity: optional parts of one result
    api: Api, body: bytes, own_namespace: str
) -> PodPolicies:
    """The policies of the pod, as far as the user may list them. Other errors are those of `Api.get`."""
    pod = msgspec.json.decode(body, type=PodFields)
    options = TelemetryOptions(own_namespace=own_namespace)
    needs_taspolicies = VERDICT_LABEL_PREFIX.encode() in body or bool(named_by_label(pod))
    watched = [kind for kind in KIND.watched(options) if needs_taspolicies or kind.name != POLICIES]
    objects, forbidden = await _list_readable_objects(api, watched, pod.metadata.namespace)
    policies = KIND.state(options, _SYNC_PERIOD_S).policies(objects)
    selected = SelectionIndex(policies.values(), objects.get(NAMESPACES, {}), own_namespace).select(pod)
    selecting = [key for key in selected if key.kind != "TASPolicy"]
    return PodPolicies(
        tuple(
            SelectingPolicy(
                key.text(),
                policies[key].created,
                policies[key].not_enforced,
                _status_lines(objects[RESOURCES[key.kind].plural][key.namespace, key.name]),
            )
            for key in selecting
        ),
        {
            label_key(policy.uid): policy_of_label(
                policy, objects, selects=key in selecting and policy_selection.is_enforced_for(policy, pod)
            )
            for key, policy in policies.items()
        },
        _missing_policy(selected, policies) if POLICIES in objects else "",
        f"no right to list {' and '.join(forbidden)}" if forbidden else "",
    )


def _missing_policy(selected: Iterable[PolicyKey], policies: Collection[PolicyKey]) -> str:
    """That the TASPolicy of the label does not exist; empty if it exists. Policies of other kinds select pods, and
    no label names them.
    """
    named = next((key for key in selected if key not in policies), None)
    if named is None:
        return ""
    text = f"TASPolicy {named.path} does not exist"
    if any((key.kind, key.path) == ("PlacementPolicy", named.path) for key in policies):
        return (
            f"{text}; there is a PlacementPolicy of this name, which selects pods with its podSelector: remove the "
            f"label {POLICY_LABEL} from the pod's template"
        )
    return text + did_you_mean(named.name, [key.name for key in policies if key.kind == "TASPolicy"])


async def _list_readable_objects(
    api: Api, watched: Sequence[Watched], namespace: str
) -> tuple[dict[str, Mapping[ObjectKey, Any]], list[str]]:
    """The objects that may select a pod of this namespace, by the name in `Watched`, and the kinds that the user may
    not list. A kind that the API server does not have has no objects.
    """

    async def list_objects(kind: Watched) -> Mapping[ObjectKey, Any]:
        fields = f"metadata.name={namespace}" if kind.name == NAMESPACES else ""
        try:
            return await object_feed.list_once(api, kind, namespace, fields)
        except NotFound:
            return {}

    listed = await asyncio.gather(*map(list_objects, watched), return_exceptions=True)
    objects: dict[str, Mapping[ObjectKey, Any]] = {}
    forbidden: list[str] = []
    for kind, result in zip(watched, listed, strict=True):
        if not isinstance(result, BaseException):
            objects[kind.name] = result
        elif not isinstance(result, Refused):
            raise result
        elif kind.name != NAMESPACES or not forbidden:  # namespaces only matter for cluster policies
            forbidden.append(f"{kind.resource.plural}.{kind.resource.group}".rstrip("."))
    return objects, forbidden


def _status_lines(policy: PolicyObject) -> tuple[str, ...]:
    status = decode_status(policy, PlacementPolicyStatus)
    rules = (
        f"{rule.rule} {rule.expression}: {counted(rule.nodes, 'node')} met"
        + (f", {counted(rule.missing, 'node')} without a fresh value" if rule.missing else "")
        for rule in status.rules
        if rule.nodes is not None
    )
    problems = (
        f"{condition.type} is {condition.status}: {condition.message or condition.reason}"
        for condition in status.conditions
        if condition.status != GOOD_STATUSES.get(condition.type, condition.status)
    )
    return (*islice(rules, _MOST_RULES), *problems)


def policy_of_label(
    policy: Policy, objects: Mapping[str, Mapping[ObjectKey, Any]], *, selects: bool
) -> PolicyOfLabel:
    """A policy with its status, from the objects of its kind."""
    policy_object = objects[RESOURCES[policy.key.kind].plural][policy.namespace, policy.name]
    status = decode_status(policy_object, _NativeStatus)
    conditions = {(item.type, item.status): item.message for item in status.conditions}
    problem = next((conditions[kind] for kind in _PROBLEMS if kind in conditions), "")
    return PolicyOfLabel(
        policy.key.text(), policy.created, selects, bool(status.node_label), status.active, problem
    )


async def _read_native_state(  # complexity: one result of several parts
    api: Api, pod: _Pod, policies: Mapping[str, PolicyOfLabel], own_namespace: str
) -> NativeState | None:
    """The state of a pod, given the policies by label key; None if native mode does not concern the pod."""
    wanted = verdict_requirements(pod.spec)
    gated = any(gate.name == GATE for gate in pod.spec.schedulingGates or ())
    preferred = _preferred_policies(pod.spec, policies)
    keys = {requirement.key for requirement in wanted}
    not_covering = tuple(
        f"{policy.policy} selects the pod and has no effect on it: "
        f"{why_not_covering(policy, pod.metadata.creationTimestamp)}; create the pod again"
        for key, policy in policies.items()
        if policy.selects and policy.is_labelled and key not in keys
    )
    if not any((wanted, gated, not_covering, preferred)):
        return None
    is_labelled = any(policy.is_labelled for policy in policies.values())
    (nodes, error), controller = await asyncio.gather(
        _read_nodes(api), _read_leader(api, own_namespace, is_labelled=is_labelled)
    )
    requirements = tuple(_required_label(requirement, policies, nodes, error) for requirement in wanted)
    labelled = tuple(_labelled_node(node, wanted, preferred) for node in nodes)
    preferences = tuple(
        _preferred_classes(policy, key, labelled, place)
        for place, (key, policy) in enumerate(preferred.items())
    )
    return NativeState(gated, requirements, not_covering, labelled, error, controller, preferences)


def _preferred_policies(spec: _Spec, policies: Mapping[str, PolicyOfLabel]) -> dict[str, str]:
    """By key of the label with the classes of a policy that the pod prefers, the policy; without those of others."""
    keys = {key: key.removesuffix(PREFERENCE_SUFFIX) for key in preferred_class_keys(spec)}
    return {key: policies[label].policy for key, label in keys.items() if label in policies}


def _preferred_classes(policy: str, key: str, nodes: Iterable[LabelledNode], place: int) -> PreferredClasses:
    counts = Counter(node.classes[place] for node in nodes)
    return PreferredClasses(policy, key, tuple(counts[value] for value in CLASS_VALUES) if counts else ())


def why_not_covering(policy: PolicyOfLabel, created: str) -> str:
    """Why a pod of this age lacks the requirement for the label of a policy that selects it."""
    is_newer = bool(policy.created and created) and policy.created > created
    return (
        "it is newer than the pod"
        if is_newer
        else "its selector or the pod's labels have changed since, or the admission policies were not installed"
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


def _labelled_node(
    node: _Node, wanted: tuple[VerdictRequirement, ...], preferred: Iterable[str]
) -> LabelledNode:
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
    classes = tuple(labels.get(key, "") for key in preferred)
    return LabelledNode(node.metadata.name, passes, values, max(times, default=None), classes)


async def _read_nodes(api: Api) -> tuple[list[_Node], str]:
    """The nodes by name, and why they cannot be read."""
    try:
        nodes = await object_feed.list_once(api, Watched("nodes", NODES, _Node))
    except NodewiseError as error:
        return [], str(error)
    return sorted(nodes.values(), key=lambda node: node.metadata.name), ""


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


async def describe_missing_pod(api: Api, namespace: str, name: str, timeout_s: float) -> str:
    """What does not exist, the namespace or the pod, with a similar name if there is one that the user may list."""
    has_namespace, pods = await asyncio.gather(
        namespace_exists(api, namespace, timeout_s), _readable_names(api, PODS, namespace, timeout_s)
    )
    if has_namespace:
        return f"pod {namespace}/{name} does not exist{did_you_mean(name, pods)}"
    return f"namespace {namespace} does not exist{await similar_namespace(api, namespace, timeout_s)}"


async def similar_namespace(api: Api, namespace: str, timeout_s: float) -> str:
    """The end of a message about a namespace that does not exist: `; did you mean "web"?`, or nothing."""
    return did_you_mean(namespace, await _readable_names(api, NAMESPACE_RESOURCE, "", timeout_s))


async def namespace_exists(api: Api, namespace: str, timeout_s: float) -> bool:
    """Whether the namespace exists; True also if the user may not know. It needs only the right to list namespaces."""
    try:
        selector = {"fieldSelector": f"metadata.name={namespace}"}
        body = await api.get(NAMESPACE_RESOURCE.path(), selector, timeout_s=timeout_s)
        return bool(msgspec.json.decode(body, type=ListedNames).items)
    except (NodewiseError, *UNREADABLE):
        return True


async def _readable_names(api: Api, resource: Resource, namespace: str, timeout_s: float) -> list[str]:
    """The first names; none if the user may not list them."""
    try:
        return await list_names(api, resource, namespace, timeout_s)
    except (NodewiseError, *UNREADABLE):
        return []
