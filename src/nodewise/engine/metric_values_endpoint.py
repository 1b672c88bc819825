"""The response of `GET /metric-values`: the settings and metric values that the decisions of this replica depend on.

It is a recording (`recording_file`) of one cluster state without objects. `?after=` is the key of a metric: a response
has the metrics after it, and ends after `MAX_PAGE_VALUES`. It contains no secrets: no settings of connections, and of
agents of other packages only the names, because their options are unknown.
"""

import io
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.agent import AgentKind, ClusterState
from nodewise.base import cooperative_scheduling
from nodewise.base.clock import Clock
from nodewise.engine import recording_file, request_recorder
from nodewise.engine.recording_file import (
    AgentHeader,
    ClusterStateRebuilder,
    EndEntry,
    Header,
    Record,
    RecordingWriter,
)
from nodewise.engine.request_recorder import ReplaySettings
from nodewise.engine.third_party_agents import ThirdPartyKind
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.refresher import MetricsRefresher
from nodewise.server.application import ConcurrencyLimit, Request, Response, Route

PATH: Final = "/metric-values"
MAX_PAGE_VALUES: Final = 2**16
"""Values in one response: the response ends with the metric that exceeds it. It has about a megabyte."""
_METRIC_COST: Final = 64
"""What a metric counts in addition to its values."""
_MAX_CONCURRENT: Final = 2
_CONTENT_TYPE: Final = "application/octet-stream"


class MetricValuesPage(NamedTuple):
    """A part of the metrics of a replica."""

    header: Header
    metrics: MetricsSnapshot
    at: float
    """The time of the response, by the clock of the replica."""
    is_last: bool


class MetricValuesEndpoint:
    """Serves the newest values. It requests no metric, and pauses so that requests of kube-scheduler are answered."""

    def __init__(self, header: Header, refresher: MetricsRefresher, clock: Clock) -> None:
        self._header = header
        self._refresher = refresher
        self._clock = clock

    def route(self) -> Route:
        """For loopback or mutual TLS only: the names of metrics and the values are those of all tenants."""
        return Route("GET", PATH, self._handle_request, ConcurrencyLimit(_MAX_CONCURRENT), pinned_only=True)

    async def _handle_request(self, request: Request) -> Response:
        page = encode_page(
            self._header, self._refresher.snapshot, request.query.get("after", ""), self._clock.now()
        )
        return Response(200, await cooperative_scheduling.run(page), _CONTENT_TYPE)


def build_header(
    kinds: Sequence[AgentKind],
    options: Mapping[str, Any],
    general: ReplaySettings,
    metrics: Sequence[str],
    at: float,
) -> Header:
    """The settings in effect: agents in their order with their options, and the sources of metrics."""
    header = request_recorder.build_header(kinds, options, general, at)
    own = {kind.name for kind in kinds if not isinstance(kind, ThirdPartyKind)}
    agents = tuple(agent if agent.name in own else AgentHeader(agent.name, {}) for agent in header.agents)
    return msgspec.structs.replace(header, agents=agents, metrics=tuple(metrics))


def encode_page(
    header: Header, metrics: MetricsSnapshot, after: str, now: float
) -> Generator[None, None, bytes]:
    """The metrics after a key, as many as one response has. Yields between parts."""
    keys = sorted(key for key in metrics.series.keys() | metrics.failures.keys() if key > after)
    yield
    chosen: list[str] = []
    size = 0
    for key in keys:
        if size >= MAX_PAGE_VALUES:
            break
        chosen.append(key)
        series = metrics.series.get(key)
        size += _METRIC_COST + (len(series.samples) + len(series.invalid) if series else 0)
    page = ClusterState(recording_file.EMPTY.nodes, {}, metrics.only(frozenset(chosen)), now)
    file = io.BytesIO()
    writer = RecordingWriter(file)
    writer.write(Record(header))
    for record in recording_file.delta_entries(recording_file.EMPTY, page, 0):
        if record is not None:
            yield from writer.write_in_pieces(record)
        yield
    writer.write(Record(EndEntry(why="stopped" if len(chosen) == len(keys) else "full")))
    writer.flush()
    return file.getvalue()


def decode_page(body: bytes) -> MetricValuesPage:
    """Decode a response. `BadInput` for any other, for example of another version of nodewise."""
    header, *records = [*recording_file.read(io.BytesIO(body))]
    assert isinstance(header.entry, Header), "the reader checks it"
    rebuilder = ClusterStateRebuilder({})
    state = recording_file.EMPTY
    is_last = True
    for record in records:
        if isinstance(record.entry, EndEntry):
            is_last = record.entry.why == "stopped"
        else:
            state = rebuilder.apply(record) or state
    return MetricValuesPage(header.entry, state.metrics, state.now, is_last)
