"""Other programs that assign CPUs on the node, apart from the kubelet, and their conflicts with the pools.

- The DRA driver for CPUs (kubernetes-sigs/dra-driver-cpu) offers CPUs as devices of the driver `dra.cpu` and pins
  containers with claims by NRI. Its ResourceSlices name the CPUs (`dra.cpu/cpuID`, `dra.cpu/cpuIDs`) or count those of
  a NUMA node or socket; its CDI file `/var/run/cdi/dra.cpu.json` has the CPUs of each claim.
- The NRI resource policies (containers/nri-plugins: balloons, topology-aware) write the cpuset of every container.
  Their state is in `/var/lib/nri-resource-policy/cache`.
- systemd limits units with `AllowedCPUs` (`systemd_allowed_cpus`).
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from nodewise.base.errors import BadInput, NodewiseError, Problem, shown
from nodewise.kube.resource_kinds import RESOURCE_SLICES, selector
from nodewise_cpu import cpu_set_formats
from nodewise_cpu.api_client_interface import ApiClient
from nodewise_cpu.kernel_file_reader import read_text
from nodewise_cpu.node import systemd_allowed_cpus
from nodewise_cpu.pool_allocations import Allocations
from nodewise_cpu.pool_planning import INFRA
from nodewise_cpu.topology import Topology

Cpus = frozenset[int]

DRA_DRIVER: Final = "dra.cpu"
CDI_FILES: Final = (f"run/cdi/{DRA_DRIVER}.json", f"var/run/cdi/{DRA_DRIVER}.json")
NRI_CACHE: Final = "var/lib/nri-resource-policy/cache"
_DRA_REGISTRATIONS: Final = (
    f"var/lib/kubelet/plugins/{DRA_DRIVER}",
    f"var/lib/kubelet/plugins_registry/{DRA_DRIVER}-reg.sock",
)
_CLAIM: Final = re.compile(r"DRA_CPUSET_([0-9A-Za-z_.-]{1,64})=([0-9,-]*)", re.ASCII)
_MAX_BYTES: Final = 16 * 1024 * 1024
_RESERVE: Final = "its option --reserved-cpus with the CPUs of the pools"


class CpuAssignment(NamedTuple):
    """CPUs that a program assigns, or allows to be used."""

    owner: str
    """The program, or one of its parts: `systemd unit backup.service`."""
    cpus: Cpus
    remedy: str
    verb: str = "has"


class CpuManagers(NamedTuple):
    """The other CPU managers on a node."""

    assignments: tuple[CpuAssignment, ...] = ()
    problems: tuple[Problem, ...] = ()
    """Conflicts that do not depend on the pools, and files that cannot be read."""
    limits_of_pods: tuple[CpuAssignment, ...] = ()
    """Units that contain all pods, with the only CPUs that pods may use."""


def read(root: Path) -> CpuManagers:
    """The CPU managers that have files below `root`, the root of the host."""
    dra = _read_dra_claims(root)
    nri = _read_nri_policy(root)
    units, pods = [], []
    for name, cpus in systemd_allowed_cpus.read(root).items():
        if name.removesuffix(".slice") == systemd_allowed_cpus.PODS:
            remedy = "AllowedCPUs with the CPUs of the pools, or none"
            pods.append(CpuAssignment(f"systemd unit {name}", cpus, remedy))
        else:
            remedy = f"AllowedCPUs without them: systemctl edit {name}"
            units.append(CpuAssignment(f"systemd unit {name}", cpus, remedy))
    return CpuManagers((*dra.assignments, *units), (*dra.problems, *nri), tuple(pods))


def host_root(sysfs: Path, proc: Path = Path("/proc")) -> Path:
    """The folder with the files of the host.

    The root of the first process is the host's also in a container that sees the host's processes. A machine whose
    `sys` is elsewhere has its other files there too.
    """
    root = proc / "1/root"
    return root if sysfs == Path("/") and os.access(root, os.R_OK | os.X_OK) else sysfs


def read_all(
    root: Path, allocations: Allocations, topology: Topology, api: ApiClient | None = None, node: str = ""
) -> CpuManagers:
    """The CPU managers on the host, and the DRA driver's devices if there is an API server."""
    managers = read(root)
    if api is None:
        return managers
    ours = frozenset().union(*pool_cpus(allocations).values())
    offered = fetch_dra_devices(api, node, topology, ours)
    return managers._replace(assignments=(*managers.assignments, *offered))


def _read_json(file: Path) -> Mapping[str, Any] | None:
    """An object; None without the file or the right to read it. BadInput if it is something else."""
    try:
        value = json.loads(read_text(file, _MAX_BYTES))
    except OSError:
        return None
    except (RecursionError, ValueError) as error:
        raise BadInput(
            "cannot read the state of a CPU manager", [Problem(str(file), str(error), "JSON")]
        ) from error
    if not isinstance(value, dict):
        problem = Problem(str(file), shown(value), "a JSON object")
        raise BadInput("cannot read the state of a CPU manager", [problem])
    return value


def _read_dra_claims(root: Path) -> CpuManagers:
    """The CPUs of claims. A driver that is registered and has no claims is a problem of its own."""
    for file in CDI_FILES:
        try:
            specification = _read_json(root / file)
        except BadInput as error:
            return CpuManagers(problems=tuple(error.problems))
        if specification is not None:
            return CpuManagers(tuple(_parse_claims(specification)))
    if any((root / place).exists() for place in _DRA_REGISTRATIONS):
        problem = Problem(f"DRA driver {DRA_DRIVER}", "registered at the kubelet", _RESERVE)
        return CpuManagers(problems=(problem,))
    return CpuManagers()


