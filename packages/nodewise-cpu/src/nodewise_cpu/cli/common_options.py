"""Options that several commands of the CPU manager share, and the store, node and machine that they select.

Also what these commands have in common: logging, JSON output, and repetition at an interval.
"""

import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from nodewise.base.errors import BadSettings, Conflict, Problem, Refused, Unavailable, shown
from nodewise.cli import options_from_settings as cli_options
from nodewise.cli.options_from_settings import warn_of_unknown_variables
from nodewise.cli.setting_declarations import Duration
from nodewise.kube.kubeconfig import ACCOUNT, KubeOptions
from nodewise.kube.resource_kinds import PODS
from nodewise.observe import logs
from nodewise.server.options import AdminOptions
from nodewise_cpu import cmk_names, topology
from nodewise_cpu.allocation_store import AllocationStore
from nodewise_cpu.cluster import report_custom_resources
from nodewise_cpu.cluster.api_server import ApiClient
from nodewise_cpu.cluster.blocking_client import BlockingApiClient
from nodewise_cpu.node import machine_features
from nodewise_cpu.node.machine_features import NO_LABELS, fetch_labels
from nodewise_cpu.pool_planning import PoolOptions
from nodewise_cpu.store.configmap import ConfigMapStore
from nodewise_cpu.store.directory import DirectoryStore
from nodewise_cpu.topology import Topology

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ApiServerOptions:
    """Options of a command that uses the API server."""

    kubeconfig: str


@dataclass(frozen=True, kw_only=True)
class NodeOptions(ApiServerOptions):
    """Options that select a node, and the namespace of its objects."""

    namespace: str
    node_name: str


@dataclass(frozen=True, kw_only=True)
class StoreOptions(NodeOptions):
    """Options that select a node's store."""

    conf_dir: str

    @property
    def is_in_cluster(self) -> bool:
        """False for a directory without a cluster."""
        return not self.conf_dir or bool(self.kubeconfig)


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """The option for the folder that holds the machine's `sys` and `proc`."""

    sysfs: str


@dataclass(frozen=True, kw_only=True)
class ProcessOptions:
    """The option for the host's `/proc`."""

    proc_fs: str


@dataclass(frozen=True, kw_only=True)
class PoolCounts:
    """Options for the sizes of pools."""

    num_exclusive_cores: int
    num_shared_cores: int
    exclusive_mode: str
    shared_mode: str
    excl_non_isolcpus: str
    exclusive_kind: str

    @property
    def pools(self) -> PoolOptions:
        return PoolOptions(
            self.num_exclusive_cores,
            self.num_shared_cores,
            self.exclusive_mode,
            self.shared_mode,
            self.excl_non_isolcpus,
            self.exclusive_kind,
        )


@dataclass(frozen=True, kw_only=True)
class IntervalOptions:
    """Options of a command that may run at an interval."""

    interval: float
    publish: bool


def create_click_command(
    name: str,
    run: Callable[[T], None],
    options: type[T],
    short_help: str,
    parameters: Sequence[click.Parameter],
) -> click.Command:
    """A command that calls `run`, whose docstring is the help, with its typed options.

    The dataclass `options` has a field for each parameter. A field `admin` takes those of the admin port.
    """

    def callback(**values: Any) -> None:
        warn_of_unknown_variables(click.get_current_context())
        own = {field.name: values[field.name] for field in fields(options) if field.name in values}  # type: ignore[arg-type]
        if any(field.name == "admin" for field in fields(options)):  # type: ignore[arg-type]
            own["admin"] = cli_options.build_group(AdminOptions, values)
        run(options(**own))

    return click.Command(
        name, callback=callback, help=run.__doc__, short_help=short_help, params=list(parameters)
    )


_LEVELS: Final[Mapping[str, str]] = {
    "critical": "error", "error": "error", "warning": "warning", "info": "info", "debug": "debug",
}  # fmt: skip
_API_CLIENT_KEY: Final = "nodewise_cpu.cli.api_client"
"""The key of the client in `click.Context.meta`."""
_INITIAL_PID_NAMESPACE: Final = "pid:[4026531836]"
"""The number of the initial namespace of process ids, and of no other (PROC_PID_INIT_INO)."""

