"""The rooms of `nodewise extender`, put together. Nothing is opened here; `cli.extender` starts what this makes."""

import os
import random
import secrets
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from nodewise.agent import (
    AgentKind,
    AgentState,
    Following,
    Forgetting,
    Hands,
    NodeIndex,
    Remembering,
    Tally,
    View,
)
from nodewise.binder import Amending, Binder
from nodewise.cli import feeds
from nodewise.cli.feeds import Feed, Ground
from nodewise.cli.options import ExtenderOptions
from nodewise.clock import Clock
from nodewise.errors import BadSettings, Problem
from nodewise.extender import claims, containing, lone, recording
from nodewise.extender.answering import ALL_AGENTS, Answering
from nodewise.extender.app import BindRoutes, Extender, refused_bind
from nodewise.extender.binding import Bindings
from nodewise.extender.chain import Chain
from nodewise.extender.decision import DecisionRing
from nodewise.extender.events import PodEvents
from nodewise.extender.leading import Leading
from nodewise.extender.lone import LoneViews
from nodewise.extender.recording import Recording
from nodewise.extender.remembering import InConfigMap, InFile, Memory
from nodewise.extender.waking import Waker
from nodewise.extender.warden import Limits
from nodewise.extender.weights import ChainOptions
from nodewise.extender.world import WorldKeeper
from nodewise.kube.client import HttpApi
from nodewise.kube.connect import connect
from nodewise.kube.contact import Contact
from nodewise.kube.elector import Elector
from nodewise.kube.events import Recorder, Reporter
from nodewise.kube.lease import Seat
from nodewise.kube.options import KubeOptions
from nodewise.kube.store import Store
from nodewise.metrics.nodes import NodeBook
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.prometheus.source import PrometheusMetrics
from nodewise.metrics.refresher import Refresher, RefreshOptions
from nodewise.observe import lag
from nodewise.observe.meters import Meters
from nodewise.serve.admin import admin_routes, admin_server
from nodewise.serve.application import Application, Route
from nodewise.serve.options import AdminOptions, ServeOptions, is_loopback
from nodewise.serve.server import Server

LEASE: Final = "nodewise-extender"
"""The Lease by which the replicas agree who leads."""
_PATIENCE_S: Final = 0.5
"""For so long a new View waits for the slot of an agent of another package."""

Task = Callable[[], Coroutine[Any, Any, None]]


class Given(NamedTuple):
    """What the command line said: the settings by group, the agents that are on, and their options by name."""

    settings: Mapping[type, Any]
    agents: Sequence[AgentKind]
    agent_options: Mapping[str, Any]


class Running(NamedTuple):
    """A wired extender, ready to be started: the port for kube-scheduler first, then the admin port."""

    servers: Sequence[Server]
    tasks: Sequence[Task]
    closing: Sequence[Callable[[], Awaitable[None]]]
    readiness: "Readiness"

    def leave(self) -> None:
        """Not ready any more, and each connection for kube-scheduler ends with its next answer."""
        self.readiness.leave()
        self.servers[0].drain()

    async def close(self) -> None:
        for close in self.closing:
            await close()


class Readiness:
    """What /readyz says: what is missing at the start, and at the end that we are going."""

    def __init__(self, waiting_for: Callable[[], Sequence[str]], meters: Meters) -> None:
        self._waiting_for = waiting_for
        self._meters = meters
        self._leaving = False

    def leave(self) -> None:
        """Not ready from now on."""
        self._leaving = True
        self._meters.set("ready", 0.0)

    def waiting_for(self) -> Sequence[str]:
        """What is missing; empty when ready."""
        return ("nothing: it is shutting down",) if self._leaving else self._waiting_for()


class Tools(NamedTuple):
    """What everybody needs."""

    clock: Clock
    meters: Meters


class Heart(NamedTuple):
    """What answers, and what it answers from."""

    feed: Feed
    states: Mapping[str, AgentState]
    keeper: WorldKeeper
    extender: Extender


