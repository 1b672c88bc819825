"""Decodes responses of Prometheus. Source: Prometheus' HTTP API v1 (documentation of 3.x), instant queries."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from nodewise import quantity
from nodewise.errors import UNREADABLE, BadInput, NodewiseError, Problem, Refused, Unavailable, shown

MATRIX: Final = "matrix"
VECTOR: Final = "vector"


class SeriesValue(NamedTuple):
    """The newest value of one series."""

    labels: Mapping[str, str]
    value: str
    """As Prometheus writes it: `81.5`, `1e+06`, `NaN`."""
    at: float | None
    """Seconds since 1970; None in the response to an expression."""


class QueryResponse(NamedTuple):
    """A response with its series still encoded."""

    kind: str
    series: list[msgspec.Raw]
    warnings: tuple[str, ...]


class _ResponseData(msgspec.Struct, frozen=True, rename="camel"):
    result_type: str = ""
    result: list[msgspec.Raw] | None = None


class _ResponseEnvelope(msgspec.Struct, frozen=True, rename="camel"):
    status: str = ""
    data: _ResponseData | None = None
    error_type: str = ""
    error: str = ""
    warnings: Any = None


class _EncodedSeries(msgspec.Struct, frozen=True, gc=False):
    metric: dict[str, str] = {}
    value: msgspec.Raw = msgspec.Raw()
    values: msgspec.Raw = msgspec.Raw()


class _NamesEnvelope(msgspec.Struct, frozen=True):
    data: list[str] = []


_decode_envelope = msgspec.json.Decoder(_ResponseEnvelope).decode
_decode_series = msgspec.json.Decoder(_EncodedSeries).decode
_decode_pair = msgspec.json.Decoder(tuple[float, str]).decode

_TIMEOUT: Final = "timeout"
"""`errorType` of a query that Prometheus ended at its timeout."""
_BY_TYPE: Final[Mapping[str, type[NodewiseError]]] = {
    "bad_data": BadInput,
    "execution": BadInput,
    _TIMEOUT: Unavailable,
    "canceled": Unavailable,
    "internal": Unavailable,
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

_WHERE: Final = "does --prometheus-url lead to Prometheus itself? A path before /api/v1 is part of it"
_REMEDIES: Final[Mapping[int, str]] = {
    301: _WHERE,
    302: _WHERE,
    307: _WHERE,
    308: _WHERE,
    401: "give other credentials: --prometheus-token-file, --prometheus-user or --prometheus-cert",
    403: "the credentials are known, but may not query: grant them the right",
    404: _WHERE,
}


def decode_response(body: bytes) -> QueryResponse:
    """A successful response. `BadInput` if it is not one, or if it has a scalar instead of series."""
    try:
        envelope = _decode_envelope(body)
    except UNREADABLE as error:
        raise BadInput("answer", [Problem("", str(error), "Prometheus' JSON")]) from error
    data = envelope.data or _ResponseData()
    if envelope.status != "success" or data.result_type not in {MATRIX, VECTOR}:
        actual = f"status {shown(envelope.status)}, {data.result_type or 'nothing'}"
        raise BadInput("answer", [Problem("", actual, "series, one or more a node")])
    warnings = envelope.warnings if isinstance(envelope.warnings, list) else []
    return QueryResponse(data.result_type, data.result or [], tuple(map(str, warnings)))


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
            at, value = _newest_sample(series, answer.kind)
        except UNREADABLE:
            continue
        yield SeriesValue(series.metric, value, at)


def _newest_sample(series: _EncodedSeries, kind: str) -> tuple[float | None, str]:
    """Time and value of the last sample. A series of native histograms has no value."""
    if kind == VECTOR:
        pair = bytes(series.value)
        return None, _decode_pair(pair)[1] if pair else "a histogram"
    pairs = bytes(series.values)
    if not pairs:
        return None, "a histogram"
    # only the last pair is decoded: a value's text has no bracket, so the last one opens that pair
    return _decode_pair(pairs[pairs.rindex(b"[") : pairs.rindex(b"]")].rstrip())


def parse_sample_value(value: str) -> int:
    """The exact value in nano-units. ValueError for NaN, infinities and invalid numbers."""
    try:
        return quantity.parse(value)
    except ValueError:
        raise ValueError(f"{value[:80]} is no number that a rule can compare") from None


def error_from_response(
    what: str, status: int, body: bytes, retry_after: str = "", timeout_s: float = 0.0
) -> NodewiseError:
    """The error of an unsuccessful response, with Prometheus' message; `timeout_s` is that of the query."""
    try:
        envelope = _decode_envelope(body)
    except UNREADABLE:
        envelope = _ResponseEnvelope(error=body[:200].decode(errors="replace").strip())
    reason = ": ".join(filter(None, (envelope.error_type, envelope.error)))
    problems = [Problem(f"HTTP status {status}", reason or "no message", "")]
    remedy = _REMEDIES.get(status, "")
    kind = _BY_TYPE.get(envelope.error_type) or _BY_STATUS.get(status, Unavailable)
    error = kind(what, problems, remedy=remedy)
    error.http_status = status
    if isinstance(error, Unavailable):
        error.retry_after_s = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 1.0
        error.timeout_s = timeout_s if envelope.error_type == _TIMEOUT else 0.0
    return error
