"""Why a metric has no value on any node: a closed set of causes, each with a text and a remedy; and which nodes lack
values of a metric that other nodes have.

This is the only place that classifies failures of sources. The texts appear in the status of policies, which tenants
read, in explanations and in findings of doctor. So they contain no addresses, no credentials and nothing about other
tenants, and no counts or times that would change a status with every refresh. The log has the complete errors.

Such nodes pass a rule by default. Often their series exist, under another name: then the message has the closest name.
"""

import socket
import ssl
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, Literal, NamedTuple, get_args

import numpy as np

from nodewise.base import clock
from nodewise.base.errors import BadInput, NodewiseError, Refused, Unavailable, closest_name, truncate
from nodewise.metrics import aggregation
from nodewise.metrics.node_attributes import first_label
from nodewise.metrics.node_index import NodeIndex
from nodewise.metrics.series import Column, Series, ValueState
from nodewise.metrics.source_table import COMPUTED, PROMETHEUS, SOURCES

CauseReason = Literal[
    "NoSeriesOfNodes",
    "SeveralValuesPerNode",
    "InvalidValues",
    "ValuesOutdated",
    "InvalidQuery",
    "RequestsPaused",
    "BudgetExceeded",
    "SourceTimesOut",
    "SourceUnreachable",
    "SourceRefusesAccess",
    "SourceFails",
    "IncompleteAnswer",
    "ResponseUnreadable",
    "InternalError",
    "SeriesEnded",
    "NoSeries",
    "MetricUnknown",
    "SourceNotInstalled",
    "NoSource",
    "NeverFetched",
]
"""The reason of a condition. If several sources fail, the cause with the first of these is shown: a source that has the
metric comes before one that fails, and that before one that does not have it."""
_RANKS: Final[Mapping[str, int]] = {reason: rank for rank, reason in enumerate(get_args(CauseReason))}
REMEDY_SEPARATOR: Final = "; remedy: "
"""Between the text and the remedy of a cause."""
_LOG_REMEDY: Final = "metric_failed in nodewise's log has the error"
_MAX_QUERY_ERROR: Final = 200
_MAX_CHAINED: Final = 10
_MAX_EVENT_TEXT: Final = 160
_TEXTS_WITHOUT_DATA: Final[Mapping[str, str]] = {
    "SeveralValuesPerNode": "values of one node differ",
    "InvalidValues": "its values are invalid",
    "InvalidQuery": "the query cannot be run",
}
"""For the reasons whose text may contain values, labels of series or a part of a query."""


class Cause(NamedTuple):
    """Why no node has a value of a metric."""

    reason: CauseReason
    text: str
    """What happened; it names the source."""
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.text}{REMEDY_SEPARATOR}{self.remedy}" if self.remedy else self.text

    def event_text(self) -> str:
        """The cause in the text of a rejection: short, and without data.

        Pod events contain it, and the readers of a pod may not read the policy or the metric.
        """
        return truncate(_TEXTS_WITHOUT_DATA.get(self.reason, self.text), _MAX_EVENT_TEXT)


UNKNOWN: Final = Cause("SourceFails", "no source responded with values", _LOG_REMEDY)
NEVER_FETCHED: Final = Cause("NeverFetched", "no source has responded yet")
OUTDATED: Final = Cause(
    "ValuesOutdated",
    "every value is older than maxAge",
    "scrape more often, or raise maxAge of the rule; if the source has newer values, compare its clock with that of"
    " nodewise",
)

_REMEDIES: Final[Mapping[str, str]] = {
    "InvalidValues": "export a finite number",
    "SourceTimesOut": "raise --metrics-timeout",
    "InternalError": "report it with task_failed of nodewise's log",
    "InvalidQuery": "correct the query of the rule",
    "NoSource": "set --metrics, or --prometheus-url",
}
"""Remedies of every source that has none of its own; `_LOG_REMEDY` for the others."""

_REFUSED_STATUSES: Final = (401, 403)
_QUERY_STATUSES: Final = (400, 422)
_NOT_FOUND: Final = 404
_PARSE_ERROR: Final = "bad_data: "
"""The beginning of Prometheus' message about a query that it cannot parse. That of a query that fails while it runs may
contain labels of any series."""


def source_title(source: str) -> str:
    """How messages name a source. The name of one of several servers contains its address, which is left out."""
    kind = source.partition(" ")[0]
    if kind == COMPUTED:
        return "nodewise's computation"
    return SOURCES[kind].title if kind in SOURCES else f"the source {kind}"


def is_one_of_several_servers(source: str) -> bool:
    """Whether a source is one of several Prometheus servers, which have their address in their name."""
    return source.startswith(f"{PROMETHEUS} ")


