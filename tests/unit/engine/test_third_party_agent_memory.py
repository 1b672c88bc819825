"""The memory of a third-party agent: its failures do not affect other agents' memories."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nodewise.engine.agent_memory_storage import AgentMemory, FileMemoryStore
from nodewise.engine.third_party_agents import ThirdPartyState
from tests.manual_clock import ManualClock
from tests.unit.engine import replaceable_agent
from tests.unit.engine.replaceable_agent import OddKind, OddSetup


class Learning(replaceable_agent.OddState):
    """A state builder that stores a memory that the test sets."""

    memory_scope = "replica"

    def __init__(self, kind: OddKind) -> None:
        super().__init__(kind)
        self.recalled: list[bytes] = []
        self.kept: Any = b"1"

    def recall(self, kept: bytes) -> None:
        self.recalled.append(kept)

    def keep(self, kept: bytes | None) -> Any:
        return self.kept if kept is None else None


def steps(path: Path, count: int, **states: Any) -> AgentMemory:
    memory = AgentMemory(states, FileMemoryStore(str(path)), lambda: True, ManualClock())

    async def live() -> None:
        for _ in range(count):
            await memory.step()

    asyncio.run(live())
    return memory


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(b"not JSON", id="no JSON"),
        pytest.param(b'"\xff"', id="no UTF-8"),
        pytest.param(b"", id="empty"),
        pytest.param(b"[" * 5000, id="without an end"),
        pytest.param("1", id="no bytes"),
        pytest.param(b"1" * (512 * 1024 + 1), id="too much"),
    ],
)
def test_invalid_memories_are_not_stored(tmp_path: Path, kept: Any) -> None:
    setup = OddSetup()
    own, other = Learning(setup.odd), Learning(setup.odd)
    own.kept = kept
    steps(tmp_path / "state", 2, odd=ThirdPartyState(own, setup.kind.reporter), other=other)
    assert (tmp_path / "state").read_bytes() == b'{"other":1}'
    assert setup.failures() == {"shape": 1.0}


def test_a_stored_memory_is_restored(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b'{"odd":7}')
    setup = OddSetup()
    own = Learning(setup.odd)
    steps(tmp_path / "state", 1, odd=ThirdPartyState(own, setup.kind.reporter))
    assert own.recalled == [b"7"]
