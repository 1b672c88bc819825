"""The series of one metric from one source: a value for each node, with time and window; the same as arrays by node
number; and the distance of its samples, from which the maximum age of its values follows.

A value gets as old as the scrape interval before the next one arrives, and twice as old if a scrape fails. So the
maximum age of a rule without its own is 2.5 distances, but at least the default of the settings (60 s), and at most
`MAX_DERIVED_S`: a metric with one sample per hour must not count as fresh for hours unless its rule says so.

The distance is that of one metric, not of one node: in nine of ten nodes, samples are at most this far apart. A single
exporter that is scraped rarely, or fails often, does not make the values of all others count for longer; the states of
its node are held in its gaps (`nodewise.policies.rule_evaluation`).

Prometheus responds with several samples of a series, whose times give the distance in every response
(`Series.is_distance_measured`). While they do not, it is asked for `LOOKBACK_S`, and samples that are older than the
maximum age are left out. Of other sources the distance follows from the times of successive responses: the smaller one
of the last two, so that one gap does not count. A source without sample times has no distance.
"""

from bisect import bisect_left
from collections.abc import Container, Generator, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from enum import IntEnum
from itertools import pairwise, repeat
from math import isnan
from operator import lt
from sys import intern
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.metrics.node_index import NodeIndex, Numbers

Values = NDArray[np.int64] | NDArray[np.object_]
Floats = NDArray[np.float64]

LOOKBACK_S: Final = 600.0
"""How far back a source looks for samples while the distance is not known. Samples that are further apart have none,
unless the maximum age of a rule is longer."""
MAX_DERIVED_S: Final = 600.0
"""The longest maximum age that follows from a distance."""
COUNTED: Final = 3
"""The samples of a series whose distances count."""
_DISTANCES: Final = 2.5
"""The maximum age, in distances."""
_NEAR: Final = 1.5
"""A maximum age of less than this many distances is too short: between two samples, or after one failed scrape, most
nodes have no value."""
_FINE_S: Final = 10.0
"""Below, distances are whole seconds."""
_SHARE: Final = 0.9
"""The share of nodes whose samples are at most the distance apart."""


def derived_max_age_s(default_s: float, distance_s: float | None) -> float:
    """The maximum age of values for a rule without its own; `default_s` is that of the settings."""
    derived_s = 0.0 if distance_s is None else min(sufficient_max_age_s(distance_s), MAX_DERIVED_S)
    return max(default_s, derived_s)


def sufficient_max_age_s(distance_s: float) -> float:
    """The maximum age with which a failed scrape leaves no node without a value."""
    return _DISTANCES * distance_s


def is_near(max_age_s: float, distance_s: float | None) -> bool:
    """Whether the distance of samples is near or above a maximum age, so that values are missing between samples."""
    return distance_s is not None and max_age_s < _NEAR * distance_s


def newest_distance_s(newest_times: Sequence[float]) -> float | None:
    """The distance of the newest samples of a series, given the times of its last samples (`COUNTED`), in any order.

    The smaller one of two distances counts: the other one may have a failed scrape in it.
    """
    times = sorted(newest_times)
    distances = [later - earlier for earlier, later in pairwise(times) if later > earlier]
    return min(distances, default=None)


def typical_distance_s(distances: Iterable[float] | Floats) -> float | None:
    """The distance of a metric in seconds, from those of its nodes; None for none.

    It is rounded to 5 s, or to 1 s below 10 s, so that the jitter of scrapes changes neither verdicts nor messages.
    """
    known = distances if isinstance(distances, np.ndarray) else np.fromiter(distances, float)
    known = known[np.isfinite(known)]  # a server may send any times
    if not len(known):
        return None
    distance_s = float(np.quantile(known, _SHARE, method="higher"))
    step_s = 1.0 if distance_s < _FINE_S else 5.0
    return max(round(distance_s / step_s) * step_s, 1.0)


