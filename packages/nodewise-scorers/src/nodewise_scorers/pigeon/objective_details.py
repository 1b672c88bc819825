"""The value of the objective for each candidate, or the reason why it has none."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise_scorers.pigeon.mean_covariance import Floats
from nodewise_scorers.pigeon.placement_objectives import Objective
from nodewise_scorers.pigeon.resource_units import NAMES

Bits = NDArray[np.uint8]
"""By candidate or node: bit r for resource r."""


class PigeonDetails(NamedTuple):
    """Details of one response (`agent.Details`)."""

    objective: Objective
    cluster_values: Floats
    """By candidate: the cluster's value with the pod on it; NaN where the pod does not fit."""
    variability: float | None
    """The variability of pod requests; None where the objective does not use it."""
    lacking: Bits
    """By candidate: the resources of which too little is left."""
    missing: Bits | None
    """By candidate: the resources whose requested amount is unknown; None if all are known."""

    @property
    def nbytes(self) -> int:
        return sum(
            array.nbytes for array in (self.cluster_values, self.lacking, self.missing) if array is not None
        )

    def text(self, candidate: int) -> str:
        """`A_BINPACK 0.287820; memory: no statistics`, or `does not fit: cpu`."""
        return "; ".join(self._describe_candidate(candidate))

    def distances(self) -> Floats:
        """1: no candidate is rejected by these values."""
        return np.ones(len(self.cluster_values))

    def numbers(self, candidate: int) -> Mapping[str, Any]:
        """`objective`, null if the pod does not fit, and for A_BINPACK the variabilities that it is computed from.

        `missing` lists the resources whose requested amount is unknown, if there are any.
        """
        numbers: dict[str, Any] = {"objective": self._objective_value(candidate)}
        if missing := list(_unpack_resource_names(self.missing, candidate)):
            numbers["missing"] = missing
        if self.variability is not None:
            numbers["demand_variability"] = self.variability
            numbers["system_variability"] = float(self.cluster_values[candidate])
        return numbers

    def values(self) -> Floats:
        """The objective by candidate, the lower the better; NaN where the pod does not fit."""
        return (
            self.cluster_values
            if self.variability is None
            else np.abs(self.cluster_values - self.variability)
        )

    def _objective_value(self, candidate: int) -> float:
        measured = float(self.cluster_values[candidate])
        return measured if self.variability is None else abs(measured - self.variability)

    def _describe_candidate(self, candidate: int) -> Iterator[str]:
        if not np.isnan(self.cluster_values[candidate]):
            yield f"{self.objective} {self._objective_value(candidate):.6f}"
        else:
            yield f"does not fit: {', '.join(_unpack_resource_names(self.lacking, candidate))}"
        if missing := ", ".join(_unpack_resource_names(self.missing, candidate)):
            yield f"{missing}: no statistics"


def pack_resource_bits(table: NDArray[np.bool_]) -> Bits:
    """Pack a table (R, n) into one number per column (n)."""
    packed: Bits = np.packbits(table, axis=0, bitorder="little")[0]
    return packed


def _unpack_resource_names(bits: Bits | None, candidate: int) -> Iterator[str]:
    if bits is not None:
        mask = int(bits[candidate])
        yield from (name for number, name in enumerate(NAMES) if mask >> number & 1)
