"""Answers requests for metrics from the series of a test, with the semantics of Prometheus as a source.

A metric is a range query, so a node has the newest sample that is not older than the maximum age of the request, or
than 2.5 distances of samples, also if the series has ended since. A query is evaluated at once, so a node has the
sample of this interval or none.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from nodewise.base import cooperative_scheduling
from nodewise.metrics import sample_distance
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.node_attributes import NodeAttributes
from nodewise.metrics.prometheus import node_matching, series_labels, series_owners
from nodewise.metrics.prometheus.query_responses import NAN, SeriesValue
from nodewise.metrics.series import Series, pack_samples
from nodewise.policy_tools.policy_suites.series_notation import STALE
from nodewise.policy_tools.policy_suites.suite import START, InputSeries, PolicyTest
from nodewise.policy_tools.policy_timeline import Response

LABELS: Final = series_labels.series_labels()
"""The labels that name the node of a series."""
_LOOKBACK_S: Final = 300.0
"""Prometheus ends a series that has had no sample for this time."""
_SOURCE: Final = "suite"


class InputSeriesSource:
    """The series of a test."""

    def __init__(self, test: PolicyTest) -> None:
        self._series = test.series
        self._interval_s = test.interval_s
        self._nodes = NodeAttributes({}, {name: name for name in test.nodes})

    def respond(self, requests: Mapping[str, MetricRequest], at_s: float) -> dict[str, Response]:
        """The response to each request, by key, at a time since the beginning of the test."""
        return {key: self._respond(request, at_s) for key, request in requests.items()}

    def _respond(self, request: MetricRequest, at_s: float) -> Response:
        run = cooperative_scheduling.run_without_pauses
        own = [series for series in self._series if _answers(series, request)]
        values = list(self._values(own, request, at_s))
        grouped = run(node_matching.group_by_node(values, LABELS, self._nodes))
        distance_s = run(node_matching.sample_distance_s(grouped))
        max_age_s = sample_distance.derived_max_age_s(request.max_age_s, distance_s)
        grouped = run(node_matching.without_old_series(grouped, max_age_s))
        if not grouped.by_node and not request.empty_is_healthy:
            return "no series of the test has a value"
        current = None
        if run(node_matching.depends_on_ended_series(grouped, request.aggregate)):
            active = [series for series in own if self._is_active(series, at_s)]
            current_series = (SeriesValue(series.labels, "", None) for series in active)
            current = frozenset(series_owners.identity(item, LABELS.replica) for item in current_series)
        node_values = run(node_matching.reduce(grouped, request.aggregate, LABELS, current))
        samples = run(pack_samples(node_values.samples))
        invalid, differing = node_values.invalid, node_values.differing
        return Series(
            request.key,
            _SOURCE,
            START + at_s,
            samples,
            invalid,
            differing,
            sample_distance_s=distance_s,
            is_distance_measured=distance_s is not None,
        )

    def _values(
        self, own: Sequence[InputSeries], request: MetricRequest, at_s: float
    ) -> Iterator[SeriesValue]:
        """The newest value of each series that the query returns."""
        for series in own:
            last = int(at_s // self._interval_s)
            if request.query:
                value = series.values[last] if last < len(series.values) else None
                if value is not None and value != STALE:
                    yield SeriesValue(series.labels, value, None)
                continue
            lookback_s = max(request.max_age_s, request.lookback_s)
            samples = list(self._samples(series, last, at_s - lookback_s))
            times = [at for at, _ in samples[: sample_distance.COUNTED]]
            distance_s = sample_distance.newest_distance_s(times)
            number = next((sample for sample in samples if sample[1] != NAN), None)
            if number is not None:
                has_ended = number is not samples[0]
                yield SeriesValue(series.labels, number[1], number[0], has_ended, distance_s)
            elif samples:
                yield SeriesValue(series.labels, NAN, samples[0][0], distance_s=distance_s)

    def _samples(self, series: InputSeries, last: int, since_s: float) -> Iterator[tuple[float, str]]:
        """Time and value of each sample since a time of the test, newest first."""
        for number in range(min(last, len(series.values) - 1), -1, -1):
            if number * self._interval_s < since_s:
                return
            value = series.values[number]
            if value is not None and value != STALE:
                yield START + number * self._interval_s, value

    def _is_active(self, series: InputSeries, at_s: float) -> bool:
        """Whether Prometheus does not regard the series as ended: its newest sample is no older than the lookback."""
        for number in range(min(int(at_s // self._interval_s), len(series.values) - 1), -1, -1):
            if series.values[number] is not None:
                is_recent = at_s - number * self._interval_s <= _LOOKBACK_S
                return is_recent and series.values[number] != STALE
        return False


def _answers(series: InputSeries, request: MetricRequest) -> bool:
    """Whether a series is a result of the request."""
    if request.query or series.query:
        return series.query == request.query
    return series.labels.get("__name__") == request.metric
