"""The values of a metric by time and node, from responses to range queries, and all samples of a range such as
`expression[1d:5m]`, from an instant query. No I/O.

All values of a range query are at the times of a grid, so that they fit into one array of shape (steps, nodes).
"""

import math
from collections.abc import Generator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.base import cooperative_scheduling, quantity
from nodewise.base.errors import UNREADABLE
from nodewise.metrics.node_attributes import NodeAttributes
from nodewise.metrics.node_index import NodeIndex
from nodewise.metrics.prometheus import node_matching
from nodewise.metrics.prometheus.node_matching import SeriesLabels, SeriesOwners
from nodewise.metrics.prometheus.query_responses import QueryResponse, SeriesValue
from nodewise.metrics.series import Floats, States, Values, ValueState

_NANO: Final = 1e9
_MAX_EXACT: Final = float(2**21)
"""Below, a float times 1e9 is closer than 0.25 to its exact product, so that rounding finds the nano-unit."""
_PRODUCT_ERROR: Final = 2.0**-52
"""Twice the largest relative error of a product."""
_MAX_UNITS: Final = 1e247
"""Larger numbers are no quantities."""
_INT64_LIMIT: Final = 2**63
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


class DifferingEntries(NamedTuple):
    """The values of nodes whose series differ, one entry for each time and node, in the order of times."""

    steps: NDArray[np.intp]
    nodes: NDArray[np.intp]
    lowest: NDArray[np.int64]
    highest: NDArray[np.int64]
    """Nano-units."""

    def part(self, first: int, end: int) -> "DifferingEntries":
        """Those of the steps from `first` to before `end`; their steps count from `first`."""
        within = slice(*np.searchsorted(self.steps, [first, end]).tolist())
        part = DifferingEntries(*(column[within] for column in self))
        return part._replace(steps=part.steps - first)

    def mask(self, shape: tuple[int, ...]) -> NDArray[np.bool_]:
        """Where there are entries, of shape (steps, nodes)."""
        mask = np.zeros(shape, bool)
        mask[self.steps, self.nodes] = True
        return mask


_NO_ENTRIES: Final = DifferingEntries(
    np.zeros(0, np.intp), np.zeros(0, np.intp), np.zeros(0, np.int64), np.zeros(0, np.int64)
)


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
    differing: DifferingEntries = _NO_ENTRIES
    """Of nodes that are INVALID."""
    devices: tuple[str, ...] | None = None
    """The columns of a metric of devices, as in `MetricRequest.device_label`, sorted; None for columns of nodes."""

    def since(self, step: int) -> "NodeMatrix":
        """The matrix from this step on."""
        differing = self.differing.part(step, len(self.states))
        return self._replace(values=self.values[step:], states=self.states[step:], differing=differing)


class _RangeSeries(msgspec.Struct, frozen=True, gc=False):
    metric: dict[str, str] = {}
    values: msgspec.Raw = msgspec.Raw()


_decode_series: Final = msgspec.json.Decoder(_RangeSeries).decode
# lax: numbers in quotes are numbers
_decode_values: Final = msgspec.json.Decoder(list[tuple[float, float]], strict=False).decode


