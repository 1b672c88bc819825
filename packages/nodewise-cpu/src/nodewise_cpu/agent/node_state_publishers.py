"""The node agent's publishers: changes that are written to the API server or the log after garbage collections."""

import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from nodewise.base.errors import Problem, Unavailable
from nodewise.observe import logs
from nodewise_cpu import cpu_set_formats, pool_planning
from nodewise_cpu.allocation_store import AllocationStore
from nodewise_cpu.cluster import exclusive_core_advertisement, report_custom_resources
from nodewise_cpu.cluster.api_server import ApiClient
from nodewise_cpu.cluster.report_custom_resources import ReportKind
from nodewise_cpu.cpusets.enforcer import EnforcementResult, StoreReader
from nodewise_cpu.ended_tasks import KnownProcesses
from nodewise_cpu.node import machine_features, node_report, other_cpu_managers
from nodewise_cpu.node.task_garbage_collection import CollectionRound
from nodewise_cpu.pool_allocations import Allocations

ADVERTISE_EVERY_S: Final = 30.0
"""A restarted kubelet sets extended resources that it does not know to 0."""
_CHECK_EVERY_S: Final = 60.0
"""How often the machine is read, whose CPUs may go offline."""


class ClusterNode(NamedTuple):
    """A node in its cluster; its reports are in the namespace."""

    api: ApiClient
    node: str
    namespace: str


class CpusetChecker(Protocol):
    """The part of `enforcer.CpusetEnforcer` that is used here."""

    def check(self, read: StoreReader, known: KnownProcesses | None = None) -> EnforcementResult: ...


class PublishSchedule:
    """Tells when periodic work is due. Jitter keeps the agents of different nodes apart."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._next_s = float("-inf")

    def is_due(self) -> bool:
        return time.monotonic() >= self._next_s

    def reset(self) -> None:
        """Begin the next period."""
        self._next_s = time.monotonic() + random.uniform(0.8, 1.2) * self._every_s  # noqa: S311 - no secret


class NodeAdvertiser:
    """Advertises the node's exclusive cores as extended resources: after each change, and periodically."""

    name = "advertise"

    def __init__(self, cluster: ClusterNode, *, taint: bool) -> None:
        self._cluster = cluster
        self._taint = taint
        self._schedule = PublishSchedule(ADVERTISE_EVERY_S)
        self._advertised: Mapping[str, int] | None = None

    def publish(self, collection: CollectionRound) -> None:
        if collection.stored.intent:
            return
        counts = exclusive_core_advertisement.count_resources_to_advertise(collection.stored.allocations)
        if counts == self._advertised and not self._schedule.is_due():
            return
        exclusive_core_advertisement.advertise(
            self._cluster.api, self._cluster.node, counts, taint=self._taint
        )
        self._advertised = counts
        self._schedule.reset()


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


class NodeReportPublisher:
    """Publishes the node report: after each change of the allocations, and periodically."""

    name = "node report"

    def __init__(self, cluster: ClusterNode, store: AllocationStore, root: Path, host: Path) -> None:
        self._cluster = cluster
        self._writer = _ReportWriter(cluster, report_custom_resources.NODE_REPORT)
        self._store = store
        self._root = root
        self._host = host
        self._schedule = PublishSchedule(_CHECK_EVERY_S)
        self._allocations: Allocations | None = None

    def publish(self, collection: CollectionRound) -> None:
        if collection.stored.allocations == self._allocations and not self._schedule.is_due():
            return
        labels = machine_features.fetch_labels(self._cluster.api, self._cluster.node)
        machine, allocations = machine_features.read(self._root, labels), collection.stored.allocations
        managers = other_cpu_managers.read_all(
            self._host, allocations, machine.topology, self._cluster.api, self._cluster.node
        )
        self._writer.write(node_report.build_node_report(self._store, machine, managers=managers))
        self._allocations = allocations
        self._schedule.reset()


