"""Workloads that run a scheduler, a descheduler or nodewise: nodewise's settings and metrics, deschedulers' plugins."""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from nodewise.base.clock import SystemClock
from nodewise.base.errors import BadInput, NodewiseError, short, shown
from nodewise.doctor.collectors.session import (
    SYSTEM_NAMESPACE,
    ClusterReader,
    MissingFact,
    Session,
    attempt,
    missing_fact,
    parse_json,
    read_certificate_chain,
)
from nodewise.doctor.facts import Descheduler, NodewiseWorkload, ReplicaMetrics, UnavailableFact
from nodewise.doctor.parsing import objects
from nodewise.doctor.parsing.objects import (
    Container,
    Workload,
    get,
    get_list,
    get_mapping,
    get_text,
    get_text_list,
)
from nodewise.kube import replicas
from nodewise.kube.replicas import AdminServer
from nodewise.kube.resource_kinds import PODS, Resource, selector
from nodewise.server.options import is_loopback

MAX_PODS: Final = 20_000
"""In a cluster with more pods, not all of them are read to find single ones."""
WORKLOAD_KINDS: Final = (
    Resource("apps", "v1", "deployments", "Deployment"),
    Resource("apps", "v1", "daemonsets", "DaemonSet"),
    Resource("apps", "v1", "statefulsets", "StatefulSet"),
    Resource("batch", "v1", "cronjobs", "CronJob"),
)
_SCHEDULERS: Final = ("kube-scheduler", "koord-scheduler", "crane-scheduler")


class ProgramWorkloads(NamedTuple):
    """Workloads of the examined namespaces by the program that they run."""

    schedulers: tuple[Workload, ...]
    deschedulers: tuple[Workload, ...]
    extenders: tuple[Workload, ...]
    controllers: tuple[Workload, ...]


class ReplicaPod(NamedTuple):
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
"""In the order of the fields of `ProgramWorkloads`."""


def find_container(workload: Workload, is_wanted: Callable[[Container], bool]) -> Container:
    """The container that runs a program; the workload must have one."""
    return next(container for container in workload.containers if is_wanted(container))


async def collect_workloads(session: Session) -> list[Workload]:
    """All workloads that run one of the programs, and such pods that no workload made."""
    reader = session.reader
    lists = await asyncio.gather(
        *(attempt(reader.get_list(kind, partial(_parse_workload, kind.kind))) for kind in WORKLOAD_KINDS),
        attempt(_read_pods_without_controller(reader)),
    )
    if missing := [part for part in lists if isinstance(part, UnavailableFact)]:
        what = ", ".join(part.what for part in missing)
        rights = "; ".join(dict.fromkeys(part.right for part in missing if part.right))
        raise MissingFact(missing[0]._replace(what=what, right=rights))
    return [workload for part in lists if isinstance(part, list) for workload in part]


async def collect_program_workloads(session: Session) -> ProgramWorkloads:
    everywhere = await session.require(collect_workloads)
    examined = [workload for workload in everywhere if workload.namespace in session.namespaces]
    return ProgramWorkloads(
        *(
            tuple(workload for workload in examined if any(map(is_program, workload.containers)))
            for is_program in _PROGRAMS
        )
    )


async def collect_programs_elsewhere(session: Session) -> tuple[str, ...]:
    """Workloads of other namespaces, which are not examined: a tenant can name any container a scheduler."""
    everywhere = await session.require(collect_workloads)
    return tuple(workload.where for workload in everywhere if workload.namespace not in session.namespaces)


async def _read_pods_without_controller(reader: ClusterReader) -> list[Workload]:
    """Pods without a controller, and mirror pods; in a large cluster only those of kube-system."""
    try:
        return await reader.get_list(PODS, parse_pod_without_controller, limit=MAX_PODS)
    except MissingFact as missing:
        if not missing.unavailable.is_minor:
            raise
    return await reader.get_list(PODS, parse_pod_without_controller, namespace=SYSTEM_NAMESPACE)


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


_AFFINITY: Final = "RemovePodsViolatingNodeAffinity"


async def collect_deschedulers(session: Session) -> tuple[Descheduler, ...]:
    listed = (await session.require(collect_program_workloads)).deschedulers
    return tuple(await asyncio.gather(*(_read_descheduler(session, workload) for workload in listed)))


async def _read_descheduler(session: Session, workload: Workload) -> Descheduler:
    container = find_container(workload, is_descheduler)
    path = objects.flag(container, "policy-config-file")
    if not path:
        return Descheduler(workload.where, ())
    try:
        return parse_descheduler_policy(workload.where, await session.files.read(workload, container, path))
    except MissingFact as missing:
        return Descheduler(workload.where, missing.unavailable)


def parse_descheduler_policy(where: str, text: bytes) -> Descheduler:
    """A descheduler with the policy in a text."""
    try:
        values = objects.parse_documents(text, "policy")
    except BadInput as error:
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
    pods = await asyncio.gather(*(_read_replicas(session.reader, workload) for workload in listed))
    return {workload.where: own for workload, own in zip(listed, pods, strict=True)}


