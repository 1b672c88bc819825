"""Other programs that assign CPUs on the node, and their conflicts with the pools.

- The DRA driver for CPUs (kubernetes-sigs/dra-driver-cpu) offers CPUs as devices of the driver `dra.cpu` and pins
  containers with claims by NRI. Its ResourceSlices name the CPUs (`dra.cpu/cpuID`, `dra.cpu/cpuIDs`) or count those of
  a NUMA node or socket; its CDI file `/var/run/cdi/dra.cpu.json` has the CPUs of each claim.
- The NRI resource policies (containers/nri-plugins: balloons, topology-aware) write the cpuset of every container.
  Their state is in `/var/lib/nri-resource-policy/cache`.
- systemd writes a unit's `AllowedCPUs` to `cpuset.cpus` of its cgroup (systemd.resource-control(5)). `systemctl
  set-property` writes a drop-in file below `system.control`. A unit that runs is described by its cgroup, which another
  program may have changed; one that does not run only by its files.
- The kubelet's CPU and memory managers have their state in checkpoints.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from nodewise.base import trusted_files
from nodewise.base.errors import BadInput, NodewiseError, Problem, Unavailable, shown, truncate
from nodewise.kube.resource_kinds import RESOURCE_SLICES, selector
from nodewise_cpu import cpu_set_formats
from nodewise_cpu.cluster.api_server import ApiClient
from nodewise_cpu.kernel_file_reader import WHITE_SPACE, read_text, split_lines
from nodewise_cpu.pool_allocations import Allocations
from nodewise_cpu.pool_planning import EXCLUSIVE, INFRA, NON_ISOLCPUS, SHARED
from nodewise_cpu.procfs import parse_cgroup
from nodewise_cpu.topology import Topology

Cpus = frozenset[int]

UNIT_FOLDERS: Final = (
    "etc/systemd/system.control",
    "run/systemd/system.control",
    "run/systemd/transient",
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
)
"""systemd's folders of unit files below the root, those with precedence first (systemd.unit(5))."""
CGROUP_ROOTS: Final = ("sys/fs/cgroup", "sys/fs/cgroup/cpuset")
"""The mount points of cgroups: of version 2, and of the controller `cpuset` of version 1."""
PODS: Final = "kubepods"
"""The cgroup of all pods, which systemd names `kubepods.slice`."""
_UNIT: Final = re.compile(r".+\.(?:service|slice|scope)")
_SETTING: Final = re.compile(r"^[ \t]*(?:Startup)?AllowedCPUs[ \t]*=(.*)$")
_MAX_FILE_BYTES: Final = 1 << 20
_MAX_DEPTH: Final = 8


def read_allowed_cpus(root: Path) -> Mapping[str, Cpus]:
    """The CPUs of each unit that is limited to some, by the unit's name. `root` has the host's files.

    Files that cannot be read or parsed are left out, as systemd ignores an invalid setting.
    """
    return {**_read_unit_files(root), **_read_unit_cgroups(root)}


def parse_allowed_cpus(*texts: str) -> Cpus:
    """The CPUs that the unit file and its drop-ins allow together; empty without a limit.

    An empty value removes the earlier ones. Indices and ranges are separated by commas or white space.
    """
    cpus: set[int] = set()
    for line in (line for text in texts for line in split_lines(text)):
        if match := _SETTING.match(line):
            words = match[1].replace(",", " ").split()
            try:
                listed = cpu_set_formats.parse_cpu_numbers(",".join(words), "AllowedCPUs")
            except BadInput:
                continue
            cpus = cpus | set(listed) if words else set()
    return frozenset(cpus)


