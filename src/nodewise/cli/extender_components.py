"""Components of every extender: settings, ports, readiness, and what agents remember."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from nodewise.agent import AgentKind, StateBuilder
from nodewise.cli.options import SettingsByGroup
from nodewise.clock import Clock
from nodewise.extender.agent_memory import InConfigMap, InFile, Memory
from nodewise.extender.routes import Extender
from nodewise.kube.http_client import HttpApi
from nodewise.kube.options import KubeOptions
from nodewise.metrics.refresher import RefreshOptions
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.serve.admin import admin_routes, admin_server, called_locally
from nodewise.serve.application import Application, Route
from nodewise.serve.options import AdminOptions, ServeOptions
from nodewise.serve.server import Server

Task = Callable[[], Coroutine[Any, Any, None]]


class ExtenderConfig(NamedTuple):
    """The configuration of an extender."""

    settings: SettingsByGroup
    agents: Sequence[AgentKind]
    agent_options: Mapping[str, Any]
    """By agent."""


def with_namespace(config: ExtenderConfig, namespace: str) -> ExtenderConfig:
    """With the namespace that nodewise is in, in the options of agents that have a field for it.

    `default` counts only where --namespace names it: it is also what a connection falls back to, and its policies
    would be trusted for no reason.
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


class WiredExtender(NamedTuple):
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

    def __init__(self, waiting_for: Callable[[], Sequence[str]], registry: MetricsRegistry) -> None:
        self._waiting_for = waiting_for
        self._registry = registry
        self._leaving = False

    def leave(self) -> None:
        """Not ready from now on."""
        self._leaving = True
        self._registry.set("ready", 0.0)

    def waiting_for(self) -> Sequence[str]:
        """What is missing; empty when ready."""
        return ("nothing: it is shutting down",) if self._leaving else self._waiting_for()


class ClockAndMetrics(NamedTuple):
    """What everybody needs."""

    clock: Clock
    registry: MetricsRegistry


def create_states(config: ExtenderConfig) -> dict[str, StateBuilder[Any]]:
    period_s = config.settings[RefreshOptions].sync_period_s
    return {kind.name: kind.state(config.agent_options[kind.name], period_s) for kind in config.agents}


def create_memory(
    path: str,
    api: HttpApi | None,
    states: Mapping[str, StateBuilder[Any]],
    leads: Callable[[], bool],
    tools: ClockAndMetrics,
) -> list[Memory]:
    """What keeps what agents learn; nothing where none learns, or where there is no place to keep it."""
    learning = {name: state for name, state in states.items() if state.memory_scope != "none"}
    if not learning or not (path or api):
        return []
    keeping = InFile(path) if path else InConfigMap(cast("HttpApi", api), cast("HttpApi", api).namespace)
    return [Memory(learning, keeping, leads, tools.clock)]


def create_servers(
    config: ExtenderConfig,
    extender: Extender,
    binds: Sequence[Route],
    readiness: Readiness,
    tools: ClockAndMetrics,
) -> tuple[Server, Server]:
    """The port for kube-scheduler and the admin port. Decisions show every tenant's pods: mutual TLS or loopback."""
    serve: ServeOptions = config.settings[ServeOptions]
    admin: AdminOptions = config.settings[AdminOptions]
    private = extender.private_routes()
    main_routes: list[Route] = [*extender.routes(), *binds, *([] if serve.unsafe else private)]
    admin_shows = [*admin_routes(readiness.waiting_for, tools.registry), *map(called_locally, private)]
    app = Application(main_routes, tools.registry, max_body_bytes=serve.max_body_bytes)
    admin_app = Application(admin_shows, tools.registry, max_body_bytes=2**16)
    return Server(app, serve, tools.registry), admin_server(admin_app, admin, tools.registry)