def cause(reason: CauseReason, source: str, text: str, remedy: str = "") -> Cause:
    """A cause, with the remedy for this source unless another one is given. The text begins with the source's title."""
    kind = source.partition(" ")[0]
    own = SOURCES[kind].remedies if kind in SOURCES else {}
    chosen = remedy or own.get(reason) or _REMEDIES.get(reason, _LOG_REMEDY)
    return Cause(reason, f"{source_title(source)} {text}", chosen)


def first_cause(causes: Iterable[Cause]) -> Cause:
    """The cause to show if several sources fail."""
    return min(causes, key=lambda item: _RANKS[item.reason], default=NEVER_FETCHED)


def cause_of_error(error: NodewiseError, source: str) -> Cause:
    own: Cause | None = getattr(error, "cause", None)
    if own is not None:
        return own
    if isinstance(error, Unavailable) and error.timeout_s:
        return cause_of_timeout(source, error.timeout_s)
    if error.http_status:
        return _cause_of_status(error, source)
    if isinstance(error, Refused):
        return cause("SourceRefusesAccess", source, "was not queried: its credentials cannot be read")
    if isinstance(error, Unavailable) and error.__cause__ is not None:
        return cause("SourceUnreachable", source, f"is unreachable: {_connection_problem(error)}")
    return cause("ResponseUnreadable", source, "gave a response that cannot be read")


def cause_of_timeout(source: str, timeout_s: float) -> Cause:
    """The cause for a call that timed out."""
    return cause("SourceTimesOut", source, f"did not respond within {timeout_s:g} s")


def cause_of_pause(source: str, timeout_s: float, *, has_query: bool) -> Cause:
    """The cause for a metric that is requested less often, because it timed out several times in a row."""
    remedy = "use a cheaper query" if has_query else "use a metric with fewer series"
    text = f"did not respond within {timeout_s:g} s several times in a row, so it is asked less often"
    return cause("RequestsPaused", source, text, remedy)


def cause_of_series(series: Series, nodes: NodeIndex, column: Column) -> Cause | None:
    """Why no node has a value in a response; None if a node has one, or if there is no node."""
    if not len(nodes) or (column.initial_states == ValueState.FRESH).any():
        return None
    if (invalid := cause_of_invalid_values(series, nodes)) is not None:
        return invalid
    if series.incomplete:
        return cause(
            "IncompleteAnswer", series.source, "gave an incomplete response, without a value of a node"
        )
    if series.samples or series.invalid:
        return cause("NoSeriesOfNodes", series.source, "has values, and none of them is of a node")
    return cause("NoSeries", series.source, "has no value of a node")


def cause_of_invalid_values(series: Series, nodes: NodeIndex) -> Cause | None:
    """Why values of nodes are invalid; None if none is."""
    # the order of nodes in a response may change, and the smallest text does not
    invalid = min((why for node, why in series.invalid.items() if node in nodes), default="")
    if not invalid:
        return None
    title, conflict = source_title(series.source), aggregation.split_conflict(invalid)
    if conflict is not None:
        return Cause("SeveralValuesPerNode", f"{title}: {conflict.text}", conflict.remedy)
    return cause("InvalidValues", series.source, f"has invalid values: {invalid}")


def cause_on_some_nodes(series: Series, nodes: NodeIndex) -> Cause:
    """Why some nodes lack a value in a response that has values of other nodes."""
    if series.incomplete:
        return cause("IncompleteAnswer", series.source, "gave an incomplete response, without these nodes")
    remedy = "check that the exporter runs on them and is scraped"
    missing = cause("NoSeries", series.source, "has no value of these nodes, or none within maxAge", remedy)
    return cause_of_invalid_values(series, nodes) or missing


def cause_of_ended_series(source: str, ended_at: float, *, has_query: bool) -> Cause:
    """The cause for a metric whose last series ended at a time in seconds since 1970."""
    of = "for the query" if has_query else "of this name"
    text = f"has no current series {of}: the last one ended at {clock.format_rfc3339(ended_at)}"
    remedy = (
        "check that the exporter runs, and that Prometheus scrapes it: its page of targets has the errors"
    )
    return cause("SeriesEnded", source, text, remedy)


def suggest(missing: Cause, name: str, *, is_computed: bool = False) -> Cause:
    """The cause with the name of a metric that the source has, or that nodewise computes."""
    return missing._replace(
        remedy=f'correct the name; {"nodewise computes" if is_computed else "it has"} "{name}"'
    )


def _cause_of_status(error: NodewiseError, source: str) -> Cause:
    """The cause for a response with an HTTP status that is no success."""
    status = error.http_status
    if source.startswith(PROMETHEUS):
        if status in _QUERY_STATUSES and isinstance(error, BadInput):
            message = error.problems[0].found if error.problems else ""
            parsing = message.startswith(_PARSE_ERROR)
            why = f": {message.removeprefix(_PARSE_ERROR)}" if parsing else f" (HTTP status {status})"
            return cause("InvalidQuery", source, f"cannot run the query{truncate(why, _MAX_QUERY_ERROR)}")
    elif status == _NOT_FOUND:
        return cause("MetricUnknown", source, "has no metric of this name")
    if status in _REFUSED_STATUSES or isinstance(error, Refused):
        return cause("SourceRefusesAccess", source, f"refuses access with HTTP status {status}")
    return cause("SourceFails", source, f"responds with HTTP status {status}")


