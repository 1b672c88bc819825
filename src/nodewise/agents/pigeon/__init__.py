"""The pigeon agent: the node with which, if it takes the pod, the whole cluster is most like what it is to be like.

| file | what lives there |
|---|---|
| `options.py` | settings |
| `config.py` | the older system's file, and what follows from both |
| `resources.py` | what pods ask for, what nodes have and what is requested of them, in the same units |
| `holding.py` | how much is requested of each node, from its pods |
| `moments.py` | mean and covariance over nodes, and what they become with one more pod |
| `objectives.py` | the three objectives |
| `demand.py` | mean and covariance of what pods ask for |
| `memory.py` | which pods have counted for that, and how it is kept |
| `ranks.py` | from values to scores |
| `details.py` | the value of the objective on each node, as numbers and text |
| `state.py` | nodes in, the slot of the snapshot out |
| `agent.py` | answers requests, and `/state/pigeon` |

Takes over from the agent `pigeon` of kube-safe-scheduler 0.0.1.
"""

from collections.abc import Iterable
from typing import Any, Final

from nodewise.agent import AgentKind, LoadScoring, Resource, Watched
from nodewise.agents.pigeon import config, holding
from nodewise.agents.pigeon.agent import PigeonAgent
from nodewise.agents.pigeon.holding import HeldPod
from nodewise.agents.pigeon.options import PigeonOptions
from nodewise.agents.pigeon.state import PODS, PigeonNode, PigeonPod, PigeonState
from nodewise.statistics.requests import HOLDING_SELECTORS

_PODS: Final = Resource("", "v1", "pods", "Pod")


class PigeonKind(AgentKind):
    """The agent `pigeon`."""

    name = "pigeon"
    summary = "spread or pack by what is requested of all nodes, as the pods that come need it"
    options = PigeonOptions
    pod_fields = PigeonPod
    node_fields = PigeonNode
    load_scoring: LoadScoring = "whole"
    keeps_memory = True

    def watched(self, options: PigeonOptions) -> tuple[Watched, ...]:
        """Pods on nodes, if their requests are counted instead of read from annotations."""
        if options.pigeon_usage == "annotations":
            return ()
        keep = holding.keeper(options.pigeon_gpu_resource)
        return (Watched(PODS, _PODS, HeldPod, keep=keep, selectors=HOLDING_SELECTORS),)

    def concerns(self, options: PigeonOptions, nodes: Iterable[Any], pods: Iterable[Any]) -> bool:  # noqa: ARG002
        """Whether any node has the annotations of requested resources."""
        annotations = (node.metadata.annotations for node in nodes)
        return any(entry.requested_cpu is not None for entry in annotations if entry is not None)

    def state(self, options: PigeonOptions, sync_period_s: float) -> PigeonState:  # noqa: ARG002
        from_pods = options.pigeon_usage == "pods"
        return PigeonState(config.aim(options), options.pigeon_gpu_resource, from_pods=from_pods)

    def agent(self, options: PigeonOptions) -> PigeonAgent:
        return PigeonAgent(options, config.aim(options))


KIND: Final = PigeonKind()
