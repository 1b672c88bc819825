"""The leader's loop: after each new snapshot, the agents' controllers make the objects on the API server match it.

With shards, it runs in each replica that holds one.
"""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Final

from nodewise.agent import Snapshot
from nodewise.agent.controller_interface import Controller
from nodewise.base.clock import Clock
from nodewise.base.errors import NodewiseError
from nodewise.observe import logs

_STEPS_PER_PERIOD: Final = 10
"""Snapshots come more often than controllers need them: binds make 80 a second."""
_LONGEST_PAUSE_S: Final = 1.0
"""The longest pause between steps, however long the period is. A step that writes thousands of labels takes longer than
this, and the next one follows at once."""
_RETRY_S: Final = 5.0
"""The time after which a step is repeated if the period is longer: a failed one, or one that left writes for later."""
_SLOW_PERIODS: Final = 10
"""A step that takes longer than this many periods is logged."""
_CANCEL_S: Final = 5.0


class LeaderLoop:
    """Runs the controllers while `tenure` is true, and lets them begin again when it is another one. A controller that
    fails or hangs does not stop the others.

    `on_applied` gets the time of a snapshot, seconds since 1970, once all controllers have applied it or a newer one.
    """

    def __init__(
        self,
        controllers: Sequence[Controller],
        snapshot: Callable[[], Snapshot],
        tenure: Callable[[], Hashable],
        clock: Clock,
        on_applied: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._snapshot = snapshot
        self._tenure = tenure
        self._clock = clock
        self._notified = asyncio.Event()
        self._on_applied = on_applied
        self._period_s = self._pause_s = float("inf")
        self._leading: Hashable = False
        """The tenure of the last steps."""
        self._steps = [_Steps(controller, clock, self._report_step) for controller in controllers]

    def notify(self) -> None:
        """There is a new snapshot, or the lead was won or lost."""
        self._notified.set()

    def _report_step(self, steps: "_Steps") -> None:
        self.notify()
        if steps.is_pause_over(self._pause_s) and self._leading and self._tenure() == self._leading:
            steps.start_if_due(self._snapshot(), self._period_s)  # it had no time to write everything
        applied = [steps.applied_at for steps in self._steps if steps.applied_at is not None]
        if len(applied) == len(self._steps):
            self._on_applied(min(applied))

    async def run(self, period_s: float) -> None:
        """Start the steps that are due after each notification, and repeat them after a period or `_RETRY_S`.

        If this is cancelled or ends by a defect, the steps are cancelled too.
        """
        self._period_s = period_s
        self._pause_s = min(period_s / _STEPS_PER_PERIOD, _LONGEST_PAUSE_S)
        try:
            while True:
                self._notified.clear()
                snapshot, tenure = self._snapshot(), self._tenure()
                if tenure:
                    for steps in self._steps:
                        if tenure != self._leading:
                            steps.lead()
                        steps.start_if_due(snapshot, period_s)
                self._leading = tenure
                await self._clock.sleep(self._pause_s)
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(period_s, _RETRY_S)):
                        await self._notified.wait()
        finally:
            self._leading = False
            await asyncio.gather(*(steps.cancel() for steps in self._steps))


class _Steps:
    """The steps of one controller, one at a time."""

    def __init__(self, controller: Controller, clock: Clock, on_end: "Callable[[_Steps], None]") -> None:
        self._controller = controller
        self._name = type(controller).__name__
        self._clock = clock
        self._on_end = on_end
        self._task: asyncio.Task[bool] | None = None
        self._began_s = self._not_before_s = 0.0
        self._done = -1
        """The generation of the snapshot that the last step applied, or tried to."""
        self._is_new_leader = False
        self._is_slow = False
        self._error = ""
        self.applied_at: float | None = None
        """The time of the snapshot of the last step that succeeded in this lead, seconds since 1970."""

    def lead(self) -> None:
        self._is_new_leader = True
        self.applied_at = None

    def start_if_due(  # complexity: steps that run, failed, or are due again
        self, snapshot: Snapshot, period_s: float
    ) -> None:
        """Start a step for a snapshot that is new to the controller, or whose last step failed some time ago. In long
        periods, also one for the same snapshot: writes that the last step left must not wait for the next period.
        """
        now_s, retry_s = self._clock.monotonic(), min(period_s, _RETRY_S)
        if self._task is not None:
            if not self._task.done():
                seconds = now_s - self._began_s
                if seconds > _SLOW_PERIODS * period_s and not self._is_slow:
                    self._is_slow = True
                    logs.emit("controller_slow", controller=self._name, seconds=round(seconds))
                return
            if self._task.cancelled() or not self._task.result():
                self._done, self._not_before_s = -1, now_s + retry_s  # an immediate retry would fail again
            self._task = None
        if self._is_new_leader:
            self._done, self._not_before_s = -1, now_s
        is_repeated = retry_s < period_s and now_s - self._began_s >= retry_s
        is_due = snapshot.generation != self._done or is_repeated
        if snapshot.generation and is_due and now_s >= self._not_before_s:
            self._done, self._began_s, self._is_slow = snapshot.generation, now_s, False
            self._task = asyncio.create_task(self._run_step_and_log_failure(snapshot))
            self._task.add_done_callback(lambda _: self._on_end(self))

    def is_pause_over(self, pause_s: float) -> bool:
        """Whether the last step began so long ago that the next one needs no pause."""
        return self._clock.monotonic() - self._began_s >= pause_s

    async def cancel(self) -> None:
        """Cancel the step that is under way and wait a moment for its end. A step that goes on blocks later ones."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_CANCEL_S)

    async def _run_step_and_log_failure(self, snapshot: Snapshot) -> bool:
        try:
            if self._is_new_leader:  # not while an earlier step still writes what `begin` forgets
                self._controller.begin()
                self._is_new_leader = False
            await self._controller.step(snapshot)
        except NodewiseError as error:
            if self._error != str(error):
                logs.emit("controller_failed", controller=self._name, error=str(error))
            self._error = str(error)
            return False
        except Exception as error:  # noqa: BLE001 - a defect of one controller must not stop the others
            logs.emit("task_failed", task=f"{self._name}.step", exc_info=error)
            return False
        self._error = ""
        self.applied_at = snapshot.at
        return True
