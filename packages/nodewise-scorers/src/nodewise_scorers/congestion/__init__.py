"""The congestion agent: nodes whose annotation `congestion-factor` is high score low.

| module | content |
|---|---|
| `options.py` | settings |
| `state.py` | reads the annotation of nodes into scores |
| `agent.py` | answers requests by look-up, with details for `explain` |

Replaces the agent of that name of kube-safe-scheduler.
"""

from collections.abc import Iterable
from typing import Any, Final

from nodewise.agent import AgentKind, LoadScoring
from nodewise_scorers.congestion.agent import CongestionAgent, PodFields
from nodewise_scorers.congestion.options import CongestionOptions
from nodewise_scorers.congestion.state import CongestionNode, CongestionStateBuilder, annotation


class CongestionKind(AgentKind):
    """The agent `congestion`."""

    name = "congestion"
    summary = "prefer nodes that are not congested (annotation congestion-factor)"
    options = CongestionOptions
    pod_fields = PodFields
    node_fields = CongestionNode
    load_scoring: LoadScoring = "aspect"

    def concerns(self, options: CongestionOptions, nodes: Iterable[Any], pods: Iterable[Any]) -> bool:  # noqa: ARG002
        """Whether any node has the annotation."""
        return any(annotation(node) is not None for node in nodes)

    def state(self, options: CongestionOptions, sync_period_s: float) -> CongestionStateBuilder:  # noqa: ARG002
        return CongestionStateBuilder(options)

    def agent(self, options: CongestionOptions) -> CongestionAgent:
        return CongestionAgent(options)


KIND: Final = CongestionKind()
