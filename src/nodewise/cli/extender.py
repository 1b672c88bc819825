"""`nodewise extender`: creates and connects the components of the extender, and serves until a signal."""

import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import click
from click.core import ParameterSource

from nodewise.agent import StateBuilder
from nodewise.agent.bind_plugin_interface import AllocationStateBuilder, BindPlugin
from nodewise.agent.controller_interface import Controller, Handle, LeaderTask
from nodewise.base.clock import SystemClock
from nodewise.base.errors import BadSettings, Problem, shown
from nodewise.cli import agent_selection, older_program_flags, server_components
from nodewise.cli.command_help import SectionedCommand
from nodewise.cli.extender_options import ExtenderOptions, leader_tasks, setting_groups
from nodewise.cli.options_from_settings import CommandLine, settings_command
from nodewise.cli.server_components import (
    ClockAndMetrics,
    InputPaths,
    LeaderTasks,
    Readiness,
    ServerConfig,
    SnapshotComponents,
    WiredServer,
)
from nodewise.cli.setting_declarations import list_settings
from nodewise.engine import object_feed, request_recorder, third_party_agents
from nodewise.engine.agent_chain import ChainOptions
from nodewise.engine.agent_memory_storage import AgentMemory, ConfigMapMemoryStore, FileMemoryStore
from nodewise.engine.decision import DecisionRing, PodEventRecorder
from nodewise.engine.object_feed import DataRequirements
from nodewise.engine.pod_requeueing import Requeuer
from nodewise.engine.request_recorder import FileRecorder, ReplaySettings
from nodewise.engine.snapshot_cache import SnapshotCache
from nodewise.extender import clusterless_snapshots
from nodewise.extender.binding import Bindings, Eligibility
from nodewise.extender.clusterless_snapshots import ClusterlessSnapshots
from nodewise.extender.reservation_writer import BindContext
from nodewise.extender.routes import BindRoutes, Extender, RequestHandler
from nodewise.kube.api_client_creation import connect
from nodewise.kube.http_client import HttpApi
from nodewise.kube.kubeconfig import KubeOptions
from nodewise.kube.reflector import Reflector
from nodewise.metrics.metrics_source import RefreshOptions
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server.application import Application, Route
from nodewise.server.options import AdminOptions, ServeOptions
from nodewise.server.server import HttpServer, admin_routes, admin_server, restrict_to_loopback


class ExtenderComponents(NamedTuple):
    """The snapshots, and the extender that serves from them."""

    snapshots: SnapshotComponents
    recorder: request_recorder.RequestRecorder
    request_handler: RequestHandler
    extender: Extender


class ExtenderRoutes(NamedTuple):
    public: Sequence[Route]
    """The verbs, for kube-scheduler."""
    private: Sequence[Route]
    """Over mutual TLS or on loopback only: they show the pods and metric values of all tenants."""


class BindComponents(NamedTuple):
    """The bind verb, and the agent that implements it."""

    bindings: Bindings
    binder: BindPlugin[Any, Any]


def wire_extender(config: ServerConfig, tools: ClockAndMetrics) -> WiredServer:
    """The extender of a configuration: with snapshots of a cluster or of files, or without a cluster."""
    own: ExtenderOptions = config.settings[ExtenderOptions]
    if own.agent_deadline_s is not None:
        logs.emit("option_deprecated", option="--agent-deadline", instead="nothing, it has no effect")
    third_party_agents.connect(config.agents, *tools)
    return _wire_clusterless(config, tools) if own.no_cluster else _wire_with_snapshots(config, tools)


