"""A machine's sockets, NUMA nodes, cores and CPUs, from the texts of its `/sys` and `/proc`.

Standard library only.

A core is the set of its online threads according to the kernel, because core ids repeat in different sockets and, on
some machines, within one. `core` and `socket` are numbered as by `lscpu -p`, in the order of their first CPU: CMK
stored these numbers. The kernel's own numbers are `core_id` and `package_id`. The latter is -1, or missing, if the
firmware does not provide it: then a socket is a set of CPUs that the kernel lists as siblings, and without such sets
there is one socket. On IBM Z, `package_id` repeats in each book, and the number of a book in each drawer.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, Final, NamedTuple

from nodewise.base.errors import BadInput, Problem, shown
from nodewise_cpu import cpu_set_formats
from nodewise_cpu.kernel_file_reader import WHITE_SPACE

CPUS: Final = "sys/devices/system/cpu"
NODES: Final = "sys/devices/system/node"
COMMAND_LINE: Final = "proc/cmdline"
ROOT_CGROUP: Final = "sys/fs/cgroup"
ROOT_CPUS: Final = f"{ROOT_CGROUP}/cpuset.cpus.effective"
"""The online CPUs that are in no partition, in the root cgroup of version 2."""
PARTITION_CPUS: Final = f"{ROOT_CGROUP}/cpuset.cpus.isolated"
"""The CPUs of isolated partitions, since Linux 6.7; newer kernels also list those of `isolcpus=`."""
OWN_PARTITIONS: Final = "run/nodewise/partitions.json"
"""The partitions that the node agent created for containers (`cpusets.container_cpusets`)."""

FASTEST_KIND: Final = "performance"
"""The kind of the fastest cores of a machine that has several kinds."""

_FOLDER: Final = re.compile(rf"{CPUS}/cpu(\d+)", re.ASCII)
_NODE: Final = re.compile(rf"({NODES}/node(\d+))/cpu(?:list|map)", re.ASCII)
_UNIT: Final = re.compile(r"sys/devices/cpu_(\w+)/cpus", re.ASCII)
_CACHE: Final = re.compile(rf"({CPUS}/cpu(\d+)/cache/index\d+)/level", re.ASCII)
_L3: Final = "3"
_LIST_FILES: Final = ("list", "present", "online", "isolated", "effective", "_memory", "/cpus")
"""The ends of the names of files with lists of CPUs; others have masks."""
_IMPLEMENTER_AND_PART: Final = 0xFF00FFF0
_LARGEST_RATIO_WITHIN_A_KIND: Final = 1.1
_UNITS: Final = {"core": FASTEST_KIND, "atom": "efficiency", "lowpower": "low-power"}
"""The names of hybrid processors' event counters (`/sys/devices/cpu_core`), and our names of these kinds of cores."""


class Cpu(NamedTuple):
    """One logical CPU; an offline one has no place. None stands for an unknown value."""

    cpu: int
    core: int | None = None
    core_id: int | None = None
    socket: int | None = None
    package_id: int | None = None
    die: int | None = None
    numa: int | None = None
    kind: str | None = None
    """The kind of core if the machine has several: `performance`, `middle`, `efficiency`, `low-power`."""
    online: bool = True
    isolated: bool = False
    siblings: tuple[int, ...] = ()
    """The online CPUs of its core including itself, ascending."""
    l3: int | None = None
    """The lowest CPU that shares its cache of level 3."""
    partition: bool = False
    """Whether it is in a cgroup partition: only the processes of that cgroup may run on it."""


class Core(NamedTuple):
    """One physical core: its online CPUs, ascending."""

    core: int
    core_id: int | None
    socket: int
    cpus: tuple[int, ...]
    kind: str | None = None
    """As in `Cpu`."""
    l3: int | None = None
    """As in `Cpu`."""

    @property
    def text(self) -> str:
        return cpu_set_formats.format_cpu_list_without_ranges(self.cpus)


