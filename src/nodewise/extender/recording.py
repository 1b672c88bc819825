"""Recording: worlds, requests and answers go into a file, from which `simulate replay` answers once more.

Who serves puts references into a queue and goes on; a thread, woken ten times a second, makes entries of them. What
does not fit into the queue is counted, in the file as well. Bodies are every tenant's pods: the file is its owner's.
"""

import asyncio
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, NamedTuple, Protocol

import msgspec

import nodewise
from nodewise import cooperative_scheduling
from nodewise.agent import AgentKind, ClusterState
from nodewise.clock import Clock
from nodewise.errors import BadSettings, Problem
from nodewise.extender import recording_deltas, recording_file
from nodewise.extender.recording_file import AgentHeader, GapEntry, Header, MemoryEntry, Record, RequestEntry
from nodewise.extender.score_weights import ChainOptions
from nodewise.kube.store import ChangeLog
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

_QUEUE_BYTES: Final = 64 * 2**20
"""What waits to be written; a thing more is taken while it is less, however large."""
_LOOK_S: Final = 0.1
_FLUSH_S: Final = 0.5
"""At least so often, so that who is killed loses less than a second."""
_PAUSE_S: Final = 0.0005
"""The thread lets go of the interpreter for so long after each slice of work, so that requests do not wait for it."""
_ITEM_BYTES: Final = 1024
_SAMPLE_BYTES: Final = 256
"""What a queued item, and a sample of a series that is new in it, keep in memory, near enough."""


class RequestRecorder(Protocol):
    """Whom to tell what happens. Called on the hot path: it takes note and returns."""

    def cluster_state(self, cluster_state: ClusterState, generation: int) -> None:
        """A cluster state before agent states are built from it for the snapshot of this generation.

        Its changes are those since the cluster state of the call before.
        """
        ...

    def recalled(self, agent: str, kept: bytes) -> None:
        """What an agent was told that was kept."""
        ...

    def exchange(self, exchange: RequestEntry, body: bytes, answer: Sequence[bytes]) -> None:
        """A request and its answer in parts, or the words of the error that it was answered with."""
        ...


class NullRecorder:
    """Records nothing."""

    def cluster_state(self, cluster_state: ClusterState, generation: int) -> None: ...

    def recalled(self, agent: str, kept: bytes) -> None: ...

    def exchange(self, exchange: RequestEntry, body: bytes, answer: Sequence[bytes]) -> None: ...


class _Turn(NamedTuple):
    """A cluster state that waits to be written; its changes are those since the one that was written before."""

    cluster_state: ClusterState
    generation: int


_Item = _Turn | Record


class _Backlog:
    """A queue from one thread to one other; no lock, as each writes only its own count."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[_Item, int]] = deque()
        self._put_bytes = 0
        self._taken_bytes = 0

    @property
    def is_full(self) -> bool:
        return self._put_bytes - self._taken_bytes >= _QUEUE_BYTES

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, item: _Item, size_bytes: int = 0) -> None:
        self._put_bytes += size_bytes
        self._waiting.append((item, size_bytes))

    def taken(self) -> _Item | None:
        """The oldest, which then is the taker's; None if there is none."""
        if not self._waiting:
            return None
        item, size_bytes = self._waiting.popleft()
        self._taken_bytes += size_bytes
        return item