def _parse_claims(specification: Mapping[str, Any]) -> Iterator[CpuAssignment]:
    for device in _dicts(specification.get("devices")):
        edits = device.get("containerEdits")
        for variable in (edits.get("env") or ()) if isinstance(edits, dict) else ():
            match = _CLAIM.fullmatch(str(variable))
            if match and (cpus := _parse_list(match[2])):
                yield CpuAssignment(f"DRA driver {DRA_DRIVER}, claim {match[1]}", cpus, _RESERVE)


def _read_nri_policy(root: Path) -> Sequence[Problem]:
    try:
        cache = _read_json(root / NRI_CACHE)
    except BadInput as error:
        return error.problems
    policy = cache.get("PolicyName") if cache else None
    if not policy:
        return ()
    owner = f"NRI resource policy {shown(policy)}"
    seen = f"it sets the CPUs of every container (state in /{NRI_CACHE})"
    expected = 'the annotation cpu.preserve.resource-policy.nri.io: "true" on pods that use the pools'
    return [Problem(owner, seen, f"{expected}, and availableResources without the CPUs of the pools")]


def fetch_dra_devices(api: ApiClient, node: str, topology: Topology, pools: Cpus) -> Sequence[CpuAssignment]:
    """The CPUs that the DRA driver offers on the node; none if its ResourceSlices may not be read or do not exist.

    `pools` are the CPUs of the pools: a device that counts the CPUs of a NUMA node or socket has some of them if it has
    more CPUs than there are without them.
    """
    fields = f"{selector('spec.driver', DRA_DRIVER)},{selector('spec.nodeName', node)}"
    try:
        slices = api.get(RESOURCE_SLICES.path(), {"fieldSelector": fields})["items"]
    except NodewiseError:
        return ()
    return parse_resource_slices(slices, topology, pools)


def parse_resource_slices(
    slices: Iterable[Mapping[str, Any]], topology: Topology, pools: Cpus
) -> Sequence[CpuAssignment]:
    """The CPUs of all devices of ResourceSlices of one node (`fetch_dra_devices`)."""
    cpus: set[int] = set()
    for resource_slice in slices:
        specification = resource_slice.get("spec") or {}
        if specification.get("driver") == DRA_DRIVER:
            for device in _dicts(specification.get("devices")):
                cpus |= _cpus_of_device(device, topology, pools)
    if not cpus:
        return ()
    return [CpuAssignment(f"DRA driver {DRA_DRIVER}", frozenset(cpus), _RESERVE, "offers")]


def _cpus_of_device(device: Mapping[str, Any], topology: Topology, pools: Cpus) -> Cpus:
    attributes = _attributes(device)
    if isinstance(number := attributes.get("cpuID"), int):
        return frozenset({number})
    if isinstance(listed := attributes.get("cpuIDs"), str):
        return _parse_list(listed)
    numa = attributes.get("numaNodeID", attributes.get("resource.kubernetes.io/numaNode"))
    socket, count = attributes.get("socketID"), attributes.get("numCPUs")
    group = frozenset(
        cpu.cpu
        for cpu in topology.cpus
        if cpu.online and numa in (None, cpu.numa) and socket in (None, cpu.package_id)
    )
    return group if isinstance(count, int) and count > len(group - pools) else frozenset()


def _attributes(device: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values of a device's attributes; those of the driver by their names without its domain."""
    # resource.k8s.io/v1beta1 has them in `basic`
    attributes = (device.get("basic") or device).get("attributes") or {}
    return {
        name.removeprefix(f"{DRA_DRIVER}/"): next(iter(value.values()), None)
        for name, value in attributes.items()
        if isinstance(value, dict)
    }


def _dicts(value: object) -> Iterator[Mapping[str, Any]]:
    return (entry for entry in (value if isinstance(value, list) else ()) if isinstance(entry, dict))


def _parse_list(text: str) -> Cpus:
    try:
        return frozenset(cpu_set_formats.parse_cpu_numbers(text))
    except BadInput:
        return frozenset()


def pool_cpus(allocations: Allocations) -> Mapping[str, Cpus]:
    """The CPUs of each pool from which tasks take CPUs; all others are for the rest of the node."""
    cpus: dict[str, Cpus] = {}
    for pool, cpu_list in allocations.cpu_lists:
        if pool.name != INFRA:
            cpus[pool.name] = cpus.get(pool.name, frozenset()) | frozenset(cpu_list.cpus)
    return cpus


def conflicts(managers: CpuManagers, allocations: Allocations) -> Sequence[Problem]:
    """The conflicts of other managers with the pools, each with its remedy; none for a node without pools."""
    pools = pool_cpus(allocations)
    ours = frozenset().union(*pools.values())
    if not ours:
        return ()
    problems = [*managers.problems]
    for assignment in managers.assignments:
        if shared := assignment.cpus & ours:
            names = ", ".join(name for name, cpus in pools.items() if cpus & shared)
            seen = f"{assignment.verb} CPUs {cpu_set_formats.format_cpu_ranges(shared)} of the pools {names}"
            problems.append(Problem(assignment.owner, seen, assignment.remedy))
    for limit in managers.limits_of_pods:
        if missing := ours - limit.cpus:
            seen = f"pods may not use CPUs {cpu_set_formats.format_cpu_ranges(missing)} of the pools"
            problems.append(Problem(limit.owner, seen, limit.remedy))
    return problems
