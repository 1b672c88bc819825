"""`nodewise doctor`: what is wrong with this cluster's set-up, and the remedy. It reads, and changes nothing."""

import asyncio
import os
import ssl
from typing import Any

import click

from nodewise.cli import exits, options
from nodewise.cli.doctor import gathering, showing
from nodewise.cli.doctor.asking import Asker
from nodewise.cli.doctor.gathering import Wish
from nodewise.cli.doctor.schedulers import Asked, Client
from nodewise.cli.options import ClusterOptions
from nodewise.cli.parameter_types import Duration
from nodewise.cli.progress import Progress
from nodewise.clock import SystemClock
from nodewise.configure.doctor import examination
from nodewise.configure.doctor.findings import CATALOGUE, Report
from nodewise.errors import BadSettings, Problem
from nodewise.kube import credentials, kubeconfig, trust
from nodewise.kube.connect import connect
from nodewise.kube.options import KubeOptions
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry


def run(output: str, **given: Any) -> None:
    """Look at a cluster and name what is wrong with nodewise's set-up, and the remedy.

    It looks at kube-scheduler's configuration and certificates, at nodewise's replicas and their rights, at policies
    and their metrics, at nodes with cards or pools, and at a descheduler where policies want one. It reads and changes
    nothing. What it may not read is said, with the right that is missing, and never taken for sound.

    kube-scheduler's configuration comes from the ConfigMap of a scheduler that runs as a pod, from the file of a static
    pod where doctor runs on that host, from --scheduler-config, or from kube-scheduler itself with --scheduler-url.
    On a managed cluster only schedulers of your own can be looked at.

    docs/how-to/doctor.md tells of each finding at length, by its id.

    \b
    Examples:
      nodewise doctor
      sudo nodewise doctor --kubeconfig /etc/kubernetes/admin.conf
      nodewise doctor --scheduler-config scheduler-config.yaml -o json
      kubectl -n kube-system port-forward kube-scheduler-cp 10259 &
      nodewise doctor --scheduler-url https://127.0.0.1:10259

    \b
    Exit codes:
      0  nothing is wrong
      1  the cluster does not answer
      2  the command line or a setting is wrong
      3  something is wrong, or could not be looked at
    """
    logs.configure("error")
    skip = _skipped(given["skip"])
    report = asyncio.run(_report(given, skip))
    showing.FORMS[output](report, color=not given["no_color"])
    if not report.is_sound:
        click.get_current_context().exit(exits.NO)


def _skipped(names: tuple[str, ...]) -> frozenset[str]:
    unknown = [name for name in names if name not in CATALOGUE]
    if unknown:
        wanted = "one of " + ", ".join(CATALOGUE)
        raise BadSettings("settings", [Problem("--skip", ", ".join(map(repr, unknown)), wanted)])
    return frozenset(names)


async def _report(given: dict[str, Any], skip: frozenset[str]) -> Report:
    chosen = options.build(ClusterOptions, given).kube
    api = connect(chosen, MetricsRegistry())
    url = given["scheduler_url"]
    asked = Asked(given["scheduler_configs"], url, _client(chosen) if url else None)
    try:
        with Progress() as progress:
            ask = Asker(api, given["timeout_s"], progress)
            facts = await gathering.gather(ask, api, Wish(asked, given["namespaces"]))
    finally:
        await api.close()
    return examination.examine(facts, skip)


def _client(options: KubeOptions) -> Client:
    """As the API server knows us. kube-scheduler's own certificate is self-signed and not verified."""
    chosen = kubeconfig.find(options.kubeconfig, options.context, os.environ)
    context = trust.context(chosen)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return Client(context, credentials.auth(chosen, lambda *_: None, SystemClock()))


command = click.Command(
    "doctor",
    callback=run,
    help=run.__doc__,
    short_help="Name what is wrong with a cluster's set-up, and the remedy.",
    params=[
        options.output_option(showing.FORMS),
        click.Option(
            ["--scheduler-config", "scheduler_configs"],
            multiple=True,
            metavar="FILE",
            help="A KubeSchedulerConfiguration, as kube-scheduler reads it; repeat it for several. The files that it "
            "names are looked for here.",
        ),
        click.Option(
            ["--scheduler-url"],
            default="",
            metavar="URL",
            help="A running kube-scheduler to ask for its configuration, such as https://127.0.0.1:10259. It is asked "
            "as the API server is; a token goes to a loopback address only.",
        ),
        click.Option(
            ["-n", "--namespace", "namespaces"],
            multiple=True,
            metavar="NAMESPACE",
            default=("nodewise",),
            show_default=True,
            help="Where nodewise is, and what belongs to it, besides kube-system; repeat it for several. Schedulers "
            "and the like of other namespaces are named and not looked into, for anybody may have called them so.",
        ),
        click.Option(
            ["--skip"],
            multiple=True,
            metavar="ID",
            help="The id of a finding not to look for; repeat it for several.",
        ),
        *options.parameters(ClusterOptions),
        click.Option(
            ["--timeout", "timeout_s"],
            type=Duration(),
            default="10s",
            show_default=True,
            help="Of each call.",
        ),
        click.Option(["--no-color"], is_flag=True, help="No colours; nor are there any in a pipe."),
    ],
)
