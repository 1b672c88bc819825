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
from nodewise.base import clock, distributions
from nodewise.base.errors import BadInput, NodewiseError, Refused, short
from nodewise.doctor.collectors.nodes import collect_nodes
from nodewise.doctor.collectors.policies import collect_metric_names, reads_usage
from nodewise.doctor.collectors.session import (
    SYSTEM_NAMESPACE,
    ClusterReader,
    MissingFact,
    Session,
    attempt,
    missing_after_error,
    missing_fact,
    parse_json,
    read_all,
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
from nodewise.doctor.parsing.certificates import Chain
from nodewise.doctor.parsing.objects import (
    expressions_digest,
    get,
    get_list,
    get_number,
    get_text,
    get_text_list,
)
from nodewise.doctor.parsing.shipped_admission_policies import SHIPPED_POLICIES
from nodewise.install import platform_manifests, scheduler_versions
from nodewise.install.scheduler_versions import SchedulerVersion
from nodewise.kube import shard_election
from nodewise.kube.api_server_interface import NotFound
from nodewise.kube.leader_election import (
    CONTROLLER_LEASE,
    EVALUATION_ANNOTATION,
    EXTENDER_LEASE,
    NATIVE_MODE_ANNOTATION,
)
from nodewise.kube.resource_kinds import CONFIG_MAPS, LEASES, NODES, PODS, Resource
from nodewise.metrics import custom_metrics_api, resource_metrics_api, source_table
from nodewise.policies.node_labels import VERDICT_LABEL_PREFIX


def _admission_resource(plural: str, kind: str) -> Resource:
    return Resource("admissionregistration.k8s.io", "v1", plural, kind, namespaced=False)


_VALIDATING: Final = (
    _admission_resource("validatingadmissionpolicies", "ValidatingAdmissionPolicy"),
    _admission_resource("validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding"),
)
_MUTATING: Final = (
    _admission_resource("mutatingadmissionpolicies", "MutatingAdmissionPolicy"),
    _admission_resource("mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding"),
)
_CLUSTER_CA: Final = "extension-apiserver-authentication"
_REVIEW: Final = "create subjectaccessreviews.authorization.k8s.io"
_MAX_METRICS: Final = 20


async def collect_missing_rights(session: Session) -> tuple[MissingRights | UnavailableFact, ...]:
    listed = await session.require(collect_nodewise_workloads)
    metrics: Sequence[str] = await session.get_or(collect_metric_names, ())
    session.reader.say("reviewing the rights of nodewise")
    return tuple(
        await asyncio.gather(
            *(attempt(_find_missing_rights(session.reader, extender, metrics)) for extender in listed)
        )
    )


async def _find_missing_rights(
    reader: ClusterReader, extender: NodewiseWorkload, metrics: Sequence[str]
) -> MissingRights:
    namespace, account = extender.workload.namespace, extender.workload.account
    accounts = "system:serviceaccounts"
    subject = {
        "user": f"system:serviceaccount:{namespace}:{account}",
        "groups": [accounts, f"{accounts}:{namespace}", "system:authenticated"],
    }

    async def is_granted(right: AccessRight) -> bool:
        """Whether the account has a right, according to the API server."""
        resource, _, subresource = right.resource.partition("/")
        attributes = {**right._asdict(), "resource": resource, "subresource": subresource}
        spec = {**subject, "resourceAttributes": {key: value for key, value in attributes.items() if value}}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        return get(await reader.review(body, _REVIEW), "status", "allowed") is True

    rights = needed_rights(extender, metrics)
    granted = await read_all(map(is_granted, rights))
    missing = tuple(right for right, is_allowed in zip(rights, granted, strict=True) if not is_allowed)
    parts = sorted({rights[right] for right in missing})
    return MissingRights(f"ServiceAccount/{namespace}/{account}", missing, tuple(parts))


def needed_rights(  # complexity: each agent and mode adds rules
    extender: NodewiseWorkload, metrics: Sequence[str] = ()
) -> dict[AccessRight, str]:
    """The rights that a workload's agents need, each with the part of an installation that grants it
    (`platform_manifests.PARTS`); none without a cluster.
    """
    if extender.is_set("no_cluster") or extender.settings.get("objects_from"):
        return {}
    roles = {("rbac", "ClusterRole"), ("rbac", "Role")}
    if extender.may_use_native_mode:
        roles.add(("controller", "ClusterRole"))
    if extender.is_controller:
        roles.add(("controller", "Role"))
    if "gpu" in extender.agents:
        roles |= {("gpu", "ClusterRole"), ("gpu", "Role")}
    kinds = filter(None, map(agents.find_agent_kind, extender.agents))
    if any(kind.keeps_memory for kind in kinds) and not extender.settings.get("state"):
        roles.add(("memory", "Role"))
    rights: dict[AccessRight, str] = {}
    for part, kind in sorted(roles):
        for rule in platform_manifests.shipped_rules(f"{part}.yaml", kind):
            for right in _expand_rbac_rule(rule, extender.workload.namespace if kind == "Role" else ""):
                if _is_right_needed(extender, right):
                    rights.setdefault(right, part)
    return rights | dict.fromkeys(_rights_to_read_metrics(extender, metrics), "rbac")


def _expand_rbac_rule(rule: platform_manifests.Rule, namespace: str) -> Iterator[AccessRight]:
    for group in rule["apiGroups"]:
        for name in rule["resources"]:
            for verb in rule["verbs"]:
                for object_name in rule.get("resourceNames", [""]):
                    yield AccessRight(verb, group, name, namespace, object_name)


def _is_right_needed(extender: NodewiseWorkload, right: AccessRight) -> bool:
    if right.group in (resource_metrics_api.GROUP, custom_metrics_api.GROUP):
        return False  # depends on the policies and agents: `_rights_to_read_metrics`
    if right.name == EXTENDER_LEASE:
        return not extender.is_controller
    if right.group in ("telemetry.intel.com", "nodewise.io") or right.resource == "namespaces":
        return "telemetry" in extender.agents
    if right.group == _MUTATING[0].group:
        return extender.is_controller
    if right.resource == "nodes/status":
        return "advertise_resource" in extender.settings
    return True


def _rights_to_read_metrics(  # complexity: the rights of each source
    extender: NodewiseWorkload, metrics: Sequence[str]
) -> Iterator[AccessRight]:
    """Each custom metric is a resource of its own, as a rule of RBAC may name it."""
    if "prometheus_url" in extender.settings:
        return
    sources = source_table.kinds(extender.values("metrics") or ["auto"])
    requested = set(metrics if "telemetry" in extender.agents else ())
    computed = {entry.name for entry in distributions.own_entry_points(distributions.COMPUTED_METRICS)}
    needs_pods = reads_usage(extender.agents) or bool(computed & requested)
    if source_table.RESOURCE in sources and (
        needs_pods or requested.intersection(resource_metrics_api.METRICS)
    ):
        yield AccessRight("list", resource_metrics_api.GROUP, "nodes")
    if source_table.RESOURCE in sources and needs_pods:
        yield AccessRight("list", resource_metrics_api.GROUP, "pods")
    if source_table.CUSTOM in sources:
        for name in sorted(requested - computed - {*resource_metrics_api.METRICS})[:_MAX_METRICS]:
            yield AccessRight("get", custom_metrics_api.GROUP, f"nodes/{name}")


async def collect_admission_policies(session: Session) -> tuple[AdmissionPolicy, ...]:
    """The admission policies that are enforced; none if the API server does not have the kind."""
    return enforced_admission_policies(*await _read_admission_objects(session.reader, _VALIDATING))


async def _read_admission_objects(reader: ClusterReader, kinds: Iterable[Resource]) -> list[list[Any]]:
    return await read_all(reader.get_list(kind, parse_json) for kind in kinds)


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
        AdmissionPolicy(
            get_text(policy, "metadata", "name"),
            frozenset(
                name
                for rule in get_list(policy, "spec", "matchConstraints", "resourceRules")
                for name in get_text_list(rule, "resources")
            ),
            tuple(get_text(item, "expression") for item in get_list(policy, "spec", "matchConditions")),
        )
        for policy in policies
        if get_text(policy, "metadata", "name") in denying
        and get_text(policy, "spec", "failurePolicy") != "Ignore"
    )


