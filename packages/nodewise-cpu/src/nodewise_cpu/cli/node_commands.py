"""Commands for one node: its pools (`init`, `reconfigure`), their tasks (`describe`, `reconcile`) and what others see.

`discover` advertises a node's exclusive cores, `node-report` reports its cores, pools and problems with them.
`reaffinitize` is a command of CMK that has nothing to do any more.
"""

import contextlib
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from nodewise.base.errors import BadInput, NodewiseError, Unavailable
from nodewise.cli import terminal_output
from nodewise.observe import logs
from nodewise_cpu import agent_messages, cmk_names, cpu_set_formats, pool_allocations
from nodewise_cpu.agent_messages import ReconfigureRequest
from nodewise_cpu.allocation_store import StoredAllocations
from nodewise_cpu.cli import common_options
from nodewise_cpu.cli.common_options import flag, option
from nodewise_cpu.cluster import api_server, exclusive_core_advertisement, report_custom_resources
from nodewise_cpu.ended_tasks import KnownProcesses
from nodewise_cpu.node import machine_features, node_report, other_cpu_managers, task_garbage_collection
from nodewise_cpu.node import reconfiguration as execution
from nodewise_cpu.node.machine_features import PoolInputs
from nodewise_cpu.node.other_cpu_managers import CpuManagers
from nodewise_cpu.node.task_garbage_collection import CollectionLog
from nodewise_cpu.reconfiguration_plan import Move


@dataclass(frozen=True, kw_only=True)
class InitOptions(common_options.StoreOptions, common_options.MachineOptions, common_options.PoolCounts):
    """Options of `init`."""


def run_init(options: InitOptions) -> None:
    """Divide this node's cores into pools, and store them without tasks.

    A node that has exactly these pools already is not changed, and neither are its tasks. A node that has other pools
    is rejected: use `reconfigure`. Everything is computed before anything is written.

    \b
    Examples:
      nodewise cpu init --num-exclusive-cores 4 --num-shared-cores 1
      nodewise cpu init --conf-dir /etc/cmk --exclusive-mode spread

    \b
    Exit codes:
      0  the node has these pools
      1  it cannot have them, or has others
      2  the command line or a setting is invalid
    """
    common_options.start_cmk_logging()
    root = Path(options.sysfs)
    machine_features.log_missing_huge_pages(root)
    logs.emit("cpu_cores_asked", exclusive=options.pools.exclusive, shared=options.pools.shared)
    node_machine = machine_features.read(root, common_options.fetch_node_labels(options))
    plan = node_machine.plan(options.pools)
    machine_features.log_pool_plan(node_machine, plan)
    store = common_options.open_allocation_store(options)
    if not machine_features.store_new_pools(store, plan):
        logs.emit("cpu_pools_kept", place=store.location)


_SOCKET_ID: Final = click.Option(["--socket-id"], type=int, default=-1, hidden=True, expose_value=False)
"""An option of CMK without effect."""

init_command = common_options.create_click_command("init", run_init, InitOptions, _SOCKET_ID)


@dataclass(frozen=True, kw_only=True)
class DiscoverOptions(common_options.StoreOptions):
    """Options of `discover`."""

    no_taint: bool = common_options.flag("Do not taint the node: other pods may use it.")


def run_discover(options: DiscoverOptions) -> None:
    """Advertise this node's exclusive cores by extended resources, a label and a taint.

    Nothing is written if the node is up to date, and changes by others are kept, such as their taints. A kubelet that
    restarts removes the resources: the node agent advertises them again.

    \b
    Examples:
      nodewise cpu discover --node-name node1
      nodewise cpu discover --conf-dir /etc/cmk --no-taint

    \b
    Exit codes:
      0  the node is up to date
      1  the state cannot be read, or the node cannot be written
      2  the command line or a setting is invalid
    """
    common_options.start_cmk_logging()
    counts = exclusive_core_advertisement.count_resources_to_advertise(
        common_options.open_allocation_store(options).read().allocations
    )
    api = common_options.open_api_client(options)
    node = common_options.resolve_node_name(options, api)
    if not exclusive_core_advertisement.advertise(api, node, counts, taint=not options.no_taint):
        logs.emit("cpu_advertised", node=node)


