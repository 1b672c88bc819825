"""Workloads that run a scheduler, a descheduler or nodewise, the plugins of deschedulers, and pods that wait.

Pods that name a policy count as well.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.base import clock
from nodewise.base.clock import SystemClock
from nodewise.base.errors import UNREADABLE, BadInput, short, shown
from nodewise.doctor.collectors.policies import PolicySelectors, collect_selectors
from nodewise.doctor.collectors.session import (
    CRON_JOBS,
    DAEMON_SETS,
    DEPLOYMENTS,
    STATEFUL_SETS,
    SYSTEM_NAMESPACE,
    ClusterReader,
    Session,
    parse_json,
)
from nodewise.doctor.facts import Descheduler, NodewiseWorkload, PodInfo, ReplicaMetrics, UnavailableFact
from nodewise.doctor.parsing import objects
from nodewise.doctor.parsing.objects import (
    Container,
    Workload,
    get,
    get_list,
    get_mapping,
    get_text,
    get_text_list,
    get_text_mapping,
)
from nodewise.install.scheduler_configuration import DEFAULT_SCHEDULER
from nodewise.kube import object_files
from nodewise.kube.resource_kinds import PODS, selector
from nodewise.policies.agent import find_misspelt_policy_label
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.policy_selection import POLICY_LABEL, PodFields
from nodewise.policies.verdict_labels import NodeConstraints, verdict_requirements
from nodewise.server.options import is_loopback

_MAX_PODS: Final = 20_000
"""In a cluster with more pods, not all of them are read to find single ones."""
_PENDING: Final = {"fieldSelector": "spec.nodeName=,status.phase!=Succeeded,status.phase!=Failed"}
_WITH_POLICY: Final = {"labelSelector": POLICY_LABEL}
_SCHEDULERS: Final = ("kube-scheduler", "koord-scheduler", "crane-scheduler")


class ProgramWorkloads(NamedTuple):
    """Workloads by the program that they run."""

    schedulers: tuple[Workload, ...]
    deschedulers: tuple[Workload, ...]
    extenders: tuple[Workload, ...]
    controllers: tuple[Workload, ...]
    elsewhere: tuple[Workload, ...] = ()
    """Those of other namespaces, which are not examined: a tenant can name any container a scheduler."""


class ReplicaPod(NamedTuple):
    """A pod of a workload."""

    name: str
    address: str
    problems: tuple[str, ...]


def runs_kube_scheduler(container: Container) -> bool:
    if any(objects.runs(container, name) for name in _SCHEDULERS):
        return True
    return objects.runs(container, "scheduler") and objects.flag(container, "config") is not None


def is_descheduler(container: Container) -> bool:
    return objects.runs(container, "descheduler")


_PROGRAMS: Final = (
    runs_kube_scheduler,
    is_descheduler,
    objects.runs_nodewise_extender,
    objects.runs_nodewise_controller,
)


def find_container(workload: Workload, is_wanted: Callable[[Container], bool]) -> Container:
    """The container that runs a program; the workload must have one."""
    return next(container for container in workload.containers if is_wanted(container))


async def collect_program_workloads(session: Session) -> ProgramWorkloads | UnavailableFact:
    """All workloads, and pods that no workload made."""
    kinds = (DEPLOYMENTS, DAEMON_SETS, STATEFUL_SETS, CRON_JOBS)
    lists = await asyncio.gather(
        *(session.reader.get_list(kind, partial(_parse_workload, kind.kind)) for kind in kinds),
        _read_pods_without_controller(session.reader),
    )
    if missing := [part for part in lists if isinstance(part, UnavailableFact)]:
        return _join_unavailable_reasons(missing)
    everywhere = [workload for part in lists for workload in _value_or_empty_if_unavailable(part)]
    examined = [workload for workload in everywhere if workload.namespace in session.namespaces]
    return ProgramWorkloads(
        _workloads_with_container(examined, runs_kube_scheduler),
        _workloads_with_container(examined, is_descheduler),
        _workloads_with_container(examined, objects.runs_nodewise_extender),
        _workloads_with_container(examined, objects.runs_nodewise_controller),
        tuple(workload for workload in everywhere if workload.namespace not in session.namespaces),
    )


def _workloads_with_container(
    listed: list[Workload], is_program: Callable[[Container], bool]
) -> tuple[Workload, ...]:
    return tuple(workload for workload in listed if any(map(is_program, workload.containers)))


def _value_or_empty_if_unavailable(part: list[Workload] | UnavailableFact) -> list[Workload]:
    return [] if isinstance(part, UnavailableFact) else part


def _join_unavailable_reasons(parts: list[UnavailableFact]) -> UnavailableFact:
    what = ", ".join(part.what for part in parts)
    rights = "; ".join(dict.fromkeys(part.right for part in parts if part.right))
    return parts[0]._replace(what=what, right=rights)


async def collect_programs_elsewhere(session: Session) -> tuple[str, ...]:
    return tuple(workload.where for workload in (await session.require(collect_program_workloads)).elsewhere)


async def _read_pods_without_controller(reader: ClusterReader) -> list[Workload] | UnavailableFact:
    """Pods without a controller, and mirror pods; in a large cluster only those of kube-system."""
    pods = await reader.get_list(PODS, parse_pod_without_controller, limit=_MAX_PODS)
    if isinstance(pods, UnavailableFact) and pods.is_minor:
        return await reader.get_list(PODS, parse_pod_without_controller, namespace=SYSTEM_NAMESPACE)
    return pods


def _parse_workload(kind: str, body: bytes) -> Workload | None:
    workload = objects.parse(kind, parse_json(body))
    return workload if _runs_examined_program(workload) else None


def parse_pod_without_controller(body: bytes) -> Workload | None:
    if b"scheduler" not in body and b"nodewise" not in body:  # most pods of a large cluster
        return None
    value = parse_json(body)
    pod = objects.parse("Pod", value)
    owners = [get_text(owner, "kind") for owner in get_list(value, "metadata", "ownerReferences")]
    is_single = all(kind == "Node" for kind in owners)
    return pod if is_single and pod.replicas and _runs_examined_program(pod) else None


def _runs_examined_program(workload: Workload) -> bool:
    return any(is_program(container) for container in workload.containers for is_program in _PROGRAMS)


async def read_replicas(reader: ClusterReader, workload: Workload) -> list[ReplicaPod]:
    """The pods that a workload made, found by its labels."""
    labels = ",".join(selector(key, value) for key, value in sorted(workload.labels.items()))
    if workload.where.startswith("Pod/") or not labels:
        return []
    selectors = {"labelSelector": labels}
    pods = await reader.get_list(PODS, _parse_replica, namespace=workload.namespace, selectors=selectors)
    return [] if isinstance(pods, UnavailableFact) else pods


def _parse_replica(body: bytes) -> ReplicaPod | None:
    value = parse_json(body)
    if objects.is_finished(value):
        return None
    problems = objects.parse("Pod", value).problems
    return ReplicaPod(get_text(value, "metadata", "name"), get_text(value, "status", "podIP"), problems)


async def collect_pending_and_policy_pods(session: Session) -> tuple[PodInfo, ...] | UnavailableFact:
    """Pods that wait for a node, name a policy or nearly name one, or that a policy selects.

    In a large cluster only waiting pods and those that name a policy are read.
    """
    now = clock.SystemClock().now()
    selectors = await session.require(collect_selectors)
    parse = partial(parse_pod, now, selectors)
    lists = await asyncio.gather(
        session.reader.get_list(PODS, parse, selectors=_PENDING),
        session.reader.get_list(PODS, parse, selectors=_WITH_POLICY),
        session.reader.get_list(PODS, partial(_parse_pod_of_policy, now, selectors), limit=_MAX_PODS),
    )
    by_key: dict[tuple[str, str], PodInfo] = {}
    for part in lists:
        if not isinstance(part, UnavailableFact):
            by_key |= {(pod.namespace, pod.name): pod for pod in part}
        elif not part.is_minor:
            return part
    return tuple(by_key.values())


def _parse_pod_of_policy(now: float, selectors: PolicySelectors, body: bytes) -> PodInfo | None:
    """A pod that a policy selects, or that nearly names one. Of other pods only a few fields are decoded."""
    try:
        fields = msgspec.json.decode(body, type=PodFields)
    except msgspec.MsgspecError:
        return None
    labels = fields.metadata.labels or ()
    is_relevant = find_misspelt_policy_label(labels) or selectors.selection.select(fields)
    return parse_pod(now, selectors, body) if is_relevant else None


def parse_pod(now: float, selectors: PolicySelectors, body: bytes) -> PodInfo | None:
    """A pod; None if it is finished."""
    value = parse_json(body)
    if objects.is_finished(value):
        return None
    spec, labels = get(value, "spec"), get_text_mapping(value, "metadata", "labels")
    policy = labels.get(POLICY_LABEL, "")
    selected = _select_policies(selectors, body)
    keys, observing = selected or ((), ())
    return PodInfo(
        name=get_text(value, "metadata", "name"),
        namespace=get_text(value, "metadata", "namespace"),
        policy=policy if selected is None or any(key.kind == "TASPolicy" for key in keys) else "",
        scheduler_name=get_text(spec, "schedulerName") or DEFAULT_SCHEDULER,
        node=get_text(spec, "nodeName"),
        age_s=now - _parse_creation_time(value, now),
        resources=tuple(sorted(_requested_resources(spec))),
        message=short(objects.unscheduled_message(value), 500),
        avoids_violating=_avoids_nodes_violating_policy(spec, policy),
        is_gated=bool(get_list(spec, "schedulingGates")),
        misspelled_label=find_misspelt_policy_label(labels),
        selected_by=tuple(f"{key.kind}/{key.path}" for key in keys if key.kind != "TASPolicy"),
        observed_by=tuple(f"{key.kind}/{key.path}" for key in observing),
        verdict_keys=_verdict_keys(body),
    )


def _select_policies(
    selectors: PolicySelectors, body: bytes
) -> tuple[tuple[PolicyKey, ...], tuple[PolicyKey, ...]] | None:
    """The policies of a pod, and those of them that have no effect on it; None if the pod cannot be read."""
    try:
        pod = msgspec.json.decode(body, type=PodFields)
    except msgspec.MsgspecError:
        return None
    keys = selectors.selection.select(pod)
    return keys, tuple(key for key in keys if not selectors.is_enforced_for(key, pod))


class _Pod(msgspec.Struct, frozen=True):
    spec: NodeConstraints = NodeConstraints()


def _verdict_keys(body: bytes) -> frozenset[str]:
    """The keys of labels of native mode that a pod requires."""
    try:
        spec = msgspec.json.decode(body, type=_Pod).spec
    except msgspec.MsgspecError:
        return frozenset()
    return frozenset(requirement.key for requirement in verdict_requirements(spec))


def _parse_creation_time(value: Any, default: float) -> float:
    try:
        return clock.parse_rfc3339(get_text(value, "metadata", "creationTimestamp"))
    except ValueError:
        return default


def _requested_resources(spec: Any) -> Iterable[str]:
    """The extended resources of all containers."""
    for container in (*get_list(spec, "containers"), *get_list(spec, "initContainers")):
        for kind in ("requests", "limits"):
            yield from (name for name in get_mapping(container, "resources", kind) if "/" in name)


def _avoids_nodes_violating_policy(spec: Any, policy: str) -> bool:
    """Whether every term of its required node affinity excludes nodes that the policy labels."""
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = get_list(spec, "affinity", "nodeAffinity", required, "nodeSelectorTerms")
    return bool(policy and terms) and all(
        any(
            get_text(expression, "key") == policy and _excludes_nodes_with_policy_label(expression)
            for expression in get_list(term, "matchExpressions")
        )
        for term in terms
    )


def _excludes_nodes_with_policy_label(expression: Any) -> bool:
    operator = get_text(expression, "operator")
    return operator == "DoesNotExist" or (
        operator == "NotIn" and "violating" in get_text_list(expression, "values")
    )


_AFFINITY: Final = "RemovePodsViolatingNodeAffinity"
_MAX_BYTES: Final = 2**20


async def collect_deschedulers(session: Session) -> tuple[Descheduler, ...]:
    listed = (await session.require(collect_program_workloads)).deschedulers
    return tuple(await asyncio.gather(*(_read_descheduler(session, workload) for workload in listed)))


async def _read_descheduler(session: Session, workload: Workload) -> Descheduler:
    container = find_container(workload, is_descheduler)
    path = objects.flag(container, "policy-config-file")
    if not path:
        return Descheduler(workload.where, ())
    data = await session.files.read(workload, container, path)
    if isinstance(data, UnavailableFact):
        return Descheduler(workload.where, data)
    return parse_descheduler_policy(workload.where, data)


def parse_descheduler_policy(where: str, text: bytes) -> Descheduler:
    """A descheduler with the policy in a text."""
    try:
        values = [
            msgspec.json.decode(json) for _, json in object_files.split_documents(text[:_MAX_BYTES], "policy")
        ]
    except (BadInput, *UNREADABLE) as error:
        return Descheduler(where, UnavailableFact(where, f"its policy: {short(str(error))}"))
    return read_descheduler_policy(where, values[0] if values else None)


def read_descheduler_policy(where: str, policy: Any) -> Descheduler:
    """A descheduler with a policy of either version."""
    plugins: dict[str, None] = {}
    affinity_types: list[str] = []
    for profile in get_list(policy, "profiles"):
        for point in ("deschedule", "balance"):
            plugins |= dict.fromkeys(get_text_list(profile, "plugins", point, "enabled"))
        for plugin in get_list(profile, "pluginConfig"):
            if get_text(plugin, "name") == _AFFINITY:
                affinity_types += get_text_list(plugin, "args", "nodeAffinityType")
    for name, strategy in get_mapping(policy, "strategies").items():
        if get(strategy, "enabled") is True:
            plugins[name] = None
            if name == _AFFINITY:
                affinity_types += get_text_list(strategy, "params", "nodeAffinityType")
    return Descheduler(where, tuple(map(short, plugins)), tuple(affinity_types))


_MAX_REPLICAS: Final = 10
_DEFAULT_ADDRESS: Final = "127.0.0.1"
_DEFAULT_PORT: Final = "9002"
_MAX_LINES: Final = 100_000
_SAMPLE: Final = re.compile(r"(?P<name>[a-z_]+)(?:\{(?P<labels>[^}]*)\})? (?P<value>[0-9.eE+-]+)")
_LABEL: Final = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
_SCHEDULER_ROUTE: Final = re.compile(r"/(scheduler|agents/[^/]+)/")


async def collect_replicas(session: Session) -> dict[str, list[ReplicaPod]]:
    """The pods of each workload that runs nodewise, by `Workload.where`."""
    programs = await session.require(collect_program_workloads)
    listed = (*programs.extenders, *programs.controllers)
    pods = await asyncio.gather(*(read_replicas(session.reader, workload) for workload in listed))
    return {workload.where: own for workload, own in zip(listed, pods, strict=True)}


async def collect_extenders(session: Session) -> tuple[NodewiseWorkload, ...]:
    """All workloads that run `nodewise extender`."""
    listed = (await session.require(collect_program_workloads)).extenders
    return await _read_workloads(session, listed, objects.runs_nodewise_extender)


async def collect_controllers(session: Session) -> tuple[NodewiseWorkload, ...]:
    """All workloads that run `nodewise controller`."""
    listed = (await session.require(collect_program_workloads)).controllers
    read = await _read_workloads(session, listed, objects.runs_nodewise_controller)
    return tuple(workload._replace(is_controller=True) for workload in read)


async def collect_nodewise_workloads(session: Session) -> tuple[NodewiseWorkload, ...]:
    """All workloads that run the extender or the controller."""
    return (*await session.require(collect_extenders), *await session.require(collect_controllers))


async def _read_workloads(
    session: Session, listed: Sequence[Workload], is_program: Callable[[Container], bool]
) -> tuple[NodewiseWorkload, ...]:
    pods = await session.require(collect_replicas)
    return tuple(
        await asyncio.gather(
            *(
                _read_workload(session, workload, find_container(workload, is_program), pods[workload.where])
                for workload in listed
            )
        )
    )


async def _read_workload(
    session: Session, workload: Workload, container: Container, pods: list[ReplicaPod]
) -> NodewiseWorkload:
    path, file, unread = objects.settings_file_path(container), b"", None
    if path:
        data = await session.files.read(workload, container, path)
        unread, file = (data, b"") if isinstance(data, UnavailableFact) else (None, data)
    settings = objects.settings(container, file)
    problems = tuple(dict.fromkeys(problem for pod in pods for problem in pod.problems))
    client_ca, serving = [
        await session.files.read_certificate_chain(workload, container, settings[name])
        if settings.get(name)
        else ()
        for name in ("client_ca", "cert")
    ]
    with_problems = workload._replace(problems=(*workload.problems, *problems))
    return NodewiseWorkload(with_problems, settings, unread, client_ca, serving)


async def collect_replica_metrics(session: Session) -> tuple[ReplicaMetrics, ...]:
    """The metrics of all replicas that can be reached; no check reports the others."""
    pods = await session.require(collect_replicas)
    results = await asyncio.gather(
        *(
            read_metrics(session.reader, listed, pod)
            for listed in await session.require(collect_nodewise_workloads)
            for pod in pods[listed.workload.where][:_MAX_REPLICAS]
        )
    )
    return tuple(metrics for metrics in results if not isinstance(metrics, UnavailableFact))


async def read_metrics(
    reader: ClusterReader, listed: NodewiseWorkload, replica: ReplicaPod
) -> ReplicaMetrics | UnavailableFact:
    """A replica's /metrics, through the API server. An admin port on loopback cannot be reached."""
    namespace, settings = listed.workload.namespace, listed.settings
    where = f"Pod/{namespace}/{replica.name}"
    if is_loopback(settings.get("health_address", _DEFAULT_ADDRESS)) or not replica.address:
        return UnavailableFact(where, "its metrics cannot be reached", is_minor=True)
    port = settings.get("health_port", _DEFAULT_PORT)
    if not port.isdecimal():
        return UnavailableFact(
            where, f"--health-port: found {shown(port)}, expected a port number", is_minor=True
        )
    path = PODS.path(namespace, f"{replica.name}:{port}", "proxy") + "/metrics"
    right = f"get pods/proxy in namespace {namespace}"
    body = await reader.get_bytes(f"metrics of {where}", right, path, is_proxied=True)
    if body is None or isinstance(body, UnavailableFact):
        return body or UnavailableFact(where, "it has no metrics", is_minor=True)
    return parse_metrics(where, body, SystemClock().now())


