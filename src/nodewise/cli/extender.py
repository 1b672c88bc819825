"""`nodewise extender`: serves kube-scheduler until SIGTERM or SIGINT."""

import asyncio
import contextlib
import gc
import signal
from typing import Any

import click
from click.core import ParameterSource

from nodewise.cli import (
    agent_selection,
    extender_wiring,
    large_memory_blocks,
    older_program_flags,
    options_from_settings,
)
from nodewise.cli.extender_components import ClockAndMetrics, ExtenderConfig
from nodewise.cli.extender_options import GROUPS, ExtenderOptions
from nodewise.cli.options_from_settings import CommandLine, SectionedCommand
from nodewise.clock import SystemClock
from nodewise.observe import background_task_restarts, logs
from nodewise.observe.metrics_registry import MetricsRegistry


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


def run(command_line: CommandLine) -> None:
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
    settings: dict[type, Any] = {group: command_line.settings(group) for group in GROUPS}
    own: ExtenderOptions = settings[ExtenderOptions]
    logs.configure(own.log_level, own.log_format)
    agents = agent_selection.load_agents_by_name(
        (name.strip() for name in own.agents.split(",") if name.strip()), *GROUPS
    )
    agent_options = {kind.name: command_line.agent_options(kind) for kind in agents}
    large_memory_blocks.return_freed_blocks()
    runner = asyncio.Runner(loop_factory=_event_loop_factory)
    with runner:
        runner.run(_serve_until_signal(ExtenderConfig(settings, agents, agent_options)))


def _event_loop_factory() -> asyncio.AbstractEventLoop:
    """uvloop if it is installed, else plain asyncio."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


command = options_from_settings.create_click_command(
    "extender",
    run,
    options_from_settings.click_parameters(*GROUPS, kinds=agent_selection.agents_without_conflicts(*GROUPS)),
    short_help="Serve kube-scheduler.",
    kind=_ExtenderCommand,
)


async def _serve_until_signal(config: ExtenderConfig) -> None:
    running = extender_wiring.wire_extender(config, ClockAndMetrics(SystemClock(), MetricsRegistry()))
    signals = _termination_signal_queue()
    tasks = [asyncio.create_task(background_task_restarts.keep_running(task)) for task in running.tasks]
    try:
        gc.collect()
        gc.freeze()  # objects of the start live until the end: collections need not visit them
        for server in running.servers:
            await server.start()
        logs.emit("started", address=running.servers[0].url, health=running.servers[1].url)
        first = await signals.get()
        logs.emit("stopping")
        if first == signal.SIGTERM:
            running.leave()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(config.settings[ExtenderOptions].shutdown_delay_s):
                    await signals.get()
    finally:
        for server in running.servers:
            await server.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await running.close()


def _termination_signal_queue() -> asyncio.Queue[int]:
    """A queue of the received termination signals."""
    received: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, received.put_nowait, number)
    return received
