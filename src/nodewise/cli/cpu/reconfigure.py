"""`nodewise cpu reconfigure`: other pools for a node, under tasks that run."""

import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from nodewise.cli import terminal
from nodewise.cli.cpu import common_options
from nodewise.cli.cpu.common_options import Given
from nodewise.cpu import agent_messages, cpulist, names
from nodewise.cpu.agent_messages import ReconfigureRequest
from nodewise.cpu.cluster import api_versions, node_advertisement
from nodewise.cpu.node import machine
from nodewise.cpu.reconfiguration import execution
from nodewise.cpu.reconfiguration_plan import Move
from nodewise.errors import Problem, Unavailable

_PATIENCE_S: Final = 300.0
"""For the agent to move all tasks of a node."""


def run(*, check: bool, agent: str, direct: bool, **given: Any) -> None:
    """Give this node other pools, under tasks that go on running.

    Tasks whose CPU list survives are not touched; the others move to free lists of their pool, with every thread of
    all that they started, on the same socket where they can. If something fails all is as it was. Nobody gets a core
    meanwhile. The node agent does it where there is one; else we do, which takes root and the host's process ids.

    \b
    Examples:
      nodewise cpu reconfigure --num-exclusive-cores 6 --check
      nodewise cpu reconfigure --conf-dir /etc/cmk --num-exclusive-cores 2

    \b
    Exit codes:
      0  the node has these pools; with --check, it can
      1  it cannot be done, or failed; all is as it was
      2  the command line or a setting is wrong
    """
    common_options.start_logs()
    request = ReconfigureRequest(common_options.ask(given), check)
    is_ours = direct or given["conf_dir"] or not Path(agent).exists()
    moves = None if is_ours else _asked(Path(agent), request)
    if moves is None:
        moves = _own(request, given)
    told = [
        {
            "pid": move.task.pid,
            "from": cpulist.format_ranges(move.before),
            "to": cpulist.format_ranges(move.after),
        }
        for move in moves
    ]
    common_options.print_json({"moves": told, "done": not check})


def _asked(path: Path, request: ReconfigureRequest) -> Sequence[Move] | None:
    """What the agent did; None if nobody listens there any more. Unavailable if it does not answer."""
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(_PATIENCE_S)
        try:
            connected.connect(str(path))
        except ConnectionRefusedError:
            terminal.tell(f"nobody listens at {path}: doing it without the node agent")
            return None
        except OSError as error:
            raise _silent(path, str(error)) from error
        try:
            connected.sendall(agent_messages.encode_reconfigure_request(request))
            with connected.makefile("rb") as answer:
                line = answer.readline()
        except OSError as error:
            raise _silent(path, str(error)) from error
    if not line:
        raise _silent(path, "hung up")
    return agent_messages.parse_reconfigure_response(agent_messages.decode(line))


def _silent(path: Path, why: str) -> Unavailable:
    return Unavailable("the node agent does not answer", [Problem(str(path), why, "")])


def _own(request: ReconfigureRequest, given: Given) -> Sequence[Move]:
    """Without an agent. A signal that ends us undoes what was done."""
    proc = common_options.proc(given)
    store = common_options.store(given)
    is_in_cluster = not given["conf_dir"] or bool(given["kubeconfig"])
    if is_in_cluster:
        api_versions.check(api_versions.fetch(common_options.requests(given)))
    seen = machine.read(Path(given["sysfs"]), common_options.labels(given))
    plan = seen.plan(request.pools)
    machine.log_plan(seen, plan)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    found = execution.reconfigure(store, plan.pools, proc, only_check=request.only_check)
    if is_in_cluster and not request.only_check:
        asked = common_options.requests(given)
        node_advertisement.advertise(
            asked,
            common_options.node(given, asked),
            node_advertisement.counts(found.allocations),
            taint=False,
        )
    return found.moves


command = click.Command(
    "reconfigure",
    callback=run,
    help=run.__doc__,
    short_help="Give a node other pools, under tasks that run.",
    params=[
        click.Option(["--check"], is_flag=True, help="Only look whether it can be done."),
        *common_options.options(*common_options.POOLS, *common_options.PLACE, "sysfs", "proc_fs"),
        click.Option(
            ["--agent"], default=names.DEFAULT_SOCKET, show_default=True, metavar="PATH",
            help="The node agent's socket.",
        ),
        click.Option(["--direct"], is_flag=True, help="Do it without the node agent."),
        click.Option(["--install-dir"], hidden=True, expose_value=False),
    ],
)  # fmt: skip
