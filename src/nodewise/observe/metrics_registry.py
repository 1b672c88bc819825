"""Registry of the Prometheus metrics in the table `metric_definitions.METRICS`."""

import contextlib
from typing import Any, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from nodewise.observe.metric_definitions import METRICS, Metric

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
PREFIX: Final = "nodewise_"

disable_created_metrics()  # type: ignore[no-untyped-call]  # unused additional series per metric


class MetricsRegistry:
    """The metrics of one process. KeyError for a name that is not in the table.

    A gauge has no series until it is set: processes that have no such value do not report 0.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._metrics: dict[str, Any] = {name: self._make_metric(name, row) for name, row in METRICS.items()}
        self._series: dict[tuple[str, ...], Any] = {}
        """Cache by name and labels: prometheus_client takes four times as long to look up a series."""
        self._excluded: dict[str, frozenset[str]] = {}
        """By label: the values that are not exported."""

    def _make_metric(self, name: str, row: Metric) -> Counter | Gauge | Histogram:
        # prometheus_client adds the suffix of a counter itself
        full = PREFIX + name.removesuffix("_total")
        if row.kind == "counter":
            return Counter(full, row.help, row.labels, registry=self._registry)
        if row.kind == "gauge":
            # without labels it would show 0 before it is set; `_metric_with_labels` registers it
            return Gauge(full, row.help, row.labels, registry=self._registry if row.labels else None)
        return Histogram(full, row.help, row.labels, registry=self._registry, buckets=row.buckets)

    def _metric_with_labels(self, name: str, labels: dict[str, str]) -> Any:
        key = _metric_series_key(name, labels)
        series = self._series.get(key)
        if series is None:
            metric = self._metrics[name]
            if not labels and METRICS[name].kind == "gauge":
                self._registry.register(metric)
            series = self._series[key] = metric.labels(**labels) if labels else metric
        return series

    def count(self, name: str, amount: float = 1.0, **labels: str) -> None:
        self._metric_with_labels(name, labels).inc(amount)

    def set(self, name: str, value: float, **labels: str) -> None:
        if self._excluded and any(labels.get(label) in values for label, values in self._excluded.items()):
            return
        self._metric_with_labels(name, labels).set(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        self._metric_with_labels(name, labels).observe(value)

    def forget(self, name: str, **labels: str) -> None:
        """Remove one series of a metric with labels, so that deleted objects are not exposed forever."""
        self._series.pop(_metric_series_key(name, labels), None)
        with contextlib.suppress(KeyError):
            self._metrics[name].remove(*(labels[label] for label in METRICS[name].labels))

    def exclude(self, label: str, values: frozenset[str]) -> None:
        """From now on, export no gauge with one of these values of a label. Replaces the values that were excluded."""
        before, self._excluded[label] = self._excluded.get(label, frozenset()), values
        names = [name for name, row in METRICS.items() if row.kind == "gauge" and row.labels == (label,)]
        for value in values - before:
            for name in names:
                self.forget(name, **{label: value})

    def exposition(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self._registry)


def _metric_series_key(name: str, labels: dict[str, str]) -> tuple[str, ...]:
    return (name, *[labels[label] for label in METRICS[name].labels])
