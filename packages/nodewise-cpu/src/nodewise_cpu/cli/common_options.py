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
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from nodewise.base.clock import format_duration
from nodewise.base.errors import BadSettings, Conflict, Refused, Unavailable, shown
from nodewise.cli import options_from_settings as cli_options
from nodewise.cli.options_from_settings import warn_of_unknown_variables
from nodewise.cli.parameter_types import Duration
from nodewise.kube.kubeconfig import ACCOUNT, KubeOptions
from nodewise.kube.resource_kinds import PODS
from nodewise.observe import logs
from nodewise.server.options import AdminOptions
from nodewise_cpu import cmk_names, topology
from nodewise_cpu.allocation_store import AllocationStore
from nodewise_cpu.cluster import report_custom_resources
from nodewise_cpu.cluster.api_server import ApiClient
from nodewise_cpu.cluster.blocking_client import BlockingApiClient
from nodewise_cpu.configmap_store import ConfigMapStore
from nodewise_cpu.directory_store import DirectoryStore
from nodewise_cpu.node import machine_features
from nodewise_cpu.node.machine_features import NO_LABELS, fetch_labels
from nodewise_cpu.pool_planning import PoolOptions
from nodewise_cpu.topology import Topology
from nodewise_cpu.workload import agentless_allocator

T = TypeVar("T")


def option(text: str, default: Any = "", *flags: str, **settings: Any) -> Any:
    """A field of a dataclass that is an option with this help text; its flag has the name of the field by default.

    `settings` are those of `click.Option`. A default other than empty or False is shown.
    """
    if default is not None:
        settings["default"] = default
    if default:
        settings["show_default"] = True
    return field(metadata={"flags": flags, "help": text, **settings})


def flag(text: str) -> Any:
    """A field that is a flag with this help text."""
    return option(text, default=False, is_flag=True)


def choice(text: str, *values: str) -> Any:
    """A field that is an option with one of these values, by default the first."""
    return option(text, values[0], type=click.Choice(values))


def output_choice(*formats: str) -> Any:
    """The field of the option `--output` with these formats, by default the first."""
    return option("Output format.", formats[0], "-o", "--output", type=click.Choice(formats))


def terminal_output_choice() -> Any:
    """The field of the option `--output` with a default that depends on the terminal."""
    text = "Output format. Default: a table on a terminal, else JSON."
    return option(text, None, "-o", "--output", type=click.Choice(["json", "table"]))


def timeout(text: str, seconds: float) -> Any:
    """The field of the option `--timeout`, in seconds."""
    kind = Duration(has_default_unit=True, is_positive=True)
    return option(text, format_duration(seconds), "--timeout", "timeout_s", type=kind, metavar="DURATION")


def namespace_option(text: str = "Namespace of the ConfigMaps of nodes.") -> Any:
    """The field of the option `--namespace`."""
    return option(text, "default", metavar="NAMESPACE")


def install_dir_option(text: str) -> Any:
    """The field of the option `--install-dir`."""
    return option(text, cmk_names.DEFAULT_INSTALL_DIR, metavar="DIR")


