"""A node's machine: its files, the features that the choice of pools depends on, and the creation of its first pools.

The feature file for Node Feature Discovery (NFD) says whether the core power classes of this node differ (SST-CP). CMK
had a script that overwrote the file `cpu`, which may hold other features. This is a separate file, with the full name
of the label, so that it is the same for versions of NFD that prefix features with the file's name and for others. NFD
ignores files whose name begins with a dot; the file has such a name until it is complete.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from nodewise.base import trusted_files
from nodewise.base.errors import Conflict, Problem, Refused
from nodewise.kube.api_server_interface import NotFound
from nodewise.kube.resource_kinds import NODES
from nodewise.observe import logs
from nodewise_cpu import pool_allocations, pool_planning, topology
from nodewise_cpu.allocation_store import AllocationStore
from nodewise_cpu.cluster.api_server import ApiClient
from nodewise_cpu.cmk_names import SST_BF, SST_CP
from nodewise_cpu.cpu_set_formats import format_cpu_ranges
from nodewise_cpu.kernel_file_reader import read_text
from nodewise_cpu.pool_allocations import Allocations
from nodewise_cpu.pool_planning import PoolOptions, PoolPlan
from nodewise_cpu.topology import (
    COMMAND_LINE,
    CPUS,
    OWN_PARTITIONS,
    PARTITION_CPUS,
    ROOT_CGROUP,
    ROOT_CPUS,
    Topology,
)

_FILES: Final = (
    COMMAND_LINE,
    OWN_PARTITIONS,
    *(f"{CPUS}/{name}" for name in ("present", "online", "isolated")),
    f"{CPUS}/cpu[0-9]*/online",
    *(
        f"{CPUS}/cpu[0-9]*/topology/{name}"
        for name in ("physical_package_id", "drawer_id", "book_id", "die_id", "core_id")
    ),
    *(
        f"{CPUS}/cpu[0-9]*/topology/{name}"
        for name in ("thread_siblings*", "core_cpus*", "core_siblings*", "package_cpus*")
    ),
    *(
        f"{CPUS}/cpu[0-9]*/cache/index[0-9]*/{name}"
        for name in ("level", "shared_cpu_list", "shared_cpu_map")
    ),
    f"{CPUS}/cpu[0-9]*/regs/identification/midr_el1",
    f"{CPUS}/cpu[0-9]*/cpu_capacity",
    *(f"{CPUS}/cpu[0-9]*/acpi_cppc/{name}_perf" for name in ("nominal", "highest")),
    *(f"{CPUS}/cpu[0-9]*/cpufreq/{name}" for name in ("base_frequency", "energy_performance_preference")),
    f"{topology.NODES}/node[0-9]*/cpulist",
    f"{topology.NODES}/node[0-9]*/cpumap",
    *(f"{topology.NODES}/{name}" for name in ("has_memory", "has_normal_memory")),
    "sys/devices/cpu_*/cpus",
)
_ROOT_CGROUPS: Final = (ROOT_CGROUP, f"proc/1/root/{ROOT_CGROUP}")
"""Where the root cgroup (version 2) of the machine may be: a container that sees the host's processes finds it there,
and at the first place its own cgroup."""
_LONGEST_BYTES: Final = 65_536
_PLATFORM_INFO: Final = 0xCE
"""The register whose second byte is the base frequency in units of 100 MHz (MSR_PLATFORM_INFO)."""


def read_sysfs_files(root: Path) -> Mapping[str, str]:
    """The files that the topology may need, path below `root` to text; unreadable ones are left out.

    The folder of each CPU is included with an empty text, because that of an offline CPU may be empty.
    """
    texts = {str(path.relative_to(root)): "" for path in root.glob(f"{CPUS}/cpu[0-9]*")}
    for pattern in _FILES:
        for path in root.glob(pattern):
            text = _read_sysfs_file(path)
            if text is not None:
                texts[str(path.relative_to(root))] = text
    return texts | _read_root_cgroup(root)


def _read_root_cgroup(root: Path) -> dict[str, str]:
    """The files of the root cgroup. Only a cgroup below it has the file `cpuset.cpus`, and is not read."""
    for folder in (root / place for place in _ROOT_CGROUPS):
        if _read_sysfs_file(folder / "cpuset.cpus") is not None:
            continue
        texts = {name: _read_sysfs_file(folder / Path(name).name) for name in (ROOT_CPUS, PARTITION_CPUS)}
        if existing := {name: text for name, text in texts.items() if text is not None}:
            return existing
    return {}


def _read_sysfs_file(path: Path) -> str | None:
    """None if the file cannot be read: the kernel returns an error for a value that it does not know.

    In a copy made by tar, a file is padded with zeros to the size that the kernel reports, which is a page.
    """
    try:
        with path.open("rb") as file:
            return file.read(_LONGEST_BYTES).decode("utf-8", "replace").rstrip("\0")
    except OSError:
        return None


def read_base_mhz(root: Path) -> int | None:
    """The processor's base frequency from a register; None without the device or the right to read it."""
    try:
        with (root / "dev/cpu/0/msr").open("rb", buffering=0) as file:
            file.seek(_PLATFORM_INFO)
            value = file.read(8)
    except OSError:
        return None
    return value[1] * 100 if len(value) == 8 else None  # noqa: PLR2004 - a register has eight bytes


