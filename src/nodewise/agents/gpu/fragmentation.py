"""The share of a node's free GPUs that typical pods cannot use.

The measure of Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent" (USENIX ATC 2023), section 4. For one class of pods, the fragment of a node is the free share of its GPUs that
the class cannot use: of every GPU that is too small for the class, and of all GPUs where the node cannot host the class
at all, because it has too few such GPUs or too little CPU left. The fragmentation is the mean over the classes, weighed
by their frequency. Where a GPU has several resources, its free share is the mean of their free shares.

A class is a point in a grid of the amounts that GPUs and nodes may have left. The result for one GPU over all
classes is therefore one lookup in a table that is built once per workload.
"""

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agents.gpu.gpu_arrays import CandidateGpus, GpuLayout
from nodewise.agents.gpu.node_gpus import MOST_GPUS
from nodewise.agents.gpu.typical_pods import PodClass
from nodewise.base import cooperative_scheduling

Floats = NDArray[np.float64]
Numbers = NDArray[np.intp]

_SMALL: Final = 1 << 14
_MOST_SCALES: Final = 16
"""Sets of requested resources whose scales are cached."""
_MOST_CLASSES: Final = 1024
_MOST_CELLS: Final = 1 << 20
"""Cells of the table; the least frequent classes are omitted from a workload that would need more."""


class GpuKindGroup(NamedTuple):
    """The classes that request several GPUs of one kind."""

    fits: NDArray[np.bool_]
    """By cell of a GPU (K): whether the GPU is of this kind."""
    hosted: Floats
    """By cell of the node and its number of such GPUs: the share of pods that the node can host."""


class WorkloadTables(NamedTuple):
    """The tables of a workload. H and K: cells of what a node and what a GPU may have left."""

    cpu_milli: NDArray[np.int64]
    """The CPU requests of classes, ascending; the cell of a node is the number of them that it can satisfy."""
    resources: Mapping[str, NDArray[np.int64]]
    """The requests per GPU in the same form, by full resource name."""
    models: tuple[str, ...]
    """The models that classes require. A GPU of the k-th has the number k + 1, any other GPU 0."""
    single: Floats
    """(H, K): the share of pods that request one GPU and can use this one on this node."""
    groups: tuple[GpuKindGroup, ...]
    shared: tuple[str, ...]
    """The resources whose free shares determine a GPU's free share."""
    scales: "ShareScales"

    def __bool__(self) -> bool:
        return bool(self.resources)


class ShareScales:
    """Caches the share of a GPU that one unit of a resource is, which no pod changes.

    Layouts share the arrays that did not change, so known arrays are recognised by identity.
    """

    def __init__(self) -> None:
        self._known: dict[Sequence[str], tuple[Sequence[object], Mapping[str, Floats]]] = {}

    def of(self, layout: GpuLayout, resources: Sequence[str]) -> Mapping[str, Floats]:
        """By resource (C, N+1): the share of a GPU per unit; 0 for an unusable GPU."""
        basis = [layout.usable, *(layout.capacity.get(name) for name in resources)]
        known = self._known.get(resources)
        if known is None or any(
            previous is not current for previous, current in zip(known[0], basis, strict=True)
        ):
            if len(self._known) > _MOST_SCALES:
                self._known.clear()
            known = self._known[resources] = basis, _gpu_share_scales(layout, resources)
        return known[1]


def _gpu_share_scales(layout: GpuLayout, resources: Sequence[str]) -> Mapping[str, Floats]:
    capacity = {name: layout.capacity[name] for name in resources if name in layout.capacity}
    count = np.maximum(sum((amounts > 0 for amounts in capacity.values()), np.zeros(layout.usable.shape)), 1)
    return {
        name: (layout.usable & (amounts > 0)) / (np.maximum(amounts, 1) * count)
        for name, amounts in capacity.items()
    }


NO_WORKLOAD: Final = WorkloadTables(np.zeros(0, np.int64), {}, (), np.zeros((1, 1)), (), (), ShareScales())
"""The tables of an empty workload, whose fragmentation is 0."""


def build_fragmentation_tables(
    classes: Mapping[PodClass, float], counts: Sequence[str] = ()
) -> WorkloadTables:
    """As `build_fragmentation_tables_stepwise`, in one step."""
    return cooperative_scheduling.run_without_pauses(build_fragmentation_tables_stepwise(classes, counts))


