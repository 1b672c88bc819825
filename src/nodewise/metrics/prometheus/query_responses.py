"""Decodes responses of Prometheus. Source: Prometheus' HTTP API v1 (documentation of 3.x), instant queries."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.base import quantity
from nodewise.base.errors import (
    UNREADABLE,
    BadInput,
    NodewiseError,
    Problem,
    Refused,
    Unavailable,
    short,
    shown,
    truncate,
)
from nodewise.metrics import missing_values, source_table
from nodewise.metrics.metrics_source import NoValues
from nodewise.metrics.series import COUNTED, newest_distance_s

MATRIX: Final = "matrix"
VECTOR: Final = "vector"
NAN: Final = "NaN"


class SeriesValue(NamedTuple):
    """The newest value of one series."""

    labels: Mapping[str, str]
    value: str
    """As Prometheus writes it: `81.5`, `1e+06`, `NaN`."""
    at: float | None
    """Seconds since 1970; None in the response to an expression."""
    has_ended: bool = False
    """Whether NaN follows the value: the series has ended, or its last scrape failed. VictoriaMetrics returns its
    marker of that as NaN, which Prometheus leaves out."""
    distance_s: float | None = None
    """How far apart its newest samples are; None for a single one."""


class QueryResponse(NamedTuple):
    """A response with its series still encoded."""

    kind: str
    series: list[msgspec.Raw]
    warnings: tuple[str, ...] = ()
    """The server's warnings and hints, escaped and bounded."""
    incomplete: str = ""
    """Those of them that say that series or samples may be missing; empty if the response is complete."""


class _ResponseData(msgspec.Struct, frozen=True, rename="camel"):
    result_type: str = ""
    result: list[msgspec.Raw] | None = None


class _ResponseEnvelope(msgspec.Struct, frozen=True, rename="camel"):
    status: str = ""
    data: _ResponseData | None = None
    error_type: str = ""
    error: str = ""
    warnings: Any = None
    is_partial: Any = None


class _EncodedSeries(msgspec.Struct, frozen=True, gc=False):
    metric: dict[str, str] = {}
    value: msgspec.Raw = msgspec.Raw()
    values: msgspec.Raw = msgspec.Raw()


class _NamesEnvelope(msgspec.Struct, frozen=True):
    data: list[str] = []


_HINT: Final = "PromQL "
"""The beginning of what PromQL remarks about a query, as `info` or `warning`, such as `PromQL info: metric might not be
a counter` (Prometheus 2.53, util/annotations). All other warnings are of storages that did not respond, or not with all
series (Thanos; Prometheus with remote read)."""
_IS_PARTIAL: Final = "isPartial: a storage node did not respond"
"""For the field of clusters of VictoriaMetrics."""
_MAX_WARNINGS: Final = 3
_MAX_WARNING: Final = 200

_decode_envelope = msgspec.json.Decoder(_ResponseEnvelope).decode
_decode_series = msgspec.json.Decoder(_EncodedSeries).decode
_decode_pair = msgspec.json.Decoder(tuple[float, str]).decode
_decode_pairs = msgspec.json.Decoder(list[tuple[float, str]]).decode

PARSE_ERROR: Final = "bad_data"
"""`errorType` of a query that Prometheus cannot parse. The message contains only parts of the query."""
_EXECUTION: Final = "execution"
_INTERNAL: Final = "internal"
_TIMEOUT: Final = "timeout"
"""`errorType` of a query that Prometheus ended at its timeout."""
_BY_TYPE: Final[Mapping[str, type[NodewiseError]]] = {
    PARSE_ERROR: BadInput,
    _EXECUTION: BadInput,
    _TIMEOUT: Unavailable,
    "canceled": Unavailable,
    _INTERNAL: Unavailable,
    "unavailable": Unavailable,
}
"""Kind of error by `errorType` (prometheus web/api/v1/api.go, v3)."""

_BY_STATUS: Final[Mapping[int, type[NodewiseError]]] = {
    400: BadInput,
    401: Refused,
    403: Refused,
    413: BadInput,
    414: BadInput,
    422: BadInput,
}
"""Kind of error by HTTP status, for proxies that do not return Prometheus' JSON. Any other status is Unavailable."""