class Anew:
    """What is held, from the API server and from nothing (`agent.Anew`)."""

    def __init__(self, heart: Heart) -> None:
        if heart.feed.anew is None:
            raise TypeError("objects of files are read anew by themselves")
        self._lists, self._states = heart.feed.anew, heart.states

    async def read(self, name: str) -> Store[Any]:
        return await self._lists.read(name)

    def begin(self) -> None:
        self._lists.begin()
        for state in self._states.values():
            if isinstance(state, Forgetting):
                state.forget()


class Binding(NamedTuple):
    """Who binds, where an agent does."""

    bindings: Bindings
    binder: Binder


def wired(given: Given, tools: Tools) -> Running:
    """Everything that serves: from a cluster or from files, with one View in the middle; or from requests alone."""
    own: ExtenderOptions = given.settings[ExtenderOptions]
    limits = Limits(own.agent_deadline_s, patience_s=own.agent_deadline_s if own.no_cluster else _PATIENCE_S)
    containing.serve(given.agents, limits, *tools)
    return _alone(given, tools) if own.no_cluster else _amid(given, tools)


def _states(given: Given) -> dict[str, AgentState]:
    period_s = given.settings[RefreshOptions].sync_period_s
    return {kind.name: kind.state(given.agent_options[kind.name], period_s) for kind in given.agents}


def _alone(given: Given, tools: Tools) -> Running:
    """Each request brings its nodes."""
    own: ExtenderOptions = given.settings[ExtenderOptions]
    others = {"--objects-from": own.objects_from, "--record": own.record}
    problems = [
        Problem("--no-cluster", f"{flag} beside it", "one of the two")
        for flag, set_ in others.items()
        if set_
    ]
    if problems:
        raise BadSettings("settings", problems)
    lone.check(given.agents, given.agent_options)
    states = _states(given)
    answering = Answering(given.agents, given.agent_options, states, given.settings[ChainOptions])
    nothing = View(NodeIndex(), {}, tools.clock.now())
    ring = DecisionRing(own.decisions_bytes)
    views = LoneViews(given.agents, states)
    extender = Extender(answering, lambda: nothing, ring, *tools, recording.Silent(), views)

    async def watch_loop() -> None:
        await lag.watch(*tools)

    memory = _memory(own.state, None, states, lambda: True, tools)
    tasks = [watch_loop, *(one.run for one in memory)]
    readiness = Readiness(tuple, tools.meters)
    tools.meters.set("ready", 1.0)
    servers = _servers(given, extender, _no_binds(), readiness, tools)
    return Running(servers, tasks, [one.close for one in memory], readiness)


def _memory(
    path: str, api: HttpApi | None, states: Mapping[str, AgentState], leads: Callable[[], bool], tools: Tools
) -> list[Memory]:
    """What keeps what agents learn; nothing where none learns, or where there is no place to keep it."""
    learning = {name: one for name, one in states.items() if isinstance(one, Remembering)}
    if not learning or not (path or api):
        return []
    keeping = InFile(path) if path else InConfigMap(cast("HttpApi", api), cast("HttpApi", api).namespace)
    return [Memory(learning, keeping, leads, tools.clock)]


def _no_binds() -> list[Route]:
    return [Route("POST", f"{ALL_AGENTS}/bind", refused_bind)]


