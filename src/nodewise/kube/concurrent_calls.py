"""Many calls to the API server at once, a few at a time."""

import asyncio
from collections.abc import Awaitable, Iterator
from typing import Final

from nodewise.errors import NodewiseError, Unavailable

AT_ONCE: Final = 8
"""Calls under way at once; the rate of writes is the API client's business (`--kube-qps`)."""


async def every(work: Iterator[Awaitable[None]]) -> None:
    """Everything, a few at a time, each made and begun when its turn comes.

    The first defect, or else the first error, is raised when all is done: no call is under way when this returns.

    An API server that answers nobody is left alone: when so many calls in a row had no answer as may be under way, no
    more are begun.
    """
    failed: list[NodewiseError] = []
    defects: list[Exception] = []
    unanswered = 0

    async def one_after_another() -> None:
        nonlocal unanswered
        while unanswered < AT_ONCE and (part := next(work, None)) is not None:
            try:
                await part
            except NodewiseError as error:
                failed.append(error)
                unanswered = unanswered + 1 if isinstance(error, Unavailable) else 0
            except Exception as error:  # noqa: BLE001 - raised below, when no other call is left behind
                defects.append(error)
            else:
                unanswered = 0

    await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))
    if defects:
        raise defects[0]
    if failed:
        raise failed[0]