MEMORY: Final = "proc/meminfo"
NO_LABELS: Final[Mapping[str, str]] = {}


class PoolInputs(NamedTuple):
    """The input of `pools.plan`. `fast` is empty if SST-BF is off, `preferences` is None if SST-CP is."""

    topology: Topology
    fast: frozenset[int] = frozenset()
    preferences: Mapping[int, str] | None = None

    def plan(self, options: PoolOptions) -> PoolPlan:
        """The pools of this machine. BadInput if it has too few cores, or other ones than named."""
        return pool_planning.plan(self.topology, options, self.fast, self.preferences)


def read(root: Path, labels: Mapping[str, str] = NO_LABELS) -> PoolInputs:
    """The machine whose `sys` and `proc` are below `root`. The node's `labels` tell which features are on.

    BadInput names the files that cannot be read.
    """
    texts = read_sysfs_files(root)
    fast, preferences = frozenset[int](), None
    if is_feature_enabled(labels, SST_BF):
        fast = pool_planning.cpus_above_base_frequency(texts, read_base_mhz(root))
    if is_feature_enabled(labels, SST_CP):
        preferences = pool_planning.energy_preferences(texts)
    return PoolInputs(topology.parse(texts), fast, preferences)


def is_feature_enabled(labels: Mapping[str, str], feature: str) -> bool:
    """Whether a label of Node Feature Discovery is true; some versions wrote `True`."""
    return labels.get(feature) in ("true", "True")


def fetch_labels(api: ApiClient, node: str) -> Mapping[str, str]:
    """The node's labels; none, with a log line, if the node does not exist or may not be read."""
    try:
        labels: Mapping[str, str] = api.get(NODES.path(name=node))["metadata"].get("labels") or {}
    except Refused as error:
        logs.emit("cpu_labels_unknown", why=str(error))
        return NO_LABELS
    return labels


def log_pool_plan(machine: PoolInputs, plan: PoolPlan) -> None:
    """Log the machine's features and the planned pools."""
    topology = machine.topology
    isolated = [core.core for core in topology.cores if set(core.cpus) <= topology.isolated]
    if topology.isolated:
        logs.emit(
            "cpu_isolated", cpus=format_cpu_ranges(topology.isolated), cores=format_cpu_ranges(isolated)
        )
    else:
        logs.emit("cpu_not_isolated")
    if machine.fast:
        logs.emit("cpu_fast", cpus=format_cpu_ranges(machine.fast))
    if machine.preferences is not None:
        classes = pool_planning.group_cores_by_power_class(topology.cores, machine.preferences)
        logs.emit("cpu_power", classes=", ".join(classes))
    for warning in plan.warnings:
        logs.emit("cpu_warning", what=str(warning))
    for pool, sockets in plan.pools.items():
        logs.emit("cpu_pool", pool=pool, lists=" ".join(text for texts in sockets.values() for text in texts))


