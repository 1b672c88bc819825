"""The leader's loop: after each new snapshot, the agents' controllers make it true in the API server."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from nodewise.agent import Snapshot
from nodewise.clock import Clock
from nodewise.controllers import Controller
from nodewise.errors import NodewiseError
from nodewise.observe import logs

_SLOW_PERIODS: Final = 10
"""A step that takes longer than so many periods is reported."""
_CANCEL_S: Final = 5.0


class Leading:
    """Runs the controllers while `is_leading`, each in steps of its own: one that fails or hangs stops no other."""

    def __init__(
        self,
        controllers: Sequence[Controller],
        snapshot: Callable[[], Snapshot],
        is_leading: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._view = snapshot
        self._is_leading = is_leading
        self._clock = clock
        self._steps = [_Steps(controller, clock) for controller in controllers]

    async def run(self, period_s: float) -> None:
        """A step of each controller after each new snapshot, looked for ten times a period.

        When this is cancelled, or ends by a defect, the steps are cancelled with it.
        """
        led = False
        try:
            while True:
                snapshot, leads = self._view(), self._is_leading()
                if leads:
                    for steps in self._steps:
                        if not led:
                            steps.lead()
                        steps.start_if_due(snapshot, period_s)
                led = leads
                await self._clock.sleep(period_s / 10)
        finally:
            await asyncio.gather(*(steps.cancel() for steps in self._steps))


class _Steps:
    """One controller's steps, one after another: the next one begins when the last one has ended, however it ends."""

    def __init__(self, controller: Controller, clock: Clock) -> None:
        self._controller = controller
        self._name = type(controller).__name__
        self._clock = clock
        self._task: asyncio.Task[bool] | None = None
        self._began_s = self._not_before_s = 0.0
        self._done = -1
        """The generation of the snapshot that the last step has made true, or tries to."""
        self._is_new_leader = False
        self._is_slow = False
        self._error = ""

    def lead(self) -> None:
        """The replica leads from now on."""
        self._is_new_leader = True

    def start_if_due(self, snapshot: Snapshot, period_s: float) -> None:
        """Start a step for a snapshot that is new to the controller, or whose last step failed a period ago."""
        now_s = self._clock.monotonic()
        if self._task is not None:
            if not self._task.done():
                self._report_slow(now_s - self._began_s, period_s)
                return
            if self._task.cancelled() or not self._task.result():
                self._done, self._not_before_s = -1, now_s + period_s  # an immediate retry would fail again
            self._task = None
        if self._is_new_leader:
            self._done, self._not_before_s = -1, now_s
        if snapshot.generation not in {0, self._done} and now_s >= self._not_before_s:
            self._done, self._began_s, self._is_slow = snapshot.generation, now_s, False
            self._task = asyncio.create_task(self._step(snapshot))

    async def cancel(self) -> None:
        """Cancel the step that is under way, and wait a moment for its end. One that goes on blocks later steps."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_CANCEL_S)

    async def _step(self, snapshot: Snapshot) -> bool:
        """Whether the step succeeded; a failure is logged."""
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
        return True

    def _report_slow(self, seconds: float, period_s: float) -> None:
        if seconds > _SLOW_PERIODS * period_s and not self._is_slow:
            self._is_slow = True
            logs.emit("controller_slow", controller=self._name, seconds=round(seconds))
