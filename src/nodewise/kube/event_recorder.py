"""Records Kubernetes events, which `kubectl describe` shows. Recording never blocks; one task writes the events.

Repeats of an event become a series with a count, and each object and reason has its own rate limit, as in client-go
(v0.36 tools/events and tools/record). Events over the limit are counted and dropped. Namespaces take turns, and if too
many events wait, those of the namespace with the most are dropped.
"""

import asyncio
import heapq
from collections import OrderedDict
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from nodewise.base.clock import Clock, format_micro_time
from nodewise.base.errors import NodewiseError, Unavailable
from nodewise.kube.api_server_interface import Api, NotFound, TokenBucket
from nodewise.kube.resource_kinds import EVENTS, Resource
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

T = TypeVar("T")


class FairEventQueue(Generic[T]):
    """Items by namespace, each with the time at which it is due."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._heaps: OrderedDict[str, list[tuple[float, int, T]]] = OrderedDict()
        """By namespace, never empty: time, number and item. First the namespace whose turn was longest ago."""
        self._length = 0
        self._number = 0

    def __len__(self) -> int:
        return self._length

    def has_room(self, namespace: str) -> bool:
        """Whether `push` would keep an item of the namespace, in place of one of the longest if the queue is full."""
        longest = max(map(len, self._heaps.values()), default=0)
        return self._length < self._limit or len(self._heaps.get(namespace, ())) + 1 < longest

    def push(self, namespace: str, due_s: float, item: T) -> T | None:
        """Add an item. If there are too many, returns the last one of the namespace with the most, which is removed."""
        self._number += 1
        heapq.heappush(self._heaps.setdefault(namespace, []), (due_s, self._number, item))
        self._length += 1
        if self._length <= self._limit:
            return None
        longest = max(self._heaps, key=lambda name: len(self._heaps[name]))
        heap = self._heaps[longest]
        last = heap.index(max(heap, key=lambda entry: entry[:2]))
        heap[last], heap[-1] = heap[-1], heap[last]
        removed = heap.pop()[2]
        heapq.heapify(heap)
        self._length -= 1
        if not heap:
            del self._heaps[longest]
        return removed

    def next_due_s(self) -> float:
        """The time at which the next item is due; infinite without items."""
        return min((heap[0][0] for heap in self._heaps.values()), default=float("inf"))

    def pop(self, now_s: float) -> T | None:
        """The next item that is due, of the namespace whose turn was longest ago; None if none is due."""
        for namespace, heap in self._heaps.items():
            if heap[0][0] <= now_s:
                item = heapq.heappop(heap)[2]
                self._length -= 1
                if heap:
                    self._heaps.move_to_end(namespace)
                else:
                    del self._heaps[namespace]
                return item
        return None


Type = Literal["Normal", "Warning"]

NO_NODE_PASSES: Final = "NoNodePasses"
"""The reason of the event on a pod that waits because nodewise rejects nodes."""
MOST_WAITING: Final = 1000
"""client-go's queue has the same length."""
MOST_KNOWN: Final = 4096
"""Cached objects and series; client-go's cache has the same size."""
BURST: Final = 5
REFILL_S: Final = 60.0
"""An object gets five events of one reason at once and then one per minute, with the count of all."""
PATIENCE_S: Final = 600.0
"""Events that would wait longer are dropped."""
FORGET_S: Final = 1800.0
"""A series without repeats for longer starts again: the API server keeps an event for an hour."""
TRIES: Final = 3

_LONGEST: Final = {"note": 1024, "reason": 128, "action": 128}
"""Bytes that the API server accepts (kubernetes v1.36 pkg/apis/core/validation/events.go)."""


class EventReporter(NamedTuple):
    """The reporting controller (`nodewise.io/telemetry`) and the replica."""

    controller: str
    instance: str


class ObjectReference(NamedTuple):
    """The object that an event is about; `uid` distinguishes it from a later object of the same name."""

    resource: Resource
    namespace: str
    name: str
    uid: str = ""


class RecordedEvent(NamedTuple):
    """An event to record. Equal events are repeats of each other."""

    about: ObjectReference
    type: Type
    reason: str
    note: str
    action: str


class _EventSeries:
    """The series of an event: its count, and its object name, which is empty until the event has been written."""

    def __init__(self, number: int, first_s: float) -> None:
        self.number = number
        self.first_s = first_s
        self.last_s = first_s
        self.count = 0
        self.name = ""
        self.waiting = False
        self.tries = 0


