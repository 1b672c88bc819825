"""Pools of real machines, and options beyond the numbered cases of CMK."""

import pytest

from cpu_tests.conformance.case_cpu_topologies import texts
from cpu_tests.unit import recorded_machine_files
from nodewise.base.errors import BadInput
from nodewise_cpu import cpu_set_formats, pool_planning, topology
from nodewise_cpu.pool_planning import PoolOptions
from nodewise_cpu.topology import CPUS, Topology


@pytest.mark.parametrize("mode", ["packed", "spread"])
@pytest.mark.parametrize("name", recorded_machine_files.NAMES)
def test_pools_of_real_machines_divide_their_online_cpus(name: str, mode: str) -> None:
    machine = recorded_machine_files.machine(name)
    count = (len(machine.cores) - 1) // 2
    plan = pool_planning.plan(machine, PoolOptions(count, len(machine.cores) - 1 - count, mode, mode))
    lists = [text for sockets in plan.pools.values() for texts in sockets.values() for text in texts]
    cpus = [cpu for text in lists for cpu in cpu_set_formats.parse_cpu_numbers(text)]
    assert len(cpus) == len(set(cpus))
    assert set(cpus) == machine.online
    assert [problem.field for problem in plan.warnings] == ["pool exclusive"] * ("arm" in name)


def test_spread_takes_sockets_in_turn() -> None:
    plan = pool_planning.plan(
        recorded_machine_files.machine("x86_64-64cpu"), PoolOptions(8, 4, "spread", "spread")
    )
    assert {socket: len(lists) for socket, lists in plan.pools["exclusive"].items()} == dict.fromkeys(
        range(4), 2
    )
    assert plan.pools["exclusive"][0] == ("0,32", "4,36")


def test_cores_of_the_first_classes_have_to_be_isolated() -> None:
    machine = topology.parse(texts("T8", isolated="1-2,9-10"))
    wishes = {cpu: "performance" if cpu % 8 in {1, 5} else "power" for cpu in range(16)}
    with pytest.raises(BadInput, match="core 5: not isolated"):
        pool_planning.plan(machine, PoolOptions(1, 1), preferences=wishes)


def test_an_isolated_core_of_the_last_class_is_not_infra() -> None:
    machine = topology.parse(texts("T8", isolated="1-3,9-11"))
    wishes = {cpu: "performance" if cpu % 8 in {1, 2} else "power" for cpu in range(16)}
    plan = pool_planning.plan(machine, PoolOptions(1, 1), preferences=wishes)
    assert plan.pools["infra"] == {0: ("0,8,4,12,5,13,6,14,7,15",)}


def test_a_listed_core_of_another_pool_is_named_with_it() -> None:
    with pytest.raises(BadInput, match="core 0 is in pool exclusive"):
        pool_planning.plan(topology.parse(texts("T8")), PoolOptions(1, 1, non_isolcpus="0,5"))


def test_all_invalid_numbers_are_reported_together() -> None:
    with pytest.raises(BadInput) as caught:
        pool_planning.plan(topology.parse(texts("T4")), PoolOptions(-1, -2))
    assert len(caught.value.problems) == 2


def test_output() -> None:
    document = pool_planning.plan(topology.parse(texts("T4")), PoolOptions(2, 1)).as_dict()
    assert document == {
        "pools": {"exclusive": {"0": ["0,4", "1,5"]}, "shared": {"0": ["2,6"]}, "infra": {"0": ["3,7"]}}
    }


def synthetic(cores: int, threads: int = 1, **more: str) -> Topology:
    """A socket of cores with consecutive CPUs. `more` has files below the folder of CPUs, `__` is a slash."""
    count = cores * threads
    texts = {f"{topology.CPUS}/online": f"0-{count - 1}"}
    for cpu in range(count):
        first = cpu - cpu % threads
        texts[f"{topology.CPUS}/cpu{cpu}/topology/core_cpus_list"] = f"{first}-{first + threads - 1}"
    return topology.parse(
        texts | {f"{topology.CPUS}/{at.replace('__', '/')}": text for at, text in more.items()}
    )


def capacities(*values: int) -> dict[str, str]:
    return {f"cpu{cpu}__cpu_capacity": str(value) for cpu, value in enumerate(values)}


