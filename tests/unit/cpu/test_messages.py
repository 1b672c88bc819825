"""What goes over the socket is read as it was meant."""

import json

import pytest

from nodewise.cpu import messages
from nodewise.cpu.messages import ReconfigureRequest
from nodewise.cpu.pools import Ask
from nodewise.cpu.reconfigure import Move
from nodewise.cpu.state import Task
from nodewise.errors import BadInput, Refused


def test_other_pools_are_asked_for() -> None:
    request = ReconfigureRequest(Ask(2, 3, "spread", "packed", "6"), only_check=True)
    assert messages.parse_reconfigure(messages.decode(messages.reconfigure(request))) == request


def test_what_is_not_said_is_as_without_it() -> None:
    assert messages.parse_reconfigure({}) == ReconfigureRequest(Ask())


def test_all_that_is_wrong_with_wanted_pools_is_named() -> None:
    with pytest.raises(BadInput) as caught:
        messages.parse_reconfigure({"exclusive": "2", "shared_mode": 1, "only_check": "no"})
    assert [problem.field for problem in caught.value.problems] == ["exclusive", "shared_mode", "only_check"]


def test_moves_are_told_by_process_id() -> None:
    moves = (Move(Task(17, 5, "one"), frozenset({1, 2}), frozenset({3})),)
    told = messages.parse_reconfigured(messages.decode(messages.reconfigured(moves)))
    assert told == (moves[0]._replace(task=Task(17)),)


def test_why_it_cannot_be_is_told() -> None:
    with pytest.raises(Refused, match="no CPU is free"):
        messages.parse_reconfigured(json.loads(messages.failed(Refused("no CPU is free"))))


@pytest.mark.parametrize("answer", [{}, {"moves": 1}, {"moves": [[1, "x", "2"]]}, {"moves": [[1, "2"]]}])
def test_what_is_no_answer_is_shown(answer: dict[str, object]) -> None:
    with pytest.raises(BadInput, match="cannot read the node agent's answer"):
        messages.parse_reconfigured(answer)
