"""`nodewise cpu uninstall`: removes the CPU manager."""

import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from nodewise.base.clock import format_duration
from nodewise.base.errors import NodewiseError
from nodewise.cli import tables, terminal_output
from nodewise.cli.options_from_settings import output_option
from nodewise.cli.setting_declarations import Duration
from nodewise_cpu import procfs
from nodewise_cpu.agent import socket_server
from nodewise_cpu.cli import common_options
from nodewise_cpu.cluster import api_server, cpu_manager_removal
from nodewise_cpu.cluster.api_server import ApiClient, ApiFeatures
from nodewise_cpu.cluster.cpu_manager_removal import RemovalStep, RemovedNode
from nodewise_cpu.cluster.object_writer import Deadline
from nodewise_cpu.cmk_names import DEFAULT_INSTALL_DIR, DEFAULT_SOCKET
from nodewise_cpu.cpusets import enforcer
from nodewise_cpu.cpusets.cgroup_partitions import CgroupPartitions
from nodewise_cpu.install import installation
from nodewise_cpu.node import machine_features, other_cpu_managers, task_garbage_collection
from nodewise_cpu.topology import ROOT_CGROUP

TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, kw_only=True)
class UninstallOptions(common_options.StoreOptions, common_options.ProcessOptions):
    """Options of `uninstall`."""

    scope: str
    crds: bool
    install_dir: str
    timeout_s: float
    output: str


def run(options: UninstallOptions) -> None:
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
            _uninstall_from_node(options, api, features, steps.append)
        if options.scope != "node":
            _uninstall_from_cluster(options, api, features, steps.append)
    finally:
        _print_uninstall_steps(steps, options.output)


def _uninstall_from_node(
    options: UninstallOptions,
    api: ApiClient,
    features: ApiFeatures,
    report_progress: Callable[[RemovalStep], None],
) -> None:
    name = common_options.resolve_node_name(options, api)
    store = common_options.open_allocation_store(dataclasses.replace(options, node_name=name))
    proc = common_options.host_proc_path(options)
    is_here = cpu_manager_removal.read_node_boot_id(api, name) in {"", procfs.read_boot_id(proc)}
    if not is_here:
        terminal_output.print_message(f"not on node {name}: tasks that are over are not known as such")

    def collect() -> None:
        task_garbage_collection.collect_garbage(store, proc, None, common_options.sleep_before_store_retry)

    node = RemovedNode(name, options.namespace, store, collect if is_here else None)
    cpu_manager_removal.remove_from_node(api, node, features, Deadline(options.timeout_s), report_progress)
    program = f"program in {options.install_dir}"
    if not is_here:
        report_progress(RemovalStep(program, f"not looked for: this is not node {name}"))
        return
    report_progress(
        RemovalStep(program, _removal_result(was_there=installation.remove(Path(options.install_dir))))
    )
    _undo_partitions(proc, report_progress)
    socket = Path(DEFAULT_SOCKET)
    report_progress(RemovalStep(f"files of the node agent in {socket.parent}", _remove_agent_socket(socket)))
    file = machine_features.FEATURE_FOLDER / machine_features.FEATURE_FILE
    report_progress(
        RemovalStep(
            f"feature file {file}",
            _removal_result(
                was_there=machine_features.write_feature_file(machine_features.FEATURE_FOLDER, ())
            ),
        )
    )


def _undo_partitions(proc: Path, report_progress: Callable[[RemovalStep], None]) -> None:
    """Undo what remains of the partitions of the node agent, and report it if there is something."""
    root = other_cpu_managers.host_root(Path("/"), proc) / ROOT_CGROUP
    try:
        result = "removed" if CgroupPartitions(root).release() else ""
    except NodewiseError as error:
        result = f"left: {error}"
    if result:
        report_progress(RemovalStep("cgroup partitions", result))


def _remove_agent_socket(socket: Path) -> str:
    try:
        return _removal_result(
            was_there=socket_server.remove_socket_files(socket, enforcer.DEFAULT_ORIGINALS)
        )
    except NodewiseError as error:
        return f"left: {error}"


def _removal_result(*, was_there: bool) -> str:
    return "removed" if was_there else "not there"


def _uninstall_from_cluster(
    options: UninstallOptions,
    api: ApiClient,
    features: ApiFeatures,
    report_progress: Callable[[RemovalStep], None],
) -> None:
    namespace = options.namespace
    shared_objects = [
        *cpu_manager_removal.webhook_objects_to_remove(namespace, features),
        *cpu_manager_removal.agent_objects_to_remove(api, namespace, features, report_progress),
        *(cpu_manager_removal.report_crd_references(features) if options.crds else ()),
    ]
    cpu_manager_removal.remove_from_cluster(
        api, namespace, shared_objects, features, Deadline(options.timeout_s), report_progress
    )


def _print_uninstall_steps(steps: list[RemovalStep], output: str) -> None:
    if output == "json":
        click.echo(json.dumps({"steps": [step._asdict() for step in steps]}, separators=(",", ":")))
    elif steps:
        tables.print_table(["OBJECT", "OUTCOME"], [tuple(step) for step in steps])
    sys.stdout.flush()


command = common_options.create_click_command(
    "uninstall",
    run,
    UninstallOptions,
    "Remove the CPU manager from a node, and from the cluster.",
    [
        click.Option(
            ["--scope"],
            type=click.Choice(["all", "node", "cluster"]),
            default="all",
            show_default=True,
            help="The node's part, the shared part, or both.",
        ),
        click.Option(
            ["--crds"],
            is_flag=True,
            help="With the shared part also remove the kinds of reports, and all reports.",
        ),
        click.Option(
            ["--install-dir"],
            default=DEFAULT_INSTALL_DIR,
            show_default=True,
            metavar="DIR",
            help="Folder of the program.",
        ),
        *common_options.click_parameters(*common_options.STORE, "proc_fs"),
        click.Option(
            ["--timeout", "timeout_s"],
            type=Duration(has_default_unit=True, is_positive=True),
            default=format_duration(TIMEOUT_S),
            show_default=True,
            metavar="DURATION",
            help="Timeout for the removal of pods. A plain number means seconds.",
        ),
        output_option(["table", "json"]),
    ],
)
