"""Components of every server with agents, the extender and the controller: inputs, snapshots, leader, run."""

import asyncio
import contextlib
import ctypes
import gc
import os
import random
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable, Container, Coroutine, Hashable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.agent import AgentKind, StateBuilder
from nodewise.agent.controller_interface import (
    Controller,
    ControllerKind,
    Handle,
    ReservationCleaner,
    WriteCounter,
)
from nodewise.base.clock import Clock, format_rfc3339
from nodewise.base.option import SettingsByGroup
from nodewise.engine import computed_metrics, metric_values_endpoint, object_feed
from nodewise.engine.agent_chain import AgentChain
from nodewise.engine.computed_metrics import ComputationInputs
from nodewise.engine.leader_controller_loop import LeaderLoop
from nodewise.engine.metric_values_endpoint import MetricValuesEndpoint
from nodewise.engine.node_shards import NodeShards
from nodewise.engine.object_feed import ClosableSource, DataRequirements, ObjectFeed
from nodewise.engine.pod_evaluation_endpoint import PodEvaluationEndpoint
from nodewise.engine.request_recorder import ReplaySettings
from nodewise.engine.snapshot_cache import SnapshotCache
from nodewise.kube.event_recorder import EventRecorder, EventReporter
from nodewise.kube.http_client import HttpApi
from nodewise.kube.kubeconfig import KubeOptions
from nodewise.kube.leader_election import (
    CONTROLLER_LEASE,
    EVALUATION_ANNOTATION,
    EXTENDER_LEASE,
    ApiServerLiveness,
    Elector,
    LeaseAccess,
    LeaseLock,
)
from nodewise.kube.reflector import Reflector
from nodewise.kube.shard_election import LeaseAnnotations, ShardElection
from nodewise.kube.store import Store
from nodewise.kube.struct_type_merge import merge
from nodewise.metrics.metrics_source import (
    MetricsSource,
    RefreshOptions,
    SourceDependencies,
    create_metric_sources,
)
from nodewise.metrics.node_attributes import NodeAttributesCache
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.refresher import MetricsRefresher
from nodewise.observe import background_tasks, logs, traces
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server.application import Route
from nodewise.server.server import HttpServer

Task = Callable[[], Coroutine[Any, Any, None]]


class ServerConfig(NamedTuple):
    """The configuration of a server with agents."""

    settings: SettingsByGroup
    agents: Sequence[AgentKind]
    agent_options: Mapping[str, Any]
    """By agent."""


def set_namespace_of_agents(config: ServerConfig, namespace: str) -> ServerConfig:
    """Set nodewise's own namespace in the options of agents that have a field for it.

    `default` is used only if --namespace names it: connections also fall back to it, and its policies would be trusted
    without a reason.
    """
    named: str = config.settings[KubeOptions].namespace
    namespace = named or ("" if namespace == "default" else namespace)
    options = {
        name: msgspec.structs.replace(agent_options, own_namespace=agent_options.own_namespace or namespace)
        if "own_namespace" in agent_options.__struct_fields__
        else agent_options
        for name, agent_options in config.agent_options.items()
    }
    return config._replace(agent_options=options)


class ClockAndMetrics(NamedTuple):
    """The clock and the metrics registry, which most components need."""

    clock: Clock
    registry: MetricsRegistry


class Readiness:
    """The state behind /readyz: what is missing at the start, and whether the server is shutting down."""

    def __init__(self, waiting_for: Callable[[], Sequence[str]], registry: MetricsRegistry) -> None:
        self._waiting_for = waiting_for
        self._registry = registry
        self._leaving = False
        registry.set("ready", 0.0)

    def leave(self) -> None:
        """Stop being ready."""
        self._leaving = True
        self._registry.set("ready", 0.0)

    def waiting_for(self) -> Sequence[str]:
        """What is missing; empty when ready."""
        return ("nothing: it is shutting down",) if self._leaving else self._waiting_for()


class WiredServer(NamedTuple):
    """A server that can be started. The last of `servers` is the admin server."""

    servers: Sequence[HttpServer]
    tasks: Sequence[Task]
    closing: Sequence[Callable[[], Awaitable[None]]]
    readiness: Readiness

    def leave(self) -> None:
        """Stop being ready, and close each connection of a client after its next response."""
        self.readiness.leave()
        for server in self.servers[:-1]:
            server.drain()

    async def close(self) -> None:
        for close in self.closing:
            await close()


def create_agent_states(config: ServerConfig) -> dict[str, StateBuilder[Any]]:
    period_s = config.settings[RefreshOptions].sync_period_s
    return {kind.name: kind.state(config.agent_options[kind.name], period_s) for kind in config.agents}


