"""Source `otlp`: lines of OTLP/JSON metrics, as the file exporter of the OpenTelemetry Collector writes them.

A line is an ExportMetricsServiceRequest. Data points of gauges and sums are values; the node is the resource attribute
`k8s.node.name`, else `host.name`. Resources without these and other kinds of metrics are ignored. The newest data point
of each series counts, unless the node has one that is newer by `STALE_S`. Source: opentelemetry-proto v1.9
`metrics/v1/metrics.proto`, and the JSON mapping of the OTLP specification: 64-bit integers are strings.
"""

import asyncio
import os
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from nodewise.base import cooperative_scheduling, quantity
from nodewise.base.errors import UNREADABLE, BadInput, Problem, did_you_mean, shown
from nodewise.metrics import missing_values
from nodewise.metrics.custom_metrics_api import SeriesBuilder
from nodewise.metrics.metrics_source import MetricNotFound, MetricRequest, MetricsSource, SourceDependencies
from nodewise.metrics.series import Sample, Series

T = TypeVar("T")
STALE_S: Final = 300.0
"""A series without a data point for so long, while the node has others of the metric, has ended; as in Prometheus."""
MAX_LINE_BYTES: Final = 64 * 2**20
MAX_SERIES: Final = 1_000_000
"""Limits of a line, and of the series of all metrics and nodes."""
_NODE_ATTRIBUTES: Final = ("k8s.node.name", "host.name")
_NO_RECORDED_VALUE: Final = 1
"""The flag of a data point that marks the end of a series."""
_WHAT: Final = "metrics from OTLP files"
_LINE: Final = "a line of OTLP/JSON metrics"
_TYPE_ERROR: Final = re.compile(r"Expected `(.*)`, got `(.*)`")


class _AttributeValue(msgspec.Struct, frozen=True):
    stringValue: str = ""  # noqa: N815 - names on the wire


class _Attribute(msgspec.Struct, frozen=True):
    key: str = ""
    value: _AttributeValue = _AttributeValue()


class _Resource(msgspec.Struct, frozen=True):
    attributes: list[_Attribute] = []


class _DataPoint(msgspec.Struct, frozen=True, gc=False):
    attributes: msgspec.Raw = msgspec.Raw()
    timeUnixNano: str | int = 0  # noqa: N815
    asDouble: float | str | None = None  # noqa: N815
    asInt: str | int | None = None  # noqa: N815
    flags: int = 0


class _DataPoints(msgspec.Struct, frozen=True):
    dataPoints: list[_DataPoint] = []  # noqa: N815


class _Metric(msgspec.Struct, frozen=True):
    name: str
    gauge: _DataPoints | None = None
    sum: _DataPoints | None = None


class _ScopeMetrics(msgspec.Struct, frozen=True):
    metrics: list[_Metric] = []


class _ResourceMetrics(msgspec.Struct, frozen=True):
    resource: msgspec.Raw = msgspec.Raw(b"{}")
    scopeMetrics: list[_ScopeMetrics] = []  # noqa: N815


class _ExportRequest(msgspec.Struct, frozen=True):
    resourceMetrics: list[_ResourceMetrics]  # noqa: N815


_decode: Final = msgspec.json.Decoder(_ExportRequest).decode


_decode_resource: Final = msgspec.json.Decoder(_Resource).decode

_SeriesKey = tuple[str, bytes, bytes]
"""The node, the resource, and the attributes of data points."""


class _Point(NamedTuple):
    """A data point, or the end of its series if `entry` is None."""

    metric: str
    series: _SeriesKey
    at: float
    entry: Sample | str | None
    """The sample, or why the value is invalid."""


class _StoredPoint(NamedTuple):
    at: float
    entry: Sample | str


def create_sources(_dependencies: SourceDependencies, paths: Sequence[str]) -> list[MetricsSource]:
    """One source for each file."""
    return [OtlpFileSource(path) for path in paths]


