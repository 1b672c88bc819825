"""Collects the missing rights of nodewise's accounts, the admission policies that limit them, and the cluster's CA."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from nodewise import agents
from nodewise.doctor.collectors.cluster_reader import (
    ADMISSION_BINDINGS,
    ADMISSION_POLICIES,
    ClusterReader,
    parse_json,
)
from nodewise.doctor.collectors.collection_session import SYSTEM_NAMESPACE, Session
from nodewise.doctor.collectors.metric_coverage import collect_metric_names
from nodewise.doctor.collectors.nodewise_workloads import collect_nodewise_workloads
from nodewise.doctor.facts import (
    AccessRight,
    AdmissionPolicy,
    MissingRights,
    NodewiseWorkload,
    UnavailableFact,
)
from nodewise.doctor.parsing import certificates
from nodewise.doctor.parsing.certificates import Chain
from nodewise.doctor.parsing.object_fields import get, get_list, get_text, get_text_list
from nodewise.install import second_scheduler
from nodewise.kube.leader_election import CONTROLLER_LEASE, EXTENDER_LEASE
from nodewise.kube.resource_kinds import CONFIG_MAPS, LEASES
from nodewise.metrics import custom_metrics_api, resource_metrics_api, source_table
from nodewise.policies import deleted_policies

_CLUSTER_CA: Final = "extension-apiserver-authentication"
_REVIEW: Final = "create subjectaccessreviews.authorization.k8s.io"
_MAX_METRICS: Final = 20
_NATIVE_CLUSTER_RULES: Final[tuple[second_scheduler.Rule, ...]] = (
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]},
)
_CONTROLLER_RULES: Final[tuple[second_scheduler.Rule, ...]] = (
    {
        "apiGroups": [LEASES.group],
        "resources": ["leases"],
        "resourceNames": [CONTROLLER_LEASE, deleted_policies.LEASE],
        "verbs": ["get", "update"],
    },
)
"""The rules of deploy/controller.yaml."""


async def collect_missing_rights(session: Session) -> tuple[MissingRights | UnavailableFact, ...]:
    """Of each workload of nodewise, the rights that its account does not have."""
    listed = await session.require(collect_nodewise_workloads)
    names = await session.get(collect_metric_names)
    metrics = [] if isinstance(names, UnavailableFact) else names
    session.reader.say("reviewing the rights of nodewise")
    return tuple(
        await asyncio.gather(
            *(_find_missing_rights(session.reader, extender, metrics) for extender in listed)
        )
    )


async def _find_missing_rights(
    reader: ClusterReader, extender: NodewiseWorkload, metrics: Sequence[str]
) -> MissingRights | UnavailableFact:
    namespace, account = extender.workload.namespace, extender.workload.account
    rights = needed_rights(extender, metrics)
    user = f"system:serviceaccount:{namespace}:{account}"
    answers = await asyncio.gather(*(_is_right_granted(reader, user, right) for right in rights))
    for answer in answers:
        if isinstance(answer, UnavailableFact):
            return answer
    missing = tuple(right for right, is_allowed in zip(rights, answers, strict=True) if not is_allowed)
    return MissingRights(f"ServiceAccount/{namespace}/{account}", missing)


async def _is_right_granted(reader: ClusterReader, user: str, right: AccessRight) -> bool | UnavailableFact:
    """Whether a service account has a right, according to the API server."""
    name, _, subresource = right.resource.partition("/")
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": name,
        "subresource": subresource,
        "namespace": right.namespace,
        "name": right.name,
    }
    accounts = "system:serviceaccounts"
    spec = {
        "user": user,
        "groups": [accounts, f"{accounts}:{user.split(':')[2]}", "system:authenticated"],
        "resourceAttributes": {key: value for key, value in attributes.items() if value},
    }
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    response: Any = await reader.review(body, _REVIEW)
    return response if isinstance(response, UnavailableFact) else get(response, "status", "allowed") is True


def needed_rights(extender: NodewiseWorkload, metrics: Sequence[str] = ()) -> list[AccessRight]:
    """The rights that a workload's agents need, as deploy/*.yaml grant them; none without a cluster."""
    if extender.is_set("no_cluster") or extender.settings.get("objects_from"):
        return []
    cluster_rules, own_rules = _parse_deployed_rbac_rules(extender)
    rights = [right for rule in cluster_rules for right in _expand_rbac_rule(rule, "")]
    rights += [right for rule in own_rules for right in _expand_rbac_rule(rule, extender.workload.namespace)]
    rights = [right for right in rights if _is_right_needed(extender, right)]
    return list(dict.fromkeys([*rights, *_rights_to_read_custom_metrics(extender, metrics)]))


