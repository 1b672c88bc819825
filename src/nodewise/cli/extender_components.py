"""Components of every extender, with or without a cluster: configuration, servers, readiness and agents' memory."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from nodewise.agent import AgentKind, StateBuilder
from nodewise.cli.options_from_settings import SettingsByGroup
from nodewise.clock import Clock
from nodewise.extender.agent_memory_storage import AgentMemory, ConfigMapMemoryStore, FileMemoryStore
from nodewise.extender.routes import Extender
from nodewise.kube.http_client import HttpApi
from nodewise.kube.options import KubeOptions
from nodewise.metrics.refresher import RefreshOptions
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.serve.admin_port import admin_routes, admin_server, restrict_to_loopback
from nodewise.serve.application import Application, Route
from nodewise.serve.options import AdminOptions, ServeOptions
from nodewise.serve.server import HttpServer

Task = Callable[[], Coroutine[Any, Any, None]]


class ExtenderConfig(NamedTuple):
    """The configuration of an extender."""

    settings: SettingsByGroup
    agents: Sequence[AgentKind]
    agent_options: Mapping[str, Any]
    """By agent."""


def set_namespace_of_agents(config: ExtenderConfig, namespace: str) -> ExtenderConfig:
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


class WiredExtender(NamedTuple):
    """An extender that can be started: the server for kube-scheduler, then the admin server."""

    servers: Sequence[HttpServer]
    tasks: Sequence[Task]
    closing: Sequence[Callable[[], Awaitable[None]]]
    readiness: "Readiness"

    def leave(self) -> None:
        """Stop being ready, and close each connection of kube-scheduler after its next response."""
        self.readiness.leave()
        self.servers[0].drain()

    async def close(self) -> None:
        for close in self.closing:
            await close()


class Readiness:
    """The state behind /readyz: what is missing at the start, and whether the extender is shutting down."""

    def __init__(self, waiting_for: Callable[[], Sequence[str]], registry: MetricsRegistry) -> None:
        self._waiting_for = waiting_for
        self._registry = registry
        self._leaving = False

    def leave(self) -> None:
        """Stop being ready."""
        self._leaving = True
        self._registry.set("ready", 0.0)

    def waiting_for(self) -> Sequence[str]:
        """What is missing; empty when ready."""
        return ("nothing: it is shutting down",) if self._leaving else self._waiting_for()


class ClockAndMetrics(NamedTuple):
    """The clock and the metrics registry, which most components need."""

    clock: Clock
    registry: MetricsRegistry


def create_agent_states(config: ExtenderConfig) -> dict[str, StateBuilder[Any]]:
    period_s = config.settings[RefreshOptions].sync_period_s
    return {kind.name: kind.state(config.agent_options[kind.name], period_s) for kind in config.agents}


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
    config: ExtenderConfig,
    extender: Extender,
    binds: Sequence[Route],
    readiness: Readiness,
    tools: ClockAndMetrics,
) -> tuple[HttpServer, HttpServer]:
    """The server for kube-scheduler, and the admin server.

    Decisions show every tenant's pods, so they are served over mutual TLS or on loopback only.
    """
    serve: ServeOptions = config.settings[ServeOptions]
    admin: AdminOptions = config.settings[AdminOptions]
    private = extender.private_routes()
    main_routes: list[Route] = [*extender.routes(), *binds, *([] if serve.unsafe else private)]
    admin_shows = [*admin_routes(readiness.waiting_for, tools.registry), *map(restrict_to_loopback, private)]
    app = Application(main_routes, tools.registry, max_body_bytes=serve.max_body_bytes)
    admin_app = Application(admin_shows, tools.registry, max_body_bytes=2**16)
    return HttpServer(app, serve, tools.registry), admin_server(admin_app, admin, tools.registry)
