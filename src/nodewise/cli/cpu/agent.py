"""`nodewise cpu agent`: the one program of a node that all its containers ask for CPUs."""

import resource
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from nodewise.cli import options
from nodewise.cli.cpu import shared
from nodewise.cli.parameter_types import Duration
from nodewise.cpu import names, procfs
from nodewise.cpu.agent import chores, probing
from nodewise.cpu.agent.agent import Agent, Chore
from nodewise.cpu.agent.chores import Cluster
from nodewise.cpu.agent.claiming import Desk, Node
from nodewise.cpu.agent.listening import Limits
from nodewise.cpu.agent.reclaiming import Sweeper
from nodewise.cpu.agent.reconfiguring import Guard, Reconfiguring
from nodewise.cpu.agent.requested import PodRequests
from nodewise.cpu.book import Book
from nodewise.cpu.confine import containers
from nodewise.cpu.confine.enforcing import Enforcer
from nodewise.cpu.move import moving
from nodewise.cpu.node import feature, kubelet, machine, threads
from nodewise.cpu.node.machine import Machine
from nodewise.errors import BadSettings, Problem
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.serve.options import AdminOptions

LEAST_INTERVAL_S: Final = 0.1
_SPARE_FILES: Final = 256
"""Besides one for each connection: for `/proc`, the API server, the container runtime."""


def run(**given: Any) -> None:
    """Give the node's containers CPUs, take them back when they are over, and tell the cluster of the node.

    `isolate` asks it at a socket, so that workloads need no rights in the cluster. What a container may have of an
    exclusive pool is what it requests. Every few seconds the CPUs of tasks that are over are freed; the node's
    resources, label, taint and reports are written when they are not as they should be.
    It needs the host's process ids (hostPID: true), and root.

    \b
    Examples:
      nodewise cpu agent --node-name node1 --namespace cmk
      nodewise cpu agent --conf-dir /etc/cmk --enforce cgroup

    \b
    Exit codes:
      0  ended by SIGTERM or SIGINT
      1  it cannot run here, or not listen
      2  the command line or a setting is wrong
    """
    shared.start_logs()
    meters, proc = MetricsRegistry(), shared.proc(given)
    _check_process_ids(proc)
    if not LEAST_INTERVAL_S <= given["interval"] < float("inf"):
        problem = Problem("--interval", f"{given['interval']:g}s", f"at least {LEAST_INTERVAL_S:g}s")
        raise BadSettings("settings", [problem])
    limits = Limits(given["max_connections"], given["max_per_pod"])
    _allow_files(limits.connections + _SPARE_FILES)
    with ExitStack() as stack:
        agent = _agent(given, proc, limits, meters, stack)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: agent.stop())
        admin = options.build(AdminOptions, given)
        url = stack.enter_context(probing.served(agent.waiting_for, admin, meters))
        logs.emit("started", address=given["socket"], health=url)
        agent.run(Path(given["socket"]))
        logs.emit("stopping")


def _check_process_ids(proc: Path) -> None:
    try:
        threads.check_namespace(proc)
    except BadSettings as error:
        remedy = "run the node agent with hostPID: true"
        raise BadSettings("the node agent cannot tell who asks", error.problems, remedy=remedy) from error


