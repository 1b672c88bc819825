"""Leader election with a Lease, and the latency and liveness of the API server.

At most one replica leads: a leader leads until `renew_s` after it *sent* its last successful write, and another replica
acquires the Lease no sooner than `duration_s` after it *observed* that write, each by its own monotonic clock.
`duration_s` / `renew_s` is the largest tolerated ratio of the clocks' rates. Each write has the resourceVersion of the
Lease that the decision is based on. Source: client-go v0.36 tools/leaderelection/leaderelection.go, which counts from
after the write.

The leader chooses the durations by the latency of the API server and writes `duration_s` to the Lease, which the other
replicas obey. A leader that shortens the duration leads no longer than the shorter one permits after it has sent the
Lease, because the write may arrive although its response does not.

An annotation names the process that wrote the Lease. A process that finds its own identity, but another process of the
same host name, takes the Lease at once, because a container has restarted in its pod. A process of another host waits,
and so does a process from which the Lease was taken: two replicas have one identity by mistake.
"""

import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.base.clock import Clock, format_micro_time
from nodewise.base.errors import Conflict, NodewiseError, Problem, Unavailable
from nodewise.kube.api_server_interface import Api, NotFound
from nodewise.kube.resource_kinds import LEASES
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

EXTENDER_LEASE: Final = "nodewise-extender"
"""The Lease of the leader election among replicas of `nodewise extender`."""
CONTROLLER_LEASE: Final = "nodewise-controller"
"""The Lease of the leader election among replicas of `nodewise controller`. An extender has another one, because its
other agents have work of their own for a leader."""
EVALUATION_ANNOTATION: Final = "nodewise.io/last-evaluation"
"""The annotation of the leader's Lease with the time of the last evaluation of all policies, RFC 3339."""
NATIVE_MODE_ANNOTATION: Final = "nodewise.io/native-mode"
"""The annotation of the leader's Lease with `on` or `off`: whether the leader labels nodes with verdicts and removes
scheduling gates."""
PROCESS_ANNOTATION: Final = "nodewise.io/leader-process"
"""The annotation of the leader's Lease with `LeaseLock.process`."""


class LeaseTimings(NamedTuple):
    """Durations of the leader election.

    The defaults are a third of those of client-go and kube-scheduler, so that the labels of nodes are right within two
    periods of 5 s after a leader is killed.
    """

    duration_s: float = 5.0
    """Other replicas acquire the Lease after it has not changed for this long."""
    renew_s: float = 3.5
    """A leader stops leading this long after its last successful renewal; less than `duration_s`."""
    retry_s: float = 1.0
    """Time between two reads of the Lease."""

    @property
    def call_timeout_s(self) -> float:
        """Timeout of one call: two calls fit before a leader has to stop."""
        return self.renew_s / 2

    @property
    def longest_latency_s(self) -> float:
        """The longest latency at which a leader renews in time: after a pause, two calls or their connections fit."""
        return (self.renew_s - self.retry_s) / 2


SLOW_TIMINGS: Final = LeaseTimings(duration_s=30.0, renew_s=20.0, retry_s=2.0)
"""Durations for an API server that takes seconds to respond. The timeout of a call is 10 s."""


class LeaseLock(NamedTuple):
    """The Lease, and the identity of this process, which is unique among running processes.

    A process may reuse the identity of a process that has certainly ended, such as a container that restarts in its
    pod. Then it holds the Lease at once.
    """

    namespace: str
    name: str
    identity: str
    timings: LeaseTimings = LeaseTimings()
    slow_timings: LeaseTimings = SLOW_TIMINGS
    process: str = ""
    """Host name and random suffix of this process, `host_1f`; empty: replicas with one identity are not detected."""


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of `LeaseSpec` that the election reads; the server may omit or null each of them."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class ObservedLease(NamedTuple):
    """The content of a Lease, and the monotonic time at which this process first observed it."""

    spec: LeaseSpec
    at_s: float
    process: str = ""
    """The process that wrote it; empty if it is unknown."""
    is_duplicate: bool = False
    """Whether another process, which runs, has the identity of this process."""


