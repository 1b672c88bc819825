"""Placements: which GPU a pod takes first, and how nodes are scored.

| placement | order of GPUs | order of nodes |
|---|---|---|
| first-fit | by name, the preferred GPU first | none |
| pack | least left | least left on the GPUs taken, then on the node |
| spread | most left | most left on the node |
| balanced | least used of one resource | least used of it on the node |
| fragmentation | adds least to the fragmentation for typical pods | the same, in steps, then as pack |

Pack and fragmentation also score nodes for pods without GPUs: their CPU is best taken from nodes where no free GPU
needs it.

kube-scheduler multiplies the scores of an extender by its weight and by 10, adds them to those of its own plugins, and
picks at random among the best. The order of nodes is therefore strict: the best node alone has 10 points, the second 9,
and all from the eleventh on have 0. A weight of 20 or more is needed for one point to outweigh the default plugins,
which prefer empty nodes.
"""

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import MAX_SCORE
from nodewise.agents.gpu import fragmentation
from nodewise.agents.gpu.fit import FitResult
from nodewise.agents.gpu.fragmentation import Floats, ShareScales, WorkloadTables
from nodewise.agents.gpu.gpu_arrays import CandidateGpus, GpuLayout
from nodewise.agents.gpu.gpu_selection import Balanced, FirstFit, GpuOrder, Keys
from nodewise.agents.gpu.options import Placement
from nodewise.agents.gpu.pod_gpu_requests import ContainerDemand, Demand

Cpu = NDArray[np.int64]

STEP: Final = 0.05
"""A share of a GPU. Placements with nearly equal growth count as equal, and the one that fills a GPU best wins:
otherwise tiny differences decide, and pods spread over more nodes (measured: 2 to 3 per cent of all GPUs)."""
_NEARLY: Final = 1e-6
"""Below any real difference of shares, and above rounding errors of sums."""


class PlacementInputs(NamedTuple):
    placement: Placement
    """The placement of pods that name none."""
    counts: tuple[str, ...] = ()
    """The resources that count GPUs. How full a GPU is shows in other resources, if there are any."""
    balanced_by: tuple[str, ...] = ()
    workload: WorkloadTables = fragmentation.NO_WORKLOAD
    cpu_free: Cpu | None = None
    """(N+1): milli-CPU that is not requested, by column of the layout; None: unknown."""

    def placement_for(self, demand: Demand) -> Placement:
        """The placement of a pod; without typical pods `fragmentation` is `pack`."""
        wanted = demand.placement or self.placement
        return "pack" if wanted == "fragmentation" and not self.workload else wanted

    def prefers_nodes(self, demand: Demand) -> bool:
        """Whether some nodes are better for a pod than others."""
        placement = self.placement_for(demand)
        return placement != "first-fit" and (demand.wants_gpus or placement in ("pack", "fragmentation"))


class AnyGpu(NamedTuple):
    """GPUs by position, where the result does not depend on the order."""

    prefers: bool = False
    steady: bool = True

    def keys(self, candidate_gpus: CandidateGpus, container: ContainerDemand) -> Keys | None:
        """The order of positions."""


class FullestGpu(NamedTuple):
    """The GPU with the least left, or with `emptiest` the most."""

    counts: tuple[str, ...]
    scales: ShareScales
    emptiest: bool = False
    prefers: bool = False
    steady: bool = True

    def keys(self, candidate_gpus: CandidateGpus, container: ContainerDemand) -> Keys | None:
        left = fragmentation.mean_free_gpu_shares(
            self.scales, candidate_gpus, _fullness_resources(container, self.counts)
        )
        return -left if self.emptiest else left


class LeastFragmentation(NamedTuple):
    """The GPU where a container adds least to the fragmentation; of equal ones the fullest.

    The GPUs of a container are compared once, each as if it were the only one.
    """

    inputs: PlacementInputs
    cpu_milli: int
    prefers: bool = False
    steady: bool = True

    def keys(self, candidate_gpus: CandidateGpus, container: ContainerDemand) -> Keys | None:
        workload = self.inputs.workload
        hosts = _node_cells(self.inputs, candidate_gpus, self.cpu_milli)
        before = fragmentation.gpu_cells(workload, candidate_gpus)
        after = candidate_gpus.fork()
        after.take(np.ones_like(candidate_gpus.usable()), container.per_gpu)
        growth = fragmentation.fragmentation_growth(
            workload, before, fragmentation.gpu_cells(workload, after), hosts
        )
        return growth + _NEARLY * before.shares


def cheapest_gpu_order(inputs: PlacementInputs, demand: Demand) -> GpuOrder:
    """The order of GPUs where it only matters whether the pod fits.

    If one container alone takes GPUs without links, the order does not matter.
    """
    order = gpu_order(inputs, demand)
    alone = sum(container.count > 0 for container in demand.containers) == 1 and not demand.linked
    return AnyGpu() if alone and not order.prefers else order


def gpu_order(inputs: PlacementInputs, demand: Demand) -> GpuOrder:
    match inputs.placement_for(demand):
        case "pack":
            return FullestGpu(inputs.counts, inputs.workload.scales)
        case "spread":
            return FullestGpu(inputs.counts, inputs.workload.scales, emptiest=True)
        case "balanced":
            return Balanced(inputs.balanced_by[0])
        case "fragmentation":
            return LeastFragmentation(inputs, demand.cpu_milli)
        case "first-fit":
            return FirstFit()


