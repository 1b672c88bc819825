"""Creates and connects the components of `nodewise extender`. `cli.extender` starts them."""

import os
import random
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from nodewise.agent import StateBuilder
from nodewise.agent_controller_interface import Controller, ControllerKind, Handle, WriteCounter
from nodewise.annotator import controller as annotator
from nodewise.annotator import patch_writer
from nodewise.annotator.controller import AnnotatorController
from nodewise.annotator.options import AnnotatorOptions
from nodewise.bind_plugin_interface import AllocationStateBuilder, BindPlugin
from nodewise.cli import extender_components, object_and_metric_sources
from nodewise.cli.extender_components import ClockAndMetrics, ExtenderConfig, Readiness, Task, WiredExtender
from nodewise.cli.extender_options import ExtenderOptions
from nodewise.cli.object_and_metric_sources import ObjectFeed, SourceDependencies
from nodewise.errors import BadSettings, Problem
from nodewise.extender import clusterless_snapshots, request_recorder, third_party_agents
from nodewise.extender.binding import Bindings, Eligibility
from nodewise.extender.clusterless_snapshots import ClusterlessSnapshots
from nodewise.extender.decision import DecisionRing
from nodewise.extender.leader_controller_loop import LeaderLoop
from nodewise.extender.pod_events import PodEventRecorder
from nodewise.extender.pod_requeueing import Requeuer
from nodewise.extender.request_handler import RequestHandler
from nodewise.extender.request_recorder import FileRecorder
from nodewise.extender.reservation_writer import BindContext
from nodewise.extender.routes import BindRoutes, Extender
from nodewise.extender.score_weights import ChainOptions
from nodewise.extender.snapshot_cache import SnapshotCache
from nodewise.kube.api_client_creation import connect
from nodewise.kube.api_server_liveness import ApiServerLiveness
from nodewise.kube.elector import Elector
from nodewise.kube.event_recorder import EventRecorder, EventReporter
from nodewise.kube.http_client import HttpApi
from nodewise.kube.leader_election_rules import LeaseLock
from nodewise.kube.options import KubeOptions
from nodewise.kube.store import Store
from nodewise.metrics.metrics_source import MetricsSource
from nodewise.metrics.node_attributes import NodeAttributesCache
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.prometheus.source import PrometheusSource
from nodewise.metrics.refresher import MetricsRefresher, RefreshOptions
from nodewise.observe import event_loop_lag, logs
from nodewise.statistics.prometheus_load_queries import WindowOptions

LEASE: Final = "nodewise-extender"
"""The Lease of the leader election among replicas."""


class ExtenderComponents(NamedTuple):
    """The inputs of snapshots, and the extender that serves from them."""

    feed: ObjectFeed
    sources: Sequence[MetricsSource]
    """Of metrics."""
    refresher: MetricsRefresher
    states: Mapping[str, StateBuilder[Any]]
    """By agent."""
    snapshot_cache: SnapshotCache
    recorder: request_recorder.RequestRecorder
    request_handler: RequestHandler
    extender: Extender


class ExtenderRelister:
    """Fills the stores from new lists and resets the state builders (`controllers.Relister`)."""

    def __init__(self, components: ExtenderComponents) -> None:
        if components.feed.relister is None:
            raise TypeError("objects of files are read again when the files change")
        self._stores, self._cache = components.feed.relister, components.snapshot_cache

    async def read(self, name: str) -> Store[Any]:
        return await self._stores.read(name)

    def begin(self) -> None:
        self._stores.begin()
        self._cache.rebuild()


class LeaderTasks(NamedTuple):
    """The tasks of a leader. Without a cluster there is no election: every extender leads."""

    elector: Elector | None
    tasks: Sequence[Task]
    closing: Sequence[Callable[[], Awaitable[None]]]


class BindComponents(NamedTuple):
    """The bind verb, and the agent that implements it."""

    bindings: Bindings
    binder: BindPlugin[Any, Any]


def wire_extender(config: ExtenderConfig, tools: ClockAndMetrics) -> WiredExtender:
    """The extender of a configuration: with snapshots of a cluster or of files, or without a cluster."""
    own: ExtenderOptions = config.settings[ExtenderOptions]
    if own.agent_deadline_s is not None:
        logs.emit("option_deprecated", option="--agent-deadline", instead="nothing, it has no effect")
    third_party_agents.connect(config.agents, *tools)
    return _wire_clusterless(config, tools) if own.no_cluster else _wire_with_snapshots(config, tools)


