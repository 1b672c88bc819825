"""Details of each candidate for explanations: the GPUs that the pod would get, or the missing amount.

The details are views of the arrays of a fit. They hold no reference to the layout, because decisions are stored for a
long time and would keep the layout in memory. Texts are rendered on demand.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agents.gpu import init_container_gpus
from nodewise.agents.gpu.allocation_record_limits import ContainerRequest
from nodewise.agents.gpu.fit import FitResult
from nodewise.agents.gpu.gpu_array_node_column import Codes
from nodewise.agents.gpu.gpu_arrays import GpuLayout
from nodewise.agents.gpu.init_container_gpus import InitContainerDemand
from nodewise.agents.gpu.pod_gpu_requests import ContainerDemand, Demand

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
        reused = init_container_gpus.reused_gpus(self.init_containers, self.containers, taken)
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