def observe(
    before: ObservedLease | None, spec: LeaseSpec, process: str, lock: LeaseLock, now_s: float
) -> ObservedLease:
    """Record the content of the Lease. Unchanged content keeps the time of its first observation."""
    if before is not None and (before.spec, before.process) == (spec, process):
        return before
    # written by another process after this process read the Lease, so that one has not ended before this one began
    is_duplicate = (
        before is not None
        and before.spec.holder_identity == spec.holder_identity == lock.identity
        and process not in ("", lock.process)
        and bool(lock.process)
    )
    return ObservedLease(spec, now_s, process, is_duplicate)


def is_ours(observed: ObservedLease, lock: LeaseLock) -> bool:
    """Whether this process holds the Lease, or one that had its identity and has ended."""
    if observed.spec.holder_identity != lock.identity or observed.is_duplicate:
        return False
    host, other_host = (process.rpartition("_")[0] for process in (lock.process, observed.process))
    return not lock.process or not observed.process or host == other_host


def wait_s(observed: ObservedLease | None, lock: LeaseLock, now_s: float) -> float:
    """Seconds until this process may acquire the Lease; 0 if it may do so now, or holds it. `observed` is None if there
    is no Lease.
    """
    if observed is None or not observed.spec.holder_identity or is_ours(observed, lock):
        return 0.0
    duration_s = observed.spec.lease_duration_seconds or lock.timings.duration_s
    return max(0.0, observed.at_s + duration_s - now_s)


def lease_after_acquire_or_renew(
    observed: ObservedLease | None, lock: LeaseLock, duration_s: float, wall_s: float
) -> LeaseSpec:
    """The Lease with the identity of this process: renewed if it holds it, else acquired, which adds a transition."""
    now = format_micro_time(wall_s)
    spec = observed.spec if observed else LeaseSpec()
    ours = observed is not None and is_ours(observed, lock)
    transitions = spec.lease_transitions or 0
    return LeaseSpec(
        holder_identity=lock.identity,
        lease_duration_seconds=math.ceil(duration_s),
        acquire_time=(spec.acquire_time or now) if ours else now,
        renew_time=now,
        lease_transitions=transitions if ours or observed is None else transitions + 1,
    )


def release(observed: ObservedLease, wall_s: float) -> LeaseSpec:
    """The Lease without a holder, so that another replica can acquire it at once."""
    now = format_micro_time(wall_s)
    transitions = observed.spec.lease_transitions
    return LeaseSpec("", 1, acquire_time=now, renew_time=now, lease_transitions=transitions)


_MEASUREMENTS: Final = 60
"""A leader renews its Lease every one to two seconds, so these are one to two minutes."""
_SLOW_MEASUREMENTS: Final = 2
_QUICK_SHARE: Final = 0.4
"""An API server is quick again when all measurements are below this share of the limit."""
_MOST_DOUBLINGS: Final = 10


