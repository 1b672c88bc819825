"""Takes part in a leader election: reads the Lease, and acquires or renews it by the rules of
`leader_election_rules`.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from nodewise.base.clock import Clock
from nodewise.base.errors import Conflict, NodewiseError, Problem, Unavailable
from nodewise.kube import leader_election_rules
from nodewise.kube.api_latency import ApiLatency
from nodewise.kube.api_server_interface import Api, NotFound
from nodewise.kube.leader_election_rules import (
    PROCESS_ANNOTATION,
    LeaseLock,
    LeaseSpec,
    LeaseTimings,
    ObservedLease,
)
from nodewise.kube.resource_kinds import LEASES
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

NEVER: Final = float("-inf")


class _LeaseMeta(msgspec.Struct, frozen=True):
    annotations: dict[str, str] | None = None


class _Lease(msgspec.Struct, frozen=True):
    spec: LeaseSpec | None = None
    metadata: _LeaseMeta = _LeaseMeta()


class Elector:
    """Candidate of a leader election. Run it as a task. Check `leading` before each write that only a leader may make.

    Each write of the Lease adds `annotations`, which inform about the leader without a write of their own. The `Api`
    should have its own rate limit (`HttpApi.with_rate_limit`), so that queued writes do not delay renewals.
    """

    def __init__(
        self,
        api: Api,
        lock: LeaseLock,
        clock: Clock,
        metrics_registry: MetricsRegistry,
        random: Callable[[], float],
        annotations: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._api = api
        self._lock = lock
        self._clock = clock
        self._metrics_registry = metrics_registry
        self._random = random
        self._callbacks: list[Callable[[bool], None]] = []
        self._annotations = annotations
        self._latency = ApiLatency(lock.timings.longest_latency_s)
        self._path = LEASES.path(lock.namespace, lock.name)
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
    def holder(self) -> str:
        """The identity of the leader at the last read of the Lease; empty if there was none."""
        return (self._observed.spec.holder_identity or "") if self._observed else ""

    async def run(self) -> None:
        """Acquire and renew the Lease until cancelled. Then call `stop`, so that another replica can lead at once."""
        while True:
            await self._try_to_lead()
            self._report_change()
            await self._clock.sleep(self._retry_pause_s())
            self._report_change()

    async def stop(self) -> None:
        """Stop leading, and release the Lease. An error is logged; the Lease then expires."""
        led = self.leading
        self._until_s = NEVER
        self._report_change()
        if led and self._observed:
            try:
                await self._write_lease(leader_election_rules.release(self._observed, self._clock.now()))
            except NodewiseError as error:
                self._log_error(str(error))

    async def _try_to_lead(self) -> None:
        try:
            await self._read_and_acquire()
        except NodewiseError as error:
            self._object = None
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
        if leader_election_rules.wait_s(self._observed, self._lock, self._clock.monotonic()) == 0.0:
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
        if self._observed is None or not leader_election_rules.is_ours(self._observed, self._lock):
            self._until_s = NEVER

    async def _acquire_or_renew(self) -> None:
        """Write the Lease. Leadership counts from before the write was sent, as it may have arrived at once."""
        until_s = self._clock.monotonic() + self._timings.renew_s
        lease = leader_election_rules.lease_after_acquire_or_renew(
            self._observed, self._lock, self._timings.duration_s, self._clock.now()
        )
        # a shorter duration applies as soon as it may have arrived
        self._until_s = min(self._until_s, until_s)
        await self._write_lease(lease)
        self._until_s = until_s

    async def _write_lease(self, spec: LeaseSpec) -> None:
        timeout_s = self._call_timeout_s()
        process = {PROCESS_ANNOTATION: self._lock.process} if self._lock.process else {}
        annotations = {**self._annotations(), **process}
        if self._object is None:
            meta: dict[str, Any] = {"name": self._lock.name, "namespace": self._lock.namespace}
            if annotations:
                meta["annotations"] = annotations
            body = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": meta, "spec": spec}
            call = self._api.create(LEASES.path(self._lock.namespace), body, timeout_s=timeout_s)
        else:
            # labels and other fields of the Lease stay as they are
            spec_before = self._object.get("spec") or {}
            body = {**self._object, "spec": {**spec_before, **msgspec.to_builtins(spec)}}
            if annotations:
                meta = self._object.get("metadata") or {}
                merged = {**(meta.get("annotations") or {}), **annotations}
                body["metadata"] = {**meta, "annotations": merged}
            call = self._api.replace(self._path, body, timeout_s=timeout_s)
        self._observe_lease(await self._measure(call))

    def _observe_lease(self, body: bytes) -> None:
        try:
            lease = msgspec.json.decode(body, type=_Lease)
            self._object = msgspec.json.decode(body)
        except msgspec.MsgspecError as error:
            raise Unavailable(self._path, [Problem("", str(error), "a Lease")]) from error
        before, process = self._observed, (lease.metadata.annotations or {}).get(PROCESS_ANNOTATION, "")
        self._observed = leader_election_rules.observe(
            before, lease.spec or LeaseSpec(), process, self._lock, self._clock.monotonic()
        )
        is_duplicate = self._observed.is_duplicate
        self._metrics_registry.set("identity_duplicate", float(is_duplicate))
        if is_duplicate and not (before and before.is_duplicate):
            logs.emit(
                "identity_duplicate", lease=self._path, identity=self._lock.identity, other_process=process
            )

    def _log_error(self, error: str) -> None:
        """Log an error once, not at every retry."""
        if error != self._trouble:
            self._trouble = error
            logs.emit("lease_failed", lease=self._path, error=error, leading=self.leading)

    @property
    def _timings(self) -> LeaseTimings:
        """The durations that fit the latency of the API server."""
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
        free_in_s = leader_election_rules.wait_s(self._observed, self._lock, now_s)
        return min(pause_s, free_in_s) if free_in_s else pause_s

    def _report_change(self) -> None:
        if self._reported_leading == self.leading:
            return
        self._reported_leading = self.leading
        self._metrics_registry.set("leading", float(self._reported_leading))
        logs.emit(
            "leading" if self._reported_leading else "not_leading", lease=self._path, holder=self.holder
        )
        for callback in self._callbacks:
            callback(self._reported_leading)
