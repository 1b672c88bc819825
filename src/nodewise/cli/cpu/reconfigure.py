"""`nodewise cpu reconfigure`: other pools for a node, under tasks that run."""

import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from nodewise.cli import terminal
from nodewise.cli.cpu import shared
from nodewise.cli.cpu.shared import Given
from nodewise.cpu import cpulist, messages, names
from nodewise.cpu.cluster import advertise, versions
from nodewise.cpu.messages import ReconfigureRequest
from nodewise.cpu.move import moving
from nodewise.cpu.node import machine
from nodewise.cpu.reconfigure import Move
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
    shared.start_logs()
    request = ReconfigureRequest(shared.ask(given), check)
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
    shared.print_json({"moves": told, "done": not check})


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
            connected.sendall(messages.reconfigure(request))
            with connected.makefile("rb") as answer:
                line = answer.readline()
        except OSError as error:
            raise _silent(path, str(error)) from error
    if not line:
        raise _silent(path, "hung up")
    return messages.parse_reconfigured(messages.decode(line))


def _silent(path: Path, why: str) -> Unavailable:
    return Unavailable("the node agent does not answer", [Problem(str(path), why, "")])


def _own(request: ReconfigureRequest, given: Given) -> Sequence[Move]:
    """Without an agent. A signal that ends us undoes what was done."""
    proc = shared.proc(given)
    book = shared.book(given)
    is_in_cluster = not given["conf_dir"] or bool(given["kubeconfig"])
    if is_in_cluster:
        versions.check(versions.fetch(shared.requests(given)))
    seen = machine.read(Path(given["sysfs"]), shared.labels(given))
    plan = seen.plan(request.ask)
    machine.tell(seen, plan)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    found = moving.reconfigure(book, plan.pools, proc, only_check=request.only_check)
    if is_in_cluster and not request.only_check:
        asked = shared.requests(given)
        advertise.advertise(asked, shared.node(given, asked), advertise.counts(found.state), taint=False)
    return found.moves


command = click.Command(
    "reconfigure",
    callback=run,
    help=run.__doc__,
    short_help="Give a node other pools, under tasks that run.",
    params=[
        click.Option(["--check"], is_flag=True, help="Only look whether it can be done."),
        *shared.options(*shared.POOLS, *shared.PLACE, "sysfs", "proc_fs"),
        click.Option(
            ["--agent"], default=names.DEFAULT_SOCKET, show_default=True, metavar="PATH",
            help="The node agent's socket.",
        ),
        click.Option(["--direct"], is_flag=True, help="Do it without the node agent."),
        click.Option(["--install-dir"], hidden=True, expose_value=False),
    ],
)  # fmt: skip
