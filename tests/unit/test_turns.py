"""Who works when on the event loop."""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any

from nodewise import turns


def test_long_work_lets_the_loop_go_on() -> None:
    async def scenario() -> list[str]:
        seen: list[str] = []

        async def work() -> None:
            async for item in turns.paced(range(2000)):
                sum(range(500))
                if item in {0, 1999}:
                    seen.append(f"work {item}")

        async def other() -> None:
            seen.append("other")

        await asyncio.gather(work(), other())
        return seen

    assert asyncio.run(scenario()) == ["work 0", "other", "work 1999"]


def test_a_stepwise_computation_gives_the_same_at_once_and_in_slices() -> None:
    def work() -> Generator[None, None, int]:
        yield
        yield
        return 7

    assert turns.result(work()) == asyncio.run(turns.paced_result(work(), budget_s=0)) == 7


class Jobs:
    """What works, told slice by slice; each slice is over its budget at once."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def job(self, name: str, slices: int) -> None:
        for _ in range(slices):
            await turns.turn()
            self.told.append(name)

    async def rounds(self, count: int) -> None:
        """Tells every round of the event loop."""
        for _ in range(count):
            self.told.append("|")
            await asyncio.sleep(0)

    def run(self, *all_: Coroutine[Any, Any, None]) -> str:
        async def together() -> None:
            await asyncio.gather(*all_)

        asyncio.run(together())
        return "".join(self.told)


def test_one_slice_a_round_and_who_began_first_ends_first() -> None:
    jobs = Jobs()
    told = jobs.run(jobs.rounds(40), jobs.job("a", 3), jobs.job("b", 3), jobs.job("c", 3))
    assert all(len(slices) <= 1 for slices in told.split("|"))
    assert told.replace("|", "") == "aaabbbccc"


def test_who_is_cancelled_while_waiting_holds_nobody_up() -> None:
    jobs = Jobs()

    async def cancelling() -> None:
        waiting = [asyncio.create_task(jobs.job("x", 3)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        waiting[1].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    jobs.run(jobs.job("a", 2), cancelling(), jobs.job("b", 2))
    assert jobs.told.count("b") == 2
    assert jobs.told.count("x") >= 3


def test_waiting_for_a_turn_ends_with_the_work() -> None:
    """Nobody goes round and round on an idle loop."""

    async def idle() -> int:
        await Jobs().job("a", 2)
        await asyncio.sleep(0.01)
        loop = asyncio.get_running_loop()
        return len(loop._ready)  # type: ignore[attr-defined]

    assert asyncio.run(idle()) == 0


def test_what_comes_at_once_is_taken_in_slices() -> None:
    jobs = Jobs()

    async def taking() -> None:
        pace = turns.Pace(budget_s=0)
        for name in "abc":
            await pace.pause()
            jobs.told.append(name)

    told = jobs.run(jobs.rounds(9), taking())
    assert all(len(taken) <= 1 for taken in told.split("|"))
    assert told.replace("|", "") == "abc"
