"""`nodewise extender`: serves kube-scheduler until SIGTERM or SIGINT."""

from typing import Any

import click
from click.core import ParameterSource

from nodewise.base.clock import SystemClock
from nodewise.base.errors import BadSettings, Problem, shown
from nodewise.cli import (
    agent_selection,
    extender_wiring,
    large_memory_blocks,
    older_program_flags,
    options_from_settings,
    server_components,
)
from nodewise.cli.command_help import SectionedCommand
from nodewise.cli.extender_options import ExtenderOptions, setting_groups
from nodewise.cli.options_from_settings import CommandLine
from nodewise.cli.server_components import ClockAndMetrics, ServerConfig
from nodewise.observe import logs
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
    settings: dict[type, Any] = {group: command_line.settings(group) for group in setting_groups()}
    own: ExtenderOptions = settings[ExtenderOptions]
    logs.configure(own.log_level, own.log_format)
    if not any(name.strip() for name in own.agents.split(",")):
        # without an agent the response to each request would be that every node is suitable
        raise BadSettings(
            "settings", [Problem("--agents", shown(own.agents), "the name of at least one agent")]
        )
    agents = agent_selection.load_agents_by_name(
        (name.strip() for name in own.agents.split(",") if name.strip()), *setting_groups()
    )
    agent_options = {kind.name: command_line.agent_options(kind) for kind in agents}
    large_memory_blocks.return_freed_blocks()
    config = ServerConfig(settings, agents, agent_options)
    server_components.run_until_signal(
        lambda: extender_wiring.wire_extender(config, ClockAndMetrics(SystemClock(), MetricsRegistry())),
        own.shutdown_delay_s,
    )


command = options_from_settings.create_click_command(
    "extender",
    run,
    options_from_settings.click_parameters(
        *setting_groups(),
        kinds=agent_selection.agents_without_conflicts(*setting_groups()),
        known_settings=agent_selection.known_settings,
    ),
    short_help="Serve kube-scheduler.",
    kind=_ExtenderCommand,
)
