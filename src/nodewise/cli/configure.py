"""`nodewise configure`: what makes kube-scheduler call nodewise."""

import itertools
import re
from collections.abc import Sequence
from typing import Any, Final

import click
import msgspec
import yaml

from nodewise.agent import AgentKind, Requested
from nodewise.cli import configuring, elsewhere, hostflags, kinds, legacy, mounted, settings
from nodewise.cli.options import ExtenderOptions
from nodewise.cli.sections import Sectioned
from nodewise.configure import scheduler
from nodewise.configure.scheduler import Papers, Role, Wish
from nodewise.errors import BadSettings, Problem
from nodewise.extender import chain
from nodewise.extender.weights import ChainOptions
from nodewise.kube.options import KubeOptions
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.refresher import RefreshOptions
from nodewise.observe import logs
from nodewise.serve.options import AdminOptions, ServeOptions

_OTHERS: Final = (
    ExtenderOptions,
    ServeOptions,
    AdminOptions,
    KubeOptions,
    RefreshOptions,
    PrometheusOptions,
    ChainOptions,
)
"""The extender's file of settings serves here too, for which agents there are and what they do follows from it."""


class _ConfigureCommand(click.Group, Sectioned):
    """Understands the flags of the older configurator as well."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] and args[0] in self.commands:
            return super().parse_args(ctx, args)
        for flag, word in itertools.pairwise(args):
            if flag in {"-dry-run", "--dry-run"} and word.lower() in {"true", "false", "t", "f", "0", "1"}:
                raise click.UsageError(f"{flag} {word}: say {flag}={word}", ctx)
        return super().parse_args(ctx, legacy.translate(args, legacy.CONFIGURATOR))


def on_host(**given: Any) -> None:
    """Make kube-scheduler call nodewise: on a host where it is a static pod, as kubeadm sets it up.

    Writes kube-scheduler's configuration, copies a client certificate with its key and the CA, and changes the
    manifest: `--config`, two mounts, dnsPolicy, and an annotation by which the kubelet restarts it. Nothing else in
    the manifest changes. All is checked before anything is written, all is written or nothing, and a backup is kept.
    Run it on each host of the control plane, one after another, and again after `kubeadm upgrade`. The flags of the
    older configurator are understood, with one dash as well.

    On a cluster whose control plane is not yours to edit, --mode prints objects or files instead.

    \b
    Examples:
      nodewise configure -cert client.crt -key client.key -dry-run
      nodewise configure -cert client.crt -key client.key
      nodewise configure -cert client.crt -key client.key --print-plan
      nodewise configure --restore
      nodewise configure --mode second-scheduler | kubectl apply -f -

    \b
    Exit codes:
      0  done; with --dry-run, shown; with --check, nothing would change
      1  the host or what is on it is not as it has to be; nothing was changed
      2  options contradict each other, or one is wrong
      3  with --check, something would change
    """
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is not None:
        return
    logs.configure("warning")
    _check_names(given)
    older = {"tas": "telemetry", "gas": "gpu", "both": "telemetry,gpu"}
    if given["extender"] == "both":
        given["host_one_entry_per_agent"] = True
    text = given["host_agents"] or older.get(given["extender"] or "", "telemetry")
    names = [name.strip() for name in text.split(",") if name.strip()]
    roles = [role(kind, kind.options()) for kind in kinds.chosen(names, *_OTHERS)]
    if given["mode"] != elsewhere.HOST:
        elsewhere.run(given, roles, _weights(given["entry_weights"]))
        return
    for name in elsewhere.OWN:
        if given[name]:
            problem = Problem(f"--{name.replace('_', '-')}", "given without --mode", "a mode that has it")
            raise BadSettings("settings", [problem])
    mounted.check(given)
    ctx.exit(configuring.run(given, roles, _weights(given["entry_weights"])))


command = _ConfigureCommand(
    "configure",
    callback=on_host,
    help=on_host.__doc__,
    short_help="Make kube-scheduler call nodewise.",
    invoke_without_command=True,
    params=[*hostflags.parameters(), *elsewhere.parameters()],
)


def render_scheduler(output: str, **given: Any) -> None:
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
    names = [name.strip() for name in given["agents"].split(",") if name.strip()]
    roles = [role(kind, settings.of_agent(kind, given)) for kind in kinds.chosen(names, *_OTHERS)]
    wish = Wish(
        given["extender_url"],
        Papers(given["ca_file"], given["cert_file"], given["key_file"]),
        given["plain_http"],
        given["whole_nodes"],
        given["filter_all_pods"],
        given["one_entry_per_agent"],
        _weights(given["entry_weights"]),
        given["scheduler_name"],
        given["scheduler_kubeconfig"],
    )
    found = scheduler.configuration(roles, wish)
    for agent in scheduler.unasked(roles, wish):
        why = "nothing marks the pods that it concerns; --filter-all-pods has it asked about all of them"
        click.echo(f"nodewise: the filter of {agent} is not asked: {why}", err=True)
    if output == "json":
        click.echo(msgspec.json.encode(found))
        return
    click.echo(yaml.safe_dump(found, sort_keys=False), nl=False)


def role(kind: AgentKind, options: Any) -> Role:
    """What an agent has to be asked, as it says itself."""
    agent = kind.agent(options)
    return Role(
        kind.name,
        filters=bool(chain.judging(agent)),
        prioritizes=bool(chain.rankings(agent)),
        binds=hasattr(agent, "bind"),
        resources=kind.resources(options) if isinstance(kind, Requested) else {},
    )


_LABEL: Final = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAMES: Final = {
    "namespace": (_LABEL, "a namespace's name: a-z, 0-9 and -, at most 63"),
    "scheduler_name": (
        rf"(?=.{{1,63}}\Z){_LABEL}(\.{_LABEL})*",
        "a name of a-z, 0-9, - and dots, at most 63",
    ),
    "image": (r"[a-zA-Z0-9][-\w.:/@]*", "an image's name, such as nodewise:1.0"),
}


def _check_names(given: dict[str, Any]) -> None:
    """They become part of objects and of addresses."""
    problems = [
        Problem(f"--{field.replace('_', '-')}", repr(given[field]), wanted)
        for field, (pattern, wanted) in _NAMES.items()
        if given[field] and not re.fullmatch(pattern, given[field], re.ASCII)
    ]
    if problems:
        raise BadSettings("settings", problems)


def _weights(text: str) -> dict[str, int]:
    """`20`, or `safe=20,congestion=5`."""
    found: dict[str, int] = {}
    problems = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        name, equals, number = (side.strip() for side in part.rpartition("="))
        if (equals and not name) or name in found or not (number.isascii() and number.isdecimal()):
            problems.append(Problem("--weights", repr(part), "a whole number, or agent=number, each once"))
        else:
            found[name] = int(number[:_DIGITS])
    if problems:
        raise BadSettings("settings", problems)
    return found


_DIGITS: Final = 18


def _parameters() -> Sequence[click.Parameter]:
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
        click.Option(
            ["-o", "--output"], type=click.Choice(["yaml", "json"]), default="yaml", show_default=True,
            help="Form of what is printed.",
        ),
        *settings.options(kinds=kinds.known(*_OTHERS), known=_OTHERS),
    ]  # fmt: skip


command.add_command(
    Sectioned(
        "render-scheduler",
        callback=render_scheduler,
        help=render_scheduler.__doc__,
        short_help="Print a configuration of kube-scheduler.",
        params=list(_parameters()),
    )
)