discover_command = common_options.create_click_command("discover", run_discover, DiscoverOptions)


@dataclass(frozen=True, kw_only=True)
class DescribeOptions(common_options.StoreOptions, common_options.MachineOptions):
    """Options of `describe`."""

    output: str | None = common_options.terminal_output_choice()


def run_describe(options: DescribeOptions) -> None:
    """Print a node's pools, and the tasks on each of their CPU lists.

    Nothing is locked or changed. With `--conf-dir`, lists with CPUs in a cgroup partition of this machine are
    reported.

    \b
    Examples:
      nodewise cpu describe --node-name node1 --namespace cmk-namespace
      nodewise cpu describe --conf-dir /etc/cmk -o json

    \b
    Exit codes:
      0  printed
      1  the state cannot be read
      2  the command line or a setting is invalid
    """
    common_options.start_cmk_logging()
    stored = common_options.open_allocation_store(options).read()
    if options.conf_dir:
        with contextlib.suppress(
            BadInput
        ):  # of lists with CPUs that no task can use, if the machine can be read
            topology = common_options.read_machine(options)
            for problem in node_report.find_partition_conflicts(stored.allocations, topology):
                terminal_output.print_message(str(problem))
    if options.output == "json" or (options.output is None and not sys.stdout.isatty()):
        document = pool_allocations.as_describe_output(stored.allocations)
        if options.conf_dir:
            document["path"] = options.conf_dir
        if stored.intent:
            document["reconfiguring"] = stored.intent.as_dict()
        common_options.print_json(document)
        return
    head = ["POOL", "SOCKET", "CPUS", "TASK", "POD", "CONTAINER"]
    terminal_output.print_table(
        *terminal_output.drop_empty_columns(["POD", "CONTAINER"], head, list(_pool_table_rows(stored)))
    )
    if stored.intent:
        click.echo(
            f"being reconfigured by process {stored.intent.by.pid} since {stored.intent.since}", err=True
        )


def _pool_table_rows(stored: StoredAllocations) -> Iterator[Sequence[str]]:
    for pool in stored.allocations.pools.values():
        for number, cpu_lists in pool.sockets.items():
            for cpu_list in cpu_lists:
                rows = [(str(task.pid), task.pod or "-", task.container or "-") for task in cpu_list.tasks]
                yield from (
                    (pool.name, str(number), cpu_list.text, *row) for row in rows or [("-", "-", "-")]
                )


describe_command = common_options.create_click_command("describe", run_describe, DescribeOptions)


@dataclass(frozen=True, kw_only=True)
class ReconcileOptions(
    common_options.StoreOptions, common_options.ProcessOptions, common_options.IntervalOptions
):
    """Options of `reconcile`."""


def run_reconcile(options: ReconcileOptions) -> None:
    """Release the CPU lists of ended tasks, and print them.

    A task has ended when its wrapper and all processes that it started have ended. Tasks that may run on other CPUs
    than allocated are reported, and not changed. An interrupted reconfiguration is rolled back if this command runs as
    root with the host's process ids. The report is printed after the state is written.

    \b
    Examples:
      nodewise cpu reconcile --conf-dir /etc/cmk
      nodewise cpu reconcile --interval 5 --publish --namespace cmk

    \b
    Exit codes:
      0  done; the report says what was freed
      1  the state could not be read or written
      2  the command line or a setting is invalid
    """
    common_options.start_cmk_logging(repeats=options.interval > 0)
    proc = common_options.host_proc_path(options)
    store = common_options.open_allocation_store(options)
    known: KnownProcesses | None = None
    log = CollectionLog()

    def once() -> None:
        nonlocal known
        collection = task_garbage_collection.collect_garbage(
            store, proc, known, common_options.sleep_before_store_retry
        )
        known = collection.known
        if intent := collection.stored.intent:
            about = {"pid": intent.by.pid, "since": intent.since}
            try:
                if execution.recover(store, proc, known=known):
                    logs.emit("cpu_intent_recovered", **about)
            except NodewiseError as error:  # without permission
                logs.emit("cpu_intent_left", **about, why=str(error))
        log.log(collection)
        common_options.print_json(collection.as_report())
        if options.publish:
            common_options.publish_report(
                options, report_custom_resources.RECONCILE_REPORT, collection.as_report()
            )

    common_options.run_at_interval(once, options.interval)


