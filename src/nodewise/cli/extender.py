"""`nodewise extender`: wires the rooms together and serves until a signal comes."""

import asyncio
import contextlib
import signal
from typing import Any

import click
from click.core import ParameterSource

from nodewise.annotator.options import AnnotatorOptions
from nodewise.cli import kinds, legacy, memory, settings, wiring
from nodewise.cli.options import ExtenderOptions
from nodewise.cli.running import Given, Tools
from nodewise.cli.sections import Sectioned
from nodewise.clock import SystemClock
from nodewise.extender.weights import ChainOptions
from nodewise.kube.options import KubeOptions
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.refresher import RefreshOptions
from nodewise.observe import logs, supervision
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.serve.options import AdminOptions, ServeOptions
from nodewise.statistics.queries import WindowOptions

GROUPS = (
    ExtenderOptions,
    ChainOptions,
    ServeOptions,
    AdminOptions,
    KubeOptions,
    RefreshOptions,
    PrometheusOptions,
    AnnotatorOptions,
    WindowOptions,
)


class _ExtenderCommand(Sectioned):
    """Understands the flags of the older programs as well."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        flag = legacy.implies_any_client(args)
        rest = super().parse_args(ctx, legacy.translate(args, legacy.EXTENDER))
        sources = {ctx.get_parameter_source(name) for name in ("client_name", "any_client")}
        if flag and sources == {ParameterSource.DEFAULT}:
            ctx.params["any_client"] = True
            logs.later("any_client_implied", option=f"-{flag}")
        return rest


def run(**given: Any) -> None:
    """Serve kube-scheduler: filter, prioritize, preempt and bind, over mutual TLS.

    The flags of Telemetry Aware Scheduling (-kubeConfig, -port, -cert, -key, -cacert, -syncPeriod, -v) are
    understood too, so that its deployment serves unchanged; so are those of GPU Aware Scheduling, beside --agents gpu.
    They imply --any-client, with a warning, unless --client-name is set.

    \b
    Examples:
      nodewise extender --cert tls.crt --key tls.key --client-ca ca.crt
      nodewise extender --objects-from examples/health-metric --unsafe

    \b
    Exit codes:
      0  ended by SIGTERM or SIGINT
      1  it cannot serve: a port that is taken, a certificate that is none
      2  the command line or a setting is wrong
    """
    built: dict[type, Any] = {group: settings.build(group, given) for group in GROUPS}
    own: ExtenderOptions = built[ExtenderOptions]
    logs.configure(own.log_level, own.log_format)
    asked = kinds.chosen((name.strip() for name in own.agents.split(",") if name.strip()), *GROUPS)
    agent_options = {kind.name: settings.of_agent(kind, given) for kind in asked}
    runner = asyncio.Runner(loop_factory=_event_loop)
    with runner:
        runner.run(_serve(Given(built, asked, agent_options)))


def _event_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is installed; everything passes its tests on plain asyncio as well."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _parameters() -> list[click.Parameter]:
    return settings.options(*GROUPS, kinds=kinds.known(*GROUPS))


command = _ExtenderCommand(
    "extender", callback=run, params=_parameters(), help=run.__doc__, short_help="Serve kube-scheduler."
)


async def _serve(given: Given) -> None:
    running = wiring.wired(given, Tools(SystemClock(), MetricsRegistry()))
    signals = _signals()
    tasks = [asyncio.create_task(supervision.keep_running(task)) for task in running.tasks]
    try:
        memory.settle()
        tasks += map(asyncio.create_task, (memory.tidy(), memory.stay_ahead()))
        for server in running.servers:
            await server.start()
        logs.emit("started", address=running.servers[0].url, health=running.servers[1].url)
        first = await signals.get()
        logs.emit("stopping")
        if first == signal.SIGTERM:
            running.leave()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(given.settings[ExtenderOptions].shutdown_delay_s):
                    await signals.get()
    finally:
        for server in running.servers:
            await server.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await running.close()


def _signals() -> asyncio.Queue[int]:
    """The signals that ask us to end, as they come."""
    came: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, came.put_nowait, number)
    return came
