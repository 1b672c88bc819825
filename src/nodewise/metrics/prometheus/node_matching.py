"""Which node each series of a response is of: the node that one of its labels names, or none. Groups series by node,
and reduces those of each node to one value.

Series that differ only in labels of replicas are one series, scraped several times: the newest sample counts.

Of the configured labels, only those apply that name a node in at least one series of the response; of these, the first
label of a series decides. So `node="0"`, the number of a memory zone, is ignored in favour of `instance`. If `node`
does name nodes, a series of a deleted node does not match the node that reports it.

An exporter that reports about other nodes has them in a label of its own, and every series has the exporter's node in a
label of the target. If series of one node differ in such a label, that label says which node is meant: otherwise a sick
node would pass, and the exporter's node be rejected. If it is not clear which of two labels does, the nodes have no
value.
"""

import math
import re
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Final, NamedTuple

from nodewise.metrics import aggregation
from nodewise.metrics.node_attributes import NodeAttributes, host_of
from nodewise.metrics.prometheus import query_responses
from nodewise.metrics.prometheus.options import NODE_LABELS, PrometheusOptions
from nodewise.metrics.prometheus.query_responses import SeriesValue
from nodewise.metrics.series import (
    DifferingValues,
    Sample,
    derived_max_age_s,
    is_distance_known,
    typical_distance_s,
)

EXPORTED: Final = "exported_"
"""Prometheus puts this before a label of an exporter's that its own label of the target replaces (`honor_labels`). So
the exporter's label says what the series is of, and the other one which target was scraped."""
INSTANCE: Final = "instance"
"""The scraped target."""
_URL: Final = re.compile(r"\Ahttps?://([^/?#]+)([/?#].*)?\Z", re.IGNORECASE)
"""A URL that an exporter probed, such as the blackbox exporter: the node is its host."""
_HOST_WITH_PORT_NAME: Final = re.compile(r"\A([^:]+):(?=[a-z0-9-]*[a-z])[a-z0-9-]{1,15}(/[^:]*)?\Z")
"""A host with the name of a port, or with a path: Google Cloud Managed Service for Prometheus scrapes kubelets as
`node:metrics` and `node:cadvisor`, and other programs on nodes as `node:stats/metrics`. No IPv6 address matches.
"""
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
    first: list[str] = []
    for label in options.prometheus_node_label:
        first += (f"{EXPORTED}{label}", label) if label in added else ()
    defaults = [label for label in (*options.prometheus_node_label, *NODE_LABELS) if label not in added]
    exported = [label if label.startswith(EXPORTED) else f"{EXPORTED}{label}" for label in defaults]
    in_order = tuple(dict.fromkeys([*first, *exported, *defaults]))
    return SeriesLabels(in_order, added, frozenset((*REPLICA_LABELS, *options.prometheus_replica_label)))


_MAX_OTHER_TEXTS: Final = 256
"""A label with so many values of which none is of another node does not name nodes."""
_MAX_LABEL: Final = 80
"""Characters of a label's name in a message."""

Steps = Generator[None, None, None]
Identity = frozenset[tuple[str, str]]
"""The labels of a series, without those of replicas."""


class SeriesOwners(NamedTuple):
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
) -> Generator[None, None, SeriesOwners]:  # complexity: matching, rivals and conflicts in their order
    """The node of each series; yields between parts of the work."""
    deciding = yield from _nodes_by_text(series, labels.node, nodes)
    matches = yield from _first_matches(series, deciding)
    several = yield from _several_series(series, matches)
    rivals = yield from _rival_labels(several, labels, nodes)
    deciding_rivals = [label for label, rival in rivals.items() if rival.decides]
    if deciding_rivals:
        chosen = min(deciding_rivals, key=lambda label: (-len(rivals[label].named), len(label), label))
        yield from _match_by(chosen, series, matches, labels, nodes)
        several = yield from _several_series(series, matches)
        rivals = yield from _rival_labels(several, labels, nodes, {*deciding, chosen})
    conflicts: dict[str, str] = {}
    for label, rival in rivals.items():
        for node, decided in rival.owners.items() if rival.is_equal or rival.decides else ():
            name, used = label[:_MAX_LABEL], decided[:_MAX_LABEL]
            conflicts[node] = aggregation.query_conflict_text(
                "series",
                f' in label "{name}", which names nodes as "{used}" does',
                f"such as max by ({used}) (…), or give --prometheus-node-label {name}",
            )
    replicated: set[str] = set()
    for number, (node, own) in enumerate(several.items()):
        if cluster := next((label for label in CLUSTER_LABELS if label in own.differing), ""):
            # nodes of several clusters may have the same names and addresses
            conflicts[node] = aggregation.query_conflict_text(
                "series", f' in label "{cluster}"', f"that selects one {cluster}"
            )
        if own.differing.keys() & labels.replica:
            replicated.add(node)
        if not number % _STRIDE:
            yield
    return SeriesOwners(matches.nodes, conflicts, frozenset(replicated))