def build_matrix(  # complexity: series of nodes and of devices
    answer: QueryResponse,
    grid: TimeGrid,
    labels: SeriesLabels,
    attributes: NodeAttributes,
    nodes: NodeIndex | str,
    aggregate: str = "",
    max_age_s: float = 0.0,
) -> NodeMatrix:
    """The values of each node at each time; several series of a node become one value as in `metrics.aggregation`.

    In place of nodes, `nodes` may be the label that identifies devices (`MetricRequest.device_label`).

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
    owners = cooperative_scheduling.run_without_pauses(node_matching.match_series(series, labels, attributes))
    device_label, devices = "", None
    if isinstance(nodes, str):
        device_label, owners = nodes, _device_owners(series, owners, nodes, labels)
        devices = tuple(sorted({key for key in owners.nodes if key is not None}))
        nodes = NodeIndex(devices)
    by_node: dict[int, dict[frozenset[tuple[str, str]], Floats]] = {}
    unmatched: set[str] = set()
    # the same replica counts at every time at which it has a value
    in_order = sorted(
        zip(series, rows, owners.nodes, strict=True), key=lambda entry: sorted(entry[0].labels.items())
    )
    for item, row, owner in in_order:
        if owner is not None and owner in nodes:
            own = by_node.setdefault(int(nodes.numbers([owner])[0]), {})
            identity = node_matching.series_identity(item, labels.replica)
            own[identity] = np.where(own[identity] == _ABSENT, row, own[identity]) if identity in own else row
        else:
            named = () if device_label else map(item.labels.get, labels.node)
            text = next(filter(None, named), f"a series without {device_label or 'a node label'}")
            unmatched.add(text)
    rows_by_node = {node: list(own.values()) for node, own in by_node.items()}
    unclear = nodes.numbers([node for node in owners.conflicts if node in nodes]).tolist()
    matrix = _fill_matrix(rows_by_node, (grid.steps, len(nodes)), aggregate, frozenset(unclear))
    return matrix._replace(unmatched=frozenset(unmatched), incomplete=answer.incomplete, devices=devices)


def _device_owners(
    series: Sequence[SeriesValue], owners: SeriesOwners, device_label: str, labels: SeriesLabels
) -> SeriesOwners:
    """The device of each series, in place of the node."""
    pairs = list(zip(series, owners.nodes, strict=True))
    keys = [node_matching.device_key(item, node, device_label, labels) for item, node in pairs]
    of_nodes = zip(keys, owners.nodes, strict=True)
    conflicts = {
        key: owners.conflicts[node] for key, node in of_nodes if key and node and node in owners.conflicts
    }
    return SeriesOwners(keys, conflicts, frozenset())


_ABSENT: Final = np.nextafter(np.inf, 0.0)
"""The number that stands for no value: the largest float, which no metric has."""


def _row(points: Sequence[tuple[float, float]], grid: TimeGrid) -> Floats:
    row = np.full(grid.steps, _ABSENT)
    # faster than an array of the tuples
    pairs = np.fromiter(chain.from_iterable(points), np.float64, 2 * len(points)).reshape(-1, 2)
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
    by_node: dict[int, list[Floats]], shape: tuple[int, int], aggregate: str, unclear: frozenset[int]
) -> NodeMatrix:
    """`unclear` are the nodes whose series cannot be reduced to one value, whatever `aggregate` is."""
    floats = np.full(shape, _ABSENT)
    for node, rows in by_node.items():
        floats[:, node] = rows[0]
    states = np.full(floats.shape, np.uint8(ValueState.FRESH), np.uint8)
    states[~(np.abs(floats) < _MAX_UNITS)] = ValueState.INVALID
    states[floats == _ABSENT] = ValueState.MISSING
    floats[states != ValueState.FRESH] = 0.0
    values = nano_values(floats)
    several = {node: rows for node, rows in by_node.items() if len(rows) > 1 or node in unclear}
    reduced = {
        node: _reduce(np.stack(rows, axis=1), aggregate, is_unclear=node in unclear)
        for node, rows in several.items()
    }
    if any(own.values.dtype == object for own in reduced.values()):
        values = values.astype(object)
    for node, own in reduced.items():
        values[:, node], states[:, node] = own.values, own.states
    return NodeMatrix(values, states, bool(several), differing=_differing_entries(reduced))


class _ReducedSeries(NamedTuple):
    """The value of one node at each time, from several series."""

    values: Values
    states: States
    differs: NDArray[np.bool_]
    """Where it has no value although each series has one (`aggregation.differing_values`)."""
    lowest: Values
    highest: Values


def _differing_entries(reduced: Mapping[int, _ReducedSeries]) -> DifferingEntries:
    columns = [
        (steps, np.full(len(steps), node), own.lowest[steps], own.highest[steps])
        for node, own in reduced.items()
        if len(steps := np.flatnonzero(own.differs))
    ]
    if not columns:
        return _NO_ENTRIES
    steps, nodes, lowest, highest = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    order = np.argsort(steps, kind="stable")
    return DifferingEntries(
        steps[order], nodes[order], lowest[order].astype(np.int64), highest[order].astype(np.int64)
    )


def _reduce(floats: Floats, aggregate: str, *, is_unclear: bool) -> _ReducedSeries:
    """The value of one node at each time, from series in columns."""
    present = floats != _ABSENT
    valid = present & (np.abs(floats) < _MAX_UNITS)
    values = nano_values(np.where(valid, floats, 0.0))
    count, present_count = valid.sum(axis=1), present.sum(axis=1)
    is_usable = (count > 0) & ((aggregate in ("max", "min")) | (count == present_count))
    # where no value is valid, any number
    low, high = values.min(), values.max()
    largest = np.where(valid, values, low).max(axis=1)
    smallest = np.where(valid, values, high).min(axis=1)
    if aggregate in ("sum", "avg"):
        result = values.astype(object).sum(axis=1)  # sums of values that fit into int64 may not
        if aggregate == "avg":
            result = (2 * result + count) // np.maximum(2 * count, 1)
    else:
        result = smallest if aggregate == "min" else largest
        if not aggregate:
            is_usable &= largest == smallest
    if is_unclear:
        is_usable &= (present_count == 1) & (floats.shape[1] > 1)
    states = np.where(is_usable, np.uint8(ValueState.FRESH), np.uint8(ValueState.INVALID))
    states[~present.any(axis=1)] = ValueState.MISSING
    result = np.where(states == ValueState.FRESH, result, 0)
    is_small = np.asarray((smallest > -_INT64_LIMIT) & (largest < _INT64_LIMIT), bool)
    # a sum may be beyond all values
    differs = ~is_usable & is_small & (count > 1) & (count == present_count) & (aggregate != "sum")
    return _ReducedSeries(
        narrow(result) if result.dtype == object else result, states, differs, smallest, largest
    )


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


def stack(parts: Sequence[NodeMatrix]) -> NodeMatrix:  # complexity: one case for each field
    """Matrices of consecutive times as one."""
    if len(parts) == 1:
        return parts[0]
    devices = parts[0].devices
    if devices is not None:
        devices = tuple(sorted(set(chain.from_iterable(part.devices or () for part in parts))))
        parts = [_with_columns(part, NodeIndex(devices)) for part in parts]
    offsets = np.cumsum([0, *(len(part.states) for part in parts[:-1])])
    differing = [
        part.differing._replace(steps=part.differing.steps + offset)
        for part, offset in zip(parts, offsets, strict=True)
    ]
    return NodeMatrix(
        np.concatenate([part.values for part in parts]),
        np.concatenate([part.states for part in parts]),
        any(part.has_several_series for part in parts),
        frozenset(chain.from_iterable(part.unmatched for part in parts)),
        next((part.incomplete for part in parts if part.incomplete), ""),
        differing=DifferingEntries(*map(np.concatenate, zip(*differing, strict=True))),
        devices=devices,
    )


def _with_columns(part: NodeMatrix, devices: NodeIndex) -> NodeMatrix:
    """The matrix with columns for further devices, which have no values."""
    at = devices.numbers(part.devices or ())
    shape = len(part.states), len(devices)
    values: Values = np.zeros(shape, object if part.values.dtype == object else np.int64)
    states = np.full(shape, ValueState.MISSING, part.states.dtype)
    values[:, at], states[:, at] = part.values, part.states
    differing = part.differing._replace(nodes=at[part.differing.nodes])
    return part._replace(values=values, states=states, differing=differing)


class _SampledSeries(msgspec.Struct, frozen=True, gc=False):
    metric: dict[str, str] = {}
    values: list[tuple[float, str]] = []


_decode_samples: Final = msgspec.json.Decoder(_SampledSeries).decode

Points = NDArray[np.float64]
"""One row per sample, oldest first: seconds since 1970, value. Only finite values."""


def samples_by_node(
    answer: QueryResponse, labels: SeriesLabels, nodes: NodeAttributes
) -> Generator[None, None, dict[str, Points]]:
    """The samples of each node; yields between series.

    All series of a node count, for example those of a restarted exporter; of two samples of the same time the last. A
    node of which it is not clear which series are meant has none.
    """
    ranges: list[tuple[SeriesValue, Points]] = []
    for raw in answer.series:
        try:
            series = _decode_samples(raw)
            points = np.array(series.values, np.float64).reshape(-1, 2)
        except UNREADABLE:
            continue
        ranges.append((SeriesValue(series.metric, "", None), points[np.isfinite(points[:, 1])]))
        yield
    owners = yield from node_matching.match_series([item for item, _ in ranges], labels, nodes)
    merged: dict[str, Points] = {}
    for (_, points), node in zip(ranges, owners.nodes, strict=True):
        if node is not None and node not in owners.conflicts and points.size:
            both = np.concatenate((points, merged.get(node, points[:0])))
            _, places = np.unique(both[:, 0], return_index=True)
            merged[node] = both[places]
        yield
    return merged
