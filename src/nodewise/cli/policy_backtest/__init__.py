"""`nodewise policy backtest`: evaluates policies over the history that Prometheus has."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

import click
import msgspec

from nodewise.agents.telemetry import KIND
from nodewise.base import clock, cooperative_scheduling
from nodewise.base.errors import BadSettings, Problem, shown
from nodewise.base.option import Argument, Option
from nodewise.cli import decide_inputs
from nodewise.cli.options_from_settings import ClusterOptions, CommandLine, settings_command
from nodewise.cli.policy_backtest import report as reports
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.cli.terminal_output import progress_bar
from nodewise.kube import object_files
from nodewise.kube.api_client_creation import open_api
from nodewise.kube.resource_kinds import NODES
from nodewise.metrics.metrics_source import RefreshOptions
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.observe import logs
from nodewise.policy_tools import backtest_history, device_timeline, policy_timeline
from nodewise.policy_tools.backtest_history import HistoryObjects, HistoryRange
from nodewise.policy_tools.backtest_report import BacktestReport
from nodewise.policy_tools.device_timeline import DeviceObjects
from nodewise.policy_tools.policy_timeline import PolicyTimeline, TimelineSettings

_DAY_S = 86400.0


class BacktestOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise policy backtest`."""

    paths: Annotated[tuple[str, ...], Argument(metavar="FILE...")] = ()

    since_s: Annotated[float, Option("--since", metavar="DURATION")] = 7 * _DAY_S
    """How far back to evaluate."""

    until: Annotated[str, Option(metavar="TIME")] = ""
    """End of the time to evaluate, such as 2026-11-20T12:00:00Z; default: now."""

    step_s: Annotated[float, Option("--step", metavar="DURATION")] = 60.0
    """Time between two evaluations."""

    recording: Annotated[str, Option(metavar="FILE")] = ""
    """Count the pods of this recording (nodewise extender --record), not those of kube-state-metrics."""

    output: Annotated[Literal["text", "json"], Option("-o --output")] = "text"
    """Output format."""

    html: Annotated[str, Option(metavar="FILE")] = ""
    """Also write a page with plots; needs matplotlib."""


@settings_command(
    "backtest",
    BacktestOptions,
    ClusterOptions,
    RefreshOptions,
    PrometheusOptions,
    kinds=[KIND],
    short_help="Evaluate policies over the history of their metrics.",
)
def command(command_line: CommandLine) -> None:
    """Evaluate policies over the history of their metrics, before you apply them.

    nodewise reads the metrics of the rules of `avoid` and `deviceTaints` from Prometheus, and evaluates each policy at
    every step as the extender does: which nodes it would have rejected and when, when no node was left, which pods that
    actually started (kube-state-metrics) would have waited, what other thresholds would change, and which devices would
    have been tainted. The nodes and ResourceSlices are those of the cluster, or of FILE if there are Nodes in it.

    \b
    Examples:
      nodewise policy backtest policy.yaml --since 7d \\
        --prometheus-url http://localhost:9090
      nodewise policy backtest policy.yaml --html report.html \\
        --prometheus-url http://localhost:9090

    \b
    Exit codes:
      0  evaluated
      1  a file, the cluster or the history cannot be read
      2  the command line or a setting is invalid
    """
    logs.configure("error", "messages")
    own = command_line.settings(BacktestOptions)
    if own.html:
        from nodewise.cli.policy_backtest import html_page

        html_page.check_matplotlib_installed()
    report = cooperative_scheduling.run_event_loop(_backtest(own, command_line))
    if own.output == "json":
        click.echo(msgspec.json.encode(reports.to_document(report)))
    else:
        reports.print_report(report)
    if own.html:
        _write(own.html, html_page.render(report))
        if own.output == "text":
            click.echo(f"\nwritten: {own.html}")


async def _backtest(own: BacktestOptions, command_line: CommandLine) -> BacktestReport:
    problems = [
        Problem(flag, clock.format_duration(value), expected)
        for flag, value, expected, is_valid in (
            ("--step", own.step_s, "1s to 1d", 1 <= own.step_s <= _DAY_S),
            ("--since", own.since_s, "at least one --step", own.since_s >= own.step_s),
        )
        if not is_valid
    ]
    until = None
    if own.until:
        try:
            until = clock.parse_input_time(own.until)
        except ValueError:
            problems.append(Problem("--until", shown(own.until), clock.INPUT_TIME))
    if problems:
        raise BadSettings("settings", problems)
    history_range = HistoryRange(own.since_s, until, own.step_s, own.recording)
    prometheus = command_line.settings(PrometheusOptions)
    if not prometheus.prometheus_url:
        raise BadSettings("settings", [Problem("--prometheus-url", "no value", "the URL of Prometheus")])
    options = command_line.agent_options(KIND)
    settings = TimelineSettings(options, command_line.settings(RefreshOptions).sync_period_s)
    files = object_files.read(own.paths)
    objects = policy_timeline.objects_of_files(files, options)
    has_nodes = bool(files.entries(NODES.group, NODES.kind))
    has_devices = any(policy.device_taints for policy in PolicyTimeline(objects, settings).policies.values())
    kube = command_line.settings(ClusterOptions).kube
    async with nullcontext() if has_nodes else open_api(kube) as api:
        inputs = await decide_inputs.read_nodes(own.paths, api, device_timeline.WATCHED[:1] * has_devices)
    now = HistoryObjects(inputs.nodes, DeviceObjects.of(inputs.objects))
    with progress_bar("evaluating") as progress:
        return await backtest_history.backtest(objects, settings, now, prometheus, history_range, progress)


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        problem = Problem(path, error.strerror or str(error), "a file that can be written")
        raise BadSettings("--html", [problem]) from error
