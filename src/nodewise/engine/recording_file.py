"""The format of a recording file, with its reader and writer, and cluster states as its entries.

A cluster state is an entry with its changes only. The file is a gzip stream. Each entry is one line of JSON with the
sizes of the blobs that follow (`sizes`), then the blobs, then a line feed; requests and responses are blobs and are
neither quoted nor decoded. A file that was cut off, as after a kill, is valid up to its last flush.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Annotated, Any, BinaryIO, Final, Generic, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from nodewise.agent import ClusterState, NodeIndex, ObjectKey
from nodewise.agent.state import NODES
from nodewise.base.errors import UNREADABLE, BadInput, Problem, shown
from nodewise.kube.store import Change, ChangeLog, Changes, difference
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.series import Sample, Samples, Series

FORMAT: Final = 1
"""Incremented with every change that an older reader would misread."""

_GZIP: Final = 16 + zlib.MAX_WBITS
_LEVEL: Final = 1
"""Compresses filter calls of 5,000 names to 1/18 at 0.5 GB/s; level 6 takes three times as long for 10 % less."""
_PIECE_BYTES: Final = 2**13
"""Compressed at once: in 0.2 ms."""
_Size = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class RecordingEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """The fields of every entry."""

    sizes: tuple[_Size, ...] = ()
    """The sizes of the blobs, in bytes."""


class AgentHeader(msgspec.Struct, frozen=True):
    """An agent of the chain, with its options as plain values."""

    name: str
    options: dict[str, Any]


class Header(RecordingEntry, frozen=True, kw_only=True, tag="recording"):
    """The first entry: the recording version, and what responses depend on in addition to the entries."""

    format: int
    nodewise: str
    """The version that wrote the recording."""
    agents: tuple[AgentHeader, ...]
    """In the order of the chain."""
    sync_period_s: float
    at: float
    weights: str = ""
    """As `ChainOptions`."""
    metrics: tuple[str, ...] = ()
    """The sources of metrics, as `--metrics` names them; empty in a file, because a replay reads no sources."""


class NodesEntry(RecordingEntry, frozen=True, tag="nodes"):
    """A change of the node index: removed and added names."""

    gone: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    order: tuple[str, ...] | None = None
    """All names, if their order is not the remaining ones and then the added ones."""


class ObjectEntry(RecordingEntry, frozen=True, tag="object"):
    """A new or changed object. Blob: the object as JSON."""

    of: str
    """The name in `Watched`."""
    key: ObjectKey


class ObjectsEntry(RecordingEntry, frozen=True, tag="objects"):
    """Removed objects of a kind, and their order. It follows the entries of changed objects."""

    of: str
    gone: tuple[ObjectKey, ...] = ()
    order: tuple[ObjectKey, ...] | None = None


class ColumnDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """The change of a column: all values, one value for all nodes, or the changed values by position."""

    every: list[Any] | UnsetType = UNSET
    one: Any = UNSET
    at: list[int] = []
    to: list[Any] = []


class SeriesEntry(RecordingEntry, frozen=True, tag="series"):
    """A fetched metric. Blob: the series as JSON, without its samples."""

    metric: str
    nodes: tuple[str, ...] | None = None
    """The nodes of the samples, in order; None if they are those of the previous series."""
    columns: dict[str, ColumnDelta] = {}
    """By field of a sample; missing fields did not change."""


class MetricsEntry(RecordingEntry, frozen=True, tag="metrics"):
    """Other changes of the metrics snapshot, after the series. Blob: the snapshot without series, if it changed."""

    gone: tuple[str, ...] = ()
    order: tuple[str, ...] | None = None


class SnapshotEntry(RecordingEntry, frozen=True, tag="world"):
    """The end of the changes of a cluster state, from which a snapshot was computed."""

    generation: int
    """The snapshot's generation."""
    now: float
    versions: dict[str, str] = {}
    """As `ClusterState.versions`."""


class MemoryEntry(RecordingEntry, frozen=True, tag="recalled"):
    """A memory that an agent restored (`StateBuilder.recall`). Blob: the memory."""

    agent: str


class RequestEntry(RecordingEntry, frozen=True, tag="request"):
    """A request. Blobs: its body and the body of the response; with `error`, its body and the error's text."""

    path: str
    at: float
    generation: int
    """The generation of the snapshot that it was answered from."""
    error: str = ""
    """The kind of error in the response; empty for a regular response."""


