"""`nodewise annotate`: writes the usage of nodes and the requests of pods as annotations of nodes."""

import asyncio
import os
from typing import Annotated, Any, Final, Literal

import click

from nodewise.base.option import Option
from nodewise.cli import terminal_output
from nodewise.cli.command_help import SectionedCommand
from nodewise.cli.options_from_settings import ClusterOptions, CommandLine, settings_command
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.observe import logs
from nodewise.server.options import AdminOptions
from nodewise_scorers.cli.annotate import older_environment_variables, runner
from nodewise_scorers.cli.annotate.runner import AnnotateOptions, AnnotationResult
from nodewise_scorers.statistics.prometheus_load_queries import WindowOptions

GROUPS: Final = (AnnotateOptions, WindowOptions, PrometheusOptions, AdminOptions)


class RunOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise annotate` that are not settings."""

    once: bool = False
    """Write once, and exit."""

    dry_run: bool = False
    """Print what would be written, write nothing, and exit."""

    output: Annotated[Literal["table", "json"], Option("-o --output")] = "table"
    """Output format of --once and --dry-run."""


class _AnnotateCommand(SectionedCommand):
    """Accepts the environment variables of the older annotators, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(
            ctx, [*older_environment_variables.translate_annotator_variables(os.environ, args), *args]
        )


@settings_command(
    "annotate",
    RunOptions,
    ClusterOptions,
    *GROUPS,
    short_help="Write statistics of nodes as annotations.",
    kind=_AnnotateCommand,
)
def command(command_line: CommandLine) -> None:
    """Write statistics of nodes as annotations: the free resources, and the requests of pods.

    The annotator writes once per period, in a burst, or a single time with --once. It writes only values that changed
    by more than 2 %, and the time (nodewise.io/annotated-at). Nodes that are not ready keep their annotations.
    The variables of kube-safe-scheduler's annotators (PROM_IP, PROM_PORT, NODE_EXP_PORT, CLUSTER_CONF, ANNOTATE_FREQ,
    USE_FORECAST, USE_REQ) are accepted, too.

    \b
    Examples:
      nodewise annotate --once --dry-run
      nodewise annotate --prometheus-url http://prometheus.monitoring:9090
      nodewise annotate --what allocation --once -o json

    \b
    Exit codes:
      0  written, or ended by SIGTERM or SIGINT
      1  with --once: a node could not be written or measured, or there is no node
      2  the command line or a setting is invalid
    """
    settings: dict[type, Any] = {group: command_line.settings(group) for group in GROUPS}
    own: AnnotateOptions = settings[AnnotateOptions]
    run_options, kube = command_line.settings(RunOptions), command_line.settings(ClusterOptions).kube
    is_single = run_options.once or run_options.dry_run
    logs.configure("warning" if is_single and own.log_level == "info" else own.log_level, own.log_format)
    if is_single:
        result = asyncio.run(runner.annotate_once(settings, kube, dry=run_options.dry_run))
        click.get_current_context().exit(_print_result(result, run_options.output))
    asyncio.run(runner.annotate_until_signal(settings, kube))


def _print_result(result: AnnotationResult, output: str) -> int:
    """Print the result of one run. Returns the exit code."""
    plan, written, is_sampled = result
    for note in runner.list_failure_notes(plan, one_sample=is_sampled):
        terminal_output.print_message(note)
    if output == "json":
        click.echo(runner.encode_annotation_plan(plan, written))
    elif written is None:
        runner.print_annotation_plan(plan)
    else:
        click.echo(runner.format_patch_summary(plan, written))
    if written is not None and written.error:
        terminal_output.print_message(written.error)
    return terminal_output.DONE if result.is_complete else terminal_output.FAILED
