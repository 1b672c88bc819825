"""`nodewise doctor`: finds problems of an installation in a live cluster. It changes nothing."""

import asyncio
import os
import shlex
import ssl
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Annotated, Final, Literal

import click
import msgspec
from rich.console import Console
from rich.text import Text

from nodewise.base.clock import SystemClock
from nodewise.base.errors import BadSettings, Problem, counted, did_you_mean
from nodewise.base.option import Option
from nodewise.cli import terminal_output
from nodewise.cli.options_from_settings import ClusterOptions, CommandLine, ReplicaOptions, settings_command
from nodewise.cli.parameter_types import NamespaceName
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.cli.terminal_output import Progress
from nodewise.doctor import check_runner
from nodewise.doctor.collectors import collect_facts
from nodewise.doctor.collectors.session import ClusterReader, ExaminationTarget, SchedulerClient, Session
from nodewise.doctor.findings import CATALOGUE, NOT_CHECKED, PAGE, Finding, Report, Severity
from nodewise.kube import credentials, kubeconfig
from nodewise.kube.api_client_creation import Impersonation, connect, open_api
from nodewise.kube.api_server_interface import Api
from nodewise.kube.kubeconfig import KubeconfigContext, KubeOptions
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

_HEADINGS: Final[dict[Severity, tuple[str, str]]] = {
    "error": ("Error", "bold red"),
    "warning": ("Warning", "bold yellow"),
    "note": ("Note", "bold cyan"),
}
_MAX_WIDTH: Final = 110
_MIN_TEXT_WIDTH: Final = 20
_INDENT: Final = 4
_LABEL_WIDTH: Final = 10


class DoctorOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise doctor`."""

    output: Annotated[Literal["table", "json"], Option("-o --output")] = "table"
    """Output format."""

    scheduler_configs: Annotated[tuple[str, ...], Option("--scheduler-config", metavar="FILE")] = ()
    """A KubeSchedulerConfiguration, as kube-scheduler reads it; repeat it for several. The files that it names are read
    from this host."""

    scheduler_url: Annotated[str, Option(metavar="URL")] = ""
    """A running kube-scheduler whose configuration is read, such as https://127.0.0.1:10259, with the credentials for
    the API server; a token is sent to a loopback address only."""

    older_namespaces: Annotated[
        tuple[str, ...],
        Option("-n --namespace", metavar="NAMESPACE", type=NamespaceName(), is_hidden=True),
    ] = ()
    """The older name of --nodewise-namespace, for one release."""

    skip: Annotated[tuple[str, ...], Option(metavar="ID")] = ()
    """The id of a finding to leave out; repeat it for several."""

    timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    """Timeout per request."""

    no_color: bool = False
    """No colours. A pipe has none in any case."""


@settings_command(
    "doctor",
    DoctorOptions,
    ReplicaOptions,
    ClusterOptions,
    short_help="Find problems of an installation, each with its remedy.",
)
def command(command_line: CommandLine) -> None:
    """Find problems of nodewise's installation in a cluster, each with its remedy.

    It examines kube-scheduler's configuration and certificates, nodewise's replicas and their rights, policies and
    their metrics, nodes with GPUs or CPU pools, and a descheduler if policies need one. It changes nothing. What it
    may not read is reported with the missing right, and never counts as sound. Nodewise and its parts are expected in
    the namespaces of --nodewise-namespace, besides kube-system: schedulers of other namespaces are listed and not
    examined, because a tenant can use any name. Metrics of a replica that the API server cannot reach are read with
    --server.

    kube-scheduler's configuration comes from the ConfigMap of a scheduler that runs as a pod, from the file of a static
    pod if doctor runs on that host, from --scheduler-config, or from kube-scheduler itself with --scheduler-url.
    On a managed cluster only schedulers of your own can be examined.

    docs/how-to/doctor.md describes each finding by its id.

    \b
    Examples:
      nodewise doctor
      sudo nodewise doctor --kubeconfig /etc/kubernetes/admin.conf
      nodewise doctor --scheduler-config scheduler-config.yaml -o json
      kubectl -n kube-system port-forward kube-scheduler-cp 10259 &
      nodewise doctor --scheduler-url https://127.0.0.1:10259

    \b
    Exit codes:
      0  no problem
      1  the cluster does not respond
      2  the command line or a setting is invalid
      3  a problem, or something that could not be read
    """
    logs.configure("error", "messages")
    settings = command_line.settings(DoctorOptions)
    if unknown := [finding for finding in settings.skip if finding not in CATALOGUE]:
        expected = "one of " + ", ".join(CATALOGUE) + did_you_mean(unknown[0], [*CATALOGUE])
        raise BadSettings("settings", [Problem("--skip", ", ".join(map(repr, unknown)), expected)])
    if set(settings.skip) >= set(CATALOGUE) - {NOT_CHECKED}:
        raise BadSettings("settings", [Problem("--skip", "every finding", "at least one that is left")])
    cluster = command_line.settings(ClusterOptions).kube
    if settings.older_namespaces:
        terminal_output.print_message(
            "Warning: --namespace of doctor is deprecated: use --nodewise-namespace, as in explain and metrics"
        )
    report = use_program_name(
        asyncio.run(_examine_cluster(settings, command_line.settings(ReplicaOptions), cluster))
    )
    _PRINTERS[settings.output](report, color=not settings.no_color)
    if settings.output == "table" and any(finding.command for finding in report.findings):
        _print_cluster_of_commands(cluster)
    if not report.has_no_errors_or_warnings:
        click.get_current_context().exit(terminal_output.NO)


async def _examine_cluster(
    settings: DoctorOptions, replica_options: ReplicaOptions, cluster: KubeOptions
) -> Report:
    def connect_as_node(user: str) -> Api:
        return connect(cluster, MetricsRegistry(), impersonation=Impersonation(user, "system:nodes"))

    chosen = kubeconfig.context_from_file_or_pod(cluster.kubeconfig, cluster.context, os.environ)
    target = ExaminationTarget(
        settings.scheduler_configs,
        settings.scheduler_url,
        _scheduler_credentials(chosen) if settings.scheduler_url else None,
        settings.older_namespaces or replica_options.nodewise_namespaces,
        # the rights of a user that the kubeconfig impersonates count, not those of the user who impersonates it
        None if chosen.user.get("as") else connect_as_node,
        replica_options.servers,
    )
    skip = frozenset(settings.skip)
    async with open_api(cluster) as api:
        with Progress() as progress:
            session = Session(ClusterReader(api, settings.timeout_s, progress.say), target)
            facts = await collect_facts(session, check_runner.fields_of_needed_facts(skip))
    return check_runner.examine(facts, skip)


def use_program_name(report: Report) -> Report:
    """The report with commands that the user can run: the kubectl plugin is called `kubectl nodewise`."""
    program = click.get_current_context().find_root().info_name
    findings = [
        item._replace(command=item.command.replace("nodewise configure ", f"{program} configure "))
        for item in report.findings
    ]
    return report._replace(findings=findings)


def _print_cluster_of_commands(cluster: KubeOptions) -> None:
    """Say how commands reach the cluster, which is not the one that kubectl uses by default."""
    parts = [f"export KUBECONFIG={shlex.quote(cluster.kubeconfig)}"] if cluster.kubeconfig else []
    parts += [f"kubectl config use-context {shlex.quote(cluster.context)}"] if cluster.context else []
    if parts:
        click.echo(f"Before you run these commands: {'; '.join(parts)}")


def _scheduler_credentials(chosen: KubeconfigContext) -> SchedulerClient:
    """The credentials for the API server. kube-scheduler's own certificate is self-signed and not verified."""
    context = credentials.context(chosen)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return SchedulerClient(context, credentials.auth(chosen, lambda *_: None, SystemClock()))


def print_findings_table(report: Report, *, color: bool) -> None:
    """Print the findings by severity and id, and a summary."""
    console = Console(highlight=False, no_color=None if color else True)  # None: as NO_COLOR says
    console.width = min(console.width, _MAX_WIDTH)
    for severity, (heading, style) in _HEADINGS.items():
        findings = [finding for finding in report.findings if finding.severity == severity]
        if findings:
            _print_wrapped_text(console, Text(heading, style), 0)
            for id_, group in groupby(findings, key=lambda finding: finding.id):
                _print_findings_of_id(console, id_, list(group))
            console.print()
    _print_wrapped_text(console, Text(_format_findings_summary(report)), 0)
    if report.findings:
        _print_wrapped_text(console, Text(f"Details: {PAGE}, by the id."), 0)


def _print_findings_of_id(console: Console, id_: str, findings: Sequence[Finding]) -> None:
    _print_wrapped_text(console, Text.assemble((id_, "bold"), "  ", findings[0].title), 2)
    for number, finding in enumerate(findings):
        _print_wrapped_text(console, Text(finding.object), _INDENT)
        _print_wrapped_text(console, Text(finding.found), _INDENT, "found")
        if finding.expected not in finding.remedy:
            _print_wrapped_text(console, Text(finding.expected), _INDENT, "expected")
        following = findings[number + 1] if number + 1 < len(findings) else None
        # printed once for several in a row
        if following is None or (finding.remedy, finding.command) != (following.remedy, following.command):
            _print_wrapped_text(console, Text(finding.remedy), _INDENT, "remedy")
            if finding.command:  # in one line, so that it can be pasted
                label = f"{'run:':>{_LABEL_WIDTH - 1}} "
                line = Text.assemble(" " * _INDENT, (label, "dim"), finding.command)
                console.print(line, soft_wrap=True)


def _print_wrapped_text(console: Console, text: Text, indent: int, label: str = "") -> None:
    """A text folded to the width, beside its label if it has one."""
    before = indent + (_LABEL_WIDTH if label else 0)
    for number, line in enumerate(text.wrap(console, max(console.width - before, _MIN_TEXT_WIDTH))):
        line.rstrip()
        head = f"{label}:".rjust(_LABEL_WIDTH - 1) if label and not number else ""
        console.print(
            Text.assemble(" " * indent, (f"{head:<{before - indent}}", "dim"), line), soft_wrap=True
        )


def _format_findings_summary(report: Report) -> str:
    numbers = {
        severity: sum(finding.severity == severity for finding in report.findings) for severity in _HEADINGS
    }
    counts = [counted(number, name) for name, number in numbers.items() if number]
    checks = f"{len(report.checked)} of {len(report.checked) + len(report.not_checked)} checks were made"
    result = f"{', '.join(counts)}." if counts else "Nothing is wrong."
    return f"{result} Examined: {', '.join(report.examined) or 'nothing'}. {checks}."


def print_findings_json(report: Report, *, color: bool) -> None:  # noqa: ARG001 - all forms are called alike
    document = {
        "sound": report.has_no_errors_or_warnings,
        "findings": [finding.document() for finding in report.findings],
        "checked": list(report.checked),
        "not_checked": [{"id": id_, "why": reason} for id_, reason in report.not_checked],
    }
    click.echo(msgspec.json.encode(document))


_PRINTERS: Final[dict[str, Callable[..., None]]] = {
    "table": print_findings_table,
    "json": print_findings_json,
}
