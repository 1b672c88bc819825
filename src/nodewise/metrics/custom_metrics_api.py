"""Source `custom`: the custom metrics API (custom.metrics.k8s.io v1beta1 and v1beta2), through the API server.

One call per metric: `GET /apis/custom.metrics.k8s.io/<version>/nodes/*/<metric>`. It
returns a MetricValueList, in which an invalid value affects only its own node. Source: k8s.io/metrics v0.36
`pkg/apis/custom_metrics`.
"""

import asyncio
import contextlib
from collections.abc import Container, Generator, Iterable, Sequence
from functools import lru_cache, partial
from math import nan
from typing import Any, Final, cast

import msgspec
import numpy as np

from nodewise.base import clock, cooperative_scheduling, quantity
from nodewise.base.errors import UNREADABLE, BadInput, NodewiseError, Problem, Unavailable, shown
from nodewise.kube.api_server_interface import Api, NotFound
from nodewise.kube.resource_kinds import escape_path
from nodewise.metrics import aggregation, missing_values, source_table
from nodewise.metrics.fair_concurrency_limit import DECODING, FairConcurrencyLimit
from nodewise.metrics.metrics_source import (
    MetricNotFound,
    MetricRequest,
    MetricsSource,
    NoValues,
    SourceDependencies,
)
from nodewise.metrics.series import DifferingValues, Sample, SampleColumns, Series, find_order, pack_columns


class _DescribedObject(msgspec.Struct, frozen=True, gc=False):
    name: str = ""


class _MetricIdentifier(msgspec.Struct, frozen=True, gc=False):
    name: str = ""


class NodeValue(msgspec.Struct, frozen=True, gc=False):
    """One measured object of a response. v1beta1 has `window`, v1beta2 `windowSeconds`."""

    describedObject: _DescribedObject = _DescribedObject()  # noqa: N815
    value: Any = None
    timestamp: str | None = None
    windowSeconds: float | None = None  # noqa: N815
    window: float | None = None


class MetricValue(NodeValue, frozen=True, gc=False):
    """One measured object with the name of its metric: v1beta1 has `metricName`, v1beta2 `metric.name`."""

    metricName: str = ""  # noqa: N815
    metric: _MetricIdentifier = _MetricIdentifier()

    @property
    def metric_name(self) -> str:
        return self.metric.name or self.metricName


def make_metric_value(node: str, metric: str, value: str, timestamp: str | None) -> MetricValue:
    """A metric value from plain fields."""
    return MetricValue(_DescribedObject(node), value, timestamp or None, metricName=metric)


class _MetricValueList(msgspec.Struct, frozen=True):
    items: list[msgspec.Raw] | None = None


_BEGIN: Final = b'{"describedObject":'
_HERE: Final = b"0"
_decode_list = msgspec.json.Decoder(_MetricValueList).decode
_decode_item = msgspec.json.Decoder(NodeValue).decode
_decode_batch = msgspec.json.Decoder(list[NodeValue]).decode
_BATCH_BYTES = 65_536
"""Size of the items that are decoded at once, which takes 0.1 ms."""

Batch = Sequence[NodeValue | Problem]


def decode_items(body: bytes) -> Generator[Batch, None, None]:
    """The items of a MetricValueList, several at a time; a Problem in place of one that cannot be read.

    `BadInput` if the body is no such list; that may be found late.
    """
    count = 0
    for cut in split_items(body, _BEGIN):
        try:
            decoded = _decode_batch(cut)
        except UNREADABLE:
            break  # an item is invalid, or was split in the middle
        yield decoded
        count += len(decoded)
    else:
        if count:
            return
    try:
        listed = _decode_list(body).items or ()
    except UNREADABLE as error:
        raise BadInput("metric answer", [Problem("", str(error), "a MetricValueList")]) from error
    for number, raw in enumerate(listed[count:], count):
        try:
            yield [_decode_item(raw)]
        except UNREADABLE as error:
            yield [Problem(f"items[{number}]", str(error), "a MetricValue")]


def split_items(body: bytes, item_begin: bytes) -> Generator[bytes, None, None]:
    """Lists of the items of a list in the form that Go writes; nothing for other forms. The result is correct only if
    each of them is valid JSON by itself. Every item starts with `item_begin`.

    Splitting a list of a megabyte with the decoder would block the event loop for one or two milliseconds.
    """
    begin, end = body.find(b"[" + item_begin) + 1, body.rfind(b"}]") + 1
    try:
        around = _decode_list(body[:begin] + _HERE + body[end:]).items if 0 < begin < end else None
    except UNREADABLE:
        return
    if around != [msgspec.Raw(_HERE)]:
        return
    while begin < end:
        until = body.find(b"}," + item_begin, begin + _BATCH_BYTES, end) + 1 or end
        yield b"[" + body[begin:until] + b"]"
        begin = until + 1


