"""One leader among the replicas, by a Lease of coordination.k8s.io/v1: the rules. `elector` plays by them.

Why no two lead at once: a leader leads until `renew_s` after it *sent* its last successful write; another takes
the Lease no sooner than `duration_s` after it *saw* that write, and nobody sees what was not sent. Each counts
on its own clock that never jumps, so wall clocks may say what they like; `duration_s` over `renew_s` is how much
faster one clock may run than the other. A write carries the resourceVersion that it was decided on.
Source: client-go v0.36 tools/leaderelection/leaderelection.go, which counts from after the write.
"""

import math
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec


class Timings(NamedTuple):
    """client-go's defaults, which kube-scheduler has too."""

    duration_s: float = 15.0
    """Who does not lead leaves a Lease that does not change alone for so long."""
    renew_s: float = 10.0
    """Who leads stops so long after the last renewal that succeeded; less than `duration_s`."""
    retry_s: float = 2.0
    """Between two looks at the Lease."""


class Seat(NamedTuple):
    """Which Lease it is about, and who we are: `identity` is another for every process that lives.

    A process may have that of one that is surely dead, as a container that starts again in its pod; then the Lease is
    its own at once.
    """

    namespace: str
    name: str
    identity: str
    timings: Timings = Timings()


class Spec(msgspec.Struct, frozen=True, rename="camel"):
    """`LeaseSpec`, as far as the election reads it; the server may leave out or null each field."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Seen(NamedTuple):
    """A Lease's content, and when on our own clock we first saw it."""

    spec: Spec
    at_s: float


def observe(before: Seen | None, spec: Spec, now_s: float) -> Seen:
    """Content that has not changed keeps the time at which it was first seen."""
    return before if before is not None and before.spec == spec else Seen(spec, now_s)


def wait_s(seen: Seen | None, seat: Seat, now_s: float) -> float:
    """How long the Lease is another's; 0: it is ours, or may be taken. None seen means that there is none."""
    if seen is None or not seen.spec.holder_identity or seen.spec.holder_identity == seat.identity:
        return 0.0
    duration_s = seen.spec.lease_duration_seconds or seat.timings.duration_s
    return max(0.0, seen.at_s + duration_s - now_s)


def claim(seen: Seen | None, seat: Seat, wall_s: float) -> Spec:
    """The Lease as our own: renewed if it is, else taken, which is one more transition."""
    now = _micro(wall_s)
    spec = seen.spec if seen else Spec()
    ours = spec.holder_identity == seat.identity
    transitions = spec.lease_transitions or 0
    return Spec(
        holder_identity=seat.identity,
        lease_duration_seconds=math.ceil(seat.timings.duration_s),
        acquire_time=(spec.acquire_time or now) if ours else now,
        renew_time=now,
        lease_transitions=transitions if ours or seen is None else transitions + 1,
    )


def release(seen: Seen, wall_s: float) -> Spec:
    """The Lease as nobody's, so that another need not wait."""
    now = _micro(wall_s)
    transitions = seen.spec.lease_transitions
    return Spec("", 1, acquire_time=now, renew_time=now, lease_transitions=transitions)


def _micro(wall_s: float) -> str:
    """The wire form of MicroTime."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
