"""`nodewise annotate`: what nodes use and what pods ask of them, written where agents read it."""

import asyncio
import os
from typing import Any, Final

import click

from nodewise import agents
from nodewise.cli import (
    annotated,
    annotating,
    cluster,
    configfile,
    exits,
    extender,
    forms,
    lines,
    older_annotators,
    settings,
)
from nodewise.cli.annotating import AnnotateOptions, Outcome
from nodewise.cli.sections import Sectioned
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.observe import logs
from nodewise.serve.options import AdminOptions
from nodewise.statistics.queries import WindowOptions

GROUPS: Final = (AnnotateOptions, WindowOptions, PrometheusOptions, AdminOptions)


class _AnnotateCommand(Sectioned):
    """Understands the variables of the older annotators as well."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [*older_annotators.flags(os.environ, args), *args])


def run(**given: Any) -> None:
    """Write statistics of nodes as annotations: what is really free, and what pods asked for.

    Over and over, once a period, in one burst; --once for a single time. Only what moved by more than 2 % is written,
    and the time when that was (nodewise.io/annotated-at). Nodes that are not ready keep what they have.
    The variables of kube-safe-scheduler's annotators (PROM_IP, PROM_PORT, NODE_EXP_PORT, CLUSTER_CONF, ANNOTATE_FREQ,
    USE_FORECAST, USE_REQ) are understood too.

    \b
    Examples:
      nodewise annotate --once --dry-run
      nodewise annotate --prometheus-url http://prometheus.monitoring:9090
      nodewise annotate --what allocation --once -o json

    \b
    Exit codes:
      0  written, or ended by SIGTERM or SIGINT
      1  with --once: some node could not be written, or was not measured
      2  the command line or a setting is wrong
    """
    built: dict[type, Any] = {group: settings.build(group, given) for group in GROUPS}
    own: AnnotateOptions = built[AnnotateOptions]
    alone = given["once"] or given["dry_run"]
    logs.configure("warning" if alone and own.log_level == "info" else own.log_level, own.log_format)
    if alone:
        outcome = asyncio.run(annotating.once(built, cluster.chosen(given), dry=given["dry_run"]))
        click.get_current_context().exit(_told(outcome, given["output"]))
    asyncio.run(annotating.serve(built, cluster.chosen(given)))


def _told(outcome: Outcome, output: str) -> int:
    """Print what came of one time; the exit code."""
    looked, written, is_sampled = outcome
    for note in annotated.notes(looked, one_sample=is_sampled):
        lines.tell(note)
    if output == "json":
        click.echo(annotated.report(looked, written))
    elif written is None:
        annotated.table(looked)
    else:
        click.echo(annotated.summary(looked, written))
    if written is not None and written.error:
        lines.tell(written.error)
    return exits.DONE if outcome.is_whole else exits.FAILED


def _parameters() -> list[click.Parameter]:
    """The options; the extender's file of settings serves here too."""
    kinds = [agents.load(name) for name in agents.names()]
    file = configfile.option([*GROUPS, *extender.GROUPS], kinds)
    _, *own = settings.options(*GROUPS)
    return [file, *own]


command = _AnnotateCommand(
    "annotate",
    callback=run,
    help=run.__doc__,
    short_help="Write statistics of nodes as annotations.",
    params=[
        click.Option(["--once"], is_flag=True, help="Do it a single time, and end."),
        click.Option(
            ["--dry-run"], is_flag=True, help="Print what would be written, write nothing, and end."
        ),
        forms.option(["table", "json"], "Of --once and --dry-run."),
        *cluster.options(),
        *_parameters(),
    ],
)
