"""Agent memory: what agents learn, stored in a file or in a ConfigMap in nodewise's namespace.

It is read at the start and written periodically. The ConfigMap is written by compare-and-swap, so replicas that learn
different things merge them. An unreadable memory is logged and replaced; requests do not wait for it.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from nodewise.agent.state import StateBuilder
from nodewise.base.clock import Clock
from nodewise.base.errors import UNREADABLE, BadInput, Conflict, NodewiseError, Problem
from nodewise.kube.api_server_interface import Api, NotFound
from nodewise.kube.resource_kinds import CONFIG_MAPS
from nodewise.observe import logs

NAME: Final = "nodewise-memory"
"""The name of the ConfigMap."""
PERIOD_S: Final = 30.0
_MAX_TRIES: Final = 5
_MAX_BYTES: Final = 900_000
"""Of all agents together. The API server accepts a megabyte."""


class StoredMemory(NamedTuple):
    """The memories of all agents."""

    texts: Mapping[str, bytes]
    """By agent."""
    version: str = ""
    """The version of the stored object; empty if nothing is stored yet."""


class MemoryStore(Protocol):
    """Stores memories beyond the end of the process.

    Errors are kinds of `NodewiseError`; `Conflict` if another process wrote in the meantime.
    """

    async def read(self) -> StoredMemory: ...

    async def write(self, kept: StoredMemory) -> None: ...


class _ConfigMap(msgspec.Struct, frozen=True):
    metadata: dict[str, Any] = {}
    """The whole metadata, so that a write keeps the labels and annotations of other clients."""
    data: dict[str, str] | None = None


class ConfigMapMemoryStore:
    """Stores memories in a ConfigMap, under the key `<agent>.json` of each agent."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._path = CONFIG_MAPS.path(namespace, NAME)
        self._metadata: dict[str, Any] = {}

    async def read(self) -> StoredMemory:
        try:
            answer = await self._api.get(self._path)
        except NotFound:
            return StoredMemory({})
        try:
            config_map = msgspec.json.decode(answer, type=_ConfigMap)
        except UNREADABLE as error:
            raise BadInput(f"ConfigMap {NAME}", [Problem("", str(error), "a ConfigMap")]) from error
        texts = {key.removesuffix(".json"): text.encode() for key, text in (config_map.data or {}).items()}
        self._metadata = {key: value for key, value in config_map.metadata.items() if key != "managedFields"}
        return StoredMemory(texts, str(config_map.metadata.get("resourceVersion", "")))

    async def write(self, kept: StoredMemory) -> None:
        meta = {**(self._metadata if kept.version else {}), "name": NAME, "namespace": self._namespace}
        data = {f"{agent}.json": text.decode() for agent, text in kept.texts.items()}
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
        if kept.version:
            meta["resourceVersion"] = kept.version
            await self._api.replace(self._path, body)
        else:
            await self._api.create(CONFIG_MAPS.path(self._namespace), body)


