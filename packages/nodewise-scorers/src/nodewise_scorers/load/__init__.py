"""The load agent, and what load-aware placement computes: from arrays of nodes, without I/O and without a clock.

| module | content |
|---|---|
| `__init__.py` | settings of the agent |
| `bound_pods.py` | requests, limits, owner and times of pods on nodes |
| `owner_usage.py` | the owners of pods, and their usage at an age |
| `in_flight.py` | pods that the statistics of their node do not include yet |
| `bound_load.py` | follows the bound pods of cluster states, for all scoring agents |
| `node_forecasts.py` | forecasts of each node's peak, chosen by backtest |
| `state.py` | the predicted load of all nodes, for the agent and for controllers |
| `predicted_metrics.py` | the predicted load as metrics of policies |
| `usage_profiles.py` | the usage of pods of the same application, learned from statistics |
| `projected_load.py` | the load of nodes once they are full, and the node for which a pod increases overload least |
| `published_formulas.py` | the scores of Trimaran, Koordinator and Volcano |
| `agent.py` | the placements by name, and answers to requests, with details and `/state/load` |
"""

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec

from nodewise.agent import LoadScoring, Watched
from nodewise.base.option import Option
from nodewise_scorers.scoring_agent import Score, ScoringAgentKind

FormulaName = Literal[
    "target-load-packing",
    "load-variation-risk-balancing",
    "low-risk-over-commitment",
    "peaks",
    "koordinator",
    "volcano",
]
PlacementName = Literal["projected", FormulaName]


class LoadAgentOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for the formula that nodes are scored by."""

    load_placement: Annotated[PlacementName, Option(metavar="FORMULA")] = "projected"
    """Formula of the scores. `projected`: the projected load of each node, from usage, a forecast and pods in flight.
    The others are published formulas with default parameters, for comparison and migration:
    `target-load-packing`, `load-variation-risk-balancing`, `low-risk-over-commitment` and `peaks` of Trimaran,
    `koordinator` (LoadAware), and `volcano` (usage)."""

    score_missing: Score = None
    """Score of a node without statistics of CPU. Default: 0."""


class LoadKind(ScoringAgentKind):
    name = "load"
    summary = "prefer nodes that will not be overloaded, by usage, forecasts and pods in flight"
    options = LoadAgentOptions
    load_scoring: LoadScoring = "whole"
    needs_metrics = True

    def watched(self, options: LoadAgentOptions) -> Sequence[Watched]:  # noqa: ARG002
        """All pods on nodes."""
        from nodewise_scorers.load.bound_pods import WATCHED

        return (WATCHED,)


KIND: Final = LoadKind()