def _wire_clusterless(config: ServerConfig, tools: ClockAndMetrics) -> WiredServer:
    """An extender that is ready immediately. `BadSettings` names agents that need a cluster."""
    server_components.RequestMemory().keep(0)
    own: ExtenderOptions = config.settings[ExtenderOptions]
    others = [
        flag for flag, value in (("--objects-from", own.objects_from), ("--record", own.record)) if value
    ]
    others += [task.flag for task in _enabled_leader_tasks(config)]
    problems = [Problem("--no-cluster", f"{flag} beside it", "one of the two") for flag in others]
    if problems:
        raise BadSettings("settings", problems)
    clusterless_snapshots.reject_agents_that_need_cluster(config.agents, config.agent_options)
    states = server_components.create_agent_states(config)
    clusterless_snapshots.reject_agents_that_need_metrics(states)
    request_handler = RequestHandler(
        config.agents, config.agent_options, states, config.settings[ChainOptions]
    )
    ring = DecisionRing(own.decisions_bytes)
    snapshots = ClusterlessSnapshots(config.agents, states)
    extender = Extender(request_handler, snapshots.snapshot, ring, *tools)

    memory = create_agent_memory(own.state, None, states, lambda: True, tools)
    tasks = [
        server_components.create_event_loop_lag_task(tools),
        *(agent_memory.run for agent_memory in memory),
    ]
    readiness = Readiness(tuple, tools.registry)
    tools.registry.set("ready", 1.0)
    routes = ExtenderRoutes([*extender.routes(), *extender.bind_refusal_routes()], extender.private_routes())
    servers = create_servers(config, routes, readiness, tools)
    return WiredServer(servers, tasks, [agent_memory.close for agent_memory in memory], readiness)


def _wire_with_snapshots(config: ServerConfig, tools: ClockAndMetrics) -> WiredServer:
    own: ExtenderOptions = config.settings[ExtenderOptions]
    if own.objects_from and (writing := _enabled_leader_tasks(config)):
        raise BadSettings(
            "settings",
            [Problem(task.flag, "--objects-from beside it", "a cluster to write to") for task in writing],
        )
    api = (
        None
        if own.objects_from
        else connect(config.settings[KubeOptions], tools.registry, small_receive_buffer=True, many_calls=True)
    )
    config = server_components.set_namespace_of_agents(config, api.namespace if api else "")
    paths, needs = InputPaths(own.metrics, own.objects_from), _data_requirements(config)
    snapshots = server_components.create_snapshot_components(config, api, paths, needs, tools)
    request_memory = server_components.RequestMemory()
    request_memory.keep(0)

    def prepare_for_requests() -> None:
        nodes = snapshots.cache.snapshot.nodes
        nodes.prepare()
        request_memory.keep(len(nodes))

    snapshots.cache.on_publish(prepare_for_requests)
    recorder = _create_request_recorder(config, snapshots.cache, tools)
    request_handler = RequestHandler(
        config.agents, config.agent_options, snapshots.states, config.settings[ChainOptions]
    )
    extender = Extender(
        request_handler,
        lambda *_: snapshots.cache.snapshot,
        DecisionRing(own.decisions_bytes),
        *tools,
        recorder,
    )
    return _assemble_extender(
        config, api, ExtenderComponents(snapshots, recorder, request_handler, extender), tools
    )


def _data_requirements(config: ServerConfig) -> DataRequirements:
    """The objects that agents read, and those that tasks of the leader read."""
    needs = object_feed.data_requirements(config.agents, config.agent_options)
    for task in _enabled_leader_tasks(config):
        needs = needs.with_additional_requirements(task.node_fields(), task.watched(config.settings))
    return needs


def _enabled_leader_tasks(config: ServerConfig) -> list[LeaderTask]:
    return [task for task in leader_tasks() if task.is_enabled(config.settings)]


def _assemble_extender(
    config: ServerConfig, api: HttpApi | None, components: ExtenderComponents, tools: ClockAndMetrics
) -> WiredServer:
    """The tasks and servers of these components, and what to close at the end, in this order."""
    snapshots, recorder, _, extender = components
    binding = _create_bind_verb(config, api, components, tools)
    leader = (
        _create_leader_tasks(config, api, components, binding, tools)
        if api is not None
        else LeaderTasks(lambda: True, [], [])
    )
    memory = create_agent_memory(
        config.settings[ExtenderOptions].state, api, snapshots.states, leader.leads, tools
    )
    for agent_memory in memory:
        agent_memory.subscribe(recorder.record_memory)
    tasks = [*snapshots.tasks(), server_components.create_event_loop_lag_task(tools), *leader.tasks]
    tasks += [agent_memory.run for agent_memory in memory]
    closing: list[Callable[[], Awaitable[None]]] = [binding.bindings.close] if binding else []
    closing += [*(agent_memory.close for agent_memory in memory), *leader.closing, *snapshots.closing()]
    if isinstance(recorder, FileRecorder):
        tasks.append(recorder.run)
        closing.append(recorder.close)
    readiness = Readiness(snapshots.cache.waiting_for, tools.registry)
    binds = BindRoutes(*binding, extender).routes() if binding else extender.bind_refusal_routes()
    general = ReplaySettings(config.settings[RefreshOptions].sync_period_s, config.settings[ChainOptions])
    private = [
        *extender.private_routes(),
        server_components.create_metric_values_route(config, snapshots, general, tools),
    ]
    if api is not None:  # the leader may run in native mode
        private += server_components.create_evaluation_routes(config, api, snapshots, leader.leads)
    routes = ExtenderRoutes([*extender.routes(), *binds], private)
    servers = create_servers(config, routes, readiness, tools)
    return WiredServer(servers, tasks, closing, readiness)


