"""`nodewise cpu cluster-init`: nodes get pools of cores, from one place."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click

from nodewise.cli import exit_codes, tables, terminal
from nodewise.cli.cpu import common_options, setup_options
from nodewise.cli.cpu.webhook import is_told, is_true
from nodewise.cpu.api_client import ApiClient, Object
from nodewise.cpu.cluster import agent_daemonset, api_versions, object_writer, removal, setup
from nodewise.cpu.cluster import setup_objects as pods
from nodewise.cpu.cluster.api_versions import ApiFeatures
from nodewise.cpu.cluster.object_writer import Deadline
from nodewise.cpu.cluster.setup import PreparedNode, SetupPlan, SetupReport
from nodewise.cpu.cluster.setup_objects import SetupOptions
from nodewise.cpu.webhook import manifests
from nodewise.cpu.webhook.manifests import Installation
from nodewise.errors import BadSettings, Problem

TIMEOUT_S: Final = 600.0
_ANYBODY: Final = (
    "the webhook serves whoever reaches it, over TLS; for client certificates give --cafile or"
    " --insecure=false, and the API server what `nodewise cpu webhook --print-admission-config` writes"
)
_NO_AGENT: Final = "pods that the webhook has seen to ask the node agent for CPUs, and --no-agent makes none"


def run(**given: Any) -> None:
    """Prepare nodes: pools of cores, the program, the resource to ask for, and what looks after all that.

    On each node a pod runs init, install and discover, one after the other, and ends; then a DaemonSet runs reconcile
    and node-report. Then the node agent is started, which gives containers their CPUs, and at last the webhook, so that
    pods need not know of mounts and variables. The agent's account and rights have to be there: deploy/cpu-agent.yaml.
    It can be run again: what is as it should be stays, what differs is replaced, what failed is tried again, and
    nothing that runs in a pool is disturbed. It runs in a pod, or anywhere with --kubeconfig.

    \b
    Examples:
      nodewise cpu cluster-init --all-hosts --num-exclusive-cores 6
      nodewise cpu cluster-init --host-list node1,node2 \\
        --cmk-cmd-list init,install,discover -o json

    \b
    Exit codes:
      0  all nodes are prepared
      1  something failed on some node; the report names it
      2  the command line or a setting is wrong
    """
    common_options.start_logs()
    commands = pods.parse_commands(given["cmk_cmd_list"])
    wish = setup_options.wish(given)
    if bool(given["host_list"]) == given["all_hosts"]:
        raise BadSettings("settings", [Problem("--host-list, --all-hosts", "both or none", "one of them")])
    requests = common_options.requests(given)
    dialect = api_versions.fetch(requests)
    plan = SetupPlan(
        hosts(given, requests),
        commands,
        wish,
        agent(given, wish, dialect),
        webhook(given, wish, requests, dialect),
    )
    with setup_options.telling() as tell:
        report = setup.prepare(requests, plan, dialect, Deadline(given["timeout_s"]), tell)
    show(report, given["output"])
    if plan.shared and plan.agent is None:
        terminal.tell(_NO_AGENT)
    click.get_current_context().exit(exit_codes.DONE if report.is_whole else exit_codes.FAILED)


def hosts(given: common_options.Given, requests: ApiClient) -> Sequence[str]:
    """The nodes that were asked for; BadSettings if there is none, or not that one."""
    if not given["all_hosts"]:
        return setup.known(requests, [name.strip() for name in given["host_list"].split(",")])
    found = setup.schedulable(requests)
    if not found:
        raise BadSettings("settings", [Problem("--all-hosts", "no node is schedulable", "one at least")])
    return found


def agent(given: common_options.Given, wish: SetupOptions, dialect: ApiFeatures) -> Object | None:
    """The node agent, where the API server is new enough to have pods made ready for it."""
    return (
        None if given["no_agent"] or dialect.webhooks == "none" else agent_daemonset.daemon_set(wish, dialect)
    )


def webhook(
    given: common_options.Given, wish: SetupOptions, requests: ApiClient, dialect: ApiFeatures
) -> Sequence[Object]:
    """What makes pods ready for the pools, where the API server has webhooks. A certificate that serves stays."""
    if dialect.webhooks == "none":
        return ()
    mutual = not is_true(given["insecure"], "--insecure") and is_told("insecure", "cafile")
    if not mutual:
        terminal.tell(_ANYBODY)
    installation = Installation(
        namespace=wish.namespace,
        image=wish.image,
        pull_policy=wish.pull_policy,
        pull_secret=wish.pull_secret,
        install_dir=wish.install_dir,
        cafile=given["cafile"] if mutual else "",
        version=dialect.webhooks,
    )
    registration, secret, *_ = map(object_writer.path, removal.webhook(wish.namespace, dialect))
    hook, certs = object_writer.find(requests, registration), object_writer.find(requests, secret)
    certificate = manifests.kept(certs, hook, wish.namespace, datetime.now(UTC))
    return manifests.in_order(manifests.objects(installation, certificate), hook)


def show(report: SetupReport, output: str) -> None:
    """Print what came of it."""
    if output == "json":
        click.echo(json.dumps(report.as_dict(), indent=2, sort_keys=True))
        return
    parts = [(one.node, one) for one in report.nodes]
    parts += [("(agent)", report.agent), ("(webhook)", report.shared)]
    rows = [(name, "failed" if one.error else "ready", _told(one)) for name, one in parts if one.steps]
    tables.show(["NODE", "RESULT", "DETAIL"], rows)


def _told(one: PreparedNode) -> str:
    return one.error or ", ".join(f"{step.name} {step.outcome}" for step in one.steps)


command = click.Command(
    "cluster-init",
    callback=run,
    help=run.__doc__,
    short_help="Prepare nodes, from one place.",
    params=[
        click.Option(
            ["--host-list"], default="", metavar="NODES", help="Nodes to prepare, separated by commas."
        ),
        click.Option(["--all-hosts"], is_flag=True, help="Prepare all nodes that are schedulable."),
        click.Option(
            ["--cmk-cmd-list"],
            default="init,reconcile,install,discover,nodereport",
            show_default=True,
            metavar="COMMANDS",
            help="What to run on them.",
        ),
        click.Option(["--pull-secret"], default="", metavar="NAME", help="Secret to pull the image with."),
        click.Option(["--no-taint"], is_flag=True, help="Leave the nodes to all pods."),
        click.Option(
            ["--no-agent"],
            is_flag=True,
            help="Start no node agent: pods use --direct, or you start it yourself.",
        ),
        click.Option(
            ["--cafile"],
            default=manifests.DEFAULT_CAFILE,
            show_default=True,
            metavar="FILE",
            help="CA of who calls the webhook, in its container.",
        ),
        click.Option(
            ["--insecure"],
            default="False",
            show_default=True,
            metavar="True|False",
            help="Whether anybody may call the webhook, without a certificate of that CA.",
        ),
        *setup_options.options(TIMEOUT_S),
    ],
)
