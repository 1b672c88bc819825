"""Fits a pod to the GPUs of all candidates at once, and collects why candidates are rejected.

Containers take GPUs one after another, those that share a GPU first; a pod fits where each of its containers fits, and
where these GPUs suffice for its init containers. Nothing is reserved. Source of the order of checks: GPU Aware
Scheduling 0.5.6, `pkg/gpuscheduler/scheduler.go`.

Details of each candidate for explanations are the GPUs that the pod would get, or the missing amount: views of the
arrays of a fit. After `nbytes` was read, as for each stored decision, they hold no reference to the layout, because
decisions are stored for a long time and would keep the layout in memory. Texts are rendered on demand.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import Reason
from nodewise.agents.gpu import allocation_record, gpu_rejection_reasons, gpu_selection, pod_gpu_requests
from nodewise.agents.gpu.allocation_record import ContainerRequest
from nodewise.agents.gpu.gpu_arrays import BROKEN, GROUPED, MAX_AMOUNT, CandidateGpus, Codes, GpuLayout, Mask
from nodewise.agents.gpu.gpu_rejection_reasons import InvalidDemand, RejectionKind, Shortfall
from nodewise.agents.gpu.gpu_selection import GpuChoice, GpuOrder, NumaGroup
from nodewise.agents.gpu.pod_gpu_requests import ContainerDemand, Demand, InitContainerDemand

_NEVER: Final = np.iinfo(np.int16).max
"""More than any container can lack."""


class Shortfalls(NamedTuple):
    """The amounts that rejected candidates lack, by candidate, without references to the layout."""

    names: tuple[str, ...]
    """Card names by code."""
    resources: tuple[str, ...]
    gpus: NDArray[np.int32]
    """Index into `names` of the GPU that comes closest; -1 if no amount is lacking."""
    lacking: NDArray[np.int16]
    """Index into `resources`."""
    free: NDArray[np.int64]
    wanted: NDArray[np.int64]

    def at(self, candidate: int) -> Shortfall | None:
        """The lacking amount of a candidate; None if it fits, or if no amount is the reason."""
        gpu = int(self.gpus[candidate])
        if gpu < 0:
            return None
        resource = self.resources[int(self.lacking[candidate])]
        return Shortfall(self.names[gpu], resource, int(self.free[candidate]), int(self.wanted[candidate]))

    def some(self, candidates: NDArray[np.intp]) -> "Shortfalls":
        gpus, lacking = self.gpus[candidates], self.lacking[candidates]
        return Shortfalls(
            self.names, self.resources, gpus, lacking, self.free[candidates], self.wanted[candidates]
        )


class Rejections:
    """Collects the first reason of each candidate, and the amounts that candidates lack."""

    def __init__(self, candidate_gpus: CandidateGpus) -> None:
        candidates = len(candidate_gpus)
        self.codes = np.zeros(candidates, np.int16)
        self.reasons: list[Reason] = []
        self._candidate_gpus = candidate_gpus
        self._resources: list[str] = []
        self._gpus = np.full(candidates, -1, np.int32)
        self._lacking = np.full(candidates, -1, np.int16)
        self._free = np.zeros(candidates, np.int64)
        self._wanted = np.zeros(candidates, np.int64)

    def reject(self, where: Mask, reason: Reason) -> NDArray[np.intp]:
        """Reject candidates that are not rejected yet. Returns their indices."""
        at = np.flatnonzero(where & (self.codes == 0))
        if len(at):
            self.reasons.append(reason)
            self.codes[at] = len(self.reasons)
        return at

    def reject_for_gpus(
        self, container: ContainerDemand, allowed: Mask, enough: Mapping[str, Mask], failed: Mask
    ) -> None:
        """Reject the failed candidates (M), as far as GPUs and their amounts are the reason.

        `allowed` (C, M) are the GPUs that the pod may use, `enough` those with enough of one resource left.
        """
        name, count = container.name, container.count
        self.reject(failed & (_count_gpus(allowed) < count), gpu_rejection_reasons.NoneUsable(name, count))
        together = allowed
        for resource, mask in enough.items():
            amount = container.per_gpu[resource]
            few = failed & (_count_gpus(allowed & mask) < count)
            at = self.reject(few, gpu_rejection_reasons.TooLittle(name, count, resource, amount))
            if len(at):
                # the GPU with the largest insufficient amount
                lacking = allowed.take(at, 1) & ~mask.take(at, 1)
                free = self._candidate_gpus.free(resource).take(at, 1)
                closest = gpu_selection.first_position(lacking, -free).astype(np.intp)
                self._record_shortfall(resource, amount, at, closest)
            together = together & mask
        few = failed & (_count_gpus(together) < count)
        at = self.reject(few, gpu_rejection_reasons.NotTogether(name, count))
        if not len(at):
            return
        # the GPU that lacks the fewest resources
        among = allowed[:, at] & ~together[:, at]
        lacks = np.full(among.shape, _NEVER, np.int16)
        lacks[among] = sum((~mask[:, at][among]).astype(np.int16) for mask in enough.values())
        nearest = lacks.argmin(axis=0)
        for resource, mask in reversed([*enough.items()]):
            short = ~mask[nearest, at]
            self._record_shortfall(resource, container.per_gpu[resource], at[short], nearest[short])

    def _record_shortfall(
        self, resource: str, wanted: int, at: NDArray[np.intp], gpus: NDArray[np.intp]
    ) -> None:
        """Record that candidates lack an amount of one resource on these GPUs."""
        if resource not in self._resources:
            self._resources.append(resource)
        self._gpus[at] = self._candidate_gpus.layout.name_codes[gpus, self._candidate_gpus.rows[at]]
        self._lacking[at] = self._resources.index(resource)
        self._free[at] = self._candidate_gpus.free(resource)[gpus, at]
        self._wanted[at] = wanted

    def result(self, choices: Sequence[GpuChoice], preferred: Mask) -> "FitResult":
        """The result of these choices of containers, which count where the pod is not rejected."""
        fits = self.codes == 0
        shortfalls = Shortfalls(
            self._candidate_gpus.layout.names,
            tuple(self._resources),
            self._gpus,
            self._lacking,
            self._free,
            self._wanted,
        )
        return FitResult(
            self.codes,
            tuple(self.reasons),
            fits & preferred,
            lambda: (tuple(choice.only(fits) for choice in choices), shortfalls),
        )


def _count_gpus(gpus: Mask) -> NDArray[np.int8]:
    counted: NDArray[np.int8] = np.add.reduce(gpus.view(np.int8), axis=0, dtype=np.int8)
    return counted


class FitResult:
    """The result by candidate (M). What a filter request does not need is gathered when it is first read."""

    __slots__ = ("_gather", "_gathered", "codes", "preferred", "reasons")

    def __init__(
        self,
        codes: NDArray[np.int16],
        reasons: tuple[Reason, ...],
        preferred: Mask,
        gather: Callable[[], tuple[tuple[GpuChoice, ...], Shortfalls]],
    ) -> None:
        """`gather` returns `containers` and `shortfalls`."""
        self.codes = codes
        """0 if the pod fits, k if it does not for `reasons[k - 1]`."""
        self.reasons = reasons
        self.preferred = preferred
        """Whether the pod fits and takes the GPU that a telemetry policy prefers."""
        self._gather: Callable[[], tuple[tuple[GpuChoice, ...], Shortfalls]] | None = gather
        self._gathered: tuple[tuple[GpuChoice, ...], Shortfalls]

    @property
    def containers(self) -> tuple[GpuChoice, ...]:
        """By container of the demand; -1 where the pod does not fit."""
        return self._read()[0]

    @property
    def shortfalls(self) -> Shortfalls:
        """The amounts that rejected candidates lack."""
        return self._read()[1]

    def _read(self) -> tuple[tuple[GpuChoice, ...], Shortfalls]:
        if self._gather is not None:
            self._gathered, self._gather = self._gather(), None
        return self._gathered

    def some(self, candidates: NDArray[np.intp]) -> "FitResult":
        """The result of some candidates, in any order."""
        return FitResult(
            self.codes.take(candidates),
            self.reasons,
            self.preferred.take(candidates),
            lambda: (
                tuple(choice.some(candidates) for choice in self.containers),
                self.shortfalls.some(candidates),
            ),
        )

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


def _container_order(demand: Demand) -> list[tuple[tuple[int, ...], ContainerDemand]]:
    """The order of containers, by index: those that share a GPU first, as one with the sum of their amounts."""
    order: list[tuple[tuple[int, ...], ContainerDemand]] = []
    if demand.same_gpu:
        among = [demand.containers[at] for at in demand.same_gpu]
        amounts = Counter[str]()
        for container in among:
            amounts.update(container.per_gpu)
        names = ", ".join(container.name for container in among)
        order.append((demand.same_gpu, ContainerDemand(names, 1, amounts)))
    order += [
        ((at,), container)
        for at, container in enumerate(demand.containers)
        if container.count and at not in demand.same_gpu
    ]
    return order


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


def _fit_containers(candidate_gpus: CandidateGpus, demand: Demand, order: GpuOrder) -> FitResult:
    rejections = Rejections(candidate_gpus)
    layout, columns = candidate_gpus.layout, candidate_gpus.columns
    choices = [gpu_selection.empty_choice(0, len(candidate_gpus))] * len(demand.containers)
    preferred = np.zeros(len(candidate_gpus), bool)
    everywhere = np.ones(len(candidate_gpus), bool)
    problem = _unfit_demand_reason(demand)
    if problem is not None and problem.at_once:
        rejections.reject(everywhere, problem)
    rejections.reject(layout.name_codes[0, columns] < 0, gpu_rejection_reasons.NoGpus())
    if problem is not None:
        rejections.reject(everywhere, problem)
        return rejections.result(choices, preferred)
    room = allocation_record.max_record_bytes(demand.containers, layout.subdevices)
    rejections.reject(layout.record_bytes[0, columns] > room, gpu_rejection_reasons.RecordFull())
    if demand.single_numa:
        rejections.reject(candidate_gpus.group_states() == BROKEN, gpu_rejection_reasons.BrokenMap())
    search = _Search(candidate_gpus, demand, order, rejections)
    for number, (containers, wanted) in enumerate(search.steps):
        if rejections.codes.all():
            break
        choice = search.step(wanted, last=number == len(search.steps) - 1)
        choices = [choice if at in containers else previous for at, previous in enumerate(choices)]
        preferred |= search.takes_preferred_gpu(choice)
    if not rejections.codes.all():
        _reject_for_init_containers(rejections, demand, choices, layout.most_gpus)
    return rejections.result(choices, preferred)


def _reject_for_init_containers(
    rejections: Rejections, demand: Demand, choices: Sequence[GpuChoice], gpus: int
) -> None:
    """Reject candidates where the GPUs that the containers take do not suffice for an init container."""
    # init containers that use the GPUs of one container always have enough
    dependent = [
        init
        for init in demand.init_containers
        if len(pod_gpu_requests.source_containers(init, demand.containers)) > 1
    ]
    if not dependent:
        return
    taken = {at: choice.mask(gpus) for at, choice in enumerate(choices) if demand.containers[at].count}
    masks = pod_gpu_requests.candidates_with_enough(dependent, demand.containers, taken)
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
        self._links = gpu_selection.LinkAllocator(candidate_gpus) if demand.linked else None

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
            self._rejections.reject_for_gpus(wanted, self._allowed, enough, failed)
            # GPUs that are suitable one by one are not suitable together
            if self._links is not None:
                reason: Reason = gpu_rejection_reasons.NotLinked(wanted.name, wanted.count // 2)
            else:
                reason = gpu_rejection_reasons.NotInOneGroup(wanted.name, wanted.count)
            self._rejections.reject(failed, reason)
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


_AMOUNT_BYTES: Final = 128
"""Estimated memory of one requested amount."""


class FitDetails(NamedTuple):
    """Details of one fit (`agent.Details`)."""

    containers: tuple[ContainerDemand, ...]
    init_containers: tuple[InitContainerDemand, ...]
    fitted: FitResult
    rows: NDArray[np.intp]
    names: tuple[str, ...]
    name_codes: Codes
    """Shared with earlier and later layouts, as long as the GPUs of nodes do not change."""
    names_gpus: bool
    """Whether the GPUs of the fit are those that the pod would get. They are not if the fit used any suitable GPU."""

    @property
    def nbytes(self) -> int:
        """The size without the names of GPUs, which are shared."""
        shortfalls = self.fitted.shortfalls
        plain = (self.rows, shortfalls.gpus, shortfalls.lacking, shortfalls.free, shortfalls.wanted)
        chosen = (array for choice in self.fitted.containers for array in (choice.gpus, choice.subdevices))
        demands: Sequence[ContainerRequest] = (*self.containers, *self.init_containers)
        amounts = sum(1 + len(container.per_gpu) for container in demands)
        return sum(array.nbytes for array in (*plain, *chosen) if array is not None) + amounts * _AMOUNT_BYTES

    def text(self, candidate: int) -> str:
        """`train: card0, card1; side: card0`, init containers last, or the GPU and amount that is lacking."""
        shortfall = self.fitted.shortfalls.at(candidate)
        if shortfall is not None:
            return shortfall.text()
        return "; ".join(self._container_texts(candidate)) if self.names_gpus else ""

    def distances(self) -> NDArray[np.float64]:
        """By candidate, the lacking share of the requested amount; 1 if no amount is lacking."""
        shortfalls = self.fitted.shortfalls
        wanted = np.maximum(shortfalls.wanted, 1).astype(np.float64)
        share = (shortfalls.wanted - np.clip(shortfalls.free, 0, shortfalls.wanted)) / wanted
        distances: NDArray[np.float64] = np.where(shortfalls.gpus >= 0, share, 1.0)
        return distances

    def numbers(self, candidate: int) -> Mapping[str, Any]:  # noqa: ARG002
        """Empty: the text contains everything."""
        return {}

    def _container_texts(self, candidate: int) -> Iterator[str]:
        codes = self.name_codes[:, self.rows[candidate]]
        taken = []
        for gpus, subdevices in zip(
            self.fitted.gpus(candidate), self.fitted.subdevices(candidate), strict=True
        ):
            ends = [f" gt{subdevice}" for subdevice in subdevices] or [""] * len(gpus)
            taken.append([self.names[codes[at]] + end for at, end in zip(gpus, ends, strict=True)])
        held = [(container.name, gpus) for container, gpus in zip(self.containers, taken, strict=True)]
        # with links the GPUs of an init container are those of one container, so the sub-devices do not matter
        reused = pod_gpu_requests.reused_gpus(self.init_containers, self.containers, taken)
        held += [(init.name, [*gpus]) for init, gpus in zip(self.init_containers, reused, strict=True)]
        yield from (f"{name}: {', '.join(gpus)}" for name, gpus in held if gpus)


def build_details(
    layout: GpuLayout, rows: NDArray[np.intp], demand: Demand, fitted: FitResult, *, names_gpus: bool = True
) -> FitDetails | None:
    """None for a demand with a problem."""
    if demand.problem is not None:
        return None
    return FitDetails(
        demand.containers, demand.init_containers, fitted, rows, layout.names, layout.name_codes, names_gpus
    )