def _find_binding_agent(agents: Iterable[Any]) -> BindPlugin[Any, Any] | None:
    binders = [agent for agent in agents if isinstance(agent, BindPlugin)]
    if len(binders) > 1:
        names = ", ".join(binder.name for binder in binders)
        raise BadSettings("settings", [Problem("--agents", names, "one agent that binds")])
    return binders[0] if binders else None


def _create_bind_verb(
    config: ServerConfig, api: HttpApi | None, components: ExtenderComponents, tools: ClockAndMetrics
) -> BindComponents | None:
    """The bind verb; None if no agent binds, or without a cluster."""
    binder, snapshots = _find_binding_agent(components.request_handler.agents), components.snapshots
    if binder is not None:
        binder.serve()
    if api is None or binder is None:
        return None
    kube: KubeOptions = config.settings[KubeOptions]
    dependencies = BindContext(
        # a separate rate limit: queued label patches must not delay pods
        api.with_rate_limit(kube.kube_qps, kube.kube_burst),
        api.namespace,
        snapshots.feed.objects[binder.allocation_records],
        snapshots.cache,
        binder,
        cast("AllocationStateBuilder[Any]", snapshots.states[binder.name]),
        *tools,
    )
    watched = object_feed.watched_objects(config.agents, config.agent_options)
    pod_type = next(
        watched_objects.type for watched_objects in watched if watched_objects.name == binder.pods
    )
    own: ExtenderOptions = config.settings[ExtenderOptions]
    eligibility = Eligibility(
        resource for kind in config.agents for resource in kind.resources(config.agent_options[kind.name])
    )
    pods = snapshots.feed.objects[binder.pods]
    return BindComponents(Bindings(dependencies, pods, pod_type, own.bind_timeout_s, eligibility), binder)


def _create_leader_tasks(
    config: ServerConfig,
    api: HttpApi,
    components: ExtenderComponents,
    binding: BindComponents | None,
    tools: ClockAndMetrics,
) -> LeaderTasks:
    """The leader's tasks, and the watch of the pods that it requeues."""
    snapshots, chain = components.snapshots, components.request_handler.chain
    waiting = object_feed.waiting_pods_target(config.agents, chain)
    pods = Reflector(api, waiting, *tools, random.random)

    def create_more_controllers(handle: Handle) -> list[Controller]:
        components.extender.subscribe(PodEventRecorder(handle.recorder))
        requeuer = Requeuer(chain, pods.store, handle, config.settings[RefreshOptions].sync_period_s)
        tasks = _enabled_leader_tasks(config)
        return [*(task.controller(config.settings, snapshots.sources, handle) for task in tasks), requeuer]

    bindings = binding.bindings if binding else None
    leader = server_components.create_leader_tasks(
        config, api, snapshots, tools, None, bindings, create_more_controllers
    )
    return leader._replace(tasks=[*leader.tasks, pods.run])


def _create_request_recorder(
    config: ServerConfig, snapshot_cache: SnapshotCache, tools: ClockAndMetrics
) -> request_recorder.RequestRecorder:
    own: ExtenderOptions = config.settings[ExtenderOptions]
    if not own.record:
        return request_recorder.RequestRecorder()
    period_s = config.settings[RefreshOptions].sync_period_s
    general = ReplaySettings(period_s, config.settings[ChainOptions])
    header = request_recorder.build_header(config.agents, config.agent_options, general, tools.clock.now())
    recorder = FileRecorder(
        request_recorder.create_file(Path(own.record)), header, own.record_max_bytes, *tools
    )
    snapshot_cache.subscribe(recorder.record_cluster_state)
    return recorder