async def _read_replicas(reader: ClusterReader, workload: Workload) -> list[ReplicaPod]:
    """The pods that a workload made, by its labels; none if they cannot be read."""
    labels = ",".join(selector(key, value) for key, value in sorted(workload.labels.items()))
    if workload.where.startswith("Pod/") or not labels:
        return []

    def parse_replica(body: bytes) -> ReplicaPod | None:
        value = parse_json(body)
        if objects.is_finished(value):
            return None
        problems = objects.parse("Pod", value).problems
        return ReplicaPod(get_text(value, "metadata", "name"), get_text(value, "status", "podIP"), problems)

    reading = reader.get_list(
        PODS, parse_replica, namespace=workload.namespace, selectors={"labelSelector": labels}
    )
    pods = await attempt(reading)
    return [] if isinstance(pods, UnavailableFact) else pods


async def collect_extenders(session: Session) -> tuple[NodewiseWorkload, ...]:
    listed = (await session.require(collect_program_workloads)).extenders
    return await _read_workloads(session, listed, objects.runs_nodewise_extender)


async def collect_controllers(session: Session) -> tuple[NodewiseWorkload, ...]:
    listed = (await session.require(collect_program_workloads)).controllers
    read = await _read_workloads(session, listed, objects.runs_nodewise_controller)
    return tuple(workload._replace(is_controller=True) for workload in read)


async def collect_nodewise_workloads(session: Session) -> tuple[NodewiseWorkload, ...]:
    return (*await session.require(collect_extenders), *await session.require(collect_controllers))


async def _read_workloads(
    session: Session, listed: Sequence[Workload], is_program: Callable[[Container], bool]
) -> tuple[NodewiseWorkload, ...]:
    pods = await session.require(collect_replicas)

    async def read_workload(workload: Workload) -> NodewiseWorkload:
        container = find_container(workload, is_program)
        file, unread = b"", None
        if path := objects.settings_file_path(container):
            try:
                file = await session.files.read(workload, container, path)
            except MissingFact as missing:
                unread = missing.unavailable
        settings = objects.settings(container, file)
        client_ca, serving = [
            await read_certificate_chain(session.files.read(workload, container, settings[name]))
            if settings.get(name)
            else ()
            for name in ("client_ca", "cert")
        ]
        problems = dict.fromkeys(problem for pod in pods[workload.where] for problem in pod.problems)
        with_problems = workload._replace(problems=(*workload.problems, *problems))
        return NodewiseWorkload(with_problems, settings, unread, client_ca, serving)

    return tuple(await asyncio.gather(*map(read_workload, listed)))


async def collect_replica_metrics(session: Session) -> tuple[ReplicaMetrics, ...]:
    """The metrics of all replicas that can be reached; no check reports the others. A server that is named has to
    respond.
    """
    servers = [await _read_server_metrics(url, session.reader.timeout_s) for url in session.target.servers]
    pods = await session.require(collect_replicas)
    results = await asyncio.gather(
        *(
            attempt(read_metrics(session.reader, listed, pod))
            for listed in await session.require(collect_nodewise_workloads)
            for pod in pods[listed.workload.where][:_MAX_REPLICAS]
        )
    )
    return (*servers, *(metrics for metrics in results if not isinstance(metrics, UnavailableFact)))


async def read_metrics(
    reader: ClusterReader, listed: NodewiseWorkload, replica: ReplicaPod
) -> ReplicaMetrics:
    """A replica's /metrics, through the API server. An admin port on loopback cannot be reached."""
    namespace, settings = listed.workload.namespace, listed.settings
    where = f"Pod/{namespace}/{replica.name}"
    if is_loopback(settings.get("health_address", _DEFAULT_ADDRESS)) or not replica.address:
        raise missing_fact(where, "its metrics cannot be reached", is_minor=True)
    port = settings.get("health_port", _DEFAULT_PORT)
    if not port.isdecimal():
        reason = f"--health-port: found {shown(port)}, expected a port number"
        raise missing_fact(where, reason, is_minor=True)
    path = PODS.path(namespace, f"{replica.name}:{port}", "proxy") + "/metrics"
    right = f"get pods/proxy in namespace {namespace}"
    body = await reader.get_bytes(f"metrics of {where}", right, path, is_proxied=True)
    if body is None:
        raise missing_fact(where, "it has no metrics", is_minor=True)
    return parse_metrics(where, body, SystemClock().now())


async def _read_server_metrics(url: str, timeout_s: float) -> ReplicaMetrics:
    """The /metrics of a replica whose admin port this machine reaches."""
    try:
        body = await replicas.get_from_server(AdminServer(url), "/metrics", {}, timeout_s)
    except NodewiseError as error:
        raise missing_fact(url, str(error)) from error
    return parse_metrics(url, body, SystemClock().now())


_COUNTED_BY_LABEL: Final = {
    "nodewise_connections_ended_total": "reason",
    "nodewise_metric_nodes": "metric",
    "nodewise_metric_series_unmatched": "metric",
}


def parse_metrics(pod: str, body: bytes, now_s: float) -> ReplicaMetrics:
    """The values that checks read of a response in Prometheus' text format; invalid lines are left out."""
    calls, started_s, ca_clients = 0, now_s, 0
    counts: dict[str, dict[str, int]] = {name: {} for name in _COUNTED_BY_LABEL}
    for name, labels, value in _parse_samples(body.decode(errors="replace")):
        if name in counts:
            counts[name][labels.get(_COUNTED_BY_LABEL[name], "")] = int(value)
        elif name == "nodewise_requests_total" and _SCHEDULER_ROUTE.match(labels.get("route", "")):
            calls += int(value)
        elif name == "process_start_time_seconds":
            started_s = value
        elif name == "nodewise_ca_clients_total":
            ca_clients = int(value)
    return ReplicaMetrics(pod, calls, max(now_s - started_s, 0.0), ca_clients, *counts.values())


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