def _wire_clusterless(config: ExtenderConfig, tools: ClockAndMetrics) -> WiredExtender:
    """An extender that is ready immediately. `BadSettings` names agents that need a cluster."""
    own: ExtenderOptions = config.settings[ExtenderOptions]
    annotates = config.settings[AnnotatorOptions].annotate != "off"
    others = {"--objects-from": own.objects_from, "--record": own.record, "--annotate": annotates}
    problems = [
        Problem("--no-cluster", f"{flag} beside it", "one of the two")
        for flag, set_ in others.items()
        if set_
    ]
    if problems:
        raise BadSettings("settings", problems)
    clusterless_snapshots.reject_agents_that_need_cluster(config.agents, config.agent_options)
    states = extender_components.create_agent_states(config)
    clusterless_snapshots.reject_agents_that_need_metrics(states)
    request_handler = RequestHandler(
        config.agents, config.agent_options, states, config.settings[ChainOptions]
    )
    ring = DecisionRing(own.decisions_bytes)
    snapshots = ClusterlessSnapshots(config.agents, states)
    extender = Extender(request_handler, snapshots.snapshot, ring, *tools)

    memory = extender_components.create_agent_memory(own.state, None, states, lambda: True, tools)
    tasks = [_create_event_loop_lag_task(tools), *(agent_memory.run for agent_memory in memory)]
    readiness = Readiness(tuple, tools.registry)
    tools.registry.set("ready", 1.0)
    servers = extender_components.create_servers(
        config, extender, extender.bind_refusal_routes(), readiness, tools
    )
    return WiredExtender(servers, tasks, [agent_memory.close for agent_memory in memory], readiness)


def _wire_with_snapshots(config: ExtenderConfig, tools: ClockAndMetrics) -> WiredExtender:
    own: ExtenderOptions = config.settings[ExtenderOptions]
    if own.objects_from and config.settings[AnnotatorOptions].annotate != "off":
        raise BadSettings(
            "settings", [Problem("--annotate", "--objects-from beside it", "a cluster to write to")]
        )
    api = None if own.objects_from else connect(config.settings[KubeOptions], tools.registry)
    config = extender_components.set_namespace_of_agents(config, api.namespace if api else "")
    feed = _create_object_feed(config, api, tools)
    sources = object_and_metric_sources.create_metric_sources(
        own.metrics, own.objects_from, _metric_source_dependencies(config, api, feed, tools)
    )
    refresher = MetricsRefresher(sources, config.settings[RefreshOptions], *tools)
    states = extender_components.create_agent_states(config)
    snapshot_cache = _create_snapshot_cache(config, feed, states, refresher, tools)
    recorder = _create_request_recorder(config, snapshot_cache, tools)
    request_handler = RequestHandler(
        config.agents, config.agent_options, states, config.settings[ChainOptions]
    )
    extender = _create_extender(config, request_handler, snapshot_cache, recorder, tools)
    components = ExtenderComponents(
        feed, sources, refresher, states, snapshot_cache, recorder, request_handler, extender
    )
    return _assemble_extender(config, api, components, tools)


def _assemble_extender(
    config: ExtenderConfig, api: HttpApi | None, components: ExtenderComponents, tools: ClockAndMetrics
) -> WiredExtender:
    """The tasks and servers of these components, and what to close at the end, in this order."""
    feed, sources, refresher, states, snapshot_cache, recorder, _, extender = components
    binding = _create_bind_verb(config, api, components, tools)
    leader = (
        _create_leader_loop(config, api, components, binding, tools)
        if api is not None
        else LeaderTasks(None, [], [])
    )

    def leads() -> bool:
        return leader.elector is None or leader.elector.leading

    async def publish() -> None:
        await snapshot_cache.run()

    memory = extender_components.create_agent_memory(
        config.settings[ExtenderOptions].state, api, states, leads, tools
    )
    for agent_memory in memory:
        agent_memory.subscribe(recorder.record_memory)
    tasks: list[Task] = [
        *feed.tasks,
        refresher.run,
        publish,
        _create_event_loop_lag_task(tools),
        *leader.tasks,
    ]
    tasks += [agent_memory.run for agent_memory in memory]
    closing: list[Callable[[], Awaitable[None]]] = [binding.bindings.close] if binding else []
    closing += [*(agent_memory.close for agent_memory in memory), *leader.closing]
    closing += [source.close for source in sources if isinstance(source, PrometheusSource)]
    if isinstance(recorder, FileRecorder):
        tasks.append(recorder.run)
        closing.append(recorder.close)
    readiness = Readiness(snapshot_cache.waiting_for, tools.registry)
    binds = BindRoutes(*binding, extender).routes() if binding else extender.bind_refusal_routes()
    servers = extender_components.create_servers(config, extender, binds, readiness, tools)
    return WiredExtender(servers, tasks, closing, readiness)