def _read_unit_files(root: Path) -> Mapping[str, Cpus]:
    files: dict[str, dict[str, Path]] = {}
    for path in chain.from_iterable(_list_folder(root / folder) for folder in UNIT_FOLDERS):
        if path.name.endswith(".d"):
            drop_ins = files.setdefault(path.name.removesuffix(".d"), {})
            for file in _list_folder(path):
                drop_ins.setdefault(file.name, file)
        elif _UNIT.fullmatch(path.name):
            # the empty name is that of the unit file, which comes before its drop-ins
            files.setdefault(path.name, {}).setdefault("", path)
    allowed = {}
    for unit, parts in sorted(files.items()):
        # in systemd's order: the unit file, then its drop-ins by name
        texts = [
            _read_file(file) for name, file in sorted(parts.items()) if not name or name.endswith(".conf")
        ]
        if cpus := parse_allowed_cpus(*texts):
            allowed[unit] = cpus
    return allowed


def _read_unit_cgroups(root: Path) -> Mapping[str, Cpus]:
    """The cpusets of the cgroups of units, without pods and what is below the units themselves."""
    allowed: dict[str, Cpus] = {}
    for top in CGROUP_ROOTS:
        for folder in _walk_units(root / top, 0):
            text = _read_file(folder / "cpuset.cpus").strip(WHITE_SPACE)
            try:
                cpus = frozenset(cpu_set_formats.parse_cpu_numbers(text))
            except BadInput:
                continue
            # in version 1 every cgroup has a list: only one that differs from its parent's is a limit
            inherited = _read_file(folder.parent / "cpuset.cpus").strip(WHITE_SPACE)
            if cpus and text != inherited:
                allowed[folder.name] = cpus
    return allowed


def _walk_units(folder: Path, depth: int) -> Iterator[Path]:
    for path in _list_folder(folder):
        is_unit = _UNIT.fullmatch(path.name) or path.name == PODS
        if not is_unit or path.is_symlink() or not path.is_dir() or parse_cgroup(f"0::/{path.name}").pod:
            continue
        yield path
        if path.name.endswith(".slice") and depth < _MAX_DEPTH:
            yield from _walk_units(path, depth + 1)


def _list_folder(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in sorted(os.listdir(folder))]  # noqa: PTH208 - only the names are needed
    except OSError:
        return []


def _read_file(file: Path) -> str:
    try:
        return read_text(file, _MAX_FILE_BYTES)
    except OSError:
        return ""


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
    for name, cpus in read_allowed_cpus(root).items():
        if name.removesuffix(".slice") == PODS:
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
        raise BadInput.of("cannot read the state of a CPU manager", str(file), str(error), "JSON") from error
    if not isinstance(value, dict):
        raise BadInput.of("cannot read the state of a CPU manager", str(file), shown(value), "a JSON object")
    return value


def _read_dra_claims(root: Path) -> CpuManagers:  # complexity: parts that another program may leave out
    """The CPUs of claims. A driver that is registered and has no claims is a problem of its own."""
    for file in CDI_FILES:
        try:
            specification = _read_json(root / file)
        except BadInput as error:
            return CpuManagers(problems=tuple(error.problems))
        if specification is not None:
            claims = [
                (match[1], _parse_list(match[2]))
                for device in _dicts(specification.get("devices"))
                for edits in _dicts([device.get("containerEdits")])
                for variable in edits.get("env") or ()
                if (match := _CLAIM.fullmatch(str(variable)))
            ]
            owner = f"DRA driver {DRA_DRIVER}, claim"
            return CpuManagers(
                tuple(CpuAssignment(f"{owner} {name}", cpus, _RESERVE) for name, cpus in claims if cpus)
            )
    if any((root / place).exists() for place in _DRA_REGISTRATIONS):
        problem = Problem(f"DRA driver {DRA_DRIVER}", "registered at the kubelet", _RESERVE)
        return CpuManagers(problems=(problem,))
    return CpuManagers()


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


DEFAULT_FOLDER: Final = Path("/var/lib/kubelet")
CPU_STATE: Final = "cpu_manager_state"
MEMORY_STATE: Final = "memory_manager_state"
STATIC: Final = "static"
_MAX_CHECKPOINT_BYTES: Final = 16 * 1024 * 1024
_MAX_FIELDS_TEXT: Final = 200
KNOWN_VERSIONS: Final = "the fields of version 1 to 4 (Kubernetes 1.38 and older)"
_FIELDS: Final = frozenset(
    {"policyName", "defaultCpuSet", "entries", "podEntries", "checksum", "data", "dataChecksum"}
)
_DATA_FIELDS: Final = frozenset({"policyName", "defaultCpuSet", "entries", "podEntries", "baselines"})