def build_fragmentation_tables_stepwise(
    classes: Mapping[PodClass, float], counts: Sequence[str] = ()
) -> Generator[None, None, WorkloadTables]:
    """Build the tables of classes with their frequencies.

    `counts` are resources that count GPUs: they limit the pods of a GPU, and count for its free share only if
    there are no other resources.
    """
    kept = yield from _most_frequent_classes(classes)
    if not kept:
        return NO_WORKLOAD
    total = sum(kept.values())
    grid = _Grid(kept)
    single = np.zeros(grid.shape)
    groups: dict[tuple[Mapping[str, int], frozenset[str] | None], list[PodClass]] = {}
    for pod_class, often in kept.items():
        if pod_class.gpus == 1:
            single[grid.cells_that_fit_class(pod_class)] += often / total
        else:
            groups.setdefault((pod_class.per_gpu, pod_class.models), []).append(pod_class)
        yield
    tables = []
    for members in groups.values():
        tables.append(_build_group_table(grid, {member: kept[member] / total for member in members}))
        yield
    amounts = [name for name in grid.resources if name not in counts]
    return WorkloadTables(
        cpu_milli=grid.cpu_milli,
        resources=grid.resources,
        models=grid.models,
        single=single.reshape(grid.shape[0], -1),
        groups=tuple(tables),
        shared=tuple(amounts or grid.resources),
        scales=ShareScales(),
    )


