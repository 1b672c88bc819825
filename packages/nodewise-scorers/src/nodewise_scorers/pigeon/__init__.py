"""The pigeon agent: scores nodes by an objective for the whole cluster with the pod on the node.

| module | content |
|---|---|
| `options.py` | settings, the older system's file, and the configuration of both |
| `placement_objectives.py` | the three objectives, their values on each node, and these as scores |
| `scored_pod_statistics.py` | mean and covariance of the requests of counted pods, and the stored form |
| `agent.py` | resources and their units, the state from nodes and pods, answers to requests, and `/state/pigeon` |

Replaces the agent `pigeon` of kube-safe-scheduler 0.0.1.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from nodewise.agent import LoadScoring, Resource, Watched
from nodewise_scorers.pigeon.options import PigeonOptions
from nodewise_scorers.scoring_agent import ScoringAgentKind


class PigeonKind(ScoringAgentKind):
    name = "pigeon"
    summary = "spread or pack pods by an objective for the requested resources of all nodes"
    options = PigeonOptions
    load_scoring: LoadScoring = "whole"
    keeps_memory = True

    def watched(self, options: PigeonOptions) -> Sequence[Watched]:
        """Pods on nodes, if their requests are counted instead of read from annotations, or those in flight are."""
        in_flight = super().watched(options)
        if options.pigeon_usage == "annotations":
            return in_flight
        from nodewise.kube.pod_requests import HOLDING_SELECTORS
        from nodewise_scorers.pigeon.agent import PODS, HoldingPod, make_pod_request_reducer

        pods, keep = Resource("", "v1", "pods", "Pod"), make_pod_request_reducer(options.pigeon_gpu_resource)
        return (Watched(PODS, pods, HoldingPod, keep=keep, selectors=HOLDING_SELECTORS), *in_flight)

    def concerns(self, options: PigeonOptions, nodes: Iterable[Any], pods: Iterable[Any]) -> bool:  # noqa: ARG002
        """Whether any node has the annotations of requested resources."""
        annotations = (node.metadata.annotations for node in nodes)
        return any(entry.requested_cpu is not None for entry in annotations if entry is not None)


KIND: Final = PigeonKind()
