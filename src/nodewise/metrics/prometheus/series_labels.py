"""The labels of series that say which node a series is of, and which replica has scraped it."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from nodewise.metrics.prometheus.options import NODE_LABELS, PrometheusOptions

EXPORTED: Final = "exported_"
"""Prometheus puts this before a label of an exporter's that its own label of the target replaces (`honor_labels`). So
the exporter's label says what the series is of, and the other one which target was scraped."""
INSTANCE: Final = "instance"
"""The scraped target."""
REPLICA_LABELS: Final = ("prometheus_replica", "replica", "__replica__", "receive_replica")
"""Labels in which the same series of several replicas of Prometheus, Thanos and Mimir differ."""
CLUSTER_LABELS: Final = ("cluster", "cluster_name", "k8s_cluster_name", "k8s.cluster.name")
"""Labels of the cluster. Nodes of several clusters may have the same name or address."""
_MAX_LISTED: Final = 4


class SeriesLabels(NamedTuple):
    """The labels that series are matched by."""

    node: tuple[str, ...]
    """In the order in which they decide."""
    added: frozenset[str]
    """Those of `node` that are not among the defaults. They are the operator's decision."""
    replica: frozenset[str]

    def text(self) -> str:
        """The labels in a message: `node or instance`, or the first ones of many."""
        names = [label for label in self.node if not label.startswith(EXPORTED)]
        if len(names) <= _MAX_LISTED:
            return " or ".join(names)
        return f"{', '.join(names[:_MAX_LISTED])} or another label of nodes"


def series_labels(options: PrometheusOptions = PrometheusOptions()) -> SeriesLabels:  # noqa: B008 - it is immutable
    """The labels of these options, which add to the defaults and come before them."""
    added = frozenset(options.prometheus_node_label) - frozenset(NODE_LABELS)
    return SeriesLabels(
        tuple(dict.fromkeys(_ordered_labels(options, added))),
        added,
        frozenset((*REPLICA_LABELS, *options.prometheus_replica_label)),
    )


def _ordered_labels(options: PrometheusOptions, added: frozenset[str]) -> Iterator[str]:
    for label in options.prometheus_node_label:
        if label in added:
            yield from (f"{EXPORTED}{label}", label)
    defaults = [label for label in (*options.prometheus_node_label, *NODE_LABELS) if label not in added]
    yield from (label if label.startswith(EXPORTED) else f"{EXPORTED}{label}" for label in defaults)
    yield from defaults