def node_points(
    inputs: PlacementInputs,
    layout: GpuLayout,
    rows: NDArray[np.intp],
    demand: Demand,
    fitted: FitResult | None,
) -> NDArray[np.int64] | None:
    """The score of each candidate, 0 to 10, if the pod fits; None if all are equal.

    `fitted` is the result of `fit` for the same candidates, None for a pod that requests no GPU.
    """
    if not inputs.prefers_nodes(demand):
        return None
    keys = node_keys(inputs, layout, rows, demand, fitted)
    fits = np.ones(len(rows), bool) if fitted is None else fitted.codes == 0
    return scores_from_sort_keys([*keys, mixed_order(rows)], fits)


def node_keys(
    inputs: PlacementInputs,
    layout: GpuLayout,
    rows: NDArray[np.intp],
    demand: Demand,
    fitted: FitResult | None,
) -> list[Floats]:
    """The keys of each candidate (M), the most important first, smaller ones better. Arguments as in `node_points`."""
    before = CandidateGpus(layout, rows)
    after, taken = before.fork(), np.zeros((layout.most_gpus, len(rows)), bool)
    for choice, container in zip(fitted.containers if fitted else (), demand.containers, strict=False):
        if container.count:
            mask = choice.mask(layout.most_gpus)
            after.take(mask, container.per_gpu)
            taken |= mask
    return node_sort_keys(inputs, before, after, taken, demand)


def mixed_order(rows: NDArray[np.intp]) -> Floats:
    """A fixed pseudo-random order of equal nodes, which separates neighbours, as they are often of one kind."""
    mixed = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed >> np.uint64(32)).astype(np.float64)


def scores_from_sort_keys(keys: list[NDArray[np.float64]], fits: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Points by several keys (M), the most important first, smaller ones better; 0 where the pod does not fit."""
    places = np.lexsort([*keys[::-1], ~fits])
    scores = np.zeros(len(fits), np.int64)
    best = places[:MAX_SCORE]
    scores[best] = np.arange(MAX_SCORE, MAX_SCORE - len(best), -1)
    return np.where(fits, scores, 0)


def node_sort_keys(
    inputs: PlacementInputs,
    before: CandidateGpus,
    after: CandidateGpus,
    taken: NDArray[np.bool_],
    demand: Demand,
) -> list[Floats]:
    """The keys of nodes (M), smaller ones better. `taken` (C, M) are the GPUs that the pod gets."""
    placement, workload = inputs.placement_for(demand), inputs.workload
    if placement == "balanced":
        return [_used_capacity_share(after, inputs.balanced_by)]
    # what shows how full a GPU is for the pod
    if placement == "fragmentation":
        resources: Sequence[str] = workload.shared
    else:
        names = [_fullness_resources(container, inputs.counts) for container in demand.containers]
        resources = tuple(dict.fromkeys(itertools.chain.from_iterable(names)))
    if not resources:
        resources = tuple(name for name in before.layout.capacity if name not in inputs.counts)
    left = fragmentation.mean_free_gpu_shares(workload.scales, after, resources)
    on_node = left.sum(axis=0)
    if placement == "spread":
        return [-on_node]
    best_fit = [np.round((left * taken).sum(axis=0), 6), np.round(on_node, 6)]
    if placement == "pack":
        return best_fit
    growth = fragmentation.fragmentation_of(
        workload,
        fragmentation.gpu_cells(workload, after),
        _node_cells(inputs, after, demand.cpu_milli),
    ) - fragmentation.fragmentation_of(
        workload, fragmentation.gpu_cells(workload, before), _node_cells(inputs, before, 0)
    )
    return [np.ceil(growth / STEP - _NEARLY), best_fit[0] if demand.wants_gpus else best_fit[1]]


def _node_cells(inputs: PlacementInputs, candidate_gpus: CandidateGpus, cpu_milli: int) -> NDArray[np.intp]:
    """(M): the cells of the candidates by their free CPU without that of the pod."""
    free = None if inputs.cpu_free is None else inputs.cpu_free[candidate_gpus.columns] - cpu_milli
    return fragmentation.node_cells(inputs.workload, free, len(candidate_gpus))


def _used_capacity_share(candidate_gpus: CandidateGpus, resources: tuple[str, ...]) -> Floats:
    """(M): the used share of the node's capacity."""
    used, has = np.zeros(len(candidate_gpus)), np.zeros(len(candidate_gpus))
    for name in resources:
        used += candidate_gpus.used(name).sum(axis=0, dtype=np.float64)
        has += candidate_gpus.capacity(name).sum(axis=0, dtype=np.float64)
    share: Floats = used / np.maximum(has, 1.0)
    return share


def _fullness_resources(container: ContainerDemand, counts: tuple[str, ...]) -> tuple[str, ...]:
    """The resources that show how full a GPU is for a container: its amounts, or its count if it has none."""
    wanted = tuple(container.per_gpu)
    return tuple(name for name in wanted if name not in counts) or wanted