class Topology(NamedTuple):
    """All present CPUs, ascending; the cores, by number; and harmless problems."""

    cpus: tuple[Cpu, ...]
    cores: tuple[Core, ...]
    unread: tuple[Problem, ...] = ()
    memory_nodes: frozenset[int] | None = None
    """The NUMA nodes that have memory; None if the kernel does not list them."""

    @property
    def sockets(self) -> tuple[int, ...]:
        return tuple(sorted({core.socket for core in self.cores}))

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of cores, sorted; none if all cores are of one kind."""
        return tuple(sorted({core.kind for core in self.cores if core.kind is not None}))

    @property
    def online(self) -> frozenset[int]:
        return frozenset(cpu.cpu for cpu in self.cpus if cpu.online)

    @property
    def isolated(self) -> frozenset[int]:
        return frozenset(cpu.cpu for cpu in self.cpus if cpu.isolated)

    @property
    def partitions(self) -> frozenset[int]:
        """The CPUs in cgroup partitions."""
        return frozenset(cpu.cpu for cpu in self.cpus if cpu.partition)

    @property
    def caches(self) -> Mapping[int, int]:
        """The cache of level 3 of each CPU that has one (`Cpu.l3`)."""
        return {cpu.cpu: cpu.l3 for cpu in self.cpus if cpu.l3 is not None}

    @property
    def memory_only_nodes(self) -> frozenset[int]:
        """The NUMA nodes with memory and without CPUs, such as memory on CXL or on a GPU."""
        return (self.memory_nodes or frozenset()) - {cpu.numa for cpu in self.cpus}

    def memory_nodes_of(self, cpus: Collection[int]) -> frozenset[int]:
        """The NUMA nodes of these CPUs that have memory; none if the node of one of the CPUs is unknown.

        A cgroup refuses (version 1) or ignores (version 2) a node without memory in `cpuset.mems`.
        """
        nodes = {cpu.numa for cpu in self.cpus if cpu.cpu in cpus}
        if None in nodes:
            return frozenset()
        numbers = frozenset(node for node in nodes if node is not None)
        return numbers if self.memory_nodes is None else numbers & self.memory_nodes

    def as_dict(self) -> dict[str, Any]:
        """The output of `nodewise cpu topology -o json`."""
        cpus = [{**cpu._asdict(), "siblings": list(cpu.siblings)} for cpu in self.cpus]
        return {"sockets": len(self.sockets), "cores": len(self.cores), "cpus": cpus}


_Package = tuple[int | None, ...] | frozenset[int]


class _CpuLocation(NamedTuple):
    """The kernel's location of an online CPU; `package` identifies the socket, by numbers or by its CPUs."""

    core_id: int | None
    die: int | None
    package_id: int | None
    package: _Package
    threads: frozenset[int]


