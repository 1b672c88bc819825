"""What a policy would have done in the past: rejections, flaps, outages, waiting pods. No I/O.

Rules are evaluated over many times at once, as arrays of shape (steps, nodes).

A backtest evaluates a policy with the agent's state builder (`policy_timeline`) and dozens of variants of it with this
module, which takes a hundredth of the time. The law is that both agree on every node at every time
(`tests/laws/test_backtest_laws.py`). What depends on the state builder's memory (suspended rules, metrics that count as
never fetched) is an input here.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.metrics.prometheus.range_matrix import NodeMatrix
from nodewise.metrics.series import Floats, ValueState
from nodewise.policies import hysteresis, rule_evaluation
from nodewise.policies.hysteresis import PERIOD_S, NodeStates, RulePart
from nodewise.policies.options import MaxAges
from nodewise.policies.placement_policy import AvoidRule, Comparison, Policy

Mask = NDArray[np.bool_]
"""By step and node."""
Steps = NDArray[np.bool_]
"""By step."""


class RuleContext(NamedTuple):
    """The times of a block, and what the state builder decided for its steps."""

    times: Floats
    """Seconds since 1970."""
    suspended: Mapping[str, Steps]
    """By metric key: when its rules were suspended. Absent: never."""
    unfetched: Mapping[str, Steps]
    """By metric key: when it counted as never fetched. Absent: never."""


class _PartMasks(NamedTuple):
    """One comparison in a block, by step and node."""

    broken: Mask
    """Where it is met, with the last known results in suspended steps, and where the history is incomplete."""
    lacking: Mask
    """Where a missing value rejects the node."""
    level: RulePart | None
    """The values alone, for rules with `for`, `release` or `keepFor`; None if none of them has the comparison."""


class RuleArrays:
    """Evaluates comparisons block by block, and remembers the last known result of each node for suspended rules."""

    def __init__(self, node_count: int, max_ages: MaxAges, *, reject_missing: bool) -> None:
        """`reject_missing` applies to comparisons that do not say what a missing value means."""
        self._node_count = node_count
        self._max_ages = max_ages
        self._reject_missing = reject_missing
        self._begun_at = np.inf
        self._last_at: dict[Comparison, Floats] = {}
        """When each node last had a known result before the current block."""
        self._last_broken: dict[Comparison, NDArray[np.bool_]] = {}
        self._ever_known: dict[Comparison, NDArray[np.bool_]] = {}
        self._states: dict[AvoidRule, NodeStates] = {}
        self._parts: dict[Comparison, _PartMasks] = {}
        """In the current block."""
        self._rules: dict[AvoidRule, Mask] = {}
        """Where rules reject, in the current block."""
        self._with_states: set[Comparison] = set()
        """Those of rules with `for`, `release` or `keepFor`."""

    def rejected(
        self, policies: Sequence[Policy], matrices: Mapping[str, NodeMatrix], context: RuleContext
    ) -> Iterator[Mask]:
        """Where each policy rejects nodes. Equal comparisons and rules of several policies are evaluated once."""
        rules = {rule for policy in policies for rule in policy.avoid}
        self._with_states = {part for rule in rules if rule.has_states for part in rule.parts}
        self._begun_at = min(self._begun_at, float(context.times[0]))
        for policy in policies:
            yield self._policy_mask(policy, matrices, context)
        # the masks of all comparisons take more memory than the values of the next block
        self._parts, self._rules = {}, {}

    def _policy_mask(self, policy: Policy, matrices: Mapping[str, NodeMatrix], context: RuleContext) -> Mask:
        mask = np.zeros((len(context.times), self._node_count), bool)
        if any(part.unusable for part in policy.avoided()):
            return ~mask
        for rule in policy.avoid:
            if rule not in self._rules:
                self._rules[rule] = self._rule_mask(rule, matrices, context)
            mask |= self._rules[rule]
        for part in policy.avoided():
            unfetched = context.unfetched.get(part.metric_request().key)
            if unfetched is not None:
                mask[unfetched] = True
        return mask

    def _rule_mask(self, rule: AvoidRule, matrices: Mapping[str, NodeMatrix], context: RuleContext) -> Mask:
        for part in rule.parts:
            if part not in self._parts:
                key = part.metric_request().key
                self._parts[part] = self._part_masks(part, matrices[key], context)
        parts = [self._parts[part] for part in rule.parts]
        rejected: Mask = np.logical_and.reduce([part.broken | part.lacking for part in parts])
        if rule.has_states:
            rejected &= np.logical_or.reduce([part.lacking for part in parts])
            rejected |= self._rejected_by_states(rule, parts, context)
        return rejected

    def _rejected_by_states(self, rule: AvoidRule, parts: Sequence[_PartMasks], context: RuleContext) -> Mask:
        """Where the states of nodes reject them (`hysteresis`). While a metric counts as never fetched, they stay."""
        sample = hysteresis.levels([part.level for part in parts if part.level is not None])
        is_known = np.ones(len(context.times), bool)
        for unfetched in context.unfetched.values():
            is_known &= ~unfetched
        states = self._states.get(rule, hysteresis.initial_states(self._node_count))
        rejected = np.zeros(sample.shape, bool)
        for step, now in enumerate(context.times.tolist()):
            if is_known[step]:
                states = hysteresis.advance(states, sample[step], rule.times, now)
            rejected[step] = hysteresis.rejects(states)
        self._states[rule] = states
        return rejected

    def _part_masks(self, part: Comparison, matrix: NodeMatrix, context: RuleContext) -> _PartMasks:
        is_incomplete = bool(matrix.incomplete)
        fresh = matrix.states == ValueState.FRESH
        is_empty_known = part.empty_means and not is_incomplete
        known = fresh | (matrix.states == ValueState.MISSING) if is_empty_known else fresh
        agreeing = _agreeing_nodes(part, matrix)
        met = fresh & rule_evaluation.compare(part.operator, matrix.values, part.target)
        broken = met | agreeing
        rejects_missing = self._reject_missing if not part.when_missing else part.when_missing == "reject"
        suspended = context.suspended.get(part.metric_request().key)
        is_suspended = np.full(len(fresh), is_incomplete) if suspended is None else suspended | is_incomplete
        level = None
        if part in self._with_states:
            held = broken
            if part.release is not None:
                held = fresh & rule_evaluation.compare(part.operator, matrix.values, part.release) | agreeing
            in_gap = self._in_gap(part, known, matrix, context.times)
            releases = ~in_gap & ~is_suspended[:, np.newaxis]
            releases &= part.when_missing != "reject"
            level = RulePart(known | agreeing, broken, held, releases)
        with_last, is_held = self._hold_last_results(part, known | agreeing, broken, is_suspended)
        lacking = ~known & ~is_held if rejects_missing else np.zeros(known.shape, bool)
        return _PartMasks(with_last, lacking, level)

    def _in_gap(self, part: Comparison, known: Mask, matrix: NodeMatrix, times: Floats) -> Mask:
        """The nodes in a gap between their values (`rule_evaluation.find_gaps`), which keep their states."""
        before = self._last_at.get(part, np.full(self._node_count, self._begun_at))
        last_at = np.maximum.accumulate(np.where(known, times[:, np.newaxis], before), axis=0)
        # a view would keep the whole array
        self._last_at[part] = last_at[-1].copy()
        max_age_s = self._max_ages.of_rule(part, matrix.sample_distance_s)
        in_gap: Mask = ~known & (matrix.states != ValueState.INVALID)
        return in_gap & (times[:, np.newaxis] - last_at <= max_age_s)

    def _hold_last_results(
        self, part: Comparison, known: Mask, broken: Mask, suspended: Steps
    ) -> tuple[Mask, Mask]:
        """The results, with the last known ones in suspended steps, and where those are. Remembers the last of all."""
        last_broken = self._last_broken.get(part, np.zeros(self._node_count, bool))
        ever_known = self._ever_known.get(part, np.zeros(self._node_count, bool))
        # the last step with a known result, up to each step; -1 for none in this block
        steps = np.where(known, np.arange(len(known), dtype=np.int32)[:, np.newaxis], -1)
        is_held = np.zeros(known.shape, bool)
        result = broken
        if suspended.any():
            latest = np.maximum.accumulate(steps, axis=0)
            in_block = np.take_along_axis(broken, np.maximum(latest, 0), axis=0)
            is_held = suspended[:, np.newaxis] & ~known & ((latest >= 0) | ever_known)
            result = np.where(is_held, np.where(latest >= 0, in_block, last_broken), broken)
        last = steps.max(axis=0)
        self._last_broken[part] = np.where(
            last >= 0, broken[np.maximum(last, 0), np.arange(self._node_count)], last_broken
        )
        self._ever_known[part] = ever_known | (last >= 0)
        return result, is_held


def _agreeing_nodes(part: Comparison, matrix: NodeMatrix) -> Mask:
    """Where the series of a node differ and all of their values meet the rule (`RuleEvaluation.agreeing`)."""
    entries = matrix.differing
    met = rule_evaluation.compare_all(part.operator, entries.lowest, entries.highest, part.target)
    agreeing = np.zeros(matrix.states.shape, bool)
    agreeing[entries.steps[met], entries.nodes[met]] = True
    return agreeing


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
    # from the second time at which a node exists
    changes = int(((rejected[1:] != rejected[:-1]) & history.exists[:-1]).sum())
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


def _flaps(rejected: Mask, history: History) -> NDArray[np.intp]:
    """The number of flaps of each node. A part of the nodes at a time, because the edges take much memory."""
    flaps = np.zeros(rejected.shape[1], np.intp)
    for at in range(0, rejected.shape[1], _FLAP_NODES):
        part = rejected[:, at : at + _FLAP_NODES].T
        edges = np.diff(np.pad(part.astype(np.int8), ((0, 0), (1, 1))), axis=1)
        # in the order of nodes and times, so that the start after an end is that of the next rejection
        starting_nodes, starts = np.nonzero(edges == 1)
        _, ends = np.nonzero(edges == -1)
        passed_s = (starts[1:] - ends[:-1]) * history.step_s
        is_flap = (starting_nodes[1:] == starting_nodes[:-1]) & (passed_s <= PERIOD_S)
        flaps[at : at + len(part)] = np.bincount(starting_nodes[1:][is_flap], minlength=len(part))
    return flaps


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
    flaps, steps = _flaps(rejected, history), rejected.sum(axis=0)
    nodes = []
    for node in np.argsort(-steps, kind="stable").tolist():
        if steps[node]:
            intervals = _intervals(rejected[:, node], history)
            rejected_s = float(steps[node] * history.step_s)
            nodes.append(
                NodeRejections(names[node], rejected_s, int(flaps[node]), len(intervals), intervals[-1])
            )
    return nodes


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
