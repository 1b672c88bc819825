"""Evaluates policies and their variants over the history of their metrics, block by block. No I/O.

The verdicts are those of the agent's state builder at each time (`policy_timeline`). Variants of a policy and single
rules are evaluated as arrays (`backtest_summary`).

A variant is one rule alone, or a rule with another threshold or missing-value behaviour.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import NodeIndex
from nodewise.base import clock, quantity
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.prometheus.range_matrix import NodeMatrix, TimeGrid
from nodewise.metrics.series import DifferingValues, Floats, NodeNames, Samples, Series, Values, ValueState
from nodewise.policies import rule_operators
from nodewise.policies.placement_policy import AvoidRule, Comparison, Policy, PolicyKey
from nodewise.policies.policy_rejection_reasons import NeverFetched, RuleUnusable
from nodewise.policies.state import PolicyState
from nodewise.policy_tools.backtest_summary import Mask, RuleArrays, RuleContext, Steps
from nodewise.policy_tools.policy_timeline import PolicyTimeline, Response, TimelineSettings

_SHARES: Final = (0.01, 0.05, 0.1)  # the proposed thresholds are met by these shares of all values
_SIGNIFICANT_DIGITS: Final = 3
_TIMES_S: Final = (300.0, 900.0)  # proposed values of `for`; the last one also of `keepFor`
_CURVE_POINTS: Final = 101


class Variant(NamedTuple):
    """A policy with one rule changed, or with one rule only."""

    rule: int
    """The position of the rule in `avoid`."""
    change: str
    """Such as `above 85`; empty for the rule alone."""
    policy: Policy


class ThresholdCurve(NamedTuple):
    """The effect of a comparison's threshold on all values of the past."""

    comparison: Comparison
    thresholds: Sequence[float]
    """Ascending, in units."""
    shares: Sequence[float]
    """For each threshold, the share of all values that meet the comparison."""


def comparison_text(part: Comparison) -> str:
    """`temp above 80`, or `max of temp above 80`."""
    name = part.query or part.metric
    return f"{f'{part.aggregate} of ' if part.aggregate else ''}{name} {_condition(part)}"


def rule_text(rule: AvoidRule) -> str:
    """`temp above 80 and load above 4, for 5m`."""
    times = [
        f", {name} {clock.format_duration(seconds)}"
        for name, seconds in (("for", rule.times.for_s), ("keepFor", rule.times.keep_for_s))
        if seconds
    ]
    return " and ".join(map(comparison_text, rule.parts)) + "".join(times)


def _condition(part: Comparison) -> str:
    """`above 80`, or `above 80, release 75`."""
    release = "" if part.release is None else f", release {quantity.nano_to_text(part.release)}"
    return f"{part.operator} {quantity.nano_to_text(part.target)}{release}"


def single_rules(policy: Policy) -> list[Variant]:
    """Each rule alone."""
    return [
        Variant(position, "", msgspec.structs.replace(policy, avoid=(rule,)))
        for position, rule in enumerate(policy.avoid)
    ]


def alternatives(policy: Policy, samples: Mapping[str, NodeMatrix]) -> list[Variant]:
    """The policy with one part of a rule changed, without duplicates. `samples` are values of the past."""
    variants: list[Variant] = []
    if any(part.unusable for part in policy.avoided()):
        return variants  # it rejects every node, whatever else changes
    has_times = policy.key.kind != "TASPolicy"
    for position, rule in enumerate(policy.avoid):
        before, after = policy.avoid[:position], policy.avoid[position + 1 :]
        changes: list[tuple[str, tuple[AvoidRule, ...]]] = [("without it", ())] if before or after else []
        changes += (
            (text, (changed,)) for text, changed in _changed_rules(rule, samples, has_times=has_times)
        )
        variants += (
            Variant(position, text, msgspec.structs.replace(policy, avoid=(*before, *rules, *after)))
            for text, rules in changes
        )
    return variants


