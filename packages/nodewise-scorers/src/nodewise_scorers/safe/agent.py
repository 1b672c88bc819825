"""The agent safe: the load of nodes with the pod, as shares of capacity, and its answers, with details.

It rejects and scores nodes by the probability that they are overloaded with the pod, and by their load.
"""

from collections.abc import Generator, Mapping
from typing import Any, ClassVar, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import (
    MAX_SCORE,
    ClusterState,
    FilterPlugin,
    Inputs,
    MetricRequest,
    Names,
    ObjectKey,
    Reason,
    ScorePlugin,
    Scores,
    Snapshot,
    Verdict,
    Victims,
)
from nodewise.kube import pod_requests
from nodewise.kube.pod_requests import PodRequest
from nodewise_scorers.load.bound_pods import OwnedPod
from nodewise_scorers.load.in_flight_accounting import CountingStateBuilder, InFlight, InFlightAccounting
from nodewise_scorers.safe import SafeOptions, risk_scores
from nodewise_scorers.safe.risk_scores import RiskScorer
from nodewise_scorers.scoring_agent import NoStatistics, StatisticsNotReady, StatisticStatus
from nodewise_scorers.statistics.load_annotations import UsageAnnotations
from nodewise_scorers.statistics.node_usage_reader import RESOURCES, LoadReader, NodeLoads, Table, UsageNode

NodeFields = UsageNode
_UNKNOWN_POINTS: Final = -1
_BLOCK: Final = 64
"""Candidates whose risk is computed together in about 0.3 ms; one by one it takes ten times as long."""


PodFields = OwnedPod


def has_statistics(node: Any) -> bool:
    """Whether the node has an annotation with statistics; it may have fields of other agents."""
    annotations = node.metadata.annotations
    fields = set(UsageAnnotations.__struct_fields__) - {"annotated_at"}
    return annotations is not None and any(getattr(annotations, field) is not None for field in fields)


class SafeState(NamedTuple):
    """The load of all nodes without the pod, by resource and node number. NaN where there are no statistics."""

    used: Table
    """The mean, combined with the forecast; never below 0."""
    capacity: Table
    deviation: Table
    """A share, from 0 to 1; 0 where there is none."""
    missing: NDArray[np.uint8]
    """`StatisticStatus`."""
    in_flight: InFlight | None = None
    """None if pods in flight are not counted."""


class Shares(NamedTuple):
    """The load with the pod, by resource and candidate: from 0 to 1, NaN where there are no statistics."""

    mean: Table
    deviation: Table
    missing: NDArray[np.uint8]
    """`StatisticStatus`."""


