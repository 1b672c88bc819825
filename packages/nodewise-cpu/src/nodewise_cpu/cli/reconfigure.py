"""`nodewise cpu reconfigure`: gives a node other pools while its tasks run."""

import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from nodewise.base.errors import Problem, Unavailable
from nodewise.cli import terminal_output
from nodewise_cpu import agent_messages, cmk_names, cpu_set_formats
from nodewise_cpu.agent_messages import ReconfigureRequest
from nodewise_cpu.cli import common_options
from nodewise_cpu.cluster import api_server, exclusive_core_advertisement
from nodewise_cpu.node import machine_features
from nodewise_cpu.reconfiguration import execution
from nodewise_cpu.reconfiguration_plan import Move

_RESPONSE_S: Final = 300.0
"""The timeout for the agent to move all tasks of a node."""


@dataclass(frozen=True, kw_only=True)
class ReconfigureOptions(
    common_options.StoreOptions,
    common_options.MachineOptions,
    common_options.ProcessOptions,
    common_options.PoolCounts,
):
    """Options of `reconfigure`."""

    check: bool
    agent: str
    direct: bool


def run(options: ReconfigureOptions) -> None:
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
        moves = _reconfigure_without_agent(request, options)
    values = [
        {
            "pid": move.task.pid,
            "from": cpu_set_formats.format_cpu_ranges(move.before),
            "to": cpu_set_formats.format_cpu_ranges(move.after),
        }
        for move in moves
    ]
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
    return Unavailable("the node agent does not answer", [Problem(str(path), why, "")])


def _reconfigure_without_agent(request: ReconfigureRequest, options: ReconfigureOptions) -> Sequence[Move]:
    """Reconfigure without an agent. A terminating signal rolls back."""
    proc = common_options.host_proc_path(options)
    store = common_options.open_allocation_store(options)
    if options.is_in_cluster:
        api_server.check_resource_support(api_server.fetch_features(common_options.open_api_client(options)))
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
    return reconfiguration.moves


command = common_options.create_click_command(
    "reconfigure",
    run,
    ReconfigureOptions,
    "Give a node other pools while tasks run.",
    [
        click.Option(["--check"], is_flag=True, help="Only check whether it is possible."),
        *common_options.click_parameters(*common_options.POOLS, *common_options.STORE, "sysfs", "proc_fs"),
        click.Option(
            ["--agent"], default=cmk_names.DEFAULT_SOCKET, show_default=True, metavar="PATH",
            help="The node agent's socket.",
        ),
        click.Option(["--direct"], is_flag=True, help="Reconfigure without the node agent."),
        click.Option(["--install-dir"], hidden=True, expose_value=False),
    ],
)  # fmt: skip