_TIMEOUT_STATUSES: Final = (408, 504)
"""Of proxies."""
_TIMEOUT_WORDS: Final = re.compile(r"timeout (?:exceeded|reached)|timed out|deadline exceeded", re.IGNORECASE)
"""In messages of servers that do not have the type of error `timeout`: VictoriaMetrics (app/vmselect/netstorage,
v1.112), Thanos and Mimir."""
_REFUSED_PARTIAL_WORDS: Final = re.compile(
    r"(?:receive series from|fetch series for) (?!.*(?:ResourceExhausted|exceeded))"
    r"|from vmstorage nodes: .*(?:connection|dial|EOF|i/o timeout)"
    r"|some of vmstorage nodes are unavailable"
    r"|rpc error: code = Unavailable |too many unhealthy instances in the ring"
)
"""In errors that take the place of an incomplete response: always (Mimir; Cortex unless a tenant has
`query_partial_data`), or because the query has `partial_response=false` (Thanos 0.41, pkg/store/proxy.go) or
`deny_partial_response=1` (cluster of VictoriaMetrics, app/vmselect/netstorage)."""
_UNAVAILABLE_STORAGE_WORDS: Final = re.compile(r"from vmstorage nodes: (?!.*denyQueriesOutsideRetention)")
"""The same in errors with the HTTP status 503. A cluster of VictoriaMetrics has it for each storage node that does not
respond, and 422 for most errors that a node responds with."""
_REFUSED_PARTIAL: Final = "refuses an incomplete response: a part of its storage does not respond"
_QUOTED: Final = r'"(?:[^"\\]|\\.)*+"'
_VICTORIA_METRICS_PREFIX: Final = re.compile(
    rf"(?:error when executing query={_QUOTED} (?:for|on the time range) \([^()]*\): "
    rf"|cannot (?:evaluate|execute)(?: args for)?(?: aggregate func)? {_QUOTED}: )*+"
)
"""Repeats the query, with the times of this request (app/vmselect/prometheus, v1.112)."""
_VICTORIA_METRICS_PARSE_ERROR: Final = re.compile(
    r"(?:\w+: )*+(?:unexpected token |cannot recognize )|unparsed data left: "
    r"|cannot (?:expand WITH expressions:|compile regex |parse )"
    r"|unsupported function |unknown func |unexpected number of args|expecting at least \d+ args"
)
"""The beginnings of messages that contain only parts of the query (metricsql v0.87, app/vmselect/promql). Others may
contain labels of any series."""
_TENANT_WORDS: Final = re.compile(r"(?:no org id|too many tenant IDs|multiple org IDs|tenant ID )")
"""The beginnings of messages about the header `X-Scope-OrgID`. They are plain text, and have various HTTP statuses
(Mimir 3.0, Cortex 1.21)."""
_QUERY_ERROR_STATUSES: Final = (400, 422)
_UNAVAILABLE: Final = 503
_OVERLOAD_STATUSES: Final = (422, 500, 502, 503)
_MAX_MESSAGE: Final = 1000
_MAX_PLAIN_TEXT: Final = 200
"""Characters of a message in JSON, and of another body, such as the page of a proxy."""

_WHERE: Final = "does --prometheus-url lead to Prometheus itself? A path before /api/v1 is part of it"
_TENANT_REMEDY: Final = "give the tenant: --prometheus-header X-Scope-OrgID=TENANT"
_REMEDIES: Final[Mapping[int, str]] = {
    301: _WHERE,
    302: _WHERE,
    307: _WHERE,
    308: _WHERE,
    401: (
        "give other credentials: --prometheus-token-file, --prometheus-user or --prometheus-cert; "
        "a tenant or a gateway may need --prometheus-header"
    ),
    403: (
        "the credentials are known, but may not query: grant them the right; a tenant or a gateway may need "
        "another --prometheus-header"
    ),
    404: _WHERE,
}


def decode_response(body: bytes, hide: Callable[[str], str] = str) -> QueryResponse:
    """A successful response. `BadInput` if it is not one, or if it has a scalar instead of series.

    `hide` removes secrets from its texts.
    """
    try:
        envelope = _decode_envelope(body)
    except UNREADABLE as error:
        raise BadInput("answer", [Problem("", str(error), "Prometheus' JSON")]) from error
    data = envelope.data or _ResponseData()
    if envelope.status != "success" or data.result_type not in {MATRIX, VECTOR}:
        reason = ": ".join(filter(None, (envelope.error_type, envelope.error)))
        text = truncate(hide(reason), _MAX_MESSAGE)
        actual = f"status {shown(envelope.status)}, {text or data.result_type or 'nothing'}"
        raise BadInput("answer", [Problem("", actual, "series, one or more a node")])
    warnings = list(dict.fromkeys(map(hide, _warnings(envelope))))
    incomplete = [text for text in warnings if not text.startswith(_HINT)]
    return QueryResponse(
        data.result_type, data.result or [], _shorten(warnings), "; ".join(_shorten(incomplete))
    )


def _warnings(envelope: _ResponseEnvelope) -> Iterator[str]:
    """What a response says about itself. Any form of a warning counts, also one that no known server uses."""
    if envelope.is_partial:
        yield _IS_PARTIAL
    warnings = envelope.warnings
    for warning in warnings if isinstance(warnings, list) else [warnings]:
        if warning:
            yield warning if isinstance(warning, str) else shown(warning)


def _shorten(warnings: Sequence[str]) -> tuple[str, ...]:
    """The first warnings. They come from outside and may be many, long, and contain control characters."""
    texts = [short(text, _MAX_WARNING) for text in warnings[:_MAX_WARNINGS]]
    more = len(warnings) - len(texts)
    return (*texts, f"and {more} more") if more else tuple(texts)


def decode_metric_names(body: bytes) -> list[str]:
    """The values of a label. `BadInput` if the response has none."""
    try:
        return msgspec.json.decode(body, type=_NamesEnvelope).data
    except UNREADABLE as error:
        raise BadInput("answer", [Problem("", str(error), "the values of a label")]) from error


