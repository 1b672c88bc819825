"""Runs many calls to the API server concurrently, with a limit."""

import asyncio
from collections.abc import Awaitable, Iterator
from typing import Final

from nodewise.base.errors import NodewiseError, Unavailable

AT_ONCE: Final = 8
"""Concurrent calls. The API client limits the rate of writes (`--kube-qps`)."""


async def run_api_calls(work: Iterator[Awaitable[None]]) -> None:
    """Run all calls, at most `AT_ONCE` at a time. The iterator creates each call when the call can start.

    Raises the first unexpected exception, else the first `NodewiseError`, after all calls have ended.

    If `AT_ONCE` calls in a row get no response, no more calls start: the API server is unavailable.
    """
    failed: list[NodewiseError] = []
    defects: list[Exception] = []
    unanswered = 0

    async def run_calls() -> None:
        nonlocal unanswered
        while unanswered < AT_ONCE and (part := next(work, None)) is not None:
            try:
                await part
            except NodewiseError as error:
                failed.append(error)
                unanswered = unanswered + 1 if isinstance(error, Unavailable) else 0
            except Exception as error:  # noqa: BLE001 - raised below, after all other calls have ended
                defects.append(error)
            else:
                unanswered = 0

    await asyncio.gather(*(run_calls() for _ in range(AT_ONCE)))
    if defects:
        raise defects[0]
    if failed:
        raise failed[0]