def _amid(given: Given, tools: Tools) -> Running:
    own: ExtenderOptions = given.settings[ExtenderOptions]
    refresh: RefreshOptions = given.settings[RefreshOptions]
    api = None if own.objects_from else connect(given.settings[KubeOptions], tools.meters)
    feed = _feed(given, api, tools)
    sources = feeds.sources(own.metrics, own.objects_from, _ground(given, api, feed, tools))
    refresher = Refresher(sources, refresh, *tools)
    states = _states(given)
    keeper = _keeper(given, feed, states, refresher, tools)
    recorder = _recorder(given, tools)
    keeper.subscribe(recorder.world)
    heart = Heart(feed, states, keeper, _extender(given, states, keeper, recorder, tools))
    binding = _binding(given, api, heart, tools)

    async def publish() -> None:
        await keeper.run()

    async def watch_loop() -> None:
        await lag.watch(*tools)

    tasks: list[Task] = [*feed.tasks, refresher.run, publish, watch_loop]
    closing: list[Callable[[], Awaitable[None]]] = []
    if binding is not None:
        closing.append(binding.bindings.close)
    elector = None
    if api is not None:
        elector, lead_tasks, lead_closing = _leader(given, api, heart, binding, tools)
        tasks += lead_tasks
    memory = _memory(own.state, api, states, lambda: elector is None or elector.leading, tools)
    tasks += [one.run for one in memory]
    closing += [one.close for one in memory]
    if api is not None:
        closing += lead_closing
    closing += [source.close for source in sources if isinstance(source, PrometheusMetrics)]
    if isinstance(recorder, Recording):
        tasks.append(recorder.run)
        closing.append(recorder.close)
    readiness = Readiness(keeper.waiting_for, tools.meters)
    binds = BindRoutes(*binding, heart.extender).routes() if binding else _no_binds()
    return Running(_servers(given, heart.extender, binds, readiness, tools), tasks, closing, readiness)


def _feed(given: Given, api: HttpApi | None, tools: Tools) -> Feed:
    needs = feeds.needs(given.agents, given.agent_options)
    if api is None:
        return feeds.from_files(given.settings[ExtenderOptions].objects_from, needs, 0.2)
    return feeds.from_cluster(api, needs, *tools, api.namespace)


def _ground(given: Given, api: HttpApi | None, feed: Feed, tools: Tools) -> Ground:
    """What sources of metrics stand on."""
    refresh: RefreshOptions = given.settings[RefreshOptions]
    nodes = NodeBook(feed.nodes)
    prometheus: PrometheusOptions = given.settings[PrometheusOptions]
    back_s = max(5 * refresh.sync_period_s, 60.0)
    return Ground(api, nodes.read, prometheus, back_s, refresh.metrics_timeout_s, tools.meters)


def _keeper(
    given: Given, feed: Feed, states: Mapping[str, AgentState], refresher: Refresher, tools: Tools
) -> WorldKeeper:
    period_s = given.settings[RefreshOptions].sync_period_s
    keeper = WorldKeeper(states, feed.stores, refresher, *tools, period_s)
    refresher.subscribe(keeper.touch)
    for store in (feed.nodes, *feed.objects.values()):
        store.subscribe(lambda _: keeper.touch())
    keeper.touch()
    return keeper


def _binding(given: Given, api: HttpApi | None, heart: Heart, tools: Tools) -> Binding | None:
    """The bind verb, where an agent binds and there is a cluster."""
    made = {kind.name: kind.agent(given.agent_options[kind.name]) for kind in given.agents}
    binders = [cast("Binder", agent) for agent in made.values() if hasattr(agent, "bind")]
    if len(binders) > 1:
        seen = ", ".join(binder.name for binder in binders)
        raise BadSettings("settings", [Problem("--agents", seen, "one agent that binds")])
    if api is None or not binders:
        return None
    kube: KubeOptions = given.settings[KubeOptions]
    binder, feed = binders[0], heart.feed
    ground = claims.Ground(
        # a lane of its own: labels that queue up must not hold up pods
        api.lane(kube.kube_qps, kube.kube_burst),
        api.namespace,
        feed.objects[binder.ledgers],
        heart.keeper,
        binder,
        cast("Amending", heart.states[binder.name]),
        *tools,
    )
    watched = feeds.watched(given.agents, given.agent_options)
    pod_type = next(one.type for one in watched if one.name == binder.pods)
    own: ExtenderOptions = given.settings[ExtenderOptions]
    return Binding(Bindings(ground, feed.objects[binder.pods], pod_type, own.bind_timeout_s), binder)


