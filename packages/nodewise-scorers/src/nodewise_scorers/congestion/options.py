"""Settings of the congestion agent."""

from typing import Annotated

import msgspec

from nodewise_scorers.statistics.missing_statistics import MissingOptions


class CongestionOptions(MissingOptions, frozen=True, kw_only=True):
    """Setting for the maximum of the congestion factor."""

    congestion_factor_max: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)] = 100
    """Congestion factor at which the score of a node is 0. Below it, scores fall evenly from 10 at a factor of 0."""
