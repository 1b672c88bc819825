"""`nodewise cpu agent`: the node agent, which allocates CPUs to the containers of its node."""

import resource
import signal
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from nodewise.base.errors import BadSettings
from nodewise.cli.parameter_types import Duration
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server.options import AdminOptions
from nodewise_cpu import cmk_names, procfs
from nodewise_cpu.agent import agent as publishers
from nodewise_cpu.agent.agent import ClusterNode, NodeAgent, Publisher, serve_admin_port
from nodewise_cpu.agent.allocation_service import AgentNode, AllocationService, NodePods
from nodewise_cpu.agent.socket_server import ConnectionLimits
from nodewise_cpu.cli import common_options
from nodewise_cpu.cli.common_options import flag, option
from nodewise_cpu.cpusets import container_runtime_client
from nodewise_cpu.cpusets.container_cpusets import CgroupPartitions
from nodewise_cpu.cpusets.enforcer import CpusetEnforcer
from nodewise_cpu.node import machine_features, other_cpu_managers
from nodewise_cpu.node.machine_features import PoolInputs
from nodewise_cpu.node.task_garbage_collection import TaskGarbageCollector
from nodewise_cpu.topology import ROOT_CGROUP, Topology

LEAST_INTERVAL_S: Final = 0.1
_HOST_KUBELET: Final = f"1/root{other_cpu_managers.DEFAULT_FOLDER}"
_SPARE_FILES: Final = 256
"""The files that are open besides connections: for `/proc`, the API server, the container runtime."""


@dataclass(frozen=True, kw_only=True)
class AgentOptions(common_options.StoreOptions, common_options.MachineOptions, common_options.ProcessOptions):
    """Options of `agent`."""

    socket: str = option(
        "Path of the socket, in a folder that only root can write.", cmk_names.DEFAULT_SOCKET, metavar="PATH"
    )
    interval: float = option(
        "Interval of garbage collections. The end of a task's connection also starts one.",
        "5s",
        type=Duration(),
    )
    enforce: str = common_options.choice(
        "cgroup: limit the cpuset of each container to the CPUs of its tasks.", "none", "cgroup"
    )
    isolate: str = common_options.choice(
        "partition: make containers with exclusive CPUs isolated cgroup partitions, with --enforce cgroup, cgroup "
        "version 2 and Linux 6.7 or newer. none: undo them.",
        "none",
        "partition",
    )
    runtime_endpoint: str = option(
        "The container runtime's socket, for --enforce. Default: the first known one that exists.",
        metavar="PATH",
    )
    kubelet_dir: str = option(
        f"Folder of the kubelet's checkpoints. Default: the host's {other_cpu_managers.DEFAULT_FOLDER}.",
        metavar="DIR",
    )
    allow_unrequested: bool = flag("Allocate exclusive CPUs also to containers that do not request them.")
    no_taint: bool = flag("Do not taint the node: other pods may use it.")
    nfd_dir: str = option(
        "Folder of Node Feature Discovery's feature files; ignored if it does not exist.",
        str(machine_features.FEATURE_FOLDER),
        metavar="DIR",
    )
    publish: bool = option("Write reports to the API server.", True, "--publish/--no-publish")
    max_connections: int = option(
        "Limit of all connections. At the limit, idle ones are closed.",
        ConnectionLimits().connections,
        type=click.IntRange(1, 100_000),
    )
    max_per_pod: int = option(
        "Limit of connections, and of tasks, per pod.",
        ConnectionLimits().of_one,
        type=click.IntRange(1, 100_000),
    )
    admin: AdminOptions


