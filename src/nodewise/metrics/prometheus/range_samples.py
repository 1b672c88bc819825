"""All samples of a range such as `expression[1d:5m]`, from an instant query."""

from collections.abc import Generator
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.base.errors import UNREADABLE
from nodewise.metrics.node_attributes import NodeAttributes
from nodewise.metrics.prometheus import series_owners
from nodewise.metrics.prometheus.query_responses import QueryResponse, SeriesValue
from nodewise.metrics.prometheus.series_labels import SeriesLabels


class _RangeSeries(msgspec.Struct, frozen=True, gc=False):
    metric: dict[str, str] = {}
    values: list[tuple[float, str]] = []


_decode: Final = msgspec.json.Decoder(_RangeSeries).decode

Points = NDArray[np.float64]
"""One row per sample, oldest first: seconds since 1970, value. Only finite values."""


def samples_by_node(
    answer: QueryResponse, labels: SeriesLabels, nodes: NodeAttributes
) -> Generator[None, None, dict[str, Points]]:
    """The samples of each node; yields between series.

    All series of a node count, for example those of a restarted exporter; of two samples of the same time the last. A
    node of which it is not clear which series are meant has none.
    """
    ranges: list[tuple[SeriesValue, Points]] = []
    for raw in answer.series:
        try:
            series = _decode(raw)
            points = np.array(series.values, np.float64).reshape(-1, 2)
        except UNREADABLE:
            continue
        ranges.append((SeriesValue(series.metric, "", None), points[np.isfinite(points[:, 1])]))
        yield
    owners = yield from series_owners.match_series([item for item, _ in ranges], labels, nodes)
    merged: dict[str, Points] = {}
    for (_, points), node in zip(ranges, owners.nodes, strict=True):
        if node is not None and node not in owners.conflicts and points.size:
            merged[node] = _concatenate_samples(merged[node], points) if node in merged else points
        yield
    return merged


def _concatenate_samples(first: Points, second: Points) -> Points:
    both = np.concatenate((second, first))
    _, places = np.unique(both[:, 0], return_index=True)
    return both[places]
