"""Which node each series of a response is of: the node that one of its labels names, or none.

Of the configured labels, only those apply that name a node in at least one series of the response; of these, the first
label of a series decides. So `node="0"`, the number of a memory zone, is ignored in favour of `instance`. If `node`
does name nodes, a series of a deleted node does not match the node that reports it.

An exporter that reports about other nodes has them in a label of its own, and every series has the exporter's node in a
label of the target. If series of one node differ in such a label, that label says which node is meant: otherwise a sick
node would pass, and the exporter's node be rejected. If it is not clear which of two labels does, the nodes have no
value.
"""

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from nodewise.metrics import aggregation
from nodewise.metrics.node_attributes import NodeAttributes
from nodewise.metrics.prometheus.query_responses import SeriesValue
from nodewise.metrics.prometheus.series_labels import CLUSTER_LABELS, EXPORTED, INSTANCE, SeriesLabels

_STRIDE: Final = 32
"""Number of series in one part of the work, which takes about 0.1 ms."""
_MAX_OTHER_TEXTS: Final = 256
"""A label with so many values of which none is of another node does not name nodes."""
_MAX_LABEL: Final = 80
"""Characters of a label's name in a message."""

Steps = Generator[None, None, None]
Identity = frozenset[tuple[str, str]]
"""The labels of a series, without those of replicas."""


class SeriesOwners(NamedTuple):
    """The node of each series."""

    nodes: list[str | None]
    """In the order of the series; None for an unmatched one."""
    conflicts: Mapping[str, str]
    """By node, why it is not clear which of its series are meant."""
    replicated: frozenset[str]
    """The nodes whose series differ in a label of replicas."""


class _Matches(NamedTuple):
    """The nodes of all series."""

    nodes: list[str | None]
    labels: list[str]
    """The label of each series that decided; empty if none did."""


class _SeveralSeries(NamedTuple):
    """The series of one node that has several of them."""

    label: str
    """The label that decided."""
    first: Mapping[str, str]
    """The labels of its first series."""
    differing: dict[str, dict[str, None]]
    """The values of the labels in which its series differ; empty where a series does not have the label."""


class _RivalLabel:
    """A label in which series of one node differ, and which may name other nodes."""

    def __init__(self) -> None:
        self._node_by_text: dict[str, str | None] = {}
        self.named: set[str] = set()
        """The nodes that it names."""
        self.owners: dict[str, str] = {}
        """The nodes whose series differ in it, with the label that decided so far."""

    def add(self, node: str, label: str, texts: Collection[str], nodes: NodeAttributes) -> None:
        """Consider its values in the series of one node: most of them must name nodes."""
        by_text = self._node_by_text
        if not self.owners and len(by_text) > _MAX_OTHER_TEXTS:
            return
        for text in texts:
            if text not in by_text:
                by_text[text] = nodes.find(text)
        named = [other for text in texts if (other := by_text[text]) is not None]
        if 2 * len(named) >= len(texts) and any(other != node for other in named):
            self.named.update(named)
            self.owners[node] = label

    @property
    def decides(self) -> bool:
        """Whether it names many more nodes than the label so far: a few exporters report about many nodes."""
        return bool(self.owners) and len(self.named) >= 2 * len(self.owners)

    @property
    def is_equal(self) -> bool:
        """Whether it names about as many nodes, as in measurements between nodes."""
        return bool(self.owners) and len(self.named) < 2 * len(self.owners) < 4 * len(self.named)


def match_series(
    series: Sequence[SeriesValue], labels: SeriesLabels, nodes: NodeAttributes
) -> Generator[None, None, SeriesOwners]:
    """The node of each series; yields between parts of the work."""
    deciding = yield from _nodes_by_text(series, labels.node, nodes)
    matches = yield from _first_matches(series, deciding)
    several = yield from _several_series(series, matches)
    rivals = yield from _rival_labels(several, labels, nodes)
    if chosen := _deciding_rival(rivals):
        yield from _match_by(chosen, series, matches, labels, nodes)
        several = yield from _several_series(series, matches)
        rivals = yield from _rival_labels(several, labels, nodes, {*deciding, chosen})
    conflicts = {
        node: _rival_conflict(label, used)
        for label, rival in rivals.items()
        if rival.is_equal or rival.decides
        for node, used in rival.owners.items()
    }
    replicated: set[str] = set()
    for number, (node, own) in enumerate(several.items()):
        if cluster := next((label for label in CLUSTER_LABELS if label in own.differing), ""):
            conflicts[node] = _cluster_conflict(cluster)
        if own.differing.keys() & labels.replica:
            replicated.add(node)
        if not number % _STRIDE:
            yield
    return SeriesOwners(matches.nodes, conflicts, frozenset(replicated))


