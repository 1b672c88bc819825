"""nodewise's own workloads: their settings, and the metrics of their replicas."""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from nodewise.base.clock import SystemClock
from nodewise.base.errors import shown
from nodewise.doctor.collectors.scheduling_program_workloads import (
    ReplicaPod,
    collect_program_workloads,
    find_container,
    read_replicas,
)
from nodewise.doctor.collectors.session import ClusterReader, Session
from nodewise.doctor.facts import NodewiseWorkload, ReplicaMetrics, UnavailableFact
from nodewise.doctor.parsing import workloads
from nodewise.doctor.parsing.workloads import Container, Workload
from nodewise.kube.resource_kinds import PODS
from nodewise.server.options import is_loopback

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
    return await _read_workloads(session, listed, workloads.runs_nodewise_extender)


async def collect_controllers(session: Session) -> tuple[NodewiseWorkload, ...]:
    """All workloads that run `nodewise controller`."""
    listed = (await session.require(collect_program_workloads)).controllers
    read = await _read_workloads(session, listed, workloads.runs_nodewise_controller)
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
    path, file, unread = workloads.settings_file_path(container), b"", None
    if path:
        data = await session.files.read(workload, container, path)
        unread, file = (data, b"") if isinstance(data, UnavailableFact) else (None, data)
    settings = workloads.settings(container, file)
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