class ApiLatency:
    """The last measurements. `limit_s` is the longest time that a quick API server takes.

    A measurement is the time from a call until the next response, through all timeouts in between: a restart of the API
    server counts once, and only one that is slow again and again counts as slow.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._measured_s: deque[float] = deque(maxlen=_MEASUREMENTS)
        self._unanswered_since_s: float | None = None
        self._timeouts = 0
        self.is_slow = False

    @property
    def last_s(self) -> float:
        """The last measurement."""
        return self._measured_s[-1] if self._measured_s else 0.0

    @property
    def is_unclear(self) -> bool:
        """Whether the last measurement was long, and it is not known yet whether the next ones will be."""
        return not self.is_slow and self.last_s > self._limit_s

    def record_timeout(self, sent_s: float) -> None:
        """Record a call without a response, and the monotonic time at which it was sent."""
        self._timeouts += 1
        if self._unanswered_since_s is None:
            self._unanswered_since_s = sent_s

    def record_response(self, sent_s: float, now_s: float) -> None:
        since_s = sent_s if self._unanswered_since_s is None else self._unanswered_since_s
        self._unanswered_since_s = None
        self._timeouts = 0
        self._measured_s.append(now_s - since_s)
        if not self.is_slow:
            slow = sum(measured_s > self._limit_s for measured_s in self._measured_s)
            self.is_slow = slow >= _SLOW_MEASUREMENTS
            if self.is_slow:
                self._measured_s = deque([self.last_s], maxlen=_MEASUREMENTS)
        elif len(self._measured_s) == _MEASUREMENTS:
            self.is_slow = max(self._measured_s) > _QUICK_SHARE * self._limit_s

    def timeout_s(self, first_s: float, most_s: float) -> float:
        """The timeout of the next call, which doubles from the second timeout in a row on.

        After the first one, only the connection may be lost, and a new one is quick. A measurement is completed with
        the longest timeout.
        """
        if self.is_unclear:
            return most_s
        doublings = min(max(0, self._timeouts - 1), _MOST_DOUBLINGS)
        return min(most_s, first_s * 2.0**doublings)


NEVER: Final = float("-inf")


class _LeaseMeta(msgspec.Struct, frozen=True):
    annotations: dict[str, str] | None = None


class _Lease(msgspec.Struct, frozen=True):
    spec: LeaseSpec | None = None
    metadata: _LeaseMeta = _LeaseMeta()


class LeaseAccess(NamedTuple):
    """The Lease of a candidate, and what the candidate needs to acquire and renew it in time."""

    api: Api
    """With a rate limit of its own (`HttpApi.with_rate_limit`), so that queued writes do not delay renewals."""
    lock: LeaseLock
    clock: Clock
    metrics_registry: MetricsRegistry
    random: Callable[[], float]
    """A number in [0, 1), so that candidates do not act at the same time."""


class Elector:
    """Candidate of a leader election. Run it as a task. Check `leading` before each write that only a leader may make.

    Each write of the Lease adds `annotations`, which inform about the leader without a write of their own.

    A Lease is acquired only if `admit` returns true. It is called after the Lease was read; if another process writes
    the Lease after that, the acquisition fails.
    """

    def __init__(
        self,
        access: LeaseAccess,
        annotations: Callable[[], Mapping[str, str]] = dict,
        admit: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._api, self._lock, self._clock, self._metrics_registry, self._random = access
        self._callbacks: list[Callable[[bool], None]] = []
        self._annotations = annotations
        self._admit = admit
        self._latency = ApiLatency(self._lock.timings.longest_latency_s)
        self._path = LEASES.path(self._lock.namespace, self._lock.name)
        self._object: dict[str, Any] | None = None
        self._observed: ObservedLease | None = None
        self._until_s = NEVER
        self._reported_leading = False
        self._trouble = ""

    def on_change(self, callback: Callable[[bool], None]) -> None:
        """Call `callback` with True and False in turn, from the task; it must not block."""
        self._callbacks.append(callback)

    @property
    def leading(self) -> bool:
        return self._clock.monotonic() < self._until_s

    @property
    def left_s(self) -> float:
        """For how long this process leads from now on, unless it renews the Lease; 0 if it does not lead."""
        return max(0.0, self._until_s - self._clock.monotonic())

    @property
    def holder(self) -> str:
        """The identity of the leader at the last read of the Lease; empty if there was none."""
        return (self._observed.spec.holder_identity or "") if self._observed else ""

    @property
    def transitions(self) -> int:
        """The number of times that the Lease got another holder, as it was last read."""
        return (self._observed.spec.lease_transitions or 0) if self._observed else 0

    @property
    def live_holder(self) -> str:
        """The identity of the leader; empty if there is none, or if its Lease has expired."""
        return (
            self.holder if self.leading or wait_s(self._observed, self._lock, self._clock.monotonic()) else ""
        )

    @property
    def lease_annotations(self) -> Mapping[str, str]:
        """The annotations of the Lease as it was last read or written."""
        return ((self._object or {}).get("metadata") or {}).get("annotations") or {}

    async def run(self) -> None:
        """Acquire and renew the Lease until cancelled. Then call `stop`, so that another replica can lead at once."""
        while True:
            await self._try_to_lead()
            self._report_change()
            await self._clock.sleep(self._retry_pause_s())
            self._report_change()

    async def stop(self, successor: str = "", pause_s: float = 0.0) -> None:
        """Stop leading, and release the Lease after a pause, or give it to a successor. An error is logged; the Lease
        then expires.
        """
        led = self.leading
        self._until_s = NEVER
        self._report_change()
        if led and self._observed:
            await self._clock.sleep(pause_s)
            spec = release(self._observed, self._clock.now())
            if successor:
                duration_s = math.ceil(self._timings.duration_s)
                spec = msgspec.structs.replace(
                    spec, holder_identity=successor, lease_duration_seconds=duration_s
                )
            try:
                await self._write_lease(spec)
            except NodewiseError as error:
                self._log_error(str(error))

    async def _try_to_lead(self) -> None:
        try:
            await self._read_and_acquire()
        except NodewiseError as error:
            self._object = None
            if self._admit is None or not isinstance(error, Conflict):  # otherwise another replica was faster
                self._log_error(str(error))
        else:
            self._trouble = ""

    async def _read_and_acquire(self) -> None:
        """Read the Lease unless its content is known, and write it if it may be taken."""
        if self.leading and self._object is not None:
            try:
                await self._acquire_or_renew()
            except (Conflict, NotFound):
                # another writer was faster; its content decides at once, not in two seconds, whether we still lead
                self._object = None
            else:
                return
        await self._read_lease()
        if self._latency.is_unclear:
            # a duration that does not fit would cost the lead again
            await self._read_lease()
        is_free = wait_s(self._observed, self._lock, self._clock.monotonic()) == 0.0
        if is_free and (self._admit is None or self.leading or await self._admit()):
            await self._acquire_or_renew()

    async def _read_lease(self) -> None:
        try:
            body = await self._measure(self._api.get(self._path, timeout_s=self._call_timeout_s()))
        except NotFound:
            # the Lease was deleted; its holder may not know yet, so the last observation still applies
            self._object = None
            self._until_s = NEVER
            return
        self._observe_lease(body)
        if self._observed is None or not is_ours(self._observed, self._lock):
            self._until_s = NEVER

    async def _acquire_or_renew(self) -> None:
        """Write the Lease. Leadership counts from before the write was sent, as it may have arrived at once."""
        until_s = self._clock.monotonic() + self._timings.renew_s
        lease = lease_after_acquire_or_renew(
            self._observed, self._lock, self._timings.duration_s, self._clock.now()
        )
        # a shorter duration applies as soon as it may have arrived
        self._until_s = min(self._until_s, until_s)
        await self._write_lease(lease)
        self._until_s = until_s

    async def _write_lease(self, spec: LeaseSpec) -> None:
        timeout_s = self._call_timeout_s()
        # labels and other fields of the Lease stay as they are
        before = self._object or {"apiVersion": LEASES.api_version, "kind": LEASES.kind}
        meta = before.get("metadata") or {"name": self._lock.name, "namespace": self._lock.namespace}
        process = {PROCESS_ANNOTATION: self._lock.process} if self._lock.process else {}
        if annotations := {**(meta.get("annotations") or {}), **process, **self._annotations()}:
            meta = {**meta, "annotations": annotations}
        merged = {**(before.get("spec") or {}), **msgspec.to_builtins(spec)}
        body = {**before, "metadata": meta, "spec": merged}
        if self._object is None:
            call = self._api.create(LEASES.path(self._lock.namespace), body, timeout_s=timeout_s)
        else:
            call = self._api.replace(self._path, body, timeout_s=timeout_s)
        self._observe_lease(await self._measure(call))

    def _observe_lease(self, body: bytes) -> None:
        try:
            lease = msgspec.json.decode(body, type=_Lease)
            self._object = msgspec.json.decode(body)
        except msgspec.MsgspecError as error:
            raise Unavailable(self._path, [Problem("", str(error), "a Lease")]) from error
        before, process = self._observed, (lease.metadata.annotations or {}).get(PROCESS_ANNOTATION, "")
        self._observed = observe(
            before, lease.spec or LeaseSpec(), process, self._lock, self._clock.monotonic()
        )
        is_duplicate = self._observed.is_duplicate
        if before is None or is_duplicate != before.is_duplicate:
            self._metrics_registry.set("identity_duplicate", float(is_duplicate))
        if is_duplicate and not (before and before.is_duplicate):
            logs.emit(
                "identity_duplicate", lease=self._path, identity=self._lock.identity, other_process=process
            )

    def _log_error(self, error: str) -> None:
        if error != self._trouble:
            self._trouble = error
            logs.emit("lease_failed", lease=self._path, error=error, leading=self.leading)

    @property
    def _timings(self) -> LeaseTimings:
        return self._lock.slow_timings if self._latency.is_slow else self._lock.timings

    async def _measure(self, call: Awaitable[bytes]) -> bytes:
        """The response of a call, whose latency is recorded. A response may be an error."""
        sent_s, was_slow = self._clock.monotonic(), self._latency.is_slow
        try:
            response = await call
        except NodewiseError as error:
            if error.http_status:
                self._latency.record_response(sent_s, self._clock.monotonic())
            elif isinstance(error, Unavailable) and error.timeout_s:
                self._latency.record_timeout(sent_s)
            raise
        else:
            self._latency.record_response(sent_s, self._clock.monotonic())
        finally:
            if self._latency.is_slow != was_slow:
                latency_s, duration_s = round(self._latency.last_s, 2), self._timings.duration_s
                logs.emit("lease_duration", lease=self._path, duration_s=duration_s, latency_s=latency_s)
        return response

    def _call_timeout_s(self) -> float:
        """Timeout of one call: two calls must fit before a leader has to stop. A call that would end later is useless.

        A replica that does not lead has time to find out how long the API server takes.
        """
        first_s = self._timings.call_timeout_s
        left_s = self._until_s - self._clock.monotonic()
        if left_s > 0:
            return min(first_s, left_s)
        return self._latency.timeout_s(first_s, self._lock.slow_timings.call_timeout_s)

    def _retry_pause_s(self) -> float:
        """Seconds until the next read. Followers read at random times, so that they do not read simultaneously."""
        timings = self._timings
        now_s = self._clock.monotonic()
        if self.leading:
            return min(timings.retry_s, self._until_s - now_s)
        pause_s = timings.retry_s * (1.0 + 1.2 * self._random())
        free_in_s = wait_s(self._observed, self._lock, now_s)
        return min(pause_s, free_in_s) if free_in_s else pause_s

    def _report_change(self) -> None:
        if self._reported_leading == self.leading:
            return
        self._reported_leading = self.leading
        self._record_leading(self._reported_leading)
        for callback in self._callbacks:
            callback(self._reported_leading)

    def _record_leading(self, leading: bool) -> None:
        self._metrics_registry.set("leading", float(leading))
        logs.emit("leading" if leading else "not_leading", lease=self._path, holder=self.holder)


SILENT_S: Final = 10.0
"""The API server counts as unavailable without a response for this long: two consecutive calls failed."""
_CHECK_S: Final = 1.0


class ApiServerLiveness:
    """Monitor of the API server. Run it as a task, and call `record_response` after each response."""

    def __init__(self, clock: Clock, metrics_registry: MetricsRegistry) -> None:
        self._clock = clock
        self._metrics_registry = metrics_registry
        self._responded_s = self._checked_s = clock.monotonic()
        self._away_since_s = self._responded_s
        self._is_away = False

    def record_response(self) -> None:
        self._responded_s = self._clock.monotonic()

    async def run(self) -> None:
        """Log when the API server becomes unavailable and available again, until cancelled."""
        while True:
            self.check()
            await self._clock.sleep(_CHECK_S)

    def check(self) -> None:
        """Log a change of availability. Time during which this process was suspended does not count."""
        now_s = self._clock.monotonic()
        if now_s - self._checked_s > SILENT_S / 2:
            self._responded_s = max(self._responded_s, now_s - _CHECK_S)
        silent_s = now_s - self._responded_s
        if self._is_away and silent_s < SILENT_S:
            logs.emit("kube_answers", away_s=round(self._responded_s - self._away_since_s))
        elif not self._is_away and silent_s >= SILENT_S:
            self._away_since_s = self._responded_s
            logs.emit("kube_silent", silent_s=round(silent_s))
        self._is_away = silent_s >= SILENT_S
        self._checked_s = now_s
        self._metrics_registry.set("kube_connected", float(not self._is_away), kind=LEASES.kind)
        self._metrics_registry.set("kube_silent_seconds", silent_s)