def _most_frequent_classes(
    classes: Mapping[PodClass, float],
) -> Generator[None, None, dict[PodClass, float]]:
    """The most frequent classes that request GPUs, as many as fit into the table."""
    known = {
        pod_class: often
        for pod_class, often in classes.items()
        if often > 0 and pod_class.gpus > 0 and pod_class.per_gpu
    }
    ordered = sorted(known, key=lambda pod_class: -known[pod_class])[:_MOST_CLASSES]
    while ordered and np.prod(np.array(_Grid(ordered).shape, np.float64)) > _MOST_CELLS:
        ordered = ordered[: len(ordered) * 3 // 4]
        yield
    return {pod_class: known[pod_class] for pod_class in ordered}


class _Grid:
    """The grid, in which each class has a corner: the class fits the cell and all cells beyond."""

    def __init__(self, classes: Collection[PodClass]) -> None:
        names = sorted({name for pod_class in classes for name in pod_class.per_gpu})
        self.cpu_milli = _distinct_positive_amounts(pod_class.cpu_milli for pod_class in classes)
        self.resources = {
            name: _distinct_positive_amounts(pod_class.per_gpu.get(name, 0) for pod_class in classes)
            for name in names
        }
        self.models = tuple(sorted({model for pod_class in classes for model in pod_class.models or ()}))

    @property
    def shape(self) -> tuple[int, ...]:
        steps = (len(values) + 1 for values in self.resources.values())
        return (len(self.cpu_milli) + 1, len(self.models) + 1, *steps)

    def cells_that_fit_class(self, pod_class: PodClass) -> tuple[slice | list[int], ...]:
        models: slice | list[int] = slice(None)
        if pod_class.models is not None:
            models = [number for number, model in enumerate(self.models, 1) if model in pod_class.models]
        wanted = [
            slice(_amount_cell(values, pod_class.per_gpu.get(name, 0)), None)
            for name, values in self.resources.items()
        ]
        return (slice(_amount_cell(self.cpu_milli, pod_class.cpu_milli), None), models, *wanted)


def _build_group_table(grid: _Grid, shares: Mapping[PodClass, float]) -> GpuKindGroup:
    """The table of classes that request several GPUs of one kind, from the share of each."""
    fits = np.zeros(grid.shape[1:], np.bool_)
    fits[grid.cells_that_fit_class(next(iter(shares)))[1:]] = True
    hosted = np.zeros((grid.shape[0], MOST_GPUS + 1))
    for pod_class, share in shares.items():
        hosted[grid.cells_that_fit_class(pod_class)[0], pod_class.gpus :] += share
    return GpuKindGroup(fits.reshape(-1), hosted)


def _distinct_positive_amounts(amounts: Iterable[int]) -> NDArray[np.int64]:
    return np.unique(np.array([amount for amount in amounts if amount > 0], np.int64))


def _amount_cell(steps: NDArray[np.int64], amount: int) -> int:
    """The first cell that has the amount; for 0 the first cell, in which the resource may be absent."""
    return int(np.searchsorted(steps, amount)) + 1 if amount > 0 else 0


class GpuCells(NamedTuple):
    """The free shares and cells of the candidates' GPUs."""

    shares: Floats
    """(C, M): the free share of each GPU; 0 for an unusable GPU."""
    cells: Numbers
    """(C, M): the cell of each GPU."""


def gpu_cells(workload: WorkloadTables, candidate_gpus: CandidateGpus) -> GpuCells:
    """Compute the cells of the candidates' GPUs."""
    cells: Numbers = np.zeros((candidate_gpus.layout.most_gpus, len(candidate_gpus)), np.intp)
    if workload.models:
        number_by_model = {model: number for number, model in enumerate(workload.models, 1)}
        numbers = [number_by_model.get(model, 0) for model in candidate_gpus.layout.models]
        cells = np.array(numbers, np.intp)[candidate_gpus.model_codes()]
    for name, steps in workload.resources.items():
        cells = cells * (len(steps) + 1) + _amount_cells(steps, candidate_gpus.free(name))
    return GpuCells(mean_free_gpu_shares(workload.scales, candidate_gpus, workload.shared), cells)


def _amount_cells(steps: NDArray[np.int64], free: NDArray[np.int64]) -> Numbers:
    """The cell of each amount, which is the number of steps that it reaches. For small amounts a table is faster."""
    if len(steps) == 1:
        reached: Numbers = (free >= steps[0]).astype(np.intp)
        return reached
    top = int(steps[-1])
    if top > _SMALL:
        searched: Numbers = np.searchsorted(steps, free, side="right")
        return searched
    table = np.searchsorted(steps, np.arange(top + 1), side="right")
    cells: Numbers = table.take(free, mode="clip")
    return cells


def mean_free_gpu_shares(
    scales: ShareScales, candidate_gpus: CandidateGpus, resources: Sequence[str]
) -> Floats:
    """(C, M): the mean free share of those resources that the GPU has; 0 for an unusable GPU."""
    total = np.zeros((candidate_gpus.layout.most_gpus, len(candidate_gpus)))
    for name, scale in scales.of(candidate_gpus.layout, resources).items():
        total += np.maximum(candidate_gpus.free(name), 0) * scale[:, candidate_gpus.columns]
    return total


def node_cells(workload: WorkloadTables, cpu_free: NDArray[np.int64] | None, candidates: int) -> Numbers:
    """(M): the cells of nodes by their free milli-CPU; if it is None (unknown), all nodes have enough."""
    if cpu_free is None:
        return np.full(candidates, len(workload.cpu_milli), np.intp)
    cells: Numbers = np.searchsorted(workload.cpu_milli, cpu_free, side="right")
    return cells


def fragmentation_of(workload: WorkloadTables, gpu_cells: GpuCells, hosts: Numbers) -> Floats:
    """(M): the fragmentation in GPUs, from 0 to all free shares."""
    usable = _single_gpu_pod_share(workload, gpu_cells, hosts).sum(axis=0)
    for group in workload.groups:
        fits = group.fits[gpu_cells.cells]
        usable += (gpu_cells.shares * fits).sum(axis=0) * group.hosted[hosts, fits.sum(axis=0)]
    free: Floats = gpu_cells.shares.sum(axis=0)
    fragmented_share: Floats = np.maximum(free - usable, 0.0)
    return fragmented_share


def fragmentation_growth(
    workload: WorkloadTables, before: GpuCells, after: GpuCells, hosts: Numbers
) -> Floats:
    """(C, M): the growth of the fragmentation if one GPU becomes as in `after` and all others stay as in `before`."""
    growth = after.shares - before.shares
    growth -= _single_gpu_pod_share(workload, after, hosts) - _single_gpu_pod_share(workload, before, hosts)
    for group in workload.groups:
        fits, fit = group.fits[before.cells], group.fits[after.cells]
        count, free = fits.sum(axis=0), (before.shares * fits).sum(axis=0)
        fewer = count - fits.astype(np.intp) + fit
        left = free - before.shares * fits + after.shares * fit
        growth -= left * group.hosted[hosts, fewer] - free * group.hosted[hosts, count]
    return growth


def _single_gpu_pod_share(workload: WorkloadTables, gpu_cells: GpuCells, hosts: Numbers) -> Floats:
    """(C, M): the part of each GPU that pods with one GPU can use."""
    cells = hosts * workload.single.shape[1] + gpu_cells.cells
    usable: Floats = gpu_cells.shares * workload.single.reshape(-1)[cells]
    return usable
