"""The values of metrics by node number, with the causes of missing values. They are kept until they change. No I/O."""

from collections.abc import Generator
from typing import NamedTuple

from nodewise.agent import ClusterState, MetricRequest, NodeIndex
from nodewise.metrics import missing_values, nodes_without_values, series_arrays
from nodewise.metrics.missing_values import Cause
from nodewise.metrics.nodes_without_values import NodesWithoutValues
from nodewise.metrics.series import Series
from nodewise.metrics.series_arrays import Column


class MetricColumn(NamedTuple):
    """A metric by node number."""

    series: Series
    nodes: NodeIndex
    column: Column
    cause: Cause | None
    """Why no node has a value; None if a node has one."""
    cause_on_some_nodes: Cause
    """Why nodes without a value have none, if other nodes have values."""
    without_values: NodesWithoutValues
    without_values_text: str
    """Which nodes have no value while others have one; empty for none."""


class MetricColumns:
    """The columns of all metrics, by `MetricRequest.key`.

    Each build of the state calls `update` for each metric, and `finish`.
    """

    def __init__(self) -> None:
        self._columns: dict[str, MetricColumn] = {}

    def update(
        self, metric_request: MetricRequest, cluster_state: ClusterState
    ) -> Generator[None, None, None]:
        """Lay the metric out by node number, unless neither its values nor the nodes changed."""
        metric, nodes = metric_request.key, cluster_state.nodes
        series = cluster_state.metrics.series.get(metric)
        known = self._columns.get(metric)
        if series is None:
            self._columns.pop(metric, None)
        elif known is None or known.series is not series or known.nodes is not nodes:
            column = yield from series_arrays.build_column(series, nodes)
            is_empty = not (series.samples or series.invalid or series.incomplete)
            is_healthy = metric_request.empty_is_healthy and is_empty
            cause = None if is_healthy else missing_values.cause_of_series(series, nodes, column)
            cause_on_some_nodes = missing_values.cause_on_some_nodes(series, nodes)
            yield
            without = nodes_without_values.nodes_without_values(
                series, nodes, column, empty_is_healthy=metric_request.empty_is_healthy
            )
            if known is not None and known.without_values == without:
                text = known.without_values_text
            else:
                text = yield from nodes_without_values.describe(metric_request.name, without)
            self._columns[metric] = MetricColumn(
                series, nodes, column, cause, cause_on_some_nodes, without, text
            )

    def finish(self, cluster_state: ClusterState) -> None:
        """Drop the metrics that have no values."""
        series = cluster_state.metrics.series
        self._columns = {metric: column for metric, column in self._columns.items() if metric in series}

    def get(self, metric: str) -> MetricColumn | None:
        """The metric with this key; None if it has no values."""
        return self._columns.get(metric)

    def column(self, metric: str, cluster_state: ClusterState) -> Column:
        """The values of the metric with this key; of none, an empty column."""
        known = self._columns.get(metric)
        return known.column if known else series_arrays.empty_column(cluster_state.nodes)
