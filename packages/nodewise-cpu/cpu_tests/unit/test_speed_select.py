"""Intel Speed Select in the kernel's files."""

import pytest

from cpu_tests.conformance.case_cpu_topologies import texts
from cpu_tests.unit import recorded_machine_files
from nodewise_cpu import pool_planning, topology
from nodewise_cpu.topology import CPUS


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
    assert [core.core for core in pool_planning.group_cores_by_power_class(cores, wishes)["performance"]] == [
        1
    ]


def test_a_core_whose_cpus_differ_is_in_no_class() -> None:
    cores = topology.parse(texts("T4")).cores
    wishes = {0: "power", 4: "performance", 1: "power", 5: "power", 2: "default", 6: "default"}
    classes = pool_planning.group_cores_by_power_class(cores, wishes)
    assert {name: [core.core for core in members] for name, members in classes.items()} == {"power": [1]}


def test_a_real_machine_of_one_preference() -> None:
    wishes = pool_planning.energy_preferences(recorded_machine_files.texts("20em64t-hybrid-1p6c2t+2ca4co1t"))
    assert set(wishes.values()) == {"balance_performance"}
    assert len(wishes) == 20
