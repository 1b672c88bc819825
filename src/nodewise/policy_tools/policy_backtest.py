"""Evaluates policies over the history of their metrics, block by block. No I/O.

The verdicts are those of the agent's state builder at each time (`policy_timeline`). Variants of a policy and single
rules are evaluated as arrays (`backtest_rules`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import NodeIndex
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.prometheus.range_matrix import NodeMatrix, TimeGrid
from nodewise.metrics.series import DifferingValues, Floats, NodeNames, Samples, Series, ValueState
from nodewise.policies.options import MaxAges, max_age_s
from nodewise.policies.placement_policy import Policy, PolicyKey
from nodewise.policies.policy_rejection_reasons import NeverFetched, RuleUnusable
from nodewise.policies.state import PolicyState
from nodewise.policy_tools.backtest_summary import Mask, RuleArrays, RuleContext, Steps
from nodewise.policy_tools.backtest_variants import Variant
from nodewise.policy_tools.policy_timeline import Moment, PolicyTimeline, Response, TimelineSettings

SOURCE: Final = "prometheus"
_MAX_NAMES: Final = 256
"""Different sets of nodes with values that are remembered."""
_INVALID: Final = "no number that a rule can compare, or several that differ"


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
        self._max_ages = MaxAges(
            max_age_s(settings.options, settings.sync_period_s),
            follows_samples=not settings.options.max_age_s,
        )
        self._timeline = timeline
        self._nodes = nodes
        self._names = NodeNames(tuple(nodes.known))
        self._names_by_mask: dict[bytes, NodeNames] = {}
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
        self._note_values(grid, matrices)
        requests = self.requests_for({key: matrix.sample_distance_s for key, matrix in matrices.items()})
        by_policy: dict[PolicyKey, list[PolicyState]] = {key: [] for key in self.records}
        for step, at in enumerate(grid.times.tolist()):
            moment = self._advance(step, at, matrices, requests)
            for key, states in by_policy.items():
                states.append(moment.state.policies[key])
        for key, states in by_policy.items():
            self.records[key].add(grid.times, states, matrices, len(self._nodes))

    def requests_for(self, distances: Mapping[str, float | None]) -> dict[str, MetricRequest]:
        """The requests for metrics with samples at these distances, by key, each with the shortest maximum age of its
        rules: an array has one state for each value.
        """
        requests: dict[str, MetricRequest] = {}
        for record in self.records.values():
            for part in record.policy.avoided():
                if not part.unusable:
                    request = part.metric_request()
                    age_s = self._max_ages.of_rule(part, distances.get(request.key))
                    known = requests.get(request.key)
                    age_s = age_s if known is None else min(age_s, known.max_age_s)
                    requests[request.key] = request._replace(max_age_s=age_s)
        return requests

    def _first_usable_step(self, grid: TimeGrid, matrices: Mapping[str, NodeMatrix]) -> int:
        """The first step at which each metric of `avoid` has a value; the number of steps if there is none."""
        has_values = np.ones(grid.steps, bool)
        for key, request in self.requests.items():
            if not request.empty_is_healthy:
                has_values &= (matrices[key].states == ValueState.FRESH).any(axis=1)
        return int(np.argmax(has_values)) if has_values.any() else grid.steps

    def _note_values(self, grid: TimeGrid, matrices: Mapping[str, NodeMatrix]) -> None:
        for key, matrix in matrices.items():
            present = matrix.states == ValueState.FRESH
            self.steps_without_values[key] += int((~present.any(axis=1)).sum())
            present |= matrix.differing.mask(present.shape)
            first = np.where(present.any(axis=0), grid.times[np.argmax(present, axis=0)], np.inf)
            self.first_value_at = np.minimum(self.first_value_at, first)

    def _advance(
        self, step: int, at: float, matrices: Mapping[str, NodeMatrix], requests: Mapping[str, MetricRequest]
    ) -> Moment:
        responses = {
            key: self._response(request, at, matrices[key], step) for key, request in requests.items()
        }
        return self._timeline.advance(at, responses, self._nodes)

    def _response(self, request: MetricRequest, at: float, matrix: NodeMatrix, step: int) -> Response:
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
            names, values = self._names_of(is_fresh), values[is_fresh]
        # the age is not known: as old as a fresh value may be, so that a value is not used at a later time
        measured_at = at - request.max_age_s
        measured = np.broadcast_to(measured_at, len(values))
        samples = Samples(names, values, measured, np.broadcast_to(0.0, len(values)))
        distance_s = matrix.sample_distance_s
        # also if it is not known: the times of samples show no other one
        return Series(
            request.key,
            SOURCE,
            at,
            samples,
            invalid,
            self._differing_values(matrix, step, measured_at),
            incomplete=matrix.incomplete,
            sample_distance_s=distance_s,
            is_distance_measured=True,
        )

    def _differing_values(
        self, matrix: NodeMatrix, step: int, measured_at: float
    ) -> dict[str, DifferingValues]:
        entries = matrix.differing.part(step, step + 1)
        return {
            self._names.names[node]: DifferingValues(lowest, highest, measured_at)
            for node, lowest, highest in zip(
                entries.nodes.tolist(), entries.lowest.tolist(), entries.highest.tolist(), strict=True
            )
        }

    def _names_of(self, is_fresh: NDArray[np.bool_]) -> NodeNames:
        key = is_fresh.tobytes()
        names = self._names_by_mask.get(key)
        if names is None:
            if len(self._names_by_mask) >= _MAX_NAMES:
                self._names_by_mask.clear()
            names = NodeNames(tuple(np.array(self._names.names, object)[is_fresh].tolist()))
            self._names_by_mask[key] = names
        return names
