"""Options of the commands that make pods on nodes, and what is told of their work."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Final

import click

from nodewise.cli import terminal
from nodewise.cli.cpu import common_options
from nodewise.cli.cpu.common_options import Given
from nodewise.cli.options import output_option
from nodewise.cli.progress import Progress
from nodewise.cpu.cluster import setup_objects
from nodewise.cpu.cluster.setup_objects import SetupOptions
from nodewise.cpu.names import DEFAULT_INSTALL_DIR
from nodewise.cpu.pools import PoolOptions

_COUNTS: Final = ("num_exclusive_cores", "num_shared_cores")


def options(timeout_s: float) -> list[click.Parameter]:
    """Of the pods, the cluster, and how long to wait."""
    own = SetupOptions()
    return [
        click.Option(["--cmk-img"], default=own.image, show_default=True, metavar="IMAGE", help="Image of the pods."),
        click.Option(
            ["--cmk-img-pol"], default=own.pull_policy, show_default=True,
            metavar="|".join(setup_objects.PULL_POLICIES), help="When nodes pull it.",
        ),
        click.Option(
            ["--saname"], default=own.service_account, show_default=True, metavar="NAME",
            help="Service account of the pods.",
        ),
        click.Option(
            ["--install-dir"], default=DEFAULT_INSTALL_DIR, show_default=True, metavar="DIR",
            help="Folder of nodes that the program is in.",
        ),
        click.Option(
            ["--num-exclusive-cores"], default=str(PoolOptions().exclusive), show_default=True, metavar="N",
            help="Cores of the pool exclusive.",
        ),
        click.Option(
            ["--num-shared-cores"], default=str(PoolOptions().shared), show_default=True, metavar="N",
            help="Cores of the pool shared.",
        ),
        *common_options.options(*(name for name in common_options.POOLS if name not in _COUNTS)),
        *common_options.options("namespace", "kubeconfig"),
        click.Option(
            ["--timeout", "timeout_s"], type=click.FloatRange(min=0, min_open=True), default=timeout_s,
            show_default=True, metavar="SECONDS", help="How long to wait for nodes.",
        ),
        output_option(["table", "json"]),
    ]  # fmt: skip


def wish(given: Given) -> SetupOptions:
    """What pods are made from; BadSettings names all options that cannot be used."""
    counts = {name: setup_objects.parse_count(given[name], "--" + name.replace("_", "-")) for name in _COUNTS}
    wished = SetupOptions(
        common_options.ask({**given, **counts}),
        given["cmk_img"],
        given["cmk_img_pol"],
        given.get("pull_secret") or "",
        given["saname"],
        given["namespace"],
        given["install_dir"],
        taint=not given.get("no_taint"),
    )
    setup_objects.check(wished)
    return wished


@contextlib.contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """What is being done: one line that changes on a terminal, else a line each time that it is something else."""
    if sys.stderr.isatty():
        with Progress() as progress:
            yield progress.say
        return
    last = [""]

    def tell(doing: str) -> None:
        if doing != last[0]:
            terminal.tell(doing)
        last[0] = doing

    yield tell
