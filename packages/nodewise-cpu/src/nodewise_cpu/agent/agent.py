"""The node agent: serves allocations at its socket, collects garbage, and publishes the node's state. Its admin port.

Publishers work after each garbage collection: they write changes to the API server, to files or to the log.
"""

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any, Final, NamedTuple, Protocol

from nodewise.base.errors import NodewiseError, Problem, Unavailable
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server.application import Application
from nodewise.server.options import AdminOptions
from nodewise.server.server import admin_routes, admin_server
from nodewise_cpu import cpu_set_formats, pool_planning
from nodewise_cpu.agent import allocation_service, socket_server
from nodewise_cpu.agent.allocation_service import AllocationService
from nodewise_cpu.agent.socket_server import ConnectionLimits, PeerProcess, SocketServer
from nodewise_cpu.allocation_store import AllocationStore
from nodewise_cpu.cluster import exclusive_core_advertisement, report_custom_resources
from nodewise_cpu.cluster.api_server import ApiClient
from nodewise_cpu.cluster.report_custom_resources import ReportKind
from nodewise_cpu.cpusets.enforcer import CpusetEnforcer
from nodewise_cpu.node import machine_features, node_report, other_cpu_managers, task_garbage_collection
from nodewise_cpu.node.task_garbage_collection import CollectionRound
from nodewise_cpu.pool_allocations import Task

_END_OF_PROCESS_S: Final = 1.0  # how long to wait for the end of a process after the end of its connection
_MIN_GAP_S: Final = 0.2  # the least time between garbage collections, however many connections end
_OVERDUE_PERIODS: Final = 3
_OVERDUE_S: Final = 10.0
_MAX_ADMIN_BYTES: Final = 2**16
_DEFECT: Final = "a defect of ours"
_ADVERTISE_EVERY_S: Final = 30.0  # a restarted kubelet sets extended resources that it does not know to 0
_CHECK_EVERY_S: Final = 60.0  # how often the machine is read, whose CPUs may go offline


class Publisher(Protocol):
    """Work after each garbage collection. An error is logged, and the next collection tries again."""

    @property
    def name(self) -> str:
        """The name in logs and metrics."""
        ...

    def publish(self, collection: CollectionRound) -> None: ...


class NodeAgent:
    """The agent of one node. `stop` ends `run`, from any thread."""

    def __init__(
        self,
        service: AllocationService,
        publishers: Sequence[Publisher],
        limits: ConnectionLimits,
        interval_s: float,
        registry: MetricsRegistry,
    ) -> None:
        self._service = service
        self._publishers = publishers
        self._limits = limits
        self._interval_s = interval_s
        self._registry = registry
        self._lock = threading.Lock()
        self._disconnected: set[Task] = set()
        """Tasks whose connection ended since the last garbage collection."""
        self._wake = threading.Event()
        self._stopped = False
        self._collected_s = float("-inf")
        """The time of the last successful garbage collection."""
        self._errors: dict[str, str] = {}
        """The last error of each operation that failed last time, so that it is logged once."""

    def waiting_for(self) -> Sequence[str]:
        """What is missing for readiness."""
        age_s = time.monotonic() - self._collected_s
        is_overdue = age_s > _OVERDUE_PERIODS * self._interval_s + _OVERDUE_S
        return [f"a sweep: {self._errors.get('sweep', 'not yet')}"] if is_overdue else []

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()

    def run(self, path: Path) -> None:
        """Serve at `path` and collect garbage until `stop`; then finish requests in progress and keep the allocations.

        BadSettings or Unavailable if it cannot listen there.
        """
        with socket_server.opened_socket(path) as listening:
            server = SocketServer(
                listening,
                self._identify_client_process,
                self._service.answer,
                self._record_disconnected_task,
                self._limits,
                self._registry,
            )
            thread = threading.Thread(target=server.run, name="connections")
            thread.start()
            logs.emit("listening", url=f"unix:{path}")
            try:
                while not self._stopped:
                    if not thread.is_alive():
                        raise Unavailable("the node agent's socket is no longer served, by a defect of ours")
                    self._collect_and_publish()
                    self._wait_for_next_collection()
            finally:
                server.stop()
                thread.join()

    def _identify_client_process(self, connected: socket) -> PeerProcess:
        return socket_server.identify_peer(connected, self._service.node.proc, self._service.node.boot)

    def _record_disconnected_task(self, peer: PeerProcess) -> None:
        with self._lock:
            self._disconnected.add(peer.task)
        self._wake.set()

    def _wait_for_next_collection(self) -> None:
        """Until the next collection is due, or the connection of a task ends."""
        time.sleep(min(_MIN_GAP_S, self._interval_s))
        if self._wake.wait(max(0.0, self._interval_s - _MIN_GAP_S)):
            self._wake.clear()
        with self._lock:
            disconnected, self._disconnected = self._disconnected, set()
        for task in disconnected:
            patience_s = _END_OF_PROCESS_S / len(disconnected)
            task_garbage_collection.wait_for_wrapper_end(self._service.node.proc, task, patience_s)

    def _collect_and_publish(self) -> None:
        collections: list[CollectionRound] = []

        def collect_garbage() -> None:
            begin_s = time.monotonic()
            collections.append(self._service.collector.collect())
            self._collected_s = time.monotonic()
            self._registry.observe("cpu_sweep_seconds", self._collected_s - begin_s)

        # metrics and readiness have called this operation a sweep since the first release
        self._run_and_log_error_changes("sweep", collect_garbage)
        for collection in collections:
            for publisher in self._publishers:
                if not self._stopped:
                    self._run_and_log_error_changes(publisher.name, partial(publisher.publish, collection))

    def _run_and_log_error_changes(self, name: str, operation: Callable[[], None]) -> None:
        try:
            operation()
        except NodewiseError as error:
            self._registry.count("cpu_failures_total", what=name)
            if self._errors.get(name) != str(error):
                self._errors[name] = str(error)
                logs.emit("cpu_chore_failed", what=name, error=str(error))
        except Exception:  # noqa: BLE001 - a defect in one publisher must not stop the others
            self._registry.count("cpu_failures_total", what=name)
            self._errors[name] = _DEFECT
            logs.emit("task_failed", task=name, exc_info=True)
        else:
            if self._errors.pop(name, None) is not None:
                logs.emit("cpu_chore_back", what=name)