def _changed_rules(
    rule: AvoidRule, samples: Mapping[str, NodeMatrix], *, has_times: bool
) -> Iterator[tuple[str, AvoidRule]]:
    """The text of a change, and the changed rule. `has_times`: the kind has `for`, `keepFor` and `release`."""
    replace = msgspec.structs.replace
    for number, part in enumerate(rule.parts):
        has_releases = has_times and not rule.times.keep_for_s
        for text, changed in _changed_parts(part, samples, has_releases=has_releases):
            parts = (*rule.parts[:number], changed, *rule.parts[number + 1 :])
            yield text if len(rule.parts) == 1 else f"{part.metric} {text}", replace(rule, parts=parts)
    if has_times:
        yield from _other_times(rule)


def _other_times(rule: AvoidRule) -> Iterator[tuple[str, AvoidRule]]:
    """Other values of `for`, and of `keepFor` where there is no `release`."""
    has_release = any(part.release is not None for part in rule.parts)
    for name, attribute in (("for", "for_s"), ("keepFor", "keep_for_s")):
        old: float = getattr(rule.times, attribute)
        others = (0.0, *_TIMES_S) if name == "for" else () if has_release else (0.0, _TIMES_S[-1])
        for new in others:
            if new != old:
                text = f"{name}: {clock.format_duration(new)}"
                text = text if new else f"without {name} {clock.format_duration(old)}"
                times = rule.times._replace(**{attribute: new})
                yield text, msgspec.structs.replace(rule, times=times)


