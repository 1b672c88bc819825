"""Values of a series as arrays by node number, for arithmetic on all nodes at once."""

from collections.abc import Generator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.metrics.node_index import NodeIndex
from nodewise.metrics.node_name_json_rows import Numbers
from nodewise.metrics.series import Series, Values, ValueState, pack_samples

States = NDArray[np.uint8]


class DifferingColumn(NamedTuple):
    """The values of nodes whose series differ, as arrays."""

    numbers: Numbers
    """The numbers of the nodes."""
    lowest: NDArray[np.int64]
    highest: NDArray[np.int64]
    """Nano-units."""
    times: NDArray[np.float64]
    """Seconds since 1970 of the oldest value; NaN where the age is unknown."""


class Column(NamedTuple):
    """Arrays by node number, one entry longer than the index (see `metrics.node_index`)."""

    values: Values
    """Nano-units; int64 where every value fits, else Python integers, so comparisons are always exact."""
    times: NDArray[np.float64]
    """Seconds since 1970; NaN where the age is unknown. Only of nodes with a value; one number in memory if all of them
    were measured at the same time."""
    initial_states: States
    """`ValueState` regardless of age: FRESH, MISSING or INVALID."""
    answered_at: float = -np.inf
    """Time of the source's response, seconds since 1970; NaN if unknown, -inf for never."""
    differing: DifferingColumn | None = None
    """Of nodes that are INVALID; None if there are none."""
    is_incomplete: bool = False
    """Whether MISSING nodes may have a value: the source responded with a part of the series."""
    sample_distance_s: float | None = None
    """How far apart the samples of a node are; None if it is not known."""

    def states(self, now: float, max_age_s: float) -> States:
        """The state of each value at `now`: one older than `max_age_s` is STALE. A value of an unknown time counts as
        measured when the source responded, so that it does not stay fresh while the source fails; without either time,
        it is fresh.
        """
        old = now - np.where(np.isnan(self.times), self.answered_at, self.times) > max_age_s
        return np.where(
            old & (self.initial_states == ValueState.FRESH), np.uint8(ValueState.STALE), self.initial_states
        )

    def ages_s(self, now: float, numbers: Numbers | slice = slice(None)) -> NDArray[np.float64]:
        """Seconds since the values of these nodes were measured, never negative; NaN where unknown."""
        is_measured = self.initial_states[numbers] == ValueState.FRESH
        if self.times.strides == (0,):
            age_s = max(now - float(self.times[0]), 0.0)
            if is_measured.all():
                return np.broadcast_to(age_s, len(is_measured))
            return np.where(is_measured, age_s, np.nan)
        ages: NDArray[np.float64] = np.where(is_measured, np.maximum(now - self.times[numbers], 0.0), np.nan)
        return ages


def empty_column(index: NodeIndex) -> Column:
    """The column of a metric without values: every node is MISSING."""
    size = len(index) + 1
    return Column(
        np.zeros(size, np.int64),
        np.full(size, -np.inf),
        np.full(size, np.uint8(ValueState.MISSING), np.uint8),
    )


def build_column(series: Series, index: NodeIndex) -> Generator[None, None, Column]:
    """The column of a series; yields between parts. Samples of nodes that are not in the index are ignored.

    If a value does not fit into int64, all values are Python integers.
    """
    column = empty_column(index)._replace(answered_at=series.fetched_at or np.nan)
    samples = yield from pack_samples(series.samples)
    numbers = samples.names.numbers(index)
    yield
    if samples.nano_values.dtype == object:
        column = column._replace(values=column.values.astype(object))
    column.values[numbers] = samples.nano_values
    # a time in the future would keep a value fresh until the source returns another one
    measured = np.minimum(samples.times, series.fetched_at) if series.fetched_at else samples.times
    # usually, a source measures all nodes at the same time
    if measured.size and samples.times.strides == (0,):
        column = column._replace(times=np.broadcast_to(measured[0], len(column.times)))
    else:
        column.times[numbers] = measured
    column.initial_states[numbers] = ValueState.FRESH
    # clear the entry of the unknown node
    column.values[-1], column.initial_states[-1] = 0, ValueState.MISSING
    bad = index.numbers([node for node in series.invalid if node in index and node not in series.samples])
    column.initial_states[bad] = ValueState.INVALID
    yield
    return column._replace(
        differing=_differing_column(series, index),
        is_incomplete=bool(series.incomplete),
        sample_distance_s=series.sample_distance_s,
    )


def _differing_column(series: Series, index: NodeIndex) -> DifferingColumn | None:
    nodes = [node for node in series.differing if node in index and node not in series.samples]
    if not nodes:
        return None
    values = [series.differing[node] for node in nodes]
    return DifferingColumn(
        index.numbers(nodes),
        np.array([value.lowest for value in values], np.int64),
        np.array([value.highest for value in values], np.int64),
        np.array([np.nan if value.oldest is None else value.oldest for value in values], float),
    )