_ALTERNATIVES: Final[Mapping[str, str]] = {
    EXCLUSIVE: (
        "cpuManagerPolicy static gives whole CPUs to containers of Guaranteed pods; with the option full-pcpus-only "
        "whole cores, as a pool's lists are; with distribute-cpus-across-numa evenly from several NUMA nodes, with "
        "align-by-socket from one socket, with prefer-align-cpus-by-uncorecache from one cache, with "
        "distribute-cpus-across-cores from many cores; with the feature PodLevelResourceManagers (beta in 1.37, "
        "disabled by default) to a pod's containers together"
    ),
    SHARED: "cpuManagerPolicy static leaves all CPUs that it has not allocated to all other containers together",
    INFRA: (
        "reservedSystemCPUs keeps CPUs for the system's daemons, and with the option strict-cpu-reservation no "
        "container runs on them"
    ),
}
"""The features of the kubelet that could replace each pool."""


class KubeletAllocation(NamedTuple):
    """CPUs that the kubelet allocated to a container or, without a container, to all containers of a pod together."""

    pod: str
    container: str
    cpus: frozenset[int]

    def __str__(self) -> str:
        who = f"container {self.container} of pod {self.pod}" if self.container else f"pod {self.pod}"
        return f"{who} has CPUs {cpu_set_formats.format_cpu_ranges(self.cpus)}"


class KubeletState(NamedTuple):
    """The policies, by the kubelet's names, and the allocations of its CPU manager."""

    policy: str
    shared_pool: frozenset[int] = frozenset()
    """CPUs that are not allocated; all other containers share them."""
    allocations: tuple[KubeletAllocation, ...] = ()
    memory_policy: str = "None"
    unknown_fields: tuple[str, ...] = ()
    """Fields of the CPU manager's checkpoint that no known version has, so that it may contain other allocations."""

    @property
    def is_static(self) -> bool:
        return self.policy == STATIC


def read_kubelet_state(folder: Path = DEFAULT_FOLDER) -> KubeletState | None:
    """The state in the checkpoints; None if there is none. Unavailable or BadInput if it cannot be read."""
    cpu, memory = _read_checkpoint(folder / CPU_STATE), _read_checkpoint(folder / MEMORY_STATE)
    return None if cpu is None else parse_checkpoints(cpu, memory)


_CHECKPOINT: Final = "cannot read the kubelet's checkpoint"