_OPTIONS: Final[Mapping[str, Callable[[], click.Option]]] = {
    "namespace": lambda: click.Option(
        ["--namespace"], default="default", show_default=True, metavar="NAMESPACE",
        help="Namespace of the ConfigMaps of nodes."
    ),
    "node_name": lambda: click.Option(
        ["--node-name"], default="", envvar=cmk_names.NODE_NAME, show_envvar=True, metavar="NODE",
        help="The node. Default: the node of this pod.",
    ),
    "kubeconfig": lambda: click.Option(
        ["--kubeconfig"], default="", envvar="NODEWISE_KUBECONFIG", show_envvar=True, metavar="FILE",
        help="A kubeconfig file. Default: the pod's service account, else that of kubectl.",
    ),
    "conf_dir": lambda: click.Option(
        ["--conf-dir"], default="", metavar="DIR", help="Store the state in this directory instead of a ConfigMap."
    ),
    "sysfs": lambda: click.Option(
        ["--sysfs"], default="/", envvar=cmk_names.SYSFS, show_envvar=True, metavar="DIR", show_default=True,
        help="Folder with the machine's `sys` and `proc`.",
    ),
    "proc_fs": lambda: click.Option(
        ["--proc-fs"], default="", envvar=cmk_names.PROC_FS, show_envvar=True, metavar="DIR",
        help="The host's /proc. Default: /proc, outside of containers.",
    ),
    "num_exclusive_cores": lambda: click.Option(
        ["--num-exclusive-cores"], type=int, default=PoolOptions().exclusive, show_default=True, metavar="N",
        help="Cores of the pool exclusive.",
    ),
    "num_shared_cores": lambda: click.Option(
        ["--num-shared-cores"], type=int, default=PoolOptions().shared, show_default=True, metavar="N",
        help="Cores of the pool shared.",
    ),
    "exclusive_mode": lambda: click.Option(
        ["--exclusive-mode"], default="packed", show_default=True, metavar="packed|spread",
        help="Choose cores one socket after the other, or of each socket in turn.",
    ),
    "exclusive_kind": lambda: click.Option(
        ["--exclusive-kind"], default="", metavar="KIND",
        help="Kind of the exclusive cores on a machine with several kinds, such as performance. Default: any.",
    ),
    "shared_mode": lambda: click.Option(
        ["--shared-mode"], default="packed", show_default=True, metavar="packed|spread", help="The same for shared."
    ),
    "excl_non_isolcpus": lambda: click.Option(
        ["--excl-non-isolcpus"], default="-1", show_default=True, metavar="LIST",
        help="Cores outside the isolated ones that are exclusive as well; -1: none.",
    ),
    "output": lambda: click.Option(
        ["-o", "--output"], type=click.Choice(["json", "table"]), default=None,
        help="Output format. Default: a table on a terminal, else JSON.",
    ),
}  # fmt: skip

STORE: Final = ("namespace", "node_name", "kubeconfig", "conf_dir")
"""The parameters of `StoreOptions`."""
POOLS: Final = (
    "num_exclusive_cores",
    "num_shared_cores",
    "exclusive_mode",
    "shared_mode",
    "excl_non_isolcpus",
    "exclusive_kind",
)
"""The parameters of `PoolCounts`."""


def click_parameters(*names: str) -> list[click.Parameter]:
    """The parameters with these names."""
    return [_OPTIONS[name]() for name in names]


def start_cmk_logging() -> None:
    """Log at the level of `CMK_LOG_LEVEL`, in any case. An unknown level is logged, and means info."""
    word = os.environ.get(cmk_names.LOG_LEVEL, "").strip() or "info"
    if word.lower() not in _LEVELS:
        logs.emit_later("variable_ignored", variable=cmk_names.LOG_LEVEL, seen=word)
    logs.configure(_LEVELS.get(word.lower(), "info"))


def open_api_client(options: ApiServerOptions) -> BlockingApiClient:
    """A client of the API server of `--kubeconfig`, or of this pod: one connection per command."""
    context = click.get_current_context()
    opened = context.meta.get(_API_CLIENT_KEY)
    if opened is None:
        opened = BlockingApiClient(KubeOptions(kubeconfig=options.kubeconfig))
        context.meta[_API_CLIENT_KEY] = opened
        context.call_on_close(opened.close)
    assert isinstance(opened, BlockingApiClient)
    return opened


def open_allocation_store(options: StoreOptions) -> AllocationStore:
    """The node's store: the directory of `--conf-dir`, else the node's ConfigMap."""
    if options.conf_dir:
        return DirectoryStore(Path(options.conf_dir), lock_timeout_from_environment())
    client = open_api_client(options)
    return ConfigMapStore(client, options.namespace, resolve_node_name(options, client))


def publish_report(
    options: NodeOptions, kind: report_custom_resources.ReportKind, report: Mapping[str, Any]
) -> None:
    """Store a report of this node in the API server."""
    client = open_api_client(options)
    report_custom_resources.publish(
        client, kind, resolve_node_name(options, client), options.namespace, report
    )


