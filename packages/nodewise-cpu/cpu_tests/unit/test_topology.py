"""Topologies of real machines, and of small synthetic ones."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from cpu_tests.unit import recorded_machine_files
from nodewise.base.errors import BadInput
from nodewise_cpu import topology
from nodewise_cpu.node import machine_features
from nodewise_cpu.topology import Topology

CPUS = topology.CPUS


def files(cpus: int, **more: str) -> dict[str, str]:
    """A machine with one socket and a core for each CPU. `more` has files below the folder of CPUs, `__` is a slash."""
    texts = {f"{CPUS}/present": f"0-{cpus - 1}", f"{CPUS}/online": f"0-{cpus - 1}"}
    for cpu in range(cpus):
        place = {"physical_package_id": "0", "core_id": str(cpu), "thread_siblings_list": str(cpu)}
        texts |= {f"{CPUS}/cpu{cpu}/topology/{name}": text for name, text in place.items()}
    return texts | {f"{CPUS}/{name.replace('__', '/')}": text for name, text in more.items()}


@pytest.mark.parametrize(
    ("name", "sockets", "cores", "present", "offline", "threads", "numa"),
    [
        ("16amd64-8n2c", 8, 16, 16, set(), {1}, set(range(8))),
        ("16em64t-4s2c2t-offlines", 4, 7, 16, {2, 5, 13, 14}, {1, 2}, {0}),
        ("20em64t-hybrid-1p6c2t+2ca4co1t", 1, 14, 20, set(), {1, 2}, {0}),
        ("256ppc-8n8s4t", 64, 64, 256, set(), {4}, {0, 1, 4, 5, 8, 9, 12, 13}),
        ("2i386-2c-nohugepage", 1, 2, 2, set(), {1}, {None}),
        ("64amd64-4s2n4ca2co", 4, 32, 64, set(), {2}, set(range(8))),
        ("arm-A510-A710-A715-X3", 3, 8, 8, set(), {1}, {None}),
        ("rv64-visionfive2", 1, 4, 4, set(), {1}, {0}),
        ("s390-lpar", 7, 17, 20, {0, 6, 7}, {1}, {None}),
        ("vmware_fpe", 2, 8, 16, set(), {2}, {0, 1, 2, 3}),
        ("x86_64-64cpu", 4, 32, 64, set(), {2}, {0, 2, 3}),
        ("x86_64-dell_e4310", 1, 2, 4, set(), {2}, {0}),
    ],
)
def test_real_machines(
    name: str,
    sockets: int,
    cores: int,
    present: int,
    offline: set[int],
    threads: set[int],
    numa: set[int | None],
) -> None:
    machine = recorded_machine_files.machine(name)
    assert (len(machine.sockets), len(machine.cores), len(machine.cpus)) == (sockets, cores, present)
    assert {cpu.cpu for cpu in machine.cpus if not cpu.online} == offline
    assert {len(core.cpus) for core in machine.cores} == threads
    assert {cpu.numa for cpu in machine.cpus} == numa
    assert machine.isolated == set()


def test_every_machine_there_is_has_a_row() -> None:
    rows = test_real_machines.pytestmark[0].args[1]
    assert [row[0] for row in rows] == recorded_machine_files.NAMES


@pytest.mark.parametrize("name", sorted(set(recorded_machine_files.LSCPU) - {"arm-A510-A710-A715-X3"}))
def test_numbers_are_those_of_lscpu(name: str) -> None:
    ours = [
        (cpu.cpu, cpu.core, cpu.socket, cpu.numa)
        for cpu in recorded_machine_files.machine(name).cpus
        if cpu.online
    ]
    assert ours == recorded_machine_files.lscpu(name)


def test_core_numbers_differ_from_lscpu_on_hybrid_machines() -> None:
    name = "arm-A510-A710-A715-X3"
    assert Counter(core for _, core, _, _ in recorded_machine_files.lscpu(name)) == {0: 4, 1: 3, 2: 1}
    assert [cpu.core for cpu in recorded_machine_files.machine(name).cpus] == list(range(8))


@pytest.mark.parametrize("name", ["x86_64-64cpu", "16em64t-4s2c2t-offlines", "s390-lpar"])
def test_the_reader_finds_the_files(name: str, tmp_path: Path) -> None:
    assert machine_features.read_sysfs_files(
        recorded_machine_files.unpack(name, tmp_path)
    ) == recorded_machine_files.texts(name)


def test_a_copy_made_by_tar_is_read_as_well(tmp_path: Path) -> None:
    root = recorded_machine_files.unpack("x86_64-64cpu", tmp_path)
    for path in root.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes().ljust(4096, b"\0"))
    assert machine_features.read_sysfs_files(root) == recorded_machine_files.texts("x86_64-64cpu")


def test_kinds_of_hybrid_machines() -> None:
    hybrid = recorded_machine_files.machine("20em64t-hybrid-1p6c2t+2ca4co1t")
    assert Counter(cpu.kind for cpu in hybrid.cpus) == {"performance": 12, "efficiency": 8}
    arm = recorded_machine_files.machine("arm-A510-A710-A715-X3")
    assert Counter(cpu.kind for cpu in arm.cpus) == {"efficiency": 3, "middle": 4, "performance": 1}


def test_the_kernel_names_kinds_itself() -> None:
    texts = files(3) | {"sys/devices/cpu_core/cpus": "0-1\n", "sys/devices/cpu_atom/cpus": "2\n"}
    assert [cpu.kind for cpu in topology.parse(texts).cpus] == ["performance", "performance", "efficiency"]


@pytest.mark.parametrize(
    ("highest", "kinds"),
    [(("40", "40"), {None}), (("41", "40"), {"performance", "efficiency"}), (("40", "41"), {None})],
)
def test_cores_of_one_kind_may_differ_in_base_frequency(
    highest: tuple[str, str], kinds: set[str | None]
) -> None:
    texts = files(2, cpu0__acpi_cppc__nominal_perf="27", cpu1__acpi_cppc__nominal_perf="21")
    texts |= {f"{CPUS}/cpu{cpu}/acpi_cppc/highest_perf": text for cpu, text in enumerate(highest)}
    assert {cpu.kind for cpu in topology.parse(texts).cpus} == kinds


@pytest.mark.parametrize(
    ("more", "line", "isolated"),
    [
        ({"isolated": "1-2\n"}, "isolcpus=3", {1, 2}),
        ({"isolated": "\n"}, "isolcpus=3", set()),
        ({}, "quiet isolcpus=nohz,domain,2-3", {2, 3}),
        ({}, "isolcpus=managed_irq,2-3", set()),
        ({"isolated": ""}, "isolcpus=3", {3}),
        ({}, "isolcpus=2-N", {2, 3}),
        ({}, "quiet", set()),
    ],
)
def test_the_command_line_is_read_where_the_kernel_has_no_file(
    more: Mapping[str, str], line: str, isolated: set[int]
) -> None:
    assert topology.parse(files(4, **more) | {topology.COMMAND_LINE: line}).isolated == isolated


def test_an_invalid_kernel_command_line_is_reported() -> None:
    machine = topology.parse(files(4) | {topology.COMMAND_LINE: "isolcpus=1,x"})
    assert (machine.isolated, [problem.found for problem in machine.unread]) == (set(), ["'x'"])


def test_a_machine_that_does_not_say_its_sockets_has_one() -> None:
    texts = {path: text for path, text in files(2).items() if "package" not in path}
    assert topology.parse(texts).sockets == (0,)
    assert topology.parse(texts | {f"{CPUS}/cpu1/topology/physical_package_id": "-1"}).sockets == (0,)


def test_sockets_of_different_books_and_drawers_differ(tmp_path: Path) -> None:
    """On IBM Z the number of a socket is unique only in its book, and that of a book only in its drawer."""
    places = [(0, 0, 1), (0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 0, 2)]
    more = {
        f"cpu{cpu}__topology__{name}": f"{number}\n"
        for cpu, place in enumerate(places)
        for name, number in zip(("drawer_id", "book_id", "physical_package_id"), place, strict=True)
    }
    for path, text in files(5, **more).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    machine = topology.parse(machine_features.read_sysfs_files(tmp_path))
    assert [cpu.socket for cpu in machine.cpus] == [0, 0, 1, 2, 3]


def test_an_offline_cpu_is_listed_and_has_no_place() -> None:
    texts = files(4, online="0-1,3", cpu1__topology__thread_siblings_list="1-2")
    machine = topology.parse(texts)
    assert machine.cpus[2] == topology.Cpu(2, online=False)
    assert [core.cpus for core in machine.cores] == [(0,), (1,), (3,)]


def test_a_cpu_that_is_only_possible_is_not_listed() -> None:
    assert [cpu.cpu for cpu in topology.parse(files(2) | {f"{CPUS}/possible": "0-7"}).cpus] == [0, 1]


def test_every_cpu_is_in_one_core_where_the_kernel_contradicts_itself() -> None:
    texts = files(3, cpu0__topology__thread_siblings_list="0-1", cpu2__topology__thread_siblings_list="1-2")
    assert [core.cpus for core in topology.parse(texts).cores] == [(0, 1), (2,)]


def test_invalid_kernel_files_are_named() -> None:
    texts = files(2, online="0-x", cpu0__topology__core_id="one", cpu1__topology__thread_siblings_list="1-")
    with pytest.raises(BadInput) as caught:
        topology.parse(texts | {f"{CPUS}/cpu0/online": "1", f"{CPUS}/cpu1/online": "1"})
    expected = {"online", "cpu0/topology/core_id", "cpu1/topology/thread_siblings_list"}
    assert {problem.field.removeprefix(f"{CPUS}/") for problem in caught.value.problems} == expected


def test_a_folder_without_cpus_is_no_machine(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no CPU that is online"):
        topology.parse(machine_features.read_sysfs_files(tmp_path))


def test_the_register_of_the_base_frequency(tmp_path: Path) -> None:
    assert machine_features.read_base_mhz(tmp_path) is None
    device = tmp_path / "dev/cpu/0/msr"
    device.parent.mkdir(parents=True)
    device.write_bytes(bytes(0xCE) + bytes([0, 23, 0, 0, 0, 0, 0, 0]))
    assert machine_features.read_base_mhz(tmp_path) == 2300


def test_output() -> None:
    machine = topology.parse(files(2, online="0") | {f"{topology.NODES}/node3/cpulist": "0"})
    document = machine.as_dict()
    assert (document["sockets"], document["cores"]) == (1, 1)
    wanted = {"cpu": 0, "core": 0, "socket": 0, "numa": 3, "online": True, "isolated": False, "siblings": [0]}
    assert wanted.items() <= document["cpus"][0].items()
    assert {"online": False, "core": None, "siblings": []}.items() <= document["cpus"][1].items()


def nodes(**lists: str) -> dict[str, str]:
    return {f"{topology.NODES}/{name}/cpulist": f"{cpus}\n" for name, cpus in lists.items()}


@pytest.mark.parametrize(
    ("lists", "numa", "named"),
    [
        ({"node10": "0-3", "node9": "0-3", "node2": "0-3"}, {2}, "NUMA nodes 2,9-10"),
        ({"node1": "2-3", "node0": "0-2"}, {0, 1}, "NUMA nodes 0,1"),
    ],
)
def test_a_cpu_of_several_numa_nodes_is_in_the_lowest(
    lists: Mapping[str, str], numa: set[int], named: str
) -> None:
    machine = topology.parse(files(4) | nodes(**lists))
    assert {cpu.numa for cpu in machine.cpus} == numa
    assert machine.cpus[2].numa == min(numa)
    assert [problem.field for problem in machine.unread] == [named]


@pytest.mark.parametrize("file", ["has_memory", "has_normal_memory"])
def test_numa_nodes_without_memory_and_without_cpus(file: str) -> None:
    texts = files(4) | nodes(node0="0-1", node1="2-3", node4="") | {f"{topology.NODES}/{file}": "0,4\n"}
    machine = topology.parse(texts)
    assert (machine.memory_nodes, machine.memory_only_nodes) == ({0, 4}, {4})
    assert machine.memory_nodes_of({0, 3}) == {0}
    assert machine.memory_nodes_of({2, 3}) == set()


def test_all_numa_nodes_may_have_memory_where_the_kernel_lists_none() -> None:
    machine = topology.parse(files(4) | nodes(node0="0-1", node1="2-3"))
    assert (machine.memory_nodes_of({1, 2}), machine.memory_only_nodes) == ({0, 1}, set())


@pytest.mark.parametrize("name", ["core_cpus_list", "core_cpus"])
def test_siblings_by_the_newer_names_only(name: str) -> None:
    texts = {path: text for path, text in files(6).items() if "thread_siblings" not in path}
    sets = {"core_cpus_list": ("0,3", "1,4", "2,5"), "core_cpus": ("09", "12", "24")}[name]
    texts |= {f"{CPUS}/cpu{cpu}/topology/{name}": sets[cpu % 3] for cpu in range(6)}
    assert [core.cpus for core in topology.parse(texts).cores] == [(0, 3), (1, 4), (2, 5)]


def test_sockets_by_the_newer_names_only() -> None:
    texts = {path: text for path, text in files(4).items() if "package" not in path}
    texts |= {f"{CPUS}/cpu{cpu}/topology/package_cpus_list": "0-1" if cpu < 2 else "2-3" for cpu in range(4)}
    assert [cpu.socket for cpu in topology.parse(texts).cpus] == [0, 0, 1, 1]


@pytest.mark.parametrize("empty", ["cpu1__online", "cpu1__topology__die_id", "online", "present"])
def test_an_empty_kernel_file_is_no_value(empty: str) -> None:
    machine = topology.parse(files(3, **{empty: ""}))
    assert [cpu.online for cpu in machine.cpus] == [True, True, True]


def arm(*cores: tuple[int, int]) -> Topology:
    """A machine with cores of these parts of ARM and capacities."""
    more = {f"cpu{cpu}__cpu_capacity": str(capacity) for cpu, (_, capacity) in enumerate(cores)}
    more |= {
        f"cpu{cpu}__regs__identification__midr_el1": f"0x{0x410F0000 | part << 4 | cpu % 3:016x}\n"
        for cpu, (part, _) in enumerate(cores)
    }
    return topology.parse(files(len(cores), **more))


@pytest.mark.parametrize(
    ("cores", "kinds"),
    [
        ([(0xD0C, 700), (0xD0C, 1024)], [None, None]),
        ([(0xD0B, 1020), (0xD05, 1024), (0xD05, 446)], ["efficiency", "performance", "performance"]),
        (
            [(0xD46, 280), (0xD47, 780), (0xD47, 812), (0xD48, 1024)],
            ["efficiency", "middle", "middle", "performance"],
        ),
    ],
)
def test_kinds_of_arm_cores_are_their_models(cores: list[tuple[int, int]], kinds: list[str | None]) -> None:
    assert [cpu.kind for cpu in arm(*cores).cpus] == kinds


@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        ((990, 1000, 1024), [None, None, None]),
        ((500, 520, 1000, 1024), ["efficiency", "efficiency", "performance", "performance"]),
        ((1024, 250, 640, 655), ["performance", "efficiency", "middle", "middle"]),
    ],
)
def test_kinds_without_models_are_separated_by_gaps_of_capacity(
    values: tuple[int, ...], kinds: list[str | None]
) -> None:
    more = {f"cpu{cpu}__cpu_capacity": str(value) for cpu, value in enumerate(values)}
    assert [cpu.kind for cpu in topology.parse(files(len(values), **more)).cpus] == kinds


def test_the_cache_of_level_3_is_named_by_its_lowest_cpu() -> None:
    more = {f"cpu{cpu}__cache__index{at}__level": f"{at}\n" for cpu in range(4) for at in (1, 2, 3)}
    more |= {
        f"cpu{cpu}__cache__index3__shared_cpu_list": "0,2" if cpu % 2 == 0 else "1,3" for cpu in (0, 1, 3)
    }
    more["cpu2__cache__index3__shared_cpu_map"] = "5"
    machine = topology.parse(files(4, **more))
    assert machine.caches == {0: 0, 1: 1, 2: 0, 3: 1}
    assert [core.l3 for core in machine.cores] == [0, 1, 0, 1]
    assert topology.parse(files(4)).caches == {}


@pytest.mark.parametrize(
    ("cgroup", "more", "partitions"),
    [
        ({topology.PARTITION_CPUS: "1-2\n"}, {}, {1, 2}),
        ({topology.PARTITION_CPUS: "\n", topology.ROOT_CPUS: "0-4\n"}, {}, set()),
        ({topology.ROOT_CPUS: "0,3-4\n"}, {}, {1, 2}),
        ({topology.ROOT_CPUS: "0-4\n", topology.PARTITION_CPUS: "3-4\n"}, {"isolated": "3-4"}, set()),
        ({topology.ROOT_CPUS: "0-2,4\n", topology.PARTITION_CPUS: "3-4\n"}, {"isolated": "3-4"}, {3}),
        ({topology.ROOT_CPUS: "0-3\n"}, {"online": "0-3"}, set()),
        ({topology.PARTITION_CPUS: "4,70\n"}, {}, {4}),
    ],
    ids=["isolated", "none", "before 6.7", "isolcpus", "isolcpus and partition", "offline", "unknown CPU"],
)
def test_cpus_of_cgroup_partitions(
    cgroup: dict[str, str], more: dict[str, str], partitions: set[int]
) -> None:
    """Newer kernels list CPUs of `isolcpus=` as those of partitions, but leave them to the root cgroup."""
    assert topology.parse(files(5, **more) | cgroup).partitions == partitions


def test_list_of_partition_cpus_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(BadInput, match=r"cpuset\.cpus\.isolated: 'x'"):
        topology.parse(files(2) | {topology.PARTITION_CPUS: "x\n"})


@pytest.mark.parametrize("place", ["", "proc/1/root/"])
def test_root_cgroup_is_read_where_it_is_the_root(place: str, tmp_path: Path) -> None:
    """In a container `/sys/fs/cgroup` may be the container's own cgroup, which has the file `cpuset.cpus`."""
    root = tmp_path / f"{place}sys/fs/cgroup"
    root.mkdir(parents=True)
    (root / "cpuset.cpus.isolated").write_text("2-3\n")
    own = tmp_path / "sys/fs/cgroup"
    if place:
        own.mkdir(parents=True)
        (own / "cpuset.cpus").write_text("\n")
        (own / "cpuset.cpus.effective").write_text("0\n")
    assert machine_features.read_sysfs_files(tmp_path) == {topology.PARTITION_CPUS: "2-3\n"}


@pytest.mark.parametrize(
    ("record", "partitions"),
    [
        ('{"c1": {"cpus": "1-2", "cgroup": "kubepods/pod1/c1"}, "c2": {"cpus": "4", "cgroup": "x"}}', {3}),
        ("{}", {1, 2, 3, 4}),
        ("[", {1, 2, 3, 4}),
        ('{"c1": {"cgroup": "x"}}', {1, 2, 3, 4}),
        ('{"c1": {"cpus": "1-"}}', {1, 2, 3, 4}),
    ],
    ids=["own and foreign", "no own", "no JSON", "no CPUs", "no list"],
)
def test_partitions_of_the_node_agent_are_no_foreign_ones(record: str, partitions: set[int]) -> None:
    texts = files(6) | {topology.PARTITION_CPUS: "1-4\n", topology.OWN_PARTITIONS: record}
    assert topology.parse(texts).partitions == partitions