class FileMemoryStore:
    """Stores memories in a file: a JSON object by agent.

    A new file replaces the old one by a rename, so that the file is complete at any moment.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    async def read(self) -> StoredMemory:
        try:
            texts = msgspec.json.decode(self._path.read_bytes() or b"{}", type=dict[str, msgspec.Raw])
        except FileNotFoundError:
            return StoredMemory({})
        except (OSError, *UNREADABLE) as error:
            wanted = "a JSON object that nodewise wrote, or no file"
            raise BadInput("memory", [Problem(f"--state {self._path}", str(error), wanted)]) from error
        return StoredMemory({agent: bytes(text) for agent, text in texts.items()}, "there")

    async def write(self, kept: StoredMemory) -> None:
        body = msgspec.json.encode({agent: msgspec.Raw(text) for agent, text in kept.texts.items()})
        await asyncio.to_thread(self._write_durably, body)

    def _write_durably(self, body: bytes) -> None:
        """Write and sync, because after a crash an empty file would be worse than no file."""
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        try:
            with beside.open("wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            seen = error.strerror or str(error)
            raise BadInput("memory", [Problem(f"--state {self._path}", seen, "a file to write")]) from error


class AgentMemory:
    """Restores the memories of agents, and stores what they learn."""

    def __init__(
        self,
        states: Mapping[str, StateBuilder[Any]],
        store: MemoryStore,
        leads: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._states = states
        self._store = store
        self._leads = leads
        self._clock = clock
        self._known: dict[str, bytes] = {}
        """By agent: the memory that was stored at the last read."""
        self._is_restored = False
        self._failure = ""
        self._subscribers: list[Callable[[str, bytes], None]] = []

    def subscribe(self, subscriber: Callable[[str, bytes], None]) -> None:
        """Call back with the agent's name and each memory that the agent did not write itself."""
        self._subscribers.append(subscriber)

    async def run(self) -> None:
        """Restore the memories at once and store them once a period, until cancelled."""
        while True:
            await self.step()
            await self._clock.sleep(PERIOD_S if self._is_restored else 1.0)

    async def step(self) -> None:
        """Restore what other processes stored, and store what is new.

        A failure is logged once, and the next step tries again.
        """
        try:
            if self._is_restored:
                await self._store_new_memories()
            else:
                for agent, text in (await self._store.read()).texts.items():
                    self._restore_memory(agent, text)
                self._is_restored = True
        except NodewiseError as error:
            if str(error) != self._failure:
                logs.emit("memory_failed", error=str(error))
            self._failure = str(error)
        else:
            self._failure = ""

    async def close(self) -> None:
        """Store what is new, for the last time."""
        if self._is_restored:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5.0):
                    await self.step()

    def _restore_memory(self, agent: str, text: bytes) -> None:
        """Pass a memory to its agent. The agent later overwrites a memory that it cannot read."""
        self._known[agent] = text
        state = self._states.get(agent)
        if state is None:
            return
        if state.memory_scope == "replica" or not self._is_restored:
            for subscriber in self._subscribers:
                subscriber(agent, text)
        try:
            state.recall(text)
        except BadInput as error:
            logs.emit("memory_unreadable", agent=agent, error=str(error))
        except Exception as error:  # noqa: BLE001 - a defect of one agent must not cost the others their memories
            logs.emit("agent_failed", agent=agent, exc_info=error)

    async def _store_new_memories(self) -> None:
        for _ in range(_MAX_TRIES):
            kept = await self._store.read()
            news = self._memories_to_store(kept.texts)
            for agent, state in self._states.items():
                text = kept.texts.get(agent)
                is_foreign = text != self._known.get(agent)
                if text is not None and is_foreign and state.memory_scope == "replica" and agent not in news:
                    self._restore_memory(agent, text)
            if not news:
                return
            try:
                await self._store.write(StoredMemory({**kept.texts, **news}, kept.version))
            except Conflict:
                continue  # another replica wrote first
            for agent, text in news.items():
                self._restore_memory(agent, text)
            return

    def _memories_to_store(self, kept: Mapping[str, bytes]) -> dict[str, bytes]:
        """By agent, the memory to be stored. The smaller ones come first if there is no room for all."""
        news: dict[str, bytes] = {}
        for agent, state in self._states.items():
            if state.memory_scope != "replica" and not self._leads():
                continue
            try:
                text = state.keep(kept.get(agent))
            except Exception as error:  # noqa: BLE001 - as in `_restore_memory`
                logs.emit("agent_failed", agent=agent, exc_info=error)
                continue
            if text:
                news[agent] = text
        room = _MAX_BYTES - sum(len(text) for agent, text in kept.items() if agent not in news)
        for agent, text in sorted(news.items(), key=lambda item: len(item[1])):
            room -= len(text)
            if room < 0:
                problem = f"agent {agent} has a memory of {len(text)} bytes, which is too large"
                logs.emit("memory_failed", error=problem)
                del news[agent]
        return news