def lock_timeout_from_environment(environ: Mapping[str, str] = os.environ) -> float:
    """How long to wait for another process that writes to the same directory (`CMK_LOCK_TIMEOUT`)."""
    text = environ.get(cmk_names.LOCK_TIMEOUT, "30")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise BadSettings("settings", [Problem(cmk_names.LOCK_TIMEOUT, shown(text), "seconds, such as 30")])
    return seconds


def resolve_node_name(
    options: NodeOptions, client: ApiClient, environ: Mapping[str, str] = os.environ, account: Path = ACCOUNT
) -> str:
    """The name of `--node-name`, else of this pod's node. BadSettings if neither is known."""
    if options.node_name:
        return options.node_name
    pod = environ.get("HOSTNAME") or socket.gethostname()
    space = account / "namespace"
    remedy = f"give --node-name, or {cmk_names.NODE_NAME} by the downward API (fieldPath: spec.nodeName)"
    if not environ.get("KUBERNETES_SERVICE_HOST") or not space.is_file():
        raise BadSettings(
            "unknown node", [Problem("", "no option names it, and this is no pod", "")], remedy=remedy
        )
    try:
        node = client.get(PODS.path(space.read_text().strip(), pod))
    except Refused as error:
        raise BadSettings("unknown node", [Problem(f"pod {pod}", str(error), "")], remedy=remedy) from error
    name = node.get("spec", {}).get("nodeName", "")
    if not name:
        raise BadSettings("unknown node", [Problem(f"pod {pod}", "on no node", "")], remedy=remedy)
    return str(name)


def host_proc_path(options: ProcessOptions) -> Path:
    """The host's `/proc`. BadSettings in a container without the option: its own `/proc` has other process ids."""
    if options.proc_fs:
        return Path(options.proc_fs)
    if _own_pid_namespace() != _INITIAL_PID_NAMESPACE:
        seen = "not set, and /proc is a container's own"
        problem = Problem(cmk_names.PROC_FS, seen, "where the host's /proc is mounted, such as /host/proc")
        raise BadSettings("cannot see the host's processes", [problem])
    return Path("/proc")


def _own_pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def read_machine(options: MachineOptions) -> Topology:
    """The machine's sockets, cores and CPUs. BadInput names the files that cannot be read."""
    return topology.parse(machine_features.read_sysfs_files(Path(options.sysfs)))


def fetch_node_labels(options: StoreOptions) -> Mapping[str, str]:
    """The node's labels, which name features of its processor; none without a cluster."""
    if not options.is_in_cluster:
        return NO_LABELS
    client = open_api_client(options)
    return fetch_labels(client, resolve_node_name(options, client))


def print_json(value: Any) -> None:
    """Print JSON in CMK's form: sorted keys, indented by two. Unavailable if it cannot be written."""
    try:
        click.echo(json.dumps(value, indent=2, sort_keys=True))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Unavailable("cannot print", [Problem("standard output", str(error), "")]) from error


class _Interval(Duration):
    """A plain number of seconds must be whole, as in CMK."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip()
        return (
            float(click.INT.convert(value, param, ctx))
            if text[-1:].isdigit()
            else super().convert(value, param, ctx)
        )


def interval_options() -> list[click.Parameter]:
    """`--interval` and `--publish`."""
    return [
        click.Option(
            ["--interval"], type=_Interval(has_default_unit=True), default=0, show_default=True, metavar="DURATION",
            help="Repeat at this interval, such as 5m; 0: run once. A plain number means seconds.",
        ),
        click.Option(["--publish"], is_flag=True, help="Store the report in the API server as well."),
    ]  # fmt: skip


def run_at_interval(operation: Callable[[], None], interval_s: float) -> None:
    """Run once, or until SIGTERM. At an interval a round that fails temporarily is followed by the next one."""
    if interval_s <= 0:
        operation()
        return
    stopped = threading.Event()
    # without a handler, signals do not end the first process of a container
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    while not stopped.is_set():
        try:
            operation()
        except (Unavailable, Conflict) as error:
            logs.emit("cpu_round_failed", error=str(error))
        logs.emit("cpu_waiting", seconds=interval_s)
        stopped.wait(interval_s)


def sleep_before_store_retry(attempt: int) -> None:
    """Wait before an attempt of `allocation_store.update`, with jitter."""
    time.sleep(random.uniform(0, min(1.0, 0.05 * attempt)))  # noqa: S311 - no secret