def create_event_loop_lag_task(tools: ClockAndMetrics) -> Task:
    async def measure_lag() -> None:
        await background_tasks.measure_lag(*tools)

    return measure_lag


def run_until_signal(wire: Callable[[], WiredServer], shutdown_delay_s: float = 0.0) -> None:
    """Run a server until SIGTERM or SIGINT. After SIGTERM it continues to serve for the delay, without being ready."""
    traces.configure()
    with asyncio.Runner(loop_factory=_event_loop_factory) as runner:
        runner.run(_serve_until_signal(wire, shutdown_delay_s))


def _event_loop_factory() -> asyncio.AbstractEventLoop:
    """uvloop if it is installed, else plain asyncio."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _serve_until_signal(wire: Callable[[], WiredServer], shutdown_delay_s: float) -> None:
    running = wire()
    signals: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, number)
    tasks = [asyncio.create_task(background_tasks.keep_running(task)) for task in running.tasks]
    try:
        gc.collect()
        gc.freeze()  # objects of the start live until the end: collections need not visit them
        for server in running.servers:
            await server.start()
        *serving, admin = running.servers
        logs.emit("started", address=serving[0].url if serving else "", health=admin.url)
        first = await signals.get()
        logs.emit("stopping")
        if first == signal.SIGTERM:
            running.leave()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(shutdown_delay_s):
                    await signals.get()
    finally:
        for server in running.servers:
            await server.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await running.close()
        traces.flush()


class InputPaths(NamedTuple):
    """The sources of metrics, as `--metrics` names them, and the files of `--objects-from`."""

    metrics: Sequence[str]
    objects_from: Sequence[str] = ()


class SnapshotComponents(NamedTuple):
    """The snapshots, and what they are computed from."""

    feed: ObjectFeed
    sources: Sequence[MetricsSource]
    """Of metrics."""
    refresher: MetricsRefresher
    states: Mapping[str, StateBuilder[Any]]
    """By agent."""
    cache: SnapshotCache
    source_names: Sequence[str] = ()
    """The sources as `--metrics` names them."""

    def tasks(self) -> list[Task]:
        """The tasks that keep the snapshots up to date."""

        async def publish() -> None:
            await self.cache.run()

        return [*self.feed.tasks, self.refresher.run, publish]

    def closing(self) -> list[Callable[[], Awaitable[None]]]:
        return [source.close for source in self.sources if isinstance(source, ClosableSource)]


class SnapshotRelister:
    """Fills the stores from new lists and resets the state builders (`agent.controller_interface.Relister`)."""

    def __init__(self, snapshots: SnapshotComponents) -> None:
        if snapshots.feed.relister is None:
            raise TypeError("objects of files are read again when the files change")
        self._stores, self._cache = snapshots.feed.relister, snapshots.cache

    async def read(self, name: str) -> Store[Any]:
        return await self._stores.read(name)

    def begin(self) -> None:
        self._stores.begin()
        self._cache.rebuild()


class EvaluationTime:
    """The time of the newest snapshot that the leader has applied to the cluster: labels, statuses and annotations.

    Its place is the Lease, which the leader writes all the time, so that no other object has to be written at rest.
    """

    def __init__(self, registry: MetricsRegistry) -> None:
        self._registry = registry
        self._time = ""

    def set(self, at: float) -> None:
        self._registry.set("evaluation_timestamp_seconds", at)
        self._time = format_rfc3339(at)

    def annotations(self) -> dict[str, str]:
        """The annotations of the Lease."""
        return {EVALUATION_ANNOTATION: self._time} if self._time else {}


class LeaderTasks(NamedTuple):
    """The tasks of a leader. Without a cluster there is no election: every extender leads."""

    leads: Callable[[], bool]
    tasks: Sequence[Task]
    closing: Sequence[Callable[[], Awaitable[None]]]


class LeaseClient(LeaseAnnotations):
    """What a replica needs to take part in an election, and what its Lease tells about it."""

    def __init__(
        self,
        config: ServerConfig,
        api: HttpApi,
        tools: ClockAndMetrics,
        lease: str,
        writes_per_s: float = 5.0,
    ) -> None:
        host, suffix = socket.gethostname(), secrets.token_hex(4)
        configured = config.settings[KubeOptions].identity
        identity = configured or f"{host}_{os.getpid()}_{suffix}"
        self.lock = LeaseLock(api.namespace, lease, identity, process=f"{host}_{suffix}")
        self.liveness = ApiServerLiveness(*tools)
        # a separate rate limit for the Lease: queued label patches must not cost the leadership
        self.api = api.with_rate_limit(writes_per_s, round(2 * writes_per_s), self.liveness.record_response)
        self.evaluation = EvaluationTime(tools.registry)
        self.controllers: list[Controller] = []

    def of_leader(self) -> dict[str, str]:
        of_controllers = (controller.lease_annotations().items() for controller in self.controllers)
        return {**self.evaluation.annotations(), **dict(chain.from_iterable(of_controllers))}

    def of_shard(self, shard: int) -> dict[str, str]:
        of_controllers = (controller.shard_annotations(shard).items() for controller in self.controllers)
        return dict(chain.from_iterable(of_controllers))


class Sharding(NamedTuple):
    """How the replicas of a controller share its work."""

    client: LeaseClient
    election: ShardElection
    nodes: NodeShards


def create_sharding(config: ServerConfig, api: HttpApi, shards: int, tools: ClockAndMetrics) -> Sharding:
    """The election of `nodewise controller`, and the nodes of this replica."""
    client = LeaseClient(config, api, tools, CONTROLLER_LEASE, 5.0 + shards)
    election = ShardElection(LeaseAccess(client.api, client.lock, *tools, random.random), shards, client)
    return Sharding(client, election, NodeShards(election, tools.clock))


class StoredNames(Container[str]):
    """The names of the objects of a kind without namespaces."""

    def __init__(self, store: Store[Any]) -> None:
        self._store = store

    def __contains__(self, name: object) -> bool:
        return self._store.get("", str(name)) is not None


def create_snapshot_components(
    config: ServerConfig,
    api: HttpApi | None,
    paths: InputPaths,
    needs: DataRequirements,
    tools: ClockAndMetrics,
    shards: NodeShards | None = None,
) -> SnapshotComponents:
    """Snapshots of a cluster, or of files if there is no `api`. With `shards`, only of the nodes of this replica."""
    if api is None:
        feed = object_feed.watch_files(paths.objects_from, needs)
    elif shards is None:
        feed = object_feed.watch_cluster(api, needs, *tools, api.namespace)
    else:

        async def run_nodes(nodes: Reflector[Any]) -> None:
            await shards.run(nodes, refresher.fetch_all)

        feed = object_feed.watch_cluster(api, needs, *tools, api.namespace, shards.target, run_nodes)
    refresh: RefreshOptions = config.settings[RefreshOptions]
    own_nodes = None if shards is None else StoredNames(feed.nodes)
    dependencies = SourceDependencies(
        api,
        NodeAttributesCache(feed.nodes, is_partial=shards is not None).read,
        config.settings[PrometheusOptions],
        refresh.default_max_age_s,
        refresh.metrics_timeout_s,
        tools.registry,
        own_nodes,
    )
    sources = create_metric_sources(paths.metrics, paths.objects_from, dependencies)
    if api is not None:
        inputs = ComputationInputs(api, api.namespace, tuple(sources), refresh, tools.clock)
        sources = [*computed_metrics.create_sources(inputs), *sources]
    refresher = MetricsRefresher(sources, refresh, *tools, own_nodes)
    states = create_agent_states(config)
    cache = SnapshotCache(states, feed.stores, refresher, *tools, refresh.sync_period_s)
    refresher.subscribe(cache.touch)
    cache.touch()
    return SnapshotComponents(feed, sources, refresher, states, cache, paths.metrics)


def create_metric_values_route(
    config: ServerConfig, snapshots: SnapshotComponents, general: ReplaySettings, tools: ClockAndMetrics
) -> Route:
    """The route with the settings in effect and the newest metric values."""
    header = metric_values_endpoint.build_header(
        config.agents, config.agent_options, general, snapshots.source_names, tools.clock.now()
    )
    return MetricValuesEndpoint(header, snapshots.refresher, tools.clock).route()


def create_evaluation_routes(
    config: ServerConfig,
    api: HttpApi,
    snapshots: SnapshotComponents,
    leads: Callable[[], bool],
    nodes: NodeShards | None = None,
) -> list[Route]:
    """The route that evaluates a pod of native mode; none without the agent telemetry."""
    telemetry = next((kind for kind in config.agents if kind.name == "telemetry"), None)
    if telemetry is None:
        return []
    from nodewise.policies.agent import NativeModeAgent, NativePodFields  # memory: only with this agent

    pod_type = merge("Pod", telemetry.pod_fields, NativePodFields)
    chain = AgentChain([NativeModeAgent()])
    shards = [] if nodes is None else [lambda: (nodes.shards, sorted(nodes.own_shards()))]
    endpoint = PodEvaluationEndpoint(chain, api, pod_type, lambda: snapshots.cache.snapshot, leads, *shards)
    return [endpoint.route()]


def create_leader_tasks(
    config: ServerConfig,
    api: HttpApi,
    snapshots: SnapshotComponents,
    tools: ClockAndMetrics,
    sharding: Sharding | None = None,
    reservations: ReservationCleaner | None = None,
    create_more_controllers: Callable[[Handle], Sequence[Controller]] = lambda _: (),
) -> LeaderTasks:
    """The election, the events, the controllers of the agents, and those that `create_more_controllers` returns.

    With `sharding` for `nodewise controller`, else for the extender.
    """
    clock, registry = tools
    client = sharding.client if sharding else LeaseClient(config, api, tools, EXTENDER_LEASE)
    component = "controller" if sharding else "extender"
    recorder = EventRecorder(
        api, EventReporter(f"nodewise.io/{component}", client.lock.identity), clock, registry
    )
    election: ShardElection | Elector
    leads: Callable[[], bool]
    tenure: Callable[[], Hashable]
    if sharding:
        election = sharding.election
        leads, tenure = lambda: sharding.election.leads, sharding.nodes.tenure
        election_tasks = election.tasks()
    else:
        election = elector = Elector(
            LeaseAccess(client.api, client.lock, clock, registry, random.random), client.of_leader
        )
        leads = tenure = lambda: elector.leading
        election_tasks = [election.run]
    relister = SnapshotRelister(snapshots)
    own = (api.namespace, lambda: snapshots.cache.snapshot, relister, reservations, api.with_metadata_only())
    feed = snapshots.feed
    handle = Handle(
        api,
        feed.objects,
        feed.nodes,
        recorder,
        clock,
        registry,
        WriteCounter(),
        *own,
        ownership=sharding.nodes if sharding else None,
    )
    client.controllers += [
        kind.controller(config.agent_options[kind.name], handle)
        for kind in config.agents
        if isinstance(kind, ControllerKind)
    ]
    client.controllers += create_more_controllers(handle)
    following = [task for controller in client.controllers for task in controller.tasks()]
    leading = LeaderLoop(
        client.controllers, lambda: snapshots.cache.snapshot, tenure, clock, client.evaluation.set
    )
    election.on_change(lambda _: leading.notify())
    snapshots.cache.on_publish(leading.notify)
    period_s = config.settings[RefreshOptions].sync_period_s

    async def lead() -> None:
        await leading.run(period_s)

    tasks = [*election_tasks, client.liveness.run, recorder.run, lead, *following]
    return LeaderTasks(leads, tasks, [election.stop, recorder.flush, api.close])


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""`M_TRIM_THRESHOLD` and `M_MMAP_THRESHOLD` of glibc's malloc.h."""
_SMALL_BYTES: Final = 2**17
"""glibc's default of both. Annotations of one pod have up to 256 KiB."""
_BLOCK_BYTES_PER_NODE: Final = 128
"""A request with 5,000 names has 232 kB, and the arrays for it are as large. A response about a metric, which is
decoded in the background, has 200 bytes per node, and a page of a list about a megabyte."""
_LEAST_BLOCK_BYTES, _LEAST_FREE_BYTES = 2**19, 2**23
_FREE_BLOCKS: Final = 4


