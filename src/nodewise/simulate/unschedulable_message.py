"""The words in which kube-scheduler says why a pod is nowhere.

    0/N nodes are available: <n reason>, <n reason>. <what preemption says>

Sources: kubernetes v1.36.3 pkg/scheduler/framework/types.go (FitError), schedule_one.go (truncateMessage).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

NO_NODES: Final = "no nodes available to schedule pods"
"""Said of a cluster without nodes, instead of all else."""

_EVENT_BYTES: Final = 1024
_CUT: Final = b" ..."


class Rejection(NamedTuple):
    """Why a node is no place for a pod. `for_good` says that evicting others would not help.

    `plugin` is empty for what an extender said.
    """

    reasons: tuple[str, ...]
    for_good: bool = False
    plugin: str = ""


Rejections = Mapping[str, Rejection]
"""By node. A node that is neither here nor feasible is out without a word: never tried, or forgotten."""


def text(nodes: int, rejected: Iterable[Rejection], absent: str = "", preemption: str = "") -> str:
    """The message; `absent` is the reason of all nodes of which nothing else is said, if it is to be told."""
    rejections = list(rejected)
    counts = Counter(reason for rejection in rejections for reason in rejection.reasons)
    if absent and nodes > len(rejections):
        counts[absent] += nodes - len(rejections)
    parts = sorted(f"{count} {reason}" for reason, count in counts.items())
    reasons = f" {', '.join(parts)}." if parts else ""
    return f"0/{nodes} nodes are available:{reasons}" + (f" {preemption}" if preemption else "")


def event(message: str) -> str:
    """The message as an event carries it: at most 1024 bytes of UTF-8."""
    encoded = message.encode()
    if len(encoded) <= _EVENT_BYTES:
        return message
    return (encoded[: _EVENT_BYTES - len(_CUT)] + _CUT).decode(errors="replace")