def is_distance_known(known_count: int, node_count: int) -> bool:
    """Whether a response shows the distance: those of at least half of its nodes are known."""
    return bool(known_count) and 2 * known_count >= node_count


def successive_distance_s(
    observed_s: float | None, last_observed_s: float | None, distance_s: float | None
) -> float | None:
    """The distance after one more response of a source with one sample per node.

    `observed_s` is the distance between the newest samples and those before, `last_observed_s` the one of the last
    response with new samples, and `distance_s` the known one.
    """
    if observed_s is None:
        return distance_s
    if last_observed_s is None:
        return observed_s if distance_s is None else distance_s
    return min(observed_s, last_observed_s)


class ValueState(IntEnum):
    """The state of a value. Only FRESH values are compared by rules."""

    FRESH = 0
    STALE = 1
    """Older than the rule's max age."""
    MISSING = 2
    """The source has no value for this node."""
    INVALID = 3
    """The source returned something that is not a quantity."""


class Sample(msgspec.Struct, frozen=True, gc=False):
    """The value of one node in nano-units, with its time and window."""

    value: int
    at: float | None
    """Seconds since 1970; None if unknown, which counts as just measured."""
    window_s: float = 60.0


class DifferingValues(NamedTuple):
    """The values of a node whose series differ, so that it has no value. A rule that all of them meet rejects it."""

    lowest: int
    highest: int
    """Nano-units, within int64."""
    oldest: float | None
    """Seconds since 1970; None if unknown, which counts as just measured."""


class NodeNames:
    """The names of the nodes of a series, sorted. Series of the same nodes share one object."""

    __slots__ = ("__weakref__", "_index", "_numbers", "_positions", "names")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names: Final = names
        self._index: NodeIndex | None = None
        self._numbers: Numbers = np.empty(0, np.intp)
        self._positions: dict[str, int] | None = None

    def numbers(self, index: NodeIndex) -> Numbers:
        """The number of each node in an index, computed once for all metrics."""
        if self._index is not index:
            self._index, self._numbers = index, index.numbers(self.names)
        return self._numbers

    def set_numbers(self, index: NodeIndex, numbers: Numbers) -> None:
        """Tell the numbers of the nodes in an index, where they are known."""
        self._index, self._numbers = index, numbers

    def positions(self, nodes: Sequence[str]) -> Generator[None, None, Numbers]:
        """The position of each of these nodes; -1 for an unknown one. Yields between parts."""
        if self._positions is None:
            by_name: dict[str, int] = {}
            for start in range(0, len(self.names), _PART):
                part = self.names[start : start + _PART]
                by_name.update(zip(part, range(start, start + len(part)), strict=True))
                yield
            self._positions = by_name
        positions = [np.empty(0, np.intp)]
        for start in range(0, len(nodes), _PART):
            part = tuple(nodes[start : start + _PART])
            positions.append(np.fromiter(map(self._positions.get, part, repeat(-1)), np.intp, len(part)))
            yield
        return np.concatenate(positions)


_shared_names: WeakValueDictionary[tuple[int, int], NodeNames] = WeakValueDictionary()
"""By their number and the sum of their hashes, which do not depend on the order."""


