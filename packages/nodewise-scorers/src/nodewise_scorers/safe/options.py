"""Settings of the safe agent."""

from typing import Annotated

import msgspec

from nodewise_scorers.statistics.missing_statistics import MissingRules, Score, When
from nodewise_scorers.statistics.prometheus_load_queries import StatisticsOptions

Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]


class SafeOptions(MissingRules, StatisticsOptions, frozen=True, kw_only=True):
    """Settings for the load at which a node is overloaded, and the accepted risk."""

    safe_utilization: Percent = 90
    """Utilization in percent of the allocatable amount above which a node is overloaded."""

    safe_percentile: Percent = 30
    """Accepted probability in percent that a node with the pod is overloaded. Nodes with a higher one are rejected;
    scores fall from 10 for no risk to 0 at this value."""

    safe_forecast_weight: Percent = 20
    """Weight in percent of a node's forecast relative to the mean, if there is a forecast."""

    safe_print_table: bool = False
    """Include the distribution of the load wherever the numbers of a node are shown."""

    when_missing: When = "accept"
    """Treatment of a node without fresh statistics of CPU and memory: `accept` lets it pass, `reject` does not."""

    score_missing: Score = None
    """Score of such a node, from 0 to 10. Default: 0."""
