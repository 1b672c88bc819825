"""Concurrent calls: their number is limited, failures are independent, and calls end if the server is silent."""

import asyncio
from collections.abc import Coroutine, Iterator

import pytest

from nodewise.base.errors import Conflict, NodewiseError, Unavailable
from nodewise.kube.api_server_interface import AT_ONCE, run_api_calls


class Calls:
    def __init__(self, error: NodewiseError | None = None, of: int = 1) -> None:
        self.begun = self.under_way = self.most = 0
        self._error, self._of = error, of

    async def one(self, number: int) -> None:
        self.begun += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        if self._error and number % self._of == 0:
            raise self._error


async def test_a_few_at_a_time() -> None:
    calls = Calls()
    await run_api_calls(calls.one(number) for number in range(100))
    assert (calls.begun, calls.most) == (100, AT_ONCE)


@pytest.mark.parametrize(("error", "of"), [(Conflict("no"), 1), (Unavailable("no answer"), 2)])
async def test_a_failure_ends_no_other_call_and_is_raised_at_the_end(error: NodewiseError, of: int) -> None:
    calls = Calls(error, of)
    with pytest.raises(type(error)):
        await run_api_calls(calls.one(number) for number in range(100))
    assert calls.begun == 100


async def test_a_defect_leaves_no_other_call_behind() -> None:
    calls = Calls()

    async def defect() -> None:
        raise TypeError("a defect")

    with pytest.raises(TypeError):
        await run_api_calls(defect() if number == 3 else calls.one(number) for number in range(100))
    assert (calls.begun, calls.under_way) == (99, 0)


async def test_call_cancelled_before_its_turn_is_not_sent() -> None:
    """Python must not warn about coroutines that were never awaited."""
    calls, made = Calls(), 0

    def making() -> Iterator[Coroutine[None, None, None]]:
        nonlocal made
        for number in range(3):
            made += 1
            yield calls.one(number)

    task = asyncio.create_task(run_api_calls(making()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert made == calls.begun


async def test_no_further_calls_start_without_responses() -> None:
    calls = Calls(Unavailable("no answer"))
    with pytest.raises(Unavailable):
        await run_api_calls(calls.one(number) for number in range(100))
    assert calls.begun < 3 * AT_ONCE
