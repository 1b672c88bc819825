"""Recording of cluster states, requests and responses in a file, which `simulate replay` reads.

The event loop puts references into a queue; a thread encodes and writes them ten times a second. Items that do not fit
into the queue are counted, in the file too. Request bodies have the pods of all tenants, so only the owner of the file
can read it.
"""

import asyncio
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, NamedTuple

import msgspec

import nodewise
from nodewise.agent import AgentKind, ClusterState
from nodewise.base import cooperative_scheduling
from nodewise.base.clock import Clock
from nodewise.base.errors import BadSettings, Problem
from nodewise.engine import recording_file
from nodewise.engine.agent_chain import ChainOptions
from nodewise.engine.recording_file import AgentHeader, GapEntry, Header, MemoryEntry, Record, RequestEntry
from nodewise.kube.store import ChangeLog
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

_QUEUE_BYTES: Final = 64 * 2**20
"""Capacity of the queue. An item is accepted while the queue has less, whatever the size of the item."""
_POLL_S: Final = 0.1
_FLUSH_S: Final = 0.5
"""The longest time between flushes, so that a killed process loses less than a second."""
_PAUSE_S: Final = 0.0005
"""The thread sleeps this long after each slice of work, so that requests get the interpreter."""
_ITEM_BYTES: Final = 1024
_SAMPLE_BYTES: Final = 256
"""The approximate memory of a queued item, and of each sample of its new series."""


class RequestRecorder:
    """Records what the extender receives and returns; this one records nothing. It must not block."""

    def record_cluster_state(self, cluster_state: ClusterState, generation: int) -> None:
        """Record a cluster state before agent states are built from it for the snapshot of this generation.

        Its changes are those since the cluster state of the previous call.
        """

    def record_memory(self, agent: str, memory: bytes) -> None:
        """Record a memory that an agent restored."""

    def record_request(
        self, exchange: RequestEntry, body: bytes, response: Sequence[bytes | memoryview]
    ) -> None:
        """Record a request and its response in parts, or the text of its error."""


class _QueuedClusterState(NamedTuple):
    """A cluster state to be written. Its changes are those since the one written before."""

    cluster_state: ClusterState
    generation: int


_Item = _QueuedClusterState | Record