def _parse_deployed_rbac_rules(
    extender: NodewiseWorkload,
) -> tuple[list[second_scheduler.Rule], list[second_scheduler.Rule]]:
    """The rules for the cluster, and for nodewise's own namespace."""
    cluster_rules, own_rules = list(second_scheduler.CLUSTER_RULES), list(second_scheduler.RULES)
    if extender.is_set("native_mode"):
        cluster_rules += _NATIVE_CLUSTER_RULES
    if extender.is_controller:
        own_rules += _CONTROLLER_RULES
    if "gpu" in extender.agents:
        cluster_rules += second_scheduler.GPU_CLUSTER_RULES
        own_rules += second_scheduler.GPU_RULES
    kinds = filter(None, map(agents.find_agent_kind, extender.agents))
    if any(kind.keeps_memory for kind in kinds) and not extender.settings.get("state"):
        own_rules += second_scheduler.MEMORY_RULES
    return cluster_rules, own_rules


def _expand_rbac_rule(rule: second_scheduler.Rule, namespace: str) -> Iterator[AccessRight]:
    for group in rule["apiGroups"]:
        for name in rule["resources"]:
            for verb in rule["verbs"]:
                for object_name in rule.get("resourceNames", [""]):
                    yield AccessRight(verb, group, name, namespace, object_name)


def _is_right_needed(extender: NodewiseWorkload, right: AccessRight) -> bool:
    """Whether a workload with these settings needs a right of the rules."""
    if right.group in (resource_metrics_api.GROUP, custom_metrics_api.GROUP):
        return False  # depends on the policies: `_rights_to_read_custom_metrics`
    if right.name == EXTENDER_LEASE:
        return not extender.is_controller
    if right.group in ("telemetry.intel.com", "nodewise.io") or right.resource == "namespaces":
        return "telemetry" in extender.agents
    if right.resource == "nodes/status":
        return "advertise_resource" in extender.settings
    return True


def _rights_to_read_custom_metrics(
    extender: NodewiseWorkload, metrics: Sequence[str]
) -> Iterator[AccessRight]:
    """Each custom metric is a resource of its own, as a rule of RBAC may name it."""
    if "telemetry" not in extender.agents or "prometheus_url" in extender.settings:
        return
    sources = source_table.kinds(extender.values("metrics") or ["auto"])
    if source_table.RESOURCE in sources and any(name in resource_metrics_api.METRICS for name in metrics):
        yield AccessRight("list", resource_metrics_api.GROUP, "nodes")
    if source_table.CUSTOM in sources:
        for name in [name for name in metrics if name not in resource_metrics_api.METRICS][:_MAX_METRICS]:
            yield AccessRight("get", custom_metrics_api.GROUP, f"nodes/{name}")


async def collect_admission_policies(session: Session) -> tuple[AdmissionPolicy, ...] | UnavailableFact:
    """The admission policies that are enforced; none if the API server does not have the kind."""
    policies, bindings = await asyncio.gather(
        session.reader.get_list(ADMISSION_POLICIES, parse_json),
        session.reader.get_list(ADMISSION_BINDINGS, parse_json),
    )
    if isinstance(policies, UnavailableFact):
        return policies
    return (
        bindings if isinstance(bindings, UnavailableFact) else enforced_admission_policies(policies, bindings)
    )


def enforced_admission_policies(
    policies: Iterable[Any], bindings: Iterable[Any]
) -> tuple[AdmissionPolicy, ...]:
    """The policies that fail closed and have a binding that denies everywhere; others enforce nothing."""
    denying = {
        get_text(binding, "spec", "policyName")
        for binding in bindings
        if "Deny" in get_text_list(binding, "spec", "validationActions")
        and get(binding, "spec", "matchResources") is None
    }
    return tuple(
        _parse_admission_policy(policy)
        for policy in policies
        if get_text(policy, "metadata", "name") in denying
        and get_text(policy, "spec", "failurePolicy") != "Ignore"
    )


def _parse_admission_policy(policy: Any) -> AdmissionPolicy:
    rules = get_list(policy, "spec", "matchConstraints", "resourceRules")
    conditions = get_list(policy, "spec", "matchConditions")
    return AdmissionPolicy(
        get_text(policy, "metadata", "name"),
        frozenset(name for rule in rules for name in get_text_list(rule, "resources")),
        tuple(get_text(condition, "expression") for condition in conditions),
    )


async def collect_cluster_ca(session: Session) -> Chain | UnavailableFact:
    """The CA of the cluster's clients, whose private key no other program may have."""
    what = f"ConfigMap/{SYSTEM_NAMESPACE}/{_CLUSTER_CA}"
    right = f"get configmaps {_CLUSTER_CA} in namespace {SYSTEM_NAMESPACE}"
    config_map = await session.reader.get(what, right, CONFIG_MAPS.path(SYSTEM_NAMESPACE, _CLUSTER_CA))
    if isinstance(config_map, UnavailableFact):
        return config_map
    return certificates.parse_pem(get_text(config_map, "data", "client-ca-file").encode())
