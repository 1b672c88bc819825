"""Encoding and decoding of the messages between `isolate` and the node agent."""

import json

import pytest

from nodewise.base.errors import BadInput, Refused
from nodewise_cpu import agent_messages
from nodewise_cpu.agent_messages import ReconfigureRequest
from nodewise_cpu.pool_allocations import Task
from nodewise_cpu.pool_planning import PoolOptions
from nodewise_cpu.reconfiguration_plan import Move


def test_a_request_for_other_pools_is_read_as_written() -> None:
    request = ReconfigureRequest(PoolOptions(2, 3, "spread", "packed", "6"), only_check=True)
    line = agent_messages.encode_reconfigure_request(request)
    assert agent_messages.parse_reconfigure_request(agent_messages.decode_line(line)) == request
    assert agent_messages.parse_reconfigure_request({}) == ReconfigureRequest(PoolOptions())


def test_all_that_is_wrong_with_wanted_pools_is_named() -> None:
    with pytest.raises(BadInput) as caught:
        agent_messages.parse_reconfigure_request({"exclusive": "2", "shared_mode": 1, "only_check": "no"})
    assert [problem.field for problem in caught.value.problems] == ["exclusive", "shared_mode", "only_check"]


def test_moves_are_reported_by_process_id() -> None:
    moves = (Move(Task(17, 5, "one"), frozenset({1, 2}), frozenset({3})),)
    decoded = agent_messages.parse_reconfigure_response(
        agent_messages.decode_line(agent_messages.encode_reconfigure_response(moves))
    )
    assert decoded == (moves[0]._replace(task=Task(17)),)


def test_an_error_response_is_raised() -> None:
    with pytest.raises(Refused, match="no CPU is free"):
        agent_messages.parse_reconfigure_response(
            json.loads(agent_messages.encode_error(Refused("no CPU is free")))
        )


@pytest.mark.parametrize("answer", [{}, {"moves": 1}, {"moves": [[1, "x", "2"]]}, {"moves": [[1, "2"]]}])
def test_an_invalid_response_is_shown(answer: dict[str, object]) -> None:
    with pytest.raises(BadInput, match="cannot read the node agent's answer"):
        agent_messages.parse_reconfigure_response(answer)