def test_exclusive_cores_are_of_the_requested_kind() -> None:
    machine = synthetic(6, **capacities(400, 405, 410, 1000, 1010, 1024))
    plan = pool_planning.plan(machine, PoolOptions(2, 1, exclusive_kind="performance"))
    assert (plan.pools["exclusive"], plan.pools["shared"]) == ({0: ("3", "4")}, {0: ("0",)})
    assert plan.warnings == ()
    with pytest.raises(
        BadInput, match="pool exclusive: 3 cores available of the kind performance; expected 4"
    ):
        pool_planning.plan(machine, PoolOptions(4, 1, exclusive_kind="performance"))


def test_slow_exclusive_cores_are_reported_unless_they_were_requested() -> None:
    machine = synthetic(4, **capacities(500, 500, 900, 900))
    [warning] = pool_planning.plan(machine, PoolOptions(3, 0)).warnings
    assert str(warning).startswith(
        "pool exclusive: CPUs 0-1 of the kind efficiency; expected cores of the kind perf"
    )
    assert pool_planning.plan(machine, PoolOptions(2, 1, exclusive_kind="efficiency")).warnings == ()


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ((700, 700, 700), "no kind: all cores are of one kind"),
        ((300, 1000, 1000), "one of efficiency, performance"),
    ],
)
def test_an_unknown_kind_of_core_is_refused(values: tuple[int, ...], wanted: str) -> None:
    with pytest.raises(BadInput, match=wanted):
        pool_planning.plan(synthetic(3, **capacities(*values)), PoolOptions(1, 1, exclusive_kind="fast"))


def test_half_isolated_cores_are_reported_with_the_pools_that_get_them() -> None:
    machine = synthetic(5, 2, isolated="2,4,6")
    warnings = [str(problem) for problem in pool_planning.plan(machine, PoolOptions(1, 1)).warnings]
    assert "core 1: only CPU 2 isolated; expected all of 2,3" in warnings
    assert warnings[-1].startswith(
        "pools shared, infra: no core is isolated, so the isolation is ignored; CPUs 2,4,6, on which the kernel"
    )


def test_a_half_isolated_core_beside_isolated_ones_is_reported() -> None:
    plan = pool_planning.plan(synthetic(5, 2, isolated="4-7,9"), PoolOptions(1, 1))
    assert plan.pools["exclusive"] == {0: ("4,5",)}
    assert str(plan.warnings[-1]).startswith("pools infra: CPUs 9, on which the kernel balances no load")


def test_packed_cores_fill_one_cache_before_the_next() -> None:
    caches = {f"cpu{cpu}__cache__index3__level": "3" for cpu in range(6)}
    caches |= {
        f"cpu{cpu}__cache__index3__shared_cpu_list": "0,2,4" if cpu % 2 == 0 else "1,3,5" for cpu in range(6)
    }
    plan = pool_planning.plan(synthetic(6, **caches), PoolOptions(3, 1))
    assert (plan.pools["exclusive"], plan.pools["shared"]) == ({0: ("0", "2", "4")}, {0: ("1",)})


def partitioned(name: str, cpus: str, isolated: str = "") -> Topology:
    return topology.parse(texts(name, isolated=isolated) | {topology.PARTITION_CPUS: f"{cpus}\n"})


def test_cores_in_a_cgroup_partition_are_in_no_pool() -> None:
    """A core of which one CPU is in a partition is not divided."""
    plan = pool_planning.plan(partitioned("T8", "0-1,10"), PoolOptions(2, 1))
    assert plan.pools == {
        "exclusive": {0: ("3,11", "4,12")}, "shared": {0: ("5,13",)}, "infra": {0: ("6,14,7,15",)},
    }  # fmt: skip
    assert [str(problem) for problem in plan.warnings] == [
        (
            "cgroup partitions: CPUs 0-1,10, on which no process of another cgroup may run; expected none: their cores"
            " (CPUs 0-2,8-10) are in no pool"
        )
    ]


def test_socket_whose_cores_are_all_in_a_partition_has_no_lists() -> None:
    machine = recorded_machine_files.machine("x86_64-64cpu")
    first = {cpu for core in machine.cores if core.socket == 0 for cpu in core.cpus}
    cpus = tuple(cpu._replace(partition=cpu.cpu in first) for cpu in machine.cpus)
    plan = pool_planning.plan(machine._replace(cpus=cpus), PoolOptions(3, 1))
    assert {pool: len(sockets[0]) for pool, sockets in plan.pools.items()} == {
        "exclusive": 0, "shared": 0, "infra": 0,
    }  # fmt: skip
    assert len(plan.pools["exclusive"][1]) == 3


