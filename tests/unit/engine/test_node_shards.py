"""The nodes of held shards are written once they are listed and their metrics are fetched."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final, cast

import pytest

from nodewise.engine.node_shards import NodeShards
from nodewise.kube.reflector import Reflector
from nodewise.kube.shard_election import ShardElection, Tenure, shard_of
from tests.unit.kube import virtual_time
from tests.unit.kube.virtual_time import VirtualClock

pytestmark = pytest.mark.anyio
LIST_S: Final = 2.0
UIDS: Final = [next(uid for uid in map(str, range(99)) if shard_of(uid, 2) == shard) for shard in range(2)]
"""The uid of a node of each shard."""


@pytest.fixture
def anyio_backend() -> Any:
    return virtual_time.BACKEND


class HeldLeases:
    """An election whose result the test sets."""

    shards = 2

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        """By shard, the number of its acquisition."""

    def tenure(self) -> Tenure:
        return Tenure(0, frozenset(self.held.items()))

    def left_s(self, shard: int, acquisition: int) -> float:
        return 3.0 if self.held.get(shard) == acquisition else 0.0


class SlowLists:
    """A reflector whose lists take some time."""

    def request_relist(self) -> None:
        self._listed = asyncio.Event()

    async def run(self) -> None:
        await asyncio.sleep(LIST_S)
        self._listed.set()
        await asyncio.Event().wait()

    async def wait_until_listed(self) -> None:
        await self._listed.wait()


class WatchedShards:
    """The shards of a replica, and its clock."""

    def __init__(self) -> None:
        self.leases = HeldLeases()
        self.clock = VirtualClock()
        self.nodes = NodeShards(cast("ShardElection", self.leases), self.clock)

    def written(self, at: float | None = None) -> list[int]:
        """The shards whose nodes may be written by a snapshot of this time, by default of now."""
        at = self.clock.now() if at is None else at
        return [shard for shard, uid in enumerate(UIDS) if self.nodes.write_timeout_s(uid, at)]

    def is_whole(self) -> bool:
        return self.nodes.is_whole(self.clock.now())


@contextlib.asynccontextmanager
async def watched() -> AsyncIterator[WatchedShards]:
    """Shard 0 is held, listed and written."""
    shards = WatchedShards()
    shards.leases.held = {0: 1}

    async def fetch_metrics() -> bool:
        return True

    task = asyncio.create_task(shards.nodes.run(cast("Reflector[Any]", SlowLists()), fetch_metrics))
    await asyncio.sleep(LIST_S + 1)
    assert shards.written() == [0]
    assert shards.is_whole()
    try:
        yield shards
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_nodes_of_another_shard_are_written_after_they_are_listed() -> None:
    async with watched() as shards:
        shards.leases.held = {0: 1, 1: 1}
        acquired_at = shards.clock.now()
        await asyncio.sleep(LIST_S - 0.5)
        assert shards.written() == [0]
        assert not shards.is_whole()
        await asyncio.sleep(1)
        assert shards.written() == [0, 1]
        assert shards.is_whole()
        assert shards.written(acquired_at) == [0]
        assert not shards.nodes.is_whole(acquired_at)


async def test_snapshot_has_foreign_nodes_until_a_lost_shard_is_forgotten() -> None:
    async with watched() as shards:
        shards.leases.held = {}
        assert shards.written() == []
        assert not shards.is_whole()
        await asyncio.sleep(LIST_S + 1)
        assert shards.is_whole()


async def test_lost_and_acquired_shard_is_listed_again() -> None:
    async with watched() as shards:
        shards.leases.held = {0: 2}
        assert shards.written() == []
        await asyncio.sleep(LIST_S + 1)
        assert shards.written() == [0]


async def test_nodes_are_written_after_the_clock_was_set_back() -> None:
    async with watched() as shards:
        shards.clock.step_s = -3600.0
        await asyncio.sleep(1)
        assert shards.written() == [0]
        assert shards.is_whole()
