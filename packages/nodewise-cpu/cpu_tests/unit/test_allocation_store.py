"""The stored form of intents, and the errors for invalid ones."""

import json

import pytest

from cpu_tests.unit.allocation_factory import create_allocations
from nodewise.base.errors import BadInput
from nodewise_cpu import allocation_store
from nodewise_cpu.allocation_store import Intent
from nodewise_cpu.pool_allocations import Task
from nodewise_cpu.reconfiguration_plan import Move

TASK = Task(17, 5, "one", "pod", "container")
TARGET = create_allocations({"exclusive": {"1,9": [TASK]}})
INTENT = Intent(
    TARGET,
    Task(3, 4, "one"),
    "2026-01-01T00:00:00Z",
    (Move(TASK, frozenset({3, 11}), frozenset({1, 9})),),
    {"18-6": frozenset({3})},
)


def test_an_intent_is_read_as_it_was_written() -> None:
    assert allocation_store.parse_intent(json.loads(json.dumps(INTENT.as_dict()))) == INTENT


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"since": 1}, "config, tasks, by and since"),
        ({"by": {"pid": -1}}, "intent.by"),
        ({"moves": "x"}, "intent.moves"),
        ({"moves": [1]}, "intent.moves"),
        ({"moves": {}}, "intent.moves"),
        ({"moves": [{"task": TASK._asdict(), "before": "x", "after": "1"}]}, "intent.moves.before"),
        ({"threads": [1]}, "intent.threads"),
        ({"threads": []}, "intent.threads"),
        ({"threads": {"1-2": "x"}}, "intent.threads.1-2"),
    ],
)
def test_an_invalid_intent_is_named(changed: dict[str, object], named: str) -> None:
    with pytest.raises(BadInput, match=named):
        allocation_store.parse_intent(INTENT.as_dict() | changed)