class GapEntry(RecordingEntry, frozen=True, tag="gap", rename={"snapshots": "worlds"}):
    """The number of items that were lost because the queue was full."""

    requests: int = 0
    snapshots: int = 0


class EndEntry(RecordingEntry, frozen=True, tag="end"):
    """The last entry; missing after a kill."""

    why: Literal["stopped", "full"]


AnyEntry = (
    Header
    | NodesEntry
    | ObjectEntry
    | ObjectsEntry
    | SeriesEntry
    | MetricsEntry
    | SnapshotEntry
    | MemoryEntry
    | RequestEntry
    | GapEntry
    | EndEntry
)


class Record(NamedTuple):
    """An entry with its blobs."""

    entry: AnyEntry
    blobs: tuple[bytes, ...] = ()


def record(entry: AnyEntry, *blobs: bytes) -> Record:
    """A record, with the sizes of the blobs in its entry."""
    return Record(msgspec.structs.replace(entry, sizes=tuple(map(len, blobs))), blobs)


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(AnyEntry).decode


class RecordingWriter:
    """Writes records. They are in the file after `flush`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        self.size_bytes = 0
        """The size of the file in bytes."""

    def write(self, record: Record) -> None:
        for _ in self.write_in_pieces(record):
            pass

    def write_in_pieces(self, record: Record) -> Iterator[None]:
        """Write a record; yields after each piece, because compression takes longer than everything before it."""
        for part in (_encode(record.entry) + b"\n", *record.blobs, b"\n" if record.blobs else b""):
            yield
            for start in range(0, len(part), _PIECE_BYTES):
                self._append_bytes(self._deflater.compress(part[start : start + _PIECE_BYTES]))
                yield

    def flush(self) -> None:
        """Make all records so far readable in the file."""
        self._append_bytes(self._deflater.flush(zlib.Z_SYNC_FLUSH))
        self._file.flush()

    def close(self) -> None:
        """End the stream and the file."""
        try:
            self._append_bytes(self._deflater.flush(zlib.Z_FINISH))
        finally:
            self._file.close()

    def _append_bytes(self, data: bytes) -> None:
        self._file.write(data)
        self.size_bytes += len(data)


def read(file: BinaryIO) -> Iterator[Record]:
    """All complete records, a `Header` first. `BadInput` for a file that is no recording or is damaged."""
    records = _read_records_of_stream(file)
    header = next(records, None)
    if header is None or not isinstance(header.entry, Header):
        expected = "a file that `nodewise extender --record` wrote"
        raise BadInput.of("recording", "header", "no header", expected)
    if header.entry.format != FORMAT:
        recorded_format = f"{header.entry.format}, by nodewise {header.entry.nodewise}"
        raise BadInput.of("recording", "format", recorded_format, str(FORMAT))
    yield header
    for record in records:
        if isinstance(record.entry, Header):
            raise BadInput.of("recording", "header", "a second recording", "one per file")
        yield record


def _read_records_of_stream(file: BinaryIO) -> Iterator[Record]:
    import gzip  # a server only writes recordings

    stream = gzip.GzipFile(fileobj=file)
    number = 0
    try:
        while (line := stream.readline()).endswith(b"\n"):
            entry = _decode(line)
            blobs = tuple(map(stream.read, entry.sizes))
            if blobs and (tuple(map(len, blobs)) != entry.sizes or not stream.read(1)):
                return
            yield Record(entry, blobs)
            number += 1
    except EOFError:  # the stream was cut off
        return
    except (gzip.BadGzipFile, zlib.error, *UNREADABLE) as error:
        problem = shown(str(error), 200)
        raise BadInput.of("recording", f"entry {number + 1}", problem, "an entry of a recording") from error


K = TypeVar("K")
V = TypeVar("V")

EMPTY: Final = ClusterState(NodeIndex(), {}, MetricsSnapshot(), 0.0)
"""Before the first cluster state."""
_ABSENT: Final = object()
_NONE: Final[Mapping[ObjectKey, Any]] = {}


def delta_entries(old: ClusterState, new: ClusterState, generation: int) -> Iterator[Record | None]:
    """The entries that turn the old cluster state into the new one.

    Yields None in between, where the writer may pause.
    """
    if new.nodes is not old.nodes:
        delta = _mapping_delta(dict.fromkeys(old.nodes.known), dict.fromkeys(new.nodes.known))
        yield record(NodesEntry(added=tuple(delta.changed), gone=delta.removed, order=delta.order))
    for name in (*new.objects, NODES):
        yield from _objects(name, _object_changes(name, old, new))
    if new.metrics is not old.metrics:
        yield from _metrics(old.metrics, new.metrics)
    yield record(SnapshotEntry(generation=generation, now=new.now, versions=dict(new.versions)))


class _MappingDelta(NamedTuple, Generic[K]):
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


def _object_changes(name: str, old: ClusterState, new: ClusterState) -> Changes[Any]:
    if new.changes is not None:
        return new.changes.get(name, {})
    if name == NODES:
        return difference(old.node_objects, new.node_objects)
    return difference(old.objects.get(name, {}), new.objects[name])


def _objects(name: str, changes: Changes[Any]) -> Iterator[Record | None]:
    for key, change in changes.items():
        if change.new is not None:
            yield record(ObjectEntry(of=name, key=key), _encode(change.new))
    deleted = tuple(key for key, change in changes.items() if change.new is None)
    if deleted:
        yield record(ObjectsEntry(of=name, gone=deleted))


def _metrics(old: MetricsSnapshot, new: MetricsSnapshot) -> Iterator[Record | None]:
    delta = _mapping_delta(old.series, new.series)
    for metric in delta.changed:
        yield from _series(metric, old.series.get(metric), new.series[metric])
    before, rest = (msgspec.structs.replace(metrics, series={}) for metrics in (old, new))
    blobs = () if rest == before else (_encode(rest),)
    yield record(MetricsEntry(gone=delta.removed, order=delta.order), *blobs)


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
    entry = SeriesEntry(metric=metric, nodes=None if same else nodes, columns=columns)
    yield record(entry, _encode(msgspec.structs.replace(new, samples={})))


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

    def _apply_entry(self, entry: AnyEntry, blobs: Sequence[bytes]) -> ClusterState | None:
        match entry:
            case NodesEntry():
                names = dict.fromkeys(self._nodes.known) | dict.fromkeys(entry.added)
                self._nodes = NodeIndex(_apply_delta(names, entry))
            case ObjectEntry() if entry.of in self._objects:
                objects = self._objects_for_modification(entry.of)
                item = self._decoders[entry.of].decode(blobs[0])
                self._log.add(entry.of, {entry.key: Change(objects.get(entry.key), item)})
                objects[entry.key] = item
            case ObjectsEntry() if entry.of in self._objects:
                objects = self._objects_for_modification(entry.of)
                self._log.add(entry.of, {key: Change(objects[key], None) for key in entry.gone})
                self._objects[entry.of] = _apply_delta(objects, entry)
            case SeriesEntry():
                self._series[entry.metric] = _apply_series_delta(
                    self._series.get(entry.metric), entry, blobs[0]
                )
            case MetricsEntry():
                self._series = _apply_delta(self._series, entry)
                rest = msgspec.json.decode(blobs[0], type=MetricsSnapshot) if blobs else self._metrics
                self._metrics = msgspec.structs.replace(rest, series=dict(self._series))
            case SnapshotEntry():
                self._shared.update(self._objects)
                objects_by_kind = dict(self._shared)
                nodes, changes = objects_by_kind.pop(NODES, _NONE), self._log.take()
                return ClusterState(
                    self._nodes, objects_by_kind, self._metrics, entry.now, nodes, entry.versions, changes
                )
        return None

    def _objects_for_modification(self, name: str) -> dict[ObjectKey, Any]:
        """The objects of a kind for modification: a copy, if the newest cluster state has them."""
        if self._shared[name] is self._objects[name]:
            self._objects[name] = dict(self._objects[name])
        return self._objects[name]


def _apply_delta(items: dict[K, V], entry: NodesEntry | ObjectsEntry | MetricsEntry) -> dict[K, V]:
    gone: Sequence[Any] = entry.gone
    for key in gone:
        del items[key]
    order: Sequence[Any] | None = entry.order
    return items if order is None else {key: items[key] for key in order}


def _apply_series_delta(old: Series | None, entry: SeriesEntry, rest: bytes) -> Series:
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
