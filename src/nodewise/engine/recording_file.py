"""The format of a recording file, with its reader and writer.

The file is a gzip stream. Each entry is one line of JSON with the sizes of the blobs that follow (`sizes`), then the
blobs, then a line feed; requests and responses are blobs and are neither quoted nor decoded. A file that was cut off,
as after a kill, is valid up to its last flush.
"""

import io
import zlib
from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from nodewise.agent import ObjectKey
from nodewise.base.errors import UNREADABLE, BadInput, Problem, shown

FORMAT: Final = 1
"""Incremented with every change that an older reader would misread."""

_GZIP: Final = 16 + zlib.MAX_WBITS
_LEVEL: Final = 1
"""Compresses filter calls of 5,000 names to 1/18 at 0.5 GB/s; level 6 takes three times as long for 10 % less."""
_CHUNK_BYTES: Final = 2**16
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
    records = _read_records_of_stream(io.BufferedReader(_GzipReader(file), _CHUNK_BYTES))
    header = next(records, None)
    if header is None or not isinstance(header.entry, Header):
        raise BadInput(
            "recording", [Problem("header", "none", "a file that `nodewise extender --record` wrote")]
        )
    if header.entry.format != FORMAT:
        recorded_format = f"{header.entry.format}, by nodewise {header.entry.nodewise}"
        raise BadInput("recording", [Problem("format", recorded_format, str(FORMAT))])
    yield header
    yield from records


def _read_records_of_stream(stream: io.BufferedReader) -> Iterator[Record]:
    number = 0
    try:
        while (line := stream.readline()).endswith(b"\n"):
            entry = _decode(line)
            blobs = tuple(map(stream.read, entry.sizes))
            if blobs and (tuple(map(len, blobs)) != entry.sizes or not stream.read(1)):
                return
            yield Record(entry, blobs)
            number += 1
    except (zlib.error, *UNREADABLE) as error:
        problem = shown(str(error), 200)
        raise BadInput(
            "recording", [Problem(f"entry {number + 1}", problem, "an entry of a recording")]
        ) from error


class _GzipReader(io.RawIOBase):
    """The contents of a gzip stream. A stream that was cut off ends there without an error."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._inflater = zlib.decompressobj(_GZIP)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = b""
        while not data and not self._inflater.eof:
            compressed = self._inflater.unconsumed_tail or self._file.read(_CHUNK_BYTES)
            data = self._inflater.decompress(compressed, len(buffer))
            if not compressed and not data:
                break
        buffer[: len(data)] = data
        return len(data)
