"""The operators of policies. A rule is broken where `value operator target` is true.

Comparisons are exact. Source of the names in a TASPolicy: Telemetry Aware Scheduling 0.7, `core/operator.go`.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.metrics.series import Values
from nodewise.policies.placement_policy import PolicyKind


class Operator(NamedTuple):
    """The two uses of an operator."""

    compare: np.ufunc
    """As the condition of a rule."""
    order: int
    """As a preference: 1 for small values first, -1 for large ones, 0 for no order. Of several values that meet the
    same operator, the most extreme one is the largest for -1 and the smallest for 1."""


OPERATORS: Final[Mapping[str, Operator]] = {
    "above": Operator(np.greater, -1),
    "atLeast": Operator(np.greater_equal, -1),
    "below": Operator(np.less, 1),
    "atMost": Operator(np.less_equal, 1),
    "equals": Operator(np.equal, 0),
    "notEquals": Operator(np.not_equal, 0),
}

TASPOLICY_OPERATORS: Final[Mapping[str, str]] = {
    "LessThan": "below",
    "GreaterThan": "above",
    "Equals": "equals",
}
"""The operators of a TASPolicy, and their names in `OPERATORS`."""
_TASPOLICY_NAMES: Final = {operator: name for name, operator in TASPOLICY_OPERATORS.items()}


def written_operator(operator: str, kind: PolicyKind) -> str:
    """The operator as a policy of this kind writes it."""
    return _TASPOLICY_NAMES.get(operator, operator) if kind == "TASPolicy" else operator


def compare(operator: str, values: Values, target: int) -> NDArray[np.bool_]:
    """Where `value operator target` is true. An operator that does not exist is true nowhere."""
    entry = OPERATORS.get(operator)
    if entry is None:
        return np.zeros(len(values), bool)
    return np.asarray(entry.compare(values, target), bool)


def compare_all(
    operator: str, lowest: NDArray[np.int64], highest: NDArray[np.int64], target: int
) -> NDArray[np.bool_]:
    """Where all values of a range are certain to meet `value operator target`."""
    if operator == "notEquals":
        return compare("above", lowest, target) | compare("below", highest, target)
    return compare(operator, lowest, target) & compare(operator, highest, target)


def sort_direction(operator: str) -> int:
    """The `Operator.order` of an operator; 0 for one that does not exist."""
    entry = OPERATORS.get(operator)
    return entry.order if entry else 0
