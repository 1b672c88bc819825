"""Measures the lag of the event loop, which delays every request."""

from typing import Final

from nodewise.base.clock import Clock
from nodewise.observe.metrics_registry import MetricsRegistry

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
