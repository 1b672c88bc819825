"""The report about a node: its cores, its pools, and checks of both."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from nodewise.base.errors import NodewiseError, Problem
from nodewise_cpu import pool_allocations
from nodewise_cpu.allocation_store import AllocationStore, StoredAllocations
from nodewise_cpu.cpu_set_formats import format_cpu_ranges
from nodewise_cpu.node import other_cpu_managers
from nodewise_cpu.node.machine_features import PoolInputs
from nodewise_cpu.node.other_cpu_managers import CpuManagers
from nodewise_cpu.pool_allocations import Allocations
from nodewise_cpu.topology import Cpu, Topology

Check = Mapping[str, Any]
"""The result of a check: `ok`, and `errors` as texts."""
NO_MANAGERS: Final = CpuManagers()


def build_node_report(
    store: AllocationStore,
    machine: PoolInputs,
    kubelet_dir: Path = other_cpu_managers.DEFAULT_FOLDER,
    managers: CpuManagers = NO_MANAGERS,
) -> dict[str, Any]:
    """The report that `node-report` prints. Errors are part of it.

    It includes the kubelet's own CPU manager if `kubelet_dir` has its checkpoint, and the other `managers` if they
    conflict with the pools.
    """
    try:
        stored: StoredAllocations | None = store.read()
        errors: list[str] = []
    except NodewiseError as error:
        stored, errors = None, [f"unable to read the node's pools: {error}"]
    description = None
    if stored is not None:
        description = pool_allocations.as_describe_output(stored.allocations)
        errors = [
            *pool_allocations.overlaps(stored.allocations),
            *find_offline_cpu_lists(stored.allocations, machine.topology),
            *map(str, find_partition_conflicts(stored.allocations, machine.topology)),
        ]
    checks = {"configDirectory": check(errors)}
    allocations = stored.allocations if stored else Allocations({})
    if incomplete := find_incomplete_exclusive_lists(allocations, machine.topology):
        checks["cores"] = check([str(problem) for problem in incomplete])
    checks |= check_kubelet_conflicts(kubelet_dir, allocations)
    if conflicts := other_cpu_managers.conflicts(managers, allocations):
        checks["cpuManagers"] = check([str(problem) for problem in conflicts])
    return {"checks": checks, "description": description, "topology": as_cmk_topology(machine)}


def check(errors: list[str]) -> Check:
    return {"ok": not errors, "errors": errors}


def check_kubelet_conflicts(folder: Path, allocations: Allocations) -> dict[str, Check]:
    """The check for conflicts of the kubelet's CPU and memory managers with the pools; none without a checkpoint.

    With the static policy it names the features of the kubelet that could replace each pool.
    """
    try:
        kubelet = other_cpu_managers.read_kubelet_state(folder)
    except NodewiseError as error:
        return {"kubelet": check([str(error)])}
    if kubelet is None:
        return {}
    conflicts = check(
        [str(problem) for problem in other_cpu_managers.kubelet_conflicts(kubelet, allocations)]
    )
    more = (
        {"instead": other_cpu_managers.describe_kubelet_alternatives(allocations)}
        if kubelet.is_static
        else {}
    )
    return {"kubelet": {**conflicts, "policy": kubelet.policy, **more}}


def find_offline_cpu_lists(allocations: Allocations, topology: Topology) -> list[str]:
    """CPU lists with CPUs that are offline or missing since the pools were made."""
    online = topology.online
    return [
        f"{pool.name}:{cpu_list.text} (not online: {sorted(set(cpu_list.cpus) - online)})"
        for pool, cpu_list in allocations.cpu_lists
        if not online.issuperset(cpu_list.cpus)
    ]


def find_incomplete_exclusive_lists(allocations: Allocations, topology: Topology) -> list[Problem]:
    """The exclusive CPU lists without all online CPUs of their cores: other processes run on the same cores.

    Threads may be enabled after the pools were made.
    """
    siblings = {cpu: frozenset(core.cpus) for core in topology.cores for cpu in core.cpus}
    expected = "all CPUs of a core: change the pools with `reconfigure`, or take the others offline"
    return [
        Problem(
            f"{pool.name}:{cpu_list.text}",
            f"CPUs {format_cpu_ranges(missing)} of the same core are not in the list",
            expected,
        )
        for pool, cpu_list in allocations.cpu_lists
        if pool.is_exclusive
        if (missing := {other for cpu in cpu_list.cpus for other in siblings.get(cpu, ())} - {*cpu_list.cpus})
    ]


def find_partition_conflicts(allocations: Allocations, topology: Topology) -> list[Problem]:
    """The CPU lists with CPUs in cgroup partitions of other programs: no task can use them."""
    return [
        Problem(
            f"{pool.name}:{cpu_list.text}",
            f"CPUs {format_cpu_ranges(topology.partitions.intersection(cpu_list.cpus))} are in a cgroup partition",
            "CPUs in no partition: remove it (cpuset.cpus.partition), or change the pools with `reconfigure`",
        )
        for pool, cpu_list in allocations.cpu_lists
        if not topology.partitions.isdisjoint(cpu_list.cpus)
    ]


def as_cmk_topology(machine: PoolInputs) -> dict[str, Any]:
    """CMK's form: the sockets by number, their cores, and the online CPUs of each core."""
    topology = machine.topology
    cpus = {cpu.cpu: cpu for cpu in topology.cpus}
    return {
        "sockets": {
            str(socket): {
                "id": socket,
                "cores": [
                    {"id": core.core, "cpus": [_cpu_as_dict(cpus[cpu], machine) for cpu in core.cpus]}
                    for core in topology.cores
                    if core.socket == socket
                ],
            }
            for socket in topology.sockets
        }
    }


def _cpu_as_dict(cpu: Cpu, machine: PoolInputs) -> dict[str, Any]:
    fast = {"sst_bf": True} if cpu.cpu in machine.fast else {}
    return {"id": cpu.cpu, "isolated": cpu.isolated, **fast}