NodeSample = tuple[str, Sample | str]
"""The name of a node with its sample, or with the reason why it has none."""
_STRIDE: Final = 128
"""Number of nodes in one part of the work, which takes about 0.1 ms."""


def node_samples(items: Iterable[NodeValue | Problem]) -> Generator[NodeSample, None, None]:
    """The sample of each item. An item that cannot be decoded names no node and is ignored."""
    for item in items:
        if isinstance(item, Problem):
            continue
        try:
            yield item.describedObject.name, read_sample(item)
        except ValueError as error:
            yield item.describedObject.name, str(error)


class SeriesBuilder:
    """Collects the samples of nodes and builds a series from them. With `own_nodes`, items of others are dropped."""

    def __init__(self, own_nodes: Container[str] | None = None) -> None:
        self._own_nodes = own_nodes
        self.has_other_nodes = False
        """Whether items of other nodes were dropped."""
        self._columns = SampleColumns([], [], [], [])
        self._reasons: dict[str, list[str]] = {}
        """By node, why it has no sample."""

    def add(self, node: str, entry: Sample | str) -> None:
        if isinstance(entry, str):
            self._reasons.setdefault(node, []).append(entry)
        else:
            self._columns.append(node, entry)

    def add_batch(self, items: Batch) -> None:
        """Add the items of a response. Those of valid items are added by column, in a third of the time."""
        if self._own_nodes is not None:
            nodes = self._own_nodes
            own = [item for item in items if isinstance(item, Problem) or item.describedObject.name in nodes]
            self.has_other_nodes |= len(own) < len(items)
            items = own
        columns = _sample_columns(items)
        if columns is None:
            for node, entry in node_samples(items):
                self.add(node, entry)
        else:
            self._columns.extend(columns)

    def series(self, request: MetricRequest, source: str, fetched_at: float) -> Generator[None, None, Series]:
        """The series; yields between parts. Several values of one node are aggregated as the request demands."""
        invalid: dict[str, str] = {}
        differing: dict[str, DifferingValues] = {}
        order = None if self._reasons else (yield from find_order(self._columns.nodes))
        columns = self._columns
        several: dict[str, list[Sample | str]] = {}
        if order is None:
            columns, several = yield from self._separate_nodes_with_several_entries()
        for number, (node, entries) in enumerate(several.items(), 1):
            try:
                conflict = aggregation.conflict_text(f"{len(entries)} values", "give the source one value")
                columns.append(node, aggregation.reduce(entries, request.aggregate, conflict))
            except ValueError as error:
                invalid[node] = str(error)
                values = aggregation.differing_values(entries, request.aggregate)
                if values is not None:
                    differing[node] = values
            if not number % _STRIDE:
                yield
        samples = yield from pack_columns(columns, order)
        return Series(request.metric, source, fetched_at, samples, invalid, differing)

    def _separate_nodes_with_several_entries(
        self,
    ) -> Generator[None, None, tuple[SampleColumns, dict[str, list[Sample | str]]]]:
        """The samples of nodes with one entry, and all entries of the other nodes; those without a sample have one."""
        columns, reasons = self._columns, self._reasons
        if not reasons and (yield from columns.is_ascending()):
            return columns, {}
        first: dict[str, int] = {}
        several: dict[str, list[Sample | str]] = {node: [] for node in reasons}
        single: list[int] = []
        for position, node in enumerate(columns.nodes, 1):
            if first.setdefault(node, position) != position:
                several.setdefault(node, [])
            if not position % _STRIDE:
                yield
        for position, node in enumerate(columns.nodes):
            if node in several:
                several[node].append(columns.sample(position))
            else:
                single.append(position)
            if not position % _STRIDE:
                yield
        for node, texts in reasons.items():
            several[node] += texts
        return (yield from columns.select(single)), several


def _sample_columns(items: Batch) -> SampleColumns | None:
    """The samples of these items; None unless each item is valid and has a value in the usual form."""
    if set(map(type, items)) != {NodeValue}:
        return None
    values = cast("Sequence[NodeValue]", items)
    texts = [value.value for value in values]
    nano_values = _parse_plain_values(texts) if set(map(type, texts)) == {str} else None
    if nano_values is None:
        return None
    try:
        times = _convert_timestamps([value.timestamp for value in values])
    except ValueError:
        return None
    windows = [value.windowSeconds for value in values]
    if None in set(windows):
        windows = list(map(_window_s, values))
    return SampleColumns(
        [value.describedObject.name for value in values], nano_values, times, cast("list[float]", windows)
    )


