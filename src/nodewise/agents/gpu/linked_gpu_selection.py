"""Selects pairs of linked GPUs and their linked sub-devices for a container.

A link leads from its left GPU to its right one. Unlike in GPU Aware Scheduling 0.5.6, all links of a sub-device are
tried and not only the first. Source: `pkg/gpuscheduler/scheduler.go` there.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agents.gpu import gpu_array_node_column
from nodewise.agents.gpu.free_gpus_of_candidate_nodes import CandidateGpus
from nodewise.agents.gpu.gpu_array_node_column import Codes
from nodewise.agents.gpu.gpu_arrays import Bits, Mask
from nodewise.agents.gpu.gpu_selection import (
    GpuChoice,
    GpuOrder,
    Keys,
    Positions,
    first_position,
    gpus_after_choice,
)
from nodewise.agents.gpu.pod_gpu_requests import ContainerDemand

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
        self._links = CandidateLinks(at[1], *gpu_array_node_column.unpack_links(packed[at]))
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
    none = taken < 0
    gpus = np.stack([left, _link_values_by_candidate(links.right, taken, none)])
    return GpuChoice(
        gpus,
        np.stack(
            [
                _link_values_by_candidate(links.left_subdevice, taken, none),
                _link_values_by_candidate(links.right_subdevice, taken, none),
            ]
        ),
    )


def _link_values_by_candidate(values: Numbers, taken: NDArray[np.intp], none: Mask) -> Positions:
    if not len(values):
        return np.full(len(taken), -1, np.int8)
    return np.where(none, -1, values[taken]).astype(np.int8)