def create_agent_memory(
    path: str,
    api: HttpApi | None,
    states: Mapping[str, StateBuilder[Any]],
    leads: Callable[[], bool],
    tools: ClockAndMetrics,
) -> list[AgentMemory]:
    """The component that stores the memory of agents. Empty if no agent has memory, or without a file and a cluster."""
    learning = {name: state for name, state in states.items() if state.memory_scope != "none"}
    if not learning or not (path or api):
        return []
    keeping = (
        FileMemoryStore(path)
        if path
        else ConfigMapMemoryStore(cast("HttpApi", api), cast("HttpApi", api).namespace)
    )
    return [AgentMemory(learning, keeping, leads, tools.clock)]


def create_servers(
    config: ServerConfig, routes: ExtenderRoutes, readiness: Readiness, tools: ClockAndMetrics
) -> tuple[HttpServer, HttpServer]:
    """The server for kube-scheduler, and the admin server."""
    serve: ServeOptions = config.settings[ServeOptions]
    admin: AdminOptions = config.settings[AdminOptions]
    main_routes = [*routes.public, *([] if serve.unsafe else routes.private)]
    admin_shows = [
        *admin_routes(readiness.waiting_for, tools.registry),
        *map(restrict_to_loopback, routes.private),
    ]
    app = Application(main_routes, tools.registry, max_body_bytes=serve.max_body_bytes)
    admin_app = Application(admin_shows, tools.registry, max_body_bytes=2**16)
    flags = {setting.field: setting.flag for setting in list_settings(ServeOptions)}
    server = HttpServer(app, serve, tools.registry, flags=flags)
    return server, admin_server(admin_app, admin, tools.registry)


class _ExtenderCommand(SectionedCommand):
    """Accepts the flags of the older programs, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        flag = older_program_flags.find_flag_implying_any_client(args)
        rest = super().parse_args(
            ctx, older_program_flags.translate_older_flags(args, older_program_flags.EXTENDER)
        )
        sources = {ctx.get_parameter_source(name) for name in ("client_name", "any_client")}
        if flag and sources == {ParameterSource.DEFAULT}:
            ctx.params["any_client"] = True
            logs.emit_later("any_client_implied", option=f"-{flag}")
        return rest


@settings_command(
    "extender",
    *setting_groups(),
    kinds=agent_selection.agents_without_conflicts(),
    short_help="Serve kube-scheduler.",
    kind=_ExtenderCommand,
)
def command(command_line: CommandLine) -> None:
    """Serve kube-scheduler: filter, prioritize, preempt and bind, over mutual TLS.

    The flags of Telemetry Aware Scheduling (-kubeConfig, -port, -cert, -key, -cacert, -syncPeriod, -v) are accepted,
    too, so that its deployment works unchanged. With --agents gpu, the same applies to GPU Aware Scheduling.
    These flags imply --any-client, with a warning, unless --client-name is set.

    \b
    Examples:
      nodewise extender --cert tls.crt --key tls.key --client-ca ca.crt
      nodewise extender --objects-from examples/health-metric --unsafe

    \b
    Exit codes:
      0  ended by SIGTERM or SIGINT
      1  it cannot serve: a port is in use, or a certificate is invalid
      2  the command line or a setting is invalid
    """
    settings: dict[type, Any] = {group: command_line.settings(group) for group in setting_groups()}
    own: ExtenderOptions = settings[ExtenderOptions]
    logs.configure(own.log_level, own.log_format)
    if not any(name.strip() for name in own.agents.split(",")):
        # without an agent the response to each request would be that every node is suitable
        raise BadSettings(
            "settings", [Problem("--agents", shown(own.agents), "the name of at least one agent")]
        )
    agents = agent_selection.parse_agents(own.agents)
    agent_options = {kind.name: command_line.agent_options(kind) for kind in agents}
    config = ServerConfig(settings, agents, agent_options)
    server_components.run_until_signal(
        lambda: wire_extender(config, ClockAndMetrics(SystemClock(), MetricsRegistry())),
        own.shutdown_delay_s,
    )