def _match_by(
    label: str, series: Sequence[SeriesValue], matches: _Matches, labels: SeriesLabels, nodes: NodeAttributes
) -> Steps:
    """Let this label decide about all series that have it, unless a label that the operator added decides."""
    by_text = (yield from _nodes_by_text(series, [label], nodes))[label]
    for number, item in enumerate(series):
        if (text := item.labels.get(label)) and matches.labels[number] not in labels.added:
            matches.nodes[number], matches.labels[number] = by_text.get(text), label
        if not number % _STRIDE:
            yield


def series_identity(item: SeriesValue, replica: frozenset[str]) -> Identity:
    """What identifies a series; `replica` are the labels of replicas."""
    return frozenset(pair for pair in item.labels.items() if pair[0] not in replica)


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
        hosts = {text: _host_of_target(text) if label == INSTANCE else text for text in values}
        by_host = yield from nodes.find_all(dict.fromkeys(hosts.values()))
        if by_host:
            by_label[label] = {text: by_host[host] for text, host in hosts.items() if host in by_host}
    return by_label


def _host_of_target(instance: str) -> str:
    """The host, with its port if that is a number, of a value of `instance`."""
    return _HOST_WITH_PORT_NAME.sub(r"\1", _URL.sub(r"\1", instance))


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


_MOST_NAMED: Final = 5
_MOST_EXAMINED: Final = 20
_MOST_LABELS: Final = 64
"""Series and labels of each that are examined for a hint, which takes less than a millisecond."""
_MAX_HOSTS: Final = 64
"""Names of hosts in series of no node that are kept."""
_MAX_HOST: Final = 253
MAX_DEVICE_LABEL: Final = 256
"""Characters of a label that identifies a device; a longer one identifies none."""
_HOST: Final = re.compile(r"[a-z0-9._-]+")
_STRIDE: Final = 32
"""Number of series in one part of the work, which takes about 0.1 ms; yielding after each would take longer."""


class SeriesByNode(NamedTuple):
    by_node: dict[str, list[SeriesValue]]
    unmatched: list[SeriesValue]
    """Series that match no node."""
    conflicts: Mapping[str, str] = {}
    """By node, why it is not clear which of its series are meant."""
    distance_s: float | None = None
    """The distance of the samples of nodes; None if it is known of less than half of them."""


class NodeValues(NamedTuple):
    samples: dict[str, Sample]
    invalid: dict[str, str]
    """By node name, the reason why a node with a series has no value."""
    differing: dict[str, DifferingValues]
    """By node name, the values of nodes whose series differ, for some of `invalid`."""


def group_by_node(
    series: Iterable[SeriesValue], labels: SeriesLabels, nodes: NodeAttributes, max_age_s: float = math.inf
) -> Generator[None, None, SeriesByNode]:  # complexity: steps in order, each with its pauses
    """Group the series by node, each once; yields between parts of the work.

    Series whose newest sample is much older than the newest one of all series are left out: by more than `max_age_s`,
    or the maximum age that follows from the distance of samples. A response with samples of the maximum age only would
    not have them.
    """
    parsed: list[SeriesValue] = []
    for item in series:
        parsed.append(item)
        if not len(parsed) % _STRIDE:
            yield
    owners = yield from match_series(parsed, labels, nodes)
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
    newest = yield from _newest_time(chain(unmatched, *by_node.values()))
    distance_s = yield from _sample_distance_s(by_node)
    since = newest - derived_max_age_s(max_age_s, distance_s)
    for number, (node, own) in enumerate(list(by_node.items())):
        by_node[node] = _series_since(own, since)
        if not by_node[node]:
            del by_node[node]
        if not number % _STRIDE:
            yield
    current: list[SeriesValue] = []
    for start in range(0, len(unmatched), _STRIDE):
        current += _series_since(unmatched[start : start + _STRIDE], since)
        yield
    conflicts = {node: why for node, why in owners.conflicts.items() if node in by_node}
    return SeriesByNode(by_node, current, conflicts, distance_s)


def device_key(item: SeriesValue, node: str | None, device_label: str, labels: SeriesLabels) -> str | None:
    """The name of the device of a series, as in `MetricRequest.device_label`; None without the label."""
    value = item.labels.get(device_label, "")
    if not 0 < len(value) <= MAX_DEVICE_LABEL:
        return None
    if node is None:
        host = host_of(next(filter(None, map(item.labels.get, labels.node)), ""))
        node = host if _HOST.fullmatch(host) else ""
    return f"{node}/{value}"


def group_by_device(
    grouped: SeriesByNode, device_label: str, labels: SeriesLabels
) -> Generator[None, None, SeriesByNode]:
    """The series by device, with the keys of `MetricRequest.device_label`. Those without the label are unmatched.

    A series of no known node keeps the text of its label if that may be the name of a node: of a node of another shard,
    or of a deleted one. Whether there is such a node is decided with the devices.
    """
    by_device: dict[str, list[SeriesValue]] = {}
    without_label: list[SeriesValue] = []
    conflicts: dict[str, str] = {}
    entries = chain(((node, item) for node, own in grouped.by_node.items() for item in own),
                    ((None, item) for item in grouped.unmatched))  # fmt: skip
    for number, (node, item) in enumerate(entries):
        key = device_key(item, node, device_label, labels)
        if key is None:
            without_label.append(item)
            continue
        if node is not None and node in grouped.conflicts:
            conflicts[key] = grouped.conflicts[node]
        by_device.setdefault(key, []).append(item)
        if not number % _STRIDE:
            yield
    return SeriesByNode(by_device, without_label, conflicts, grouped.distance_s)


