"""The congestion agent: nodes whose annotation `congestion-factor` is high score low.

`__init__.py` contains its settings, `agent.py` its state and its answers.

Replaces the agent of that name of kube-safe-scheduler.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec

from nodewise.agent import LoadScoring
from nodewise_scorers.scoring_agent import MissingOptions, ScoringAgentKind


class CongestionOptions(MissingOptions, frozen=True, kw_only=True):
    """Setting for the maximum of the congestion factor."""

    congestion_factor_max: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)] = 100
    """Congestion factor at which the score of a node is 0. Below it, scores fall evenly from 10 at a factor of 0."""

    in_flight: bool = False
    """Count pods in flight: bound pods, and for some seconds pods that were just prioritized, until the statistics of
    their node include them. Otherwise pods that arrive together see the same best node."""


class CongestionKind(ScoringAgentKind):
    name = "congestion"
    summary = "prefer nodes that are not congested (annotation congestion-factor)"
    options = CongestionOptions
    load_scoring: LoadScoring = "aspect"

    def concerns(self, options: CongestionOptions, nodes: Iterable[Any], pods: Iterable[Any]) -> bool:  # noqa: ARG002
        """Whether any node has the annotation."""
        return any(self.module.annotation(node) is not None for node in nodes)


KIND: Final = CongestionKind()
