"""Components of every server with agents, the extender and the controller: configuration, readiness, and the run."""

import asyncio
import contextlib
import gc
import signal
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from nodewise.agent import AgentKind, StateBuilder
from nodewise.base.clock import Clock
from nodewise.base.option import SettingsByGroup
from nodewise.kube.options import KubeOptions
from nodewise.metrics.refresher import RefreshOptions
from nodewise.observe import background_tasks, logs, traces
from nodewise.observe.metrics_registry import MetricsRegistry
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
    signals = _termination_signal_queue()
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


def _termination_signal_queue() -> asyncio.Queue[int]:
    """A queue of the received termination signals."""
    received: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, received.put_nowait, number)
    return received