def log_missing_huge_pages(root: Path) -> None:
    """Log that no huge page is free, or that the number is unknown."""
    try:
        text = read_text(root / MEMORY)
    except OSError as error:
        logs.emit("cpu_huge_pages_unknown", why=str(error))
        return
    free = re.search(r"^HugePages_Free: *([0-9]+)", text, re.MULTILINE)
    if free is None:
        logs.emit("cpu_huge_pages_unknown", why=f"no HugePages_Free in {MEMORY}")
    elif not int(free[1]):
        logs.emit("cpu_huge_pages")


FEATURE_FOLDER: Final = Path("/etc/kubernetes/node-feature-discovery/features.d")
FEATURE_FILE: Final = "nodewise-cpu"


def write_feature_file(folder: Path, preferences: Iterable[str]) -> bool:
    """Write or remove the file, given the energy performance preference of each CPU. Returns whether it changed.

    Nothing is written if the folder does not exist: NFD is not installed then. Refused if the file cannot be written,
    BadInput if users other than root can write to the folder.
    """
    if not folder.is_dir():
        return False
    trusted_files.check_folder(folder)
    file, new = folder / FEATURE_FILE, folder / f".{FEATURE_FILE}.new"
    text = f"{SST_CP}=true\n" if len(set(preferences)) > 1 else ""
    try:
        if not text:
            existed = file.exists()
            file.unlink(missing_ok=True)
            return existed
        if file.is_file() and file.read_text(encoding="utf-8", errors="replace") == text:
            return False
        new.write_text(text, encoding="utf-8")
        new.chmod(0o644)
        new.replace(file)
    except OSError as error:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise Refused.of(
            "cannot write the feature file for Node Feature Discovery",
            str(file),
            str(error),
            "a folder that may be written to",
        ) from error
    return True


_REMEDY: Final = "`nodewise cpu reconfigure` gives a node other pools, `uninstall` takes them away"


def store_new_pools(store: AllocationStore, plan: PoolPlan) -> bool:
    """Store the pools. Returns False if the node has exactly these pools already, with or without tasks.

    Conflict names the differences if the node has other pools.
    """
    planned = pool_allocations.allocations_without_tasks(plan.pools)
    try:
        stored = store.read().allocations
    except NotFound:
        try:
            store.create(planned)
        except Conflict:
            stored = store.read().allocations  # another process created them first
        else:
            return True
    problems = [
        Problem(f"pool {name}", _describe_cpu_lists(stored, name), _describe_cpu_lists(planned, name))
        for name in dict.fromkeys([*stored.pools, *planned.pools])
        if _cpu_sets(stored, name) != _cpu_sets(planned, name)
    ]
    if problems:
        raise Conflict(f"there are other pools already in {store.location}", problems, remedy=_REMEDY)
    return False


def _cpu_sets(allocations: Allocations, name: str) -> Mapping[int, frozenset[frozenset[int]]]:
    """The CPUs of each list of a pool by socket, however they are written."""
    pool = allocations.pools.get(name)
    return {
        socket: frozenset(frozenset(cpu_list.cpus) for cpu_list in cpu_lists)
        for socket, cpu_lists in (pool.sockets.items() if pool else ())
        if cpu_lists
    }


def _describe_cpu_lists(allocations: Allocations, name: str) -> str:
    """The lists of a pool: `2 CPU lists (0,4 1,5)`."""
    pool = allocations.pools.get(name)
    texts = [cpu_list.text for cpu_list in pool.cpu_lists] if pool else []
    lists = f"{len(texts)} CPU list{'s' * (len(texts) != 1)}"
    return f"{lists} ({' '.join(texts)})" if texts else lists
