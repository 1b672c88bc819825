"""What an agent of another package is to remember: a defect of it costs nobody else's memory, and not its own."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from nodewise.clock import ManualClock
from nodewise.extender.contained_state import RememberingState
from nodewise.extender.remembering import InFile, Memory
from tests.unit.extender import outsiders
from tests.unit.extender.outsiders import Hang, Held, OddKind


class Learning(outsiders.OddState):
    """Keeps what it is told to."""

    each_replica_learns = True

    def __init__(self, kind: OddKind) -> None:
        super().__init__(kind)
        self.recalled: list[bytes] = []
        self.kept: Any = b"1"

    def recall(self, kept: bytes) -> None:
        self.recalled.append(kept)

    def keep(self, kept: bytes | None) -> Any:
        return self.kept if kept is None else None


def learning(**instead: Any) -> tuple[Held, Learning, Any]:
    """Who holds it, the agent's own state, and what it is held by."""
    held = Held(answer_s=0.05, **instead)
    own = Learning(held.odd)
    return held, own, RememberingState(own, held.kind.warden)


def steps(path: Path, count: int, **states: Any) -> Memory:
    memory = Memory(states, InFile(str(path)), lambda: True, ManualClock())

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
def test_what_cannot_be_kept_is_no_news(tmp_path: Path, kept: Any) -> None:
    held, own, state = learning()
    other = Learning(held.odd)
    own.kept = kept
    steps(tmp_path / "state", 2, odd=state, other=other)
    assert (tmp_path / "state").read_bytes() == b'{"other":1}'
    assert held.failures() == {"shape": 1.0}


def test_it_is_told_what_was_kept_though_a_slot_is_being_computed_then(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b'{"odd":7}')
    hang = Hang()
    held, own, state = learning(agent_state=hang)
    next(state.build(held.cluster_state()))
    with capture_logs() as lines:
        memory = steps(tmp_path / "state", 2, odd=state)
    assert (own.recalled, [line["event"] for line in lines]) == ([], [])
    hang.let_go()
    state._under_way.outcome.result(30.0)
    asyncio.run(memory.step())
    assert own.recalled == [b"7"]
