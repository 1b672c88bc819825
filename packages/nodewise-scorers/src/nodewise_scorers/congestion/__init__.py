"""The congestion agent: nodes whose annotation `congestion-factor` is high score low.

| module | content |
|---|---|
| `options.py` | settings |
| `state.py` | reads the annotation of nodes into scores |
| `agent.py` | answers requests by look-up, with details for `explain` |

Replaces the agent of that name of kube-safe-scheduler.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from nodewise.agent import AgentKind, DeferredType, LoadScoring
from nodewise_scorers.congestion.options import CongestionOptions

if TYPE_CHECKING:
    # imported when a kind is used: commands declare the options of all agents
    from nodewise_scorers.congestion.agent import CongestionAgent
    from nodewise_scorers.congestion.state import CongestionStateBuilder


class CongestionKind(AgentKind):
    """The agent `congestion`."""

    name = "congestion"
    summary = "prefer nodes that are not congested (annotation congestion-factor)"
    options = CongestionOptions
    load_scoring: LoadScoring = "aspect"

    pod_fields = DeferredType("nodewise_scorers.congestion.agent", "PodFields")
    node_fields = DeferredType("nodewise_scorers.congestion.state", "CongestionNode")

    def concerns(self, options: CongestionOptions, nodes: Iterable[Any], pods: Iterable[Any]) -> bool:  # noqa: ARG002
        """Whether any node has the annotation."""
        from nodewise_scorers.congestion.state import annotation

        return any(annotation(node) is not None for node in nodes)

    def state(self, options: CongestionOptions, sync_period_s: float) -> "CongestionStateBuilder":  # noqa: ARG002
        from nodewise_scorers.congestion.state import CongestionStateBuilder

        return CongestionStateBuilder(options)

    def agent(self, options: CongestionOptions) -> "CongestionAgent":
        from nodewise_scorers.congestion.agent import CongestionAgent

        return CongestionAgent(options)


KIND: Final = CongestionKind()
