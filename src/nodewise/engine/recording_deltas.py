"""Cluster states as entries of a recording, each with its changes only, and the way back.

The entries of objects are the changes that agent states are built from, so a replay builds them from the same changes.
"""

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET

from nodewise.agent import ClusterState, NodeIndex, ObjectKey
from nodewise.agent.state import NODES
from nodewise.base.errors import BadInput, Problem, shown
from nodewise.engine import recording_file
from nodewise.engine.recording_file import ColumnDelta, Record
from nodewise.kube.store import Change, ChangeLog, Changes, difference
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.series import Sample, Samples, Series

K = TypeVar("K")
V = TypeVar("V")

EMPTY: Final = ClusterState(NodeIndex(), {}, MetricsSnapshot(), 0.0)
"""Before the first cluster state."""
_ABSENT: Final = object()
_NONE: Final[Mapping[ObjectKey, Any]] = {}
_encode: Final = msgspec.json.Encoder().encode


def delta_entries(old: ClusterState, new: ClusterState, generation: int) -> Iterator[Record | None]:
    """The entries that turn the old cluster state into the new one.

    Yields None in between, where the writer may pause.
    """
    if new.nodes is not old.nodes:
        yield _nodes(old.nodes, new.nodes)
    for name in (*new.objects, NODES):
        yield from _objects(name, _object_changes(name, old, new))
    if new.metrics is not old.metrics:
        yield from _metrics(old.metrics, new.metrics)
    yield recording_file.record(
        recording_file.SnapshotEntry(generation=generation, now=new.now, versions=dict(new.versions))
    )


class _MappingDelta(NamedTuple, Generic[K]):
    """The difference of two mappings."""

    changed: Sequence[K]
    """Changed and new keys, in the order of the new mapping."""
    removed: tuple[K, ...]
    order: tuple[K, ...] | None
    """All keys, if removing and adding keys does not result in their order."""


def _mapping_delta(old: Mapping[K, Any], new: Mapping[K, Any]) -> _MappingDelta[K]:
    changed = [key for key, value in new.items() if old.get(key, _ABSENT) is not value]
    gone = tuple(key for key in old if key not in new)
    left = [key for key in old if key in new] + [key for key in changed if key not in old]
    return _MappingDelta(changed, gone, None if left == list(new) else tuple(new))


def _nodes(old: NodeIndex, new: NodeIndex) -> Record:
    delta = _mapping_delta(dict.fromkeys(old.known), dict.fromkeys(new.known))
    return recording_file.record(
        recording_file.NodesEntry(added=tuple(delta.changed), gone=delta.removed, order=delta.order)
    )


def _object_changes(name: str, old: ClusterState, new: ClusterState) -> Changes[Any]:
    if new.changes is not None:
        return new.changes.get(name, {})
    if name == NODES:
        return difference(old.node_objects, new.node_objects)
    return difference(old.objects.get(name, {}), new.objects[name])


def _objects(name: str, changes: Changes[Any]) -> Iterator[Record | None]:
    for key, change in changes.items():
        if change.new is not None:
            yield recording_file.record(recording_file.ObjectEntry(of=name, key=key), _encode(change.new))
    deleted = tuple(key for key, change in changes.items() if change.new is None)
    if deleted:
        yield recording_file.record(recording_file.ObjectsEntry(of=name, gone=deleted))


def _metrics(old: MetricsSnapshot, new: MetricsSnapshot) -> Iterator[Record | None]:
    delta = _mapping_delta(old.series, new.series)
    for metric in delta.changed:
        yield from _series(metric, old.series.get(metric), new.series[metric])
    before, rest = (msgspec.structs.replace(metrics, series={}) for metrics in (old, new))
    blobs = () if rest == before else (_encode(rest),)
    yield recording_file.record(recording_file.MetricsEntry(gone=delta.removed, order=delta.order), *blobs)


def _series(metric: str, old: Series | None, new: Series) -> Iterator[Record | None]:
    nodes = tuple(new.samples)
    same = old is not None and tuple(old.samples) == nodes
    columns: dict[str, ColumnDelta] = {}
    for field in Sample.__struct_fields__:
        before = _sample_column(old, field) if old is not None and same else []
        changed = _column_delta(before, _sample_column(new, field))
        if changed is not None:
            columns[field] = changed
        yield None
    entry = recording_file.SeriesEntry(metric=metric, nodes=None if same else nodes, columns=columns)
    yield recording_file.record(entry, _encode(msgspec.structs.replace(new, samples={})))


def _sample_column(series: Series, field: str) -> list[Any]:
    """One field of all samples, in the order of the nodes."""
    samples = series.samples
    if isinstance(samples, Samples):
        return samples.column(field)
    return list(map(attrgetter(field), samples.values()))