class Samples(Mapping[str, Sample]):
    """The samples of a series by node name, in sorted order and as arrays.

    A metric of 5,000 nodes takes 0.1 MB; a dict of samples would take 0.9 MB.
    """

    __slots__ = ("names", "nano_values", "times", "windows_s")

    def __init__(self, names: NodeNames, nano_values: Values, times: Floats, windows_s: Floats) -> None:
        """The arrays have one entry for each name."""
        self.names: Final = names
        self.nano_values: Final = nano_values
        """int64 where every value fits, else Python integers."""
        self.times: Final = _without_repetition(times)
        """Seconds since 1970; NaN where unknown."""
        self.windows_s: Final = _without_repetition(windows_s)

    def __getitem__(self, node: str) -> Sample:
        names = self.names.names
        at = bisect_left(names, node)
        if at == len(names) or names[at] != node:
            raise KeyError(node)
        return next(self._iterate(slice(at, at + 1)))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names.names)

    def __len__(self) -> int:
        return len(self.names.names)

    def values(self) -> ValuesView[Sample]:
        return _SampleValues(self)

    def items(self) -> ItemsView[str, Sample]:
        return _SampleItems(self)

    def column(self, field: str) -> list[Any]:
        """One field of all samples, in the order of the nodes. It takes a tenth of the time of creating the samples."""
        columns: dict[str, NDArray[Any]] = {
            "value": self.nano_values,
            "at": self.times,
            "window_s": self.windows_s,
        }
        values: list[Any] = columns[field].tolist()
        if field == "at" and np.isnan(self.times).any():
            return [None if isnan(time) else time for time in values]
        return values

    def _iterate(self, part: slice = slice(None)) -> Iterator[Sample]:
        times = (None if np.isnan(time) else time for time in self.times[part].tolist())
        return map(Sample, self.nano_values[part].tolist(), times, self.windows_s[part].tolist())


class _SampleValues(ValuesView[Sample]):
    """The samples, without looking up each by its name."""

    _mapping: Samples

    def __iter__(self) -> Iterator[Sample]:
        return self._mapping._iterate()  # noqa: SLF001 - its own view


class _SampleItems(ItemsView[str, Sample]):
    """The names and samples, likewise."""

    _mapping: Samples

    def __iter__(self) -> Iterator[tuple[str, Sample]]:
        return zip(self._mapping, self._mapping.values(), strict=True)


class Series(msgspec.Struct, frozen=True):
    """One metric from one source."""

    metric: str
    """`MetricRequest.key`."""
    source: str
    fetched_at: float
    """Seconds since 1970 by the local clock."""
    samples: Mapping[str, Sample]
    """By node name; `Samples` where the series is kept."""
    invalid: dict[str, str] = {}
    """By node name, the reason why the value is invalid."""
    differing: dict[str, DifferingValues] = {}
    """By node name, for some of `invalid`."""
    unmatched: tuple[str, ...] = ()
    """Some names of hosts in series of no node."""
    incomplete: str = ""
    """Why nodes may lack samples that exist, escaped and bounded; empty if the response is complete."""
    sample_distance_s: float | None = None
    """How far apart the samples of a node are; None if it is not known (`sample_distance`)."""
    is_distance_measured: bool = False
    """Whether the distance follows from this response alone."""
    last_observed_s: float | None = None
    """The distance between the newest samples and those before, in the last response with new samples."""


_AHEAD_S = 60.0
"""Tolerated difference by which a source's clock may be ahead of the local clock."""
_PART = 512
"""Number of nodes between two yields."""


class SampleColumns(NamedTuple):
    """Samples in any order, by field. Objects of 50,000 samples would take longer to create than to decode."""

    nodes: list[str]
    values: list[int]
    times: list[float]
    """NaN for an unknown time."""
    windows_s: list[float]

    def append(self, node: str, sample: Sample) -> None:
        self.nodes.append(node)
        self.values.append(sample.value)
        self.times.append(np.nan if sample.at is None else sample.at)
        self.windows_s.append(sample.window_s)

    def extend(self, other: "SampleColumns") -> None:
        self.nodes.extend(other.nodes)
        self.values.extend(other.values)
        self.times.extend(other.times)
        self.windows_s.extend(other.windows_s)

    def sample(self, position: int) -> Sample:
        at = self.times[position]
        return Sample(self.values[position], None if isnan(at) else at, self.windows_s[position])

    def is_ascending(self) -> Generator[None, None, bool]:
        """Whether the nodes are sorted, each once; yields between parts. API servers list objects in this order."""
        for start in range(0, len(self.nodes), _PART):
            part = self.nodes[start : start + _PART + 1]
            if not all(map(lt, part, part[1:])):
                return False
            yield
        return True

    def select(self, positions: Sequence[int]) -> Generator[None, None, "SampleColumns"]:
        """The samples at these positions, in their order; yields between parts."""
        chosen = SampleColumns([], [], [], [])
        for start in range(0, len(positions), _PART):
            part = positions[start : start + _PART]
            chosen.nodes.extend(map(self.nodes.__getitem__, part))
            chosen.values.extend(map(self.values.__getitem__, part))
            chosen.times.extend(map(self.times.__getitem__, part))
            chosen.windows_s.extend(map(self.windows_s.__getitem__, part))
            yield
        return chosen