def parse_metrics(pod: str, body: bytes, now_s: float) -> ReplicaMetrics:
    """The values that checks read of a response in Prometheus' text format; invalid lines are left out."""
    calls, started_s, ca_clients = 0, now_s, 0
    refused: dict[str, int] = {}
    nodes: dict[str, int] = {}
    unmatched: dict[str, int] = {}
    for name, labels, value in _parse_samples(body.decode(errors="replace")):
        if name == "nodewise_requests_total" and _SCHEDULER_ROUTE.match(labels.get("route", "")):
            calls += int(value)
        elif name == "process_start_time_seconds":
            started_s = value
        elif name == "nodewise_ca_clients_total":
            ca_clients = int(value)
        elif name == "nodewise_connections_ended_total":
            refused[labels.get("reason", "")] = int(value)
        elif name == "nodewise_metric_nodes":
            nodes[labels.get("metric", "")] = int(value)
        elif name == "nodewise_metric_series_unmatched":
            unmatched[labels.get("metric", "")] = int(value)
    return ReplicaMetrics(pod, calls, max(now_s - started_s, 0.0), ca_clients, refused, nodes, unmatched)


def _parse_samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for line in text.splitlines()[:_MAX_LINES]:
        match = _SAMPLE.match(line)
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if abs(value) < 2**63:  # neither infinite nor too large for a count
            yield match["name"], dict(_LABEL.findall(match["labels"] or "")), value