class RequestMemory:
    """Keeps the memory of a request with the names of all nodes for the next one.

    If blocks of a request were mapped, or returned after each request, the kernel would clear 500 pages per request
    with 5,000 names, which takes a third of its time, and 1,800 of one with 50,000 names, which takes more than half.
    """

    def __init__(self) -> None:
        self._nodes = -1

    def keep(self, nodes: int) -> None:
        """Set the limits for at least so many nodes."""
        if nodes > self._nodes:
            self._nodes = nodes + nodes // 4  # not at every new node
            block_bytes = max(_BLOCK_BYTES_PER_NODE * self._nodes, _LEAST_BLOCK_BYTES)
            return_freed_blocks(block_bytes, max(_FREE_BLOCKS * block_bytes, _LEAST_FREE_BYTES))


def return_freed_blocks(block_bytes: int = _SMALL_BYTES, free_bytes: int = _SMALL_BYTES) -> None:
    """Let malloc map each block of `block_bytes` or more, and unmap it when it is freed. Of smaller blocks, it keeps
    `free_bytes` free at the end of the heap.

    By default glibc raises both up to 32 MiB as soon as such a block is freed. Later blocks are then parts of the heap,
    which small objects that were allocated after them keep from shrinking: 40 responses of a megabyte at the same time
    would stay in memory forever. Other C libraries do not have the function, or ignore the options.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, block_bytes)
        mallopt(_TRIM_THRESHOLD, free_bytes)