class _Queue:
    """A queue from one thread to another. It needs no lock, because each thread writes only its own counter."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[_Item, int]] = deque()
        self._put_bytes = 0
        self._popped_bytes = 0

    @property
    def is_full(self) -> bool:
        return self._put_bytes - self._popped_bytes >= _QUEUE_BYTES

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, item: _Item, size_bytes: int = 0) -> None:
        self._put_bytes += size_bytes
        self._waiting.append((item, size_bytes))

    def pop(self) -> _Item | None:
        if not self._waiting:
            return None
        item, size_bytes = self._waiting.popleft()
        self._popped_bytes += size_bytes
        return item


class FileRecorder(RequestRecorder):
    """Writes a recording file. The event loop calls the methods of `RequestRecorder`, the writer thread all others."""

    def __init__(
        self, file: BinaryIO, header: Header, max_bytes: int, clock: Clock, metrics_registry: MetricsRegistry
    ) -> None:
        self._queue = _Queue()
        self._last_state = recording_file.EMPTY
        self._unwritten = ChangeLog()
        """Changes of cluster states that did not fit into the queue."""
        self._lost = GapEntry()
        self._ended = False
        self._clock = clock
        self._metrics_registry = metrics_registry
        self._max_bytes = max_bytes
        self._write_lock = threading.Lock()
        self._written = recording_file.EMPTY
        self._writer = recording_file.RecordingWriter(file)
        self._writer.write(Record(header))
        self._flush()

    def record_cluster_state(self, cluster_state: ClusterState, generation: int) -> None:
        size_bytes = _ITEM_BYTES + _SAMPLE_BYTES * _count_new_samples(self._last_state, cluster_state)
        self._last_state = cluster_state
        if cluster_state.changes is None:
            self._unwritten = ChangeLog()
        else:
            for name, changes in cluster_state.changes.items():
                self._unwritten.add(name, changes)
        if self._has_room():
            cluster_state = msgspec.structs.replace(cluster_state, changes=self._unwritten.take())
            self._queue.put(_QueuedClusterState(cluster_state, generation), size_bytes)
        elif not self._ended:
            self._lost = GapEntry(requests=self._lost.requests, snapshots=self._lost.snapshots + 1)
            self._metrics_registry.count("recording_lost_total", what="world")

    def record_request(
        self, exchange: RequestEntry, body: bytes, response: Sequence[bytes | memoryview]
    ) -> None:
        if self._has_room():
            record = recording_file.record(exchange, body, b"".join(response))
            self._queue.put(record, _ITEM_BYTES + sum(record.entry.sizes))
        elif not self._ended:
            self._lost = GapEntry(requests=self._lost.requests + 1, snapshots=self._lost.snapshots)
            self._metrics_registry.count("recording_lost_total", what="request")

    def record_memory(self, agent: str, memory: bytes) -> None:
        """Record a memory even if the queue is full, because all later responses of the agent depend on it."""
        if not self._ended:
            self._queue.put(
                recording_file.record(MemoryEntry(agent=agent), memory), _ITEM_BYTES + len(memory)
            )

    def _has_room(self) -> bool:
        """Whether the queue has room. A gap is queued first, if there was one."""
        if self._ended or self._queue.is_full:
            return False
        self._queue_gap()
        return True

    def _queue_gap(self) -> None:
        if self._lost.requests or self._lost.snapshots:
            self._queue.put(Record(self._lost))
            self._lost = GapEntry()

    async def run(self) -> None:
        """Write queued items, in a thread, until cancelled."""
        while True:
            await self._clock.sleep(_POLL_S)
            if self._queue:
                await asyncio.to_thread(self.write)

    async def close(self) -> None:
        """Write the rest and the end. Nothing may be recorded afterwards."""
        await asyncio.to_thread(self.finish)

    def write(self) -> None:
        """Write all queued items."""
        with self._write_lock:
            self._write_queued_items()

    def finish(self) -> None:
        """Write the rest and the end, in the thread of the caller."""
        with self._write_lock:
            self._queue_gap()
            self._write_queued_items()
            self._write_end_entry("stopped")

    def _write_queued_items(self) -> None:
        flush_at = self._clock.monotonic() + _FLUSH_S
        try:
            while not self._ended and (item := self._queue.pop()):
                self._write(item)
                if self._writer.size_bytes >= self._max_bytes:
                    self._write_end_entry("full")
                elif self._clock.monotonic() > flush_at:
                    self._flush()
                    flush_at = self._clock.monotonic() + _FLUSH_S
            if not self._ended:
                self._flush()
        except Exception as error:  # noqa: BLE001 - a failed recording must not stop the extender
            self._write_end_entry("stopped", str(error) or type(error).__name__)

    def _write(self, item: _Item) -> None:
        if isinstance(item, Record):
            self._writer.write(item)
            return
        began_s = time.perf_counter()
        for entry in recording_file.delta_entries(self._written, item.cluster_state, item.generation):
            if entry is not None:
                self._writer.write(entry)
            if time.perf_counter() - began_s > cooperative_scheduling.SLICE_S:
                time.sleep(_PAUSE_S)
                began_s = time.perf_counter()
        self._written = item.cluster_state

    def _flush(self) -> None:
        self._writer.flush()
        self._metrics_registry.set("recording_bytes", self._writer.size_bytes)

    def _write_end_entry(self, why: Literal["stopped", "full"], error: str = "") -> None:
        """Write the last entry. A recording that ends before the process is logged."""
        if self._ended:
            return
        self._ended = True
        self._queue = _Queue()
        with contextlib.suppress(OSError):
            self._writer.write(Record(recording_file.EndEntry(why=why)))
            self._writer.close()
        self._metrics_registry.set("recording_bytes", self._writer.size_bytes)
        if error or why == "full":
            logs.emit("recording_stopped", why=error or f"it has {self._writer.size_bytes} bytes")


def _count_new_samples(before: ClusterState, cluster_state: ClusterState) -> int:
    if cluster_state.metrics is before.metrics:
        return 0
    known = before.metrics.series
    return sum(
        len(series.samples)
        for name, series in cluster_state.metrics.series.items()
        if known.get(name) is not series
    )


class ReplaySettings(NamedTuple):
    """What responses depend on in addition to the agents' options."""

    sync_period_s: float
    chain: ChainOptions


def build_header(
    kinds: Sequence[AgentKind], options: Mapping[str, Any], general: ReplaySettings, at: float
) -> Header:
    """The header of a recording: what a replay needs in addition to the entries."""
    agents = tuple(AgentHeader(kind.name, msgspec.to_builtins(options[kind.name])) for kind in kinds)
    return Header(
        format=recording_file.FORMAT,
        nodewise=nodewise.__version__,
        agents=agents,
        sync_period_s=general.sync_period_s,
        at=at,
        weights=general.chain.weights,
    )


def create_file(path: Path) -> BinaryIO:
    """Create the file of a recording, mode 0600. An existing file is renamed to `<name>.old`.

    `BadSettings` if the file cannot be created.
    """
    try:
        if path.is_file():
            path.replace(f"{path}.old")
        # O_EXCL refuses a name that another process creates in between, such as a link
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except OSError as error:
        problem = f"{path}: {error.strerror or error}"
        raise BadSettings("settings", [Problem("--record", problem, "a file that can be written")]) from error
