"""The distribution of a machine's cores to pools, also by Intel Speed Select and by cores that the user names.

Standard library only.

Exclusive cores are chosen first, then shared ones, then explicitly listed ones; the others are infra. If the kernel
isolates cores, exclusive and shared cores are chosen from these, and infra from the others. Cores in a cgroup partition
are in no pool. A core is never divided: all its CPUs are in one list. Of a socket, cores that share a cache of level 3
are chosen one after the other. Intel Speed Select has cores with a higher base frequency (SST-BF), and classes of core
power (SST-CP).
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, Final, NamedTuple

from nodewise.base.errors import BadInput, Problem, shown
from nodewise_cpu.cpu_set_formats import LAST_CPU, format_cpu_list_without_ranges, format_cpu_ranges
from nodewise_cpu.kernel_file_reader import WHITE_SPACE
from nodewise_cpu.topology import CPUS, FASTEST_KIND, Core, Topology

OFF: Final = "-1"
"""The value without any cores."""

FIELD: Final = "--excl-non-isolcpus"
_WANTED: Final = (
    "core numbers and ranges separated by commas, such as 3,5-7; socket:core_id, such as 1:4; or cpu12"
)
_PIECE: Final = re.compile(
    r"cpu(?P<cpu>\d{1,9})|(?P<socket>\d{1,9}):(?P<core_id>\d{1,9})|(?P<first>\d{1,9})(?:-(?P<last>\d{1,9}))?",
    re.ASCII,
)


def parse_cores(text: str, topology: Topology) -> tuple[Core, ...]:
    """The cores in a text, in ascending order, each once.

    A number is the kernel's core id: it selects the core with that id on each socket, as in CMK. If no core has that
    id, it is the number of `nodewise cpu topology` and lscpu. BadInput names the parts that cannot be parsed, and those
    not on the machine.
    """
    problems: list[Problem] = []
    missing: dict[str, None] = {}
    cores: set[Core] = set()
    for piece in text.split(","):
        try:
            cores.update(_parse_cores_part(piece.strip(), topology, missing))
        except ValueError as error:
            problems.append(Problem(FIELD, shown(piece), str(error)))
    if missing:
        wanted = f"core numbers up to {len(topology.cores) - 1}, not those of logical CPUs"
        problems.append(Problem(FIELD, f"cores that are not on this machine: {', '.join(missing)}", wanted))
    if problems:
        raise BadInput("cannot read the cores", problems)
    return tuple(sorted(cores))


def _parse_cores_part(  # complexity: one branch for each form
    piece: str, topology: Topology, missing: dict[str, None]
) -> Sequence[Core]:
    """The cores of one part. Missing cores are added to `missing`. ValueError has the expected form."""
    match = _PIECE.fullmatch(piece)
    if not match:
        raise ValueError(_WANTED)
    if match["first"] is None:
        cpu, place = match["cpu"], (match["socket"], match["core_id"])
        named = [
            core
            for core in topology.cores
            if (int(cpu) in core.cpus if cpu else (core.socket, core.core_id) == tuple(map(int, place)))
        ]
        missing.update({} if named else {piece: None})
        return named
    first = int(match["first"])
    last = int(match["last"] or first)
    if first > last:
        raise ValueError("a range whose first number is not above its last")
    if last > LAST_CPU:
        raise ValueError(f"numbers up to {LAST_CPU}")
    cores: list[Core] = []
    for number in range(first, last + 1):
        same_id = [core for core in topology.cores if core.core_id == number]
        matches = same_id or topology.cores[number : number + 1]
        cores += matches
        missing.update({} if matches else {str(number): None})
    return cores


POWER_CLASSES: Final = ("performance", "balance_performance", "balance_power", "power")
"""The energy performance preferences of classes, the most important first; other preferences make no class."""

_FREQUENCY: Final = re.compile(rf"{CPUS}/cpu(\d+)/cpufreq/base_frequency", re.ASCII)
_PREFERENCE: Final = re.compile(rf"{CPUS}/cpu(\d+)/cpufreq/energy_performance_preference", re.ASCII)


def cpus_above_base_frequency(texts: Mapping[str, str], base_mhz: int | None) -> frozenset[int]:
    """The CPUs whose base frequency is above the processor's (`sysfs.read_base_mhz`).

    If the register cannot be read, the lowest frequency of all CPUs is used instead. Without frequencies the result is
    empty.
    """
    khz = {
        cpu: int(text)
        for cpu, text in _file_text_by_cpu(texts, _FREQUENCY)
        if re.fullmatch(r"\d{1,12}", text, re.ASCII)
    }
    base_khz = base_mhz * 1000 if base_mhz is not None else min(khz.values(), default=0)
    return frozenset(cpu for cpu, frequency in khz.items() if frequency > base_khz)


def energy_preferences(texts: Mapping[str, str]) -> Mapping[int, str]:
    """The energy performance preference of each CPU that has one."""
    return dict(_file_text_by_cpu(texts, _PREFERENCE))


def _file_text_by_cpu(texts: Mapping[str, str], path: re.Pattern[str]) -> Iterable[tuple[int, str]]:
    matches = ((path.fullmatch(name), text) for name, text in texts.items())
    return ((int(match[1]), text.strip(WHITE_SPACE).partition("\n")[0]) for match, text in matches if match)


def group_cores_by_power_class(
    cores: Iterable[Core], preferences: Mapping[int, str]
) -> Mapping[str, tuple[Core, ...]]:
    """The classes that occur, the most important first, with their cores in the given order.

    A core whose CPUs differ, or have a preference that is not in `CLASSES`, is in no class.
    """
    members: dict[str, list[Core]] = {name: [] for name in POWER_CLASSES}
    for core in cores:
        names = {preferences.get(cpu, "") for cpu in core.cpus}
        for name in names & members.keys() if len(names) == 1 else ():
            members[name].append(core)
    return {name: tuple(cores) for name, cores in members.items() if cores}


EXCLUSIVE: Final = "exclusive"
SHARED: Final = "shared"
INFRA: Final = "infra"
NON_ISOLCPUS: Final = "exclusive-non-isolcpus"

IS_EXCLUSIVE: Final[Mapping[str, bool]] = {EXCLUSIVE: True, SHARED: False, NON_ISOLCPUS: True, INFRA: False}
"""All pools in the order in which they are filled, and whether each of their lists is for one task only."""


_CANNOT_DIVIDE: Final = "cannot divide the cores into pools"
_CANNOT_DIVIDE_BY_POWER: Final = "cannot divide the cores by core power"


class PoolOptions(NamedTuple):
    """The sizes of pools, from the options of `init` and `plan`."""

    exclusive: int = 4
    shared: int = 1
    exclusive_mode: str = "packed"
    """`packed` takes all cores of a socket before the next socket's, `spread` one of each socket in turn."""
    shared_mode: str = "packed"
    non_isolcpus: str = OFF
    """Cores outside the isolated ones that are exclusive as well, by number; `-1` for none."""
    exclusive_kind: str = ""
    """The kind of the cores of the pool exclusive (`Core.kind`); empty for any."""


