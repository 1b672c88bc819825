"""kube-scheduler's message for an unschedulable pod.

    0/N nodes are available: <n reason>, <n reason>. <message of preemption>

Sources: kubernetes v1.36.3 pkg/scheduler/framework/types.go (FitError), schedule_one.go (truncateMessage).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

NO_NODES: Final = "no nodes available to schedule pods"
"""The whole message for a cluster without nodes."""

_EVENT_BYTES: Final = 1024
_CUT: Final = b" ..."


class Rejection(NamedTuple):
    """The reasons against a node. `for_good` means that preemption cannot help; `plugin` is empty for extenders."""

    reasons: tuple[str, ...]
    for_good: bool = False
    plugin: str = ""


Rejections = Mapping[str, Rejection]
"""Rejections by node. A node that is neither here nor feasible was not tried, or an extender dropped it."""


def text(nodes: int, rejected: Iterable[Rejection], absent: str = "", preemption: str = "") -> str:
    """The message; `absent` is the reason for all nodes without a rejection, empty to omit them."""
    rejections = list(rejected)
    counts = Counter(reason for rejection in rejections for reason in rejection.reasons)
    if absent and nodes > len(rejections):
        counts[absent] += nodes - len(rejections)
    parts = sorted(f"{count} {reason}" for reason, count in counts.items())
    reasons = f" {', '.join(parts)}." if parts else ""
    return f"0/{nodes} nodes are available:{reasons}" + (f" {preemption}" if preemption else "")


def event(message: str) -> str:
    """The message of an event: at most 1024 bytes of UTF-8."""
    encoded = message.encode()
    if len(encoded) <= _EVENT_BYTES:
        return message
    return (encoded[: _EVENT_BYTES - len(_CUT)] + _CUT).decode(errors="replace")
