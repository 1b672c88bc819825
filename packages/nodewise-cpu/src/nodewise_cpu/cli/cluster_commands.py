"""Commands through the API server: `reconfigure_setup` for all nodes; `validate` and `uninstall` for one.

Also the options of the commands that make pods on nodes, and the display of their progress.
"""

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click

from nodewise.base.errors import NodewiseError
from nodewise.cli import terminal_output
from nodewise.cli.terminal_output import Progress
from nodewise_cpu import installation, procfs
from nodewise_cpu.agent import socket_server
from nodewise_cpu.cli import common_options
from nodewise_cpu.cli.common_options import StoreOptions, flag, option
from nodewise_cpu.cluster import (
    api_server,
    cpu_manager_removal,
    node_setup,
    node_setup_objects,
    node_validation,
)
from nodewise_cpu.cluster.api_server import ApiClient, ApiFeatures
from nodewise_cpu.cluster.cpu_manager_removal import RemovalStep, RemovedNode, removal_step
from nodewise_cpu.cluster.node_setup_objects import SetupOptions
from nodewise_cpu.cluster.node_validation import ValidationCheck, ValidationTarget
from nodewise_cpu.cluster.object_writer import Deadline
from nodewise_cpu.cmk_names import DEFAULT_SOCKET
from nodewise_cpu.cpusets import enforcer
from nodewise_cpu.cpusets.container_cpusets import CgroupPartitions
from nodewise_cpu.node import machine_features, other_cpu_managers, task_garbage_collection
from nodewise_cpu.pool_planning import PoolOptions
from nodewise_cpu.topology import ROOT_CGROUP

TIMEOUT_HELP: Final = "Timeout for all nodes. A plain number means seconds."
_DEFAULTS: Final = SetupOptions()


@dataclass(frozen=True, kw_only=True)
class SetupParameters(common_options.ApiServerOptions, common_options.PoolModes):
    """Options of a command that makes pods on nodes, as they are on the command line."""

    cmk_img: str = option("Image of the pods.", _DEFAULTS.image, metavar="IMAGE")
    cmk_img_pol: str = option(
        "Pull policy of the image.", _DEFAULTS.pull_policy, metavar="|".join(node_setup_objects.PULL_POLICIES)
    )
    saname: str = option("Service account of the pods.", _DEFAULTS.service_account, metavar="NAME")
    install_dir: str = common_options.install_dir_option("Folder of the program on nodes.")
    num_exclusive_cores: str = option(
        "Cores of the pool exclusive.", str(PoolOptions().exclusive), metavar="N"
    )
    num_shared_cores: str = option("Cores of the pool shared.", str(PoolOptions().shared), metavar="N")
    namespace: str = common_options.namespace_option()
    output: str = common_options.output_choice("table", "json")
    timeout_s: float


def build_setup_options(
    parameters: SetupParameters, *, pull_secret: str = "", taint: bool = True
) -> SetupOptions:
    """The options of the pods. BadSettings names all invalid ones."""
    parse = node_setup_objects.parse_core_count
    options = SetupOptions(
        parameters.pool_options(
            parse(parameters.num_exclusive_cores, "--num-exclusive-cores"),
            parse(parameters.num_shared_cores, "--num-shared-cores"),
        ),
        parameters.cmk_img,
        parameters.cmk_img_pol,
        pull_secret,
        parameters.saname,
        parameters.namespace,
        parameters.install_dir,
        taint=taint,
    )
    node_setup_objects.check(options)
    return options


@contextlib.contextmanager
def progress_reporter() -> Iterator[Callable[[str], None]]:
    """Shows progress: one changing line on a terminal, else a line for each change."""
    if sys.stderr.isatty():
        with Progress() as progress:
            yield progress.say
        return
    last = [""]

    def report_progress(doing: str) -> None:
        if doing != last[0]:
            terminal_output.print_message(doing)
        last[0] = doing

    yield report_progress


_RECONFIGURATION_S: Final = 300.0


@dataclass(frozen=True, kw_only=True)
class ReconfigureSetupOptions(SetupParameters):
    """Options of `reconfigure_setup`."""

    check: bool = common_options.flag("Only check whether it is possible; change nothing.")
    timeout_s: float = common_options.timeout(TIMEOUT_HELP, _RECONFIGURATION_S)