def test_isolated_cores_in_a_partition_are_not_counted() -> None:
    with pytest.raises(BadInput) as caught:
        pool_planning.plan(partitioned("T8", "3,11", isolated="2-3,10-11"), PoolOptions(1, 1))
    problems = [str(problem) for problem in caught.value.problems]
    assert problems[0] == "isolated cores: 1; expected 2 cores for the pools exclusive and shared"
    assert problems[1].startswith("cgroup partitions: CPUs 3,11")


def test_listed_core_in_a_partition_is_refused_with_the_reason() -> None:
    with pytest.raises(BadInput, match="core 5 is in a cgroup partition"):
        pool_planning.plan(partitioned("T8", "5"), PoolOptions(1, 1, non_isolcpus="5"))


@pytest.mark.parametrize(
    ("machine", "text", "cores"),
    [
        ("T8", "5", [5]),
        ("T8", "7,0-2", [0, 1, 2, 7]),
        ("T8", " 3 , 3 ", [3]),
        ("T8", "cpu13", [5]),
        ("D8r", "2", [2, 6]),
        ("D8r", "4", [4]),
        ("D8r", "0:2", [2]),
        ("D8r", "1:0", [4]),
        ("D8r", "0:3,1:3", [3, 7]),
        ("SP", "9", [4]),
        ("SP", "2", [2]),
    ],
)
def test_names(machine: str, text: str, cores: list[int]) -> None:
    selected = pool_planning.parse_cores(text, topology.parse(texts(machine)))
    assert [core.core for core in selected] == cores


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("0:9", "0:9"),
        ("2:0", "2:0"),
        ("cpu16", "cpu16"),
        ("8-9", "8, 9"),
        ("1:", "'1:'"),
        ("cpu", "'cpu'"),
        ("0-99999", "up to 65535"),
        ("9999999999", "'9999999999'"),
    ],
)
def test_missing_cores_are_named(text: str, seen: str) -> None:
    with pytest.raises(BadInput, match="--excl-non-isolcpus") as caught:
        pool_planning.parse_cores(text, topology.parse(texts("D8r")))
    assert seen in str(caught.value)


def frequencies(*khz: str) -> dict[str, str]:
    return {f"{CPUS}/cpu{cpu}/cpufreq/base_frequency": text for cpu, text in enumerate(khz)}


@pytest.mark.parametrize(
    ("khz", "base_mhz", "fast"),
    [
        (("2700000\n", "2100000\n"), 2300, {0}),
        (("2700000", "2300000"), 2300, {0}),
        (("2700000", "2100000"), None, {0}),
        (("2300000", "2300000"), None, set()),
        (("<unsupported>", "2700000"), 2300, {1}),
        ((), 2300, set()),
        ((), None, set()),
    ],
)
def test_fast_cpus(khz: tuple[str, ...], base_mhz: int | None, fast: set[int]) -> None:
    assert pool_planning.cpus_above_base_frequency(frequencies(*khz), base_mhz) == fast


def test_preferences_are_those_of_cpus_and_not_of_core_ids() -> None:
    """With adjacent siblings, core 1 has the CPUs 2 and 3."""
    cores = topology.parse(texts("D8a")).cores
    wishes = dict.fromkeys(range(16), "power") | {2: "performance", 3: "performance"}
    (core,) = pool_planning.group_cores_by_power_class(cores, wishes)["performance"]
    assert core.core == 1


def test_a_core_whose_cpus_differ_is_in_no_class() -> None:
    cores = topology.parse(texts("T4")).cores
    wishes = {0: "power", 4: "performance", 1: "power", 5: "power", 2: "default", 6: "default"}
    classes = pool_planning.group_cores_by_power_class(cores, wishes)
    assert {name: [core.core for core in members] for name, members in classes.items()} == {"power": [1]}


def test_a_real_machine_of_one_preference() -> None:
    wishes = pool_planning.energy_preferences(recorded_machine_files.texts("20em64t-hybrid-1p6c2t+2ca4co1t"))
    assert set(wishes.values()) == {"balance_performance"}
    assert len(wishes) == 20