def _changed_parts(
    part: Comparison, samples: Mapping[str, NodeMatrix], *, has_releases: bool
) -> Iterator[tuple[str, Comparison]]:
    replace: Any = msgspec.structs.replace
    order = rule_operators.sort_direction(part.operator)
    for target in _other_targets(part, ordered_values(samples[part.metric_request().key])):
        changed = replace(part, target=target, release=None)
        yield _condition(changed), changed
    if has_releases and order and part.target:
        # a twentieth of the target beyond it, on the side of the nodes that pass
        release = part.target + order * (abs(part.target) // 20)
        if release != part.release:
            yield f"release: {quantity.nano_to_text(release)}", replace(part, release=release)
    if has_releases and part.release is not None:
        yield "without release", replace(part, release=None)
    if not part.empty_means:
        missing, text = ("pass", "Allow") if part.when_missing == "reject" else ("reject", "Reject")
        yield f"whenMissing: {text}", replace(part, when_missing=missing)


def ordered_values(matrix: NodeMatrix) -> Values:
    """All values, ascending."""
    return np.sort(matrix.values[matrix.states == ValueState.FRESH])


def _other_targets(part: Comparison, ordered: Values) -> list[int]:
    """Thresholds a tenth away from the target, and those that 1, 5 and 10 % of the values meet; the mildest first."""
    order = rule_operators.OPERATORS[part.operator].order
    if order == 0 or not len(ordered):
        return []
    targets = {part.target * 9 // 10, part.target * 11 // 10} if part.target else set()
    for share in _SHARES:
        place = round(share * (len(ordered) - 1))
        value = int(ordered[-1 - place] if order < 0 else ordered[place])
        unit: int = 10 ** max(len(str(abs(value))) - _SIGNIFICANT_DIGITS, 0)
        targets.add((value + unit // 2) // unit * unit)
    return sorted(targets - {part.target}, reverse=order < 0)


def threshold_curves(policy: Policy, samples: Mapping[str, NodeMatrix]) -> list[ThresholdCurve]:
    """The curve of each comparison that has an order."""
    curves = []
    for part in dict.fromkeys(policy.avoided()):
        ordered = ordered_values(samples[part.metric_request().key]) if not part.unusable else np.zeros(0)
        operator = rule_operators.OPERATORS.get(part.operator)
        if not len(ordered) or operator is None or operator.order == 0:
            continue
        floats = ordered.astype(float) / quantity.NANO
        target = part.target / quantity.NANO
        low, high = min(float(floats[0]), target), max(float(floats[-1]), target)
        margin = 0.05 * (high - low) or 1.0
        thresholds = np.linspace(low - margin, high + margin, _CURVE_POINTS)
        side = "left" if operator.includes_target == (operator.order < 0) else "right"
        below = np.searchsorted(floats, thresholds, side) / len(floats)  # type: ignore[call-overload]
        shares = below if operator.order > 0 else 1 - below
        curves.append(ThresholdCurve(part, thresholds.tolist(), shares.tolist()))
    return curves


SOURCE: Final = "prometheus"
_MAX_NAMES: Final = 256  # different sets of nodes with values that are remembered
_INVALID: Final = "no number that a rule can compare, or several that differ"


class MatrixResponses:
    """What a source would have returned at the times of matrices."""

    def __init__(self, names: NodeNames) -> None:
        """The sorted names of the columns."""
        self._names = names
        self._names_of = functools.lru_cache(_MAX_NAMES)(self._select_names)

    def response(self, request: MetricRequest, at: float, matrix: NodeMatrix, step: int) -> Response:
        """What the source would have returned at this time."""
        values, states = matrix.values[step], matrix.states[step]
        is_fresh = states == ValueState.FRESH
        invalid = {
            self._names.names[node]: _INVALID
            for node in np.flatnonzero(states == ValueState.INVALID).tolist()
        }
        if not (invalid or is_fresh.any() or request.empty_is_healthy or matrix.incomplete):
            return "no series in the history"
        names = self._names
        if not is_fresh.all():
            names, values = self._names_of(is_fresh.tobytes()), values[is_fresh]
        # the age is not known: as old as a fresh value may be, so that a value is not used at a later time
        measured_at = at - request.max_age_s
        measured = np.broadcast_to(measured_at, len(values))
        samples = Samples(names, values, measured, np.broadcast_to(0.0, len(values)))
        entries = matrix.differing.part(step, step + 1)
        differing = {
            self._names.names[node]: DifferingValues(lowest, highest, measured_at)
            for node, lowest, highest in zip(
                entries.nodes.tolist(), entries.lowest.tolist(), entries.highest.tolist(), strict=True
            )
        }
        return Series(
            request.key,
            SOURCE,
            at,
            samples,
            invalid,
            differing,
            incomplete=matrix.incomplete,
            sample_distance_s=matrix.sample_distance_s,
            # also if it is not known: the times of samples show no other one
            is_distance_measured=True,
        )

    def _select_names(self, is_fresh: bytes) -> NodeNames:
        """The names of the nodes with values, by a mask."""
        return NodeNames(tuple(itertools.compress(self._names.names, is_fresh)))


class PackedMask:
    """A mask of shape (steps, nodes) that grows, with eight nodes in a byte."""

    def __init__(self, node_count: int) -> None:
        self._node_count = node_count
        self._blocks: list[NDArray[np.uint8]] = []

    def append(self, mask: Mask) -> None:
        self._blocks.append(np.packbits(mask, axis=1))

    def mask(self) -> Mask:
        """All steps so far."""
        if not self._blocks:
            return np.zeros((0, self._node_count), bool)
        packed = np.concatenate(self._blocks)
        return np.unpackbits(packed, axis=1, count=self._node_count).astype(bool)


class PolicyRecord:
    """The verdicts of one policy, and of its variants."""

    def __init__(
        self, policy: Policy, variants: Sequence[Variant], arrays: RuleArrays, node_count: int
    ) -> None:
        self.policy: Final = policy
        self.variants: Final = variants
        self.rejected: Final = PackedMask(node_count)
        self.by_variant: Final = [PackedMask(node_count) for _ in variants]
        self.suspended_steps = 0
        """At how many times a rule was suspended."""
        self.unevaluable: Final[dict[str, int]] = {}
        """Why the policy rejected all nodes without comparing values, and at how many times."""
        self._arrays = arrays

    def add(
        self,
        times: Floats,
        states: Sequence[PolicyState],
        matrices: Mapping[str, NodeMatrix],
        node_count: int,
    ) -> None:
        """Add the states of a block of times."""
        rejected = np.zeros((len(states), node_count), bool)
        suspended: dict[str, Steps] = {}
        unfetched: dict[str, Steps] = {}
        for step, state in enumerate(states):
            if state.verdict is not None:
                rejected[step] = state.verdict.codes[:-1] != 0
                reason = state.verdict.reasons[0]
                if isinstance(reason, RuleUnusable | NeverFetched):
                    self.unevaluable[reason.text()] = self.unevaluable.get(reason.text(), 0) + 1
            for part in state.suspended:
                suspended.setdefault(part.metric_request().key, np.zeros(len(states), bool))[step] = True
            for metric in state.unfetched:
                unfetched.setdefault(metric, np.zeros(len(states), bool))[step] = True
            self.suspended_steps += bool(state.suspended)
        self.rejected.append(rejected)
        masks = self._arrays.rejected(
            [variant.policy for variant in self.variants], matrices, RuleContext(times, suspended, unfetched)
        )
        for packed, mask in zip(self.by_variant, masks, strict=True):
            packed.append(mask)


class Backtest:
    """Policies over the history of their metrics. Blocks are added in order; the times of all are one grid."""

    def __init__(
        self,
        timeline: PolicyTimeline,
        nodes: NodeIndex,
        variants: Callable[[Policy], Sequence[Variant]],
        settings: TimelineSettings,
    ) -> None:
        """The names of `nodes` are sorted."""
        reject_missing = settings.options.when_missing == "reject"
        self._max_ages = settings.max_ages
        self._timeline = timeline
        self._nodes = nodes
        self._responses = MatrixResponses(NodeNames(tuple(nodes.known)))
        self.records: Final = {
            key: PolicyRecord(
                policy,
                variants(policy),
                RuleArrays(len(nodes), self._max_ages, reject_missing=reject_missing),
                len(nodes),
            )
            for key, policy in timeline.policies.items()
            if policy.avoid
        }
        self._times: list[Floats] = []
        self.first_value_at = np.full(len(nodes), np.inf)
        """When each node first had a value of any metric; inf for never."""
        self.requests: Final = self.requests_for({})
        """The metrics that `avoid` needs, by key."""
        self.steps_without_values: Final[dict[str, int]] = dict.fromkeys(self.requests, 0)
        """By metric key, the number of times at which no node had a value."""

    @property
    def times(self) -> Floats:
        return np.concatenate(self._times) if self._times else np.zeros(0)

    def add(self, grid: TimeGrid, matrices: Mapping[str, NodeMatrix]) -> None:
        """Evaluate a block of times.

        Times before the first one at which each metric of `avoid` has values are left out: at the beginning of a
        history, a policy would reject every node, because its metrics count as never fetched.
        """
        first = 0 if self._times else self._first_usable_step(grid, matrices)
        if first:
            grid = grid.part(first, grid.steps)
            matrices = {key: matrix.since(first) for key, matrix in matrices.items()}
        if not grid.steps:
            return
        self._times.append(grid.times)
        for metric, matrix in matrices.items():
            present = matrix.states == ValueState.FRESH
            self.steps_without_values[metric] += int((~present.any(axis=1)).sum())
            present |= matrix.differing.mask(present.shape)
            first_at = np.where(present.any(axis=0), grid.times[np.argmax(present, axis=0)], np.inf)
            self.first_value_at = np.minimum(self.first_value_at, first_at)
        requests = self.requests_for({key: matrix.sample_distance_s for key, matrix in matrices.items()})
        by_policy: dict[PolicyKey, list[PolicyState]] = {key: [] for key in self.records}
        for step, at in enumerate(grid.times.tolist()):
            responses = {
                key: self._responses.response(request, at, matrices[key], step)
                for key, request in requests.items()
            }
            moment = self._timeline.advance(at, responses, self._nodes)
            for key, states in by_policy.items():
                states.append(moment.state.policies[key])
        for key, states in by_policy.items():
            self.records[key].add(grid.times, states, matrices, len(self._nodes))

    def requests_for(self, distances: Mapping[str, float | None]) -> dict[str, MetricRequest]:
        """The requests for metrics with samples at these distances, by key, each with the shortest maximum age of its
        rules: an array has one state for each value.
        """
        parts = (part for record in self.records.values() for part in record.policy.avoided())
        return self._max_ages.requests((part for part in parts if not part.unusable), distances)

    def _first_usable_step(self, grid: TimeGrid, matrices: Mapping[str, NodeMatrix]) -> int:
        """The first step at which each metric of `avoid` has a value; the number of steps if there is none."""
        has_values = np.ones(grid.steps, bool)
        for key, request in self.requests.items():
            if not request.empty_is_healthy:
                has_values &= (matrices[key].states == ValueState.FRESH).any(axis=1)
        return int(np.argmax(has_values)) if has_values.any() else grid.steps
