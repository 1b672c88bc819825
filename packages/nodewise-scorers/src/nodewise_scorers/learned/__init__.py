"""The learned agent: nodes on which pods of the same type failed score low, until they have shown better.

| module | content |
|---|---|
| `options.py` | settings |
| `pod_types_and_outcomes.py` | the fields of pods that are read, the type of a pod, and what happened to it |
| `pod_type_rewards.py` | the learning rule, and what is known of each type on each node |
| `state.py` | learns from the changes of pods |
| `agent.py` | answers requests by look-up, with expected rewards, details and `/state/learned` |

Replaces kubeRL, the reward-biased extender of kube-safe-scheduler.
"""

from typing import TYPE_CHECKING, Final

import msgspec

from nodewise.agent import AgentKind, DeferredType, LoadScoring, Resource, Watched
from nodewise_scorers.learned.options import LearnedOptions

if TYPE_CHECKING:
    # imported when a kind is used: commands declare the options of all agents
    from nodewise_scorers.learned.agent import LearnedAgent
    from nodewise_scorers.learned.state import LearnedStateBuilder

_PODS: Final = Resource("", "v1", "pods", "Pod")


class NodeFields(msgspec.Struct, frozen=True, gc=False):
    """No field of a node is read but its name."""


class LearnedKind(AgentKind):
    """The agent `learned`."""

    name = "learned"
    summary = "prefer nodes on which pods of the same type did not fail"
    options = LearnedOptions
    node_fields = NodeFields
    load_scoring: LoadScoring = "whole"
    keeps_memory = True

    pod_fields = DeferredType("nodewise_scorers.learned.pod_types_and_outcomes", "PendingPod")

    def watched(self, options: LearnedOptions) -> tuple[Watched, ...]:
        """All pods on nodes from which something can be learned."""
        from nodewise_scorers.learned.pod_types_and_outcomes import ObservedPod, make_pod_reducer
        from nodewise_scorers.learned.state import PODS

        return (Watched(PODS, _PODS, ObservedPod, keep=make_pod_reducer(options.learned_namespaces)),)

    def state(self, options: LearnedOptions, sync_period_s: float) -> "LearnedStateBuilder":  # noqa: ARG002
        from nodewise_scorers.learned.state import LearnedStateBuilder

        return LearnedStateBuilder(options)

    def agent(self, options: LearnedOptions) -> "LearnedAgent":
        from nodewise_scorers.learned.agent import LearnedAgent

        return LearnedAgent(options)


KIND: Final = LearnedKind()
