"""Reads which policies select a pod now, also if kube-scheduler does not ask nodewise about it."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.agent import ObjectKey, Watched
from nodewise.base.errors import UNREADABLE, Refused, did_you_mean
from nodewise.kube import object_listing
from nodewise.kube.api_server_interface import Api, NotFound
from nodewise.kube.reflector import ReflectorTarget
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.policies import KIND, policy_selection
from nodewise.policies.node_labels import VERDICT_LABEL_PREFIX
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.placement_policy import Policy, PolicyKey
from nodewise.policies.policy_namespace_trust import NAMESPACES
from nodewise.policies.policy_objects import RESOURCES, PolicyObject, decode_status
from nodewise.policies.policy_selection import POLICY_LABEL, PodFields, SelectionIndex, named_by_label
from nodewise.policies.policy_status import GOOD_STATUSES
from nodewise.policies.policy_status_fields import PlacementPolicyStatus, StatusWithConditions
from nodewise.policies.state import POLICIES
from nodewise.policies.verdict_labels import label_key

_MOST_RULES: Final = 10
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
    status: tuple[str, ...] = ()
    """What its status says: how many nodes meet each rule, and which conditions are not as in a healthy policy."""


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


class _NativeStatus(StatusWithConditions, frozen=True, rename="camel"):
    node_label: str | None = None
    active: bool = False


_PROBLEMS: Final = (
    ("Ready", "False"),
    ("Valid", "False"),
    ("MetricsFetched", "False"),
    ("SteppedBack", "True"),
    ("Suspended", "True"),
)
"""Conditions of all kinds of policies that explain verdicts, the most important one first."""


async def read_pod_policies(api: Api, pod: bytes, own_namespace: str) -> PodPolicies:
    """The policies of the pod with this JSON, as far as the user may list them. Other errors are those of `Api.get`."""
    try:
        fields = msgspec.json.decode(pod, type=PodFields)
    except UNREADABLE:
        return PodPolicies()
    options = TelemetryOptions(own_namespace=own_namespace)
    needs_taspolicies = VERDICT_LABEL_PREFIX.encode() in pod or bool(named_by_label(fields))
    watched = [kind for kind in KIND.watched(options) if needs_taspolicies or kind.name != POLICIES]
    objects, forbidden = await _list_readable_objects(api, watched, fields.metadata.namespace)
    policies = KIND.state(options, _SYNC_PERIOD_S).policies(objects)
    selection = SelectionIndex(policies.values(), objects.get(NAMESPACES, {}), own_namespace)
    selected = selection.select(fields)
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
        _policies_by_label(policies, selecting, fields, objects),
        _missing_policy(selected, policies) if POLICIES in objects else "",
        f"no right to list {' and '.join(forbidden)}" if forbidden else "",
    )


def _policies_by_label(
    policies: Mapping[PolicyKey, Policy],
    selecting: Collection[PolicyKey],
    pod: PodFields,
    objects: Mapping[str, Mapping[ObjectKey, Any]],
) -> dict[str, PolicyOfLabel]:
    """The policies by the keys of their labels. Pods outside of a canary count as not selected."""
    return {
        label_key(policy.uid): policy_of_label(
            policy, objects, selects=key in selecting and policy_selection.is_enforced_for(policy, pod)
        )
        for key, policy in policies.items()
    }


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
    """The objects by the name in `Watched`, and the kinds that the user may not list."""
    listed = await asyncio.gather(
        *(_list_objects(api, kind, namespace) for kind in watched), return_exceptions=True
    )
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
        f"{rule.rule} {rule.expression}: {_count(rule.nodes)} met"
        + (f", {_count(rule.missing)} without a fresh value" if rule.missing else "")
        for rule in status.rules
        if rule.nodes is not None
    )
    problems = (
        f"{condition.type} is {condition.status}: {condition.message or condition.reason}"
        for condition in status.conditions
        if condition.status != GOOD_STATUSES.get(condition.type, condition.status)
    )
    return (*islice(rules, _MOST_RULES), *problems)


def _count(nodes: int) -> str:
    return f"{nodes} node" if nodes == 1 else f"{nodes:,} nodes"


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
