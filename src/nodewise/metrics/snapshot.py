"""All metrics as they are known at one moment. Immutable: a refresh makes a new one."""

from collections.abc import Mapping

import msgspec

from nodewise.metrics.series import Series


class Snapshot(msgspec.Struct, frozen=True):
    """The newest series of each metric, and what came of asking."""

    series: Mapping[str, Series] = {}
    """By `Want.key`; a metric that was never fetched with success is not in here."""
    failures: Mapping[str, str] = {}
    """By `Want.key`: why the last fetch failed. The last good series, if any, stays and grows old."""

    def was_asked(self, metric: str) -> bool:
        """Whether a source answered about the metric at all, be it with an error."""
        return metric in self.series or metric in self.failures

    def with_series(self, series: Series) -> "Snapshot":
        failures = {name: why for name, why in self.failures.items() if name != series.metric}
        return Snapshot({**self.series, series.metric: series}, failures)

    def with_failure(self, metric: str, why: str) -> "Snapshot":
        return Snapshot(self.series, {**self.failures, metric: why})

    def only(self, metrics: frozenset[str]) -> "Snapshot":
        """Without the metrics that nobody names any more."""
        if metrics >= self.series.keys() | self.failures.keys():
            return self
        return Snapshot(
            {name: series for name, series in self.series.items() if name in metrics},
            {name: why for name, why in self.failures.items() if name in metrics},
        )
