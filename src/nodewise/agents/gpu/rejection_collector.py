"""Collects why candidates are rejected while a pod is fitted: the first reason of each, and what it lacks."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import Reason
from nodewise.agents.gpu import gpu_rejection_reasons
from nodewise.agents.gpu.free_gpus_of_candidate_nodes import CandidateGpus
from nodewise.agents.gpu.gpu_arrays import Mask
from nodewise.agents.gpu.gpu_rejection_reasons import Shortfall
from nodewise.agents.gpu.pod_gpu_requests import ContainerDemand

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
        """The shortfalls of some candidates."""
        gpus, lacking = self.gpus[candidates], self.lacking[candidates]
        return Shortfalls(
            self.names, self.resources, gpus, lacking, self.free[candidates], self.wanted[candidates]
        )


class Rejections:
    """Collects codes and lacking amounts."""

    def __init__(self, candidate_gpus: CandidateGpus) -> None:
        candidates = len(candidate_gpus)
        self.codes = np.zeros(candidates, np.int16)
        self.reasons: list[Reason] = []
        self._names = candidate_gpus.layout.names
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

    def record_shortfall(
        self,
        at: NDArray[np.intp],
        gpus: NDArray[np.int32],
        free: NDArray[np.int64],
        resource: str,
        wanted: int,
    ) -> None:
        """Record that candidates lack an amount of one resource on these GPUs."""
        if resource not in self._resources:
            self._resources.append(resource)
        self._gpus[at] = gpus
        self._lacking[at] = self._resources.index(resource)
        self._free[at] = free
        self._wanted[at] = wanted

    @property
    def shortfalls(self) -> Shortfalls:
        return Shortfalls(
            self._names, tuple(self._resources), self._gpus, self._lacking, self._free, self._wanted
        )


def record_rejection_reasons(
    rejections: Rejections,
    candidate_gpus: CandidateGpus,
    container: ContainerDemand,
    allowed: Mask,
    enough: Mapping[str, Mask],
    failed: Mask,
) -> None:
    """Record why a container does not fit the failed candidates (M), as far as GPUs and their amounts are the reason.

    `allowed` (C, M) are the GPUs that the pod may use, `enough` those with enough of one resource left.
    """
    count = container.count
    rejections.reject(
        failed & (_count_gpus(allowed) < count), gpu_rejection_reasons.NoneUsable(container.name, count)
    )
    together = allowed
    for resource, mask in enough.items():
        amount = container.per_gpu[resource]
        few = failed & (_count_gpus(allowed & mask) < count)
        at = rejections.reject(few, gpu_rejection_reasons.TooLittle(container.name, count, resource, amount))
        _record_largest_shortfall(rejections, candidate_gpus, allowed & ~mask, resource, amount, at)
        together = together & mask
    at = rejections.reject(
        failed & (_count_gpus(together) < count), gpu_rejection_reasons.NotTogether(container.name, count)
    )
    closest = _gpu_lacking_fewest(
        allowed[:, at] & ~together[:, at], [mask[:, at] for mask in enough.values()]
    )
    for resource, mask in reversed([*enough.items()]):
        short = ~mask[closest, at]
        _record_shortfall(
            rejections, candidate_gpus, resource, container.per_gpu[resource], at[short], closest[short]
        )


def _gpu_lacking_fewest(among: Mask, enough: Sequence[Mask]) -> NDArray[np.intp]:
    """(m): the GPU that lacks the fewest resources."""
    lacking = np.full(among.shape, _NEVER, np.int16)
    lacking[among] = sum((~mask[among]).astype(np.int16) for mask in enough)
    fewest: NDArray[np.intp] = lacking.argmin(axis=0)
    return fewest


def _record_largest_shortfall(
    rejections: Rejections,
    candidate_gpus: CandidateGpus,
    lacking: Mask,
    resource: str,
    amount: int,
    at: NDArray[np.intp],
) -> None:
    """Record the GPU with the largest insufficient amount of the resource."""
    if len(at):
        free = np.where(lacking[:, at], candidate_gpus.free(resource)[:, at], np.iinfo(np.int64).min)
        _record_shortfall(rejections, candidate_gpus, resource, amount, at, free.argmax(axis=0))


def _record_shortfall(
    rejections: Rejections,
    candidate_gpus: CandidateGpus,
    resource: str,
    amount: int,
    at: NDArray[np.intp],
    gpus: NDArray[np.intp],
) -> None:
    names = candidate_gpus.layout.name_codes[gpus, candidate_gpus.rows[at]]
    rejections.record_shortfall(at, names, candidate_gpus.free(resource)[gpus, at], resource, amount)


def _count_gpus(gpus: Mask) -> NDArray[np.int8]:
    counted: NDArray[np.int8] = np.add.reduce(gpus.view(np.int8), axis=0, dtype=np.int8)
    return counted
