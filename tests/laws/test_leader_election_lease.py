"""At most one replica leads at any time, with wrong clocks, slow API servers, late packets, lost responses and killed
replicas.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewise.base.errors import Unavailable
from nodewise.kube.api_server_interface import DEADLINE_S, NONE, Params
from nodewise.kube.leader_election import Elector, LeaseAccess, LeaseLock
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.scheduling_model.in_memory_api import FakeApi
from tests.unit.kube import virtual_time
from tests.unit.kube.virtual_time import VirtualClock

METERS = MetricsRegistry()


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch off log lines, because the tests cause thousands of failures."""
    monkeypatch.setattr("nodewise.observe.logs.emit", lambda *_, **__: None)


class BadNetwork(FakeApi):
    """An API client that loses some requests and responses, and delays others. Late requests still arrive."""

    def __init__(self, server: FakeApi, chance: random.Random) -> None:
        super().__init__()
        self.server = server
        self.chance = chance
        self.bad = True
        self.down = False
        self.latency_s = 0.0
        """Of each direction. Different replicas may see different latencies, so they use different durations."""

    async def get(self, path: str, params: Params = NONE, *, timeout_s: float = DEADLINE_S) -> bytes:
        return await self._sent(lambda: self.server.get(path, params), timeout_s)

    async def create(
        self, path: str, body: object, params: Params = NONE, *, timeout_s: float = DEADLINE_S
    ) -> bytes:
        return await self._sent(lambda: self.server.create(path, body, params), timeout_s)

    async def replace(
        self, path: str, body: object, params: Params = NONE, *, timeout_s: float = DEADLINE_S
    ) -> bytes:
        return await self._sent(lambda: self.server.replace(path, body, params), timeout_s)

    async def _sent(self, call: Callable[[], Awaitable[bytes]], timeout_s: float) -> bytes:
        travelling = asyncio.ensure_future(self._travel(call))
        travelling.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(travelling)
        except TimeoutError as error:
            raise Unavailable("no answer", timeout_s=timeout_s) from error

    async def _travel(self, call: Callable[[], Awaitable[bytes]]) -> bytes:
        await self._leg()
        answer = await call()
        await self._leg()
        return answer

    async def _leg(self) -> None:
        if self.down:
            raise Unavailable("cut off")
        if not self.bad:
            return
        await asyncio.sleep(self.latency_s)
        fate = self.chance.random()
        if fate < 0.1:
            raise Unavailable("lost")
        await asyncio.sleep(self.chance.uniform(0, 25) if fate < 0.2 else self.chance.uniform(0, 0.5))


class ElectionReplica:
    """An elector on a machine with its own clocks. It may be killed or stopped, and restarts with another identity."""

    def __init__(
        self, number: int, server: FakeApi, chance: random.Random, replicas: list["ElectionReplica"]
    ) -> None:
        self.clock = VirtualClock(chance.uniform(0, 1e6), chance.choice([0.85, 1.0, 1.15]))
        self.network = BadNetwork(server, chance)
        self.chance = chance
        self.replicas = replicas
        self.number = number
        self.lives = 0
        self.born()

    def born(self) -> None:
        self.lives += 1
        lock = LeaseLock("default", "nodewise", f"replica-{self.number}-{self.lives}")
        self.elector = Elector(LeaseAccess(self.network, lock, self.clock, METERS, self.chance.random))
        self.elector.on_change(lambda _: one_at_most(self.replicas))
        self.task = asyncio.ensure_future(self.elector.run())

    async def misfortune(self) -> None:
        fate = self.chance.random()
        self.clock.step_s = self.chance.uniform(-1e5, 1e5)
        self.network.latency_s = self.chance.choice([0.0, 0.0, 0.3, 1.0, 2.5])
        if fate > 0.6:
            self.network.down = True
            await asyncio.sleep(self.chance.uniform(5, 40))
            self.network.down = False
        if fate < 0.4:
            self.task.cancel()
            with suppress(asyncio.CancelledError):
                await self.task
            if fate < 0.2:
                await self.elector.stop()
            else:  # killed: it does nothing more, and its Lease expires
                self.elector._until_s = float("-inf")
            await asyncio.sleep(self.chance.uniform(0, 30))
            self.born()


def one_at_most(replicas: list[ElectionReplica]) -> None:
    assert sum(replica.elector.leading for replica in replicas) <= 1


async def watched(replicas: list[ElectionReplica], for_s: float) -> None:
    for _ in range(int(for_s / 0.1)):
        await asyncio.sleep(0.1)
        one_at_most(replicas)


async def unlucky(replicas: list[ElectionReplica], chance: random.Random) -> None:
    while True:
        await asyncio.sleep(chance.uniform(1, 25))
        await chance.choice(replicas).misfortune()


async def election(seed: int) -> None:
    chance = random.Random(seed)
    server = FakeApi()
    replicas: list[ElectionReplica] = []
    for number in range(3):
        replicas.append(ElectionReplica(number, server, chance, replicas))
    troubles = asyncio.ensure_future(unlucky(replicas, chance))
    await watched(replicas, 200)
    troubles.cancel()
    with suppress(asyncio.CancelledError):
        await troubles
    for replica in replicas:
        replica.network.bad = replica.network.down = False
        if replica.task.done() and not replica.task.cancelled():
            replica.task.result()
        if replica.task.done():
            replica.born()
    await watched(replicas, 90)
    assert sum(replica.elector.leading for replica in replicas) == 1, "when all is well again one leads"
    for replica in replicas:
        replica.task.cancel()


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32))
def test_two_leaders_never_lead_at_once(seed: int) -> None:
    virtual_time.run(election(seed))
