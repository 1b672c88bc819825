"""What each operator of a policy means. A rule is broken where `value operator target` is true.

Source: Telemetry Aware Scheduling 0.7, `pkg/strategies/core/operator.go`. Comparisons are exact.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import COMPARISONS
from nodewise.metrics.column import Values


class Operator(NamedTuple):
    """The two uses of an operator."""

    compare: np.ufunc
    """As the condition of a rule."""
    order: int
    """As a preference (`scheduleonmetric`): 1 wants small values first, -1 large ones, 0 gives no order."""


OPERATORS: Final[dict[str, Operator]] = {
    "LessThan": Operator(COMPARISONS["LessThan"], 1),
    "GreaterThan": Operator(COMPARISONS["GreaterThan"], -1),
    "Equals": Operator(COMPARISONS["Equals"], 0),
}


def holds(operator: str, values: Values, target: int) -> NDArray[np.bool_]:
    """Where `value operator target` is true. An operator that does not exist is true nowhere."""
    known = OPERATORS.get(operator)
    if known is None:
        return np.zeros(len(values), bool)
    return np.asarray(known.compare(values, target), bool)


def order(operator: str) -> int:
    """The order that an operator prefers; 0 for one that does not exist."""
    known = OPERATORS.get(operator)
    return known.order if known else 0