def _deciding_rival(rivals: Mapping[str, _RivalLabel]) -> str:
    """The rival that names the most nodes, of those that decide; empty if none does."""
    return min(
        (label for label, rival in rivals.items() if rival.decides),
        key=lambda label: (-len(rivals[label].named), len(label), label),
        default="",
    )


def _match_by(
    label: str,
    series: Sequence[SeriesValue],
    matches: _Matches,
    labels: SeriesLabels,
    nodes: NodeAttributes,
) -> Steps:
    """Let this label decide about all series that have it, unless a label that the operator added decides."""
    by_text = (yield from _nodes_by_text(series, [label], nodes))[label]
    for number, item in enumerate(series):
        if (text := item.labels.get(label)) and matches.labels[number] not in labels.added:
            matches.nodes[number], matches.labels[number] = by_text.get(text), label
        if not number % _STRIDE:
            yield


def identity(item: SeriesValue, replica: frozenset[str]) -> Identity:
    """What identifies a series; `replica` are the labels of replicas."""
    return frozenset(pair for pair in item.labels.items() if pair[0] not in replica)


def _rival_conflict(label: str, used: str) -> str:
    remedy = f"such as max by ({used[:_MAX_LABEL]}) (…), or give --prometheus-node-label {label[:_MAX_LABEL]}"
    where = f' in label "{label[:_MAX_LABEL]}", which names nodes as "{used[:_MAX_LABEL]}" does'
    return aggregation.query_conflict_text("series", where, remedy)


def _cluster_conflict(label: str) -> str:
    """Nodes of several clusters may have the same names and addresses."""
    return aggregation.query_conflict_text("series", f' in label "{label}"', f"that selects one {label}")


def _nodes_by_text(
    series: Sequence[SeriesValue], names: Sequence[str], nodes: NodeAttributes
) -> Generator[None, None, dict[str, dict[str, str]]]:
    """The nodes by the values of those of these labels that name a node in at least one series, in their order."""
    texts: dict[str, dict[str, None]] = {name: {} for name in names}
    for number, item in enumerate(series):
        for label, text in item.labels.items():
            if label in texts:
                texts[label][text] = None
        if not number % _STRIDE:
            yield
    by_label: dict[str, dict[str, str]] = {}
    for label, values in texts.items():
        if by_text := (yield from nodes.find_all(values)):
            by_label[label] = by_text
    return by_label


def _first_matches(
    series: Sequence[SeriesValue], deciding: Mapping[str, Mapping[str, str]]
) -> Generator[None, None, _Matches]:
    """The nodes by the first of these labels that each series has."""
    matches = _Matches([], [])
    for number, item in enumerate(series):
        node, used = None, ""
        for label, by_text in deciding.items():
            if text := item.labels.get(label):
                node, used = by_text.get(text), label
                break
        matches.nodes.append(node)
        matches.labels.append(used)
        if not number % _STRIDE:
            yield
    return matches


def _several_series(
    series: Sequence[SeriesValue], matches: _Matches
) -> Generator[None, None, dict[str, _SeveralSeries]]:
    """The nodes with several series, and in which labels these differ."""
    first_by_node: dict[str, Mapping[str, str]] = {}
    several: dict[str, _SeveralSeries] = {}
    for number, (item, node) in enumerate(zip(series, matches.nodes, strict=True)):
        if not number % _STRIDE:
            yield
        labels = item.labels
        if node is None or (first := first_by_node.setdefault(node, labels)) is labels:
            continue
        if node not in several:
            several[node] = _SeveralSeries(matches.labels[number], first, {})
        differing = several[node].differing
        for label, text in labels.items():
            if first.get(label) != text:
                if label not in differing:
                    differing[label] = {first.get(label, ""): None}
                differing[label][text] = None
        if len(labels) != len(first):
            for label in first.keys() - labels.keys():
                differing.setdefault(label, {first[label]: None})[""] = None
    return several


def _rival_labels(
    several: Mapping[str, _SeveralSeries],
    labels: SeriesLabels,
    nodes: NodeAttributes,
    excluded: Iterable[str] = (),
) -> Generator[None, None, dict[str, _RivalLabel]]:
    """The labels in which series of one node differ and which name other nodes. A label that the operator added has no
    rivals.
    """
    # the label of the target differs where several exporters report the same
    used = {own.label for own in several.values()}
    targets = {label.removeprefix(EXPORTED) for label in used if label.startswith(EXPORTED)}
    ignored = {"__name__", INSTANCE, *CLUSTER_LABELS, *labels.replica, *targets, *excluded}
    rivals: dict[str, _RivalLabel] = {}
    for number, (node, own) in enumerate(several.items()):
        if own.label not in labels.added:
            for label, texts in own.differing.items():
                if label not in ignored:
                    rivals.setdefault(label, _RivalLabel()).add(node, own.label, texts, nodes)
        if not number % _STRIDE:
            yield
    return {label: rival for label, rival in rivals.items() if rival.owners}