def run_reconfigure_setup(options: ReconfigureSetupOptions) -> None:
    """Give all nodes that have pools other ones while their tasks run.

    First a pod on each node checks whether it is possible; nothing is changed unless all checks succeed. Then the nodes
    are reconfigured one after the other, by pods that are removed when they succeed. If it fails on a node, that node
    is not changed and the command ends. It can be repeated.

    \b
    Examples:
      nodewise cpu reconfigure_setup --num-exclusive-cores 6 --check
      nodewise cpu reconfigure_setup --num-exclusive-cores 6 -o json

    \b
    Exit codes:
      0  all nodes have these pools; with --check, all can
      1  it cannot be done on some node, or failed on one
      2  the command line or a setting is invalid
    """
    common_options.start_cmk_logging()
    pods_options = build_setup_options(options)
    api = common_options.open_api_client(options)

    def deadline() -> Deadline:
        return Deadline(options.timeout_s)

    with progress_reporter() as report_progress:
        names = node_setup.nodes_with_pools(api)
        report = node_setup.reconfigure_nodes(
            api, names, pods_options, deadline, report_progress, only_check=options.check
        )
    if options.output == "json":
        click.echo(json.dumps(report.as_dict(), separators=(",", ":")))
    else:
        terminal_output.print_table(
            ["NODE", "RESULT", "DETAIL"], [(*node[:2], node.error or "-") for node in report.nodes]
        )
    click.get_current_context().exit(terminal_output.DONE if report.is_whole else terminal_output.FAILED)


reconfigure_setup_command = common_options.create_click_command(
    "reconfigure_setup", run_reconfigure_setup, ReconfigureSetupOptions
)


_WORDS: Final = {True: "ok", False: "WRONG", None: "-"}


@dataclass(frozen=True, kw_only=True)
class ValidateOptions(common_options.ApiServerOptions, common_options.ProcessOptions):
    """Options of `validate`."""

    name: str = field(metadata={"argument": "NODE"})
    namespace: str = common_options.namespace_option()
    conf_dir: str = option("Store the state in this directory instead of a ConfigMap.", metavar="DIR")
    output: str | None = common_options.terminal_output_choice()
    no_taint: bool = flag("Do not expect a taint.")
    pod_namespace: str = common_options.namespace_option("Namespace of the dry run's pod.")
    install_dir: str = common_options.install_dir_option("Folder of the program on the node.")


def run_validate(options: ValidateOptions) -> None:
    """Check whether pods can get exclusive cores on NODE, and name a remedy for each problem.

    Checks its label, taint, pools, resources, agent, tasks and report; the webhook, by a dry run of a pod; and the
    program, if the command runs on the node. Nothing is changed.

    \b
    Examples:
      nodewise cpu validate node1 --namespace cmk-namespace
      nodewise cpu validate node1 -o json

    \b
    Exit codes:
      0  every check passed
      1  the node cannot be read
      2  the command line or a setting is invalid
      3  a check failed
    """
    common_options.start_cmk_logging()
    name = options.name
    store_options = StoreOptions(
        kubeconfig=options.kubeconfig, namespace=options.namespace, node_name=name, conf_dir=options.conf_dir
    )
    api, store = common_options.open_api_client(options), common_options.open_allocation_store(store_options)
    target = ValidationTarget(name, options.namespace, not options.no_taint, options.pod_namespace)
    checks = [*node_validation.validate_node_setup(api, store, target, api_server.fetch_features(api))]
    if len(checks) > 1:
        checks.append(_check_installed_program(api, name, options))
    is_well = all(check.ok is not False for check in checks)
    if options.output == "json" or (options.output is None and not sys.stdout.isatty()):
        common_options.print_json(
            {"node": name, "ok": is_well, "checks": [check._asdict() for check in checks]}
        )
    else:
        rows = [(check.name, _WORDS[check.ok], check.seen, check.remedy or "-") for check in checks]
        terminal_output.print_table(
            *terminal_output.drop_empty_columns("WHAT TO DO", ["CHECK", "", "SEEN", "WHAT TO DO"], rows)
        )
    click.get_current_context().exit(terminal_output.DONE if is_well else terminal_output.NO)


def _check_installed_program(api: ApiClient, name: str, options: ValidateOptions) -> ValidationCheck:
    file = Path(options.install_dir) / "cmk"
    try:
        is_here = cpu_manager_removal.read_node_boot_id(api, name) == procfs.read_boot_id(
            Path(options.proc_fs or "/proc")
        )
    except NodewiseError:
        is_here = False
    if not is_here:
        return ValidationCheck("program", ok=None, seen=f"{file} not looked for: this is not node {name}")
    is_there = file.is_file() and os.access(file, os.X_OK)
    remedy = "" if is_there else f"nodewise cpu install --install-dir {options.install_dir}, on the node"
    return ValidationCheck("program", is_there, f"{file}" if is_there else f"no program {file}", remedy)


validate_command = common_options.create_click_command("validate", run_validate, ValidateOptions)


_REMOVAL_S: Final = 120.0