class FileRecorder:
    """The recorder that writes. What `RequestRecorder` has is the server's, everything else is the writing thread's."""

    def __init__(
        self, file: BinaryIO, header: Header, max_bytes: int, clock: Clock, metrics_registry: MetricsRegistry
    ) -> None:
        self._backlog = _Backlog()
        self._told = recording_deltas.EMPTY
        self._unwritten = ChangeLog()
        """Changes of cluster states that were lost."""
        self._lost = GapEntry()
        self._ended = False
        self._clock = clock
        self._metrics_registry = metrics_registry
        self._max_bytes = max_bytes
        self._one_writer = threading.Lock()
        self._written = recording_deltas.EMPTY
        self._tape = recording_file.RecordingWriter(file)
        self._tape.write(Record(header))
        self._flush()

    def cluster_state(self, cluster_state: ClusterState, generation: int) -> None:
        size_bytes = _ITEM_BYTES + _SAMPLE_BYTES * _new_samples(self._told, cluster_state)
        self._told = cluster_state
        if cluster_state.changes is None:
            self._unwritten = ChangeLog()
        else:
            for name, changes in cluster_state.changes.items():
                self._unwritten.add(name, changes)
        if self._admits():
            cluster_state = msgspec.structs.replace(cluster_state, changes=self._unwritten.take())
            self._backlog.put(_Turn(cluster_state, generation), size_bytes)
        elif not self._ended:
            self._lost = GapEntry(requests=self._lost.requests, worlds=self._lost.worlds + 1)
            self._metrics_registry.count("recording_lost_total", what="world")

    def exchange(self, exchange: RequestEntry, body: bytes, answer: Sequence[bytes]) -> None:
        if self._admits():
            record = recording_file.record(exchange, body, b"".join(answer))
            self._backlog.put(record, _ITEM_BYTES + sum(record.entry.sizes))
        elif not self._ended:
            self._lost = GapEntry(requests=self._lost.requests + 1, worlds=self._lost.worlds)
            self._metrics_registry.count("recording_lost_total", what="request")

    def recalled(self, agent: str, kept: bytes) -> None:
        """Without a bound: without it whatever the agent answers from then on is another answer."""
        if not self._ended:
            self._backlog.put(recording_file.record(MemoryEntry(agent=agent), kept), _ITEM_BYTES + len(kept))

    def _admits(self) -> bool:
        """Whether there is room; what was lost while there was none is told first."""
        if self._ended or self._backlog.is_full:
            return False
        self._tell_lost()
        return True

    def _tell_lost(self) -> None:
        if self._lost.requests or self._lost.worlds:
            self._backlog.put(Record(self._lost))
            self._lost = GapEntry()

    async def run(self) -> None:
        """Write what is told, in a thread, until cancelled."""
        while True:
            await self._clock.sleep(_LOOK_S)
            if self._backlog:
                await asyncio.to_thread(self.write)

    async def close(self) -> None:
        """Write what is left, and the end. Nothing more may be told."""
        await asyncio.to_thread(self.finish)

    def write(self) -> None:
        """Write what waits."""
        with self._one_writer:
            self._drain()

    def finish(self) -> None:
        with self._one_writer:
            self._tell_lost()
            self._drain()
            self._end("stopped")

    def _drain(self) -> None:
        flush_at = self._clock.monotonic() + _FLUSH_S
        try:
            while not self._ended and (item := self._backlog.taken()):
                self._write(item)
                if self._tape.size_bytes >= self._max_bytes:
                    self._end("full")
                elif self._clock.monotonic() > flush_at:
                    self._flush()
                    flush_at = self._clock.monotonic() + _FLUSH_S
            if not self._ended:
                self._flush()
        except Exception as error:  # noqa: BLE001 - whatever ends the recording, it must not end the serving
            self._end("stopped", str(error) or type(error).__name__)

    def _write(self, item: _Item) -> None:
        if isinstance(item, Record):
            self._tape.write(item)
            return
        began_s = time.perf_counter()
        for entry in recording_deltas.delta_entries(self._written, item.cluster_state, item.generation):
            if entry is not None:
                self._tape.write(entry)
            if time.perf_counter() - began_s > cooperative_scheduling.SLICE_S:
                time.sleep(_PAUSE_S)
                began_s = time.perf_counter()
        self._written = item.cluster_state

    def _flush(self) -> None:
        self._tape.flush()
        self._metrics_registry.set("recording_bytes", self._tape.size_bytes)

    def _end(self, why: Literal["stopped", "full"], error: str = "") -> None:
        """The last entry. An operator hears of it if the process lives on."""
        if self._ended:
            return
        self._ended = True
        self._backlog = _Backlog()
        with contextlib.suppress(OSError):
            self._tape.write(Record(recording_file.EndEntry(why=why)))
            self._tape.close()
        self._metrics_registry.set("recording_bytes", self._tape.size_bytes)
        if error or why == "full":
            logs.emit("recording_stopped", why=error or f"it has {self._tape.size_bytes} bytes")


def _new_samples(before: ClusterState, cluster_state: ClusterState) -> int:
    if cluster_state.metrics is before.metrics:
        return 0
    known = before.metrics.series
    return sum(
        len(series.samples)
        for name, series in cluster_state.metrics.series.items()
        if known.get(name) is not series
    )


class ReplaySettings(NamedTuple):
    """What answers depend on besides the agents' own options."""

    sync_period_s: float
    chain: ChainOptions


def build_header(
    kinds: Sequence[AgentKind], options: Mapping[str, Any], general: ReplaySettings, at: float
) -> Header:
    """What a replay has to know besides the entries."""
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
    """A new file for a recording, mode 0600. One that is there already is kept, with `.old` after its name.

    `BadSettings` if the file cannot be made.
    """
    try:
        if path.is_file():
            path.replace(f"{path}.old")
        # a name that comes to life in between, such as a link to somewhere, is refused
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except OSError as error:
        seen = f"{path}: {error.strerror or error}"
        raise BadSettings("settings", [Problem("--record", seen, "a file that can be written")]) from error