def _convert_timestamps(stamps: Sequence[str | None]) -> list[float]:
    """NaN for none. Each is parsed once: items share few timestamps, mostly one."""
    times = {stamp: parse_timestamp(stamp) for stamp in set(stamps)}
    converted = {stamp: nan if at is None else at for stamp, at in times.items()}
    return [*converted.values()] * len(stamps) if len(converted) == 1 else [converted[at] for at in stamps]


def _window_s(item: NodeValue) -> float:
    window_s = item.windowSeconds if item.windowSeconds is not None else item.window
    return 60.0 if window_s is None else window_s


def build_series(
    request: MetricRequest, source: str, fetched_at: float, entries: Iterable[NodeSample]
) -> Series:
    """The series of these entries, without yielding."""
    builder = SeriesBuilder()
    for node, entry in entries:
        builder.add(node, entry)
    return cooperative_scheduling.run_without_pauses(builder.series(request, source, fetched_at))


def read_sample(item: NodeValue) -> Sample:
    """The sample of an item. ValueError if its value is no valid quantity; null is a missing value, not zero."""
    value = item.value
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{shown(value)} is not {quantity.EXPECTED}")  # noqa: TRY004 - one kind for the caller
    return Sample(parse_value(str(value)), parse_timestamp(item.timestamp), _window_s(item))