@dataclass(frozen=True, kw_only=True)
class UninstallOptions(common_options.StoreOptions, common_options.ProcessOptions):
    """Options of `uninstall`."""

    scope: str = common_options.choice("The node's part, the shared part, or both.", "all", "node", "cluster")
    crds: bool = common_options.flag(
        "With the shared part also remove the kinds of reports, and all reports."
    )
    install_dir: str = common_options.install_dir_option("Folder of the program.")
    timeout_s: float = common_options.timeout(
        "Timeout for the removal of pods. A plain number means seconds.", _REMOVAL_S
    )
    output: str = common_options.output_choice("table", "json")


def run_uninstall(options: UninstallOptions) -> None:
    """Remove the CPU manager from a node: its pods, pools, reports, resources, taint, label and program.

    By default also remove what all nodes share: the webhook, and the node agent if no other node has pools. --scope
    node keeps these, --scope cluster removes nothing else. If tasks are still running after ten seconds, nothing is
    removed. The command can be repeated, and can run on several nodes at once.

    Run it on the node, in a pod with the host's /proc and the program's folder. Elsewhere every stored task counts as
    running, and the program is kept.

    \b
    Examples:
      nodewise cpu uninstall --scope node
      nodewise cpu uninstall --scope cluster --crds

    \b
    Exit codes:
      0  removed, or not there
      1  something runs in a pool, or something could not be removed
      2  the command line or a setting is invalid
    """
    common_options.start_cmk_logging()
    api = common_options.open_api_client(options)
    features = api_server.fetch_features(api)
    steps: list[RemovalStep] = []
    try:
        if options.scope != "cluster":
            for step in _uninstall_from_node(options, api, features):
                steps.append(step)  # noqa: PERF402 - those before an error are printed
        if options.scope != "node":
            shared_objects = [
                *cpu_manager_removal.webhook_objects_to_remove(options.namespace, features),
                *cpu_manager_removal.agent_objects_to_remove(api, options.namespace, features, steps.append),
                *(cpu_manager_removal.report_crd_references(features) if options.crds else ()),
            ]
            for step in cpu_manager_removal.remove_from_cluster(
                api, options.namespace, shared_objects, features, Deadline(options.timeout_s)
            ):
                steps.append(step)  # noqa: PERF402 - those before an error are printed
    finally:
        if options.output == "json":
            click.echo(json.dumps({"steps": [step._asdict() for step in steps]}, separators=(",", ":")))
        elif steps:
            terminal_output.print_table(["OBJECT", "OUTCOME"], [tuple(step) for step in steps])
        sys.stdout.flush()


def _uninstall_from_node(
    options: UninstallOptions, api: ApiClient, features: ApiFeatures
) -> Iterator[RemovalStep]:
    name = common_options.resolve_node_name(options, api)
    store = common_options.open_allocation_store(dataclasses.replace(options, node_name=name))
    proc = common_options.host_proc_path(options)
    is_here = cpu_manager_removal.read_node_boot_id(api, name) in {"", procfs.read_boot_id(proc)}
    if not is_here:
        terminal_output.print_message(f"not on node {name}: tasks that are over are not known as such")

    def collect() -> None:
        task_garbage_collection.collect_garbage(store, proc, None, common_options.sleep_before_store_retry)

    node = RemovedNode(name, options.namespace, store, collect if is_here else None)
    yield from cpu_manager_removal.remove_from_node(api, node, features, Deadline(options.timeout_s))
    program, folder = f"program in {options.install_dir}", Path(options.install_dir)
    if not is_here:
        yield RemovalStep(program, f"not looked for: this is not node {name}")
        return
    yield removal_step(program, was_there=installation.remove(folder))
    root = other_cpu_managers.host_root(Path("/"), proc) / ROOT_CGROUP
    try:
        if CgroupPartitions(root).release():
            yield RemovalStep("cgroup partitions", "removed")
    except NodewiseError as error:
        yield RemovalStep("cgroup partitions", f"left: {error}")
    socket = Path(DEFAULT_SOCKET)
    files = f"files of the node agent in {socket.parent}"
    try:
        was_there = socket_server.remove_socket_files(socket, enforcer.DEFAULT_ORIGINALS)
        yield removal_step(files, was_there=was_there)
    except NodewiseError as error:
        yield RemovalStep(files, f"left: {error}")
    features_folder = machine_features.FEATURE_FOLDER
    yield removal_step(
        f"feature file {features_folder / machine_features.FEATURE_FILE}",
        was_there=machine_features.write_feature_file(features_folder, ()),
    )


uninstall_command = common_options.create_click_command("uninstall", run_uninstall, UninstallOptions)
