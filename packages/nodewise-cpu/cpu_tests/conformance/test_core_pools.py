"""The numbered cases of CMK about CPUs and cores: formats, and the distribution of cores to pools."""

from collections.abc import Mapping

import pytest

from cpu_tests.conformance import case_cpu_topologies, case_table_rows
from cpu_tests.conformance.case_table_rows import LineRow, ListRow, MaskRow, PoolsRow
from nodewise.base.errors import BadInput
from nodewise_cpu import cpu_set_formats, pool_planning, topology
from nodewise_cpu.pool_planning import PoolOptions, PoolPlan


@pytest.mark.parametrize("row", case_table_rows.read("lists", ListRow), ids=lambda row: row.id)
def test_lists(row: ListRow) -> None:
    with pytest.raises(BadInput) as caught:
        cpu_set_formats.parse_cpu_numbers(row.text)
    assert [part for part in row.error if part not in str(caught.value)] == []


@pytest.mark.parametrize("row", case_table_rows.read("masks", MaskRow), ids=lambda row: row.id)
def test_masks(row: MaskRow) -> None:
    assert cpu_set_formats.format_cpu_mask(row.cpus) == row.mask


@pytest.mark.parametrize("row", case_table_rows.read("lines", LineRow), ids=lambda row: row.id)
def test_command_lines(row: LineRow) -> None:
    isolated, problems = cpu_set_formats.parse_isolcpus(row.line, last=63)
    assert (isolated, bool(problems)) == (set(cpu_set_formats.parse_cpu_numbers(row.isolated)), row.warns)


def planned(row: PoolsRow) -> PoolPlan:
    machine = topology.parse(case_cpu_topologies.texts(row.machine, row.isolated))
    exclusive_mode, shared_mode = row.modes.split("/")
    ask = PoolOptions(row.exclusive, row.shared, exclusive_mode, shared_mode, row.listed)
    fast = cpu_set_formats.parse_cpu_numbers(row.fast or "")
    if row.preferences is None:
        return pool_planning.plan(machine, ask, fast)
    wishes = {
        cpu: preference
        for preference, cores in row.preferences.items()
        for core in cpu_set_formats.parse_cpu_numbers(cores)
        for cpu in machine.cores[core].cpus
    }
    return pool_planning.plan(machine, ask, fast, wishes)


def brief(plan: PoolPlan) -> Mapping[str, Mapping[int, str]]:
    """The pools in the form of the rows."""
    return {
        pool: {socket: " ".join(lists) for socket, lists in sockets.items() if lists}
        for pool, sockets in plan.pools.items()
    }


@pytest.mark.parametrize("row", case_table_rows.read("pools", PoolsRow), ids=lambda row: row.id)
def test_pools(row: PoolsRow) -> None:
    if row.error:
        with pytest.raises(BadInput) as caught:
            planned(row)
        assert [part for part in row.error if part not in str(caught.value)] == []
        return
    plan = planned(row)
    assert brief(plan) == row.pools
    assert len(plan.warnings) == len(row.warns), plan.warnings
    for warning, part in zip(plan.warnings, row.warns, strict=True):
        assert part in str(warning)


def test_every_pool_has_every_socket() -> None:
    row = next(row for row in case_table_rows.read("pools", PoolsRow) if row.number == 52)
    expected = {"exclusive": {0, 1}, "shared": {0, 1}, "infra": {0, 1}}
    assert {pool: set(sockets) for pool, sockets in planned(row).pools.items()} == expected


def test_28_a_socket_that_the_kernel_does_not_tell_is_socket_0() -> None:
    complete = case_cpu_topologies.texts("T4")
    files = {path: text for path, text in complete.items() if not path.endswith("physical_package_id")}
    assert topology.parse(files).sockets == (0,)


def test_30_a_xeon_d() -> None:
    machine = topology.parse(case_cpu_topologies.texts("T8"))
    assert [core.cpus for core in machine.cores] == [(cpu, cpu + 8) for cpu in range(8)]
    assert machine.sockets == (0,)
