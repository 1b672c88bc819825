"""Is the API server there? Told by the Lease, which every replica reads or writes every few seconds.

A watch that says nothing may be well for a minute, and other calls come when they come. The Lease's calls are a
pulse: an answer to one says that the API server and its storage are there.
"""

from typing import Final

from nodewise.clock import Clock
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

SILENT_S: Final = 10.0
"""Without an answer for so long the API server counts as away: two looks at the Lease, one after another, failed."""
_LOOK_S: Final = 1.0


class Contact:
    """Run it as a task, and have `heard` called with each answer."""

    def __init__(self, clock: Clock, meters: MetricsRegistry) -> None:
        self._clock = clock
        self._meters = meters
        self._heard_s = self._looked_s = clock.monotonic()
        self._away_since_s = self._heard_s
        self._is_away = False

    def heard(self) -> None:
        """The API server answered."""
        self._heard_s = self._clock.monotonic()

    async def run(self) -> None:
        """Say when the API server goes and comes back, until cancelled."""
        while True:
            self.look()
            await self._clock.sleep(_LOOK_S)

    def look(self) -> None:
        """Say what has changed. Time in which we did not run ourselves is no silence of the other."""
        now_s = self._clock.monotonic()
        if now_s - self._looked_s > SILENT_S / 2:
            self._heard_s = max(self._heard_s, now_s - _LOOK_S)
        silent_s = now_s - self._heard_s
        if self._is_away and silent_s < SILENT_S:
            logs.emit("kube_answers", away_s=round(self._heard_s - self._away_since_s))
        elif not self._is_away and silent_s >= SILENT_S:
            self._away_since_s = self._heard_s
            logs.emit("kube_silent", silent_s=round(silent_s))
        self._is_away = silent_s >= SILENT_S
        self._looked_s = now_s
        self._meters.set("kube_connected", float(not self._is_away))
        self._meters.set("kube_silent_seconds", silent_s)
