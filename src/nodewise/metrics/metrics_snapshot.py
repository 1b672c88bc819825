"""Snapshot of all metrics. It is immutable: a refresh creates a new one."""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from nodewise.metrics import missing_values
from nodewise.metrics.missing_values import Cause
from nodewise.metrics.series import Series

T = TypeVar("T")


class MetricsSnapshot(msgspec.Struct, frozen=True):
    """The newest series of each metric, and the reasons of the last failures."""

    series: Mapping[str, Series] = {}
    """By `MetricRequest.key`; without metrics that have never been fetched successfully."""
    failures: Mapping[str, str] = {}
    """By `MetricRequest.key`: why the last fetch failed. The last successful series, if any, stays and ages."""
    causes: Mapping[str, Cause] = {}
    """By `MetricRequest.key`: the causes of the failures, for a policy's status and explanations."""

    def was_fetched(self, metric: str) -> bool:
        """Whether the metric has been fetched, successfully or not."""
        return metric in self.series or metric in self.failures

    def with_series(self, series: Series) -> "MetricsSnapshot":
        failures, causes = _without(self.failures, series.metric), _without(self.causes, series.metric)
        return MetricsSnapshot({**self.series, series.metric: series}, failures, causes)

    def with_failure(self, metric: str, why: str, cause: Cause = missing_values.UNKNOWN) -> "MetricsSnapshot":
        return MetricsSnapshot(self.series, {**self.failures, metric: why}, {**self.causes, metric: cause})

    def with_older(self, older: "MetricsSnapshot") -> "MetricsSnapshot":
        """A snapshot that also has those metrics of an older one that are missing here."""
        rest = older.only(
            frozenset(name for name in (*older.series, *older.failures) if not self.was_fetched(name))
        )
        return MetricsSnapshot(
            {**rest.series, **self.series}, {**rest.failures, **self.failures}, {**rest.causes, **self.causes}
        )

    def only(self, metrics: frozenset[str]) -> "MetricsSnapshot":
        """The snapshot without all other metrics."""
        if metrics >= self.series.keys() | self.failures.keys():
            return self
        return MetricsSnapshot(
            {name: series for name, series in self.series.items() if name in metrics},
            {name: why for name, why in self.failures.items() if name in metrics},
            {name: cause for name, cause in self.causes.items() if name in metrics},
        )


def _without(by_metric: Mapping[str, T], metric: str) -> Mapping[str, T]:
    return {name: value for name, value in by_metric.items() if name != metric}
