"""Scores of kube-scheduler's default plugins, each from 0 to 100 and multiplied by its weight.

Modelled: NodeResourcesFit with LeastAllocated (weight 1), NodeResourcesBalancedAllocation (1), TaintToleration
(3) and NodeAffinity (2). Not modelled: PodTopologySpread, InterPodAffinity, ImageLocality, DynamicResources;
they differ between nodes only for pods of services and controllers, with affinities, or if nodes have different images.
Sources: kubernetes v1.36.3 pkg/scheduler/framework/plugins/noderesources/{least_allocated,
balanced_allocation,resource_allocation}.go, helper/normalize_score.go.
"""

from collections.abc import Sequence
from typing import Final

from nodewise.scheduling_model import node_affinity_and_taints, parsed_nodes_and_pods
from nodewise.scheduling_model.parsed_nodes_and_pods import NodeInfo
from nodewise.scheduling_model.parsed_nodes_and_pods import Pod
from nodewise.scheduling_model.parsed_nodes_and_pods import CPU, MEMORY

MAX_SCORE: Final = 100
_RESOURCES: Final = (CPU, MEMORY)
_TAINTS_WEIGHT: Final = 3
_AFFINITY_WEIGHT: Final = 2


def total_scores(pod: Pod, infos: Sequence[NodeInfo]) -> list[int]:
    """Total scores of the nodes, in their order."""
    taints = [
        len(node_affinity_and_taints.untolerated(pod, info.node, node_affinity_and_taints.NOT_PREFERRED))
        for info in infos
    ]
    preferences = [node_affinity_and_taints.preference(pod, info.node) for info in infos]
    fewer_taints = [MAX_SCORE - share for share in _percent_of_largest(taints)]
    requested = parsed_nodes_and_pods.container_requests_for_scoring(pod.obj)
    return [
        least_allocated(requested, info)
        + balanced(pod, info)
        + _TAINTS_WEIGHT * few
        + _AFFINITY_WEIGHT * share
        for info, few, share in zip(infos, fewer_taints, _percent_of_largest(preferences), strict=True)
    ]


def least_allocated(requested: tuple[int, int], info: NodeInfo) -> int:
    """The share of CPU and memory that stays free, in per cent, averaged over both.

    `requested` are the pod's milli-cores and bytes.
    """
    has = info.node.allocatable
    shares = [
        _free_share(taken + more, has[name])
        for name, taken, more in zip(_RESOURCES, info.scored, requested, strict=True)
        if has.get(name)
    ]
    return sum(shares) // len(shares) if shares else 0


def balanced(pod: Pod, info: NodeInfo) -> int:
    """Higher if the pod brings the used shares of CPU and memory closer together: 50 to 100."""
    if not any(pod.requests.get(name) for name in _RESOURCES):
        return 0
    before, after = _balance_of_used_shares(info), _balance_of_used_shares(info, pod)
    return MAX_SCORE // 2 + (MAX_SCORE // 2 + after - before) // 2


def _free_share(taken: int, has: int) -> int:
    return (has - taken) * MAX_SCORE // has if taken <= has else 0


def _balance_of_used_shares(info: NodeInfo, pod: Pod | None = None) -> int:
    has, requested = info.node.allocatable, pod.requests if pod else {}
    used = [
        min((info.requested.get(name, 0) + requested.get(name, 0)) / has[name], 1.0)
        for name in _RESOURCES
        if has.get(name)
    ]
    deviation = abs(used[0] - used[1]) / 2 if len(used) == len(_RESOURCES) else 0.0
    return int((1 - deviation) * MAX_SCORE)


def _percent_of_largest(counts: Sequence[int]) -> list[int]:
    """Per cent of the largest count; all 0 if no count is positive."""
    largest = max(counts, default=0)
    return [MAX_SCORE * count // largest if largest else 0 for count in counts]