def _allow_files(wanted: int) -> None:
    """As many open files as connections need; BadSettings if they are more than we may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted <= hard or hard == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    elif wanted > hard:
        problem = Problem("--max-connections", f"{wanted} open files needed", f"at most {hard}")
        raise BadSettings("settings", [problem])


def _agent(
    given: shared.Given, proc: Path, limits: Limits, meters: MetricsRegistry, stack: ExitStack
) -> Agent:
    book = shared.book(given)
    cluster = _cluster(given)
    pods = PodRequests(cluster.requests, cluster.node) if cluster else None
    if pods is None or given["allow_unrequested"]:
        why = "--allow-unrequested" if pods else "there is no API server (--conf-dir)"
        logs.emit("cpu_unchecked", why=why)
    read_machine = partial(_machine, given, cluster)
    found = read_machine()
    enforcer = _enforcer(given, found, proc, stack)
    sweeper = Sweeper(book, proc, meters, partial(moving.recover, book, proc))
    node = Node(
        book, proc, procfs.read_boot(proc), Path(given["sysfs"]), found.fast, most_tasks=given["max_per_pod"]
    )
    guard = Guard(pods, shared.requests(given).namespace if cluster else "")
    reconfiguring = Reconfiguring(book, proc, read_machine, sweeper, guard, enforcer)
    desk = Desk(
        node,
        sweeper,
        meters,
        None if given["allow_unrequested"] else pods,
        enforcer,
        reconfiguring.answer,
    )
    doing = _chores(given, book, proc, cluster, enforcer)
    return Agent(desk, doing, limits, given["interval"], meters)


def _cluster(given: shared.Given) -> Cluster | None:
    """None for a directory without a cluster."""
    if given["conf_dir"] and not given["kubeconfig"]:
        return None
    asked = shared.requests(given)
    return Cluster(asked, shared.node(given, asked), given["namespace"])


def _machine(given: shared.Given, cluster: Cluster | None) -> Machine:
    labels = machine.fetch_labels(cluster.requests, cluster.node) if cluster else machine.NO_LABELS
    return machine.read(Path(given["sysfs"]), labels)


def _enforcer(given: shared.Given, found: Machine, proc: Path, stack: ExitStack) -> Enforcer | None:
    if given["enforce"] == "none":
        return None
    runtime = containers.ContainerRuntime(containers.endpoint(given["runtime_endpoint"]), proc)
    stack.callback(runtime.close)
    return Enforcer(runtime, found.topology, proc)


def _chores(
    given: shared.Given, book: Book, proc: Path, cluster: Cluster | None, enforcer: Enforcer | None
) -> Sequence[Chore]:
    doing = [Chore("enforce", chores.Enforcing(enforcer, book).do)] if enforcer else []
    # the host's, which needs no mount: the first process is the host's
    checkpoints = Path(given["kubelet_dir"]) if given["kubelet_dir"] else proc / _HOST_KUBELET
    doing.append(Chore("kubelet", chores.Kubelets(checkpoints).do))
    features = chores.Features(Path(given["nfd_dir"]), Path(given["sysfs"]))
    doing.append(Chore("features", features.do))
    if cluster is None:
        return doing
    doing.append(Chore("advertise", chores.Advertising(cluster, taint=not given["no_taint"]).do))
    if given["publish"]:
        doing += [
            Chore("reconcile report", chores.Reclaims(cluster).do),
            Chore("node report", chores.NodeReports(cluster, book, Path(given["sysfs"])).do),
        ]
    return doing


_HOST_KUBELET: Final = f"1/root{kubelet.DEFAULT_FOLDER}"

_OWN: Final[Sequence[click.Parameter]] = (
    click.Option(
        ["--socket"],
        default=names.DEFAULT_SOCKET,
        show_default=True,
        metavar="PATH",
        help="Where to listen; in a folder that nobody else may write to.",
    ),
    click.Option(
        ["--interval"],
        type=Duration(),
        default="5s",
        show_default=True,
        help="Between sweeps for tasks that are over. One whose connection ends is swept at once.",
    ),
    click.Option(
        ["--enforce"],
        type=click.Choice(["none", "cgroup"]),
        default="none",
        show_default=True,
        help="cgroup: narrow each container's cpuset to what its tasks hold.",
    ),
    click.Option(
        ["--runtime-endpoint"],
        default="",
        metavar="PATH",
        help="The container runtime's socket, for --enforce. Default: the first known one that is there.",
    ),
    click.Option(
        ["--kubelet-dir"],
        default="",
        metavar="DIR",
        help=f"Where the kubelet keeps its checkpoints. Default: the host's {kubelet.DEFAULT_FOLDER}.",
    ),
    click.Option(
        ["--allow-unrequested"],
        is_flag=True,
        help="Give exclusive CPUs also to containers that do not request them.",
    ),
    click.Option(["--no-taint"], is_flag=True, help="Do not taint the node: other pods may use it."),
    click.Option(
        ["--nfd-dir"],
        default=str(feature.FOLDER),
        show_default=True,
        metavar="DIR",
        help="Where Node Feature Discovery looks for features; nothing is written where it is missing.",
    ),
    click.Option(
        ["--publish/--no-publish"], default=True, show_default=True, help="Write reports to the API server."
    ),
    click.Option(
        ["--max-connections"],
        type=click.IntRange(1, 100_000),
        default=Limits().connections,
        show_default=True,
        help="Of all pods together; one that idles gives way.",
    ),
    click.Option(
        ["--max-per-pod"],
        type=click.IntRange(1, 100_000),
        default=Limits().of_one,
        show_default=True,
        help="Connections, and tasks, of one pod.",
    ),
)

command = click.Command(
    "agent",
    callback=run,
    help=run.__doc__,
    short_help="Give a node's containers CPUs, and take them back.",
    params=[
        *shared.options(*shared.PLACE, "sysfs", "proc_fs"),
        *_OWN,
        *options.parameters(AdminOptions, has_file=False),
    ],
)
