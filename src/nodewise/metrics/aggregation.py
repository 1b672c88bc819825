"""Aggregates several values of one node to one.

Arithmetic is exact, in nano-units. Invalid values follow PromQL: `max` and `min` ignore them, `sum` and `avg` have no
result.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from nodewise.metrics.series import DifferingValues, Sample

AGGREGATIONS: Final = ("max", "min", "sum", "avg")

SampleOrReason = Sample | str
"""A value, or the reason why the source has none."""


def reduce(entries: Sequence[SampleOrReason], aggregation: str, conflict: str) -> Sample:
    """The value of a node. ValueError with the reason if it has none.

    Without an aggregation all values must be equal; `conflict` is the reason if they differ. The time of an aggregated
    value is that of its oldest value.
    """
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


def _average(values: Sequence[int]) -> int:
    """The mean to the nearest nano-unit; a half is rounded up."""
    return (2 * sum(values) + len(values)) // (2 * len(values))


_REDUCE: Final[Mapping[str, Callable[[Sequence[int]], int]]] = {
    "max": max,
    "min": min,
    "sum": sum,
    "avg": _average,
}
