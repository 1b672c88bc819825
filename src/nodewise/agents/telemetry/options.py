"""Settings of the telemetry agent."""

from typing import Annotated, Literal

import msgspec


class TelemetryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the agent treats values that are old or not there. A policy's rule may say otherwise for itself."""

    max_age_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Seconds after which a value counts as missing; 0 means five refresh periods, but at least 60 s: a scrape or
    two may fail without a node changing its verdict."""
    when_missing: Literal["pass", "reject"] = "pass"
    """What a rule does with a node that has no fresh value. `pass`, as the older system did: a node is not lost to
    all pods because one exporter died."""


def max_age_s(options: TelemetryOptions, sync_period_s: float) -> float:
    """The max age that counts, given the refresh period."""
    return options.max_age_s or max(5 * sync_period_s, 60.0)
