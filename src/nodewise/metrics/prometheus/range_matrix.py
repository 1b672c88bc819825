"""The values of a metric by time and node, from responses to range queries. No I/O.

All values of a range query are at the times of a grid, so that they fit into one array of shape (steps, nodes).
"""

import math
from collections.abc import Sequence
from itertools import chain
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise import cooperative_scheduling, quantity
from nodewise.errors import UNREADABLE
from nodewise.metrics.node_attributes import NodeAttributes
from nodewise.metrics.node_index import NodeIndex
from nodewise.metrics.prometheus import series_owners
from nodewise.metrics.prometheus.query_responses import QueryResponse, SeriesValue
from nodewise.metrics.prometheus.series_labels import SeriesLabels
from nodewise.metrics.series import Floats, Values, ValueState
from nodewise.metrics.series_arrays import States

_NANO: Final = 1e9
_MAX_EXACT: Final = float(2**21)
"""Below, a float times 1e9 is closer than 0.25 to its exact product, so that rounding finds the nano-unit."""
_PRODUCT_ERROR: Final = 2.0**-52
"""Twice the largest relative error of a product."""
_MAX_UNITS: Final = 1e247
"""Larger numbers are no quantities."""
_MAX_INT64_UNITS: Final = 9.2e9
"""Larger values do not fit into int64 as nano-units."""


class TimeGrid(NamedTuple):
    """Equidistant times."""

    start: float
    """Seconds since 1970."""
    step_s: float
    steps: int

    @property
    def times(self) -> Floats:
        return self.start + self.step_s * np.arange(self.steps, dtype=np.float64)

    @property
    def end(self) -> float:
        """The last time; the start if there is none."""
        return self.start + self.step_s * max(self.steps - 1, 0)

    def part(self, first: int, steps: int) -> "TimeGrid":
        """Up to so many times, from the one with this position."""
        return TimeGrid(self.start + first * self.step_s, self.step_s, min(steps, self.steps - first))


class NodeMatrix(NamedTuple):
    """The values of one metric, of shape (steps, nodes)."""

    values: Values
    """Nano-units, exact; 0 where the state is not FRESH."""
    states: States
    """`ValueState`: FRESH, MISSING or INVALID."""
    has_several_series: bool = False
    """Whether a node has several series."""
    unmatched: frozenset[str] = frozenset()
    """Series of none of the nodes, by the first label that should name one."""
    incomplete: str = ""
    """Why series or samples may be missing; empty if none are."""
    sample_distance_s: float | None = None
    """How far apart the samples of a node are; None if it is not known."""


class _RangeSeries(msgspec.Struct, frozen=True, gc=False):
    metric: dict[str, str] = {}
    values: msgspec.Raw = msgspec.Raw()


_decode_series: Final = msgspec.json.Decoder(_RangeSeries).decode
# lax: numbers in quotes are numbers
_decode_values: Final = msgspec.json.Decoder(list[tuple[float, float]], strict=False).decode


def build_matrix(
    answer: QueryResponse,
    grid: TimeGrid,
    labels: SeriesLabels,
    attributes: NodeAttributes,
    nodes: NodeIndex,
    aggregate: str = "",
    max_age_s: float = 0.0,
) -> NodeMatrix:
    """The values of each node at each time; several series of a node become one value as in `metrics.aggregation`.

    In place of NaN, a series has its value of less than `max_age_s` before, as in `query_responses.newest_values`.
    """
    series: list[SeriesValue] = []
    rows: list[Floats] = []
    for raw in answer.series:
        try:
            decoded = _decode_series(raw)
            points = _decode_values(bytes(decoded.values).replace(b'"+Inf"', b'"Inf"'))
        except UNREADABLE:  # a series of histograms, for example
            continue
        series.append(SeriesValue(decoded.metric, "", None))
        rows.append(_hold_before_nan(_row(points, grid), math.ceil(max_age_s / grid.step_s) - 1))
    owners = cooperative_scheduling.run_without_pauses(series_owners.match_series(series, labels, attributes))
    by_node: dict[int, dict[frozenset[tuple[str, str]], Floats]] = {}
    unmatched: set[str] = set()
    # the same replica counts at every time at which it has a value
    in_order = sorted(
        zip(series, rows, owners.nodes, strict=True), key=lambda entry: sorted(entry[0].labels.items())
    )
    for item, row, owner in in_order:
        if owner is not None and owner in nodes:
            own = by_node.setdefault(int(nodes.numbers([owner])[0]), {})
            identity = series_owners.identity(item, labels.replica)
            own[identity] = np.where(own[identity] == _ABSENT, row, own[identity]) if identity in own else row
        else:
            text = next(filter(None, map(item.labels.get, labels.node)), "a series without a node label")
            unmatched.add(text)
    rows_by_node = {node: list(own.values()) for node, own in by_node.items()}
    matrix = _fill_matrix(rows_by_node, grid.steps, len(nodes), aggregate)
    unclear = nodes.numbers([node for node in owners.conflicts if node in nodes])
    matrix.values[:, unclear] = 0
    matrix.states[:, unclear] = ValueState.INVALID
    return matrix._replace(unmatched=frozenset(unmatched), incomplete=answer.incomplete)


_ABSENT: Final = np.nextafter(np.inf, 0.0)
"""The number that stands for no value: the largest float, which no metric has."""


