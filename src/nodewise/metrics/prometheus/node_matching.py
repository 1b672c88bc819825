"""Matches series to nodes: a series belongs to the node that one of its labels names, or to none.

Of the configured labels, only those apply that name a node in at least one series of the response; of these, the first
label of a series decides. So `node="0"`, the number of a memory zone, is ignored in favour of `instance`. If `node`
does name nodes, a series of a deleted node does not match the node that reports it.
"""

from collections.abc import Generator, Iterable, Sequence
from itertools import chain, islice
from typing import Final, NamedTuple

from nodewise.metrics import aggregation
from nodewise.metrics.node_attributes import NodeAttributes
from nodewise.metrics.prometheus import query_responses
from nodewise.metrics.prometheus.query_responses import SeriesValue
from nodewise.metrics.series import Sample

_MOST_NAMED: Final = 5
_MOST_EXAMINED: Final = 20
_MOST_LABELS: Final = 64
"""Series and labels of each that are examined for a hint, which takes less than a millisecond."""
_STRIDE: Final = 32
"""Number of series in one part of the work, which takes about 0.1 ms; yielding after each would take longer."""


class SeriesByNode(NamedTuple):
    """The series of each node."""

    by_node: dict[str, list[SeriesValue]]
    unmatched: list[SeriesValue]
    """Series that match no node."""


class NodeValues(NamedTuple):
    """The value of each node."""

    samples: dict[str, Sample]
    invalid: dict[str, str]
    """By node name, the reason why a node with a series has no value."""


Identity = frozenset[tuple[str, str]]
"""The labels of a series."""


def group_by_node(
    series: Iterable[SeriesValue], labels: Sequence[str], nodes: NodeAttributes
) -> Generator[None, None, SeriesByNode]:
    """Group the series by node; yields between parts of the work."""
    parsed: list[SeriesValue] = []
    for item in series:
        parsed.append(item)
        if not len(parsed) % _STRIDE:
            yield
    deciding = yield from _labels_that_name_nodes(parsed, labels, nodes)
    return (yield from _group_series(parsed, deciding, nodes))


def depends_on_ended_series(grouped: SeriesByNode, aggregate: str) -> Generator[None, None, bool]:
    """Whether the values depend on which series have ended; yields between parts of the work.

    They do if the series of a node have samples of different times: of one exporter that was restarted and has a new
    `pod` label, or of two exporters that are scraped at different times.
    """
    for number, own in enumerate(grouped.by_node.values()):
        if (
            len(own) > 1
            and len({item.at for item in own}) > 1
            and (aggregate or len({item.value for item in own}) > 1)
        ):
            return True
        if not number % _STRIDE:
            yield
    return False


def identities(series: Iterable[SeriesValue]) -> Generator[None, None, frozenset[Identity]]:
    """The labels of all series; yields between parts of the work."""
    identities: set[Identity] = set()
    for number, item in enumerate(series):
        identities.add(frozenset(item.labels.items()))
        if not number % _STRIDE:
            yield
    return frozenset(identities)


def reduce(
    grouped: SeriesByNode, aggregate: str, current: frozenset[Identity] | None = None
) -> Generator[None, None, NodeValues]:
    """The value of each node; yields between parts of the work.

    Of several series of a node only those in `current` count; all of them if there are none, or if `current` is None.
    """
    node_values = NodeValues({}, {})
    for number, (node, own) in enumerate(grouped.by_node.items()):
        counting = own
        if current is not None and len(own) > 1:
            counting = [item for item in own if frozenset(item.labels.items()) in current] or own
        try:
            node_values.samples[node] = _aggregate_series_of_node(counting, aggregate)
        except ValueError as error:
            node_values.invalid[node] = str(error)
        if not number % _STRIDE:
            yield
    return node_values


def describe_unmatched_series(grouped: SeriesByNode, labels: Sequence[str]) -> str:
    """An example of the unmatched series, with its values of the configured labels."""
    if not grouped.unmatched:
        return ""
    own = grouped.unmatched[0].labels
    pairs = [f'{label}="{own[label][:80]}"' for label in labels if label in own]
    return ", ".join(pairs) or f"a series without {' or '.join(labels)}"


def other_labels_that_name_nodes(
    unmatched: Sequence[SeriesValue], labels: Sequence[str], nodes: NodeAttributes
) -> list[str]:
    """The labels, other than the configured ones, whose value names a node in one of the first series."""
    naming = {
        label
        for item in unmatched[:_MOST_EXAMINED]
        for label, text in islice(item.labels.items(), _MOST_LABELS)
        if label not in labels and nodes.find(text) is not None
    }
    return sorted(naming, key=lambda label: (len(label), label))


def nodes_of_series(
    series: Sequence[SeriesValue], labels: Sequence[str], nodes: NodeAttributes
) -> Generator[None, None, list[str | None]]:
    """The node of each series, None for an unmatched one; yields between parts of the work."""
    deciding = yield from _labels_that_name_nodes(series, labels, nodes)
    owning: list[str | None] = []
    for item in series:
        owning.append(_node_of(item, deciding, nodes))
        if not len(owning) % _STRIDE:
            yield
    return owning


def _aggregate_series_of_node(own: Sequence[SeriesValue], aggregate: str) -> Sample:
    """The value of one node. ValueError with the reason if it has none."""
    if len(own) == 1:
        return _sample_of_series(own[0])
    return aggregation.reduce(
        [_sample_or_error_text(item) for item in own], aggregate, _describe_conflict(own)
    )


def _sample_of_series(item: SeriesValue) -> Sample:
    # a scraped value applies to a point in time, not to a window
    return Sample(query_responses.parse_sample_value(item.value), item.at, 0.0)


def _sample_or_error_text(item: SeriesValue) -> Sample | str:
    try:
        return _sample_of_series(item)
    except ValueError as error:
        return str(error)


def _describe_conflict(own: Sequence[SeriesValue]) -> str:
    """The labels in which the series differ, and the remedy."""
    names = dict.fromkeys(chain.from_iterable(item.labels for item in own))
    differing = [name for name in names if len({item.labels.get(name, "") for item in own}) > 1]
    listed = ", ".join(f'"{name[:80]}"' for name in differing[:_MOST_NAMED])
    where = f" in label{'s' if len(differing) > 1 else ''} {listed}" if differing else ""
    return aggregation.conflict_text(f"{len(own)} series", "use a query", where)


def _labels_that_name_nodes(
    series: Sequence[SeriesValue], labels: Sequence[str], nodes: NodeAttributes
) -> Generator[None, None, list[str]]:
    """The labels that name a node in at least one series."""
    deciding = []
    for label in labels:
        for number, item in enumerate(series):
            if (text := item.labels.get(label)) and nodes.find(text) is not None:
                deciding.append(label)
                break
            if not number % _STRIDE:
                yield
    return deciding


def _group_series(
    series: Sequence[SeriesValue], deciding: Sequence[str], nodes: NodeAttributes
) -> Generator[None, None, SeriesByNode]:
    by_node: dict[str, list[SeriesValue]] = {}
    unmatched: list[SeriesValue] = []
    for number, item in enumerate(series):
        node = _node_of(item, deciding, nodes)
        (unmatched if node is None else by_node.setdefault(node, [])).append(item)
        if not number % _STRIDE:
            yield
    return SeriesByNode(by_node, unmatched)


def _node_of(item: SeriesValue, deciding: Sequence[str], nodes: NodeAttributes) -> str | None:
    for label in deciding:
        if text := item.labels.get(label):
            return nodes.find(text)
    return None