def _column_delta(old: list[Any], new: list[Any]) -> ColumnDelta | None:
    """The shortest form of a column; None if it did not change."""
    if old == new:
        return None
    if new.count(new[0]) == len(new):
        return ColumnDelta(one=new[0])
    if len(old) == len(new):
        at = [place for place, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
        if 2 * len(at) < len(new):
            return ColumnDelta(at=at, to=[new[place] for place in at])
    return ColumnDelta(every=new)


class ClusterStateRebuilder:
    """Rebuilds cluster states from entries. Unchanged parts are the same objects in consecutive states."""

    def __init__(self, watched: Mapping[str, type]) -> None:
        """`watched` has the types of objects by their name in `Watched`, of nodes by `NODES`; others are ignored."""
        self._decoders: dict[str, msgspec.json.Decoder[Any]] = {
            name: msgspec.json.Decoder(type_) for name, type_ in watched.items()
        }
        self._nodes = NodeIndex()
        self._objects: dict[str, dict[ObjectKey, Any]] = {name: {} for name in watched}
        self._shared: dict[str, Mapping[ObjectKey, Any]] = {name: {} for name in watched}
        """The objects of the newest cluster state, which must not be modified."""
        self._log = ChangeLog()
        self._series: dict[str, Series] = {}
        self._metrics = MetricsSnapshot()

    def apply(self, record: Record) -> ClusterState | None:
        """Apply the next entry. Returns the cluster state if the entry completes one.

        `BadInput` if the entry does not fit the previous ones.
        """
        try:
            return self._apply_entry(*record)
        except (LookupError, TypeError, ValueError, msgspec.MsgspecError) as error:
            problem = f"{type(record.entry).__name__}: {shown(error)}"
            raise BadInput(
                "recording", [Problem("entry", problem, "an entry that fits the previous ones")]
            ) from error

    def _apply_entry(self, entry: recording_file.AnyEntry, blobs: Sequence[bytes]) -> ClusterState | None:
        match entry:
            case recording_file.NodesEntry():
                names = dict.fromkeys(self._nodes.known) | dict.fromkeys(entry.added)
                self._nodes = NodeIndex(_apply_delta(names, entry))
            case recording_file.ObjectEntry() if entry.of in self._objects:
                objects, item = (
                    self._objects_for_modification(entry.of),
                    self._decoders[entry.of].decode(blobs[0]),
                )
                self._log.add(entry.of, {entry.key: Change(objects.get(entry.key), item)})
                objects[entry.key] = item
            case recording_file.ObjectsEntry() if entry.of in self._objects:
                objects = self._objects_for_modification(entry.of)
                self._log.add(entry.of, {key: Change(objects[key], None) for key in entry.gone})
                self._objects[entry.of] = _apply_delta(objects, entry)
            case recording_file.SeriesEntry():
                self._series[entry.metric] = _apply_series_delta(
                    self._series.get(entry.metric), entry, blobs[0]
                )
            case recording_file.MetricsEntry():
                self._series = _apply_delta(self._series, entry)
                rest = msgspec.json.decode(blobs[0], type=MetricsSnapshot) if blobs else self._metrics
                self._metrics = msgspec.structs.replace(rest, series=dict(self._series))
            case recording_file.SnapshotEntry():
                return self._build_cluster_state(entry)
        return None

    def _build_cluster_state(self, moment: recording_file.SnapshotEntry) -> ClusterState:
        self._shared.update(self._objects)
        objects = dict(self._shared)
        nodes = objects.pop(NODES, _NONE)
        changes = self._log.take()
        return ClusterState(self._nodes, objects, self._metrics, moment.now, nodes, moment.versions, changes)

    def _objects_for_modification(self, name: str) -> dict[ObjectKey, Any]:
        """The objects of a kind for modification: a copy, if the newest cluster state has them."""
        if self._shared[name] is self._objects[name]:
            self._objects[name] = dict(self._objects[name])
        return self._objects[name]


def _apply_delta(
    items: dict[K, V],
    entry: recording_file.NodesEntry | recording_file.ObjectsEntry | recording_file.MetricsEntry,
) -> dict[K, V]:
    gone: Sequence[Any] = entry.gone
    for key in gone:
        del items[key]
    order: Sequence[Any] | None = entry.order
    return items if order is None else {key: items[key] for key in order}


def _apply_series_delta(old: Series | None, entry: recording_file.SeriesEntry, rest: bytes) -> Series:
    nodes = tuple(old.samples) if entry.nodes is None and old is not None else entry.nodes or ()
    before = old if entry.nodes is None else None
    columns = [
        _apply_column_delta(
            _sample_column(before, field) if before else [], entry.columns.get(field), len(nodes)
        )
        for field in Sample.__struct_fields__
    ]
    samples = dict(zip(nodes, map(Sample, *columns), strict=True))
    return msgspec.structs.replace(msgspec.json.decode(rest, type=Series), samples=samples)


def _apply_column_delta(old: list[Any], cells: ColumnDelta | None, size: int) -> list[Any]:
    if cells is None:
        return old
    if cells.every is not UNSET:
        return cells.every
    if cells.one is not UNSET:
        return [cells.one] * size
    for place, value in zip(cells.at, cells.to, strict=True):
        old[place] = value
    return old
