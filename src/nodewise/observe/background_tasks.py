"""Background tasks: restarts after unexpected exceptions, and the lag of the event loop, which delays every request."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final

from nodewise.base.clock import Clock
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

_PAUSE_S: Final = 1.0  # delay before a restart, so that a task that fails at once does not flood the log

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


_LOOK_S: Final = 0.02
_PERIOD_S: Final = 5.0


async def measure_lag(clock: Clock, metrics_registry: MetricsRegistry) -> None:
    """Set the gauge `loop_lag_seconds` to the longest lag of each period, until cancelled."""
    while True:
        ends_s = clock.monotonic() + _PERIOD_S
        longest_s = 0.0
        while (began_s := clock.monotonic()) < ends_s:
            await clock.sleep(_LOOK_S)
            longest_s = max(longest_s, clock.monotonic() - began_s - _LOOK_S)
        metrics_registry.set("loop_lag_seconds", longest_s)
