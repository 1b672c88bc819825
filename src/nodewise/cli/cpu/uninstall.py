"""`nodewise cpu uninstall`: nothing of the CPU manager is left."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from nodewise.cli import tables, terminal
from nodewise.cli.cpu import rounds, shared
from nodewise.cli.cpu.shared import Given
from nodewise.cli.options import output_option
from nodewise.cpu import procfs
from nodewise.cpu.agent import doorway
from nodewise.cpu.cluster import removal, versions
from nodewise.cpu.cluster.applying import Patience
from nodewise.cpu.cluster.removal import Node, Step
from nodewise.cpu.cluster.versions import Dialect
from nodewise.cpu.confine import enforcing
from nodewise.cpu.install import installing
from nodewise.cpu.names import DEFAULT_INSTALL_DIR, DEFAULT_SOCKET
from nodewise.cpu.node import feature, sweeping
from nodewise.cpu.requests import Requests
from nodewise.errors import NodewiseError

TIMEOUT_S: Final = 120.0


def run(**given: Any) -> None:
    """Remove the CPU manager from a node: its pods, pools, reports, resources, taint, label and program.

    By default also what all nodes share: the webhook, and the node agent when no node has pools any more. --scope node
    leaves that to the others, --scope cluster removes nothing else. While anything runs in a pool nothing is removed:
    tasks are waited for, for ten seconds. It can be run again, and on several nodes at once. Run it on the node, in a
    pod with the host's /proc and the folder of the program; elsewhere every task that is written down counts as
    running, and the program stays.

    \b
    Examples:
      nodewise cpu uninstall --scope node
      nodewise cpu uninstall --scope cluster --crds

    \b
    Exit codes:
      0  removed, or not there
      1  something runs in a pool, or something could not be removed
      2  the command line or a setting is wrong
    """
    shared.start_logs()
    requests = shared.requests(given)
    dialect = versions.fetch(requests)
    steps: list[Step] = []
    try:
        if given["scope"] != "cluster":
            _leave_node(given, requests, dialect, steps.append)
        if given["scope"] != "node":
            _leave_cluster(given, requests, dialect, steps.append)
    finally:
        _show(steps, given["output"])


def _leave_node(given: Given, requests: Requests, dialect: Dialect, tell: Callable[[Step], None]) -> None:
    name = shared.node(given, requests)
    book = shared.book({**given, "node_name": name})
    proc = shared.proc(given)
    is_here = removal.boot_of(requests, name) in {"", procfs.read_boot(proc)}
    if not is_here:
        terminal.tell(f"not on node {name}: tasks that are over are not known as such")

    def sweep() -> None:
        sweeping.carry_out(book, proc, None, rounds.wait)

    node = Node(name, given["namespace"], book, sweep if is_here else None)
    removal.leave(requests, node, dialect, Patience(given["timeout_s"]), tell)
    program = f"program in {given['install_dir']}"
    if not is_here:
        tell(Step(program, f"not looked for: this is not node {name}"))
        return
    tell(Step(program, _word(was_there=installing.remove(Path(given["install_dir"])))))
    socket = Path(DEFAULT_SOCKET)
    tell(Step(f"files of the node agent in {socket.parent}", _cleared(socket)))
    file = feature.FOLDER / feature.FILE
    tell(Step(f"feature file {file}", _word(was_there=feature.write(feature.FOLDER, ()))))


def _cleared(socket: Path) -> str:
    try:
        return _word(was_there=doorway.clear(socket, enforcing.DEFAULT_MEMORY))
    except NodewiseError as error:
        return f"left: {error}"


def _word(*, was_there: bool) -> str:
    return "removed" if was_there else "not there"


def _leave_cluster(given: Given, requests: Requests, dialect: Dialect, tell: Callable[[Step], None]) -> None:
    namespace = given["namespace"]
    shared_objects = [
        *removal.webhook(namespace, dialect),
        *removal.agent(requests, namespace, dialect, tell),
        *(removal.definitions(dialect) if given["crds"] else ()),
    ]
    removal.leave_cluster(requests, namespace, shared_objects, dialect, Patience(given["timeout_s"]), tell)


def _show(steps: list[Step], output: str) -> None:
    if output == "json":
        click.echo(json.dumps({"steps": [step._asdict() for step in steps]}, indent=2, sort_keys=True))
    elif steps:
        tables.show(["OBJECT", "OUTCOME"], [tuple(step) for step in steps])
    sys.stdout.flush()


command = click.Command(
    "uninstall",
    callback=run,
    help=run.__doc__,
    short_help="Remove the CPU manager from a node, and from the cluster.",
    params=[
        click.Option(
            ["--scope"],
            type=click.Choice(["all", "node", "cluster"]),
            default="all",
            show_default=True,
            help="The node's part, what all nodes share, or both.",
        ),
        click.Option(
            ["--crds"], is_flag=True, help="With what all share: the kinds of reports, and all reports."
        ),
        click.Option(
            ["--install-dir"],
            default=DEFAULT_INSTALL_DIR,
            show_default=True,
            metavar="DIR",
            help="Folder that the program is in.",
        ),
        *shared.options(*shared.PLACE, "proc_fs"),
        click.Option(
            ["--timeout", "timeout_s"],
            type=click.FloatRange(min=0, min_open=True),
            default=TIMEOUT_S,
            show_default=True,
            metavar="SECONDS",
            help="How long to wait until pods are gone.",
        ),
        output_option(["table", "json"]),
    ],
)