_OVERFLOW: Final = -(2**63) * (quantity.NANO // 1000)
"""prometheus-adapter v0.12 converts a value to thousandths as a 64-bit integer (`pkg/custom-provider/provider.go`,
`pkg/resourceprovider/provider.go`: `int64(value * 1000.0)`). On amd64 the result for +Inf, -Inf, and numbers from 2**63
thousandths on is the lowest integer."""


def parse_value(text: str) -> int:
    """Nano-units of a value from an aggregated API. ValueError if it is not a quantity, or a number that overflowed."""
    nano = quantity.parse(text)
    if nano == _OVERFLOW:
        raise ValueError(
            f"{text[:80]} is what prometheus-adapter makes of infinite and too large numbers, no value"
        )
    return nano


_SUFFIXES: Final = b"numkMG"
_DIGITS: Final = b"0123456789"
_SCALES: Final = np.zeros(256, np.int64)
"""Nano-units by the last character of a quantity; 0 for others than digits and `_SUFFIXES`."""
_SCALES[np.frombuffer(_DIGITS, np.uint8)] = quantity.NANO
_SCALES[np.frombuffer(_SUFFIXES, np.uint8)] = [1, 10**3, 10**6, 10**12, 10**15, 10**18]
_MOST_DIGITS: Final = 18
_INT64_MAX: Final = 2**63 - 1


def _parse_plain_values(texts: Sequence[str]) -> list[int] | None:
    """Nano-units of quantities of digits with at most a decimal suffix, in a quarter of the time of `parse_value`. None
    if any of them has another form, or may not fit into int64.
    """
    joined = (",".join(texts) + ",").encode()
    characters = np.frombuffer(joined, np.uint8)
    ends = np.flatnonzero(characters == ord(","))
    last = characters[ends - 1]
    scales = _SCALES[last]
    has_suffix = scales != quantity.NANO
    lengths = np.diff(ends, prepend=-1) - 1 - has_suffix
    if (
        len(ends) != len(texts)
        or not scales.all()
        or lengths.min() < 1
        or lengths.max() > _MOST_DIGITS
        # any other character is within a text
        or len(joined.translate(None, _DIGITS)) != len(ends) + np.count_nonzero(has_suffix)
    ):
        return None
    numbers = np.fromstring(joined.translate(None, _SUFFIXES)[:-1], np.int64, sep=",")
    if (numbers > _INT64_MAX // scales).any():
        return None
    nano_values: list[int] = (numbers * scales).tolist()
    return nano_values


@lru_cache(maxsize=4096)
def parse_timestamp(text: str | None) -> float | None:
    """Seconds since 1970, None without a timestamp. ValueError for an invalid one. Items share few timestamps."""
    return clock.parse_rfc3339(text) if text else None


GROUP: Final = "custom.metrics.k8s.io"
_READABLE: Final = ("v1beta1", "v1beta2")
_REMEDY: Final = (
    "install prometheus-adapter or another server of this API, or use another source of --metrics"
)
_SHARED_S: Final = 1.0
"""A missing API is looked up once for all metrics of a refresh, and again in the next refresh."""


class _ApiVersion(msgspec.Struct, frozen=True):
    version: str = ""


class _ApiGroup(msgspec.Struct, frozen=True):
    preferredVersion: _ApiVersion = _ApiVersion()  # noqa: N815
    versions: list[_ApiVersion] = []


class _ApiResource(msgspec.Struct, frozen=True):
    name: str = ""


class _ApiResourceList(msgspec.Struct, frozen=True):
    resources: list[_ApiResource] = []


def create_sources(dependencies: SourceDependencies, _paths: Sequence[str]) -> list[MetricsSource]:
    """The source, if there is a cluster."""
    api, timeout_s, own_nodes = dependencies.api, dependencies.timeout_s, dependencies.own_nodes
    return [CustomMetricsSource(api, timeout_s, own_nodes)] if api else []


class CustomMetricsSource:
    """The source `custom`. The version is looked up again after each failed call, which detects an upgrade."""

    name = source_table.CUSTOM

    def __init__(self, api: Api, timeout_s: float = 5.0, own_nodes: Container[str] | None = None) -> None:
        """With `own_nodes`, series contain no other nodes."""
        self._api = api
        self._timeout_s = timeout_s
        self._own_nodes = own_nodes
        self._version = ""
        self._looking = asyncio.Lock()
        self._decoding = FairConcurrencyLimit(DECODING)
        self._absent: tuple[float, MetricNotFound] | None = None

    def supports(self, request: MetricRequest) -> bool:
        """Any metric of a policy by name; the API does not support expressions."""
        return bool(request.metric) and not (request.query or request.own_query or request.device_label)

    async def fetch(self, request: MetricRequest, now: float) -> Series:
        """The values of a metric for all nodes. `MetricNotFound` if the API is not registered; `Refused` or
        `Unavailable` if the metric is not available.
        """
        version = await self._api_version(now)
        path = escape_path("apis", GROUP, version, "nodes", "*", request.metric)
        await asyncio.sleep(0)  # the preceding steps already took time on the event loop
        async with contextlib.AsyncExitStack() as stack:
            slot = self._decoding.slot(request.namespaces)
            try:
                # a response that is not decoded at once stays in the buffers of the connection
                body = await self._api.get(
                    path, timeout_s=self._timeout_s, before_body=partial(stack.enter_async_context, slot)
                )
            except NodewiseError:
                self._version = ""
                raise
            builder = SeriesBuilder(self._own_nodes)
            async for items in cooperative_scheduling.iterate_with_pauses(decode_items(body)):
                builder.add_batch(items)
            series = await cooperative_scheduling.run(builder.series(request, self.name, now))
        if not (series.samples or series.invalid or builder.has_other_nodes):
            problem = Problem("items", "an empty list", "a value of a node")
            cause = missing_values.cause("NoSeries", self.name, "has the metric, and no value of a node")
            raise NoValues(f"metric {request.metric}", [problem], cause=cause)
        return series

    async def metric_names(self) -> list[str]:
        """The metrics of nodes in the discovery document."""
        path = escape_path("apis", GROUP, await self._api_version(0.0))
        body = await self._api.get(path, timeout_s=self._timeout_s)
        try:
            resources = msgspec.json.decode(body, type=_ApiResourceList).resources
        except UNREADABLE as error:
            raise BadInput.of(f"discovery of {GROUP}", "", str(error), "an APIResourceList") from error
        return [name for kind, _, name in (item.name.partition("/") for item in resources) if kind == "nodes"]

    async def _api_version(self, now: float) -> str:
        """The version of the API to use. All metrics share the result of a lookup."""
        async with self._looking:
            if self._absent and now - self._absent[0] < _SHARED_S:
                raise self._absent[1]
            self._absent = None
            if not self._version:
                self._version = await self._find_version(now)
            return self._version

    async def _find_version(self, now: float) -> str:
        try:
            body = await self._api.get(f"/apis/{GROUP}", timeout_s=self._timeout_s)
        except NotFound as error:
            cause = missing_values.cause("SourceNotInstalled", self.name, "is not installed")
            absent = MetricNotFound(f"{GROUP} is not registered: {error}", cause=cause, remedy=_REMEDY)
            self._absent = (now, absent)
            raise absent from error
        return choose_version(body)


def choose_version(body: bytes) -> str:
    """The version to use, from the discovery document: the preferred one, else the first supported one."""
    try:
        group = msgspec.json.decode(body, type=_ApiGroup)
    except UNREADABLE as error:
        raise BadInput(f"discovery of {GROUP}", [Problem("", str(error), "an APIGroup")]) from error
    offered = [group.preferredVersion.version, *(version.version for version in group.versions)]
    for version in offered:
        if version in _READABLE:
            return version
    raise Unavailable(
        f"{GROUP} offers only {', '.join(offered)}", remedy=f"nodewise reads {', '.join(_READABLE)}"
    )
