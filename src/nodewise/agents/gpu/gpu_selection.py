"""Selects the GPUs of one container among those that fit. Shapes: C GPUs, M candidates, n GPUs requested.

A choice is one array of GPU positions (n, M), in the order in which they are taken; -1 from the first GPU that is not
found.

A link leads from its left GPU to its right one. Unlike in GPU Aware Scheduling 0.5.6 (`pkg/gpuscheduler/scheduler.go`),
all links of a sub-device are tried and not only the first.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nodewise.agents.gpu import gpu_arrays
from nodewise.agents.gpu.gpu_arrays import Bits, CandidateGpus, Codes, Mask
from nodewise.agents.gpu.pod_gpu_requests import ContainerDemand

Positions = NDArray[np.int8]
Keys = NDArray[np.int64] | NDArray[np.float64] | NDArray[np.int8]

_BITS: Final = 64
_ALL: Final = ~np.uint64(0)


class GpuOrder(Protocol):
    """The order in which GPUs are taken."""

    @property
    def prefers(self) -> bool:
        """Whether the GPU that a telemetry policy prefers comes first, and makes its node preferred."""
        ...

    @property
    def steady(self) -> bool:
        """Whether taking a GPU leaves the keys of the node's other GPUs as they are."""
        ...

    def keys(self, candidate_gpus: CandidateGpus, container: ContainerDemand) -> Keys | None:
        """By GPU and candidate (C, M), smaller first, equal ones by position; None for the order of positions.

        Called once per container, and again for each GPU if the order is not steady; amounts that were taken
        before are no longer free in `gpu_arrays`.
        """
        ...


class FirstFit:
    """The order of names, in which the preferred GPU is swapped with the first one."""

    prefers: Final = True
    steady: Final = True

    def keys(self, candidate_gpus: CandidateGpus, container: ContainerDemand) -> Keys | None:
        del container
        preferred = candidate_gpus.preferred()
        at = np.flatnonzero(preferred >= 0)
        if not len(at):
            return None
        keys = np.repeat(
            np.arange(candidate_gpus.layout.most_gpus, dtype=np.int8)[:, None], len(candidate_gpus), axis=1
        )
        keys[0, at] = preferred[at]
        keys[preferred[at], at] = 0
        return keys


class Balanced(NamedTuple):
    """The GPU with the lowest usage of one resource. The preferred GPU is ignored, as in the older system."""

    resource: str
    """Full name."""
    prefers: bool = False
    steady: bool = True

    def keys(self, candidate_gpus: CandidateGpus, container: ContainerDemand) -> Keys | None:
        del container
        return candidate_gpus.used(self.resource) if self.resource in candidate_gpus.layout.capacity else None


class GpuChoice(NamedTuple):
    """The GPUs that one container takes."""

    gpus: Positions
    """(n, M): positions of GPUs."""
    subdevices: Positions | None = None
    """(n, M): the linked sub-device of each GPU; None if the pod needs no links."""

    @property
    def is_complete(self) -> Mask:
        """(M): where all GPUs were found."""
        is_complete: Mask = self.gpus[-1] >= 0
        return is_complete

    def mask(self, gpus: int) -> Mask:
        """(C, M): which GPUs are taken; none where no search took place."""
        if not len(self.gpus):
            return np.zeros((gpus, self.gpus.shape[1]), np.bool_)
        positions = np.arange(gpus, dtype=np.int8)[:, None]
        taken: Mask = self.gpus[0] == positions
        for positions_of_gpu in self.gpus[1:]:
            taken |= positions_of_gpu == positions
        return taken

    def only(self, where: Mask) -> "GpuChoice":
        """The choice where the mask is true, and no GPUs elsewhere."""
        gpus = np.where(where, self.gpus, np.int8(-1))
        return GpuChoice(
            gpus, None if self.subdevices is None else np.where(where, self.subdevices, np.int8(-1))
        )

    def some(self, candidates: NDArray[np.intp]) -> "GpuChoice":
        subdevices = None if self.subdevices is None else _select_candidates(self.subdevices, candidates)
        return GpuChoice(_select_candidates(self.gpus, candidates), subdevices)

    def complete_with(self, other: "GpuChoice") -> "GpuChoice":
        """The other choice where this one is not complete."""
        gpus = np.where(self.is_complete, self.gpus, other.gpus)
        if self.subdevices is None or other.subdevices is None:
            return GpuChoice(gpus)
        return GpuChoice(gpus, np.where(self.is_complete, self.subdevices, other.subdevices))