class EventRecorder:
    """Queue and writer of events. Call `record` from anywhere, and run `run` as a task."""

    def __init__(
        self, api: Api, reporter: EventReporter, clock: Clock, metrics_registry: MetricsRegistry
    ) -> None:
        self._api = api
        self._reporter = reporter
        self._clock = clock
        self._metrics_registry = metrics_registry
        self._known: OrderedDict[RecordedEvent, _EventSeries] = OrderedDict()
        self._buckets: OrderedDict[tuple[ObjectReference, str], TokenBucket] = OrderedDict()
        self._queue: FairEventQueue[RecordedEvent] = FairEventQueue(MOST_WAITING)
        self._number = 0
        self._wake = asyncio.Event()
        self._is_losing = False

    def record(
        self, about: ObjectReference, type_: Type, reason: str, note: str, action: str = "Scheduling"
    ) -> None:
        """Queue an event. Never blocks and never fails; `action` is the action that caused it, in one word."""
        texts = {"reason": reason, "note": note, "action": action}
        event = RecordedEvent(
            about, type_, **{field: _truncate_to_api_limit(field, text) for field, text in texts.items()}
        )
        now_s = self._clock.now()
        series = self._known.get(event)
        if series is None or now_s - series.last_s > FORGET_S:
            self._number += 1
            series = self._known[event] = _EventSeries(self._number, now_s)
        self._known.move_to_end(event)
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        series.count += 1
        series.last_s = now_s
        if not series.waiting:
            self._enqueue_or_drop_event(event, series)

    async def run(self) -> None:
        """Write queued events when they are due, until cancelled."""
        while True:
            if not self._queue:
                self._wake.clear()
                await self._wake.wait()
            now_s = self._clock.monotonic()
            event = self._queue.pop(now_s)
            if event is None:
                await self._wait_for_due_event(self._queue.next_due_s() - now_s)
            else:
                await self._write_due_event(event)

    async def flush(self) -> None:
        """Write the events that are due now, before the program ends."""
        while (event := self._queue.pop(self._clock.monotonic())) is not None:
            await self._write_due_event(event)

    async def _wait_for_due_event(self, delay_s: float) -> None:
        """Sleep until the next event is due, or an event is queued."""
        self._wake.clear()
        sleeping = asyncio.ensure_future(self._clock.sleep(delay_s))
        waking = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait({sleeping, waking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            waking.cancel()

    def _enqueue_or_drop_event(self, event: RecordedEvent, series: _EventSeries) -> None:
        now_s = self._clock.monotonic()
        key = (event.about, event.reason)
        bucket = self._buckets.setdefault(key, TokenBucket(1.0 / REFILL_S, BURST))
        self._buckets.move_to_end(key)
        if len(self._buckets) > MOST_KNOWN:
            self._buckets.popitem(last=False)
        has_room = self._queue.has_room(event.about.namespace)
        wait_s = bucket.take(now_s, PATIENCE_S) if has_room else None
        if wait_s is None:
            self._metrics_registry.count("events_total", outcome="dropped")
            return
        series.waiting = True
        self._schedule_event(now_s + wait_s, event)

    def _schedule_event(self, due_s: float, event: RecordedEvent) -> None:
        dropped = self._queue.push(event.about.namespace, due_s, event)
        if dropped is not None:
            self._metrics_registry.count("events_total", outcome="dropped")
            if dropped in self._known:
                self._known[dropped].waiting = False
        self._wake.set()

    async def _write_due_event(self, event: RecordedEvent) -> None:
        series = self._known.get(event)
        if series is None:  # pushed out by newer ones while it waited
            return
        series.waiting = False
        try:
            await self._create_or_update_event(event, series)
        except NodewiseError as error:
            self._retry_or_drop_event(event, series, error)
        else:
            series.tries = 0
            self._is_losing = False

    async def _create_or_update_event(self, event: RecordedEvent, series: _EventSeries) -> None:
        """Create the event the first time, and update its count later. Create it again if the server has deleted it."""
        namespace = event.about.namespace or "default"
        if series.name:
            try:
                await self._api.patch(
                    EVENTS.path(namespace, series.name), {"series": _event_series_body(series)}, "merge"
                )
            except NotFound:
                series.name, series.first_s, series.count = "", series.last_s, 1
            else:
                self._metrics_registry.count("events_total", outcome="repeated")
                return
        body = self._event_body(event, series)
        await self._api.create(EVENTS.path(namespace), body)
        series.name = body["metadata"]["name"]
        self._metrics_registry.count("events_total", outcome="recorded")

    def _retry_or_drop_event(self, event: RecordedEvent, series: _EventSeries, error: NodewiseError) -> None:
        series.tries += 1
        if isinstance(error, Unavailable) and series.tries < TRIES:
            series.waiting = True
            self._schedule_event(self._clock.monotonic() + error.retry_after_s, event)
            return
        series.tries = 0
        self._metrics_registry.count("events_total", outcome="failed")
        if not self._is_losing:  # thousands may wait while an API server is away
            self._is_losing = True
            logs.emit("event_lost", reason=event.reason, object=event.about.name, error=str(error))

    def _event_body(self, event: RecordedEvent, series: _EventSeries) -> dict[str, Any]:
        about = event.about
        namespace = about.namespace or "default"
        # the name as client-go makes it: the object's, and a number that no other event of it has
        name = f"{about.name[:200].rstrip('.-')}.{int(series.first_s * 1e6):x}{series.number:x}"
        regarding = {
            "apiVersion": about.resource.api_version,
            "kind": about.resource.kind,
            "name": about.name,
            "namespace": about.namespace,
            "uid": about.uid,
        }
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": format_micro_time(series.first_s),
            "reportingController": self._reporter.controller,
            "reportingInstance": self._reporter.instance[:128],
            "action": event.action,
            "reason": event.reason,
            "regarding": {field: text for field, text in regarding.items() if text},
            "note": event.note,
            "type": event.type,
        } | ({"series": _event_series_body(series)} if series.count > 1 else {})


def _event_series_body(series: _EventSeries) -> dict[str, Any]:
    return {"count": max(series.count, 2), "lastObservedTime": format_micro_time(series.last_s)}


def _truncate_to_api_limit(field: str, text: str) -> str:
    """The text, truncated to the number of UTF-8 bytes that the API server accepts, in whole characters."""
    most = _LONGEST[field]
    data = text.encode()
    if len(data) <= most:
        return text
    return data[: most - 3].decode(errors="ignore") + "…"
