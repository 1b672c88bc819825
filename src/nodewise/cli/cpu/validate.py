"""`nodewise cpu validate`: whether a node is as the CPU manager needs it."""

import os
import sys
from pathlib import Path
from typing import Any, Final

import click

from nodewise.cli import exit_codes, tables
from nodewise.cli.cpu import common_options
from nodewise.cli.cpu.common_options import Given
from nodewise.cpu import procfs
from nodewise.cpu.api_client import ApiClient
from nodewise.cpu.cluster import api_versions, removal, validation
from nodewise.cpu.cluster.dry_run import Check, ValidationTarget
from nodewise.cpu.names import DEFAULT_INSTALL_DIR
from nodewise.errors import NodewiseError

_WORDS: Final = {True: "ok", False: "WRONG", None: "-"}


def run(*, name: str, output: str | None, no_taint: bool, pod_namespace: str, **given: Any) -> None:
    """Look whether NODE is as it has to be for pods to get cores of their own, and say what to do where it is not.

    Its label, taint, pools, resources, agent, tasks and report; the webhook, by a pod that is tried and not made; and
    the program, where this runs on the node. Nothing is changed.

    \b
    Examples:
      nodewise cpu validate node1 --namespace cmk-namespace
      nodewise cpu validate node1 -o json

    \b
    Exit codes:
      0  all is well
      1  the node cannot be looked at
      2  the command line or a setting is wrong
      3  something is wrong
    """
    common_options.start_logs()
    place = {**given, "node_name": name}
    requests = common_options.requests(place)
    wanted = ValidationTarget(name, given["namespace"], not no_taint, pod_namespace)
    found = [
        *validation.validate(requests, common_options.store(place), wanted, api_versions.fetch(requests))
    ]
    if len(found) > 1:
        found.append(_program(requests, name, given))
    is_well = all(check.ok is not False for check in found)
    if output == "json" or (output is None and not sys.stdout.isatty()):
        common_options.print_json(
            {"node": name, "ok": is_well, "checks": [check.as_dict() for check in found]}
        )
    else:
        rows = [(check.name, _WORDS[check.ok], check.seen, check.remedy or "-") for check in found]
        tables.show(*tables.without("WHAT TO DO", ["CHECK", "", "SEEN", "WHAT TO DO"], rows))
    click.get_current_context().exit(exit_codes.DONE if is_well else exit_codes.NO)


def _program(requests: ApiClient, name: str, given: Given) -> Check:
    """Whether the program is installed, if this is the node."""
    file = Path(given["install_dir"]) / "cmk"
    try:
        is_here = removal.boot_of(requests, name) == procfs.read_boot(Path(given["proc_fs"] or "/proc"))
    except NodewiseError:
        is_here = False
    if not is_here:
        return Check("program", ok=None, seen=f"{file} not looked for: this is not node {name}")
    is_there = file.is_file() and os.access(file, os.X_OK)
    remedy = "" if is_there else f"nodewise cpu install --install-dir {given['install_dir']}, on the node"
    return Check("program", is_there, f"{file}" if is_there else f"no program {file}", remedy)


command = click.Command(
    "validate",
    callback=run,
    help=run.__doc__,
    short_help="Whether a node is as the CPU manager needs it.",
    params=[
        click.Argument(["name"], metavar="NODE"),
        *common_options.options("namespace", "kubeconfig", "conf_dir", "proc_fs", "output"),
        click.Option(["--no-taint"], is_flag=True, help="The node needs no taint."),
        click.Option(
            ["--pod-namespace"], default="default", show_default=True, metavar="NAMESPACE",
            help="Where the pod is tried.",
        ),
        click.Option(
            ["--install-dir"], default=DEFAULT_INSTALL_DIR, show_default=True, metavar="DIR",
            help="Where the program is on the node.",
        ),
    ],
)  # fmt: skip
