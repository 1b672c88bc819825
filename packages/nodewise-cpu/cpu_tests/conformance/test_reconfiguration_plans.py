"""The numbered cases of CMK about plans of reconfigurations."""

from collections.abc import Mapping

import pytest

from cpu_tests.conformance import case_cpu_topologies, case_table_rows
from cpu_tests.conformance.case_table_rows import MoveRow, Pools
from nodewise.base.errors import BadInput
from nodewise_cpu import pool_allocations, pool_planning, reconfiguration_plan, topology
from nodewise_cpu.pool_allocations import Allocations
from nodewise_cpu.pool_planning import PoolOptions
from nodewise_cpu.reconfiguration_plan import Reconfiguration


def node(pools: Pools) -> Allocations:
    config = {
        pool: {
            socket: {text.partition(":")[0]: text.split(":")[1:] for text in lists.split()}
            for socket, lists in sockets.items()
        }
        for pool, sockets in pools.items()
    }
    return pool_allocations.parse_allocations(config)


def brief(allocations: Allocations) -> Mapping[str, Mapping[int, str]]:
    """The pools in the form of the rows, in which the tasks of a list have no order."""
    return {
        pool.name: {
            socket: " ".join(
                ":".join([cpu_list.text, *sorted(str(task.pid) for task in cpu_list.tasks)])
                for cpu_list in cpu_lists
            )
            for socket, cpu_lists in pool.sockets.items()
            if cpu_lists
        }
        for pool in allocations.pools.values()
    }


def reconfigured(row: MoveRow) -> Reconfiguration:
    machine = topology.parse(case_cpu_topologies.texts(row.machine, row.isolated))
    wanted = pool_planning.plan(machine, PoolOptions(row.exclusive, row.shared, non_isolcpus=row.listed))
    return reconfiguration_plan.plan(node(row.before), wanted.pools)


@pytest.mark.parametrize("row", case_table_rows.read("reconfigure", MoveRow), ids=lambda row: row.id)
def test_reconfigurations(row: MoveRow) -> None:
    if row.error:
        with pytest.raises(BadInput) as caught:
            reconfigured(row)
        assert [part for part in row.error if part not in str(caught.value)] == []
        return
    plan = reconfigured(row)
    assert brief(plan.allocations) == row.after
    assert [move.task.pid for move in plan.moves] == row.moves