def empty_choice(count: int, candidates: int) -> GpuChoice:
    return GpuChoice(np.full((count, candidates), -1, np.int8))


def first_position(able: Mask, keys: Keys | None) -> Positions:
    """(M): the position of the smallest key among the suitable GPUs (C, M), -1 if none is suitable."""
    if keys is not None:
        dtype: Any = keys.dtype
        ranked = np.where(able, keys, np.inf if dtype.kind == "f" else np.iinfo(dtype).max)
        able = able & (ranked == ranked.min(axis=0))
    # Much faster than argmax, which iterates over nodes: positions have weights, the largest for the first.
    count = len(able)
    weights = np.arange(count, 0, -1, dtype=np.int8)[:, None]
    heaviest: Positions = (able.view(np.int8) * weights).max(axis=0)
    return np.where(heaviest > 0, np.int8(count) - heaviest, np.int8(-1))


def choose_gpus_by_order(
    candidate_gpus: CandidateGpus, able: Mask, container: ContainerDemand, order: GpuOrder
) -> GpuChoice:
    """Choose the first suitable GPUs of each candidate in the given order."""
    able = able.copy()
    positions = np.arange(len(able), dtype=np.int8)[:, None]
    keys = order.keys(candidate_gpus, container)
    chosen: list[Positions] = []
    for number in range(container.count):
        if number and not order.steady:
            candidate_gpus = gpus_after_choice(candidate_gpus, GpuChoice(chosen[-1][None]), container)
            keys = order.keys(candidate_gpus, container)
        chosen.append(first_position(able, keys))
        able &= chosen[-1] != positions
    return GpuChoice(np.stack(chosen))


def gpus_after_choice(
    candidate_gpus: CandidateGpus, choice: GpuChoice, container: ContainerDemand
) -> CandidateGpus:
    """The candidates' GPUs after a choice was taken."""
    left = candidate_gpus.fork()
    left.take(choice.mask(candidate_gpus.layout.most_gpus), container.per_gpu)
    return left


class NumaGroup(NamedTuple):
    """One NUMA node of each candidate: the first of all, or the second, …"""

    bits: Bits
    """(M): the positions of its GPUs; 0 where a candidate has no such NUMA node, all bits for all GPUs."""
    candidates: NDArray[np.intp]
    """The candidates that have such a NUMA node. If one node alone has dozens, the others are not searched."""

    def gpus(self, count: int, candidates: NDArray[np.intp] | slice = slice(None)) -> Mask:
        """(C, …): its GPUs as a mask over `count` positions."""
        positions = np.arange(count, dtype=np.uint64)[:, None]
        bits = self.bits[candidates]
        gpus: Mask = (bits >> positions & np.uint64(1)).astype(bool)
        return gpus | (bits == _ALL) if count > _BITS else gpus

    def has(self, able: Mask, count: int, lacking: Mask) -> bool:
        """Whether it has enough suitable GPUs (C, M) on any candidate (M) that still lacks them."""
        at = self.candidates[lacking[self.candidates]]
        enough = (able[:, at] & self.gpus(len(able), at)).sum(axis=0) >= count
        return bool(enough.any())


def choose_within_one_group(
    groups: Iterable[NumaGroup], able: Mask, count: int, choose: Callable[[Mask], GpuChoice]
) -> GpuChoice:
    """Choose the GPUs from the first group that has enough. A failed attempt has no effect."""
    best = empty_choice(1, able.shape[1])
    for group in groups:
        if group.has(able, count, ~best.is_complete):
            choice = choose(able & group.gpus(len(able)))
            best = best.complete_with(choice) if len(best.gpus) == len(choice.gpus) else choice
    return best


def _select_candidates(values: Positions, candidates: NDArray[np.intp]) -> Positions:
    """Gather row by row, which is several times as fast as all at once."""
    gathered = np.empty((len(values), len(candidates)), np.int8)
    for line, value in zip(gathered, values, strict=True):
        np.take(value, candidates, out=line)
    return gathered


