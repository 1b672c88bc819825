"""Settings of the safe agent."""

from typing import Annotated

import msgspec

from nodewise.statistics.load_queries import StatisticsOptions
from nodewise.statistics.missing_statistics import MissingRules, Score, When

Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]


class SafeOptions(MissingRules, StatisticsOptions, frozen=True, kw_only=True):
    """From which load on a node is overloaded, and how probable that may be."""

    safe_utilization: Percent = 90
    """A node is overloaded where more than this is used, in percent of what pods can have."""

    safe_percentile: Percent = 30
    """How probable, in percent, it may be that a node with the pod is overloaded. A node where it is more probable is
    rejected; scores fall from 10, for no risk at all, to 0 at this one."""

    safe_forecast_weight: Percent = 20
    """How much a node's forecast counts beside the mean, in percent, where it has one."""

    safe_print_table: bool = False
    """Tell of each node, where its numbers are told, the distribution of its load as well."""

    when_missing: When = "accept"
    """Neither CPU nor memory has fresh statistics: `accept` lets the node pass, `reject` does not."""

    score_missing: Score = None
    """The score of such a node, from 0 to 10; not given: 0."""
