"""Snapshot of all metrics. It is immutable: a refresh creates a new one."""

from collections.abc import Mapping

import msgspec

from nodewise.metrics.series import Series


class MetricsSnapshot(msgspec.Struct, frozen=True):
    """The newest series of each metric, and the reasons of the last failures."""

    series: Mapping[str, Series] = {}
    """By `MetricRequest.key`; without metrics that have never been fetched successfully."""
    failures: Mapping[str, str] = {}
    """By `MetricRequest.key`: why the last fetch failed. The last successful series, if any, stays and ages."""
    causes: Mapping[str, str] = {}
    """By `MetricRequest.key`: why the last fetch gave no value, in words for a policy's status: without addresses, and
    without names of other tenants. A subset of `failures`: empty for other errors of a source."""

    def was_fetched(self, metric: str) -> bool:
        """Whether the metric has been fetched, successfully or not."""
        return metric in self.series or metric in self.failures

    def with_series(self, series: Series) -> "MetricsSnapshot":
        failures, causes = _without(self.failures, series.metric), _without(self.causes, series.metric)
        return MetricsSnapshot({**self.series, series.metric: series}, failures, causes)

    def with_failure(self, metric: str, why: str, cause: str = "") -> "MetricsSnapshot":
        causes = {**self.causes, metric: cause} if cause else _without(self.causes, metric)
        return MetricsSnapshot(self.series, {**self.failures, metric: why}, causes)

    def only(self, metrics: frozenset[str]) -> "MetricsSnapshot":
        """The snapshot without all other metrics."""
        if metrics >= self.series.keys() | self.failures.keys():
            return self
        return MetricsSnapshot(
            {name: series for name, series in self.series.items() if name in metrics},
            {name: why for name, why in self.failures.items() if name in metrics},
            {name: cause for name, cause in self.causes.items() if name in metrics},
        )


def _without(texts: Mapping[str, str], metric: str) -> Mapping[str, str]:
    return {name: text for name, text in texts.items() if name != metric}