def run(options: AgentOptions) -> None:
    """Run the node agent, which allocates CPUs to containers and releases those of ended tasks.

    `isolate` connects to its socket, so workloads need no rights in the cluster. A container gets as many exclusive CPU
    lists as it requests. Every few seconds the CPUs of ended tasks are released, and the node's extended resources,
    label, taint and reports are updated if they differ.

    The agent needs root and the host's process ids (hostPID: true).

    \b
    Examples:
      nodewise cpu agent --node-name node1 --namespace cmk
      nodewise cpu agent --conf-dir /etc/cmk --enforce cgroup

    \b
    Exit codes:
      0  ended by SIGTERM or SIGINT
      1  it cannot run here, or not listen
      2  the command line or a setting is invalid
    """
    common_options.start_cmk_logging(repeats=True)
    registry, proc = MetricsRegistry(), common_options.host_proc_path(options)
    try:
        procfs.check_pid_namespace(proc)
    except BadSettings as error:
        remedy = "run the node agent with hostPID: true"
        raise BadSettings("the node agent cannot identify the peer", error.problems, remedy=remedy) from error
    if not LEAST_INTERVAL_S <= options.interval < float("inf"):
        raise BadSettings.of(
            "settings", "--interval", f"{options.interval:g}s", f"at least {LEAST_INTERVAL_S:g}s"
        )
    limits = ConnectionLimits(options.max_connections, options.max_per_pod)
    _raise_open_file_limit(limits.connections + _SPARE_FILES)
    with ExitStack() as stack:
        node_agent = _create_node_agent(options, proc, limits, registry, stack)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: node_agent.stop())
        url = stack.enter_context(serve_admin_port(node_agent.waiting_for, options.admin, registry))
        logs.emit("started", address=options.socket, health=url)
        node_agent.run(Path(options.socket))
        logs.emit("stopping")


def _raise_open_file_limit(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted <= hard or hard == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    elif wanted > hard:
        seen = f"{wanted} open files needed"
        raise BadSettings.of("settings", "--max-connections", seen, f"at most {hard}")


def _create_node_agent(
    options: AgentOptions, proc: Path, limits: ConnectionLimits, registry: MetricsRegistry, stack: ExitStack
) -> NodeAgent:
    store = common_options.open_allocation_store(options)
    root, cluster, namespace = Path(options.sysfs), None, ""
    if options.is_in_cluster:
        client = common_options.open_api_client(options)
        node_name = common_options.resolve_node_name(options, client)
        cluster, namespace = ClusterNode(client, node_name, options.namespace), client.namespace
    if cluster is None or options.allow_unrequested:
        why = "--allow-unrequested" if cluster else "there is no API server (--conf-dir)"
        logs.emit("cpu_unchecked", why=why)

    def read_machine() -> PoolInputs:
        labels = machine_features.fetch_labels(*cluster[:2]) if cluster else machine_features.NO_LABELS
        return machine_features.read(root, labels)

    machine = read_machine()
    enforcer = _create_cpu_enforcer(options, machine.topology, proc, stack)
    service = AllocationService(
        AgentNode(
            store,
            proc,
            procfs.read_boot_id(proc),
            root,
            machine.fast,
            machine.topology.caches,
            options.max_per_pod,
            namespace,
            options.allow_unrequested,
        ),
        TaskGarbageCollector(store, proc, registry),
        registry,
        read_machine,
        NodePods(cluster.api, cluster.node) if cluster else None,
        enforcer,
    )
    # the root of the first process is the host's, so no mount is needed
    checkpoints = Path(options.kubelet_dir) if options.kubelet_dir else proc / _HOST_KUBELET
    host = other_cpu_managers.host_root(root, proc)
    active: list[Publisher] = [publishers.CpusetPublisher(enforcer, store)] if enforcer else []
    active += [
        publishers.KubeletConflictPublisher(checkpoints),
        publishers.ManagerConflictPublisher(root, host, cluster),
        publishers.FeaturePublisher(Path(options.nfd_dir), root),
    ]
    if cluster:
        active.append(publishers.NodeAdvertiser(cluster, root, taint=not options.no_taint))
        if options.publish:
            active.append(publishers.ReconcileReportPublisher(cluster))
            active.append(publishers.NodeReportPublisher(cluster, store, root, host))
    return NodeAgent(service, active, limits, options.interval, registry)


def _create_cpu_enforcer(
    options: AgentOptions, topology: Topology, proc: Path, stack: ExitStack
) -> CpusetEnforcer | None:
    root = other_cpu_managers.host_root(Path("/"), proc) / ROOT_CGROUP
    partitions = CgroupPartitions(root)
    if options.isolate == "none":
        # those of an earlier agent
        partitions.release()
    elif options.enforce == "none":
        raise BadSettings.of("settings", "--isolate", options.isolate, "--enforce cgroup")
    else:
        partitions.check_support()
    if options.enforce == "none":
        return None
    runtime = container_runtime_client.ContainerRuntime(
        container_runtime_client.endpoint(options.runtime_endpoint), proc
    )
    stack.callback(runtime.close)
    return CpusetEnforcer(
        runtime,
        topology,
        proc,
        cgroup_roots=(root, root / "cpuset"),
        partitions=partitions if options.isolate != "none" else None,
    )


command = common_options.create_click_command("agent", run, AgentOptions)
