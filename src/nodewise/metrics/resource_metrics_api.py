"""Source `resource`: usage of nodes from the resource metrics API (metrics.k8s.io v1beta1) of metrics-server.

One call for all metrics: `GET /apis/metrics.k8s.io/v1beta1/nodes`. Source: k8s.io/metrics v0.36
`pkg/apis/metrics/v1beta1`. Shares are relative to the allocatable resources of the Node, as in `kubectl top node`.
"""

import asyncio
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.base import clock, cooperative_scheduling, quantity
from nodewise.base.errors import UNREADABLE, BadInput, NodewiseError, Problem, shown
from nodewise.kube.api_server_interface import Api, NotFound
from nodewise.metrics import missing_values, source_table
from nodewise.metrics.custom_metrics_api import (
    NodeSample,
    SeriesBuilder,
    parse_timestamp,
    parse_value,
    split_items,
)
from nodewise.metrics.metrics_source import (
    MetricNotFound,
    MetricRequest,
    MetricsSource,
    NoValues,
    SourceDependencies,
)
from nodewise.metrics.node_attributes import NodeAttributes, NodeLookup
from nodewise.metrics.series import Sample, Series

GROUP: Final = "metrics.k8s.io"
METRICS: Final = source_table.RESOURCE_METRICS
POD_METRICS: Final = ("pod_cpu_usage", "pod_memory_usage")
"""Usage of pods in cores and bytes, for requests of nodewise's own."""

_PATH: Final = f"/apis/{GROUP}/v1beta1/nodes"
_PODS_PATH: Final = f"/apis/{GROUP}/v1beta1/pods"
_REMEDY: Final = "install metrics-server, or use another source of --metrics"
_SHARED_S: Final = 1.0
"""The metrics of a refresh share a response for this long."""
_WINDOW_S: Final = 60.0
_NO_NODE: Final = "no Node has this name"


class _NodeMetricsMetadata(msgspec.Struct, frozen=True):
    name: str = ""


class _Usage(msgspec.Struct, frozen=True):
    cpu: Any = None
    memory: Any = None


class NodeMetrics(msgspec.Struct, frozen=True):
    """Average usage of one node during the window that ended at the timestamp."""

    metadata: _NodeMetricsMetadata = _NodeMetricsMetadata()
    timestamp: str | None = None
    window: str | None = None
    usage: _Usage = _Usage()


