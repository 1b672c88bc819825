"""What changes over the history of metrics in Prometheus if policies replace others."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import NodeIndex
from nodewise.base.errors import BadInput
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.prometheus.range_matrix import NodeMatrix, TimeGrid
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policy_tools import backtest_history, policy_timeline
from nodewise.policy_tools.backtest_history import (
    CombinedBacktest,
    HistoryObjects,
    HistoryRange,
    OnProgress,
)
from nodewise.policy_tools.device_backtest import DeviceBacktest, DevicePolicyReport
from nodewise.policy_tools.policy_backtest import Backtest
from nodewise.policy_tools.policy_diff import SelectedPodGroup
from nodewise.policy_tools.policy_timeline import Objects, PolicyTimeline, TimelineSettings

Mask = NDArray[np.bool_]


class NodeDurations(NamedTuple):
    """How long a node was rejected for some pods, in seconds."""

    node: str
    before: float
    after: float
    only_before: float
    only_after: float


class DeviceDurations(NamedTuple):
    """How long a device was tainted, in seconds."""

    device: str
    """`DRIVER/POOL/DEVICE`."""
    effect: str
    before: float
    after: float
    only_before: float
    only_after: float


class GroupHistory(NamedTuple):
    """What changes over the history for pods with the same policies."""

    group: SelectedPodGroup
    nodes: Sequence[NodeDurations]
    """The nodes that change, the most changed first."""
    no_node_before_s: float
    """How long no node was left."""
    no_node_after_s: float


class HistoryComparison(NamedTuple):
    """The comparison over a time."""

    start: float
    """Seconds since 1970."""
    end: float
    step_s: float
    groups: Sequence[GroupHistory]
    """Those with nodes that change."""
    notes: Sequence[str]
    compared: int
    """The number of times that are compared."""
    left_out: int
    """The number of times before them at which a metric has no values, so that nothing is known about them."""
    devices: Sequence[DeviceDurations] = ()
    """Those that change, the most changed first."""


async def compare(
    objects: tuple[Objects, Objects],
    groups: Sequence[SelectedPodGroup],
    settings: TimelineSettings,
    now: HistoryObjects,
    prometheus: PrometheusOptions,
    history_range: HistoryRange,
    on_progress: OnProgress,
) -> HistoryComparison:
    """Compare the rejections of the policies before and after, for the pods that they select now, and the taints of
    devices.

    `BadInput` if there is no time at which all metrics have values.
    """
    history, index = backtest_history.open_history(now.nodes, prometheus)
    notes: list[str] = []
    try:
        grid = await backtest_history.time_grid(history, history_range, notes)
        timelines = [PolicyTimeline(policy_timeline.without_statuses(own), settings) for own in objects]
        backtests = [
            CombinedBacktest(
                Backtest(timeline, index, lambda _: (), settings=settings),
                DeviceBacktest(timeline.policies, now.devices, settings.max_ages, grid.step_s),
            )
            for timeline in timelines
        ]
        history.most_columns = max(len(index), *(backtest.devices.device_count for backtest in backtests))

        def add(block: TimeGrid, matrices: Mapping[str, NodeMatrix]) -> None:
            for backtest in backtests:
                backtest.add(block, matrices)

        def requests_for(distances: Mapping[str, float | None]) -> Mapping[str, MetricRequest]:
            return _merge_requests([backtest.requests_for(distances) for backtest in backtests])

        await backtest_history.for_each_block(history, requests_for, grid, add, on_progress)
        notes.extend(backtest_history.incomplete_notes(history))
    finally:
        await history.close()
    before, after = (backtest.nodes for backtest in backtests)
    steps = min(len(before.times), len(after.times))
    if not steps:
        raise BadInput("policy diff", [backtest_history.no_usable_time(grid)])
    left_out = grid.steps - steps
    if left_out:
        notes.append(f"the first {left_out} of {grid.steps} times are not compared: a metric has no values")
    compared = [
        _compare_group(
            group,
            index,
            _rejected(before, group.before.enforced, steps, len(index)),
            _rejected(after, group.after.enforced, steps, len(index)),
            grid.step_s,
        )
        for group in groups
    ]
    changed = [group for group in compared if group.nodes]
    first = grid.end - (steps - 1) * grid.step_s
    tainted = [_tainted_times(backtest.devices.reports(), first) for backtest in backtests]
    devices = _compare_devices(tainted[0], tainted[1])
    return HistoryComparison(first, grid.end, grid.step_s, changed, notes, steps, left_out, devices)


_TaintedTimes = dict[tuple[str, str], list[tuple[float, float]]]
"""By device and effect, beginnings and ends in their order, without overlaps."""


def _compare_devices(old: _TaintedTimes, new: _TaintedTimes) -> list[DeviceDurations]:
    """The devices that were tainted with an effect at other times."""
    changes = []
    for device, effect in {*old, *new}:
        before, after = old.get((device, effect), []), new.get((device, effect), [])
        both = _common_s(before, after)
        total, new_total = (sum(end - begin for begin, end in times) for times in (before, after))
        changes.append(DeviceDurations(device, effect, total, new_total, total - both, new_total - both))
    changed = [each for each in changes if each.only_before or each.only_after]
    return sorted(changed, key=lambda each: (-each.only_before - each.only_after, each.device, each.effect))


def _common_s(times: Sequence[tuple[float, float]], others: Sequence[tuple[float, float]]) -> float:
    """The seconds that are in both. A device that flaps has thousands of times."""
    total, position, other = 0.0, 0, 0
    while position < len(times) and other < len(others):
        (begin, end), (other_begin, other_end) = times[position], others[other]
        total += max(min(end, other_end) - max(begin, other_begin), 0.0)
        position, other = position + (end <= other_end), other + (other_end <= end)
    return total


def _tainted_times(reports: Sequence[DevicePolicyReport], start: float) -> _TaintedTimes:
    """The times since a start. Several policies may taint a device."""
    times: _TaintedTimes = {}
    taints = [taint for report in reports for taint in report.taints]
    for taint in sorted(taints, key=lambda taint: taint.interval.start):
        own = times.setdefault((taint.device, taint.effect), [])
        begin = max(taint.interval.start, start, own[-1][1] if own else start)
        if begin < taint.interval.end:
            own.append((begin, taint.interval.end))
    return times


def _merge_requests(listed: Sequence[Mapping[str, MetricRequest]]) -> dict[str, MetricRequest]:
    """All requests by key, each with the shortest maximum age."""
    requests: dict[str, MetricRequest] = {}
    for own in listed:
        for key, request in own.items():
            known = requests.get(key, request)
            age_s = min(request.max_age_s, known.max_age_s)
            requests[key] = request._replace(max_age_s=age_s)
    return requests


def _rejected(backtest: Backtest, keys: Sequence[PolicyKey], steps: int, node_count: int) -> Mask:
    """At the last `steps` times, the nodes that any of the policies rejects, of shape (steps, nodes)."""
    rejected: Mask = np.zeros((steps, node_count), bool)
    for key in keys:
        record = backtest.records.get(key)
        if record is not None and not (record.policy.only_prefers or record.policy.not_enforced):
            mask = record.rejected.mask()
            rejected |= mask[len(mask) - steps :]
    return rejected


def _compare_group(
    group: SelectedPodGroup, nodes: NodeIndex, before: Mask, after: Mask, step_s: float
) -> GroupHistory:
    only_before = (before & ~after).sum(axis=0) * step_s
    only_after = (after & ~before).sum(axis=0) * step_s
    changes = only_before + only_after
    order = [int(node) for node in np.argsort(-changes, kind="stable") if changes[node]]
    durations = [
        NodeDurations(
            nodes.known[node],
            float(before[:, node].sum() * step_s),
            float(after[:, node].sum() * step_s),
            float(only_before[node]),
            float(only_after[node]),
        )
        for node in order
    ]
    left = [float(mask.all(axis=1).sum() * step_s) for mask in (before, after)]
    return GroupHistory(group, durations, left[0], left[1])
