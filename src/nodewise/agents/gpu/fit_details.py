"""Details of each candidate for explanations: the GPUs that the pod would get, or the missing amount.

The details are views of the arrays of a fit. They hold no reference to the layout, because decisions are stored for a
long time and would keep the layout in memory. Texts are rendered on demand.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agents.gpu.fit import FitResult
from nodewise.agents.gpu.gpu_array_node_column import Codes
from nodewise.agents.gpu.gpu_arrays import GpuLayout
from nodewise.agents.gpu.pod_gpu_requests import Demand


class FitDetails(NamedTuple):
    """Details of one fit (`agent.Details`)."""

    containers: tuple[str, ...]
    fitted: FitResult
    rows: NDArray[np.intp]
    names: tuple[str, ...]
    name_codes: Codes
    """Shared with earlier and later layouts, as long as the GPUs of nodes do not change."""
    names_gpus: bool
    """Whether the GPUs of the fit are those that the pod would get. They are not if the fit used any suitable GPU."""

    @property
    def nbytes(self) -> int:
        """The size without the names, which are shared."""
        shortfalls = self.fitted.shortfalls
        plain = (self.rows, shortfalls.gpus, shortfalls.lacking, shortfalls.free, shortfalls.wanted)
        chosen = (array for choice in self.fitted.containers for array in (choice.gpus, choice.subdevices))
        return sum(array.nbytes for array in (*plain, *chosen) if array is not None)

    def text(self, candidate: int) -> str:
        """`train: card0, card1; side: card0`, or the GPU and amount that is lacking."""
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
        taken = zip(
            self.containers, self.fitted.gpus(candidate), self.fitted.subdevices(candidate), strict=True
        )
        for container, gpus, subdevices in taken:
            names = [self.names[codes[at]] for at in gpus]
            ends = [f" gt{subdevice}" for subdevice in subdevices] or [""] * len(names)
            if names:
                yield f"{container}: {', '.join(name + end for name, end in zip(names, ends, strict=True))}"


def build_details(
    layout: GpuLayout, rows: NDArray[np.intp], demand: Demand, fitted: FitResult, *, names_gpus: bool = True
) -> FitDetails | None:
    """None for a demand with a problem."""
    if demand.problem is not None:
        return None
    names = tuple(container.name for container in demand.containers)
    return FitDetails(names, fitted, rows, layout.names, layout.name_codes, names_gpus)
