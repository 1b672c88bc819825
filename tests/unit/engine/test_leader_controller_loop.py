"""The leader loop: each controller runs one step at a time, independently of the others."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from nodewise.base.errors import Refused
from nodewise.engine.leader_controller_loop import LeaderLoop
from nodewise.observe import logs
from tests.unit.kube import virtual_time
from tests.unit.kube.virtual_time import VirtualClock

PERIOD_S = 5.0


@pytest.fixture
def anyio_backend() -> object:
    return virtual_time.BACKEND


class Steps:
    """A controller that records its steps, and how many of them run at the same time."""

    def __init__(self, behave: Callable[[int], Any] = lambda number: None) -> None:
        self.begun = self.under_way = self.most = 0
        self.generations: list[int] = []
        self._behave = behave

    def begin(self) -> None:
        self.begun += 1

    async def step(self, snapshot: Any) -> None:
        self.generations.append(snapshot.generation)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(1.0)
            if awaitable := self._behave(len(self.generations)):
                await awaitable
        finally:
            self.under_way -= 1


def failing(error: Exception, until: int = 10**6) -> Callable[[int], None]:
    def behave(number: int) -> None:
        if number <= until:
            raise error

    return behave


def _snapshot(generation: int) -> Any:
    """A snapshot whose time is a hundred times its generation."""
    return SimpleNamespace(generation=generation, at=100.0 * generation)


class LeaderProcess:
    def __init__(self, controllers: Sequence[Any]) -> None:
        self.snapshot = _snapshot(1)
        self.leads = True
        self.defect: Exception | None = None
        self.applied: list[float] = []
        self.leading = LeaderLoop(
            controllers, self._see, lambda: self.leads, VirtualClock(), self.applied.append
        )

    def _see(self) -> Any:
        if self.defect:
            raise self.defect
        return self.snapshot

    @asynccontextmanager
    async def running(self, period_s: float = PERIOD_S) -> AsyncIterator[None]:
        task = asyncio.create_task(self.leading.run(period_s))
        yield
        task.cancel()
        await asyncio.wait([task])

    async def play(self, snapshots: int) -> None:
        """Publish a new snapshot in each period."""
        async with self.running():
            for _ in range(snapshots):
                await asyncio.sleep(PERIOD_S)
                self.publish()

    def publish(self) -> None:
        """Publish a new snapshot."""
        self.snapshot = _snapshot(self.snapshot.generation + 1)
        self.leading.notify()

    def elect(self, *, leads: bool) -> None:
        self.leads = leads
        self.leading.notify()


@pytest.fixture(autouse=True)
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    events: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(logs, "emit", lambda event, **fields: events.append((event, fields)))
    return events


@pytest.mark.parametrize("error", [Refused("no right"), TypeError("a defect"), asyncio.CancelledError()])
async def test_a_step_that_fails_stops_no_other_and_is_tried_again(error: Exception) -> None:
    bad, good = Steps(failing(error)), Steps()
    await LeaderProcess([bad, good]).play(6)
    assert good.generations == [1, 2, 3, 4, 5, 6]
    assert len(bad.generations) >= 4
    assert (bad.most, good.most) == (1, 1)


async def test_a_step_that_hangs_stops_no_other_and_is_reported_once(events: list[tuple[str, Any]]) -> None:
    hanging, good = Steps(lambda number: asyncio.Event().wait()), Steps()
    await LeaderProcess([hanging, good]).play(20)
    assert good.generations == list(range(1, 21))
    assert (hanging.generations, hanging.most) == ([1], 1)
    assert [(event, fields["controller"]) for event, fields in events] == [("controller_slow", "Steps")]


async def test_the_time_of_the_newest_snapshot_that_all_controllers_have_applied_is_reported() -> None:
    slow, good = Steps(lambda number: asyncio.sleep(1.5 * PERIOD_S)), Steps()
    leader = LeaderProcess([slow, good])
    await leader.play(6)
    assert (slow.generations, good.generations) == ([1, 2, 4, 6], [1, 2, 3, 4, 5, 6])
    assert leader.applied[0] == 100.0
    assert sorted(set(leader.applied)) == [100.0, 200.0, 400.0]


async def test_a_controller_that_fails_keeps_the_reported_time() -> None:
    bad = Steps(lambda number: failing(Refused("no right"))(number) if number > 2 else None)
    leader = LeaderProcess([bad, Steps()])
    await leader.play(6)
    assert set(leader.applied) == {100.0, 200.0}


async def test_a_new_leader_reports_no_time_of_its_earlier_lead() -> None:
    leader = LeaderProcess([Steps(), Steps(lambda number: asyncio.Event().wait() if number > 1 else None)])

    async with leader.running():
        await asyncio.sleep(PERIOD_S)
        assert set(leader.applied) == {100.0}
        for leads in (False, True):
            leader.elect(leads=leads)
            await asyncio.sleep(PERIOD_S)
    assert set(leader.applied) == {100.0}


async def test_a_step_that_takes_several_periods_does_not_overlap_and_then_takes_the_newest_view() -> None:
    slow = Steps(lambda number: asyncio.sleep(2.5 * PERIOD_S))
    await LeaderProcess([slow]).play(9)
    assert slow.most == 1
    assert slow.generations == [1, 3, 6, 9]


async def test_a_step_that_was_too_short_for_its_work_is_followed_at_once_by_the_next_one() -> None:
    """The steps that write labels end after 2 s; a pause between them would delay thousands of labels."""
    ended_s: list[float] = []

    async def end() -> None:
        await asyncio.sleep(0.2)  # after the second of a step
        ended_s.append(asyncio.get_running_loop().time())

    leader = LeaderProcess([Steps(lambda number: end())])
    async with leader.running():
        for _ in range(30):
            await asyncio.sleep(0.15)
            leader.publish()
    assert [round(at, 2) for at in ended_s] == [1.2, 2.4, 3.6]


async def test_a_failed_step_is_tried_again_with_the_same_view_after_a_period() -> None:
    once = Steps(failing(Refused("no"), until=1))
    leader = LeaderProcess([once])

    async with leader.running():
        await asyncio.sleep(3 * PERIOD_S)
    assert once.generations == [1, 1]


async def test_a_new_leader_begins_when_the_step_of_its_earlier_lead_has_ended() -> None:
    slow = Steps(lambda number: asyncio.sleep(2 * PERIOD_S))
    leader = LeaderProcess([slow])

    async with leader.running():
        await asyncio.sleep(1.0)
        leader.elect(leads=False)
        await asyncio.sleep(1.0)
        leader.elect(leads=True)
        await asyncio.sleep(2.0)
        assert (slow.begun, slow.generations) == (1, [1])
        await asyncio.sleep(2 * PERIOD_S)
        assert (slow.begun, slow.generations) == (2, [1, 1])


async def test_steps_end_with_the_loop_so_that_a_loop_that_is_started_again_does_not_overlap_them() -> None:
    hanging = Steps(lambda number: asyncio.Event().wait())
    leader = LeaderProcess([hanging])

    task = asyncio.create_task(leader.leading.run(PERIOD_S))
    await asyncio.sleep(PERIOD_S)
    leader.defect = TypeError("a defect")
    await asyncio.wait([task])
    assert isinstance(task.exception(), TypeError)
    assert hanging.under_way == 0
    leader.defect = None
    async with leader.running():
        await asyncio.sleep(PERIOD_S)
        assert (len(hanging.generations), hanging.most) == (2, 1)


async def test_a_new_snapshot_is_acted_on_at_once_and_many_are_acted_on_ten_times_a_period() -> None:
    quick = Steps()
    leader = LeaderProcess([quick])
    began_s: list[float] = []

    async def step(snapshot: Any) -> None:
        began_s.append(asyncio.get_running_loop().time())

    quick.step = step  # type: ignore[method-assign]

    async with leader.running():
        await asyncio.sleep(3.3)
        leader.publish()
        await asyncio.sleep(0.7)
        for _ in range(100):
            await asyncio.sleep(0.01)
            leader.publish()
        await asyncio.sleep(1.0)
    assert [round(at, 2) for at in began_s] == [0.0, 3.3, 4.3, 4.8, 5.3]


@pytest.mark.parametrize("period_s", [5.0, 20.0, 60.0, 600.0])
async def test_steps_that_write_for_two_seconds_have_no_pause_however_long_the_period_is(
    period_s: float,
) -> None:
    leader = LeaderProcess([steps := Steps(lambda number: asyncio.sleep(1.0))])
    async with leader.running(period_s):
        for _ in range(40):
            await asyncio.sleep(0.5)
            leader.publish()
    assert len(steps.generations) in {10, 11}


@pytest.mark.parametrize("period_s", [20.0, 600.0])
@pytest.mark.parametrize("behave", [failing(Refused("no")), lambda number: None])
async def test_a_step_is_repeated_after_seconds_in_a_long_period_because_it_may_have_left_writes(
    behave: Callable[[int], Any], period_s: float
) -> None:
    """Objects that failed alone are tried again, and policies become active, without a new snapshot."""
    leader = LeaderProcess([steps := Steps(behave)])
    async with leader.running(period_s):
        await asyncio.sleep(30.0)
    assert 4 <= len(steps.generations) <= 6
    assert set(steps.generations) == {1}


@pytest.mark.parametrize("error", [Refused("no"), TypeError("a defect")])
async def test_a_controller_that_cannot_begin_stops_no_other(error: Exception) -> None:
    bad, good = Steps(), Steps()

    def begin() -> None:
        raise error

    bad.begin = begin  # type: ignore[method-assign]
    await LeaderProcess([bad, good]).play(3)
    assert (bad.generations, good.generations) == ([], [1, 2, 3])
