"""`nodewise configure`: configures kube-scheduler to call nodewise."""

import itertools
from typing import Final

import click
import msgspec

from nodewise.cli import agent_selection, older_program_flags
from nodewise.cli.command_help import SectionedCommand
from nodewise.cli.configure import host, platform_modes
from nodewise.cli.configure.options import (
    HOST,
    ConfigureOptions,
    check_object_names,
    check_options_of_mode,
)
from nodewise.cli.main import CommandTable
from nodewise.cli.options_from_settings import CommandLine, settings_command
from nodewise.observe import logs

COMMANDS: Final = {
    "manifests": (
        "nodewise.cli.configure.manifests",
        "Print definitions, rights or admission policies of nodewise.",
    ),
    "render-scheduler": (
        "nodewise.cli.configure.render_scheduler",
        "Print a configuration of kube-scheduler.",
    ),
}
"""Loaded only when they run: render-scheduler needs the options of all agents, including those of other packages."""


class _ConfigureCommand(CommandTable, SectionedCommand):
    """Accepts the flags of the older configurator as well."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] and args[0] in self.list_commands(ctx):
            return super().parse_args(ctx, args)
        for flag, word in itertools.pairwise(args):
            if flag in {"-dry-run", "--dry-run"} and word.lower() in {"true", "false", "t", "f", "0", "1"}:
                raise click.UsageError(f"{flag} {word}: write {flag}={word}", ctx)
        return super().parse_args(
            ctx, older_program_flags.translate_older_flags(args, older_program_flags.CONFIGURATOR)
        )


@settings_command(
    "configure",
    ConfigureOptions,
    short_help="Print the objects of native mode, or make kube-scheduler call nodewise.",
    kind=_ConfigureCommand,
    commands_of=COMMANDS,
    invoke_without_command=True,
)
def command(command_line: CommandLine) -> None:
    """Make kube-scheduler call nodewise, on a host where kube-scheduler is a static pod, as with kubeadm.

    Writes kube-scheduler's configuration, copies a client certificate with its key and the CA, and changes the
    manifest: `--config`, two mounts, dnsPolicy, and an annotation that makes the kubelet restart the pod. Nothing else
    in the manifest changes. All files are checked before any is written, either all or none are written, and a backup
    is kept. Run it on each control-plane host, one after another, and again after `kubeadm upgrade`. The flags of the
    older configurator are accepted, also with one dash.

    From Kubernetes 1.36, --mode native enforces policies without such calls, and needs none of this. If you
    cannot edit the control plane of an older cluster, another --mode prints objects or files.

    \b
    Examples:
      nodewise configure -cert client.crt -key client.key -dry-run
      nodewise configure -cert client.crt -key client.key
      nodewise configure -cert client.crt -key client.key --print-plan
      nodewise configure --restore
      nodewise configure --mode native | kubectl apply --server-side -f -
      nodewise configure manifests crds | kubectl apply --server-side -f -
      nodewise configure --mode second-scheduler | kubectl apply -f -

    \b
    Exit codes:
      0  done; with --dry-run, shown; with --check, nothing would change
      1  the host or a file on it is not valid; nothing was changed
      2  options contradict each other, or one is invalid
      3  with --check, something would change
    """
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is not None:
        return
    logs.configure("warning", "messages")
    options = command_line.settings(ConfigureOptions)
    names = {
        "--namespace": options.namespace,
        "--scheduler-name": options.scheduler_name,
        "--image": options.image,
    }
    check_object_names(names, options.prometheus_url)
    older = {"tas": "telemetry", "gas": "gpu", "both": "telemetry,gpu"}
    if options.extender == "both":
        options = msgspec.structs.replace(options, one_entry_per_agent=True)
    agents = options.agents or older.get(options.extender or "", "telemetry")
    roles = [
        agent_selection.agent_role_in_extender_entry(kind, kind.options())
        for kind in agent_selection.parse_agents(agents)
    ]
    weights = agent_selection.parse_agent_weights(options.entry_weights)
    check_options_of_mode(options)
    if options.mode != HOST:
        platform_modes.run(options, roles, weights)
        return
    host.check_container_mounts(options)
    ctx.exit(host.run(options, roles, weights))