reconcile_command = common_options.create_click_command("reconcile", run_reconcile, ReconcileOptions)


@dataclass(frozen=True, kw_only=True)
class NodeReportOptions(
    common_options.StoreOptions, common_options.MachineOptions, common_options.IntervalOptions
):
    """Options of `node-report`."""

    kubelet_dir: str = common_options.option(
        "Folder of the kubelet's checkpoints.", str(other_cpu_managers.DEFAULT_FOLDER), metavar="DIR"
    )


def run_node_report(options: NodeReportOptions) -> None:
    """Print a node's cores and pools, and problems with them.

    Nothing is locked. If the pools cannot be read, `checks` has the reason. The kubelet's own CPU manager is checked if
    its state file can be read, and so are other CPU managers (the DRA driver for CPUs, NRI resource policies, systemd)
    and cgroup partitions.

    \b
    Examples:
      nodewise cpu node-report --conf-dir /etc/cmk
      nodewise cpu node-report --interval 60 --publish --namespace cmk

    \b
    Exit codes:
      0  printed, whatever is wrong with the node
      1  the report could not be made or published
      2  the command line or a setting is invalid
    """
    common_options.start_cmk_logging(repeats=options.interval > 0)
    store = common_options.open_allocation_store(options)

    def read_managers(machine: PoolInputs) -> CpuManagers:
        try:
            allocations = store.read().allocations
        except NodewiseError:
            # the report has the reason
            return node_report.NO_MANAGERS
        root = other_cpu_managers.host_root(Path(options.sysfs))
        if not options.is_in_cluster:
            return other_cpu_managers.read_all(root, allocations, machine.topology)
        api = common_options.open_api_client(options)
        node = common_options.resolve_node_name(options, api)
        return other_cpu_managers.read_all(root, allocations, machine.topology, api, node)

    def once() -> None:
        node_machine = machine_features.read(Path(options.sysfs), common_options.fetch_node_labels(options))
        report = node_report.build_node_report(
            store, node_machine, Path(options.kubelet_dir), read_managers(node_machine)
        )
        common_options.print_json(report)
        if options.publish:
            common_options.publish_report(options, report_custom_resources.NODE_REPORT, report)

    common_options.run_at_interval(once, options.interval)


node_report_command = common_options.create_click_command("node-report", run_node_report, NodeReportOptions)


_RESPONSE_S: Final = 300.0  # the timeout for the agent to move all tasks of a node


@dataclass(frozen=True, kw_only=True)
class ReconfigureOptions(
    common_options.StoreOptions,
    common_options.MachineOptions,
    common_options.ProcessOptions,
    common_options.PoolCounts,
):
    """Options of `reconfigure`."""

    check: bool = flag("Only check whether it is possible.")
    agent: str = option("The node agent's socket.", cmk_names.DEFAULT_SOCKET, metavar="PATH")
    direct: bool = flag("Reconfigure without the node agent.")


