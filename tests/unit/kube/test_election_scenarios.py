"""Leader election with a slow API server, and of replicas with one identity, in virtual time."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from nodewise.base.errors import Unavailable
from nodewise.kube.api_server_interface import DEADLINE_S, NONE, Params
from nodewise.kube.leader_election import (
    SLOW_TIMINGS,
    ApiLatency,
    Elector,
    LeaseAccess,
    LeaseLock,
    LeaseTimings,
)
from nodewise.kube.resource_kinds import LEASES
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.scheduling_model.in_memory_api import FakeApi
from tests.unit.kube import virtual_time
from tests.unit.kube.virtual_time import VirtualClock

QUICK = LeaseTimings()


@pytest.fixture
def anyio_backend() -> object:
    return virtual_time.BACKEND


class SlowApi(FakeApi):
    """A connection to an API server. A new connection costs one more round trip, also the one after a timeout."""

    def __init__(self, server: FakeApi, round_trip_s: Callable[[], float]) -> None:
        super().__init__()
        self._server = server
        self._round_trip_s = round_trip_s
        self._is_connected = False

    async def get(self, path: str, params: Params = NONE, *, timeout_s: float = DEADLINE_S) -> bytes:
        return await self._respond(lambda: self._server.get(path, params), timeout_s)

    async def create(
        self, path: str, body: object, params: Params = NONE, *, timeout_s: float = DEADLINE_S
    ) -> bytes:
        return await self._respond(lambda: self._server.create(path, body, params), timeout_s)

    async def replace(
        self, path: str, body: object, params: Params = NONE, *, timeout_s: float = DEADLINE_S
    ) -> bytes:
        return await self._respond(lambda: self._server.replace(path, body, params), timeout_s)

    async def _respond(self, call: Callable[[], Awaitable[bytes]], timeout_s: float) -> bytes:
        """The request arrives even if its response is late."""
        arriving = asyncio.ensure_future(self._arrive(call))
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(arriving)
                await asyncio.sleep(self._round_trip_s() / 2)
                self._is_connected = True
                return await arriving
        except TimeoutError as error:
            self._is_connected = False
            arriving.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise Unavailable("no answer", timeout_s=timeout_s) from error

    async def _arrive(self, call: Callable[[], Awaitable[bytes]]) -> bytes:
        await asyncio.sleep(self._round_trip_s() * (0.5 if self._is_connected else 1.5))
        return await call()


class Election:
    """Electors on one API server, and every change of a leader."""

    def __init__(self, *round_trips_s: Callable[[], float]) -> None:
        self.server = FakeApi()
        self.changes: list[tuple[float, str, bool]] = []
        self.electors: dict[str, Elector] = {}
        self.tasks: list[asyncio.Task[None]] = []
        for round_trip_s in round_trips_s:
            self.add(f"replica-{len(self.electors)}", round_trip_s)

    def add(self, name: str, round_trip_s: Callable[[], float], identity: str = "") -> None:
        """Start a replica on a host of its own."""
        lock = LeaseLock("default", "nodewise", identity or name, process=f"host-of-{name}_1")
        api = SlowApi(self.server, round_trip_s)
        elector = Elector(
            LeaseAccess(api, lock, VirtualClock(), MetricsRegistry(), random.Random(name).random)
        )
        elector.on_change(lambda leads: self.changes.append((self.now_s(), name, leads)))
        self.electors[name] = elector
        self.tasks.append(asyncio.ensure_future(elector.run()))

    def now_s(self) -> float:
        """The virtual time."""
        return asyncio.get_running_loop().time()

    async def run(self, seconds: float) -> None:
        """Let time pass. At no time two replicas lead."""
        end_s = self.now_s() + seconds
        while self.now_s() < end_s:
            await asyncio.sleep(0.05)
            assert sum(elector.leading for elector in self.electors.values()) <= 1

    def duration_s(self) -> int:
        spec: dict[str, Any] = self.server.objects(LEASES)["default", "nodewise"]["spec"]
        return int(spec["leaseDurationSeconds"])

    def end(self) -> None:
        for task in self.tasks:
            task.cancel()


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodewise.observe.logs.emit", lambda *_, **__: None)


@pytest.mark.parametrize("round_trip_s", [0.7, 1.4, 2.0, 3.0, 4.5])
async def test_with_a_slow_api_server_one_replica_leads_within_35_s_and_goes_on(round_trip_s: float) -> None:
    election = Election(*[lambda: round_trip_s] * 2)
    await election.run(35)
    leaders = [name for name, elector in election.electors.items() if elector.leading]
    assert len(leaders) == 1
    before = len(election.changes)
    await election.run(600)
    assert election.changes[before:] == []
    assert election.duration_s() == (5 if round_trip_s < 1.25 else 30)
    election.end()


async def test_an_api_server_that_stalls_again_and_again_does_not_change_the_leader_each_time() -> None:
    """Every 25 s all calls take 4 s for a while."""

    def round_trip_s() -> float:
        return 4.0 if asyncio.get_running_loop().time() % 25 > 20 else 0.05

    election = Election(round_trip_s, round_trip_s)
    await election.run(60)
    before = len(election.changes)
    await election.run(480)
    assert election.changes[before:] == []
    election.end()


async def test_a_quick_api_server_gets_the_short_duration_again() -> None:
    slow_until_s = 100.0

    def round_trip_s() -> float:
        return 2.0 if asyncio.get_running_loop().time() < slow_until_s else 0.05

    election = Election(round_trip_s, round_trip_s)
    await election.run(100)
    assert election.duration_s() == SLOW_TIMINGS.duration_s
    before = len(election.changes)
    await election.run(300)
    assert election.duration_s() == QUICK.duration_s
    assert election.changes[before:] == [], "the leader leads on"
    election.end()


async def test_a_follower_near_the_api_server_waits_for_the_lease_of_a_slow_leader() -> None:
    election = Election(lambda: 2.0)
    await election.run(60)
    leader = election.electors["replica-0"]
    assert leader.leading
    election.add("near", lambda: 0.01)
    await election.run(5)
    election.tasks[0].cancel()
    killed_s = election.now_s()
    await election.run(40)
    (began_s,) = [at_s for at_s, name, leads in election.changes if name == "near" and leads]
    assert began_s - killed_s > SLOW_TIMINGS.duration_s - SLOW_TIMINGS.retry_s - 2 * 2.0
    election.end()


async def test_two_replicas_of_different_hosts_with_one_identity_never_lead_at_once() -> None:
    election = Election()
    for name in ("a", "b"):
        election.add(name, lambda: 0.05, identity="same")
    await election.run(60)
    leader, other = sorted(election.electors.values(), key=lambda elector: not elector.leading)
    assert leader.leading
    assert not other.leading
    assert len(election.changes) == 1
    election.end()


def test_an_api_server_that_stops_for_a_while_is_not_slow() -> None:
    latency = ApiLatency(1.25)
    latency.record_response(0.0, 0.1)
    for sent_s in range(10, 100, 4):
        latency.record_timeout(sent_s)
    latency.record_response(100.0, 101.7)
    assert latency.last_s == 91.7
    assert latency.is_unclear
    latency.record_response(102.0, 102.1)
    assert not latency.is_unclear
    assert not latency.is_slow


def test_timeouts_grow_from_the_second_in_a_row_on() -> None:
    latency = ApiLatency(1.25)
    timeouts_s = []
    for _ in range(6):
        timeouts_s.append(latency.timeout_s(1.75, 10.0))
        latency.record_timeout(0.0)
    assert timeouts_s == [1.75, 1.75, 3.5, 7.0, 10.0, 10.0]
    latency.record_response(0.0, 0.1)
    assert latency.timeout_s(1.75, 10.0) == 1.75
