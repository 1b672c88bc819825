"""Leader election by a Lease of coordination.k8s.io/v1: the rules. `elector` applies them.

At most one replica leads: a leader leads until `renew_s` after it *sent* its last successful write; another replica
takes the Lease no sooner than `duration_s` after it *saw* that write, which is after it was sent. Each counts on
its own monotonic clock, so wall clocks do not matter; `duration_s` over `renew_s` is how much faster one clock may run
than the other. A write carries the resourceVersion that it was decided on.
Source: client-go v0.36 tools/leaderelection/leaderelection.go, which counts from after the write.
"""

import math
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec


class LeaseTimings(NamedTuple):
    """client-go's defaults, which kube-scheduler has too."""

    duration_s: float = 15.0
    """Other replicas do not take a Lease that did not change for less than this."""
    renew_s: float = 10.0
    """A leader stops leading this long after the last successful renewal; less than `duration_s`."""
    retry_s: float = 2.0
    """Between two reads of the Lease."""


class LeaseLock(NamedTuple):
    """The Lease, and the identity of this process, which no other running process has.

    A process may have the identity of one that certainly ended, such as a container that restarts in its pod. The Lease
    is its own at once then.
    """

    namespace: str
    name: str
    identity: str
    timings: LeaseTimings = LeaseTimings()


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of `LeaseSpec` that the election reads; the server may omit or null each of them."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class ObservedLease(NamedTuple):
    """The content of a Lease, and the time on this process's clock at which it was first seen."""

    spec: LeaseSpec
    at_s: float


def observe(before: ObservedLease | None, spec: LeaseSpec, now_s: float) -> ObservedLease:
    """Content that has not changed keeps the time at which it was first seen."""
    return before if before is not None and before.spec == spec else ObservedLease(spec, now_s)


def wait_s(seen: ObservedLease | None, lock: LeaseLock, now_s: float) -> float:
    """Seconds until the Lease may be taken; 0 if it may be taken, or is ours. None for `seen`: there is no Lease."""
    if seen is None or not seen.spec.holder_identity or seen.spec.holder_identity == lock.identity:
        return 0.0
    duration_s = seen.spec.lease_duration_seconds or lock.timings.duration_s
    return max(0.0, seen.at_s + duration_s - now_s)


def acquire_or_renew(seen: ObservedLease | None, lock: LeaseLock, wall_s: float) -> LeaseSpec:
    """The Lease with our identity: renewed if it is ours, else taken, which adds a transition."""
    now = _micro_time(wall_s)
    spec = seen.spec if seen else LeaseSpec()
    ours = spec.holder_identity == lock.identity
    transitions = spec.lease_transitions or 0
    return LeaseSpec(
        holder_identity=lock.identity,
        lease_duration_seconds=math.ceil(lock.timings.duration_s),
        acquire_time=(spec.acquire_time or now) if ours else now,
        renew_time=now,
        lease_transitions=transitions if ours or seen is None else transitions + 1,
    )


def release(seen: ObservedLease, wall_s: float) -> LeaseSpec:
    """The Lease without a holder, so that another replica need not wait."""
    now = _micro_time(wall_s)
    transitions = seen.spec.lease_transitions
    return LeaseSpec("", 1, acquire_time=now, renew_time=now, lease_transitions=transitions)


def _micro_time(wall_s: float) -> str:
    """The wire form of MicroTime."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
