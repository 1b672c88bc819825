"""What a policy would have done in the past: rejections, flaps, outages, waiting pods. No I/O."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.metrics.series import Floats
from nodewise.policies.hysteresis import PERIOD_S
from nodewise.policy_tools.backtest_rules import Mask

_HOUR_S: Final = 3600.0
_FLAP_NODES: Final = 100


class Interval(NamedTuple):
    """A time from the first to the last evaluation; it ends one step after the latter."""

    start: float
    end: float
    """Seconds since 1970."""

    @property
    def duration_s(self) -> float:
        return self.end - self.start


class PodWaits(NamedTuple):
    """What would have happened to pods that actually started."""

    selected: int
    """Pods that the policy selects."""
    waiting: int
    """Pods for which no node was eligible when they started."""
    total_wait_s: float
    longest_wait_s: float
    """A pod that waits until the end of the history counts until then."""
    elsewhere: int
    """Pods that started on a node that the policy rejected then, while others were eligible."""


class History(NamedTuple):
    """The times and nodes of a backtest, which all policies share."""

    times: Floats
    """Seconds since 1970, equidistant."""
    step_s: float
    exists: Mask
    """By step and node: whether the node had had a value before or then. Nodes without one are not counted."""


class Measures(NamedTuple):
    """The effect of one policy, or of one variant."""

    rejected_share: float
    """Of all nodes at all times."""
    most_rejected: int
    most_rejected_at: float
    """Seconds since 1970; the first time with this number."""
    changes: int
    """Changes of a node's verdict."""
    flaps: int
    """How often a node was rejected again within an hour after it passed, as in the status of policies."""
    flaps_per_hour: float
    """Of all nodes together."""
    without_eligible_node: Sequence[Interval]
    """When every node was rejected, the longest first."""
    pods: PodWaits | None = None

    @property
    def longest_outage_s(self) -> float:
        return self.without_eligible_node[0].duration_s if self.without_eligible_node else 0.0


class NodeRejections(NamedTuple):
    """The rejections of one node."""

    node: str
    rejected_s: float
    flaps: int
    times: int
    """How often it was rejected."""
    last: Interval


class StartedPod(NamedTuple):
    """A pod that a policy selects."""

    started_at: float
    """Seconds since 1970."""
    node: int
    """Its number; -1 if it is not known."""


def measure(rejected: Mask, history: History, pods: Sequence[StartedPod] | None = None) -> Measures:
    """The measures of a mask of shape (steps, nodes). Without `pods` there are none of them."""
    rejected = rejected & history.exists
    counts = rejected.sum(axis=1)
    changes = int(_changes(rejected, history).sum())
    flaps = _flaps(rejected, history)
    no_eligible = np.logical_not(np.any(history.exists & ~rejected, axis=1))
    hours = len(history.times) * history.step_s / _HOUR_S
    peak = int(np.argmax(counts))
    return Measures(
        float(counts.sum() / max(int(history.exists.sum()), 1)),
        int(counts[peak]),
        float(history.times[peak]),
        changes,
        int(flaps.sum()),
        float(flaps.sum() / hours),
        sorted(_intervals(no_eligible, history), key=lambda interval: -interval.duration_s),
        None if pods is None else _pod_waits(rejected, no_eligible, history, pods),
    )


def _changes(rejected: Mask, history: History) -> NDArray[np.intp]:
    """The number of changes of each node's verdict, from the second time at which the node exists."""
    changed: Mask = (rejected[1:] != rejected[:-1]) & history.exists[:-1]
    result: NDArray[np.intp] = changed.sum(axis=0)
    return result


def _flaps(rejected: Mask, history: History) -> NDArray[np.intp]:
    """The number of flaps of each node. A part of the nodes at a time, because the edges take much memory."""
    parts = range(0, rejected.shape[1], _FLAP_NODES)
    return np.concatenate([_flaps_of_part(rejected[:, at : at + _FLAP_NODES], history) for at in parts])


def _flaps_of_part(rejected: Mask, history: History) -> NDArray[np.intp]:
    padded = np.zeros((rejected.shape[1], len(rejected) + 2), np.int8)
    padded[:, 1:-1] = rejected.T
    edges = np.diff(padded, axis=1)
    # in the order of nodes and times, so that the start after an end is that of the next rejection
    starting_nodes, starts = np.nonzero(edges == 1)
    _, ends = np.nonzero(edges == -1)
    passed_s = (starts[1:] - ends[:-1]) * history.step_s
    is_flap = (starting_nodes[1:] == starting_nodes[:-1]) & (passed_s <= PERIOD_S)
    return np.bincount(starting_nodes[1:][is_flap], minlength=rejected.shape[1])


def _intervals(flags: NDArray[np.bool_], history: History) -> list[Interval]:
    """The intervals of time for which the flags, by step, are true."""
    edges = np.diff(np.concatenate(([False], flags, [False])).astype(np.int8))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    return [
        Interval(float(history.times[start]), float(history.times[end - 1] + history.step_s))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]


def node_rejections(rejected: Mask, history: History, names: Sequence[str]) -> list[NodeRejections]:
    """The nodes that were ever rejected, the longest rejected first."""
    rejected = rejected & history.exists
    flaps = _flaps(rejected, history)
    steps = rejected.sum(axis=0)
    order = np.argsort(-steps, kind="stable")
    return [
        _node_rejections(names[node], rejected[:, node], int(flaps[node]), history)
        for node in order.tolist()
        if steps[node]
    ]


def _node_rejections(name: str, rejected: NDArray[np.bool_], flaps: int, history: History) -> NodeRejections:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], rejected, [False])).astype(np.int8)))
    start, end = int(edges[-2]), int(edges[-1])
    last = Interval(float(history.times[start]), float(history.times[end - 1] + history.step_s))
    return NodeRejections(name, float(rejected.sum() * history.step_s), flaps, len(edges) // 2, last)


def rejection_intervals(
    rejected: Mask, history: History, nodes: Sequence[int], most: int
) -> list[tuple[int, Interval]]:
    """The intervals for which nodes were rejected, node after node, up to a number."""
    intervals: list[tuple[int, Interval]] = []
    for node in nodes:
        if len(intervals) >= most:
            break
        flags = rejected[:, node] & history.exists[:, node]
        intervals += [(node, interval) for interval in _intervals(flags, history)]
    return intervals[:most]


def _pod_waits(
    rejected: Mask, no_eligible: NDArray[np.bool_], history: History, pods: Sequence[StartedPod]
) -> PodWaits:
    end = float(history.times[-1] + history.step_s)
    # for each step, the first step from then on with an eligible node
    steps = np.where(no_eligible, len(history.times), np.arange(len(history.times)))
    next_eligible = np.minimum.accumulate(steps[::-1])[::-1]
    waits: list[float] = []
    elsewhere = 0
    for pod in pods:
        step = int((pod.started_at - history.times[0]) // history.step_s)
        if not 0 <= step < len(history.times):
            continue
        if no_eligible[step]:
            eligible = int(next_eligible[step])
            until = end if eligible == len(history.times) else float(history.times[eligible])
            waits.append(until - pod.started_at)
        elif pod.node >= 0 and rejected[step, pod.node]:
            elsewhere += 1
    return PodWaits(len(pods), len(waits), sum(waits), max(waits, default=0.0), elsewhere)
