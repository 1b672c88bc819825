"""The operators of policies. A rule is broken where `value operator target` is true.

Source: Telemetry Aware Scheduling 0.7, `pkg/strategies/core/operator.go`. Comparisons are exact.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import COMPARISONS
from nodewise.metrics.series import Values


class Operator(NamedTuple):
    """The two uses of an operator."""

    compare: np.ufunc
    """As the condition of a rule."""
    order: int
    """The preference of `scheduleonmetric`: 1 for small values first, -1 for large ones, 0 for no order."""


OPERATORS: Final[dict[str, Operator]] = {
    "LessThan": Operator(COMPARISONS["LessThan"], 1),
    "GreaterThan": Operator(COMPARISONS["GreaterThan"], -1),
    "Equals": Operator(COMPARISONS["Equals"], 0),
}


def compare(operator: str, values: Values, target: int) -> NDArray[np.bool_]:
    """Where `value operator target` is true. An operator that does not exist is true nowhere."""
    entry = OPERATORS.get(operator)
    if entry is None:
        return np.zeros(len(values), bool)
    return np.asarray(entry.compare(values, target), bool)


def sort_direction(operator: str) -> int:
    """The `Operator.order` of an operator; 0 for one that does not exist."""
    entry = OPERATORS.get(operator)
    return entry.order if entry else 0