def _leader(
    given: Given, api: HttpApi, heart: Heart, binding: Binding | None, tools: Tools
) -> tuple[Elector, list[Task], list[Callable[[], Awaitable[None]]]]:
    """The election, the events, and the agents' controllers."""
    clock, meters = tools
    feed, _, keeper, extender = heart
    given_identity = given.settings[KubeOptions].identity
    identity = given_identity or f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}"
    recorder = Recorder(api, Reporter("nodewise.io/extender", identity), clock, meters)
    extender.subscribe(PodEvents(recorder))
    # a lane of its own for the Lease: labels that queue up must not cost us the lead
    contact = Contact(clock, meters)
    lane = api.lane(5.0, 10, contact.heard)
    elector = Elector(lane, Seat(api.namespace, LEASE, identity), clock, meters, random.random)
    own = (api.namespace, lambda: keeper.view, Anew(heart), binding.bindings if binding else None)
    hands = Hands(api, feed.objects, feed.nodes, recorder, clock, meters, Tally(), *own)
    period_s = given.settings[RefreshOptions].sync_period_s
    pods = feeds.waiting_pods(api, given.agents, clock, meters)
    chain = Chain([kind.agent(given.agent_options[kind.name]) for kind in given.agents])
    made = [kind.controller(given.agent_options[kind.name], hands) for kind in given.agents]
    following = [one.run for one in made if isinstance(one, Following)]
    controllers = [*(one for one in made if one), Waker(chain, pods.store, hands, period_s)]
    leading = Leading(controllers, lambda: keeper.view, lambda: elector.leading, clock)

    async def lead() -> None:
        await leading.run(period_s)

    tasks = [elector.run, contact.run, recorder.run, pods.run, lead, *following]
    return elector, tasks, [elector.stop, recorder.flush, api.close]


def _servers(
    given: Given, extender: Extender, binds: Sequence[Route], readiness: Readiness, tools: Tools
) -> tuple[Server, Server]:
    """The port for kube-scheduler and the admin port. Decisions show every tenant's pods: mutual TLS or loopback."""
    serve: ServeOptions = given.settings[ServeOptions]
    admin: AdminOptions = given.settings[AdminOptions]
    private = extender.private_routes()
    main_routes: list[Route] = [*extender.routes(), *binds, *([] if serve.unsafe else private)]
    admin_shows = admin_routes(readiness.waiting_for, tools.meters)
    if is_loopback(admin.health_address):
        admin_shows += private
    app = Application(main_routes, tools.meters, max_body_bytes=serve.max_body_bytes)
    admin_app = Application(admin_shows, tools.meters, max_body_bytes=2**16)
    return Server(app, serve, tools.meters), admin_server(admin_app, admin, tools.meters)


def _recorder(given: Given, tools: Tools) -> recording.Recorder:
    own: ExtenderOptions = given.settings[ExtenderOptions]
    if not own.record:
        return recording.Silent()
    period_s = given.settings[RefreshOptions].sync_period_s
    general = recording.Settings(period_s, given.settings[ChainOptions])
    header = recording.header(given.agents, given.agent_options, general, tools.clock.now())
    return Recording(recording.create(Path(own.record)), header, own.record_max_bytes, *tools)


def _extender(
    given: Given,
    states: Mapping[str, AgentState],
    keeper: WorldKeeper,
    recorder: recording.Recorder,
    tools: Tools,
) -> Extender:
    answering = Answering(given.agents, given.agent_options, states, given.settings[ChainOptions])
    ring = DecisionRing(given.settings[ExtenderOptions].decisions_bytes)
    return Extender(answering, lambda: keeper.view, ring, tools.clock, tools.meters, recorder)
