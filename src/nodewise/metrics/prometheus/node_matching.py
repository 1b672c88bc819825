"""Groups the series of a response by node (`series_owners`), and reduces those of each node to one value.

Series that differ only in labels of replicas are one series, scraped several times: the newest sample counts.
"""

import math
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Final, NamedTuple

from nodewise.metrics import aggregation, sample_distance
from nodewise.metrics.node_attributes import NodeAttributes, host_of
from nodewise.metrics.prometheus import query_responses, series_owners
from nodewise.metrics.prometheus.query_responses import SeriesValue
from nodewise.metrics.prometheus.series_labels import SeriesLabels
from nodewise.metrics.prometheus.series_owners import Identity
from nodewise.metrics.series import DifferingValues, Sample

_MOST_NAMED: Final = 5
_MOST_EXAMINED: Final = 20
_MOST_LABELS: Final = 64
"""Series and labels of each that are examined for a hint, which takes less than a millisecond."""
_MAX_HOSTS: Final = 64
"""Names of hosts in series of no node that are kept."""
_MAX_HOST: Final = 253
_HOST: Final = re.compile(r"[a-z0-9._-]+")
_STRIDE: Final = 32
"""Number of series in one part of the work, which takes about 0.1 ms; yielding after each would take longer."""


class SeriesByNode(NamedTuple):
    """The series of each node."""

    by_node: dict[str, list[SeriesValue]]
    unmatched: list[SeriesValue]
    """Series that match no node."""
    conflicts: Mapping[str, str] = {}
    """By node, why it is not clear which of its series are meant."""


class NodeValues(NamedTuple):
    """The value of each node."""

    samples: dict[str, Sample]
    invalid: dict[str, str]
    """By node name, the reason why a node with a series has no value."""
    differing: dict[str, DifferingValues]
    """By node name, the values of nodes whose series differ, for some of `invalid`."""


def group_by_node(
    series: Iterable[SeriesValue], labels: SeriesLabels, nodes: NodeAttributes
) -> Generator[None, None, SeriesByNode]:
    """Group the series by node, each once; yields between parts of the work."""
    parsed: list[SeriesValue] = []
    for item in series:
        parsed.append(item)
        if not len(parsed) % _STRIDE:
            yield
    owners = yield from series_owners.match_series(parsed, labels, nodes)
    by_node: dict[str, list[SeriesValue]] = {}
    unmatched: list[SeriesValue] = []
    for number, (item, node) in enumerate(zip(parsed, owners.nodes, strict=True)):
        (unmatched if node is None else by_node.setdefault(node, [])).append(item)
        if not number % _STRIDE:
            yield
    for number, node in enumerate(owners.replicated):
        by_node[node] = _newest_replicas(by_node[node], labels.replica)
        if not number % _STRIDE:
            yield
    return SeriesByNode(by_node, unmatched, owners.conflicts)


def _newest_replicas(own: list[SeriesValue], replica: frozenset[str]) -> list[SeriesValue]:
    """The series, without those that differ from a newer one only in labels of replicas.

    One that has not ended is newer than one that has. Samples of one time, or of unknown times, have no newest one:
    then the same replica counts in every response.
    """
    newest: dict[Identity, SeriesValue] = {}
    for item in sorted(own, key=lambda item: sorted(item.labels.items())):
        identity = series_owners.identity(item, replica)
        before = newest.get(identity)
        if before is None or _recency(item) > _recency(before):
            newest[identity] = item
    return list(newest.values())


def _recency(item: SeriesValue) -> tuple[bool, float]:
    return not item.has_ended, item.at or 0.0


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


def sample_distance_s(grouped: SeriesByNode) -> Generator[None, None, float | None]:
    """The distance of the samples of nodes, of at least half of which it is known; else None. Yields between parts.

    If the series of a node have different ones, the largest counts: the value of the node is as old as the oldest.
    """
    distances: list[float] = []
    for number, own in enumerate(grouped.by_node.values()):
        known = [item.distance_s for item in own if item.distance_s is not None]
        if known:
            distances.append(max(known))
        if not number % _STRIDE:
            yield
    is_measured = sample_distance.is_measured(len(distances), len(grouped.by_node))
    return sample_distance.typical_distance_s(distances) if is_measured else None