def run_reconfigure(options: ReconfigureOptions) -> None:
    """Give this node other pools while its tasks run.

    Tasks whose CPU list survives are not touched. The others are moved to free lists of their pool, on the same socket
    if possible, with every thread of all their processes. If anything fails, all moves are undone. Nothing is allocated
    meanwhile. The node agent does this if there is one; otherwise this command does, which needs root and the host's
    process ids.

    \b
    Examples:
      nodewise cpu reconfigure --num-exclusive-cores 6 --check
      nodewise cpu reconfigure --conf-dir /etc/cmk --num-exclusive-cores 2

    \b
    Exit codes:
      0  the node has these pools; with --check, it can
      1  it cannot be done, or failed; all is as it was
      2  the command line or a setting is invalid
    """
    common_options.start_cmk_logging()
    request = ReconfigureRequest(options.pools, options.check)
    agent = Path(options.agent)
    uses_agent = not options.direct and not options.conf_dir and agent.exists()
    moves = _reconfigure_by_agent(agent, request) if uses_agent else None
    if moves is None:
        proc = common_options.host_proc_path(options)
        store = common_options.open_allocation_store(options)
        if options.is_in_cluster:
            api_server.check_resource_support(
                api_server.fetch_features(common_options.open_api_client(options))
            )
        node_machine = machine_features.read(Path(options.sysfs), common_options.fetch_node_labels(options))
        plan = node_machine.plan(request.pools)
        machine_features.log_pool_plan(node_machine, plan)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        reconfiguration = execution.reconfigure(store, plan.pools, proc, only_check=request.only_check)
        if options.is_in_cluster and not request.only_check:
            api = common_options.open_api_client(options)
            exclusive_core_advertisement.advertise(
                api,
                common_options.resolve_node_name(options, api),
                exclusive_core_advertisement.count_resources_to_advertise(reconfiguration.allocations),
                taint=False,
            )
        moves = reconfiguration.moves
    ranges = cpu_set_formats.format_cpu_ranges
    values = [{"pid": move.task.pid, "from": ranges(move.before), "to": ranges(move.after)} for move in moves]
    common_options.print_json({"moves": values, "done": not options.check})


def _reconfigure_by_agent(path: Path, request: ReconfigureRequest) -> Sequence[Move] | None:
    """The moves that the agent made; None if no agent listens. Unavailable if it does not respond."""
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(_RESPONSE_S)
        try:
            connected.connect(str(path))
        except ConnectionRefusedError:
            terminal_output.print_message(f"no node agent listens at {path}: reconfiguring without it")
            return None
        except OSError as error:
            raise _no_agent_response_error(path, str(error)) from error
        try:
            connected.sendall(agent_messages.encode_reconfigure_request(request))
            with connected.makefile("rb") as answer:
                line = answer.readline()
        except OSError as error:
            raise _no_agent_response_error(path, str(error)) from error
    if not line:
        raise _no_agent_response_error(path, "closed the connection")
    return agent_messages.parse_reconfigure_response(agent_messages.decode_line(line))


def _no_agent_response_error(path: Path, why: str) -> Unavailable:
    return Unavailable.of("the node agent does not answer", str(path), why)


_INSTALL_DIR: Final = click.Option(["--install-dir"], hidden=True, expose_value=False)
"""An option of CMK without effect."""

reconfigure_command = common_options.create_click_command(
    "reconfigure", run_reconfigure, ReconfigureOptions, _INSTALL_DIR
)


def run_reaffinitize() -> None:
    """Do nothing: `reconfigure` moves all threads of all tasks itself.

    CMK ran this command in every container, so that each container moved its own first processes. It is kept for
    scripts that call it.

    \b
    Examples:
      nodewise cpu reaffinitize --node-name node1

    \b
    Exit codes:
      0  nothing was done
    """
    terminal_output.print_message(
        "nothing to do: `nodewise cpu reconfigure`, or the node agent, moves all processes of a node"
    )


reaffinitize_command = click.Command(
    "reaffinitize",
    callback=run_reaffinitize,
    help=run_reaffinitize.__doc__,
    short_help="Do nothing: reconfigure moves all processes.",
    params=[
        click.Option([option], hidden=True, expose_value=False)
        for option in ("--node-name", "--namespace", "--conf-dir", "--kubeconfig")
    ],
)
