"""Laws of the fair concurrency limit: no slot is lost, none is idle, and no namespace starves."""

import asyncio
import contextlib
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from nodewise.metrics.fair_concurrency_limit import FairConcurrencyLimit, Slot

NAMES = "abcd"


class Calls:
    """Calls of several namespaces, and the limit that they share."""

    def __init__(self, slots: int) -> None:
        self.limit = FairConcurrencyLimit(slots)
        self.calls: list[tuple[Slot, asyncio.Event, asyncio.Task[None]]] = []
        self.started: list[str] = []
        """The namespaces for which calls started, in order."""

    def begin(self, namespaces: frozenset[str]) -> None:
        slot, end = self.limit.slot(namespaces), asyncio.Event()
        self.calls.append((slot, end, asyncio.create_task(self._call(slot, end))))

    async def _call(self, slot: Slot, end: asyncio.Event) -> None:
        async with slot:
            assert slot.charged_to in slot.namespaces
            self.started.append(slot.charged_to)
            await end.wait()

    async def settle(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)
        self.calls = [call for call in self.calls if not call[2].done()]

    @property
    def running(self) -> Counter[str]:
        return Counter(slot.charged_to for slot, _, _ in self.calls if slot.charged_to is not None)

    @property
    def waiting(self) -> set[str]:
        return {name for slot, _, _ in self.calls if slot.charged_to is None for name in slot.namespaces}

    def is_idle(self) -> bool:
        return self.limit._free == self.limit.slots and not self.limit._shares

    def check(self) -> None:
        running = self.running
        free = self.limit.slots - running.total()
        assert free >= 0
        assert max(running.values(), default=0) <= (self.limit.slots + 1) // 2
        assert all(running[name] >= free for name in self.waiting), "a slot is free, and a call waits"


namespace_sets = st.frozensets(st.sampled_from(NAMES), min_size=1, max_size=2)
steps = st.one_of(namespace_sets, st.tuples(st.sampled_from(("end", "cancel")), st.integers(0, 50)))


@given(st.integers(1, 9), st.lists(steps, max_size=60))
def test_no_slot_is_lost_or_idle_whatever_begins_ends_or_is_canceled(
    slots: int, schedule: list[frozenset[str] | tuple[str, int]]
) -> None:
    async def run() -> None:
        calls = Calls(slots)
        for step in schedule:
            if isinstance(step, frozenset):
                calls.begin(step)
            elif calls.calls:
                _, end, task = calls.calls[step[1] % len(calls.calls)]
                end.set() if step[0] == "end" else task.cancel()
            await calls.settle()
            calls.check()
        for _, _, task in calls.calls:
            task.cancel()
        await asyncio.gather(*(task for _, _, task in calls.calls), return_exceptions=True)
        assert calls.is_idle()

    asyncio.run(run())


@given(st.integers(1, 9), st.lists(st.sampled_from(NAMES), max_size=40), st.data())
def test_a_namespace_without_running_calls_waits_for_one_call_of_each_other_namespace_at_most(
    slots: int, before: list[str], data: st.DataObject
) -> None:
    async def run() -> None:
        calls = Calls(slots)
        for name in before:
            calls.begin(frozenset([name]))
        await calls.settle()
        calls.begin(frozenset(["z"]))
        await calls.settle()
        started_before = calls.started.copy()
        while "z" not in calls.started:
            running = [end for slot, end, _ in calls.calls if slot.charged_to is not None]
            data.draw(st.sampled_from(running)).set()
            calls.begin(frozenset([data.draw(st.sampled_from(NAMES))]))
            await calls.settle()
        others = calls.started[len(started_before) : calls.started.index("z")]
        assert len(others) == len(set(others))
        for _, _, task in calls.calls:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*(task for _, _, task in calls.calls))

    asyncio.run(run())


def test_one_namespace_holds_half_of_the_slots_and_others_find_the_rest_free() -> None:
    async def run() -> None:
        calls = Calls(64)
        # seven namespaces that begin one after another take all slots; the eighth waits for one of them
        for name, held in zip("abcdefgh", (32, 16, 8, 4, 2, 1, 1, 0), strict=True):
            for _ in range(100):
                calls.begin(frozenset([name]))
            await calls.settle()
            assert calls.running[name] == held
        for _, _, task in calls.calls:
            task.cancel()

    asyncio.run(run())


def test_a_call_that_is_canceled_when_its_turn_comes_passes_it_on() -> None:
    async def run() -> None:
        calls = Calls(1)
        for name in "abc":
            calls.begin(frozenset([name]))
        await calls.settle()
        (_, end, _), (_, _, second), _ = calls.calls
        end.set()
        await asyncio.sleep(0)
        second.cancel()
        await calls.settle()
        assert calls.started == ["a", "c"]
        calls.calls[0][1].set()
        await calls.settle()
        assert calls.is_idle()

    asyncio.run(run())
