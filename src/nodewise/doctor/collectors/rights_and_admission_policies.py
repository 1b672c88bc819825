"""Collects rights and admission: the missing rights of nodewise's accounts and the policies that limit them.

Also the cluster's CA and version, the admission policies that change the pods of policies, the Leases of nodewise's
programs, and whether kubelets may write the labels of native mode, which the plugin NodeRestriction prevents.
"""

import asyncio
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from nodewise import agents
from nodewise.base import clock
from nodewise.base.errors import BadInput, NodewiseError, Refused, short
from nodewise.doctor.collectors.nodes import collect_nodes
from nodewise.doctor.collectors.policies import collect_metric_names
from nodewise.doctor.collectors.session import (
    ADMISSION_BINDINGS,
    ADMISSION_POLICIES,
    MUTATING_BINDINGS,
    MUTATING_POLICIES,
    SYSTEM_NAMESPACE,
    ClusterReader,
    Session,
    parse_json,
    unavailable,
)
from nodewise.doctor.collectors.workloads import (
    collect_controllers,
    collect_extenders,
    collect_nodewise_workloads,
)
from nodewise.doctor.facts import (
    AccessRight,
    AdmissionPolicy,
    LeaderLease,
    MissingRights,
    NodeRestriction,
    NodewiseWorkload,
    PodAdmission,
    PodAdmissionPolicy,
    UnavailableFact,
    native_mode_workloads,
)
from nodewise.doctor.parsing import certificates, objects
from nodewise.doctor.parsing.admission_policy_digest import expressions_digest
from nodewise.doctor.parsing.certificates import Chain
from nodewise.doctor.parsing.objects import Container, get, get_list, get_number, get_text, get_text_list
from nodewise.doctor.parsing.shipped_admission_policies import SHIPPED_POLICIES
from nodewise.install import scheduler_versions, second_scheduler
from nodewise.install.scheduler_versions import SchedulerVersion
from nodewise.kube.api_server_interface import NotFound
from nodewise.kube.leader_election import CONTROLLER_LEASE, EVALUATION_ANNOTATION, EXTENDER_LEASE
from nodewise.kube.resource_kinds import CONFIG_MAPS, LEASES, NODES, PODS
from nodewise.metrics import custom_metrics_api, resource_metrics_api, source_table
from nodewise.policies import deleted_policies
from nodewise.policies.node_labels import VERDICT_LABEL_PREFIX

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


_DEFAULT_DURATION_S: Final = 15
_PREFIX: Final = "nodewise"
"""The beginning of the shipped names, which the chart replaces by the name of the release."""


async def collect_cluster_version(session: Session) -> SchedulerVersion | UnavailableFact:
    """The version that the API server states."""
    what = "version of the API server"
    response: Any = await session.reader.get(what, "get the non-resource URL /version", "/version")
    if isinstance(response, UnavailableFact):
        return response
    try:
        return scheduler_versions.parse_cluster_version(get_text(response, "gitVersion"))
    except BadInput as error:
        return UnavailableFact(what, str(error))


async def collect_pod_admission(session: Session) -> PodAdmission | UnavailableFact:
    """The policies with a binding that are, or are named like, those that nodewise ships."""
    is_served = await session.reader.is_served(MUTATING_POLICIES)
    if isinstance(is_served, UnavailableFact):
        return is_served
    kinds = [(ADMISSION_POLICIES, ADMISSION_BINDINGS)]
    if is_served:
        kinds.append((MUTATING_POLICIES, MUTATING_BINDINGS))
    lists = await asyncio.gather(
        *(session.reader.get_list(resource, parse_json) for pair in kinds for resource in pair)
    )
    read: list[list[Any]] = []
    for part in lists:
        if isinstance(part, UnavailableFact):
            return part
        read.append(part)
    policies = (
        policy
        for (resource, _), listed, bindings in zip(kinds, read[::2], read[1::2], strict=True)
        for policy in _shipped_policies(resource.kind, listed, bindings)
    )
    return PodAdmission(is_served, tuple(policies))


def _shipped_policies(
    kind: str, policies: Sequence[Any], bindings: Sequence[Any]
) -> Iterator[PodAdmissionPolicy]:
    bound = {get_text(binding, "spec", "policyName") for binding in bindings}
    by_digest = {digest: shipped for shipped, digest in SHIPPED_POLICIES.items()}
    for policy in policies:
        name = get_text(policy, "metadata", "name")
        digest = expressions_digest(policy)
        shipped = by_digest.get(digest) or _find_by_name(kind, name)
        if name in bound and shipped:
            yield PodAdmissionPolicy(shipped, f"{kind}/{name}", digest in by_digest)


def _find_by_name(kind: str, name: str) -> str:
    """The shipped policy that has this name in an installation with any name; empty if there is none."""
    endings = {shipped: shipped.removeprefix(f"{kind}/{_PREFIX}") for shipped in SHIPPED_POLICIES}
    return next(
        (shipped for shipped, ending in endings.items() if ending != shipped and name.endswith(ending)), ""
    )