class SafeStateBuilder(CountingStateBuilder[SafeState | None]):
    """Computes what does not depend on the pod, for all nodes."""

    def __init__(self, options: SafeOptions) -> None:
        super().__init__(InFlightAccounting() if options.in_flight else None)
        self.inputs = Inputs(self.counted_objects, node_objects=True, metrics=options.statistics == "metrics")
        self._window_s = options.statistics_window_s
        self._forecast_weight = options.safe_forecast_weight / 100
        self._reader = LoadReader(options)

    def metric_requests(self, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> frozenset[MetricRequest]:
        """The metrics of the nodes' load, for any objects."""
        return self._reader.metric_requests | super().metric_requests(objects)

    def build(self, cluster_state: ClusterState) -> Generator[None, None, SafeState | None]:
        """The load of all nodes; None before its metrics were requested, because they are not missing yet."""
        requests = self._reader.metric_requests
        if not all(cluster_state.metrics.was_fetched(request.key) for request in requests):
            return None
        load = yield from self._reader.read(cluster_state)
        yield
        state = combine_load_and_forecast(load, self._forecast_weight)
        if self._accounting is None:
            return state
        ends = cluster_state.now - load.ages_s
        in_flight = yield from self._accounting.count(cluster_state, ends, self._window_s, load.used)
        return state._replace(in_flight=in_flight)


create_state_builder = SafeStateBuilder


def combine_load_and_forecast(load: NodeLoads, forecast_weight: float) -> SafeState:
    """The load combined with the forecast, whose weight is from 0 to 1.

    A pod adds its request to the mean and nothing to the deviation, so only the deviation is divided here already.
    """
    is_absent = load.missing > 0
    capacity = np.where(is_absent, np.nan, load.capacity)
    with np.errstate(over="ignore"):
        expected = (1 - forecast_weight) * load.used + forecast_weight * load.forecast
        used = np.maximum(np.where(np.isnan(load.forecast), load.used, expected), 0.0)
        deviation = np.clip(np.nan_to_num(load.deviation, nan=0.0) / capacity, 0.0, 1.0)
    has_no_deviation = np.isnan(load.deviation) & ~is_absent
    missing = np.where(has_no_deviation, np.uint8(StatisticStatus.NO_DEVIATION), load.missing)
    return SafeState(used, capacity, deviation, missing)


def usage_shares_with_pod(before: SafeState, numbers: NDArray[np.intp], request: PodRequest) -> Shares:
    """The shares of the nodes with these numbers, with the pod."""
    demand = np.array(request, np.float64)[:, np.newaxis]
    if before.in_flight is not None:
        demand = demand + before.in_flight.of(numbers)
    mean = (before.used.take(numbers, axis=1) + demand) / before.capacity.take(numbers, axis=1)
    deviation, missing = before.deviation.take(numbers, axis=1), before.missing.take(numbers, axis=1)
    return Shares(np.clip(mean, 0.0, 1.0), deviation, missing)


class TooRisky(msgspec.Struct, frozen=True):
    """The risk that too much of the resource is used with the pod is too high."""

    resource: str
    percentile: int
    utilization: int
    is_failure: ClassVar[bool] = False
    is_unresolvable: ClassVar[bool] = True

    def text(self) -> str:
        return f"safe: risk of {self.resource} above {self.percentile} %"

    def remedy(self) -> str:
        return (
            f"the risk is that more than {self.utilization} % of the node's {self.resource} are used; it falls when "
            "the node's load falls or varies less, or with a pod that requests less"
        )


class SafeAgent(FilterPlugin[PodFields, SafeState], ScorePlugin[PodFields, SafeState]):
    """The agent `safe`: predicate `safe-overload`, priorities `safe-overload` and `safe-balance`."""

    name = "safe"

    def __init__(self, options: SafeOptions) -> None:
        """`BadSettings` if scipy is not installed."""
        self._options = options
        self._scorer = RiskScorer(options.safe_utilization / 100, options.safe_percentile / 100)
        self._points_missing = options.score_without_statistics(0)  # as in the older system
        risks = (
            TooRisky(resource, options.safe_percentile, options.safe_utilization) for resource in RESOURCES
        )
        self._reasons: tuple[Reason, ...] = (*risks, NoStatistics(self.name))
        self.predicates = {"safe-overload": self.filter}
        self.priorities = {"safe-overload": self.score, "safe-balance": self.balance}

    def equivalence_key(self, pod: PodFields, snapshot: Snapshot) -> PodRequest:  # noqa: ARG002
        """What the pod requests; no other field matters."""
        return pod_requests.cpu_and_memory(pod.spec)

    def filter(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Verdict | None:
        """Rejects nodes where the risk of overload is above the percentile."""
        return self.preempt(pod, candidates, snapshot, {})

    def preempt(
        self, pod: PodFields, candidates: Names, snapshot: Snapshot, victims: Victims
    ) -> Verdict | None:
        """As `filter`, because it is unknown which part of the measured load is a victim's.

        If the pod itself is a victim, its load is already measured and is not added again.
        """
        base = self.state(snapshot)
        if base is None:
            reason = StatisticsNotReady("safe", "the load of nodes is not known yet")
            return Verdict(np.ones(len(candidates), np.int16), (reason,))
        with_pod = usage_shares_with_pod(base, candidates.numbers, pod_requests.cpu_and_memory(pod.spec))
        if victims:
            is_running_there = [pod.metadata.uid in victims.get(name, ()) for name in candidates.tolist()]
            measured = usage_shares_with_pod(base, candidates.numbers, PodRequest())
            with_pod = with_pod._replace(mean=np.where(is_running_there, measured.mean, with_pod.mean))
        cpu, memory = self._scorer.rejects(with_pod.mean, with_pod.deviation)
        codes = np.where(cpu, np.int16(1), np.where(memory, np.int16(2), np.int16(0)))
        if self._options.rejects_missing:
            codes[np.isnan(with_pod.mean).all(axis=0)] = 3
        return Verdict(codes, self._reasons, details=self._build_details(with_pod))

    def score(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Scores | None:
        """`safe-overload`: the lower the risk the higher the score."""
        base = self.state(snapshot)
        if base is None:
            return None
        with_pod = usage_shares_with_pod(base, candidates.numbers, pod_requests.cpu_and_memory(pod.spec))
        return self._lowest_resource_scores(self._scorer.scores(with_pod.mean, with_pod.deviation), with_pod)

    def balance(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Scores | None:
        """`safe-balance`: the lower the load, mean and variation together, the higher the score.

        The load is half of the mean and the root of the deviation together: 10 for an unused node, 0 for a full one.
        Halves are rounded up.
        """
        base = self.state(snapshot)
        if base is None:
            return None
        with_pod = usage_shares_with_pod(base, candidates.numbers, pod_requests.cpu_and_memory(pod.spec))
        load = (with_pod.mean + np.sqrt(with_pod.deviation)) / 2
        points = np.nan_to_num(np.floor(MAX_SCORE * (1 - load) + 0.5), nan=_UNKNOWN_POINTS)
        return self._lowest_resource_scores(points.astype(np.int64), with_pod)

    def _lowest_resource_scores(self, points: NDArray[np.int64], with_pod: Shares) -> Scores:
        """A node's score is the lowest of its resources' points."""
        known = np.where(points == _UNKNOWN_POINTS, MAX_SCORE + 1, points).min(axis=0)
        scores = np.where(known > MAX_SCORE, self._points_missing, known)
        return Scores(scores, details=self._build_details(with_pod))

    def _build_details(self, with_pod: Shares) -> "RiskDetails":
        scorer = self._scorer
        return RiskDetails(with_pod, scorer, prints_table=self._options.safe_print_table)


create_agent = SafeAgent


class RiskDetails:
    """Details of one response (`agent.Details`). Exact risks are computed when they are first read."""

    def __init__(self, shares: Shares, scorer: RiskScorer, *, prints_table: bool = False) -> None:
        self.shares = shares
        self._scorer = scorer
        self._prints_table = prints_table
        self._risks: dict[int, Table] = {}
        """By block, by resource and candidate."""

    @property
    def nbytes(self) -> int:
        """Includes the risks of all candidates."""
        return sum(array.nbytes for array in self.shares) + self.shares.mean.nbytes

    def text(self, candidate: int) -> str:
        """`cpu 62 % ± 10 %, risk 0.03 %; memory: no statistics`."""
        texts = []
        for number, resource in enumerate(RESOURCES):
            missing = StatisticStatus(int(self.shares.missing[number, candidate]))
            if missing not in (StatisticStatus.PRESENT, StatisticStatus.NO_DEVIATION):
                texts.append(f"{resource}: {missing.words}")
                continue
            mean = _format_percent(self.shares.mean[number, candidate])
            deviation = f" ± {_format_percent(self.shares.deviation[number, candidate])}"
            if missing:
                deviation = f", {missing.words}"
            risk = _format_percent(self._candidate_risk(number, candidate))
            texts.append(f"{resource} {mean}{deviation}, risk {risk}")
        return "; ".join(texts)

    def _candidate_risk(self, number: int, candidate: int) -> float:
        block, place = divmod(candidate, _BLOCK)
        return float(self._compute_risks_of_block(block)[number, place])

    def _compute_risks_of_block(self, block: int) -> Table:
        """The risks of some candidates, by resource."""
        if block not in self._risks:
            here = slice(block * _BLOCK, (block + 1) * _BLOCK)
            mean, deviation = self.shares.mean[:, here], self.shares.deviation[:, here]
            self._risks[block] = self._scorer.risk(mean, deviation)
        return self._risks[block]

    def distances(self) -> NDArray[np.float64]:
        """By candidate: how far the risk is above the accepted one; 1 where there are no statistics."""
        size = self.shares.mean.shape[1]
        if not size:
            return np.zeros(0)
        blocks = [self._compute_risks_of_block(block) for block in range(-(-size // _BLOCK))]
        worst = np.fmax(*np.concatenate(blocks, axis=1))
        accepted = self._scorer.percentile
        beyond = np.maximum(worst - accepted, 0.0) / max(1 - accepted, np.finfo(float).tiny)
        distances: NDArray[np.float64] = np.nan_to_num(np.minimum(beyond, 1.0), nan=1.0)
        return distances

    def numbers(self, candidate: int) -> Mapping[str, Any]:
        """By resource: `mean_share`, `std_share`, `alpha`, `beta`, `risk`, `threshold`; `missing` where it is."""
        by_resource = {}
        for number, resource in enumerate(RESOURCES):
            mean = float(self.shares.mean[number, candidate])
            deviation = float(self.shares.deviation[number, candidate])
            shapes = risk_scores.fit(mean, deviation if deviation >= risk_scores.STEADY else 0.0)
            numbers: dict[str, Any] = {
                "mean_share": mean,
                "std_share": deviation,
                "alpha": float(shapes.alpha),
                "beta": float(shapes.beta),
                "risk": self._candidate_risk(number, candidate),
                "threshold": self._scorer.threshold,
            }
            if missing := StatisticStatus(int(self.shares.missing[number, candidate])):
                numbers["missing"] = missing.words
            if self._prints_table and risk_scores.is_valid(*shapes):
                numbers["table"] = risk_scores.distribution_table(*shapes)
            by_resource[resource] = numbers
        return by_resource


def _format_percent(share: float) -> str:
    """Format with three digits: `62 %`, `0.0345 %`."""
    return f"{100 * share:.3g} %"
