"""Rules of leader election with a Lease of coordination.k8s.io/v1. `elector` applies them.

At most one replica leads. A leader leads until `renew_s` after it *sent* its last successful write. Another replica
acquires the Lease no sooner than `duration_s` after it *observed* that write, which is later than it was sent. Each
replica uses its own monotonic clock, so wall clocks do not matter; `duration_s` / `renew_s` is the largest tolerated
ratio of the clocks' rates. A write has the resourceVersion of the Lease that the decision is based on.
Source: client-go v0.36 tools/leaderelection/leaderelection.go, which counts from after the write.

The leader chooses the durations by the latency of the API server, and writes `duration_s` to the Lease. The other
replicas obey the Lease, not their own settings, in all versions of nodewise. So replicas may use different durations.
A leader that shortens the duration leads no longer than the shorter one permits after it has sent the Lease, because
the write may arrive although its response does not.

An annotation names the process that wrote the Lease. A process that finds its own identity, but another process of the
same host name, takes the Lease at once, because a container has restarted in its pod. A process of another host waits,
and so does a process from which the Lease was taken: two replicas have one identity by mistake.
"""

import math
from typing import Final, NamedTuple

import msgspec

from nodewise.base.clock import format_micro_time

EXTENDER_LEASE: Final = "nodewise-extender"
"""The Lease of the leader election among replicas of `nodewise extender`."""
CONTROLLER_LEASE: Final = "nodewise-controller"
"""The Lease of the leader election among replicas of `nodewise controller`. An extender has another one, because its
other agents have work of their own for a leader."""
EVALUATION_ANNOTATION: Final = "nodewise.io/last-evaluation"
"""The annotation of the leader's Lease with the time of the last evaluation of all policies, RFC 3339."""
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