def _create_object_feed(config: ExtenderConfig, api: HttpApi | None, tools: ClockAndMetrics) -> ObjectFeed:
    needs = object_and_metric_sources.data_requirements(config.agents, config.agent_options)
    writes: AnnotatorOptions = config.settings[AnnotatorOptions]
    if writes.annotate != "off":
        needs = needs.with_additional_requirements(annotator.NODE_FIELDS, annotator.watched(writes))
    if api is None:
        return object_and_metric_sources.watch_files(
            config.settings[ExtenderOptions].objects_from, needs, 0.2
        )
    return object_and_metric_sources.watch_cluster(api, needs, *tools, api.namespace)


def _create_event_loop_lag_task(tools: ClockAndMetrics) -> Task:
    async def measure_lag() -> None:
        await event_loop_lag.measure_lag(*tools)

    return measure_lag


def _metric_source_dependencies(
    config: ExtenderConfig, api: HttpApi | None, feed: ObjectFeed, tools: ClockAndMetrics
) -> SourceDependencies:
    """What sources of metrics are created from."""
    refresh: RefreshOptions = config.settings[RefreshOptions]
    nodes = NodeAttributesCache(feed.nodes)
    prometheus: PrometheusOptions = config.settings[PrometheusOptions]
    return SourceDependencies(
        api, nodes.read, prometheus, refresh.default_max_age_s, refresh.metrics_timeout_s, tools.registry
    )


def _create_snapshot_cache(
    config: ExtenderConfig,
    feed: ObjectFeed,
    states: Mapping[str, StateBuilder[Any]],
    refresher: MetricsRefresher,
    tools: ClockAndMetrics,
) -> SnapshotCache:
    period_s = config.settings[RefreshOptions].sync_period_s
    snapshot_cache = SnapshotCache(states, feed.stores, refresher, *tools, period_s)
    refresher.subscribe(snapshot_cache.touch)
    snapshot_cache.touch()
    return snapshot_cache


def _find_binding_agent(agents: Iterable[Any]) -> BindPlugin[Any, Any] | None:
    binders = [agent for agent in agents if isinstance(agent, BindPlugin)]
    if len(binders) > 1:
        names = ", ".join(binder.name for binder in binders)
        raise BadSettings("settings", [Problem("--agents", names, "one agent that binds")])
    return binders[0] if binders else None


def _create_bind_verb(
    config: ExtenderConfig, api: HttpApi | None, components: ExtenderComponents, tools: ClockAndMetrics
) -> BindComponents | None:
    """The bind verb; None if no agent binds, or without a cluster."""
    binder, feed = _find_binding_agent(components.request_handler.agents), components.feed
    if api is None or binder is None:
        return None
    kube: KubeOptions = config.settings[KubeOptions]
    dependencies = BindContext(
        # a separate rate limit: queued label patches must not delay pods
        api.with_rate_limit(kube.kube_qps, kube.kube_burst),
        api.namespace,
        feed.objects[binder.allocation_records],
        components.snapshot_cache,
        binder,
        cast("AllocationStateBuilder[Any]", components.states[binder.name]),
        *tools,
    )
    watched = object_and_metric_sources.watched_objects(config.agents, config.agent_options)
    pod_type = next(
        watched_objects.type for watched_objects in watched if watched_objects.name == binder.pods
    )
    own: ExtenderOptions = config.settings[ExtenderOptions]
    eligibility = Eligibility(
        resource for kind in config.agents for resource in kind.resources(config.agent_options[kind.name])
    )
    pods = feed.objects[binder.pods]
    return BindComponents(Bindings(dependencies, pods, pod_type, own.bind_timeout_s, eligibility), binder)


