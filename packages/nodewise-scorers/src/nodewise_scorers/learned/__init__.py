"""The learned agent: nodes on which pods of the same type failed score low, until they have shown better.

| module | content |
|---|---|
| `options.py` | settings |
| `pod_types.py` | the fields of pods that are read, and the type of a pod |
| `pod_outcomes.py` | what happened to a pod between two versions, as a reward |
| `learning_rule.py` | the learning rule |
| `pod_type_rewards.py` | what is known of each type on each node, bounded, and its stored form |
| `state.py` | learns from the changes of pods |
| `agent.py` | answers requests by look-up, with expected rewards, details and `/state/learned` |

Replaces kubeRL, the reward-biased extender of kube-safe-scheduler.
"""

from typing import Final

import msgspec

from nodewise.agent import AgentKind, LoadScoring, Resource, Watched
from nodewise_scorers.learned.agent import LearnedAgent
from nodewise_scorers.learned.options import LearnedOptions
from nodewise_scorers.learned.pod_types import ObservedPod, PendingPod, make_pod_reducer
from nodewise_scorers.learned.state import PODS, LearnedStateBuilder

_PODS: Final = Resource("", "v1", "pods", "Pod")


class NodeFields(msgspec.Struct, frozen=True, gc=False):
    """No field of a node is read but its name."""


class LearnedKind(AgentKind):
    """The agent `learned`."""

    name = "learned"
    summary = "prefer nodes on which pods of the same type did not fail"
    options = LearnedOptions
    pod_fields = PendingPod
    node_fields = NodeFields
    load_scoring: LoadScoring = "whole"
    keeps_memory = True

    def watched(self, options: LearnedOptions) -> tuple[Watched, ...]:
        """All pods on nodes from which something can be learned."""
        return (Watched(PODS, _PODS, ObservedPod, keep=make_pod_reducer(options.learned_namespaces)),)

    def state(self, options: LearnedOptions, sync_period_s: float) -> LearnedStateBuilder:  # noqa: ARG002
        return LearnedStateBuilder(options)

    def agent(self, options: LearnedOptions) -> LearnedAgent:
        return LearnedAgent(options)


KIND: Final = LearnedKind()