class _MachineFiles:
    """The files as numbers and sets; `problems` collects those that cannot be parsed."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self.problems: list[Problem] = []

    def number(self, path: str) -> int | None:
        """A number; None for a missing or empty file, and for a negative number: the kernel means unknown."""
        text = self.texts.get(path, "").strip(WHITE_SPACE) or "-1"
        if not re.fullmatch(r"-?\d{1,18}", text, re.ASCII):
            self.problems.append(Problem(path, shown(text), "a whole number"))
            return None
        return int(text) if int(text) >= 0 else None

    def cpus(self, *paths: str) -> frozenset[int] | None:
        """The CPUs in the first of these files that has a line."""
        for path in paths:
            text = self.texts.get(path)
            if not text:
                continue
            has_list = path.endswith(_LIST_FILES)
            parse = cpu_set_formats.parse_cpu_numbers if has_list else cpu_set_formats.parse_cpu_mask
            try:
                return frozenset(parse(text, path))
            except BadInput as error:
                self.problems += error.problems
        return None


def parse(texts: Mapping[str, str]) -> Topology:  # complexity: one file of the kernel after the other
    """The topology of the machine with these files: path below its root to text (`machine_features.read_sysfs_files`).

    BadInput names every file that the kernel would not write like that, or says that there is no CPU.
    """
    files = _MachineFiles(texts)
    present = files.cpus(f"{CPUS}/present") or {
        int(match[1]) for path in texts if (match := _FOLDER.match(path))
    }
    online = _online_cpus(files, present)
    places = {cpu: _read_cpu_place(files, cpu) for cpu in sorted(online)}
    nodes, overlaps = _numa_node_by_cpu(files)
    memory_nodes = files.cpus(f"{NODES}/has_memory", f"{NODES}/has_normal_memory")
    caches, kinds = _l3_by_cpu(files), _core_kinds(files, online)
    unread: Sequence[Problem] = ()
    isolated = files.cpus(f"{CPUS}/isolated")
    if isolated is None:  # older kernels only have their command line
        last = max(present, default=None)
        isolated, unread = cpu_set_formats.parse_isolcpus(texts.get(COMMAND_LINE, ""), last)
    partitions = _cpus_of_partitions(files, online)
    if not online:
        expected = "the folders `sys` and `proc` of a machine"
        files.problems.append(Problem(CPUS, "no CPU that is online", expected))
    if files.problems:
        raise BadInput("cannot read the machine's topology", files.problems)
    cores = _group_cpus_into_cores(places, kinds, caches)
    core_of = {cpu: core for core in cores for cpu in core.cpus}
    cpus = [
        Cpu(
            cpu,
            core=core_of[cpu].core,
            core_id=places[cpu].core_id,
            socket=core_of[cpu].socket,
            package_id=places[cpu].package_id,
            die=places[cpu].die,
            siblings=core_of[cpu].cpus,
            l3=caches.get(cpu),
        )
        if cpu in online
        else Cpu(cpu, online=False)
        for cpu in sorted(present | online)
    ]
    whole = tuple(
        cpu._replace(
            numa=nodes.get(cpu.cpu),
            kind=kinds.get(cpu.cpu),
            isolated=cpu.cpu in isolated,
            partition=cpu.cpu in partitions,
        )
        for cpu in cpus
    )
    return Topology(whole, tuple(cores), (*unread, *overlaps), memory_nodes)


def _online_cpus(files: _MachineFiles, present: Iterable[int]) -> frozenset[int]:
    """The kernel's list. Older kernels have a file for each CPU except cpu0, and no topology of offline CPUs."""
    listed = files.cpus(f"{CPUS}/online")
    if listed is not None:
        return listed
    placed = {
        int(match[1]) for path in files.texts if "/topology/" in path and (match := _FOLDER.match(path))
    }
    online = {cpu: files.number(f"{CPUS}/cpu{cpu}/online") for cpu in present}
    return frozenset(
        cpu
        for cpu in present
        if online[cpu] != 0 and (online[cpu] is not None or cpu in placed or not placed)
    )


def _read_cpu_place(files: _MachineFiles, cpu: int) -> _CpuLocation:
    folder = f"{CPUS}/cpu{cpu}/topology"

    def sets(*names: str) -> frozenset[int] | None:
        """The CPUs in the list or the mask of the first of these, older and newer names of one set."""
        return files.cpus(*(f"{folder}/{name}{form}" for name in names for form in ("_list", "")))

    package_id = files.number(f"{folder}/physical_package_id")
    package: _Package = sets("core_siblings", "package_cpus") or frozenset()
    if package_id is not None:
        package = (files.number(f"{folder}/drawer_id"), files.number(f"{folder}/book_id"), package_id)
    return _CpuLocation(
        core_id=files.number(f"{folder}/core_id"),
        die=files.number(f"{folder}/die_id"),
        package_id=package_id,
        package=package,
        threads=sets("thread_siblings", "core_cpus") or frozenset({cpu}),
    )


