"""`nodewise configure render-scheduler`: a configuration of kube-scheduler, printed."""

from typing import Any

import click
import msgspec
import yaml

from nodewise.cli import forms, kinds, lines, roles, settings
from nodewise.cli.options import ExtenderOptions
from nodewise.cli.sections import Sectioned
from nodewise.configure import scheduler
from nodewise.configure.scheduler import Papers, Wish
from nodewise.observe import logs


def run(output: str, **given: Any) -> None:
    """Print a configuration of kube-scheduler that has nodewise asked: for `kube-scheduler --config`.

    Each entry has the calls that its agents answer. Pods that ask for one of an agent's resources are filtered, and
    wait while nodewise does not answer; where nothing marks an agent's pods they are only prioritized, unless
    --filter-all-pods says otherwise. File names are those that kube-scheduler will see. Nothing is read or written.

    \b
    Examples:
      nodewise configure render-scheduler --agents telemetry,gpu \\
        --ca ca.crt --cert tls.crt --key tls.key
      nodewise configure render-scheduler --agents safe,congestion \\
        --url http://127.0.0.1:9001 --whole-nodes

    \b
    Exit codes:
      0  printed
      2  the command line or a setting is wrong
    """
    logs.configure("warning")
    asked = [roles.role(kind, settings.of_agent(kind, given)) for kind in roles.named(given["agents"])]
    wish = Wish(
        given["extender_url"],
        Papers(given["ca_file"], given["cert_file"], given["key_file"]),
        given["plain_http"],
        given["whole_nodes"],
        given["filter_all_pods"],
        given["one_entry_per_agent"],
        roles.weights(given["entry_weights"]),
        given["scheduler_name"],
        given["scheduler_kubeconfig"],
    )
    found = scheduler.configuration(asked, wish)
    for agent in scheduler.unasked(asked, wish):
        why = "nothing marks the pods that it concerns; --filter-all-pods has it asked about all of them"
        lines.tell(f"the filter of {agent} is not asked: {why}")
    if output == "json":
        click.echo(msgspec.json.encode(found))
        return
    click.echo(yaml.safe_dump(found, sort_keys=False), nl=False)


def _parameters() -> list[click.Parameter]:
    own = ExtenderOptions()
    return [
        click.Option(
            ["--agents"], default=own.agents, envvar="NODEWISE_AGENTS", show_default=True, metavar="NAMES",
            help="Agents to have asked, separated by commas. `nodewise agents list` shows them.",
        ),
        click.Option(
            ["--url", "--extender-url", "extender_url"], default="https://nodewise.nodewise.svc:9001",
            show_default=True, metavar="URL", help="Where kube-scheduler finds nodewise.",
        ),
        click.Option(["--one-entry-per-agent"], is_flag=True, help="An entry for each agent, not one for all."),
        click.Option(
            ["--weights", "--weight", "entry_weights"], default=str(scheduler.DEFAULT_WEIGHT), show_default=True,
            metavar="WEIGHTS",
            help="How much scores count beside the default plugins': a score counts `score x weight x 10` next to "
            "their 0 to 100 each. One number, or by entry, such as `safe=20,congestion=5`.",
        ),
        click.Option(
            ["--filter-all-pods"], is_flag=True,
            help="Filter pods that nothing marks as well. None of them is placed while nodewise does not answer.",
        ),
        click.Option(
            ["--whole-nodes"], is_flag=True,
            help="Have whole nodes sent, for `nodewise extender --no-cluster`. 800 times as much to send.",
        ),
        click.Option(
            ["--scheduler-name"], default=scheduler.DEFAULT_SCHEDULER, show_default=True, metavar="NAME",
            help="The profile's name, by which pods choose it.",
        ),
        click.Option(
            ["--scheduler-kubeconfig"], default="", metavar="FILE",
            help="kube-scheduler's own kubeconfig, such as /etc/kubernetes/scheduler.conf; empty: its pod's rights.",
        ),
        click.Option(["--ca", "ca_file"], default="", metavar="FILE", help="CA of nodewise's serving certificate."),
        click.Option(["--cert", "cert_file"], default="", metavar="FILE", help="kube-scheduler's client certificate."),
        click.Option(["--key", "key_file"], default="", metavar="FILE", help="Its key."),
        click.Option(
            ["--plain-http"], is_flag=True, help="Allow an http:// URL that is not of the same machine."
        ),
        forms.option(["yaml", "json"]),
        *settings.options(kinds=kinds.known(*roles.OTHERS), known=roles.OTHERS),
    ]  # fmt: skip


command = Sectioned(
    "render-scheduler",
    callback=run,
    help=run.__doc__,
    short_help="Print a configuration of kube-scheduler.",
    params=_parameters(),
)
