"""Fits a pod to the GPUs of all candidates at once.

Containers take GPUs one after another, those that share a GPU first; a pod fits where each of its containers fits, and
where these GPUs suffice for its init containers. Nothing is reserved. Source of the order of checks: GPU Aware
Scheduling 0.5.6, `pkg/gpuscheduler/scheduler.go`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import Reason
from nodewise.agents.gpu import (
    allocation_record_limits,
    gpu_rejection_reasons,
    gpu_selection,
    init_container_gpus,
    linked_gpu_selection,
)
from nodewise.agents.gpu.free_gpus_of_candidate_nodes import CandidateGpus
from nodewise.agents.gpu.gpu_array_node_column import BROKEN, GROUPED, MAX_AMOUNT
from nodewise.agents.gpu.gpu_arrays import GpuLayout, Mask
from nodewise.agents.gpu.gpu_rejection_reasons import InvalidDemand, RejectionKind
from nodewise.agents.gpu.gpu_selection import Balanced, FirstFit, GpuChoice, GpuOrder, NumaGroup
from nodewise.agents.gpu.pod_gpu_requests import ContainerDemand, Demand
from nodewise.agents.gpu.rejection_collector import Rejections, Shortfalls, record_rejection_reasons

__all__ = ["Balanced", "FirstFit", "FitResult", "GpuChoice", "GpuOrder", "Shortfalls", "fit"]


class FitResult(NamedTuple):
    """The result by candidate (M)."""

    codes: NDArray[np.int16]
    """0 if the pod fits, k if it does not for `reasons[k - 1]`."""
    reasons: tuple[Reason, ...]
    containers: tuple[GpuChoice, ...]
    """By container of the demand; -1 where the pod does not fit."""
    preferred: Mask
    """Whether the pod fits and takes the GPU that a telemetry policy prefers."""
    shortfalls: Shortfalls
    """The amounts that rejected candidates lack."""

    def some(self, candidates: NDArray[np.intp]) -> "FitResult":
        """The result of some candidates, in any order."""
        containers = tuple(choice.some(candidates) for choice in self.containers)
        preferred, shortfalls = self.preferred[candidates], self.shortfalls.some(candidates)
        return FitResult(self.codes[candidates], self.reasons, containers, preferred, shortfalls)

    def gpus(self, candidate: int) -> tuple[tuple[int, ...], ...]:
        """The positions of the GPUs of each container on a candidate; empty tuples if it does not fit."""
        return tuple(_candidate_column(choice.gpus, candidate) for choice in self.containers)

    def subdevices(self, candidate: int) -> tuple[tuple[int, ...], ...]:
        """The linked sub-device of each GPU, in the same form; empty tuples without links."""
        return tuple(
            () if choice.subdevices is None else _candidate_column(choice.subdevices, candidate)
            for choice in self.containers
        )


def fit(layout: GpuLayout, rows: NDArray[np.intp], demand: Demand, order: GpuOrder) -> FitResult:
    """Fit a demand to candidates, which are columns of the layout in any order, with repetitions allowed."""
    if len(rows) <= layout.size // 2:
        return _fit_containers(CandidateGpus(layout, rows), demand, order)
    # Nodes are independent. For most of them it is faster to fit all, because no columns are gathered.
    return _fit_containers(CandidateGpus(layout), demand, order).some(rows)


def merged(demand: Demand) -> ContainerDemand:
    """The containers that share a GPU, merged into one with the sum of their amounts."""
    among = [demand.containers[at] for at in demand.same_gpu]
    wanted = Counter[str]()
    for container in among:
        wanted.update(container.per_gpu)
    return ContainerDemand(", ".join(container.name for container in among), 1, wanted)


def _container_order(demand: Demand) -> list[tuple[tuple[int, ...], ContainerDemand]]:
    """The order of containers, by index: those that share a GPU first."""
    shared = [(demand.same_gpu, merged(demand))] if demand.same_gpu else []
    alone = enumerate(demand.containers)
    return shared + [
        ((at,), container) for at, container in alone if container.count and at not in demand.same_gpu
    ]


def _unfit_demand_reason(demand: Demand) -> InvalidDemand | None:
    """Why the demand fits no node."""
    if demand.problem is not None:
        return demand.problem
    for _, container in _container_order(demand):
        for resource, amount in container.per_gpu.items():
            if not 0 <= amount <= MAX_AMOUNT:
                words = f"container {container.name}: {resource} on one GPU is more than 64 bits hold"
                return InvalidDemand(RejectionKind.OVERFLOW, words, "ask for less", at_once=False)
    return None


def _fit_result(
    rejections: Rejections, choices: Sequence[GpuChoice], preferred: Mask | None = None
) -> FitResult:
    fits = rejections.codes == 0
    if not fits.all():
        choices = [choice.only(fits) for choice in choices]
    preferred = fits & preferred if preferred is not None else np.zeros(len(fits), bool)
    return FitResult(
        rejections.codes, tuple(rejections.reasons), tuple(choices), preferred, rejections.shortfalls
    )


def _fit_containers(candidate_gpus: CandidateGpus, demand: Demand, order: GpuOrder) -> FitResult:
    rejections = Rejections(candidate_gpus)
    problem = _unfit_demand_reason(demand)
    everywhere = np.ones(len(candidate_gpus), bool)
    if problem is not None and problem.at_once:
        rejections.reject(everywhere, problem)
    rejections.reject(
        candidate_gpus.layout.name_codes[0, candidate_gpus.columns] < 0, gpu_rejection_reasons.NoGpus()
    )
    if problem is not None:
        rejections.reject(everywhere, problem)
        return _fit_result(
            rejections, [gpu_selection.empty_choice(0, len(candidate_gpus))] * len(demand.containers)
        )
    room = allocation_record_limits.max_record_bytes(demand.containers, candidate_gpus.layout.subdevices)
    rejections.reject(
        candidate_gpus.layout.record_bytes[0, candidate_gpus.columns] > room,
        gpu_rejection_reasons.RecordFull(),
    )
    if demand.single_numa:
        rejections.reject(candidate_gpus.group_states() == BROKEN, gpu_rejection_reasons.BrokenMap())
    search = _Search(candidate_gpus, demand, order, rejections)
    choices = [gpu_selection.empty_choice(0, len(candidate_gpus))] * len(demand.containers)
    preferred = np.zeros(len(candidate_gpus), bool)
    for number, (containers, wanted) in enumerate(search.steps):
        if rejections.codes.all():
            break
        choice = search.step(wanted, last=number == len(search.steps) - 1)
        choices = [choice if at in containers else previous for at, previous in enumerate(choices)]
        preferred |= search.takes_preferred_gpu(choice)
    if demand.init_containers:
        _reject_for_init_containers(rejections, demand, choices, candidate_gpus.layout.most_gpus)
    return _fit_result(rejections, choices, preferred)


def _reject_for_init_containers(
    rejections: Rejections, demand: Demand, choices: Sequence[GpuChoice], gpus: int
) -> None:
    """Reject candidates where the GPUs that the containers take do not suffice for an init container."""
    dependent = [
        init
        for init in demand.init_containers
        if len(init_container_gpus.source_containers(init, demand.containers)) > 1
    ]
    if not dependent or rejections.codes.all():
        return
    taken = {at: choice.mask(gpus) for at, choice in enumerate(choices) if demand.containers[at].count}
    masks = init_container_gpus.candidates_with_enough(dependent, demand.containers, taken)
    for init, enough in zip(dependent, masks, strict=True):
        later = sum(demand.containers[at].count for at in init.later)
        rejections.reject(
            ~enough, gpu_rejection_reasons.LaterContainersTooSmall(init.name, init.count, later)
        )


class _Search:
    """Lets the containers of a pod take GPUs, one after another."""

    def __init__(
        self, candidate_gpus: CandidateGpus, demand: Demand, order: GpuOrder, rejections: Rejections
    ) -> None:
        self.steps = _container_order(demand)
        self._candidate_gpus = candidate_gpus
        self._order = order
        self._rejections = rejections
        self._allowed = _allowed(candidate_gpus, demand)
        self._groups = list(_groups(candidate_gpus)) if demand.single_numa else None
        self._links = linked_gpu_selection.LinkAllocator(candidate_gpus) if demand.linked else None

    def step(self, wanted: ContainerDemand, *, last: bool) -> GpuChoice:
        """Take the GPUs of one container, which are then not free for the next one."""
        candidate_gpus = self._candidate_gpus
        enough = {name: candidate_gpus.free(name) >= amount for name, amount in wanted.per_gpu.items()}
        able = self._allowed.copy()
        for mask in enough.values():
            able &= mask
        choice = self._choose_gpus(wanted, able)
        failed = ~choice.is_complete & (self._rejections.codes == 0)
        if failed.any():
            record_rejection_reasons(self._rejections, candidate_gpus, wanted, self._allowed, enough, failed)
            self._rejections.reject(failed, self._not_together_reason(wanted))
        if not last:
            candidate_gpus.take(choice.mask(len(able)), wanted.per_gpu)
            if self._links is not None:
                self._links.reserve(choice)
        return choice

    def takes_preferred_gpu(self, choice: GpuChoice) -> Mask:
        """(M): whether the preferred GPU is among the chosen ones; of linked GPUs it must be the first."""
        if not self._order.prefers:
            return np.zeros(len(self._candidate_gpus), bool)
        preferred = self._candidate_gpus.preferred()
        gpus = choice.gpus if self._links is None else choice.gpus[:1]
        taken: Mask = (gpus == preferred).any(axis=0) & (preferred >= 0)
        return taken

    def _choose_gpus(self, wanted: ContainerDemand, able: Mask) -> GpuChoice:
        if wanted.count > len(able):
            return gpu_selection.empty_choice(1, len(self._candidate_gpus))
        if self._groups is None:
            return self._choose_among_gpus(wanted, able)
        return gpu_selection.choose_within_one_group(
            self._groups, able, wanted.count, lambda gpus: self._choose_among_gpus(wanted, gpus)
        )

    def _choose_among_gpus(self, wanted: ContainerDemand, able: Mask) -> GpuChoice:
        if self._links is None:
            return gpu_selection.choose_gpus_by_order(self._candidate_gpus, able, wanted, self._order)
        return self._links.pairs(self._candidate_gpus, able, wanted, self._order)

    def _not_together_reason(self, wanted: ContainerDemand) -> Reason:
        """Why GPUs that are suitable one by one are not suitable together."""
        if self._links is not None:
            return gpu_rejection_reasons.NotLinked(wanted.name, wanted.count // 2)
        return gpu_rejection_reasons.NotInOneGroup(wanted.name, wanted.count)


def _allowed(candidate_gpus: CandidateGpus, demand: Demand) -> Mask:
    """(C, M): the GPUs that the pod may use if they are free."""
    usable = candidate_gpus.usable()
    layout = candidate_gpus.layout
    if demand.allow is not None or demand.deny:
        listed = [
            name not in demand.deny and (demand.allow is None or name in demand.allow)
            for name in layout.names
        ]
        usable = usable & np.array([*listed, False])[candidate_gpus.name_codes()]
    if demand.models is not None:
        wanted = np.array([model in demand.models for model in layout.models])
        usable = usable & wanted[candidate_gpus.model_codes()]
    return usable


def _groups(candidate_gpus: CandidateGpus) -> Iterator[NumaGroup]:
    """The NUMA nodes of each candidate, by position; a candidate without a map has one, with all GPUs."""
    ungrouped = candidate_gpus.group_states() != GROUPED
    bits = candidate_gpus.groups()
    first = bits[0] if len(bits) else np.zeros(len(candidate_gpus), np.uint64)
    for group in (np.where(ungrouped, ~np.uint64(0), first), *bits[1:]):
        yield NumaGroup(group, np.flatnonzero(group))


def _candidate_column(values: NDArray[np.int8], candidate: int) -> tuple[int, ...]:
    return tuple(at for at in values[:, candidate].tolist() if at >= 0)
