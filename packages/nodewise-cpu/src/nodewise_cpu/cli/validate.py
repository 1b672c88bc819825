"""`nodewise cpu validate`: checks whether a node is ready for the CPU manager."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from nodewise.base.errors import NodewiseError
from nodewise.cli import tables, terminal_output
from nodewise_cpu import procfs
from nodewise_cpu.cli import common_options
from nodewise_cpu.cli.common_options import StoreOptions
from nodewise_cpu.cluster import api_server, cpu_manager_removal, node_validation
from nodewise_cpu.cluster.api_server import ApiClient
from nodewise_cpu.cluster.node_validation import ValidationCheck, ValidationTarget
from nodewise_cpu.cmk_names import DEFAULT_INSTALL_DIR

_WORDS: Final = {True: "ok", False: "WRONG", None: "-"}


@dataclass(frozen=True, kw_only=True)
class ValidateOptions(common_options.ApiServerOptions, common_options.ProcessOptions):
    """Options of `validate`."""

    name: str
    namespace: str
    conf_dir: str
    output: str | None
    no_taint: bool
    pod_namespace: str
    install_dir: str


def run(options: ValidateOptions) -> None:
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
            {"node": name, "ok": is_well, "checks": [check.as_dict() for check in checks]}
        )
    else:
        rows = [(check.name, _WORDS[check.ok], check.seen, check.remedy or "-") for check in checks]
        tables.print_table(
            *tables.drop_empty_columns("WHAT TO DO", ["CHECK", "", "SEEN", "WHAT TO DO"], rows)
        )
    click.get_current_context().exit(terminal_output.DONE if is_well else terminal_output.NO)


def _check_installed_program(api: ApiClient, name: str, options: ValidateOptions) -> ValidationCheck:
    """Whether the program is installed, if this is the node."""
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


command = common_options.create_click_command(
    "validate",
    run,
    ValidateOptions,
    "Check whether a node is ready for pods.",
    [
        click.Argument(["name"], metavar="NODE"),
        *common_options.click_parameters("namespace", "kubeconfig", "conf_dir", "proc_fs", "output"),
        click.Option(["--no-taint"], is_flag=True, help="Do not expect a taint."),
        click.Option(
            ["--pod-namespace"], default="default", show_default=True, metavar="NAMESPACE",
            help="Namespace of the dry run's pod.",
        ),
        click.Option(
            ["--install-dir"], default=DEFAULT_INSTALL_DIR, show_default=True, metavar="DIR",
            help="Folder of the program on the node.",
        ),
    ],
)  # fmt: skip