@contextlib.contextmanager
def serve_admin_port(
    waiting_for: Callable[[], Sequence[str]], options: AdminOptions, registry: MetricsRegistry
) -> Iterator[str]:
    """Serve health, readiness and metrics within the context; yields the URL. BadSettings if the port is taken.

    The agent has no event loop, so the server runs in one of its own, in a thread.
    """
    opened: Future[str] = Future()
    ended = threading.Event()

    async def serve() -> None:
        app = Application(admin_routes(waiting_for, registry), registry, max_body_bytes=_MAX_ADMIN_BYTES)
        server = admin_server(app, options, registry)
        try:
            await server.start()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for it
            opened.set_exception(error)
            return
        opened.set_result(server.url)
        await asyncio.to_thread(ended.wait)
        await server.stop(1.0)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="admin", daemon=True)
    thread.start()
    try:
        yield opened.result()
    finally:
        ended.set()
        thread.join()


class ClusterNode(NamedTuple):
    """A node in its cluster; its reports are in the namespace."""

    api: ApiClient
    node: str
    namespace: str


class PeriodicPublisher:
    """Publishes when its `key` of the collection has changed, and periodically.

    Jitter keeps the agents of different nodes apart. After an error the next collection publishes again.
    """

    name = ""
    every_s = _CHECK_EVERY_S

    def __init__(self) -> None:
        self._next_s = float("-inf")
        self._published: object = None

    def publish(self, collection: CollectionRound) -> None:
        key = self.key(collection)
        if key == self._published and time.monotonic() < self._next_s:
            return
        self.publish_now(collection)
        self._published = key
        self._next_s = time.monotonic() + random.uniform(0.8, 1.2) * self.every_s  # noqa: S311 - no secret

    def key(self, collection: CollectionRound) -> object:  # noqa: ARG002 - for subclasses
        """The value whose change is published at once."""
        return None

    def publish_now(self, collection: CollectionRound) -> None:
        raise NotImplementedError


class NodeAdvertiser(PeriodicPublisher):
    """Advertises the node's exclusive cores as extended resources. `root` holds the machine's `sys`."""

    name = "advertise"
    every_s = _ADVERTISE_EVERY_S

    def __init__(self, cluster: ClusterNode, root: Path, *, taint: bool) -> None:
        super().__init__()
        self._cluster = cluster
        self._root = root
        self._taint = taint

    def publish(self, collection: CollectionRound) -> None:
        if not collection.stored.intent:
            super().publish(collection)

    def key(self, collection: CollectionRound) -> Mapping[str, int]:
        allocations = collection.stored.allocations
        offline = allocations.cpus - allocation_service.read_online_cpus(self._root)
        return exclusive_core_advertisement.count_resources_to_advertise(allocations, offline)

    def publish_now(self, collection: CollectionRound) -> None:
        exclusive_core_advertisement.advertise(
            self._cluster.api, self._cluster.node, self.key(collection), taint=self._taint
        )


class _ReportWriter:
    def __init__(self, cluster: ClusterNode, kind: ReportKind) -> None:
        self._cluster = cluster
        self._kind = kind
        self._written: Mapping[str, Any] | None = None

    def write(self, report: Mapping[str, Any]) -> None:
        if report != self._written:
            api, node, namespace = self._cluster
            report_custom_resources.publish(api, self._kind, node, namespace, report)
            self._written = report


