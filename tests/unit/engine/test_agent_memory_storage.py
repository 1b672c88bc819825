"""Agent memory in a file and in a ConfigMap."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from nodewise.base.errors import BadInput, Conflict, Unavailable
from nodewise.engine.agent_memory_storage import (
    NAME,
    AgentMemory,
    ConfigMapMemoryStore,
    FileMemoryStore,
    StoredMemory,
)
from nodewise.scheduling_model.in_memory_api import CONFIGMAPS, FakeApi
from tests.manual_clock import ManualClock


class Sum:
    """A state builder that learns numbers; its memory is their sum."""

    def __init__(self, *, each: bool = True) -> None:
        self.memory_scope = "replica" if each else "leader"
        self.kept = 0
        self.news = 0

    @property
    def known(self) -> int:
        return self.kept + self.news

    def recall(self, kept: bytes) -> None:
        try:
            self.kept, self.news = msgspec.json.decode(kept, type=int), 0
        except msgspec.MsgspecError as error:
            raise BadInput("sum") from error

    def keep(self, kept: bytes | None) -> bytes | None:
        if not self.news:
            return None
        try:
            return msgspec.json.encode((msgspec.json.decode(kept, type=int) if kept else 0) + self.news)
        except msgspec.MsgspecError:
            return msgspec.json.encode(self.news)


class SharedMemory:
    """A stored memory, with a new memory store for each process."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.path = folder / "state.json"
        self.api = FakeApi()

    def keeping(self) -> ConfigMapMemoryStore | FileMemoryStore:
        return (
            FileMemoryStore(str(self.path))
            if self.kind == "file"
            else ConfigMapMemoryStore(self.api, "nodewise")
        )

    def spoil(self, text: str) -> None:
        if self.kind == "file":
            self.path.write_text(f'{{"sum":{text}}}')
        else:
            meta = {"name": NAME, "namespace": "nodewise"}
            self.api.put(CONFIGMAPS, {"metadata": meta, "data": {"sum.json": text}})


