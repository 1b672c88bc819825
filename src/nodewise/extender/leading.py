"""The leader's loop: after each new View, the agents' controllers make it true in the API server."""

import asyncio
from collections.abc import Callable, Sequence

from nodewise.agent import Controller, View
from nodewise.clock import Clock
from nodewise.errors import NodewiseError
from nodewise.observe import logs


class Leading:
    """Runs controllers while `is_leading`, one step after another, each with the newest View."""

    def __init__(
        self,
        controllers: Sequence[Controller],
        view: Callable[[], View],
        is_leading: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._controllers = controllers
        self._view = view
        self._is_leading = is_leading
        self._clock = clock
        self._told: dict[str, str] = {}

    async def run(self, period_s: float) -> None:
        """A step after each new View, looked for ten times a period; after a failure the View is tried again."""
        done, led = -1, False
        while True:
            view, leads = self._view(), self._is_leading()
            if leads and not led:
                done = -1
                for controller in self._controllers:
                    controller.begin()
            led = leads
            if leads and view.generation not in {0, done}:
                done = view.generation if await self._step(view) else -1
                if done < 0:
                    await self._clock.sleep(period_s)  # what failed just now fails again just now
            await self._clock.sleep(period_s / 10)

    async def _step(self, view: View) -> bool:
        outcomes = await asyncio.gather(*(self._one(controller, view) for controller in self._controllers))
        return all(outcomes)

    async def _one(self, controller: Controller, view: View) -> bool:
        try:
            await controller.step(view)
        except NodewiseError as error:
            name = type(controller).__name__
            if self._told.get(name) != str(error):
                logs.emit("controller_failed", controller=name, error=str(error))
            self._told[name] = str(error)
            return False
        self._told.pop(type(controller).__name__, None)
        return True
