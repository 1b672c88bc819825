"""`nodewise cpu cluster-init`: prepares nodes from one place."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import click

from nodewise.base.errors import BadSettings
from nodewise.cli import terminal_output
from nodewise_cpu.cli import cluster_commands, common_options
from nodewise_cpu.cli.common_options import flag, option
from nodewise_cpu.cli.webhook import is_any_parameter_set, parse_boolean_word
from nodewise_cpu.cluster import (
    api_server,
    cpu_manager_removal,
    node_setup,
    node_setup_objects,
    object_writer,
)
from nodewise_cpu.cluster import node_setup_objects as pods
from nodewise_cpu.cluster.api_server import ApiClient, ApiFeatures, Object
from nodewise_cpu.cluster.node_setup import SetupPlan, SetupReport
from nodewise_cpu.cluster.node_setup_objects import SetupOptions
from nodewise_cpu.cluster.object_writer import Deadline
from nodewise_cpu.webhook import manifests
from nodewise_cpu.webhook.manifests import WebhookInstallation

TIMEOUT_S: Final = 600.0
_ANYBODY: Final = (
    "the webhook serves every client over TLS; to require client certificates, set --cafile or --insecure=false,"
    " and configure the API server with the files of `nodewise cpu webhook --print-admission-config`"
)
_NO_AGENT: Final = (
    "pods that the webhook mutates request CPUs from the node agent, which --no-agent does not start"
)


@dataclass(frozen=True, kw_only=True)
class ClusterInitOptions(cluster_commands.SetupParameters):
    """Options of `cluster-init`."""

    host_list: str = option("Nodes to prepare, separated by commas.", metavar="NODES")
    all_hosts: bool = flag("Prepare all nodes that are schedulable.")
    cmk_cmd_list: str = option(
        "Commands to run on them.", "init,reconcile,install,discover,nodereport", metavar="COMMANDS"
    )
    pull_secret: str = option("Secret for pulling the image.", metavar="NAME")
    no_taint: bool = flag("Do not taint the nodes: other pods may use them.")
    no_agent: bool = flag("Do not start the node agent: use --direct in pods, or start it yourself.")
    cafile: str = option(
        "CA of the webhook's clients, a path in its container.", manifests.DEFAULT_CAFILE, metavar="FILE"
    )
    insecure: str = option("Whether clients need no certificate of that CA.", "False", metavar="True|False")
    timeout_s: float = common_options.timeout(cluster_commands.TIMEOUT_HELP, TIMEOUT_S)


def run(options: ClusterInitOptions) -> None:
    """Prepare nodes: create pools of cores, install the program, advertise resources, and start the agent and webhook.

    On each node a pod runs init, install and discover, one after the other; then a DaemonSet runs reconcile and
    node-report. Then the node agent starts, which allocates CPUs to containers, and at last the webhook, which adds the
    mounts and variables that pods need. The agent's account and rights must exist: apply deploy/cpu-agent.yaml first.

    The command is idempotent: unchanged objects stay, others are replaced, failed steps are repeated, and running tasks
    are not disturbed. It runs in a pod, or anywhere with --kubeconfig.

    \b
    Examples:
      nodewise cpu cluster-init --all-hosts --num-exclusive-cores 6
      nodewise cpu cluster-init --host-list node1,node2 \\
        --cmk-cmd-list init,install,discover -o json

    \b
    Exit codes:
      0  all nodes are prepared
      1  something failed on some node; the report names it
      2  the command line or a setting is invalid
    """
    common_options.start_cmk_logging()
    commands = pods.parse_commands(options.cmk_cmd_list)
    pods_options = cluster_commands.build_setup_options(
        options, pull_secret=options.pull_secret, taint=not options.no_taint
    )
    if bool(options.host_list) == options.all_hosts:
        raise BadSettings.of(
            "settings", "--host-list, --all-hosts", "both options or no option", "one of the two options"
        )
    api = common_options.open_api_client(options)
    features = api_server.fetch_features(api)
    plan = SetupPlan(
        selected_nodes(options, api),
        commands,
        pods_options,
        # the DaemonSet is of no use if the API server is too old for the webhook
        None
        if options.no_agent or features.webhooks == "none"
        else node_setup_objects.agent_daemon_set(pods_options, features),
        build_webhook_objects(options, pods_options, api, features),
    )
    with cluster_commands.progress_reporter() as report_progress:
        report = node_setup.execute_setup_plan(
            api, plan, features, Deadline(options.timeout_s), report_progress
        )
    _print_report(report, options.output)
    if plan.shared and plan.agent is None:
        terminal_output.print_message(_NO_AGENT)
    click.get_current_context().exit(terminal_output.DONE if report.is_whole else terminal_output.FAILED)


def selected_nodes(options: ClusterInitOptions, api: ApiClient) -> Sequence[str]:
    """The selected nodes; BadSettings if there are none, or one does not exist."""
    if not options.all_hosts:
        return node_setup.check_node_names(api, [name.strip() for name in options.host_list.split(",")])
    nodes = node_setup.schedulable_nodes(api)
    if not nodes:
        raise BadSettings.of(
            "settings", "--all-hosts", "no node is schedulable", "at least one schedulable node"
        )
    return nodes


def build_webhook_objects(
    options: ClusterInitOptions, pods_options: SetupOptions, api: ApiClient, features: ApiFeatures
) -> Sequence[Object]:
    """The webhook's objects, if the API server supports webhooks. A valid certificate is kept."""
    if features.webhooks == "none":
        return ()
    mutual = not parse_boolean_word(options.insecure, "--insecure") and is_any_parameter_set(
        "insecure", "cafile"
    )
    if not mutual:
        terminal_output.print_message(_ANYBODY)
    installation = WebhookInstallation(
        namespace=pods_options.namespace,
        image=pods_options.image,
        pull_policy=pods_options.pull_policy,
        pull_secret=pods_options.pull_secret,
        install_dir=pods_options.install_dir,
        cafile=options.cafile if mutual else "",
        version=features.webhooks,
    )
    registration, secret, *_ = map(
        object_writer.path, cpu_manager_removal.webhook_objects_to_remove(options.namespace, features)
    )
    hook, certs = object_writer.find_object(api, registration), object_writer.find_object(api, secret)
    certificate = manifests.reuse_or_create_certificate(certs, hook, options.namespace, datetime.now(UTC))
    return manifests.sort_in_creation_order(manifests.objects(installation, certificate), hook)


def _print_report(report: SetupReport, output: str) -> None:
    if output == "json":
        click.echo(json.dumps(report.as_dict(), separators=(",", ":")))
    else:
        parts = [(node.node, node) for node in report.nodes]
        parts += [("(agent)", report.agent), ("(webhook)", report.shared)]
        rows = [
            (
                name,
                "failed" if part.error else "ready",
                part.error or ", ".join(f"{step.name} {step.outcome}" for step in part.steps),
            )
            for name, part in parts
            if part.steps
        ]
        terminal_output.print_table(["NODE", "RESULT", "DETAIL"], rows)


command = common_options.create_click_command("cluster-init", run, ClusterInitOptions)