def _row(points: Sequence[tuple[float, float]], grid: TimeGrid) -> Floats:
    row = np.full(grid.steps, _ABSENT)
    pairs = np.array(points, np.float64).reshape(-1, 2)
    steps = np.rint((pairs[:, 0] - grid.start) / grid.step_s).astype(np.intp)
    inside = (steps >= 0) & (steps < grid.steps)
    row[steps[inside]] = pairs[inside, 1]
    return row


def _hold_before_nan(row: Floats, max_steps: int) -> Floats:
    """The row with the last number in place of NaN, for up to so many steps."""
    if max_steps <= 0 or not np.isnan(row).any():
        return row
    is_number = ~np.isnan(row) & (row != _ABSENT)
    steps = np.arange(len(row))
    last = np.maximum.accumulate(np.where(is_number, steps, -1))
    is_held = np.isnan(row) & (last >= 0) & (steps - last <= max_steps)
    return np.where(is_held, row[last], row)


def _fill_matrix(
    by_node: dict[int, list[Floats]], step_count: int, node_count: int, aggregate: str
) -> NodeMatrix:
    floats = np.full((step_count, node_count), _ABSENT)
    for node, rows in by_node.items():
        floats[:, node] = rows[0]
    states = np.full(floats.shape, np.uint8(ValueState.FRESH), np.uint8)
    states[~(np.abs(floats) < _MAX_UNITS)] = ValueState.INVALID
    states[floats == _ABSENT] = ValueState.MISSING
    floats[states != ValueState.FRESH] = 0.0
    values = nano_values(floats)
    several = {node: rows for node, rows in by_node.items() if len(rows) > 1}
    reduced = {node: _reduce(np.stack(rows, axis=1), aggregate) for node, rows in several.items()}
    if any(column.dtype == object for column, _ in reduced.values()):
        values = values.astype(object)
    for node, (column, column_states) in reduced.items():
        values[:, node], states[:, node] = column, column_states
    return NodeMatrix(values, states, bool(several))


def _reduce(floats: Floats, aggregate: str) -> tuple[Values, States]:
    """The value of one node at each time, from series in columns."""
    present = floats != _ABSENT
    valid = present & (np.abs(floats) < _MAX_UNITS)
    values = nano_values(np.where(valid, floats, 0.0))
    count = valid.sum(axis=1)
    is_usable = (count > 0) & ((aggregate in ("max", "min")) | (count == present.sum(axis=1)))
    if aggregate in ("sum", "avg"):
        result = values.astype(object).sum(axis=1)  # sums of values that fit into int64 may not
        if aggregate == "avg":
            result = (2 * result + count) // np.maximum(2 * count, 1)
    else:
        largest, smallest = _extremes(values, valid)
        result = smallest if aggregate == "min" else largest
        if not aggregate:
            is_usable &= largest == smallest
    states = np.where(is_usable, np.uint8(ValueState.FRESH), np.uint8(ValueState.INVALID))
    states[~present.any(axis=1)] = ValueState.MISSING
    result = np.where(states == ValueState.FRESH, result, 0)
    return (narrow(result) if result.dtype == object else result), states


def _extremes(values: Values, valid: NDArray[np.bool_]) -> tuple[Values, Values]:
    """The largest and the smallest valid value of each row; where there is none, any number."""
    low, high = values.min(), values.max()
    return np.where(valid, values, low).max(axis=1), np.where(valid, values, high).min(axis=1)


def nano_values(floats: Floats) -> Values:
    """The exact nano-units of quantities, as of the shortest text of each, which is what Prometheus writes.

    int64 where every value fits, else Python integers.
    """
    sizes = np.abs(floats)
    if sizes.size and sizes.max() >= _MAX_INT64_UNITS:
        unique, inverse = np.unique(floats, return_inverse=True)
        exact = np.array([_exact_nano(number) for number in unique.tolist()], object)
        return exact[inverse].reshape(floats.shape)
    products = floats * _NANO
    rounded = np.rint(products)
    nano: NDArray[np.int64] = rounded.astype(np.int64)
    whole = np.trunc(floats)
    is_whole = whole == floats
    np.copyto(nano, whole.astype(np.int64) * quantity.NANO, where=is_whole)
    # a number finer than a nano-unit is rounded away from zero, unless its product is too close to a nano-unit to tell
    is_finer = ~is_whole & (rounded / _NANO != floats)
    np.copyto(nano, (np.sign(products) * np.ceil(np.abs(products))).astype(np.int64), where=is_finer)
    is_close = is_finer & (np.abs(products - rounded) <= np.abs(products) * _PRODUCT_ERROR)
    is_unknown = is_close | (~is_whole & (sizes >= _MAX_EXACT))
    nano[is_unknown] = [_exact_nano(number) for number in floats[is_unknown].tolist()]
    return nano


def _exact_nano(number: float) -> int:
    return quantity.parse(repr(number))


def narrow(values: Values) -> Values:
    """The same values as int64, if they fit."""
    try:
        return values.astype(np.int64)
    except OverflowError:
        return values


def stack(parts: Sequence[NodeMatrix]) -> NodeMatrix:
    """Matrices of consecutive times as one."""
    if len(parts) == 1:
        return parts[0]
    return NodeMatrix(
        np.concatenate([part.values for part in parts]),
        np.concatenate([part.states for part in parts]),
        any(part.has_several_series for part in parts),
        frozenset(chain.from_iterable(part.unmatched for part in parts)),
        next((part.incomplete for part in parts if part.incomplete), ""),
    )