@dataclass(frozen=True, kw_only=True)
class ApiServerOptions:
    """Options of a command that uses the API server."""

    kubeconfig: str = option(
        "A kubeconfig file. Default: the pod's service account, else that of kubectl.",
        envvar="NODEWISE_KUBECONFIG", show_envvar=True, metavar="FILE",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class NodeOptions(ApiServerOptions):
    """Options that select a node, and the namespace of its objects."""

    namespace: str = namespace_option()
    node_name: str = option(
        "The node. Default: the node of this pod.",
        envvar=cmk_names.NODE_NAME, show_envvar=True, metavar="NODE",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StoreOptions(NodeOptions):
    """Options that select a node's store."""

    conf_dir: str = option("Store the state in this directory instead of a ConfigMap.", metavar="DIR")

    @property
    def is_in_cluster(self) -> bool:
        """False for a directory without a cluster."""
        return not self.conf_dir or bool(self.kubeconfig)


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """The option for the folder that holds the machine's `sys` and `proc`."""

    sysfs: str = option(
        "Folder with the machine's `sys` and `proc`.", "/",
        envvar=cmk_names.SYSFS, show_envvar=True, metavar="DIR",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ProcessOptions:
    """The option for the host's `/proc`."""

    proc_fs: str = option(
        "The host's /proc. Default: /proc, outside of containers.",
        envvar=cmk_names.PROC_FS, show_envvar=True, metavar="DIR",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PoolModes:
    """Options for the choice of the cores of pools."""

    exclusive_mode: str = option(
        "Choose cores one socket after the other, or of each socket in turn.",
        "packed",
        metavar="packed|spread",
    )
    shared_mode: str = option("The same for shared.", "packed", metavar="packed|spread")
    excl_non_isolcpus: str = option(
        "Cores outside the isolated ones that are exclusive as well; -1: none.", "-1", metavar="LIST"
    )
    exclusive_kind: str = option(
        "Kind of the exclusive cores on a machine with several kinds, such as performance. Default: any.",
        metavar="KIND",
    )

    def pool_options(self, exclusive: int, shared: int) -> PoolOptions:
        """The options with these numbers of cores."""
        modes = (self.exclusive_mode, self.shared_mode, self.excl_non_isolcpus, self.exclusive_kind)
        return PoolOptions(exclusive, shared, *modes)


@dataclass(frozen=True, kw_only=True)
class PoolCounts(PoolModes):
    """Options for the sizes of pools."""

    num_exclusive_cores: int = option(
        "Cores of the pool exclusive.", PoolOptions().exclusive, type=int, metavar="N"
    )
    num_shared_cores: int = option("Cores of the pool shared.", PoolOptions().shared, type=int, metavar="N")

    @property
    def pools(self) -> PoolOptions:
        return self.pool_options(self.num_exclusive_cores, self.num_shared_cores)


class _Interval(Duration):
    """A plain number of seconds must be whole, as in CMK."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if str(value).strip()[-1:].isdigit():
            return float(click.INT.convert(value, param, ctx))
        return super().convert(value, param, ctx)


@dataclass(frozen=True, kw_only=True)
class IntervalOptions:
    """Options of a command that may run at an interval."""

    interval: float = option(
        "Repeat at this interval, such as 5m; 0: run once. A plain number means seconds.", 0,
        type=_Interval(has_default_unit=True), show_default=True, metavar="DURATION",
    )  # fmt: skip
    publish: bool = flag("Store the report in the API server as well.")


def create_click_command(
    name: str, run: Callable[[T], None], options: type[T], *hidden: click.Parameter
) -> click.Command:
    """A command that calls `run`, whose docstring is the help, with its typed options.

    Each field of the dataclass `options` is a parameter. A field `admin` takes those of the admin port.
    """
    own = fields(options)  # type: ignore[arg-type]
    parameters: list[click.Parameter] = []
    for item in own:
        if item.name == "admin":
            parameters += cli_options.click_parameters(AdminOptions, has_file=False)
        elif item.metadata.get("argument"):
            parameters.append(click.Argument([item.name], metavar=item.metadata["argument"]))
        else:
            settings = dict(item.metadata)
            flags = settings.pop("flags") or (f"--{item.name.replace('_', '-')}",)
            parameters.append(click.Option(flags, **settings))

    def callback(**values: Any) -> None:
        warn_of_unknown_variables(click.get_current_context())
        typed = {item.name: values[item.name] for item in own if item.name in values}
        if any(item.name == "admin" for item in own):
            typed["admin"] = cli_options.build_group(AdminOptions, values)
        run(options(**typed))

    return click.Command(name, callback=callback, help=run.__doc__, params=[*parameters, *hidden])


_LEVELS: Final[Mapping[str, str]] = {
    "critical": "error", "error": "error", "warning": "warning", "info": "info", "debug": "debug",
}  # fmt: skip
_API_CLIENT_KEY: Final = "nodewise_cpu.cli.api_client"  # the key of the client in `click.Context.meta`


def start_cmk_logging(*, repeats: bool = False) -> None:
    """Log at the level of `CMK_LOG_LEVEL`, in any case. An unknown level is logged, and means info.

    A command that serves or `repeats` writes log lines with times, another one messages.
    """
    word = os.environ.get(cmk_names.LOG_LEVEL, "").strip() or "info"
    if word.lower() not in _LEVELS:
        logs.emit_later("variable_ignored", variable=cmk_names.LOG_LEVEL, seen=word)
    logs.configure(_LEVELS.get(word.lower(), "info"), "text" if repeats else "messages")


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
    text, seconds = environ.get(cmk_names.LOCK_TIMEOUT, "30"), -1.0
    with suppress(ValueError):
        seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise BadSettings.of("settings", cmk_names.LOCK_TIMEOUT, shown(text), "seconds, such as 30")
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
        raise BadSettings.of("unknown node", "", "no option names it, and this is no pod", remedy=remedy)
    try:
        node = client.get(PODS.path(space.read_text().strip(), pod))
    except Refused as error:
        raise BadSettings.of("unknown node", f"pod {pod}", str(error), remedy=remedy) from error
    name = node.get("spec", {}).get("nodeName", "")
    if not name:
        raise BadSettings.of("unknown node", f"pod {pod}", "on no node", remedy=remedy)
    return str(name)


def host_proc_path(options: ProcessOptions) -> Path:
    """The host's `/proc`. BadSettings in a container without the option: its own `/proc` has other process ids."""
    return agentless_allocator.find_host_proc(options.proc_fs)


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
        raise Unavailable.of("cannot print", "standard output", str(error)) from error


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
