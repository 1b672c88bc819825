"""The GPUs of the candidates, reduced by what earlier containers of the pod took."""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nodewise.agents.gpu.gpu_array_node_column import ABSENT, Codes
from nodewise.agents.gpu.gpu_arrays import Amounts, Bits, GpuLayout, Mask

Columns = NDArray[np.intp] | slice


class CandidateGpus:
    """The columns of M candidates in a layout, with the amounts that were taken from them. Forking is cheap."""

    def __init__(self, layout: GpuLayout, rows: NDArray[np.intp] | None = None) -> None:
        self.layout: Final = layout
        self.rows: Final = np.arange(layout.size + 1) if rows is None else rows
        self.columns: Final[Columns] = slice(None) if rows is None else rows
        """The candidates' columns in the layout. By default all, as a slice, which copies nothing."""
        self._free: dict[str, Amounts] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def fork(self) -> "CandidateGpus":
        """A copy from which amounts can be taken without changing this object."""
        copy = object.__new__(CandidateGpus)
        copy.__dict__.update(self.__dict__, _free=dict(self._free))
        return copy

    def free(self, resource: str) -> Amounts:
        """(C, M): the free amount of a resource; negative where the GPU does not have it. Do not change the array."""
        amounts = self._free.get(resource)
        if amounts is None:
            amounts = self._free[resource] = self._values_of_candidates(self.layout.free, resource, ABSENT)
        return amounts

    def capacity(self, resource: str) -> Amounts:
        """(C, M): the capacity of a resource; 0 where the GPU does not have it."""
        return self._values_of_candidates(self.layout.capacity, resource, 0)

    def used(self, resource: str) -> Amounts:
        """(C, M): the held or taken amount; 0 where the GPU does not have the resource."""
        capacity = self.capacity(resource)
        return np.where(capacity > 0, capacity - self.free(resource), 0)

    def take(self, taken: Mask, per_gpu: Mapping[str, int]) -> None:
        """Take amounts from GPUs (C, M) that have them."""
        for resource, amount in per_gpu.items():
            if amount:
                self._free[resource] = self.free(resource) - taken.astype(np.int64) * amount

    def usable(self) -> Mask:
        """(C, M): GPUs that exist and are not disabled."""
        return self.layout.usable[:, self.columns]

    def name_codes(self) -> Codes:
        """(C, M)."""
        return self.layout.name_codes[:, self.columns]

    def model_codes(self) -> Codes:
        """(C, M)."""
        return self.layout.model_codes[:, self.columns]

    def groups(self) -> Bits:
        """(G, M)."""
        return self.layout.groups[:, self.columns]

    def group_states(self) -> NDArray[np.int8]:
        """(M)."""
        return self.layout.group_states[0, self.columns]

    def preferred(self) -> NDArray[np.int16]:
        """(M): position of the preferred GPU, or -1."""
        return self.layout.preferred[0, self.columns]

    def _values_of_candidates(self, arrays: Mapping[str, Amounts], resource: str, absent: int) -> Amounts:
        array = arrays.get(resource)
        if array is None:
            return np.full((self.layout.most_gpus, len(self)), absent, np.int64)
        return array[:, self.columns]
