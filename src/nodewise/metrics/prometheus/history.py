"""Reads the history of node metrics from Prometheus, in parts that its limits permit.

A part that Prometheus refuses or does not answer in time is read again in halves. So the limits of a server (11,000
points per series, samples per query, timeouts of proxies) need not be known.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from nodewise.base import cooperative_scheduling
from nodewise.base.clock import LAST_TIME_S
from nodewise.base.errors import BadInput, Problem, Unavailable, shown
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.node_attributes import NodeAttributes
from nodewise.metrics.node_index import NodeIndex
from nodewise.metrics.prometheus import node_matching, query_responses, range_matrix, source
from nodewise.metrics.prometheus.client import PrometheusClient, PrometheusConnection
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.prometheus.query_responses import QueryResponse, SeriesValue
from nodewise.metrics.prometheus.range_matrix import NodeMatrix, TimeGrid
from nodewise.metrics.series import LOOKBACK_S
from nodewise.observe.metrics_registry import MetricsRegistry

MAX_POINTS_PER_SERIES: Final = 11_000
"""Prometheus refuses more (web/api/v1/api.go, `queryRange`)."""
_POINTS_PER_PART: Final = 250_000
"""Numbers in one response: 7 MB of JSON, and 60 MB while it is decoded."""
_MAX_CONCURRENT: Final = 4
"""Parts that are requested, or wait to be decoded, at once. Policies may have hundreds of metrics, and Prometheus has
20 slots for the queries of all of its clients (`--query.max-concurrency`)."""
_MAX_STEPS: Final = 2_000
_MAX_ATTEMPTS: Final = 3
"""For one step, which cannot be halved."""


class PrometheusHistory:
    """The history of metrics of some nodes in one Prometheus."""

    def __init__(
        self,
        url: str,
        options: PrometheusOptions,
        attributes: NodeAttributes,
        nodes: NodeIndex,
        metrics_registry: MetricsRegistry,
    ) -> None:
        """`BadSettings` names every setting that cannot be used."""
        self._connection = PrometheusConnection(url, options, metrics_registry)
        self._client = PrometheusClient(self._connection, options.prometheus_timeout_s)
        self._labels = node_matching.series_labels(options)
        self._attributes = attributes
        self._nodes = nodes
        self.most_columns = len(nodes)
        """How many nodes or devices a metric has, about."""
        self._only_current: set[str] = set()
        """The metrics of which a node has several series, so that series that have ended must not count."""
        self._parts = asyncio.Semaphore(_MAX_CONCURRENT)
        self.worker: Final = ThreadPoolExecutor(1, thread_name_prefix="history")
        """Decodes and evaluates while the event loop reads. Several threads would take turns anyway, because of the
        interpreter's lock, and glibc keeps what each of them has freed apart from the others.
        """
        self.query_count = 0
        self.halvings: list[str] = []
        """The reasons for which a part was read in halves."""
        self.unmatched: set[str] = set()
        """Names in series of none of the nodes, as far as they were seen."""
        self.incomplete = ""
        """Why series or samples may be missing, by the first response that says so; empty for none."""

    @property
    def steps_per_part(self) -> int:
        """The number of times for which one call of `read` is cheap in memory."""
        return max(1, min(_MAX_STEPS, _POINTS_PER_PART // max(self.most_columns, 1)))

    async def clock(self) -> float:
        """The time of Prometheus, in seconds since 1970."""
        values = [item.value for item in query_responses.newest_values(await self._query("vector(time())"))]
        with contextlib.suppress(ValueError):
            if len(values) == 1 and 0 < (now := float(values[0])) < LAST_TIME_S:
                return now
        result = ", ".join(map(shown, values[:3])) if values else "no result"
        problem = Problem("the query vector(time())", result, "the time, as Prometheus returns it")
        raise Unavailable(self._connection.hide(self._connection.url), [problem])

    async def read(self, requests: Sequence[MetricRequest], grid: TimeGrid) -> Mapping[str, NodeMatrix]:
        """The values of metrics at the times of a grid, by `MetricRequest.key`. A few metrics are read at once.

        `BadInput` for a query that Prometheus cannot execute, `Unavailable` if it does not answer for single times.
        """
        matrices = await asyncio.gather(*(self._read_metric(request, grid) for request in requests))
        return {request.key: matrix for request, matrix in zip(requests, matrices, strict=True)}

    async def sample_distances(
        self, requests: Sequence[MetricRequest], at: float
    ) -> Mapping[str, float | None]:
        """How far apart the samples of metrics were at a time, by `MetricRequest.key`; None if it is not known.

        Errors as in `read`.
        """
        distances = await asyncio.gather(*(self._sample_distance(request, at) for request in requests))
        return {request.key: distance for request, distance in zip(requests, distances, strict=True)}

    async def _sample_distance(self, request: MetricRequest, at: float) -> float | None:
        if not source.is_selector(source.instant_query(request)):
            return None
        query = source.range_query(request, max(request.max_age_s, LOOKBACK_S))
        async with self._parts:
            answer = await self._query(query, at)
        series = query_responses.newest_values(answer)
        grouping = node_matching.group_by_node(series, self._labels, self._attributes)
        return cooperative_scheduling.run_without_pauses(grouping).distance_s

    async def series(self, query: str) -> list[SeriesValue]:
        """The series of an instant query."""
        return list(query_responses.newest_values(await self._query(query)))

    async def close(self) -> None:
        self.worker.shutdown(wait=False, cancel_futures=True)
        await self._connection.http.aclose()

    async def _read_metric(self, request: MetricRequest, grid: TimeGrid) -> NodeMatrix:
        matrix = await self._read_parts(request, grid)
        is_selector = source.is_selector(source.instant_query(request))
        if matrix.has_several_series and is_selector and request.key not in self._only_current:
            self._only_current.add(request.key)
            matrix = await self._read_parts(request, grid)
        self.unmatched |= matrix.unmatched
        return matrix

    async def _read_parts(self, request: MetricRequest, grid: TimeGrid, attempt: int = 1) -> NodeMatrix:
        try:
            return await self._read_part(request, grid)
        except (BadInput, Unavailable) as error:
            # servers refuse a query because of its size with the type of error for invalid queries
            is_limit = any(word in str(error).lower() for word in _LIMIT_WORDS)
            if grid.steps > 1 and (isinstance(error, Unavailable) or is_limit):
                self.halvings.append("; ".join(map(str, error.problems)))
                half = grid.steps // 2
                parts = [grid.part(0, half), grid.part(half, grid.steps)]
                return range_matrix.stack([await self._read_parts(request, part) for part in parts])
            if not isinstance(error, Unavailable) or attempt == _MAX_ATTEMPTS:
                raise
            await asyncio.sleep(min(error.retry_after_s, 5.0))
        return await self._read_parts(request, grid, attempt + 1)

    async def _read_part(self, request: MetricRequest, grid: TimeGrid) -> NodeMatrix:
        if grid.steps > MAX_POINTS_PER_SERIES:
            problem = Problem("", f"{grid.steps} points", f"at most {MAX_POINTS_PER_SERIES}")
            raise Unavailable("range query", [problem])
        query = source.last_value_query(
            request, request.max_age_s, only_current=request.key in self._only_current
        )
        async with self._parts:
            self.query_count += 1
            answer = await self._client.query_range(query, grid.start, grid.end, grid.step_s)
            self.incomplete = self.incomplete or answer.incomplete
            return await asyncio.get_running_loop().run_in_executor(
                self.worker,
                range_matrix.build_matrix,
                answer,
                grid,
                self._labels,
                self._attributes,
                request.device_label or self._nodes,
                request.aggregate,
                request.max_age_s if source.is_selector(source.instant_query(request)) else 0.0,
            )

    async def _query(self, query: str, at: float | None = None) -> QueryResponse:
        self.query_count += 1
        answer = await self._client.query(query, at=at)
        self.incomplete = self.incomplete or answer.incomplete
        return answer


_LIMIT_WORDS: Final = (
    "exceed",
    "too many",
    "limit",
    "more than",
    "too large",
    "maximum",
    "not enough memory",
)


class PodStart(NamedTuple):
    """A pod that started in the past."""

    namespace: str
    name: str
    started_at: float
    """Seconds since 1970."""
    node: str = ""
    """Empty if it is not known."""
    labels: Mapping[str, str] = {}
    """Those that kube-state-metrics exports, by the names that it gives them."""
    owner_kind: str = ""


async def read_pod_starts(history: PrometheusHistory, window_s: float) -> list[PodStart]:
    """The pods that started in the last `window_s` seconds, from kube-state-metrics; oldest first.

    Empty if Prometheus has no such series.
    """
    window = source.promql_duration(window_s)
    starts = await history.series(f"last_over_time(kube_pod_start_time[{window}])")
    infos = await history.series(f"last_over_time(kube_pod_info[{window}])") if starts else []
    labels = await history.series(f"last_over_time(kube_pod_labels[{window}])") if starts else []
    info_of = {_pod_key(item): item.labels for item in infos}
    labels_of = {_pod_key(item): item.labels for item in labels}
    pods = {}
    for item in starts:
        key = _pod_key(item)
        info = info_of.get(key, {})
        pods[key] = PodStart(
            item.labels.get("namespace", ""),
            item.labels.get("pod", ""),
            float(item.value),
            info.get("node", ""),
            {
                name.removeprefix("label_"): text
                for name, text in labels_of.get(key, {}).items()
                if name.startswith("label_")
            },
            info.get("created_by_kind", ""),
        )
    return sorted(pods.values(), key=lambda pod: pod.started_at)


def _pod_key(item: SeriesValue) -> tuple[str, str]:
    """What identifies a pod: the uid, where kube-state-metrics has it."""
    uid = item.labels.get("uid", "")
    return ("", uid) if uid else (item.labels.get("namespace", ""), item.labels.get("pod", ""))
