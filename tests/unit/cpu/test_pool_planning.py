"""Pools of real machines, and options beyond the numbered cases of CMK."""

import pytest

from nodewise.cpu import cpu_set_formats, pool_planning, topology
from nodewise.cpu.pool_planning import PoolOptions
from nodewise.errors import BadInput
from tests.conformance.cmk.case_cpu_topologies import texts
from tests.unit.cpu import recorded_machine_files


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
    assert plan.warnings == ()


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