class PoolPlan(NamedTuple):
    """The CPU lists of each pool and socket, and warnings for the operator."""

    pools: Mapping[str, Mapping[int, tuple[str, ...]]]
    warnings: tuple[Problem, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The output of `nodewise cpu plan -o json`."""
        return {
            "pools": {
                pool: {str(socket): list(lists) for socket, lists in sockets.items()}
                for pool, sockets in self.pools.items()
            }
        }


def plan(
    topology: Topology,
    options: PoolOptions,
    fast: Collection[int] = (),
    preferences: Mapping[int, str] | None = None,
) -> PoolPlan:
    """The pools of a machine.

    `fast` are the CPUs with a higher base frequency, if SST-BF is on. `preferences` has the energy performance
    preference of each CPU, if SST-CP is on; it takes precedence over SST-BF. The same arguments always give the same
    lists. BadInput has the reason if the machine cannot be divided like that.
    """
    partitions = partition_warnings(topology)
    usable = topology._replace(
        cores=tuple(core for core in topology.cores if topology.partitions.isdisjoint(core.cpus))
    )
    try:
        taken, warnings = _divide_cores(usable, options, fast, preferences, topology)
    except BadInput as error:
        raise BadInput(error.what, [*error.problems, *partitions], remedy=error.remedy) from error
    pools: dict[str, dict[int, tuple[str, ...]]] = {
        pool: dict.fromkeys(topology.sockets, ())
        for pool in IS_EXCLUSIVE
        if pool != NON_ISOLCPUS or options.non_isolcpus != OFF
    }
    for core in usable.cores:
        if pool := taken.get(core):
            lists = pools[pool][core.socket]
            joined = (*lists, core.text) if IS_EXCLUSIVE[pool] or not lists else (f"{lists[0]},{core.text}",)
            pools[pool][core.socket] = joined
    return PoolPlan(pools, (*partitions, *warnings))


def partition_warnings(topology: Topology) -> Sequence[Problem]:
    """A warning about cores that are in no pool because CPUs of theirs are in cgroup partitions."""
    if not topology.partitions:
        return ()
    seen = f"CPUs {format_cpu_ranges(topology.partitions)}, on which no process of another cgroup may run"
    cpus = chain.from_iterable(
        core.cpus for core in topology.cores if not topology.partitions.isdisjoint(core.cpus)
    )
    expected = f"none: their cores (CPUs {format_cpu_ranges(cpus)}) are in no pool"
    return [Problem("cgroup partitions", seen, expected)]


def _divide_cores(
    topology: Topology,
    options: PoolOptions,
    fast: Collection[int],
    preferences: Mapping[int, str] | None,
    whole: Topology,
) -> tuple[Mapping[Core, str], Sequence[Problem]]:
    """The pool of each core, and warnings. `topology` has no cores in cgroup partitions, `whole` has them."""
    _check_options(topology, options)
    warnings = [*topology.unread]
    isolated = _isolated_cores(topology, options, warnings)
    quick = frozenset(core for core in topology.cores if set(core.cpus) <= set(fast))
    candidates = _candidate_cores(topology, options, isolated, quick & isolated, preferences, warnings)
    taken: dict[Core, str] = {}
    for pool, count in ((EXCLUSIVE, options.exclusive), (SHARED, options.shared), (INFRA, None)):
        if pool == INFRA and options.non_isolcpus != OFF:
            cores = _exclusive_non_isolated_cores(whole, options.non_isolcpus, taken, isolated)
            taken.update(dict.fromkeys(cores, NON_ISOLCPUS))
        kind = options.exclusive_kind if pool == EXCLUSIVE else ""
        free = [core for core in candidates[pool] if core not in taken and kind in ("", core.kind)]
        _check_enough_cores(pool, len(free), count, kind)
        free.sort(key=lambda core: core not in quick)
        taken.update(dict.fromkeys(free[:count], pool))
    warnings += _half_isolated_warnings(topology, isolated, taken)
    if not options.exclusive_kind:
        warnings += _slow_exclusive_core_warnings(taken)
    return taken, warnings


def _slow_exclusive_core_warnings(taken: Mapping[Core, str]) -> Sequence[Problem]:
    exclusive = [core for core, pool in taken.items() if pool == EXCLUSIVE]
    slow = [core for core in exclusive if core.kind not in (None, FASTEST_KIND)]
    if not slow:
        return ()
    kinds = ", ".join(sorted({str(core.kind) for core in slow}))
    cpus = format_cpu_ranges(chain.from_iterable(core.cpus for core in slow))
    wanted = f"cores of the kind {FASTEST_KIND}, which --exclusive-kind {FASTEST_KIND} chooses"
    return [Problem("pool exclusive", f"CPUs {cpus} of the kind {kinds}", wanted)]


def _check_enough_cores(pool: str, free: int, count: int | None, kind: str) -> None:
    if free >= (1 if count is None else count):
        return
    seen = (f"{free} cores available" if free else "no free cores") + (f" of the kind {kind}" if kind else "")
    wanted = "at least one" if count is None else f"{count} requested"
    raise BadInput.of(_CANNOT_DIVIDE, f"pool {pool}", seen, wanted)


def _check_options(topology: Topology, options: PoolOptions) -> None:
    """BadInput if a number of cores is negative, or the machine has no cores of the kind."""
    problems = [
        Problem(f"number of {pool} cores", str(count), "0 or more")
        for pool, count in ((EXCLUSIVE, options.exclusive), (SHARED, options.shared))
        if count < 0
    ]
    kind, kinds = options.exclusive_kind, topology.kinds
    if not problems and kind and kind not in kinds:
        wanted = "one of " + ", ".join(kinds) if kinds else "no kind: all cores are of one kind"
        problems.append(Problem("exclusive kind", shown(kind), wanted))
    if problems:
        raise BadInput(_CANNOT_DIVIDE, problems)


def _half_isolated_warnings(
    topology: Topology, isolated: Collection[Core], taken: Mapping[Core, str]
) -> Sequence[Problem]:
    halves = [core for core in topology.cores if core not in isolated and topology.isolated & set(core.cpus)]
    if not halves:
        return ()
    cpus = topology.isolated.intersection(chain.from_iterable(core.cpus for core in halves))
    pools = [pool for pool in IS_EXCLUSIVE if any(taken.get(core) == pool for core in halves)]
    ignored = "" if isolated else "no core is isolated, so the isolation is ignored; "
    seen = f"{ignored}CPUs {format_cpu_ranges(cpus)}, on which the kernel balances no load"
    return [Problem("pools " + ", ".join(pools), seen, "cores with all or none of their CPUs isolated")]


def _isolated_cores(topology: Topology, options: PoolOptions, warnings: list[Problem]) -> frozenset[Core]:
    """The cores all of whose CPUs are isolated; BadInput if there are some, but fewer than requested."""
    isolated = frozenset(core for core in topology.cores if set(core.cpus) <= topology.isolated)
    for core in topology.cores:
        alone = topology.isolated.intersection(core.cpus)
        if alone and core not in isolated:
            seen = f"only CPU {format_cpu_list_without_ranges(alone)} isolated"
            warnings.append(Problem(f"core {core.core}", seen, f"all of {core.text}"))
    count, wanted = str(len(isolated)), options.exclusive + options.shared
    if isolated and len(isolated) < wanted:
        expected = f"{wanted} cores for the pools exclusive and shared"
        raise BadInput.of("too few cores are isolated", "isolated cores", count, expected)
    if isolated and len(isolated) > wanted:
        expected = f"{wanted} for the pools exclusive and shared: the others stay unused"
        warnings.append(Problem("isolated cores", count, expected))
    return isolated


def _candidate_cores(
    topology: Topology,
    options: PoolOptions,
    isolated: frozenset[Core],
    quick: frozenset[Core],
    preferences: Mapping[int, str] | None,
    warnings: list[Problem],
) -> Mapping[str, Sequence[Core]]:
    """The cores to choose from for each pool that has a size, in the order of choice.

    They are chosen by SST-CP, by SST-BF, by the kernel's isolation, or from all cores: the first that applies.
    """
    if preferences is not None and isolated:
        return _candidates_by_power_class(
            _order_cores_socket_by_socket(topology.cores), options, isolated, preferences
        )
    among = {EXCLUSIVE: quick or isolated, SHARED: isolated} if isolated else {}
    orders = {"packed": _order_cores_socket_by_socket, "spread": _order_cores_across_sockets}
    candidates = {}
    for pool, mode in ((EXCLUSIVE, options.exclusive_mode), (SHARED, options.shared_mode)):
        if mode not in orders:
            warnings.append(Problem(f"{pool} mode", shown(mode), "packed or spread: packed is taken"))
        order = orders.get(mode, _order_cores_socket_by_socket)
        candidates[pool] = order(among.get(pool, topology.cores))
    others = [core for core in topology.cores if core not in isolated]
    return candidates | {INFRA: _order_cores_socket_by_socket(others)}


def _order_cores_socket_by_socket(cores: Iterable[Core]) -> Sequence[Core]:
    """All cores of a socket before the next socket's, and of these all of a cache before the next cache's."""
    return sorted(
        cores, key=lambda core: (core.socket, core.cpus[0] if core.l3 is None else core.l3, core.core)
    )


def _order_cores_across_sockets(cores: Iterable[Core]) -> Sequence[Core]:
    sockets: dict[int, list[Core]] = {}
    for core in _order_cores_socket_by_socket(cores):
        sockets.setdefault(core.socket, []).append(core)
    return [core for core in chain.from_iterable(zip_longest(*sockets.values())) if core is not None]


def _candidates_by_power_class(
    cores: Sequence[Core], options: PoolOptions, isolated: frozenset[Core], preferences: Mapping[int, str]
) -> Mapping[str, Sequence[Core]]:
    """The candidates by SST-CP: the first class is exclusive, the second shared; of two classes the first is both."""
    classes = group_cores_by_power_class(cores, preferences)
    sizes: Sequence[int]
    if len(classes) == 3:  # noqa: PLR2004 - one class a pool
        sizes = (options.exclusive, options.shared)
    elif len(classes) == 2:  # noqa: PLR2004 - one class for both pools of isolated cores
        sizes = (options.exclusive + options.shared,)
    else:
        seen, wanted = ", ".join(classes) or "none", "two or three of " + ", ".join(POWER_CLASSES)
        raise BadInput.of(_CANNOT_DIVIDE_BY_POWER, "energy performance preferences", seen, wanted)
    problems = [
        Problem(f"cores of class {name}", str(len(classes[name])), f"{count}, as many as are asked for")
        for name, count in zip(classes, sizes, strict=False)
        if len(classes[name]) != count
    ]
    *first, last = classes.values()
    problems += [
        Problem(f"core {core.core}", "not isolated", "isolated cores in the first classes")
        for core in chain.from_iterable(first)
        if core not in isolated
    ]
    if problems:
        raise BadInput(_CANNOT_DIVIDE_BY_POWER, problems)
    infra = [core for core in last if core not in isolated]
    return {EXCLUSIVE: first[0], SHARED: first[-1], INFRA: infra}


def _exclusive_non_isolated_cores(
    topology: Topology, text: str, taken: Mapping[Core, str], isolated: frozenset[Core]
) -> Sequence[Core]:
    cores = parse_cores(text, topology)
    partitioned = [core for core in cores if not topology.partitions.isdisjoint(core.cpus)]
    reasons = [
        *((core, f"in pool {taken[core]}", "cores of no other pool") for core in cores if core in taken),
        *((core, "isolated", "cores that are not") for core in cores if core in isolated - taken.keys()),
        *((core, "in a cgroup partition", "cores that are not") for core in partitioned),
    ]
    problems = [Problem(FIELD, f"core {core.core} is {seen}", wanted) for core, seen, wanted in reasons]
    if problems:
        raise BadInput(_CANNOT_DIVIDE, problems)
    return cores