def newest_values(answer: QueryResponse) -> Iterator[SeriesValue]:
    """The newest value of each series. A series that cannot be decoded is ignored."""
    for raw in answer.series:
        try:
            series = _decode_series(raw)
            yield _newest_value(series, answer.kind)
        except UNREADABLE:
            continue


def _newest_value(series: _EncodedSeries, kind: str) -> SeriesValue:
    """The last sample that is not NaN; NaN if all are. A series of native histograms has no value."""
    if kind == VECTOR:
        pair = bytes(series.value)
        return SeriesValue(series.metric, _decode_pair(pair)[1] if pair else "a histogram", None)
    pairs = bytes(series.values)
    if not pairs:
        return SeriesValue(series.metric, "a histogram", None)
    # only the last pair is decoded: a value's text has no bracket, so the last one opens that pair
    at, value = _decode_pair(pairs[pairs.rindex(b"[") : pairs.rindex(b"]")].rstrip())
    distance_s = _sample_distance_s(pairs)
    if value == NAN:
        for earlier_at, earlier in reversed(_decode_pairs(pairs)):
            if earlier != NAN:
                return SeriesValue(series.metric, earlier, earlier_at, True, distance_s)
    return SeriesValue(series.metric, value, at, distance_s=distance_s)


def _sample_distance_s(pairs: bytes) -> float | None:
    """The distance of the newest samples of a range; None for an instant value and a single sample."""
    times = []
    end = len(pairs)
    for _ in range(COUNTED):
        begin = pairs.rfind(b"[", 1, end)
        if begin < 0:
            break
        times.append(float(pairs[begin + 1 : pairs.index(b",", begin)]))
        end = begin
    return newest_distance_s(times)


def parse_sample_value(value: str) -> int:
    """The exact value in nano-units. ValueError for NaN, infinities and invalid numbers."""
    try:
        return quantity.parse(value)
    except ValueError:
        raise ValueError(f"{value[:80]} is no number that a rule can compare") from None


def has_error_type(body: bytes) -> bool:
    """Whether a response is an error in Prometheus' form."""
    try:
        return bool(_decode_envelope(body).error_type)
    except UNREADABLE:
        return False


def error_from_response(
    what: str,
    status: int,
    body: bytes,
    retry_after: str = "",
    timeout_s: float = 0.0,
    hide: Callable[[str], str] = str,
) -> NodewiseError:  # complexity: what servers and proxies differ in
    """The error of an unsuccessful response, with the server's message; `timeout_s` is that of the query.

    `hide` removes secrets from the message, before it is cut.
    """
    limit, is_about_tenant = _MAX_MESSAGE, False
    try:
        envelope = _decode_envelope(body)
    except UNREADABLE:
        text = body[: 4 * _MAX_MESSAGE].decode(errors="replace").strip()
        envelope, limit = _ResponseEnvelope(error=text), _MAX_PLAIN_TEXT
        is_about_tenant = _TENANT_WORDS.match(text) is not None
    error_type, message = _classify_error(status, envelope)
    reason = ": ".join(filter(None, (error_type, truncate(hide(message), limit))))
    problems = [Problem(f"HTTP status {status}", reason or "no message", "")]
    remedy = _TENANT_REMEDY if is_about_tenant else _REMEDIES.get(status, "")
    takes_place_of_partial = (status == _UNAVAILABLE and _UNAVAILABLE_STORAGE_WORDS.search(message)) or (
        status in _OVERLOAD_STATUSES and _REFUSED_PARTIAL_WORDS.search(message)
    )
    if error_type != _TIMEOUT and takes_place_of_partial:
        cause = missing_values.cause("IncompleteAnswer", source_table.PROMETHEUS, _REFUSED_PARTIAL)
        return NoValues(what, problems, cause=cause, remedy=cause.remedy)
    kind = _BY_TYPE.get(error_type) or _BY_STATUS.get(status, Unavailable)
    error = (Refused if is_about_tenant else kind)(what, problems, remedy=remedy)
    error.http_status = status
    if isinstance(error, Unavailable):
        error.retry_after_s = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 1.0
        error.timeout_s = timeout_s if error_type == _TIMEOUT else 0.0
    return error


def _classify_error(status: int, envelope: _ResponseEnvelope) -> tuple[str, str]:
    """Prometheus' type of error, and the message. VictoriaMetrics has the HTTP status in place of a type, and proxies
    have none.
    """
    error_type, message = envelope.error_type, envelope.error
    if error_type in _BY_TYPE and error_type not in (_EXECUTION, _INTERNAL):
        return error_type, message
    if error_type not in _BY_TYPE:
        message = _VICTORIA_METRICS_PREFIX.sub("", message, count=1)
        if status in _QUERY_ERROR_STATUSES and _VICTORIA_METRICS_PARSE_ERROR.match(message):
            return PARSE_ERROR, message
    if status in _TIMEOUT_STATUSES or (status in _OVERLOAD_STATUSES and _TIMEOUT_WORDS.search(message)):
        return _TIMEOUT, message
    return "" if error_type == str(status) else error_type, message
