"""The pigeon agent: scores nodes by an objective for the whole cluster with the pod on the node.

| module | content |
|---|---|
| `options.py` | settings |
| `pigeon_cfg_file.py` | the older system's file, and the configuration of both |
| `resource_units.py` | requests, capacity and requested amounts in the same units |
| `placement_objectives.py` | the three objectives, their values on each node, and these as scores |
| `scored_pod_statistics.py` | mean and covariance of the requests of counted pods, and the stored form |
| `state.py` | computes the agent's state from nodes and pods, with the sum of pod requests on each node |
| `agent.py` | answers requests, and `/state/pigeon` |

Replaces the agent `pigeon` of kube-safe-scheduler 0.0.1.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from nodewise.agent import AgentKind, DeferredType, LoadScoring, Resource, Watched
from nodewise_scorers.pigeon.options import PigeonOptions

if TYPE_CHECKING:
    # imported when a kind is used: commands declare the options of all agents
    from nodewise_scorers.pigeon.agent import PigeonAgent
    from nodewise_scorers.pigeon.state import PigeonStateBuilder

_PODS: Final = Resource("", "v1", "pods", "Pod")


class PigeonKind(AgentKind):
    """The agent `pigeon`."""

    name = "pigeon"
    summary = "spread or pack pods by an objective for the requested resources of all nodes"
    options = PigeonOptions
    load_scoring: LoadScoring = "whole"
    keeps_memory = True

    pod_fields = DeferredType("nodewise_scorers.pigeon.state", "PigeonPod")
    node_fields = DeferredType("nodewise_scorers.pigeon.state", "PigeonNode")

    def watched(self, options: PigeonOptions) -> tuple[Watched, ...]:
        """Pods on nodes, if their requests are counted instead of read from annotations."""
        if options.pigeon_usage == "annotations":
            return ()
        from nodewise.kube.pod_requests import HOLDING_SELECTORS
        from nodewise_scorers.pigeon.state import PODS, HoldingPod, make_pod_request_reducer

        keep = make_pod_request_reducer(options.pigeon_gpu_resource)
        return (Watched(PODS, _PODS, HoldingPod, keep=keep, selectors=HOLDING_SELECTORS),)

    def concerns(self, options: PigeonOptions, nodes: Iterable[Any], pods: Iterable[Any]) -> bool:  # noqa: ARG002
        """Whether any node has the annotations of requested resources."""
        annotations = (node.metadata.annotations for node in nodes)
        return any(entry.requested_cpu is not None for entry in annotations if entry is not None)

    def state(self, options: PigeonOptions, sync_period_s: float) -> "PigeonStateBuilder":  # noqa: ARG002
        from nodewise_scorers.pigeon import pigeon_cfg_file
        from nodewise_scorers.pigeon.state import PigeonStateBuilder

        from_pods = options.pigeon_usage == "pods"
        return PigeonStateBuilder(
            pigeon_cfg_file.load_config(options), options.pigeon_gpu_resource, from_pods=from_pods
        )

    def agent(self, options: PigeonOptions) -> "PigeonAgent":
        from nodewise_scorers.pigeon import pigeon_cfg_file
        from nodewise_scorers.pigeon.agent import PigeonAgent

        return PigeonAgent(options, pigeon_cfg_file.load_config(options))


KIND: Final = PigeonKind()