async def collect_leases(session: Session) -> tuple[LeaderLease, ...] | UnavailableFact:
    """The Leases of the extender and of the controller, in the namespaces of nodewise."""
    read = await asyncio.gather(
        *(
            _read_lease(session.reader, namespace, name)
            for namespace in session.target.namespaces
            for name in (CONTROLLER_LEASE, EXTENDER_LEASE)
        )
    )
    leases: list[LeaderLease] = []
    for lease in read:
        if isinstance(lease, UnavailableFact):
            return lease
        leases += [lease] if lease else []
    return tuple(leases)


async def _read_lease(
    reader: ClusterReader, namespace: str, name: str
) -> LeaderLease | UnavailableFact | None:
    where = f"Lease/{namespace}/{name}"
    right = f"get leases.{LEASES.group} {name} in namespace {namespace}"
    lease: Any = await reader.get(where, right, LEASES.path(namespace, name))
    if lease is None or isinstance(lease, UnavailableFact):
        return lease
    duration_s = get_number(lease, "spec", "leaseDurationSeconds") or _DEFAULT_DURATION_S
    holder = get_text(lease, "spec", "holderIdentity")
    return LeaderLease(
        where,
        holder,
        _parse_time(get_text(lease, "spec", "renewTime")),
        duration_s,
        _parse_time(get_text(lease, "metadata", "annotations", EVALUATION_ANNOTATION)),
    )


def _parse_time(text: str) -> datetime | None:
    try:
        return datetime.fromtimestamp(clock.parse_rfc3339(text), UTC)
    except ValueError:
        return None


_PLUGIN: Final = "NodeRestriction"
_API_SERVERS: Final = {"labelSelector": "component=kube-apiserver"}
"""The label of the static pods of kubeadm and the distributions that follow it."""
_LABEL: Final = f"{VERDICT_LABEL_PREFIX}doctor"
_NOT_AUTHORIZED: Final = re.compile(r"cannot impersonate|cannot patch resource")
"""RBAC or the node authorizer refuses, before any admission plugin examines the labels."""


async def collect_node_restriction(session: Session) -> NodeRestriction | UnavailableFact:
    """Tried only if nodewise runs in native mode, or nodes have its labels."""
    nodes = (await session.require(collect_nodes)).nodes
    extenders, controllers = await session.get(collect_extenders), await session.get(collect_controllers)
    listed = [part for part in (extenders, controllers) if not isinstance(part, UnavailableFact)]
    labelled = [node.metadata.name for node in nodes if node.has_verdicts]
    if not nodes or not (labelled or native_mode_workloads(*listed)):
        return NodeRestriction(True, "native mode is not used")
    tried = await _try_write_as_node(session, (labelled or [nodes[0].metadata.name])[0])
    if not isinstance(tried, UnavailableFact):
        return tried
    return await _restriction_by_flags(session) or tried


async def _try_write_as_node(session: Session, node: str) -> NodeRestriction | UnavailableFact:
    """The result of a dry run, which the API server does not store."""
    what, user = f"the rights of the kubelet of Node/{node}", f"system:node:{node}"
    right = f"impersonate users {user} and groups system:nodes"
    connect_as_node = session.target.connect_as_node
    if connect_as_node is None:
        return UnavailableFact(what, "the kubeconfig impersonates a user", is_minor=True)
    api = connect_as_node(user)
    body = {"metadata": {"labels": {_LABEL: "ok"}}}
    try:
        await api.patch(NODES.path(name=node), body, "merge", {"dryRun": "All"})
    except NotFound:
        return UnavailableFact(what, "the node no longer exists", is_minor=True)
    except Refused as error:
        if _NOT_AUTHORIZED.search(str(error)):
            return UnavailableFact(what, "forbidden", right, is_minor=True)
        return NodeRestriction(True, short(str(error)))
    except NodewiseError as error:
        return unavailable(what, right, error)._replace(is_minor=True)
    finally:
        await api.close()
    return NodeRestriction(False, f"a dry run as {user} may write the label {VERDICT_LABEL_PREFIX}…")


async def _restriction_by_flags(session: Session) -> NodeRestriction | None:
    """What the flags of kube-apiserver's static pods say; None without any that are visible."""
    pods = await session.reader.get_list(PODS, parse_json, namespace=SYSTEM_NAMESPACE, selectors=_API_SERVERS)
    servers = [] if isinstance(pods, UnavailableFact) else [*filter(None, map(_api_server, pods))]
    if not servers:
        return None
    missing = [where for where, container in servers if not _enables_plugin(container)]
    if missing:
        return NodeRestriction(False, f"{missing[0]} does not enable the admission plugin {_PLUGIN}")
    return NodeRestriction(True, f"{servers[0][0]} enables the admission plugin {_PLUGIN}")


def _api_server(pod: Any) -> tuple[str, Container] | None:
    workload = objects.parse("Pod", pod)
    container = next((item for item in workload.containers if objects.runs(item, "kube-apiserver")), None)
    return None if container is None else (workload.where, container)


def _enables_plugin(container: Container) -> bool:
    """The lists of a repeated flag are joined, and one that enables wins over one that disables."""
    flags = objects.flags(container)
    lists = [*flags.get("enable_admission_plugins", ()), *flags.get("admission_control", ())]
    return any(_PLUGIN in plugins.split(",") for plugins in lists)