class _ReportWriter:
    """Writes a report if it differs from the last one that was written."""

    def __init__(self, cluster: ClusterNode, kind: ReportKind) -> None:
        self._cluster = cluster
        self._kind = kind
        self._written: Mapping[str, Any] | None = None

    def write(self, report: Mapping[str, Any]) -> None:
        if report == self._written:
            return
        cluster = self._cluster
        report_custom_resources.publish(cluster.api, self._kind, cluster.node, cluster.namespace, report)
        self._written = report


class FeaturePublisher:
    """Writes the feature file for Node Feature Discovery: whether the core power classes differ."""

    name = "features"

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder = folder
        self._root = root
        self._schedule = PublishSchedule(_CHECK_EVERY_S)

    def publish(self, _: CollectionRound) -> None:
        if not self._schedule.is_due():
            return
        preferences = pool_planning.energy_preferences(machine_features.read_sysfs_files(self._root))
        if machine_features.write_feature_file(self._folder, preferences.values()):
            logs.emit("cpu_feature_written", file=str(self._folder / machine_features.FEATURE_FILE))
        self._schedule.reset()


class CpusetPublisher:
    """Sets the cpusets of containers again where they differ, after each garbage collection."""

    name = "enforce"

    def __init__(self, containers: CpusetChecker, store: AllocationStore) -> None:
        self._containers = containers
        self._store = store

    def publish(self, collection: CollectionRound) -> None:
        """Unavailable names all containers whose cpuset could not be set."""
        result = self._containers.check(self._store.read, collection.known)
        for container, cpuset in result.changed.items():
            logs.emit(
                "cpu_enforced",
                container=container,
                cpus=cpu_set_formats.format_cpu_ranges(cpuset.cpus),
                mems=cpu_set_formats.format_cpu_ranges(cpuset.mems),
            )
        if result.problems:
            raise Unavailable("cannot set the cpusets of all containers", result.problems)


class KubeletConflictPublisher:
    """Logs conflicts of the kubelet's own CPU manager with the pools, and again when they change."""

    name = "kubelet"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._schedule = PublishSchedule(_CHECK_EVERY_S)
        self._logged: Sequence[Problem] = ()

    def publish(self, collection: CollectionRound) -> None:
        if not self._schedule.is_due():
            return
        allocations = collection.stored.allocations
        kubelet = other_cpu_managers.read_kubelet_state(self._folder)
        problems = other_cpu_managers.kubelet_conflicts(kubelet, allocations) if kubelet else ()
        if problems and problems != self._logged:
            for problem in problems:
                logs.emit(
                    "cpu_kubelet_conflict", what=problem.field, seen=problem.found, wanted=problem.expected
                )
            for pool, alternative in other_cpu_managers.describe_kubelet_alternatives(allocations).items():
                logs.emit("cpu_kubelet_instead", pool=pool, instead=alternative)
        self._logged = problems
        self._schedule.reset()


class ManagerConflictPublisher:
    """Logs conflicts of other CPU managers and of cgroup partitions with the pools, and again when they change."""

    name = "CPU managers"

    def __init__(self, root: Path, host: Path, cluster: ClusterNode | None) -> None:
        self._root = root
        self._host = host
        self._cluster = cluster
        self._schedule = PublishSchedule(_CHECK_EVERY_S)
        self._logged: Sequence[Problem] = ()

    def publish(self, collection: CollectionRound) -> None:
        if not self._schedule.is_due():
            return
        allocations = collection.stored.allocations
        topology = machine_features.read(self._root).topology
        cluster = self._cluster
        managers = other_cpu_managers.read_all(
            self._host,
            allocations,
            topology,
            cluster.api if cluster else None,
            cluster.node if cluster else "",
        )
        problems = [
            *node_report.find_partition_conflicts(allocations, topology),
            *other_cpu_managers.conflicts(managers, allocations),
        ]
        if problems != self._logged:
            for problem in problems:
                logs.emit(
                    "cpu_manager_conflict", what=problem.field, seen=problem.found, wanted=problem.expected
                )
        self._logged = problems
        self._schedule.reset()
