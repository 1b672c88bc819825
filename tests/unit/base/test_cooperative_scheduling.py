"""Long work on the event loop yields to other tasks."""

import asyncio
from collections.abc import Generator

from nodewise.base import cooperative_scheduling


def test_long_work_lets_the_loop_go_on() -> None:
    async def scenario() -> list[str]:
        seen: list[str] = []

        async def work() -> None:
            async for item in cooperative_scheduling.iterate_with_pauses(range(2000)):
                sum(range(500))
                if item in {0, 1999}:
                    seen.append(f"work {item}")

        async def other() -> None:
            seen.append("other")

        await asyncio.gather(work(), other())
        return seen

    seen = asyncio.run(scenario())
    assert seen.index("other") < seen.index("work 1999")


def test_a_computation_gives_the_same_at_once_and_in_slices() -> None:
    def work() -> Generator[None, None, int]:
        yield
        yield
        return 7

    assert (
        cooperative_scheduling.run_without_pauses(work())
        == asyncio.run(cooperative_scheduling.run(work(), slice_s=0))
        == 7
    )


def test_immediate_items_are_processed_in_slices() -> None:
    seen: list[str] = []

    async def rounds() -> None:
        for _ in range(9):
            seen.append("|")
            await asyncio.sleep(0)

    async def take() -> None:
        pacer = cooperative_scheduling.Pacer(slice_s=0)
        for name in "abc":
            await pacer.pause()
            seen.append(name)

    async def together() -> None:
        await asyncio.gather(rounds(), take())

    asyncio.run(together())
    text = "".join(seen)
    assert all(len(taken) <= 1 for taken in text.split("|"))
    assert text.replace("|", "") == "abc"


def test_the_result_of_an_event_loop_is_not_formatted_as_text() -> None:
    class Formatted:
        def __repr__(self) -> str:
            raise AssertionError("formatted")

    async def read() -> list[Formatted]:
        return [Formatted()]

    assert len(cooperative_scheduling.run_event_loop(read())) == 1