async def collect_cluster_ca(session: Session) -> Chain:
    """The CA of the cluster's clients, whose private key no other program may have."""
    what = f"ConfigMap/{SYSTEM_NAMESPACE}/{_CLUSTER_CA}"
    right = f"get configmaps {_CLUSTER_CA} in namespace {SYSTEM_NAMESPACE}"
    config_map = await session.reader.get(what, right, CONFIG_MAPS.path(SYSTEM_NAMESPACE, _CLUSTER_CA))
    return certificates.parse_pem(get_text(config_map, "data", "client-ca-file").encode())


_DEFAULT_DURATION_S: Final = 15
_PREFIX: Final = "nodewise"
"""The beginning of the shipped names, which the chart replaces by the name of the release."""


async def collect_cluster_version(session: Session) -> SchedulerVersion:
    what = "version of the API server"
    response = await session.reader.get(what, "get the non-resource URL /version", "/version")
    try:
        return scheduler_versions.parse_cluster_version(get_text(response, "gitVersion"))
    except BadInput as error:
        raise missing_fact(what, str(error)) from error


async def collect_pod_admission(session: Session) -> PodAdmission:
    """The policies with a binding that are, or are named like, those that nodewise ships."""
    is_served = await session.reader.is_served(_MUTATING[0])
    kinds = [_VALIDATING[0], *(_MUTATING[:1] if is_served else ())]
    read = await _read_admission_objects(session.reader, [*_VALIDATING, *(_MUTATING if is_served else ())])
    policies = (
        policy
        for kind, listed, bindings in zip(kinds, read[::2], read[1::2], strict=True)
        for policy in _shipped_policies(kind.kind, listed, bindings)
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


async def collect_leases(session: Session) -> tuple[LeaderLease, ...]:
    names = (CONTROLLER_LEASE, EXTENDER_LEASE)
    places = [(namespace, name) for namespace in session.target.namespaces for name in names]
    leases = await read_all(_read_lease(session.reader, *place) for place in places)
    return tuple(lease for lease in leases if lease is not None)


async def _read_lease(reader: ClusterReader, namespace: str, name: str) -> LeaderLease | None:
    where = f"Lease/{namespace}/{name}"
    right = f"get leases.{LEASES.group} {name} in namespace {namespace}"
    lease = await reader.get(where, right, LEASES.path(namespace, name))
    if lease is None:
        return None
    layout = shard_election.parse_layout(lease.get("metadata", {}).get("annotations") or {})
    names = map(shard_election.shard_lease, range(layout.shards if layout.shards > 1 else 0))
    shards = await read_all(_read_lease(reader, namespace, name) for name in names)
    return LeaderLease(
        where,
        get_text(lease, "spec", "holderIdentity"),
        _parse_time(get_text(lease, "spec", "renewTime")),
        get_number(lease, "spec", "leaseDurationSeconds") or _DEFAULT_DURATION_S,
        _parse_time(get_text(lease, "metadata", "annotations", EVALUATION_ANNOTATION)),
        {"on": True, "off": False}.get(get_text(lease, "metadata", "annotations", NATIVE_MODE_ANNOTATION)),
        tuple(shards),
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


async def collect_node_restriction(session: Session) -> NodeRestriction:
    """Tried only if nodewise runs in native mode, or nodes have its labels."""
    nodes = (await session.require(collect_nodes)).nodes
    listed = [await session.get_or(collect, ()) for collect in (collect_extenders, collect_controllers)]
    labelled = [node.metadata.name for node in nodes if node.has_verdicts]
    if not nodes or not (labelled or native_mode_workloads(*listed)):
        return NodeRestriction(True, "native mode is not used")
    try:
        return await _try_write_as_node(session, (labelled or [nodes[0].metadata.name])[0])
    except MissingFact:
        if (restriction := await _restriction_by_flags(session)) is None:
            raise
        return restriction


async def _try_write_as_node(session: Session, node: str) -> NodeRestriction:
    """The result of a dry run, which the API server does not store."""
    what, user = f"the rights of the kubelet of Node/{node}", f"system:node:{node}"
    right = f"impersonate users {user} and groups system:nodes"
    if session.target.connect_as_node is None:
        raise missing_fact(what, "the kubeconfig impersonates a user", is_minor=True)
    api = session.target.connect_as_node(user)
    body = {"metadata": {"labels": {_LABEL: "ok"}}}
    try:
        await api.patch(NODES.path(name=node), body, "merge", {"dryRun": "All"})
    except NotFound as error:
        raise missing_fact(what, "the node no longer exists", is_minor=True) from error
    except Refused as error:
        if _NOT_AUTHORIZED.search(str(error)):
            raise missing_fact(what, "forbidden", right, is_minor=True) from error
        return NodeRestriction(True, short(str(error)))
    except NodewiseError as error:
        unavailable = missing_after_error(what, right, error).unavailable
        raise MissingFact(unavailable._replace(is_minor=True)) from error
    finally:
        await api.close()
    return NodeRestriction(False, f"a dry run as {user} may write the label {VERDICT_LABEL_PREFIX}…")


async def _restriction_by_flags(session: Session) -> NodeRestriction | None:
    """What the flags of kube-apiserver's static pods say; None without any that are visible.

    The lists of a repeated flag are joined, and one that enables wins over one that disables.
    """
    pods = await attempt(
        session.reader.get_list(PODS, parse_json, namespace=SYSTEM_NAMESPACE, selectors=_API_SERVERS)
    )
    restricting = {}
    for pod in () if isinstance(pods, UnavailableFact) else pods:
        workload = objects.parse("Pod", pod)
        container = next((item for item in workload.containers if objects.runs(item, "kube-apiserver")), None)
        if container is not None:
            flags = objects.flags(container)
            lists = [*flags.get("enable_admission_plugins", ()), *flags.get("admission_control", ())]
            restricting[workload.where] = any(_PLUGIN in plugins.split(",") for plugins in lists)
    if not restricting:
        return None
    where = next((where for where, enables in restricting.items() if not enables), "")
    if where:
        return NodeRestriction(False, f"{where} does not enable the admission plugin {_PLUGIN}")
    return NodeRestriction(True, f"{next(iter(restricting))} enables the admission plugin {_PLUGIN}")
