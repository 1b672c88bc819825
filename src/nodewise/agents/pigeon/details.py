"""What is known of each candidate: what the objective comes to there, and why it does not where it does not."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agents.pigeon.moments import Floats
from nodewise.agents.pigeon.objectives import Objective
from nodewise.agents.pigeon.resources import NAMES

Bits = NDArray[np.uint8]
"""By candidate or node: bit r for resource r."""


class PigeonDetails(NamedTuple):
    """Of one answer (`agent.Details`)."""

    objective: Objective
    measured: Floats
    """By candidate: what the cluster is like if it takes the pod; NaN where the pod does not fit."""
    variability: float | None
    """Of what pods ask for; None where the objective does not go by it."""
    lacking: Bits
    """By candidate: of what it has too little left."""
    missing: Bits | None
    """By candidate: of what nobody says how much is requested there; None where that is known of all."""

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in (self.measured, self.lacking, self.missing) if one is not None)

    def text(self, candidate: int) -> str:
        """`A_BINPACK 0.287820; memory: no statistics`, or `does not fit: cpu`."""
        return "; ".join(self._told(candidate))

    def distances(self) -> Floats:
        """No candidate is rejected for what is said here."""
        return np.ones(len(self.measured))

    def numbers(self, candidate: int) -> Mapping[str, Any]:
        """`objective`, null where the pod does not fit, and the variabilities that it is made of if it is A_BINPACK.

        `missing` names the resources of which nobody says how much is requested there; else it is left out.
        """
        found: dict[str, Any] = {"objective": self._value(candidate)}
        if missing := list(_names(self.missing, candidate)):
            found["missing"] = missing
        if self.variability is not None:
            found["demand_variability"] = self.variability
            found["system_variability"] = float(self.measured[candidate])
        return found

    def values(self) -> Floats:
        """The objective by candidate, the lower the better; NaN where the pod does not fit."""
        return self.measured if self.variability is None else np.abs(self.measured - self.variability)

    def _value(self, candidate: int) -> float:
        measured = float(self.measured[candidate])
        return measured if self.variability is None else abs(measured - self.variability)

    def _told(self, candidate: int) -> Iterator[str]:
        if not np.isnan(self.measured[candidate]):
            yield f"{self.objective} {self._value(candidate):.6f}"
        else:
            yield f"does not fit: {', '.join(_names(self.lacking, candidate))}"
        if missing := ", ".join(_names(self.missing, candidate)):
            yield f"{missing}: no statistics"


def bits(of: NDArray[np.bool_]) -> Bits:
    """A table (R, n) as numbers (n)."""
    packed: Bits = np.packbits(of, axis=0, bitorder="little")[0]
    return packed


def _names(bits: Bits | None, candidate: int) -> Iterator[str]:
    if bits is not None:
        given = int(bits[candidate])
        yield from (name for number, name in enumerate(NAMES) if given >> number & 1)
