"""`nodewise configure render-scheduler`: prints a configuration of kube-scheduler."""

from typing import Annotated, Literal

import click
import msgspec
import yaml

from nodewise.cli import agent_kinds, options, terminal
from nodewise.cli.extender_options import GROUPS, ExtenderOptions
from nodewise.cli.options import CommandLine
from nodewise.cli.settings import CommandOptions
from nodewise.configure import scheduler_configuration
from nodewise.configure.scheduler_configuration import EntryFiles, SchedulerOptions
from nodewise.observe import logs
from nodewise.option import Option


class RenderSchedulerOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise configure render-scheduler`."""

    agents: Annotated[str, Option(metavar="NAMES", environment="NODEWISE_AGENTS")] = ExtenderOptions().agents
    """Agents to have asked, separated by commas. `nodewise agents list` shows them."""

    extender_url: Annotated[str, Option("--url --extender-url", metavar="URL")] = (
        "https://nodewise.nodewise.svc:9001"
    )
    """Where kube-scheduler finds nodewise."""

    one_entry_per_agent: bool = False
    """An entry for each agent, not one for all."""

    entry_weights: Annotated[str, Option("--weights --weight", metavar="WEIGHTS")] = str(
        scheduler_configuration.DEFAULT_WEIGHT
    )
    """How much scores count beside the default plugins': a score counts `score x weight x 10` next to their 0 to 100
    each. One number, or by entry, such as `safe=20,congestion=5`."""

    filter_all_pods: bool = False
    """Filter pods that nothing marks as well. None of them is placed while nodewise does not answer."""

    whole_nodes: bool = False
    """Have whole nodes sent, for `nodewise extender --no-cluster`. 800 times as much to send."""

    scheduler_name: Annotated[str, Option(metavar="NAME")] = scheduler_configuration.DEFAULT_SCHEDULER
    """The profile's name, by which pods choose it."""

    scheduler_kubeconfig: Annotated[str, Option(metavar="FILE")] = ""
    """kube-scheduler's own kubeconfig, such as /etc/kubernetes/scheduler.conf; empty: its pod's rights."""

    ca_file: Annotated[str, Option("--ca", metavar="FILE")] = ""
    """CA of nodewise's serving certificate."""

    cert_file: Annotated[str, Option("--cert", metavar="FILE")] = ""
    """kube-scheduler's client certificate."""

    key_file: Annotated[str, Option("--key", metavar="FILE")] = ""
    """Its key."""

    plain_http: bool = False
    """Allow an http:// URL that is not of the same machine."""

    output: Annotated[Literal["yaml", "json"], Option("-o --output")] = "yaml"
    """Form of what is printed."""


def run(command_line: CommandLine) -> None:
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
    render_options = command_line.settings(RenderSchedulerOptions)
    roles = [
        agent_kinds.extender_role(kind, command_line.agent_options(kind))
        for kind in agent_kinds.parse_agents(render_options.agents)
    ]
    scheduler_options = SchedulerOptions(
        render_options.extender_url,
        EntryFiles(render_options.ca_file, render_options.cert_file, render_options.key_file),
        render_options.plain_http,
        render_options.whole_nodes,
        render_options.filter_all_pods,
        render_options.one_entry_per_agent,
        agent_kinds.parse_weights(render_options.entry_weights),
        render_options.scheduler_name,
        render_options.scheduler_kubeconfig,
    )
    configuration = scheduler_configuration.build_configuration(roles, scheduler_options)
    for agent in scheduler_configuration.agents_without_filter(roles, scheduler_options):
        why = "nothing marks the pods that it concerns; --filter-all-pods has it asked about all of them"
        terminal.print_message(f"the filter of {agent} is not asked: {why}")
    if render_options.output == "json":
        click.echo(msgspec.json.encode(configuration))
        return
    click.echo(yaml.safe_dump(configuration, sort_keys=False), nl=False)


command = options.make_command(
    "render-scheduler",
    run,
    options.parameters(RenderSchedulerOptions, kinds=agent_kinds.usable_kinds(*GROUPS), known=GROUPS),
    short_help="Print a configuration of kube-scheduler.",
)
