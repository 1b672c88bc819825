"""Options of the commands that make pods on nodes, and the display of their progress."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import click

from nodewise.base.clock import format_duration
from nodewise.cli import terminal_output
from nodewise.cli.options_from_settings import output_option
from nodewise.cli.setting_declarations import Duration
from nodewise.cli.terminal_output import Progress
from nodewise_cpu.cli import common_options
from nodewise_cpu.cluster import node_setup_objects
from nodewise_cpu.cluster.node_setup_objects import SetupOptions
from nodewise_cpu.cmk_names import DEFAULT_INSTALL_DIR
from nodewise_cpu.pool_planning import PoolOptions

_COUNTS: Final = ("num_exclusive_cores", "num_shared_cores")


@dataclass(frozen=True, kw_only=True)
class SetupParameters(common_options.ApiServerOptions):
    """Options of a command that makes pods on nodes, as they are on the command line."""

    cmk_img: str
    cmk_img_pol: str
    saname: str
    install_dir: str
    num_exclusive_cores: str
    num_shared_cores: str
    exclusive_mode: str
    shared_mode: str
    excl_non_isolcpus: str
    exclusive_kind: str
    namespace: str
    timeout_s: float
    output: str


def click_parameters(timeout_s: float) -> list[click.Parameter]:
    """The parameters of `SetupParameters`."""
    own = SetupOptions()
    return [
        click.Option(["--cmk-img"], default=own.image, show_default=True, metavar="IMAGE", help="Image of the pods."),
        click.Option(
            ["--cmk-img-pol"], default=own.pull_policy, show_default=True,
            metavar="|".join(node_setup_objects.PULL_POLICIES), help="Pull policy of the image.",
        ),
        click.Option(
            ["--saname"], default=own.service_account, show_default=True, metavar="NAME",
            help="Service account of the pods.",
        ),
        click.Option(
            ["--install-dir"], default=DEFAULT_INSTALL_DIR, show_default=True, metavar="DIR",
            help="Folder of the program on nodes.",
        ),
        click.Option(
            ["--num-exclusive-cores"], default=str(PoolOptions().exclusive), show_default=True, metavar="N",
            help="Cores of the pool exclusive.",
        ),
        click.Option(
            ["--num-shared-cores"], default=str(PoolOptions().shared), show_default=True, metavar="N",
            help="Cores of the pool shared.",
        ),
        *common_options.click_parameters(*(name for name in common_options.POOLS if name not in _COUNTS)),
        *common_options.click_parameters("namespace", "kubeconfig"),
        click.Option(
            ["--timeout", "timeout_s"], type=Duration(has_default_unit=True, is_positive=True),
            default=format_duration(timeout_s), show_default=True, metavar="DURATION",
            help="Timeout for all nodes. A plain number means seconds.",
        ),
        output_option(["table", "json"]),
    ]  # fmt: skip


def build_setup_options(
    parameters: SetupParameters, *, pull_secret: str = "", taint: bool = True
) -> SetupOptions:
    """The options of the pods. BadSettings names all invalid ones."""
    parse = node_setup_objects.parse_core_count
    options = SetupOptions(
        PoolOptions(
            parse(parameters.num_exclusive_cores, "--num-exclusive-cores"),
            parse(parameters.num_shared_cores, "--num-shared-cores"),
            parameters.exclusive_mode,
            parameters.shared_mode,
            parameters.excl_non_isolcpus,
            parameters.exclusive_kind,
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
