"""Aggregates several values of one node to one, and the values of all nodes to a distribution.

Arithmetic is exact, in nano-units. Invalid values follow PromQL: `max` and `min` ignore them, `sum` and `avg` have no
result.
"""

from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from math import ceil
from typing import Final, Literal, NamedTuple

from nodewise.base import quantity
from nodewise.metrics.series import DifferingValues, Sample

SampleOrReason = Sample | str
"""A value, or the reason why the source has none."""


def reduce(entries: Sequence[SampleOrReason], aggregation: str, conflict: str) -> Sample:
    """The value of a node. ValueError with the reason if it has none.

    Without an aggregation all values must be equal; `conflict` is the reason if they differ. The time of an aggregated
    value is that of its oldest value.
    """
    if len(entries) == 1 and isinstance(entries[0], Sample):
        return entries[0]
    if aggregation:
        return _aggregate_values(entries, aggregation)
    samples = [entry for entry in entries if isinstance(entry, Sample)]
    if len({sample.value for sample in samples}) + (len(samples) < len(entries)) > 1:
        raise ValueError(conflict)
    if not samples:
        raise ValueError(entries[0])
    return max(samples, key=lambda sample: sample.at or 0.0)


def differing_values(entries: Sequence[SampleOrReason], aggregation: str) -> DifferingValues | None:
    """The range of several values of one node, for which `reduce` has no result; None if one of them is not a number,
    or too large, or if a sum is requested, which may be beyond all values.
    """
    samples = [entry for entry in entries if isinstance(entry, Sample)]
    values = [sample.value for sample in samples if abs(sample.value) < _INT64_LIMIT]
    if aggregation == "sum" or len(entries) == 1 or len(values) < len(entries):
        return None
    oldest = min((sample.at for sample in samples if sample.at is not None), default=None)
    return DifferingValues(min(values), max(values), oldest)


_INT64_LIMIT: Final = 2**63
_CONFLICT: Final = " of one node differ"
_CONFLICT_REMEDY: Final = "set aggregate: max or "
_QUERY_REMEDY: Final = "use a query "


class ValueConflict(NamedTuple):
    """That values of one node differ, and what to do."""

    text: str
    remedy: str


def conflict_text(values: str, alternative: str, where: str = "") -> str:
    """Why a value is invalid: `2 series of one node differ in label "core": set aggregate: max or use a query`.

    `values` are `2 series`, `where` is ` in label "core"`, and `alternative` is the remedy besides `aggregate`.
    """
    return f"{values}{_CONFLICT}{where}: {_CONFLICT_REMEDY}{alternative}"


def conflict_of_device(why: str) -> str:
    """The text of `conflict_text` for the series of a device, and any other reason as it is."""
    return why.replace(_CONFLICT, _CONFLICT.replace("node", "device"), 1)


def query_conflict_text(values: str, where: str, remedy: str) -> str:
    """The same where no aggregation helps, because the values are not of one node; `remedy` describes a query."""
    return f"{values}{_CONFLICT}{where}: {_QUERY_REMEDY}{remedy}"


def split_conflict(why: str) -> ValueConflict | None:
    """The parts of a text of the functions above; None for any other reason why a value is invalid."""
    for beginning in (_CONFLICT_REMEDY, _QUERY_REMEDY):
        text, _, rest = why.rpartition(f": {beginning}")
        if _CONFLICT in text:
            return ValueConflict(text, f"{beginning}{rest}")
    return None


def _aggregate_values(entries: Sequence[SampleOrReason], aggregation: str) -> Sample:
    samples = [entry for entry in entries if isinstance(entry, Sample)]
    unreadable = next((entry for entry in entries if isinstance(entry, str)), "")
    if not samples or (unreadable and aggregation in ("sum", "avg")):
        raise ValueError(unreadable)
    values = [sample.value for sample in samples]
    oldest = min((sample.at for sample in samples if sample.at is not None), default=None)
    return Sample(_REDUCE[aggregation](values), oldest, max(sample.window_s for sample in samples))


_REDUCE: Final[Mapping[str, Callable[[Sequence[int]], int]]] = {
    "max": max,
    "min": min,
    "sum": sum,
    "avg": lambda values: (2 * sum(values) + len(values)) // (2 * len(values)),  # a half is rounded up
}


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
        tenth = self.ordered[-max(ceil(len(self.ordered) * 90 / 100), 1)]
        return _round_outwards(self.percentile(90) if direction == "above" else tenth, direction)


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