class OtlpFileSource:
    """The source `otlp`. New lines are read when the file grows, and all lines of a new file after a rotation.

    Values stay after a rotation, because the new file begins empty.
    """

    name = "otlp"

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        """Device and inode of the file that was read."""
        self._offset = self._lines = self._size = 0
        self._changed_ns = 0
        self._points: dict[str, dict[_SeriesKey, _StoredPoint]] = {}
        """By metric and series."""
        self._count = 0
        self._reading = asyncio.Lock()

    def supports(self, request: MetricRequest) -> bool:
        """Any metric by name; there are no expressions."""
        return bool(request.metric) and not (request.query or request.by_pod or request.device_label)

    async def metric_names(self) -> list[str]:
        return [*self._points]

    async def fetch(self, request: MetricRequest, now: float) -> Series:
        """The newest values of a metric. `MetricNotFound` if it is not in the file, `BadInput` with the line and its
        field if the file cannot be read.
        """
        async with self._reading:
            await cooperative_scheduling.run(self._read_new_lines())
        points = self._points.get(request.metric)
        if not points:
            cause = missing_values.cause("MetricUnknown", self.name, "has no metric of this name")
            similar = did_you_mean(request.metric, [*self._points])
            raise MetricNotFound(f"metric {request.metric} is not in {self._path}{similar}", cause=cause)
        newest: dict[str, float] = {}
        for (node, *_), point in points.items():
            newest[node] = max(point.at, newest.get(node, point.at))
        builder = SeriesBuilder()
        for (node, *_), point in points.items():
            if point.at > newest[node] - STALE_S:
                builder.add(node, point.entry)
        return await cooperative_scheduling.run(builder.series(request, self.name, now))

    def _read_new_lines(self) -> Generator[None, None, None]:
        """Apply the lines that were added since the last call; yields after each. A line without its end is read when
        it is complete.
        """
        try:
            with Path(self._path).open("rb") as file:
                stat = os.fstat(file.fileno())
                if (stat.st_dev, stat.st_ino) != self._file or stat.st_size < self._size:
                    self._file, self._offset, self._lines = (stat.st_dev, stat.st_ino), 0, 0
                elif stat.st_size == self._size and stat.st_mtime_ns == self._changed_ns:
                    return
                elif stat.st_size == self._size:
                    self._offset = self._lines = 0  # another content of the same size
                file.seek(self._offset)
                while (line := file.readline(MAX_LINE_BYTES + 1)).endswith(b"\n"):
                    self._apply_line(line, f"{self._path}, line {self._lines + 1}")
                    self._offset += len(line)
                    self._lines += 1
                    yield
                if len(line) > MAX_LINE_BYTES:
                    where = f"{self._path}, line {self._lines + 1}"
                    expected = f"a line of at most {MAX_LINE_BYTES} bytes"
                    raise BadInput(_WHAT, [Problem(where, "a longer line", expected)])
                self._size, self._changed_ns = stat.st_size, stat.st_mtime_ns
        except OSError as error:
            # a rotation moves the file before it creates the next one
            if self._file is None or not isinstance(error, FileNotFoundError):
                problem = Problem(self._path, error.strerror or str(error), "a file of OTLP/JSON metrics")
                raise BadInput(_WHAT, [problem]) from error

    def _apply_line(self, line: bytes, where: str) -> None:
        if not line.strip():
            return
        for metric, series, at, entry in list(_parse_line(line, where)):
            points = self._points.get(metric, {})
            known = points.get(series)
            if known is not None and known.at > at:
                continue
            if entry is None:
                self._count -= points.pop(series, None) is not None
                continue
            if known is None and self._count >= MAX_SERIES:
                self._remove_ended_series(at)
                if self._count >= MAX_SERIES:
                    raise BadInput.of(_WHAT, where, "more series", f"at most {MAX_SERIES} series in the file")
            self._points.setdefault(metric, {})[series] = _StoredPoint(at, entry)
            self._count += known is None

    def _remove_ended_series(self, now: float) -> None:
        """Remove the series without a data point since `STALE_S` before `now`, such as those of former pods."""
        for metric, points in list(self._points.items()):
            self._points[metric] = {key: point for key, point in points.items() if point.at > now - STALE_S}
        self._count = sum(map(len, self._points.values()))


def _decoded(decode: Callable[[bytes], T], text: bytes, where: str) -> T:
    """A line or a part of one. `BadInput` names the line and the field."""
    try:
        return decode(text)
    except UNREADABLE as error:
        message, _, field = str(error).partition(" - at `$")
        types = _TYPE_ERROR.fullmatch(message)
        actual, expected = (types[2], types[1]) if types else (message, _LINE)
        place = field.strip(".`")
        raise BadInput(_WHAT, [Problem(f"{where}, {place}" if place else where, actual, expected)]) from error


def _parse_line(line: bytes, where: str) -> Iterator[_Point]:
    for i, of_resource in enumerate(_decoded(_decode, line, where).resourceMetrics):
        resource = bytes(of_resource.resource)
        attributes = _decoded(
            _decode_resource, resource, f"{where}, resourceMetrics[{i}].resource"
        ).attributes
        values = {item.key: item.value.stringValue for item in attributes}
        node = next((values[key] for key in _NODE_ATTRIBUTES if values.get(key)), "")
        if not node:
            continue
        for j, of_scope in enumerate(of_resource.scopeMetrics):
            for k, metric in enumerate(of_scope.metrics):
                for kind, points in (("gauge", metric.gauge), ("sum", metric.sum)):
                    for m, point in enumerate(points.dataPoints if points else ()):
                        field = f"resourceMetrics[{i}].scopeMetrics[{j}].metrics[{k}].{kind}.dataPoints[{m}]"
                        series = (node, resource, bytes(point.attributes))
                        yield _read_point(metric.name, series, point, f"{where}, {field}")


def _read_point(metric: str, series: _SeriesKey, point: _DataPoint, where: str) -> _Point:
    try:
        at = int(point.timeUnixNano) / 1e9
    except (ValueError, OverflowError) as error:
        problem = Problem(f"{where}.timeUnixNano", shown(point.timeUnixNano), "nanoseconds since 1970")
        raise BadInput(_WHAT, [problem]) from error
    if point.flags & _NO_RECORDED_VALUE:
        return _Point(metric, series, at, None)
    field, value = ("asInt", point.asInt) if point.asDouble is None else ("asDouble", point.asDouble)
    if value is None:
        raise BadInput(_WHAT, [Problem(where, "no value", "asDouble or asInt")])
    try:
        number = int(value) if field == "asInt" else float(value)
    except ValueError as error:
        raise BadInput(_WHAT, [Problem(f"{where}.{field}", shown(value), "a number")]) from error
    try:
        return _Point(metric, series, at, Sample(quantity.parse(repr(number)), at or None))
    except ValueError:
        return _Point(metric, series, at, f"{number} is no finite number")