class ReconcileReportPublisher:
    """Publishes the last tasks that were reclaimed, and the tasks that use other CPUs than allocated now."""

    name = "reconcile report"

    def __init__(self, cluster: ClusterNode) -> None:
        self._writer = _ReportWriter(cluster, report_custom_resources.RECONCILE_REPORT)
        self._last: CollectionRound | None = None

    def publish(self, collection: CollectionRound) -> None:
        if collection.reclaimed or self._last is None:
            self._last = collection
        self._writer.write(self._last._replace(mismatched=collection.mismatched).as_report())


class NodeReportPublisher(PeriodicPublisher):
    """Publishes the node report. `root` holds the machine's `sys`, `host` the files of the host."""

    name = "node report"

    def __init__(self, cluster: ClusterNode, store: AllocationStore, root: Path, host: Path) -> None:
        super().__init__()
        self._cluster = cluster
        self._writer = _ReportWriter(cluster, report_custom_resources.NODE_REPORT)
        self._store = store
        self._root = root
        self._host = host

    def key(self, collection: CollectionRound) -> object:
        return collection.stored.allocations

    def publish_now(self, collection: CollectionRound) -> None:
        api, node, _ = self._cluster
        machine = machine_features.read(self._root, machine_features.fetch_labels(api, node))
        allocations = collection.stored.allocations
        managers = other_cpu_managers.read_all(self._host, allocations, machine.topology, api, node)
        self._writer.write(node_report.build_node_report(self._store, machine, managers=managers))


class FeaturePublisher(PeriodicPublisher):
    """Writes the feature file for Node Feature Discovery: whether the core power classes differ."""

    name = "features"

    def __init__(self, folder: Path, root: Path) -> None:
        super().__init__()
        self._folder = folder
        self._root = root

    def publish_now(self, collection: CollectionRound) -> None:  # noqa: ARG002 - the machine's files decide
        preferences = pool_planning.energy_preferences(machine_features.read_sysfs_files(self._root))
        if machine_features.write_feature_file(self._folder, preferences.values()):
            logs.emit("cpu_feature_written", file=str(self._folder / machine_features.FEATURE_FILE))


class CpusetPublisher:
    """Sets the cpusets of containers again where they differ, after each garbage collection."""

    name = "enforce"

    def __init__(self, enforcer: CpusetEnforcer, store: AllocationStore) -> None:
        self._enforcer = enforcer
        self._store = store

    def publish(self, collection: CollectionRound) -> None:
        """Unavailable names all containers whose cpuset could not be set."""
        result = self._enforcer.check(self._store.read, collection.known)
        for container, cpuset in result.changed.items():
            cpus, mems = map(cpu_set_formats.format_cpu_ranges, cpuset)
            logs.emit("cpu_enforced", container=container, cpus=cpus, mems=mems)
        if result.problems:
            raise Unavailable("cannot set the cpusets of all containers", result.problems)


class ConflictPublisher(PeriodicPublisher):
    """Logs conflicts of other programs with the pools, and again when they change."""

    event = ""

    def __init__(self) -> None:
        super().__init__()
        self._logged: Sequence[Problem] = ()

    def log_changed(self, problems: Sequence[Problem]) -> bool:
        """Returns whether there are problems, and other ones than last time."""
        has_changed = bool(problems) and problems != self._logged
        for problem in problems if has_changed else ():
            logs.emit(self.event, what=problem.field, seen=problem.found, wanted=problem.expected)
        self._logged = problems
        return has_changed


class KubeletConflictPublisher(ConflictPublisher):
    """Logs conflicts of the kubelet's own CPU manager, whose checkpoints are in the folder."""

    name = "kubelet"
    event = "cpu_kubelet_conflict"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def publish_now(self, collection: CollectionRound) -> None:
        allocations = collection.stored.allocations
        kubelet = other_cpu_managers.read_kubelet_state(self._folder)
        if self.log_changed(other_cpu_managers.kubelet_conflicts(kubelet, allocations) if kubelet else ()):
            for pool, alternative in other_cpu_managers.describe_kubelet_alternatives(allocations).items():
                logs.emit("cpu_kubelet_instead", pool=pool, instead=alternative)


class ManagerConflictPublisher(ConflictPublisher):
    """Logs conflicts of other CPU managers and of cgroup partitions."""

    name = "CPU managers"
    event = "cpu_manager_conflict"

    def __init__(self, root: Path, host: Path, cluster: ClusterNode | None) -> None:
        super().__init__()
        self._root = root
        self._host = host
        self._cluster = cluster

    def publish_now(self, collection: CollectionRound) -> None:
        allocations = collection.stored.allocations
        topology = machine_features.read(self._root).topology
        api, node = self._cluster[:2] if self._cluster else (None, "")
        managers = other_cpu_managers.read_all(self._host, allocations, topology, api, node)
        partition_conflicts = node_report.find_partition_conflicts(allocations, topology)
        self.log_changed([*partition_conflicts, *other_cpu_managers.conflicts(managers, allocations)])
