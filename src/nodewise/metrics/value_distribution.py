"""The distribution of a metric over nodes, and a threshold that it suggests. No I/O."""

from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from math import ceil
from typing import Final, Literal, NamedTuple

from nodewise.base import quantity

Direction = Literal["above", "below"]

_DIGITS: Final = 2
"""Significant digits of a proposed threshold."""


class ValueDistribution(NamedTuple):
    """The values of a metric, of which there is at least one, in nano-units."""

    by_node: Mapping[str, int]
    ordered: Sequence[int]
    without_value: Sequence[str]
    """The nodes that have no value."""

    def percentile(self, percent: int) -> int:
        """The smallest value that so many percent of the values do not exceed (the nearest-rank method)."""
        return self.ordered[max(ceil(len(self.ordered) * percent / 100) - 1, 0)]

    def beyond(self, direction: Direction, threshold: int) -> list[str]:
        """The nodes whose value is above or below a threshold, the most extreme first."""
        sign = -1 if direction == "above" else 1
        nodes = [node for node, value in self.by_node.items() if sign * value < sign * threshold]
        return sorted(nodes, key=lambda node: (sign * self.by_node[node], node))

    def propose_threshold(self, direction: Direction) -> int:
        """The 90th percentile (below: the 10th), rounded outwards to two digits. It rejects at most a tenth of nodes.

        A metric that is 0 on most nodes, such as a number of errors, gives 0.
        """
        value = self.percentile(90) if direction == "above" else self._percentile_from_above(90)
        return _round_outwards(value, direction)

    def _percentile_from_above(self, percent: int) -> int:
        return self.ordered[-max(ceil(len(self.ordered) * percent / 100), 1)]


def distribution_of(by_node: Mapping[str, int], without_value: Sequence[str]) -> ValueDistribution:
    """The distribution of these values, of which there is at least one."""
    return ValueDistribution(by_node, sorted(by_node.values()), without_value)


def _round_outwards(value: int, direction: Direction) -> int:
    units = quantity.nano_to_decimal(value)
    if not units:
        return 0
    step = Decimal(1).scaleb(max(units.adjusted() - _DIGITS + 1, -9))
    rounding = ROUND_CEILING if direction == "above" else ROUND_FLOOR
    return int((units / step).to_integral_value(rounding) * step * quantity.NANO)
