"""`nodewise extender`: wires the rooms together and serves until a signal comes."""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

import click

from nodewise import agents
from nodewise.agent import AgentKind
from nodewise.cli import feeds, legacy, settings
from nodewise.cli.feeds import Feed
from nodewise.cli.options import ExtenderOptions
from nodewise.clock import Clock, SystemClock
from nodewise.extender import wire
from nodewise.extender.app import Extender
from nodewise.extender.chain import Chain
from nodewise.extender.decision import DecisionRing
from nodewise.extender.world import WorldKeeper
from nodewise.kube.api import Api
from nodewise.kube.connect import connect
from nodewise.kube.fields import merge
from nodewise.kube.options import KubeOptions
from nodewise.metrics.refresher import Refresher, RefreshOptions
from nodewise.observe import logs
from nodewise.observe.meters import Meters
from nodewise.serve.admin import admin_routes, admin_server
from nodewise.serve.application import Application
from nodewise.serve.options import AdminOptions, ServeOptions, is_loopback
from nodewise.serve.server import Server

GROUPS = (ExtenderOptions, ServeOptions, AdminOptions, KubeOptions, RefreshOptions)


class Running(NamedTuple):
    """A wired extender, ready to be started."""

    servers: Sequence[Server]
    tasks: Sequence[Callable[[], Coroutine[Any, Any, None]]]
    api: Api | None


class _ExtenderCommand(click.Command):
    """Understands the flags of the older programs as well."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, legacy.translate(args, legacy.TAS))


def run(**given: Any) -> None:
    """Serve kube-scheduler: filter, prioritize and preempt, over mutual TLS.

    The flags of Telemetry Aware Scheduling (-kubeConfig, -port, -cert, -key, -cacert, -syncPeriod, -v) are
    understood too, so that its deployment serves unchanged.

    \b
    Example:  nodewise extender --cert tls.crt --key tls.key --client-ca scheduler-ca.crt
              nodewise extender --objects-from examples/health-metric --unsafe
    """
    built: dict[type, Any] = {group: settings.build(group, given) for group in GROUPS}
    own: ExtenderOptions = built[ExtenderOptions]
    logs.configure(own.log_level, own.log_format)
    asked = [agents.load(name.strip()) for name in own.agents.split(",") if name.strip()]
    agent_options = {kind.name: settings.build(kind.options, given) for kind in asked}
    runner = asyncio.Runner(loop_factory=_event_loop)
    with runner:
        runner.run(_serve(built, asked, agent_options))


def _event_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is installed; everything passes its tests on plain asyncio as well."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _parameters() -> list[click.Parameter]:
    kinds = [agents.load(name) for name in agents.names()]
    return settings.options(*GROUPS, *(kind.options for kind in kinds))


command = _ExtenderCommand(
    "extender", callback=run, params=_parameters(), help=run.__doc__, short_help="Serve kube-scheduler."
)


async def _serve(
    built: Mapping[type, Any], asked: Sequence[AgentKind], agent_options: Mapping[str, Any]
) -> None:
    clock, meters = SystemClock(), Meters()
    running = wired(built, asked, agent_options, clock, meters)
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    tasks = [asyncio.create_task(_watched_over(task)) for task in running.tasks]
    try:
        for server in running.servers:
            await server.start()
        logs.emit("started", address=running.servers[0].url, health=running.servers[1].url)
        await ended.wait()
        logs.emit("stopping")
    finally:
        for server in running.servers:
            await server.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if running.api is not None:
            await running.api.close()


async def _watched_over(task: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a task for ever; a defect is logged and the task started again, because the rest still serves."""
    while True:
        try:
            await task()
        except Exception as error:  # noqa: BLE001 - whatever it is, ending the process would help nobody
            logs.emit("task_failed", task=getattr(task, "__qualname__", str(task)), exc_info=error)
            await asyncio.sleep(1.0)


def wired(
    built: Mapping[type, Any],
    asked: Sequence[AgentKind],
    agent_options: Mapping[str, Any],
    clock: Clock,
    meters: Meters,
) -> Running:
    """The rooms put together; nothing is opened yet."""
    own: ExtenderOptions = built[ExtenderOptions]
    refresh: RefreshOptions = built[RefreshOptions]
    api = None if own.objects_from else connect(built[KubeOptions], meters)
    feed = _feed(own, asked, api, clock, meters)
    refresher = Refresher(feeds.sources(own.metrics, own.objects_from, api), refresh, clock, meters)
    states = {kind.name: kind.state(agent_options[kind.name], refresh.sync_period_s) for kind in asked}
    keeper = WorldKeeper(states, feed.nodes, feed.objects, refresher, clock, meters)
    refresher.subscribe(keeper.touch)
    for store in (feed.nodes, *feed.objects.values()):
        store.subscribe(lambda _: keeper.touch())
    keeper.touch()
    extender = _extender(own, asked, agent_options, keeper, clock, meters)
    servers = _servers(built[ServeOptions], built[AdminOptions], extender, keeper, meters)

    async def publish() -> None:
        await keeper.run(refresh.sync_period_s)

    return Running(servers, [*feed.tasks, refresher.run, publish], api)


def _feed(
    own: ExtenderOptions, asked: Sequence[AgentKind], api: Api | None, clock: Clock, meters: Meters
) -> Feed:
    watched = {one.name: one for kind in asked for one in kind.watched}
    if api is None:
        return feeds.from_files(own.objects_from, tuple(watched.values()), 0.2)
    return feeds.from_cluster(api, tuple(watched.values()), clock, meters)


def _extender(
    own: ExtenderOptions,
    asked: Sequence[AgentKind],
    agent_options: Mapping[str, Any],
    keeper: WorldKeeper,
    clock: Clock,
    meters: Meters,
) -> Extender:
    made = [kind.agent(agent_options[kind.name]) for kind in asked]
    chains = {"/scheduler": Chain(made), **{f"/agents/{one.name}": Chain([one]) for one in made}}
    pod_type = merge("Pod", *(kind.pod_fields for kind in asked))
    ring = DecisionRing(own.decisions_bytes)
    return Extender(chains, wire.Reader(pod_type), lambda: keeper.view, ring, clock, meters)


def _servers(
    serve: ServeOptions, admin: AdminOptions, extender: Extender, keeper: WorldKeeper, meters: Meters
) -> tuple[Server, Server]:
    """The port for kube-scheduler and the admin port. Decisions show every tenant's pods: mutual TLS or loopback."""
    decisions = extender.decisions_routes()
    main_routes = extender.routes() + ([] if serve.unsafe else decisions)
    admin_shows = admin_routes(keeper.waiting_for, meters)
    if is_loopback(admin.health_address):
        admin_shows += decisions
    app = Application(main_routes, meters, max_body_bytes=serve.max_body_bytes)
    admin_app = Application(admin_shows, meters, max_body_bytes=2**16)
    return Server(app, serve, meters), admin_server(admin_app, admin, meters)
