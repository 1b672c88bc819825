"""Worlds as entries of a recording, each told against the one before, and worlds made of such entries again.

A value is told anew where it is another object than before, as an agent's state looks for the same. So a replayed
state finds unchanged what the recorded one found unchanged, and nothing is compared that is large.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET

from nodewise.agent import ClusterState, NodeIndex, ObjectKey
from nodewise.errors import BadInput, Problem, shown
from nodewise.extender import tape
from nodewise.extender.tape import Cells, Record
from nodewise.metrics.series import Sample, Series
from nodewise.metrics.snapshot import MetricsSnapshot

K = TypeVar("K")
V = TypeVar("V")

NODES: Final = "nodes"
"""Node objects stand among the others under this name."""
EMPTY: Final = ClusterState(NodeIndex(), {}, MetricsSnapshot(), 0.0)
"""Before the first world."""
_ABSENT: Final = object()
_NONE: Final[Mapping[ObjectKey, Any]] = {}
_STRIDE: Final = 2048
"""Keys that are looked at between two pauses: a fifth of a millisecond."""
_encode: Final = msgspec.json.Encoder().encode


def entries(old: ClusterState, new: ClusterState, generation: int) -> Iterator[Record | None]:
    """What makes the new world of the old one; None now and then, where whoever writes may pause."""
    if new.nodes is not old.nodes:
        yield from _nodes(old.nodes, new.nodes)
    earlier = {**old.objects, NODES: old.node_objects}
    for name, objects in {**new.objects, NODES: new.node_objects}.items():
        before = earlier.get(name, {})
        if objects is not before:
            yield from _objects(name, before, objects)
    if new.metrics is not old.metrics:
        yield from _metrics(old.metrics, new.metrics)
    yield tape.record(tape.Moment(generation=generation, now=new.now, versions=dict(new.versions)))


class _Moves(NamedTuple, Generic[K]):
    """How one mapping becomes another."""

    changed: Sequence[K]
    """Changed or new, in the order of the new mapping."""
    gone: tuple[K, ...]
    order: tuple[K, ...] | None
    """All keys, where removing and adding alone would leave them in another order."""


def _moves(old: Mapping[K, Any], new: Mapping[K, Any]) -> Generator[None, None, _Moves[K]]:
    changed: list[K] = []
    for number, (key, value) in enumerate(new.items()):
        if old.get(key, _ABSENT) is not value:
            changed.append(key)
        if not number % _STRIDE:
            yield
    left: list[K] = []
    gone: list[K] = []
    for number, key in enumerate(old):
        (left if key in new else gone).append(key)
        if not number % _STRIDE:
            yield
    left += [key for key in changed if key not in old]
    in_order = yield from _equal(left, new)
    return _Moves(changed, tuple(gone), None if in_order else tuple(new))


def _equal(left: Iterable[K], right: Iterable[K]) -> Generator[None, None, bool]:
    for number, (one, other) in enumerate(zip(left, right, strict=True)):
        if one != other:
            return False
        if not number % _STRIDE:
            yield
    return True


def _nodes(old: NodeIndex, new: NodeIndex) -> Iterator[Record | None]:
    moves = yield from _moves(dict.fromkeys(old.known), dict.fromkeys(new.known))
    yield tape.record(tape.Nodes(added=tuple(moves.changed), gone=moves.gone, order=moves.order))


def _objects(
    name: str, old: Mapping[ObjectKey, Any], new: Mapping[ObjectKey, Any]
) -> Iterator[Record | None]:
    moves = yield from _moves(old, new)
    for key in moves.changed:
        yield tape.record(tape.Object(of=name, key=key), _encode(new[key]))
    if moves.gone or moves.order is not None:
        yield tape.record(tape.Objects(of=name, gone=moves.gone, order=moves.order))


def _metrics(old: MetricsSnapshot, new: MetricsSnapshot) -> Iterator[Record | None]:
    moves = yield from _moves(old.series, new.series)
    for metric in moves.changed:
        yield from _series(metric, old.series.get(metric), new.series[metric])
    before, rest = (msgspec.structs.replace(one, series={}) for one in (old, new))
    blobs = () if rest == before else (_encode(rest),)
    yield tape.record(tape.Metrics(gone=moves.gone, order=moves.order), *blobs)


def _series(metric: str, old: Series | None, new: Series) -> Iterator[Record | None]:
    nodes = tuple(new.samples)
    same = old is not None and tuple(old.samples) == nodes
    columns: dict[str, Cells] = {}
    for field in Sample.__struct_fields__:
        before = _column(old, field) if old is not None and same else []
        changed = _cells(before, _column(new, field))
        if changed is not None:
            columns[field] = changed
        yield None
    told = tape.SeriesEntry(metric=metric, nodes=None if same else nodes, columns=columns)
    yield tape.record(told, _encode(msgspec.structs.replace(new, samples={})))


def _column(series: Series, field: str) -> list[Any]:
    """One field of all samples, in the order of the nodes."""
    return list(map(attrgetter(field), series.samples.values()))


def _cells(old: list[Any], new: list[Any]) -> Cells | None:
    """The shortest way to tell a column; None where it is as before."""
    if old == new:
        return None
    if new.count(new[0]) == len(new):
        return Cells(one=new[0])
    if len(old) == len(new):
        at = [place for place, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
        if 2 * len(at) < len(new):
            return Cells(at=at, to=[new[place] for place in at])
    return Cells(every=new)


class Rebuilding:
    """Makes worlds of entries. What did not change stays the same object from world to world."""

    def __init__(self, watched: Mapping[str, type]) -> None:
        """The types of objects by their name in `Watched`, of nodes by `NODES`; objects of other names are left out."""
        self._decoders: dict[str, msgspec.json.Decoder[Any]] = {
            name: msgspec.json.Decoder(type_) for name, type_ in watched.items()
        }
        self._nodes = NodeIndex()
        self._objects: dict[str, dict[ObjectKey, Any]] = {name: {} for name in watched}
        self._given: dict[str, Mapping[ObjectKey, Any]] = {name: {} for name in watched}
        self._series: dict[str, Series] = {}
        self._metrics = MetricsSnapshot()

    def take(self, given: Record) -> ClusterState | None:
        """The next entry; the world, where the entry completes one. `BadInput` if it does not follow the others."""
        try:
            return self._taken(*given)
        except (LookupError, TypeError, ValueError, msgspec.MsgspecError) as error:
            seen = f"{type(given.entry).__name__}: {shown(error)}"
            raise BadInput(
                "recording", [Problem("entry", seen, "one that follows those before it")]
            ) from error

    def _taken(self, entry: tape.AnyEntry, blobs: Sequence[bytes]) -> ClusterState | None:
        match entry:
            case tape.Nodes():
                names = dict.fromkeys(self._nodes.known) | dict.fromkeys(entry.added)
                self._nodes = NodeIndex(_moved(names, entry))
            case tape.Object() if entry.of in self._objects:
                self._changing(entry.of)[entry.key] = self._decoders[entry.of].decode(blobs[0])
            case tape.Objects() if entry.of in self._objects:
                self._objects[entry.of] = _moved(self._changing(entry.of), entry)
            case tape.SeriesEntry():
                self._series[entry.metric] = _fetched(self._series.get(entry.metric), entry, blobs[0])
            case tape.Metrics():
                self._series = _moved(self._series, entry)
                rest = msgspec.json.decode(blobs[0], type=MetricsSnapshot) if blobs else self._metrics
                self._metrics = msgspec.structs.replace(rest, series=dict(self._series))
            case tape.Moment():
                self._given.update(self._objects)
                given = dict(self._given)
                nodes = given.pop(NODES, _NONE)
                return ClusterState(self._nodes, given, self._metrics, entry.now, nodes, entry.versions)
        return None

    def _changing(self, name: str) -> dict[ObjectKey, Any]:
        """The objects of a kind, to be changed: a copy, if a world has been given those that are there."""
        if self._given[name] is self._objects[name]:
            self._objects[name] = dict(self._objects[name])
        return self._objects[name]


def _moved(items: dict[K, V], entry: tape.Nodes | tape.Objects | tape.Metrics) -> dict[K, V]:
    gone: Sequence[Any] = entry.gone
    for key in gone:
        del items[key]
    order: Sequence[Any] | None = entry.order
    return items if order is None else {key: items[key] for key in order}


def _fetched(old: Series | None, entry: tape.SeriesEntry, rest: bytes) -> Series:
    nodes = tuple(old.samples) if entry.nodes is None and old is not None else entry.nodes or ()
    before = old if entry.nodes is None else None
    columns = [
        _mended(_column(before, field) if before else [], entry.columns.get(field), len(nodes))
        for field in Sample.__struct_fields__
    ]
    samples = dict(zip(nodes, map(Sample, *columns), strict=True))
    return msgspec.structs.replace(msgspec.json.decode(rest, type=Series), samples=samples)


def _mended(old: list[Any], cells: Cells | None, size: int) -> list[Any]:
    if cells is None:
        return old
    if cells.every is not UNSET:
        return cells.every
    if cells.one is not UNSET:
        return [cells.one] * size
    for place, value in zip(cells.at, cells.to, strict=True):
        old[place] = value
    return old