def _create_leader_loop(
    config: ExtenderConfig,
    api: HttpApi,
    components: ExtenderComponents,
    binding: BindComponents | None,
    tools: ClockAndMetrics,
) -> LeaderTasks:
    """The election, the events, and the agents' controllers."""
    clock, registry = tools
    feed, snapshot_cache = components.feed, components.snapshot_cache
    configured = config.settings[KubeOptions].identity
    identity = configured or f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}"
    recorder = EventRecorder(api, EventReporter("nodewise.io/extender", identity), clock, registry)
    components.extender.subscribe(PodEventRecorder(recorder))
    # a separate rate limit for the Lease: queued label patches must not cost the leadership
    liveness = ApiServerLiveness(clock, registry)
    limited = api.with_rate_limit(5.0, 10, liveness.record_response)
    lock = LeaseLock(api.namespace, LEASE, identity)
    elector = Elector(limited, lock, clock, registry, random.random, lambda _: leading.notify())
    own = (
        api.namespace,
        lambda: snapshot_cache.snapshot,
        ExtenderRelister(components),
        binding.bindings if binding else None,
    )
    handle = Handle(api, feed.objects, feed.nodes, recorder, clock, registry, WriteCounter(), *own)
    period_s = config.settings[RefreshOptions].sync_period_s
    chain = components.request_handler.chain
    pods = object_and_metric_sources.reflect_waiting_pods(api, config.agents, chain, clock, registry)
    controllers: list[Controller] = [
        kind.controller(config.agent_options[kind.name], handle)
        for kind in config.agents
        if isinstance(kind, ControllerKind)
    ]
    following = [task for controller in controllers for task in controller.tasks()]
    if config.settings[AnnotatorOptions].annotate != "off":
        controllers.append(_create_annotation_controller(config, components.sources, handle))
    controllers.append(Requeuer(chain, pods.store, handle, period_s))
    leading = LeaderLoop(controllers, lambda: snapshot_cache.snapshot, lambda: elector.leading, clock)
    snapshot_cache.on_publish(leading.notify)

    async def lead() -> None:
        await leading.run(period_s)

    tasks = [elector.run, liveness.run, recorder.run, pods.run, lead, *following]
    return LeaderTasks(elector, tasks, [elector.stop, recorder.flush, api.close])


def _create_annotation_controller(
    config: ExtenderConfig, sources: Sequence[MetricsSource], handle: Handle
) -> AnnotatorController:
    """The controller that writes statistics of nodes. A separate rate limit keeps patches from delaying labels."""
    window: WindowOptions = config.settings[WindowOptions]
    limited_api = cast("HttpApi", handle.api).with_rate_limit(patch_writer.QPS, patch_writer.BURST)
    return AnnotatorController(
        config.settings[AnnotatorOptions], window, sources, handle._replace(api=limited_api)
    )


def _create_request_recorder(
    config: ExtenderConfig, snapshot_cache: SnapshotCache, tools: ClockAndMetrics
) -> request_recorder.RequestRecorder:
    own: ExtenderOptions = config.settings[ExtenderOptions]
    if not own.record:
        return request_recorder.NullRecorder()
    period_s = config.settings[RefreshOptions].sync_period_s
    general = request_recorder.ReplaySettings(period_s, config.settings[ChainOptions])
    header = request_recorder.build_header(config.agents, config.agent_options, general, tools.clock.now())
    recorder = FileRecorder(
        request_recorder.create_file(Path(own.record)), header, own.record_max_bytes, *tools
    )
    snapshot_cache.subscribe(recorder.record_cluster_state)
    return recorder


def _create_extender(
    config: ExtenderConfig,
    request_handler: RequestHandler,
    snapshot_cache: SnapshotCache,
    recorder: request_recorder.RequestRecorder,
    tools: ClockAndMetrics,
) -> Extender:
    ring = DecisionRing(config.settings[ExtenderOptions].decisions_bytes)
    return Extender(
        request_handler, lambda *_: snapshot_cache.snapshot, ring, tools.clock, tools.registry, recorder
    )