def _connection_problem(error: BaseException) -> str:
    """Why there is no connection, without addresses."""
    for nested in _chain(error):
        if isinstance(nested, ssl.SSLError) or "certificate verify failed" in str(nested).lower():
            return "TLS fails; is its certificate trusted?"
        if isinstance(nested, socket.gaierror):
            return "its host name cannot be resolved"
        if isinstance(nested, ConnectionRefusedError):
            return "connection refused"
    return "no connection"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and those that caused it."""
    nested: BaseException | None = error
    for _ in range(_MAX_CHAINED):
        if nested is None:
            return
        yield nested
        nested = nested.__cause__ or nested.__context__


MAX_NAMED: Final = 3
"""Nodes that a message names."""
_MAX_NODES: Final = 200
_MAX_HOSTS: Final = 8
"""Nodes, and names of hosts in series of no node, that are compared."""
_MAX_COMPARED: Final = 50
"""Nodes that are compared thoroughly with one name."""
_MAX_REASON: Final = 250


class NodesWithoutValues(NamedTuple):
    """The nodes that lack values of one metric; equal if the message is the same."""

    missing: tuple[str, ...] = ()
    """Some of the nodes without a series."""
    missing_count: int = 0
    invalid: tuple[str, ...] = ()
    """Some of the nodes whose value is invalid."""
    invalid_count: int = 0
    reason: str = ""
    """Why the value of one of them is invalid."""
    hosts: tuple[str, ...] = ()
    """Some names of hosts in series of no node."""


NONE: Final = NodesWithoutValues()


def nodes_without_values(
    series: Series, nodes: NodeIndex, column: Column, *, empty_is_healthy: bool = False
) -> NodesWithoutValues:
    """The nodes that lack values while others have some. With `empty_is_healthy`, nodes without a series are healthy,
    unless there are series of no node.
    """
    states = column.initial_states[:-1]
    if not (states == ValueState.FRESH).any():
        return NONE
    missing, invalid = (np.flatnonzero(states == state) for state in (ValueState.MISSING, ValueState.INVALID))
    hosts: Sequence[str] = series.unmatched
    if len(missing) and not hosts:
        hosts = [node for node in series.samples if node not in nodes]
    if empty_is_healthy and not hosts:
        missing = missing[:0]
    names = nodes.names
    return NodesWithoutValues(
        tuple(names[missing[:_MAX_NODES]].tolist()),
        len(missing),
        tuple(names[invalid[:MAX_NAMED]].tolist()),
        len(invalid),
        min((why for node, why in series.invalid.items() if node in nodes), default=""),
        tuple(sorted(hosts)[:_MAX_HOSTS]) if len(missing) else (),
    )


def describe(metric: str, without: NodesWithoutValues) -> Generator[None, None, str]:
    """The message about a metric; empty if no node lacks a value. Yields between parts of the work."""
    parts = []
    if without.missing:
        text = f"no series of {metric} on {name_nodes(without.missing, without.missing_count)}"
        similar = yield from closest_nodes(without.hosts, without.missing)
        parts.append(f"{text}; {name_hosts(similar)}" if similar else text)
    if without.invalid:
        reason = truncate(without.reason, _MAX_REASON)
        nodes = name_nodes(without.invalid, without.invalid_count)
        parts.append(f"no valid value of {metric} on {nodes}: {reason}")
    return "; ".join(parts)


def closest_nodes(hosts: Iterable[str], nodes: Sequence[str]) -> Generator[None, None, dict[str, str]]:
    """The names of hosts that are the closest ones of some of these nodes, by node; yields between names."""
    similar: dict[str, str] = {}
    for host in islice(hosts, _MAX_HOSTS):
        label = first_label(host) or host
        same_label = (node for node in nodes[:_MAX_NODES] if (first_label(node) or node) == label)
        node = next(same_label, "") or closest_name(host, nodes[:_MAX_COMPARED])
        if node:
            similar.setdefault(node, host)
        yield
    return similar


def name_hosts(similar: Mapping[str, str]) -> str:
    """The closest names in a message."""
    pairs = [f'"{host}" for {node}' for node, host in islice(similar.items(), MAX_NAMED)]
    return f"closest names in series of no node: {', '.join(pairs)}"


def name_nodes(names: Sequence[str], count: int) -> str:
    """`5 nodes: a, b, c and 2 more`."""
    more = f" and {count - MAX_NAMED} more" if count > MAX_NAMED else ""
    return f"{count} node{'s' if count > 1 else ''}: {', '.join(names[:MAX_NAMED])}{more}"