def without_old_series(grouped: SeriesByNode, max_age_s: float) -> Generator[None, None, SeriesByNode]:
    """The series without those whose newest sample is more than `max_age_s` older than the newest one of all series.

    A response with samples of the maximum age only would not have them. Yields between parts of the work.
    """
    newest = -math.inf
    for number, item in enumerate(chain(grouped.unmatched, *grouped.by_node.values())):
        newest = max(newest, item.at or -math.inf)
        if not number % _STRIDE:
            yield
    since = newest - max_age_s
    by_node: dict[str, list[SeriesValue]] = {}
    for number, (node, own) in enumerate(grouped.by_node.items()):
        if kept := _series_since(own, since):
            by_node[node] = kept
        if not number % _STRIDE:
            yield
    unmatched: list[SeriesValue] = []
    for start in range(0, len(grouped.unmatched), _STRIDE):
        unmatched += _series_since(grouped.unmatched[start : start + _STRIDE], since)
        yield
    conflicts = {node: why for node, why in grouped.conflicts.items() if node in by_node}
    return SeriesByNode(by_node, unmatched, conflicts)


def _series_since(own: list[SeriesValue], since: float) -> list[SeriesValue]:
    """The series with a sample since a time, or without times."""
    return [item for item in own if item.at is None or item.at >= since]


def identities(
    series: Iterable[SeriesValue], labels: SeriesLabels
) -> Generator[None, None, frozenset[Identity]]:
    """The identities of all series; yields between parts of the work."""
    identities: set[Identity] = set()
    for number, item in enumerate(series):
        identities.add(series_owners.identity(item, labels.replica))
        if not number % _STRIDE:
            yield
    return frozenset(identities)


def reduce(
    grouped: SeriesByNode,
    aggregate: str,
    labels: SeriesLabels,
    current: frozenset[Identity] | None = None,
) -> Generator[None, None, NodeValues]:
    """The value of each node; yields between parts of the work.

    Of several series of a node only those that have not ended count: those in `current`, and newer ones. All of them
    count if there are none, or if `current` is None.
    """
    node_values = NodeValues({}, dict(grouped.conflicts), {})
    for number, (node, own) in enumerate(grouped.by_node.items()):
        counting: Sequence[SeriesValue] = own
        if current is not None and len(own) > 1:
            counting = _series_that_have_not_ended(own, current, labels.replica)
        _add_value_of_node(node_values, node, counting, aggregate)
        if not number % _STRIDE:
            yield
    return node_values


def _series_that_have_not_ended(
    own: Sequence[SeriesValue], current: frozenset[Identity], replica: frozenset[str]
) -> Sequence[SeriesValue]:
    """The series of one node that have not ended, or all of them.

    A server may return `current` late: a series that is no older than all current ones of the node has begun since.
    """
    candidates = [item for item in own if not item.has_ended] or own
    known = [item for item in candidates if series_owners.identity(item, replica) in current]
    since = max((item.at or 0.0 for item in known), default=0.0)
    return [item for item in candidates if (item.at or 0.0) >= since or item in known]


def unmatched_hosts(
    unmatched: Iterable[SeriesValue], labels: SeriesLabels
) -> Generator[None, None, tuple[str, ...]]:
    """The names of hosts in series of no node, each once; without addresses. Yields between parts of the work."""
    hosts: dict[str, None] = {}
    for number, item in enumerate(unmatched):
        text = next(filter(None, map(item.labels.get, labels.node)), "")
        host = host_of(text)
        # an address is similar to those of all nodes, and no hint
        if len(host) <= _MAX_HOST and _HOST.fullmatch(host) and not host.replace(".", "").isdigit():
            hosts[host] = None
        if len(hosts) == _MAX_HOSTS:
            break
        if not number % _STRIDE:
            yield
    return tuple(hosts)


def describe_unmatched_series(grouped: SeriesByNode, labels: SeriesLabels) -> str:
    """An example of the unmatched series, with its values of the configured labels."""
    if not grouped.unmatched:
        return ""
    own = grouped.unmatched[0].labels
    pairs = [f'{label}="{own[label][:80]}"' for label in labels.node if label in own]
    return ", ".join(pairs[:_MOST_NAMED]) or f"a series without {labels.text()}"


def other_labels_that_name_nodes(
    unmatched: Sequence[SeriesValue], labels: SeriesLabels, nodes: NodeAttributes
) -> list[str]:
    """The labels, other than the configured ones, whose value names a node in one of the first series."""
    naming = {
        label
        for item in unmatched[:_MOST_EXAMINED]
        for label, text in islice(item.labels.items(), _MOST_LABELS)
        if label not in labels.node and nodes.find(text) is not None
    }
    return sorted(naming, key=lambda label: (len(label), label))


def _add_value_of_node(
    node_values: NodeValues, node: str, counting: Sequence[SeriesValue], aggregate: str
) -> None:
    """Add the value of a node, or the reason why it is invalid, unless there is one already."""
    if node not in node_values.invalid:
        try:
            node_values.samples[node] = _aggregate_series_of_node(counting, aggregate)
        except ValueError as error:
            node_values.invalid[node] = str(error)
        else:
            return
    values = aggregation.differing_values([_sample_or_error_text(item) for item in counting], aggregate)
    if values is not None:
        node_values.differing[node] = values


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
