"""`nodewise configure render-scheduler`: prints a configuration of kube-scheduler."""

from typing import Annotated, Literal

import click
import msgspec

from nodewise.base.option import Option
from nodewise.cli import agent_selection, terminal_output
from nodewise.cli.extender_options import ExtenderOptions
from nodewise.cli.options_from_settings import CommandLine, settings_command
from nodewise.cli.parameter_types import AgentNames
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.install import scheduler_configuration
from nodewise.install.scheduler_configuration import EntryFiles, SchedulerOptions
from nodewise.kube import yaml_writer
from nodewise.observe import logs


class RenderSchedulerOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise configure render-scheduler`."""

    agents: Annotated[str, Option(metavar="NAMES", type=AgentNames(), environment="NODEWISE_AGENTS")] = (
        ExtenderOptions().agents
    )
    """Agents that kube-scheduler calls, separated by commas. `nodewise agents list` shows them."""

    extender_url: Annotated[str, Option("--url --extender-url", metavar="URL")] = (
        "https://nodewise.nodewise.svc:9001"
    )
    """URL of nodewise for kube-scheduler."""

    one_entry_per_agent: bool = False
    """One entry for each agent instead of one for all."""

    entry_weights: Annotated[str, Option("--weights --weight", metavar="WEIGHTS")] = str(
        scheduler_configuration.DEFAULT_WEIGHT
    )
    """Weight of the scores beside the default plugins: a score counts `score x weight x 10`, each plugin 0 to 100. One
    number, or by entry, such as `safe=20,congestion=5`."""

    filter_all_pods: bool = False
    """Filter pods that no resource marks as well. None of them is scheduled while nodewise is down."""

    whole_nodes: bool = False
    """Send whole nodes, for `nodewise extender --no-cluster`. Requests are 800 times as large."""

    scheduler_name: Annotated[str, Option(metavar="NAME")] = scheduler_configuration.DEFAULT_SCHEDULER
    """Name of the profile, which pods select by schedulerName."""

    scheduler_kubeconfig: Annotated[str, Option(metavar="FILE")] = ""
    """Kubeconfig of kube-scheduler, such as /etc/kubernetes/scheduler.conf; empty: the permissions of its pod."""

    ca_file: Annotated[str, Option("--ca", metavar="FILE")] = ""
    """CA of nodewise's serving certificate."""

    cert_file: Annotated[str, Option("--cert", metavar="FILE")] = ""
    """Client certificate of kube-scheduler."""

    key_file: Annotated[str, Option("--key", metavar="FILE")] = ""
    """Key of the client certificate."""

    plain_http: bool = False
    """Allow an http:// URL of another machine."""

    output: Annotated[Literal["yaml", "json"], Option("-o --output")] = "yaml"
    """Output format."""


@settings_command(
    "render-scheduler",
    RenderSchedulerOptions,
    kinds=agent_selection.agents_without_conflicts(),
    short_help="Print a configuration of kube-scheduler.",
)
def command(command_line: CommandLine) -> None:
    """Print a configuration for `kube-scheduler --config` with which kube-scheduler calls nodewise.

    Each entry has the verbs of its agents. Pods that request a resource of an agent are filtered, and are not scheduled
    while nodewise is down. If no resource marks the pods of an agent, they are only prioritized, unless
    --filter-all-pods is set. Paths are those that kube-scheduler sees. No file is read or written.

    \b
    Examples:
      nodewise configure render-scheduler --agents telemetry,gpu \\
        --ca ca.crt --cert tls.crt --key tls.key
      nodewise configure render-scheduler --agents safe,congestion \\
        --url http://127.0.0.1:9001 --whole-nodes

    \b
    Exit codes:
      0  printed
      2  the command line or a setting is invalid
    """
    logs.configure("warning", "messages")
    render_options = command_line.settings(RenderSchedulerOptions)
    roles = [
        agent_selection.agent_role_in_extender_entry(kind, command_line.agent_options(kind))
        for kind in agent_selection.parse_agents(render_options.agents)
    ]
    scheduler_options = SchedulerOptions(
        render_options.extender_url,
        EntryFiles(render_options.ca_file, render_options.cert_file, render_options.key_file),
        render_options.plain_http,
        render_options.whole_nodes,
        render_options.filter_all_pods,
        render_options.one_entry_per_agent,
        agent_selection.parse_agent_weights(render_options.entry_weights),
        render_options.scheduler_name,
        render_options.scheduler_kubeconfig,
    )
    configuration = scheduler_configuration.build_scheduler_configuration(roles, scheduler_options)
    for agent in scheduler_configuration.agents_without_filter(roles, scheduler_options):
        why = "no resource marks its pods; --filter-all-pods calls it for all pods"
        terminal_output.print_message(f"the filter of {agent} is not called: {why}")
    if render_options.output == "json":
        click.echo(msgspec.json.encode(configuration))
        return
    click.echo(yaml_writer.dump(configuration), nl=False)