def _group_cpus_into_cores(
    places: Mapping[int, _CpuLocation], kinds: Mapping[int, str], caches: Mapping[int, int]
) -> list[Core]:
    """The cores. Every CPU is in one core, even if the kernel's sets contradict."""
    cores: list[Core] = []
    grouped: set[int] = set()
    sockets: dict[_Package, int] = {}
    for cpu, place in places.items():
        socket = sockets.setdefault(place.package, len(sockets))
        if cpu not in grouped:
            members = tuple(sorted((place.threads & places.keys()) - grouped | {cpu}))
            grouped.update(members)
            first = members[0]
            cores.append(
                Core(len(cores), place.core_id, socket, members, kinds.get(first), caches.get(first))
            )
    return cores


def _numa_node_by_cpu(files: _MachineFiles) -> tuple[Mapping[int, int], Sequence[Problem]]:
    """The NUMA node of each CPU, the lowest one where several nodes list it, and warnings about such nodes.

    Faulty firmware and the emulation of NUMA nodes (`numa=fake=`) list a CPU in several nodes.
    """
    nodes: dict[int, int] = {}
    shared: dict[int, tuple[set[int], set[int]]] = {}
    folders = {int(match[2]): match[1] for path in files.texts if (match := _NODE.fullmatch(path))}
    for node, folder in sorted(folders.items()):
        for cpu in files.cpus(f"{folder}/cpulist", f"{folder}/cpumap") or ():
            lowest = nodes.setdefault(cpu, node)
            if lowest != node:
                others, cpus = shared.setdefault(lowest, (set(), set()))
                others.add(node)
                cpus.add(cpu)
    return nodes, [
        Problem(
            f"NUMA nodes {lowest},{cpu_set_formats.format_cpu_ranges(others)}",
            f"several nodes with CPUs {cpu_set_formats.format_cpu_ranges(cpus)}",
            f"each CPU in one node: node {lowest} is taken",
        )
        for lowest, (others, cpus) in shared.items()
    ]


def _l3_by_cpu(files: _MachineFiles) -> Mapping[int, int]:
    caches: dict[int, int] = {}
    for path, text in files.texts.items():
        match = _CACHE.fullmatch(path)
        if match and text.strip(WHITE_SPACE) == _L3:
            cpus = files.cpus(f"{match[1]}/shared_cpu_list", f"{match[1]}/shared_cpu_map")
            caches[int(match[2])] = min(cpus or (), default=int(match[2]))
    return caches


def _cpus_of_partitions(files: _MachineFiles, online: frozenset[int]) -> frozenset[int]:
    """The online CPUs in cgroup partitions (version 2), isolated or not.

    The root cgroup loses them, so that every other process that asks for one in its affinity gets EINVAL. A kernel that
    lists CPUs of `isolcpus=` as those of partitions leaves them to the root cgroup. (Documentation/admin-guide/
    cgroup-v2.rst, cpuset.cpus.partition.) The node agent's own partitions hold CPUs of the pools and are left out; if
    its file cannot be read they count as foreign ones.
    """
    rest = files.cpus(ROOT_CPUS)
    isolated = (files.cpus(PARTITION_CPUS) or frozenset()) - (files.cpus(f"{CPUS}/isolated") or frozenset())
    taken = isolated if rest is None else isolated | (online - rest)
    try:
        document = json.loads(files.texts.get(OWN_PARTITIONS) or "{}")
        lists = [str(entry["cpus"]) for entry in document.values()]
        own = frozenset(chain.from_iterable(map(cpu_set_formats.parse_cpu_numbers, lists)))
    except (AttributeError, BadInput, KeyError, RecursionError, TypeError, ValueError):
        own = frozenset()
    return (taken & online) - own