Numbers = NDArray[np.intp] | Codes


class CandidateLinks(NamedTuple):
    """All links of the candidates, one entry each, in the order in which they are tried."""

    candidate: Numbers
    left: Numbers
    left_subdevice: Numbers
    right: Numbers
    right_subdevice: Numbers

    def some(self, which: Mask) -> "CandidateLinks":
        return CandidateLinks(*(part[which] for part in self))


class LinkAllocator:
    """The links of a pod's candidates, and which of their sub-devices are free."""

    def __init__(self, candidate_gpus: CandidateGpus) -> None:
        packed = candidate_gpus.layout.links[:, candidate_gpus.columns]
        at = np.nonzero(packed >= 0)
        self._links = CandidateLinks(at[1], *gpu_arrays.unpack_links(packed[at]))
        self._free = candidate_gpus.layout.free_subdevices[:, candidate_gpus.columns]
        self._existing = np.ones(self._free.shape, bool)

    def reserve(self, choice: GpuChoice) -> None:
        """Reserve the linked sub-devices for the rest of the pod."""
        self._free = _without_chosen_links(self._free, choice)
        self._links = self._links.some(_usable_links(self._existing, self._links, self._free))

    def pairs(
        self, candidate_gpus: CandidateGpus, able: Mask, container: ContainerDemand, order: GpuOrder
    ) -> GpuChoice:
        """Linked pairs of suitable GPUs (C, M): the first free link of the left GPU that comes first by order."""
        able = able.copy()
        free, links = self._free, self._links
        keys = order.keys(candidate_gpus, container)
        chosen: list[GpuChoice] = []
        for number in range(container.count // 2):
            if number and not order.steady:
                candidate_gpus = gpus_after_choice(candidate_gpus, chosen[-1], container)
                keys = order.keys(candidate_gpus, container)
            # a link that is not usable now is not usable for a later pair either
            links = links.some(_usable_links(able, links, free))
            chosen.append(_first_linked_pair(able, keys, links))
            able &= ~chosen[-1].mask(len(able))
            free = _without_chosen_links(free, chosen[-1])
        gpus = np.concatenate([pair.gpus for pair in chosen])
        subdevices = np.concatenate([pair.subdevices for pair in chosen if pair.subdevices is not None])
        return GpuChoice(gpus, subdevices)


def _without_chosen_links(free: Bits, choice: GpuChoice) -> Bits:
    if choice.subdevices is None:  # no candidate has enough GPUs, so nothing is taken
        return free
    free = free.copy()
    for gpus, subdevices in zip(choice.gpus, choice.subdevices, strict=True):
        at = np.flatnonzero(gpus >= 0)
        free[gpus[at], at] &= ~(np.uint64(1) << subdevices[at].astype(np.uint64))
    return free


def _usable_links(able: Mask, links: CandidateLinks, free: Bits) -> Mask:
    """Links with suitable GPUs and free sub-devices."""
    bit = np.uint64(1)
    at = links.candidate
    left = free[links.left, at] >> links.left_subdevice.astype(np.uint64)
    right = free[links.right, at] >> links.right_subdevice.astype(np.uint64)
    both: Mask = (left & right & bit) == bit
    return both & able[links.left, at] & able[links.right, at]


def _first_linked_pair(able: Mask, keys: Keys | None, links: CandidateLinks) -> GpuChoice:
    """(2, M): one pair for each candidate that has one."""
    lefts = np.zeros_like(able)
    lefts[links.left, links.candidate] = True
    left = first_position(lefts, keys)
    # Of several values for one place numpy keeps the last: backwards, that is the link to be tried first.
    mine = np.flatnonzero(links.left == left[links.candidate])[::-1]
    taken = np.full(able.shape[1], -1, np.intp)
    taken[links.candidate[mine]] = mine

    def of_candidates(values: Numbers) -> Positions:
        return np.where(taken < 0, -1, values[taken] if len(values) else -1).astype(np.int8)

    gpus = np.stack([left, of_candidates(links.right)])
    ends = np.stack([of_candidates(links.left_subdevice), of_candidates(links.right_subdevice)])
    return GpuChoice(gpus, ends)