class _PodMetricsMetadata(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    namespace: str = ""


class _ContainerUsage(msgspec.Struct, frozen=True, gc=False):
    usage: _Usage = _Usage()


class PodMetrics(msgspec.Struct, frozen=True, gc=False):
    """Average usage of the containers of one pod during the window that ended at the timestamp."""

    metadata: _PodMetricsMetadata = _PodMetricsMetadata()
    timestamp: str | None = None
    window: str | None = None
    containers: tuple[_ContainerUsage, ...] | None = None


class _NodeMetricsList(msgspec.Struct, frozen=True):
    items: list[msgspec.Raw] | None = None


class _PodMetricsList(msgspec.Struct, frozen=True):
    items: list[PodMetrics] | None = None


_decode_list = msgspec.json.Decoder(_NodeMetricsList).decode
_decode = msgspec.json.Decoder(NodeMetrics).decode
_decode_pod_batch = msgspec.json.Decoder(list[PodMetrics]).decode
_decode_pod_list = msgspec.json.Decoder(_PodMetricsList).decode
_STRIDE: Final = 32
"""Pods between two yields."""


class NodeUsageResponse(NamedTuple):
    """One response: the entries of each metric or the failure, and the metrics that have used the response."""

    at: float
    nodes: NodeAttributes
    entries: Mapping[str, list[NodeSample]]
    failure: NodewiseError | None
    served: set[str]


def create_sources(dependencies: SourceDependencies, _paths: Sequence[str]) -> list[MetricsSource]:
    """The source, if there is a cluster."""
    api, nodes, timeout_s = dependencies.api, dependencies.nodes, dependencies.timeout_s
    return [ResourceMetricsSource(api, nodes, timeout_s)] if api else []


class ResourceMetricsSource:
    """The source `resource`. Its four metrics share one call per refresh."""

    name = source_table.RESOURCE

    def __init__(self, api: Api, nodes: NodeLookup, timeout_s: float = 5.0) -> None:
        self._api = api
        self._nodes = nodes
        self._timeout_s = timeout_s
        self._locks = {False: asyncio.Lock(), True: asyncio.Lock()}
        self._responses: dict[bool, NodeUsageResponse] = {}
        """Of nodes (False) and of pods."""

    async def metric_names(self) -> tuple[str, ...]:
        return METRICS

    def supports(self, request: MetricRequest) -> bool:
        """The four metrics of nodes, and those of pods."""
        known = POD_METRICS if request.by_pod else METRICS
        return request.metric in known and not (request.query or request.device_label)

    async def fetch(self, request: MetricRequest, now: float) -> Series:
        """One of the metrics. `MetricNotFound` if the API is not registered, `Unavailable` if no node has values."""
        response = await self._response_of_this_refresh(request.metric, now, by_pod=request.by_pod)
        if response.failure:
            raise response.failure
        builder = SeriesBuilder()
        async for node, entry in cooperative_scheduling.iterate_with_pauses(response.entries[request.metric]):
            builder.add(node, entry)
        return await cooperative_scheduling.run(builder.series(request, self.name, now))

    async def _response_of_this_refresh(self, metric: str, now: float, *, by_pod: bool) -> NodeUsageResponse:
        """The response of this refresh: a metric that has already used the response needs a new one, and so do nodes
        that were not known.
        """
        async with self._locks[by_pod]:
            response, nodes = self._responses.get(by_pod), await self._nodes()
            if (
                response is None
                or metric in response.served
                or response.nodes is not nodes
                or now - response.at > _SHARED_S
            ):
                response = self._responses[by_pod] = await self._fetch_usage(now, nodes, by_pod=by_pod)
                # memory: that of 5,000 nodes takes 2 MiB
                asyncio.get_running_loop().call_later(_SHARED_S, self._drop, by_pod, response)
            response.served.add(metric)
            return response

    def _drop(self, by_pod: bool, response: NodeUsageResponse) -> None:
        if self._responses.get(by_pod) is response:
            del self._responses[by_pod]

    async def _fetch_usage(self, now: float, nodes: NodeAttributes, *, by_pod: bool) -> NodeUsageResponse:
        first = METRICS[0]
        try:
            if by_pod:
                first = POD_METRICS[0]
                body = await self._api.get(_PODS_PATH, timeout_s=self._timeout_s)
                entries = await cooperative_scheduling.run(usage_of_pods(body))
            else:
                body = await self._api.get(_PATH, timeout_s=self._timeout_s)
                entries = await cooperative_scheduling.run(by_metric(decode_items(body), nodes))
        except NotFound as error:
            cause = missing_values.cause("SourceNotInstalled", self.name, "is not installed")
            absent = MetricNotFound(f"{GROUP} is not registered: {error}", cause=cause, remedy=_REMEDY)
            return NodeUsageResponse(now, nodes, {}, absent, set())
        except NodewiseError as error:
            return NodeUsageResponse(now, nodes, {}, error, set())
        if not entries[first]:
            problem = Problem("items", "an empty list", "the usage of nodes")
            cause = missing_values.cause("NoSeries", self.name, "has no usage of a node")
            empty = NoValues(GROUP, [problem], cause=cause, remedy="is metrics-server running?")
            return NodeUsageResponse(now, nodes, {}, empty, set())
        return NodeUsageResponse(now, nodes, entries, None, set())


def decode_items(body: bytes) -> Iterator[NodeMetrics | None]:
    """The items of a NodeMetricsList, None for an item that cannot be decoded. `BadInput` if it is not such a list."""
    try:
        listed = _decode_list(body).items or ()
    except UNREADABLE as error:
        raise BadInput(f"answer of {GROUP}", [Problem("", str(error), "a NodeMetricsList")]) from error
    for raw in listed:
        try:
            yield _decode(raw)
        except UNREADABLE:
            yield None


def _decode_pods(body: bytes) -> Iterator[PodMetrics]:
    """The items of a PodMetricsList. `BadInput` for another document."""
    count = 0
    try:
        for cut in split_items(body, b'{"metadata":'):
            for pod in _decode_pod_batch(cut):
                yield pod
                count += 1
        if not count:
            yield from _decode_pod_list(body).items or ()
    except UNREADABLE as error:
        raise BadInput(f"answer of {GROUP}", [Problem("", str(error), "a PodMetricsList")]) from error


def usage_of_pods(body: bytes) -> Generator[None, None, dict[str, list[NodeSample]]]:
    """The entries of both metrics of pods, by `NAMESPACE/NAME`; yields between parts. `BadInput` for no such list.

    A pod of which a container has no usage has none.
    """
    entries: dict[str, list[NodeSample]] = {metric: [] for metric in POD_METRICS}
    for number, pod in enumerate(_decode_pods(body), 1):
        try:
            at, window_s = parse_timestamp(pod.timestamp), _parse_window_s(pod.window)
            usage = [container.usage for container in pod.containers or ()]
            totals = [
                sum(quantity.parse(str(getattr(each, resource))) for each in usage)
                for resource in ("cpu", "memory")
            ]
        except ValueError:
            continue
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        for metric, total in zip(POD_METRICS, totals, strict=True):
            entries[metric].append((name, Sample(total, at, window_s)))
        if not number % _STRIDE:
            yield
    return entries


def by_metric(
    listed: Iterable[NodeMetrics | None], nodes: NodeAttributes
) -> Generator[None, None, dict[str, list[NodeSample]]]:
    """The entries of all four metrics, in the order of the list; yields between nodes.

    metrics-server has the usage of a deleted node for a while. It gives no share, unless no entry is of a node.
    """
    entries: dict[str, list[NodeSample]] = {metric: [] for metric in METRICS}
    cpu, memory, cpu_share, memory_share = (entries[metric] for metric in METRICS)
    strangers: list[str] = []
    for item in listed:
        if item is not None and (name := item.metadata.name):
            allocatable = nodes.allocatable.get(name)
            if allocatable is None:
                strangers.append(name)
                cpu.append((name, _parse_usage_sample(item, item.usage.cpu)))
                memory.append((name, _parse_usage_sample(item, item.usage.memory)))
                continue
            for value, whole, of, usage, share in (
                (item.usage.cpu, allocatable.cpu, "cpu", cpu, cpu_share),
                (item.usage.memory, allocatable.memory, "memory", memory, memory_share),
            ):
                used = _parse_usage_sample(item, value)
                usage.append((name, used))
                share.append((name, used if isinstance(used, str) else _usage_share(used, whole, of)))
        yield
    if not cpu_share:
        cpu_share += ((name, _NO_NODE) for name in strangers)
        memory_share += ((name, _NO_NODE) for name in strangers)
    return entries


def _parse_usage_sample(item: NodeMetrics, value: Any) -> Sample | str:
    """The sample of a usage, or the reason why it is invalid."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return f"{shown(value)} is not {quantity.EXPECTED}"
    try:
        return Sample(parse_value(str(value)), parse_timestamp(item.timestamp), _parse_window_s(item.window))
    except ValueError as error:
        return str(error)


@lru_cache(maxsize=4096)
def _parse_window_s(text: str | None) -> float:
    return clock.parse_duration(text) if text else _WINDOW_S


def _usage_share(used: Sample, whole: int | None, of: str) -> Sample | str:
    """Usage divided by allocatable, rounded to nano-units. It can exceed 1, as usage includes system processes."""
    if not whole or whole < 0:
        return f"the Node reports no allocatable {of}"
    return Sample((2 * used.value * quantity.NANO + whole) // (2 * whole), used.at, used.window_s)