def _read_checkpoint(file: Path) -> str | None:
    try:
        with file.open("rb") as opened:
            trusted_files.check_open_file_trust(opened.fileno(), file)
            return opened.read(_MAX_CHECKPOINT_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable.of(_CHECKPOINT, str(file), str(error)) from error


def parse_checkpoints(cpu: str, memory: str | None = None) -> KubeletState:
    """The state in the texts of the two checkpoints. The CPU manager's may be of any of its four versions.

    Of an unknown version it contains what is written as in a known one. BadInput if the policy is not.
    """
    checkpoint = _parse_json_object(cpu, CPU_STATE)
    unknown = [field for field in checkpoint if field not in _FIELDS]
    cpu_state = checkpoint
    if checkpoint.get("data"):
        # like the kubelet, which reads nothing else in version 4
        cpu_state = _parse_json_object(checkpoint["data"], f"{CPU_STATE}: data")
        unknown += [f"data.{field}" for field in cpu_state if field not in _DATA_FIELDS]
    if not isinstance(cpu_state.get("policyName"), str):
        # every version has it, and without it a static policy would count as none
        text = shown(cpu_state.get("policyName"))
        raise BadInput.of(_CHECKPOINT, f"{CPU_STATE}: policyName", text, KNOWN_VERSIONS)
    memory_state = _parse_json_object(memory, MEMORY_STATE) if memory is not None else {}
    return KubeletState(
        cpu_state["policyName"],
        _parse_cpus(cpu_state.get("defaultCpuSet", ""), f"{CPU_STATE}: defaultCpuSet"),
        tuple(_parse_kubelet_allocations(cpu_state)),
        str(memory_state.get("policyName", "None")),
        tuple(sorted(unknown)),
    )


def _parse_json_object(text: object, field: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except (RecursionError, ValueError):
        value = None
    if not isinstance(value, dict):
        raise BadInput.of(_CHECKPOINT, field, shown(text), "a JSON object")
    return value


def _parse_kubelet_allocations(cpu_state: Mapping[str, Any]) -> Iterator[KubeletAllocation]:
    for pod, entry in _check_mapping(cpu_state.get("entries"), "entries").items():
        if isinstance(entry, str):
            # version 1 has containers by id, without their pods
            yield KubeletAllocation("", pod, _parse_cpus(entry, f"entries.{pod}"))
            continue
        for container, text in _check_mapping(entry, f"entries.{pod}").items():
            yield KubeletAllocation(pod, container, _parse_cpus(text, f"entries.{pod}.{container}"))
    for pod, entry in _check_mapping(cpu_state.get("podEntries"), "podEntries").items():
        text = _check_mapping(entry, f"podEntries.{pod}").get("cpuSet", "")
        yield KubeletAllocation(pod, "", _parse_cpus(text, f"podEntries.{pod}.cpuSet"))


def _check_mapping(value: object, field: str) -> Mapping[str, Any]:
    if value is None or isinstance(value, dict):
        return value or {}
    raise BadInput.of(_CHECKPOINT, field, shown(value), "an object")


def _parse_cpus(text: object, field: str) -> frozenset[int]:
    if not isinstance(text, str):
        raise BadInput.of(_CHECKPOINT, field, shown(text), "a CPU list")
    return frozenset(cpu_set_formats.parse_cpu_numbers(text, field))


def kubelet_conflicts(kubelet: KubeletState, allocations: Allocations) -> Sequence[Problem]:
    """The conflicts of the kubelet's managers with the pools, each with its remedy."""
    problems: list[Problem] = []
    if kubelet.unknown_fields:
        fields = truncate(", ".join(kubelet.unknown_fields), _MAX_FIELDS_TEXT)
        unknown = f"an unknown version with {fields}: it may give CPUs to containers that are not listed here"
        problems.append(Problem(f"kubelet's checkpoint {CPU_STATE}", unknown, KNOWN_VERSIONS))
    if not kubelet.is_static:
        return problems
    ours = allocations.cpus
    exclusive = {
        cpu for pool, cpu_list in allocations.cpu_lists if pool.is_exclusive for cpu in cpu_list.cpus
    }
    problems += [
        Problem(
            str(allocation),
            f"CPUs {cpu_set_formats.format_cpu_ranges(allocation.cpus & ours)} are in the node's pools",
            "others",
        )
        for allocation in kubelet.allocations
        if allocation.cpus & ours
    ]
    if open_to_all := kubelet.shared_pool & exclusive:
        seen = f"CPUs {cpu_set_formats.format_cpu_ranges(open_to_all)} of exclusive pools are open to all containers"
        wanted = "reservedSystemCPUs to have them, and the policy option strict-cpu-reservation"
        problems.append(Problem(f"kubelet's cpuManagerPolicy {kubelet.policy}", seen, wanted))
    if kubelet.memory_policy.lower() == STATIC:
        seen = "sets the NUMA nodes of containers of Guaranteed pods, as the node agent does with --enforce"
        problems.append(Problem("kubelet's memoryManagerPolicy Static", seen, "None"))
    return problems


def describe_kubelet_alternatives(allocations: Allocations) -> Mapping[str, str]:
    """The features of the kubelet that could replace each of the node's pools."""
    names = {NON_ISOLCPUS: EXCLUSIVE}
    return {
        pool: _ALTERNATIVES[names.get(pool, pool)]
        for pool in allocations.pools
        if names.get(pool, pool) in _ALTERNATIVES
    }
