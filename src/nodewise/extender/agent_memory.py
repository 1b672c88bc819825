"""What agents must not forget: read at the start, written by and by, in a file or in a ConfigMap of ours.

The ConfigMap is written by compare-and-swap, so replicas that learn different things fold them together. A memory that
cannot be read is begun anew, and said so: no pod waits for it.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from nodewise.clock import Clock
from nodewise.errors import UNREADABLE, BadInput, Conflict, NodewiseError, Problem
from nodewise.kube.api import Api, NotFound
from nodewise.kube.resources import CONFIG_MAPS
from nodewise.observe import logs
from nodewise.state import StateBuilder

NAME: Final = "nodewise-memory"
"""Of the ConfigMap."""
PERIOD_S: Final = 30.0
_TRIES: Final = 5
_MOST_BYTES: Final = 900_000
"""Of all together: the API server takes a megabyte."""


class StoredMemory(NamedTuple):
    """What is kept of all agents, and which version of it."""

    texts: Mapping[str, bytes]
    """By agent."""
    version: str = ""
    """Empty where nothing was written yet."""


class MemoryStore(Protocol):
    """A place that outlives us. Errors are kinds of `NodewiseError`; `Conflict` if somebody wrote in between."""

    async def read(self) -> StoredMemory: ...

    async def write(self, kept: StoredMemory) -> None: ...


class _ConfigMap(msgspec.Struct, frozen=True):
    metadata: dict[str, Any] = {}
    """All of it: whoever labels or annotates the ConfigMap finds that again."""
    data: dict[str, str] | None = None


class ConfigMapMemoryStore:
    """A key `<agent>.json` for each agent."""

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
    """A JSON object, by agent. Written beside it and put in its place, so that it is whole at any moment."""

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
        await asyncio.to_thread(self._write, body)

    def _write(self, body: bytes) -> None:
        """Until it is on the disk: a name that leads to nothing would be worse than no file."""
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
    """The memories of some agents, and where they are kept."""

    def __init__(
        self,
        states: Mapping[str, StateBuilder[Any]],
        keeping: MemoryStore,
        leads: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._states = states
        self._keeping = keeping
        self._leads = leads
        self._clock = clock
        self._known: dict[str, bytes] = {}
        """By agent: what was kept when we looked last."""
        self._recalled = False
        self._failure = ""
        self._told: list[Callable[[str, bytes], None]] = []

    def subscribe(self, subscriber: Callable[[str, bytes], None]) -> None:
        """Have it told, by the agent's name, what agents recall that they may not know from what they saw."""
        self._told.append(subscriber)

    async def run(self) -> None:
        """Recall at once, keep once a period, until cancelled."""
        while True:
            await self.step()
            await self._clock.sleep(PERIOD_S if self._recalled else 1.0)

    async def step(self) -> None:
        """Take over what others kept, and keep what is new. Failures are told once, and the next step tries again."""
        try:
            if not self._recalled:
                await self._recall()
            else:
                await self._keep()
        except NodewiseError as error:
            if str(error) != self._failure:
                logs.emit("memory_failed", error=str(error))
            self._failure = str(error)
        else:
            self._failure = ""

    async def close(self) -> None:
        """Keep what is new, for the last time."""
        if self._recalled:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5.0):
                    await self.step()

    async def _recall(self) -> None:
        kept = await self._keeping.read()
        for agent, text in kept.texts.items():
            self._take_over(agent, text)
        self._recalled = True

    def _take_over(self, agent: str, text: bytes) -> None:
        """What an agent cannot read is not asked for again, and is written over with what it learns."""
        self._known[agent] = text
        state = self._states.get(agent)
        if state is None:
            return
        if state.memory_scope == "replica" or not self._recalled:
            for subscriber in self._told:
                subscriber(agent, text)
        try:
            state.recall(text)
        except BadInput as error:
            logs.emit("memory_unreadable", agent=agent, error=str(error))
        except Exception as error:  # noqa: BLE001 - a defect of one agent must not cost the others their memories
            logs.emit("agent_failed", agent=agent, exc_info=error)

    async def _keep(self) -> None:
        for _ in range(_TRIES):
            kept = await self._keeping.read()
            news = self._news(kept.texts)
            for agent, state in self._states.items():
                text = kept.texts.get(agent)
                is_others = text != self._known.get(agent)
                if text is not None and is_others and state.memory_scope == "replica" and agent not in news:
                    self._take_over(agent, text)
            if not news:
                return
            try:
                await self._keeping.write(StoredMemory({**kept.texts, **news}, kept.version))
            except Conflict:
                continue  # somebody else had news as well
            for agent, text in news.items():
                self._take_over(agent, text)
            return

    def _news(self, kept: Mapping[str, bytes]) -> dict[str, bytes]:
        """By agent, what is to be kept anew; the smaller first, where there is no room for all."""
        news: dict[str, bytes] = {}
        for agent, state in self._states.items():
            if (state.memory_scope == "replica" or self._leads()) and (
                text := _kept(agent, state, kept.get(agent))
            ):
                news[agent] = text
        room = _MOST_BYTES - sum(len(text) for agent, text in kept.items() if agent not in news)
        for agent, text in sorted(news.items(), key=lambda item: len(item[1])):
            room -= len(text)
            if room < 0:
                logs.emit("memory_failed", error=f"agent {agent} would keep {len(text)} bytes, too much")
                del news[agent]
        return news


def _kept(agent: str, state: StateBuilder[Any], kept: bytes | None) -> bytes | None:
    try:
        return state.keep(kept)
    except Exception as error:  # noqa: BLE001 - a defect of one agent must not cost the others their memories
        logs.emit("agent_failed", agent=agent, exc_info=error)
        return None
