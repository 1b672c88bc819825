"""The safe agent: keeps pods off nodes that would probably be overloaded, by the measured usage of nodes.

| module | content |
|---|---|
| `__init__.py` | settings |
| `risk_scores.py` | the risk of overload from mean and deviation, and scores and verdicts for all nodes at once |
| `agent.py` | the load of nodes, answers to requests, and their details |

Replaces the agent `safe` of kube-safe-scheduler.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec

from nodewise.agent import LoadScoring
from nodewise_scorers.scoring_agent import MissingRules, Score, ScoringAgentKind, When
from nodewise_scorers.statistics.node_usage_reader import StatisticsOptions

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

    in_flight: bool = False
    """Count pods in flight: bound pods, and for some seconds pods that were just prioritized, until the statistics of
    their node include them. Otherwise pods that arrive together see the same best node."""

    safe_print_table: bool = False
    """Include the distribution of the load wherever the numbers of a node are shown."""

    when_missing: When = "accept"
    """Treatment of a node without fresh statistics of CPU and memory: `accept` lets it pass, `reject` does not."""

    score_missing: Score = None
    """Score of such a node, from 0 to 10. Default: 0."""


class SafeKind(ScoringAgentKind):
    name = "safe"
    summary = "avoid nodes that would probably be overloaded, by measured usage"
    options = SafeOptions
    load_scoring: LoadScoring = "whole"

    def concerns(self, options: SafeOptions, nodes: Iterable[Any], pods: Iterable[Any]) -> bool:  # noqa: ARG002
        """Whether any node has statistics, or statistics come from metrics."""
        return options.statistics == "metrics" or any(map(self.module.has_statistics, nodes))


KIND: Final = SafeKind()
