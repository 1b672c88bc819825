"""What the node agent does after its sweeps: what is written to the API server, and only when it is new."""

import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from nodewise.cpu import cpulist, speed_select, sysfs
from nodewise.cpu.book import Book
from nodewise.cpu.cluster import advertise, reports
from nodewise.cpu.cluster.reports import Kind
from nodewise.cpu.confine.confinement import Confinement
from nodewise.cpu.confine.enforcing import Checked, Read
from nodewise.cpu.node import feature, kubelet, machine, node_report
from nodewise.cpu.node.sweeping import Round
from nodewise.cpu.requests import Requests
from nodewise.cpu.state import State
from nodewise.cpu.sweep import Known
from nodewise.errors import Problem, Unavailable
from nodewise.observe import logs

ADVERTISE_EVERY_S: Final = 30.0
"""A kubelet that starts anew sets resources which it does not know of to 0."""
_LOOK_EVERY_S: Final = 60.0
"""At the machine, whose CPUs may go offline."""


class Cluster(NamedTuple):
    """A node in its cluster; its reports go to the namespace."""

    requests: Requests
    node: str
    namespace: str


class Containers(Protocol):
    """`enforcing.Enforcer`."""

    def check(self, read: Read, known: Known | None = None) -> Checked: ...


class Due:
    """Whether something that is to be done every `every_s` is due, a little sooner or later than others do it."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._next_s = float("-inf")

    def is_due(self) -> bool:
        return time.monotonic() >= self._next_s

    def done(self) -> None:
        self._next_s = time.monotonic() + random.uniform(0.8, 1.2) * self._every_s  # noqa: S311 - no secret


class Advertising:
    """Has the node say how many exclusive cores it has: at once when that changes, and again now and then."""

    def __init__(self, cluster: Cluster, *, taint: bool, every_s: float = ADVERTISE_EVERY_S) -> None:
        self._cluster = cluster
        self._taint = taint
        self._due = Due(every_s)
        self._said: Mapping[str, int] | None = None

    def do(self, done: Round) -> None:
        if done.stored.intent:
            return
        counts = advertise.counts(done.stored.state)
        if counts == self._said and not self._due.is_due():
            return
        advertise.advertise(self._cluster.requests, self._cluster.node, counts, taint=self._taint)
        self._said = counts
        self._due.done()


class Reclaims:
    """Publishes what was reclaimed the last time that there was anything, and which tasks run elsewhere by now."""

    def __init__(self, cluster: Cluster) -> None:
        self._report = _Report(cluster, reports.RECONCILE_REPORT)
        self._last: Round | None = None

    def do(self, done: Round) -> None:
        if done.reclaimed or self._last is None:
            self._last = done
        self._report.publish(self._last._replace(elsewhere=done.elsewhere).as_report())


class NodeReports:
    """Publishes what the node is and has."""

    def __init__(self, cluster: Cluster, book: Book, root: Path) -> None:
        self._cluster = cluster
        self._report = _Report(cluster, reports.NODE_REPORT)
        self._book = book
        self._root = root
        self._due = Due(_LOOK_EVERY_S)
        self._state: State | None = None

    def do(self, done: Round) -> None:
        if done.stored.state == self._state and not self._due.is_due():
            return
        found = machine.read(self._root, machine.fetch_labels(self._cluster.requests, self._cluster.node))
        self._report.publish(node_report.make(self._book, found))
        self._state = done.stored.state
        self._due.done()


class _Report:
    """A report that is written when it is another one than before."""

    def __init__(self, cluster: Cluster, kind: Kind) -> None:
        self._cluster = cluster
        self._kind = kind
        self._published: Mapping[str, Any] | None = None

    def publish(self, report: Mapping[str, Any]) -> None:
        if report == self._published:
            return
        cluster = self._cluster
        reports.publish(cluster.requests, self._kind, cluster.node, cluster.namespace, report)
        self._published = report


class Features:
    """Tells Node Feature Discovery whether the classes of core power differ."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder = folder
        self._root = root
        self._due = Due(_LOOK_EVERY_S)

    def do(self, _: Round) -> None:
        if not self._due.is_due():
            return
        preferences = speed_select.preferences(sysfs.read(self._root))
        if feature.write(self._folder, preferences.values()):
            logs.emit("cpu_feature_written", file=str(self._folder / feature.FILE))
        self._due.done()


class Enforcing:
    """Asserts the cpusets of containers again, after each sweep."""

    def __init__(self, containers: Containers, book: Book) -> None:
        self._containers = containers
        self._book = book

    def do(self, done: Round) -> None:
        """Unavailable names all containers that could not be confined."""
        checked = self._containers.check(self._book.read, done.known)
        for container, to in checked.changed.items():
            logs.emit("cpu_enforced", container=container, **_told(to))
        if checked.problems:
            raise Unavailable("cannot hold all containers to their CPUs", checked.problems)


class Kubelets:
    """Says where the kubelet's own CPU manager is at odds with the pools: once, and again when that changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._due = Due(_LOOK_EVERY_S)
        self._said: Sequence[Problem] = ()

    def do(self, done: Round) -> None:
        if not self._due.is_due():
            return
        found = kubelet.read(self._folder)
        problems = kubelet.conflicts(found, done.stored.state) if found else ()
        if problems and problems != self._said:
            for one in problems:
                logs.emit("cpu_kubelet_conflict", what=one.field, seen=one.found, wanted=one.expected)
            for pool, instead in kubelet.instead(done.stored.state).items():
                logs.emit("cpu_kubelet_instead", pool=pool, instead=instead)
        self._said = problems
        self._due.done()


def _told(to: Confinement) -> Mapping[str, str]:
    return {"cpus": cpulist.format_ranges(to.cpus), "mems": cpulist.format_ranges(to.mems)}
