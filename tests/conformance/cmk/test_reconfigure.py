"""The numbered cases of CMK that are about pools which change under running tasks."""

from collections.abc import Mapping

import pytest

from nodewise.cpu import pools, reconfigure, state, topology
from nodewise.cpu.pools import Ask
from nodewise.cpu.reconfigure import Reconfiguration
from nodewise.cpu.state import State
from nodewise.errors import BadInput
from tests.conformance.cmk import machines, rows
from tests.conformance.cmk.rows import MoveRow, Pools


def node(told: Pools) -> State:
    config = {
        pool: {
            socket: {text.partition(":")[0]: text.split(":")[1:] for text in lists.split()}
            for socket, lists in sockets.items()
        }
        for pool, sockets in told.items()
    }
    return state.parse(config)


def brief(found: State) -> Mapping[str, Mapping[int, str]]:
    """As the rows have it; the tasks of one list have no order."""
    return {
        pool.name: {
            socket: " ".join(
                ":".join([slot.text, *sorted(str(task.pid) for task in slot.tasks)]) for slot in slots
            )
            for socket, slots in pool.sockets.items()
            if slots
        }
        for pool in found.pools.values()
    }


def reconfigured(row: MoveRow) -> Reconfiguration:
    machine = topology.parse(machines.texts(row.machine, row.isolated))
    wanted = pools.plan(machine, Ask(row.exclusive, row.shared, non_isolcpus=row.listed))
    return reconfigure.plan(node(row.before), wanted.pools)


@pytest.mark.parametrize("row", rows.read("reconfigure", MoveRow), ids=lambda row: row.id)
def test_reconfigurations(row: MoveRow) -> None:
    if row.error:
        with pytest.raises(BadInput) as caught:
            reconfigured(row)
        assert [part for part in row.error if part not in str(caught.value)] == []
        return
    found = reconfigured(row)
    assert brief(found.state) == row.after
    assert [move.task.pid for move in found.moves] == row.moves
