"""Liveness of the API server, determined from the responses to calls for the Lease.

Every replica reads or writes the Lease every few seconds, and a response means that the API server and its storage
work. A watch may have no events for a minute, and other calls are irregular.
"""

from typing import Final

from nodewise.base.clock import Clock
from nodewise.kube.resource_kinds import LEASES
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

SILENT_S: Final = 10.0
"""The API server counts as unavailable without a response for this long: two consecutive calls failed."""
_CHECK_S: Final = 1.0


class ApiServerLiveness:
    """Monitor of the API server. Run it as a task, and call `record_response` after each response."""

    def __init__(self, clock: Clock, metrics_registry: MetricsRegistry) -> None:
        self._clock = clock
        self._metrics_registry = metrics_registry
        self._responded_s = self._checked_s = clock.monotonic()
        self._away_since_s = self._responded_s
        self._is_away = False

    def record_response(self) -> None:
        """Record a response of the API server."""
        self._responded_s = self._clock.monotonic()

    async def run(self) -> None:
        """Log when the API server becomes unavailable and available again, until cancelled."""
        while True:
            self.check()
            await self._clock.sleep(_CHECK_S)

    def check(self) -> None:
        """Log a change of availability. Time during which this process was suspended does not count."""
        now_s = self._clock.monotonic()
        if now_s - self._checked_s > SILENT_S / 2:
            self._responded_s = max(self._responded_s, now_s - _CHECK_S)
        silent_s = now_s - self._responded_s
        if self._is_away and silent_s < SILENT_S:
            logs.emit("kube_answers", away_s=round(self._responded_s - self._away_since_s))
        elif not self._is_away and silent_s >= SILENT_S:
            self._away_since_s = self._responded_s
            logs.emit("kube_silent", silent_s=round(silent_s))
        self._is_away = silent_s >= SILENT_S
        self._checked_s = now_s
        self._metrics_registry.set("kube_connected", float(not self._is_away), kind=LEASES.kind)
        self._metrics_registry.set("kube_silent_seconds", silent_s)