def pack_samples(samples: Mapping[str, Sample]) -> Generator[None, None, Samples]:
    """The samples as arrays; yields between parts."""
    if isinstance(samples, Samples):
        return samples
    columns = SampleColumns([], [], [], [])
    for number, (node, sample) in enumerate(samples.items(), 1):
        columns.append(node, sample)
        if not number % _PART:
            yield
    return (yield from pack_columns(columns))


NodeOrder = tuple[NodeNames, Numbers]
"""The names of some nodes, and the position of each in them."""


def find_order(nodes: Sequence[str]) -> Generator[None, None, NodeOrder | None]:
    """The names of another series of the same nodes, each of which is there once; None without such a series. Yields
    between parts.

    Sources respond about the same nodes in every period, in any order: with the names looked up, a series takes two
    fifths of the time of sorting them and searching for repeated ones.
    """
    known = _shared_names.get((yield from _names_key(nodes)))
    if known is None or not len(nodes) or len(known.names) != len(nodes):
        return None
    positions = yield from known.positions(nodes)
    if positions.min() < 0 or np.bincount(positions).max() > 1:
        return None
    return known, positions


def _names_key(nodes: Sequence[str]) -> Generator[None, None, tuple[int, int]]:
    total = 0
    for start in range(0, len(nodes), _PART):
        total += sum(map(hash, nodes[start : start + _PART]))
        yield
    return len(nodes), total


def _order(nodes: Sequence[str]) -> Generator[None, None, NodeOrder]:
    """`find_order`, or the order in new names; each node is there once."""
    order = yield from find_order(nodes)
    if order is not None:
        return order
    by_name = sorted(range(len(nodes)), key=nodes.__getitem__)
    yield
    names: list[str] = []
    for start in range(0, len(nodes), _PART):
        names += map(intern, map(nodes.__getitem__, by_name[start : start + _PART]))
        yield
    positions = np.empty(len(nodes), np.intp)
    positions[by_name] = np.arange(len(nodes))
    shared = _shared_names[(yield from _names_key(names))] = NodeNames(tuple(names))
    return shared, positions


def pack_columns(columns: SampleColumns, order: NodeOrder | None = None) -> Generator[None, None, Samples]:
    """The samples as arrays, of which each node has one; yields between parts. `order` is that of `find_order`."""
    names, positions = order or (yield from _order(columns.nodes))
    values: list[NDArray[Any]] = [np.empty(0, np.int64)]
    for start in range(0, len(columns.nodes), _PART):
        part = columns.values[start : start + _PART]
        try:
            values.append(np.array(part, np.int64))
        except OverflowError:
            values.append(np.array(part, object))
        yield
    listed = [np.concatenate(values), np.array(columns.times, float), np.array(columns.windows_s, float)]
    arrays = [np.empty_like(array) for array in listed]
    for array, values_in_order in zip(arrays, listed, strict=True):
        array[positions] = values_in_order
    return Samples(names, *arrays)


