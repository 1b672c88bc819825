"""Background tasks that outlive their own defects."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final

from nodewise.observe import logs

_PAUSE_S: Final = 1.0
"""A task that fails at once would otherwise fill the log."""

Task = Callable[[], Coroutine[object, object, None]]


async def keep_running(task: Task) -> None:
    """Run a task to its end. A defect is logged and the task started again: ending the process helps nobody."""
    while True:
        try:
            return await task()
        except Exception as error:  # noqa: BLE001 - see above
            logs.emit("task_failed", task=getattr(task, "__qualname__", str(task)), exc_info=error)
            await asyncio.sleep(_PAUSE_S)


async def keep_all_running(*tasks: Task) -> None:
    """Run several tasks to their end. A defect of one restarts that one; the others go on."""
    async with asyncio.TaskGroup() as group:
        for task in tasks:
            group.create_task(keep_running(task))