def _newest_time(series: Iterable[SeriesValue]) -> Generator[None, None, float]:
    newest = -math.inf
    for number, item in enumerate(series):
        newest = max(newest, item.at or -math.inf)
        if not number % _STRIDE:
            yield
    return newest


def _sample_distance_s(by_node: Mapping[str, list[SeriesValue]]) -> Generator[None, None, float | None]:
    """`SeriesByNode.distance_s`. If the series of a node have different ones, the largest counts: the value of the node
    is as old as the oldest.
    """
    distances: list[float] = []
    for number, own in enumerate(by_node.values()):
        known = [item.distance_s for item in own if item.distance_s is not None]
        if known:
            distances.append(max(known))
        if not number % _STRIDE:
            yield
    return typical_distance_s(distances) if is_distance_known(len(distances), len(by_node)) else None


def _series_since(own: list[SeriesValue], since: float) -> list[SeriesValue]:
    """The series with a sample since a time, or without times."""
    return [item for item in own if item.at is None or item.at >= since]


def _newest_replicas(own: list[SeriesValue], replica: frozenset[str]) -> list[SeriesValue]:
    """The series, without those that differ from a newer one only in labels of replicas.

    One that has not ended is newer than one that has. Samples of one time, or of unknown times, have no newest one:
    then the same replica counts in every response.
    """

    def recency(item: SeriesValue) -> tuple[bool, float]:
        return not item.has_ended, item.at or 0.0

    newest: dict[Identity, SeriesValue] = {}
    for item in sorted(own, key=lambda item: sorted(item.labels.items())):
        identity = series_identity(item, replica)
        if identity not in newest or recency(item) > recency(newest[identity]):
            newest[identity] = item
    return list(newest.values())


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


def identities(
    series: Iterable[SeriesValue], labels: SeriesLabels
) -> Generator[None, None, frozenset[Identity]]:
    """The identities of all series; yields between parts of the work."""
    identities: set[Identity] = set()
    for number, item in enumerate(series):
        identities.add(series_identity(item, labels.replica))
        if not number % _STRIDE:
            yield
    return frozenset(identities)


def reduce(
    grouped: SeriesByNode, aggregate: str, labels: SeriesLabels, current: frozenset[Identity] | None = None
) -> Generator[None, None, NodeValues]:
    """The value of each node; yields between parts of the work.

    Of several series of a node only those that have not ended count: those in `current`, and newer ones. All of them
    count if there are none, or if `current` is None.
    """
    samples: dict[str, Sample] = {}
    invalid = dict(grouped.conflicts)
    differing: dict[str, DifferingValues] = {}
    for number, (node, all_series) in enumerate(grouped.by_node.items()):
        own = all_series
        if current is not None and len(own) > 1:
            own = _series_that_have_not_ended(own, current, labels.replica)
        entries = [_sample_or_error_text(item) for item in own]
        if node not in invalid:
            try:
                conflict = _describe_conflict(own) if len(own) > 1 else ""
                samples[node] = aggregation.reduce(entries, aggregate, conflict)
            except ValueError as error:
                invalid[node] = str(error)
        if node in invalid:
            values = aggregation.differing_values(entries, aggregate)
            if values is not None:
                differing[node] = values
        if not number % _STRIDE:
            yield
    return NodeValues(samples, invalid, differing)


def _series_that_have_not_ended(
    own: list[SeriesValue], current: frozenset[Identity], replica: frozenset[str]
) -> list[SeriesValue]:
    """The series of one node that have not ended, or all of them.

    A server may return `current` late: a series that is no older than all current ones of the node has begun since.
    """
    candidates = [item for item in own if not item.has_ended] or own
    known = [item for item in candidates if series_identity(item, replica) in current]
    since = max((item.at or 0.0 for item in known), default=0.0)
    return [item for item in candidates if (item.at or 0.0) >= since or item in known]


def _sample_or_error_text(item: SeriesValue) -> Sample | str:
    """The sample of a series. A scraped value applies to a point in time, not to a window."""
    try:
        return Sample(query_responses.parse_sample_value(item.value), item.at, 0.0)
    except ValueError as error:
        return str(error)


def _describe_conflict(own: Sequence[SeriesValue]) -> str:
    """The labels in which the series differ, and the remedy."""
    names = dict.fromkeys(chain.from_iterable(item.labels for item in own))
    differing = [name for name in names if len({item.labels.get(name, "") for item in own}) > 1]
    listed = ", ".join(f'"{name[:80]}"' for name in differing[:_MOST_NAMED])
    where = f" in label{'s' if len(differing) > 1 else ''} {listed}" if differing else ""
    return aggregation.conflict_text(f"{len(own)} series", "use a query", where)


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
