"""Restarts background tasks after unexpected exceptions."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final

from nodewise.observe import logs

_PAUSE_S: Final = 1.0
"""Delay before a restart, so that a task that fails at once does not flood the log."""

Task = Callable[[], Coroutine[object, object, None]]


async def keep_running(task: Task) -> None:
    """Run a task to its end. An unexpected exception is logged, and the task is restarted."""
    while True:
        try:
            return await task()
        except Exception as error:  # noqa: BLE001 - see above
            logs.emit("task_failed", task=getattr(task, "__qualname__", str(task)), exc_info=error)
            await asyncio.sleep(_PAUSE_S)


async def keep_all_running(*tasks: Task) -> None:
    """Run several tasks to their end. An unexpected exception restarts only the failed task."""
    async with asyncio.TaskGroup() as group:
        for task in tasks:
            group.create_task(keep_running(task))