def keep_nodes(series: Series, nodes: Container[str]) -> Generator[None, None, Series]:
    """The series with the samples of some nodes, of a replica that has a part of the nodes; yields between parts."""
    samples = yield from pack_samples(series.samples)
    names = samples.names.names
    positions: list[int] = []
    for start in range(0, len(names), _PART):
        positions += [at for at, name in enumerate(names[start : start + _PART], start) if name in nodes]
        yield
    if len(positions) < len(names):
        kept, _ = yield from _order([names[position] for position in positions])
        values, times, windows_s = samples.nano_values, samples.times, samples.windows_s
        samples = Samples(kept, values[positions], times[positions], windows_s[positions])
    return msgspec.structs.replace(
        series,
        samples=samples,
        invalid={node: why for node, why in series.invalid.items() if node in nodes},
        differing={node: values for node, values in series.differing.items() if node in nodes},
        unmatched=(),
    )


def merge_newer(old: Series | None, new: Series) -> Generator[None, None, Series]:
    """Merge two series; yields between parts. The result has the nodes of `new`, each with its newer sample.

    A node that is missing in the new series is dropped. A source with several replicas may return an older sample than
    before; then the newer one stays, unless its time was in the future when it was fetched: a wrong clock must not keep
    a value forever.
    """
    samples = yield from pack_samples(new.samples)
    if old is None or old.source != new.source:
        return msgspec.structs.replace(new, samples=samples)
    before = yield from pack_samples(old.samples)
    if samples.names is before.names:
        positions = np.arange(len(samples))
    else:
        positions = yield from before.names.positions(samples.names.names)
    # an unknown time counts as just measured in the new series, and as never in the old one
    times = np.where(np.isnan(samples.times), np.inf, samples.times)
    old_times = np.append(np.where(np.isnan(before.times), -np.inf, before.times), -np.inf)[positions]
    late = (positions >= 0) & (times < old_times) & (old_times <= old.fetched_at + _AHEAD_S)
    if late.any():
        samples = Samples(
            samples.names,
            np.where(late, before.nano_values[positions], samples.nano_values),
            np.where(late, before.times[positions], samples.times),
            np.where(late, before.windows_s[positions], samples.windows_s),
        )
    return _with_sample_distance(
        msgspec.structs.replace(new, samples=samples), old, samples.times - old_times
    )


def _with_sample_distance(new: Series, old: Series, steps_s: Floats) -> Series:
    """The series with the distance of its samples. `steps_s` are the times between the samples of both series."""
    observed_s = typical_distance_s(steps_s[steps_s > 0])
    distance_s = new.sample_distance_s
    if not new.is_distance_measured:
        distance_s = successive_distance_s(observed_s, old.last_observed_s, old.sample_distance_s)
    last_observed_s = old.last_observed_s if observed_s is None else observed_s
    return msgspec.structs.replace(new, sample_distance_s=distance_s, last_observed_s=last_observed_s)


def _without_repetition(values: Floats) -> Floats:
    """The array, in the memory of one value if all are equal: sources measure most nodes at the same time."""
    if not len(values) or values.strides == (0,):
        return values
    first = values[0]
    if (values == first).all() or np.isnan(values).all():
        return np.broadcast_to(first, values.shape)
    return values


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
        if self.times.strides == (0,):
            at = float(self.times[0])
            if now - (self.answered_at if isnan(at) else at) <= max_age_s:
                return self.initial_states
        old = now - np.where(np.isnan(self.times), self.answered_at, self.times) > max_age_s
        return np.where(
            old & (self.initial_states == ValueState.FRESH), np.uint8(ValueState.STALE), self.initial_states
        )

    def ages_s(self, now: float, numbers: Numbers, initial_states: States) -> NDArray[np.float64]:
        """Seconds since the values of these nodes were measured, never negative; NaN where unknown. `initial_states`
        are theirs.
        """
        if self.times.strides == (0,):
            age_s = max(now - float(self.times[0]), 0.0)
            if not initial_states.any():  # all are FRESH: one number in memory, as `broadcast_to` makes it
                return np.ndarray(len(numbers), np.float64, np.array(age_s), strides=(0,))
            return np.where(initial_states == ValueState.FRESH, age_s, np.nan)
        ages = np.maximum(now - self.times.take(numbers), 0.0)
        return np.where(initial_states == ValueState.FRESH, ages, np.nan)


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