def _core_kinds(files: _MachineFiles, online: frozenset[int]) -> Mapping[int, str]:
    """The kind of core of each CPU, if the machine has several kinds.

    The kernel names the kinds by its event counters (x86), or each CPU has an identification register (ARM), or a
    capacity (ARM, RISC-V). Otherwise the firmware's values decide: the ranges of the highest performance of two kinds
    do not overlap. Base frequencies alone are not sufficient, because Speed Select makes some cores of one kind faster
    than others.
    """
    units = {path: _UNITS.get(match[1], match[1]) for path in files.texts if (match := _UNIT.fullmatch(path))}
    if units:
        return {cpu: kind for path, kind in units.items() for cpu in files.cpus(path) or ()}
    figures = _performance_of_each_kind(files, online)
    slowest, quickest = min(figures.values(), default=0), max(figures.values(), default=0)
    if slowest == quickest:
        return {}
    names = {slowest: "efficiency", quickest: FASTEST_KIND}
    return {cpu: names.get(figure, "middle") for cpu, figure in figures.items()}


def _performance_of_each_kind(files: _MachineFiles, online: frozenset[int]) -> Mapping[int, int]:
    """For each CPU a value of its kind, higher for faster ones; empty without sufficient files."""
    capacities = _values_of_all_cpus(files, online, "cpu_capacity")
    nominal = _values_of_all_cpus(files, online, "acpi_cppc/nominal_perf")
    highest = _values_of_all_cpus(files, online, "acpi_cppc/highest_perf")
    models = _model_of_each_cpu(files, online)
    if models and (capacities or highest):
        values = capacities or highest
        fastest: dict[int, int] = {}
        for cpu, model in models.items():
            fastest[model] = max(fastest.get(model, 0), values[cpu])
        return {cpu: fastest[model] for cpu, model in models.items()}
    if capacities:
        return _group_close_values(capacities)
    return nominal if nominal and highest and _ranges_are_disjoint(nominal, highest) else {}


def _model_of_each_cpu(files: _MachineFiles, online: frozenset[int]) -> Mapping[int, int]:
    """Implementer and part number of each CPU of an ARM machine, if all CPUs have them.

    The Main ID Register (Arm Architecture Reference Manual, MIDR_EL1) also has the variant and the revision, which may
    differ between cores of one kind.
    """
    models: dict[int, int] = {}
    for cpu in online:
        text = files.texts.get(f"{CPUS}/cpu{cpu}/regs/identification/midr_el1", "").strip(WHITE_SPACE)
        if not re.fullmatch(r"0x[0-9a-f]{1,16}", text, re.ASCII):
            return {}
        models[cpu] = int(text, 16) & _IMPLEMENTER_AND_PART
    return models


def _group_close_values(values: Mapping[int, int]) -> Mapping[int, int]:
    """For each CPU the highest value of its group. Groups are separated by gaps of more than a tenth.

    Cores of one kind differ by the frequency that the firmware gives them: by 3 % on an NVIDIA GB10, whose two kinds
    differ by 36 %.
    """
    group_of: dict[int, int] = {}
    above = None
    for value in sorted(set(values.values()), reverse=True):
        is_close = above is not None and above <= value * _LARGEST_RATIO_WITHIN_A_KIND
        group_of[value] = group_of[above] if is_close and above is not None else value
        above = value
    return {cpu: group_of[value] for cpu, value in values.items()}


def _ranges_are_disjoint(nominal: Mapping[int, int], highest: Mapping[int, int]) -> bool:
    ranges: dict[int, list[int]] = {}
    for cpu, level in nominal.items():
        ranges.setdefault(level, []).append(highest[cpu])
    return all(max(ranges[low]) < min(ranges[high]) for low, high in pairwise(sorted(ranges)))


def _values_of_all_cpus(files: _MachineFiles, online: frozenset[int], name: str) -> Mapping[int, int]:
    figures = {cpu: files.number(f"{CPUS}/cpu{cpu}/{name}") for cpu in online}
    known = {cpu: figure for cpu, figure in figures.items() if figure is not None}
    return known if len(known) == len(figures) else {}