@pytest.fixture(params=["file", "configmap"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> SharedMemory:
    return SharedMemory(request.param, tmp_path)


def memory(shared: SharedMemory, state: Any, *, leads: bool = True) -> AgentMemory:
    return AgentMemory({"sum": state}, shared.keeping(), lambda: leads, ManualClock())


def done(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


async def steps(agent_memory: AgentMemory, count: int = 2) -> None:
    for _ in range(count):
        await agent_memory.step()


async def learning(agent_memory: AgentMemory, state: Sum, news: int) -> None:
    """Restore, learn and store."""
    await agent_memory.step()
    state.news = news
    await agent_memory.step()


class TestMemory:
    async def test_a_memory_outlives_the_process(self, shared: SharedMemory) -> None:
        first, second = Sum(), Sum()
        await steps(memory(shared, first), 1)
        first.news = 7
        agent_memory = memory(shared, first)
        await steps(agent_memory)
        await steps(memory(shared, second))
        assert (first.known, second.known) == (7, 7)

    async def test_it_is_kept_at_the_end(self, shared: SharedMemory) -> None:
        first, second = Sum(), Sum()
        agent_memory = memory(shared, first)

        await agent_memory.step()
        first.news = 3
        await agent_memory.close()
        await steps(memory(shared, second))
        assert second.known == 3

    async def test_replicas_that_learn_different_things_fold_them_together(
        self, shared: SharedMemory
    ) -> None:
        states = [Sum(), Sum()]
        memories = [memory(shared, state) for state in states]

        for agent_memory in memories:
            await agent_memory.step()
        states[0].news, states[1].news = 5, 6
        for _ in range(2):
            for agent_memory in memories:
                await agent_memory.step()
        assert [state.known for state in states] == [11, 11]

    async def test_where_all_see_the_same_the_leader_keeps_it(self, shared: SharedMemory) -> None:
        state, later = Sum(each=False), Sum(each=False)
        await learning(memory(shared, state, leads=False), state, 5)
        await steps(memory(shared, later))
        assert later.known == 0

    @pytest.mark.parametrize(("each", "recalled"), [(True, [b"3", b"5"]), (False, [b"3"])])
    async def test_subscribers_get_memories_of_other_processes(
        self, shared: SharedMemory, *, each: bool, recalled: list[bytes]
    ) -> None:
        shared.spoil("3")
        state, notified = Sum(each=each), list[tuple[str, bytes]]()
        agent_memory = memory(shared, state)
        agent_memory.subscribe(lambda agent, text: notified.append((agent, text)))

        await agent_memory.step()
        state.news = 2
        await agent_memory.step()
        await agent_memory.step()
        assert notified == [("sum", text) for text in recalled]

    @pytest.mark.parametrize("text", ['"a"', "[]", "{}", "1e400"])
    async def test_an_unreadable_memory_is_replaced(self, shared: SharedMemory, text: str) -> None:
        shared.spoil(text)
        state, later = Sum(), Sum()
        await learning(memory(shared, state), state, 2)
        await steps(memory(shared, later))
        assert later.known == 2

    @pytest.mark.parametrize("part", ["recall", "keep"])
    async def test_a_defect_of_one_agent_costs_no_other_its_memory(
        self, shared: SharedMemory, part: str
    ) -> None:
        shared.spoil("4")
        state, later = Sum(), Sum()

        with capture_logs() as lines:
            agent_memory = AgentMemory(
                {"sum": FailingSum(part), "other": state}, shared.keeping(), lambda: True, ManualClock()
            )
            await agent_memory.step()
            state.news = 2
            await agent_memory.step()
        await steps(AgentMemory({"other": later}, shared.keeping(), lambda: True, ManualClock()), 1)
        assert later.known == 2
        assert [(line["event"], line["agent"]) for line in lines] == [("agent_failed", "sum")]

    async def test_one_that_would_keep_too_much_beside_others_does_not(self, shared: SharedMemory) -> None:
        state, later = Sum(), Sum()
        large = [Large(), Large()]

        with capture_logs() as lines:
            states: dict[str, Any] = {"large": large[0], "larger": large[1], "sum": state}
            agent_memory = AgentMemory(states, shared.keeping(), lambda: True, ManualClock())
            await agent_memory.step()
            state.news = 2
            await agent_memory.step()
        await steps(memory(shared, later), 1)
        assert later.known == 2
        (line,) = lines
        assert line["event"] == "memory_failed"
        assert "agent larger has a memory of 500000 bytes, which is too large" in line["error"]


class FailingSum(Sum):
    """A state builder that fails in one method."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self.part = part

    def recall(self, kept: bytes) -> None:
        if self.part == "recall":
            raise ZeroDivisionError
        super().recall(kept)

    def keep(self, kept: bytes | None) -> bytes | None:
        if self.part == "keep":
            raise ZeroDivisionError
        return super().keep(kept)


class Large(Sum):
    """A state builder whose memory has half of the allowed size."""

    def recall(self, kept: bytes) -> None:
        """Ignore the memory."""

    def keep(self, kept: bytes | None) -> bytes | None:
        return b"1" * 500_000 if kept is None else None


class TestFile:
    async def test_an_empty_file_is_a_beginning(self, tmp_path: Path) -> None:
        shared, state, later = SharedMemory("file", tmp_path), Sum(), Sum()
        shared.path.touch()
        await learning(memory(shared, state), state, 2)
        await steps(memory(shared, later), 1)
        assert later.known == 2

    async def test_a_foreign_file_is_not_overwritten(self, tmp_path: Path) -> None:
        path = tmp_path / "state.json"
        path.write_text("not ours")
        state = Sum()
        agent_memory = AgentMemory({"sum": state}, FileMemoryStore(str(path)), lambda: True, ManualClock())

        await agent_memory.step()
        state.news = 2
        await steps(agent_memory)
        assert path.read_text() == "not ours"

    async def test_an_error_names_the_option(self, tmp_path: Path) -> None:
        with pytest.raises(BadInput, match="--state"):
            await FileMemoryStore(str(tmp_path / "no" / "where")).write(StoredMemory({"a": b"1"}))


class TestConfigMap:
    async def test_a_write_in_between_is_a_conflict(self) -> None:
        api = FakeApi()
        keeping = ConfigMapMemoryStore(api, "nodewise")

        await keeping.write(StoredMemory({"a": b"1"}))
        seen = await keeping.read()
        await keeping.write(StoredMemory({"a": b"2"}, seen.version))
        with pytest.raises(Conflict):
            await keeping.write(StoredMemory({"a": b"3"}, seen.version))

    async def test_labels_of_other_clients_stay(self) -> None:
        api = FakeApi()
        meta = {"name": NAME, "namespace": "nodewise", "labels": {"by": "helm"}}
        api.put(CONFIGMAPS, {"metadata": meta, "data": {"sum.json": "1"}})
        state = Sum()
        memory_keeper = AgentMemory(
            {"sum": state}, ConfigMapMemoryStore(api, "nodewise"), lambda: True, ManualClock()
        )

        async def live() -> bytes:
            await memory_keeper.step()
            state.news = 2
            await memory_keeper.step()
            return await api.get(f"/api/v1/namespaces/nodewise/configmaps/{NAME}")

        config_map = msgspec.json.decode(await live())
        assert (config_map["data"], config_map["metadata"]["labels"]) == ({"sum.json": "3"}, {"by": "helm"})

    async def test_an_api_server_that_is_away_is_asked_again(self) -> None:
        shared = SharedMemory("configmap", Path())
        shared.spoil("4")
        shared.api.fail(Unavailable("the API server"))
        state = Sum()
        await steps(memory(shared, state))
        assert state.known == 4
