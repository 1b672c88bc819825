"""The file of a recording: which entries stand in it, and their form. Reading and writing are streams of both.

A gzip stream. Each entry is one line of JSON, which says how many bytes of what kind follow (`sizes`), then these
bytes as they are, then a line feed: requests and answers are neither quoted nor decoded. A reader needs no more than
the beginning: whoever was killed leaves a file that is good up to its last flush.
"""

import io
import zlib
from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from nodewise.agent import ObjectKey
from nodewise.errors import UNREADABLE, BadInput, Problem, shown

FORMAT: Final = 1
"""Grows with every change that an older reader would misunderstand."""

_GZIP: Final = 16 + zlib.MAX_WBITS
_LEVEL: Final = 1
"""Filter calls of 5,000 names shrink to an eighteenth, at 0.5 GB/s; level 6 needs thrice the time for a tenth less."""
_CHUNK_BYTES: Final = 2**16
_Size = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class RecordingEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """What every entry has."""

    sizes: tuple[_Size, ...] = ()
    """How long the blobs are that follow."""


class AgentHeader(msgspec.Struct, frozen=True):
    """An agent that was asked, with its options as plain values."""

    name: str
    options: dict[str, Any]


class Header(RecordingEntry, frozen=True, kw_only=True, tag="recording"):
    """The first entry: who recorded, and what else an answer depends on."""

    format: int
    nodewise: str
    """The version that recorded."""
    agents: tuple[AgentHeader, ...]
    """In the order in which they were asked."""
    sync_period_s: float
    at: float
    weights: str = ""
    """As `ChainOptions`."""


class NodesEntry(RecordingEntry, frozen=True, tag="nodes"):
    """The node index is another one: names that went, names that came."""

    gone: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    order: tuple[str, ...] | None = None
    """All names, where they are not the old ones that are left and then the new ones."""


class ObjectEntry(RecordingEntry, frozen=True, tag="object"):
    """An object came or changed. Blob: the object as JSON."""

    of: str
    """The name in `Watched`."""
    key: ObjectKey


class ObjectsEntry(RecordingEntry, frozen=True, tag="objects"):
    """What else happened to the objects of a kind; stands after those that changed."""

    of: str
    gone: tuple[ObjectKey, ...] = ()
    order: tuple[ObjectKey, ...] | None = None


class ColumnDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """A column against what it was: all values, one for all nodes, or those that changed by their places."""

    every: list[Any] | UnsetType = UNSET
    one: Any = UNSET
    at: list[int] = []
    to: list[Any] = []


class SeriesEntry(RecordingEntry, frozen=True, tag="series"):
    """A metric was fetched. Blob: the series as JSON, without its samples."""

    metric: str
    nodes: tuple[str, ...] | None = None
    """The nodes of the samples, in order; None where they are those of the series before."""
    columns: dict[str, ColumnDelta] = {}
    """By field of a sample; one that is not here is as before."""


class MetricsEntry(RecordingEntry, frozen=True, tag="metrics"):
    """What else happened to the snapshot; stands after the series. Blob: the snapshot without series, or nothing."""

    gone: tuple[str, ...] = ()
    order: tuple[str, ...] | None = None


class SnapshotEntry(RecordingEntry, frozen=True, tag="world"):
    """All changes since the last entry of this kind are made: this is a World, of which a snapshot was computed."""

    generation: int
    """The snapshot's number."""
    now: float
    versions: dict[str, str] = {}
    """`World.versions`."""


class MemoryEntry(RecordingEntry, frozen=True, tag="recalled"):
    """An agent was told what was kept (`StateBuilder.recall`). Blob: that."""

    agent: str


class RequestEntry(RecordingEntry, frozen=True, tag="request"):
    """A request and its answer. Blobs: the two bodies; or, with `error`, the request's and the error's words."""

    path: str
    at: float
    generation: int
    """Of the snapshot that was asked."""
    error: str = ""
    """The kind of error that the request was answered with; empty for a regular answer."""


class GapEntry(RecordingEntry, frozen=True, tag="gap"):
    """So many could not be written as fast as they came."""

    requests: int = 0
    worlds: int = 0


class EndEntry(RecordingEntry, frozen=True, tag="end"):
    """The last entry, where the recorder had time for one."""

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
    """An entry with the bytes that follow it."""

    entry: AnyEntry
    blobs: tuple[bytes, ...] = ()


def record(entry: AnyEntry, *blobs: bytes) -> Record:
    """With the sizes of the blobs in the entry."""
    return Record(msgspec.structs.replace(entry, sizes=tuple(map(len, blobs))), blobs)


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(AnyEntry).decode


class RecordingWriter:
    """Writes records. What is written is in the file after `flush`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        self.size_bytes = 0
        """What went into the file until now."""

    def write(self, record: Record) -> None:
        self._put(self._deflater.compress(_encode(record.entry) + b"\n"))
        for blob in record.blobs:
            self._put(self._deflater.compress(blob))
        if record.blobs:
            self._put(self._deflater.compress(b"\n"))

    def flush(self) -> None:
        """From here on a reader finds all that was written so far."""
        self._put(self._deflater.flush(zlib.Z_SYNC_FLUSH))
        self._file.flush()

    def close(self) -> None:
        """End the stream and the file."""
        try:
            self._put(self._deflater.flush(zlib.Z_FINISH))
        finally:
            self._file.close()

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self.size_bytes += len(data)


def read(file: BinaryIO) -> Iterator[Record]:
    """All whole records, a `Header` first. `BadInput` for a file that is no recording, or was damaged."""
    records = _records(io.BufferedReader(_Inflating(file), _CHUNK_BYTES))
    header = next(records, None)
    if header is None or not isinstance(header.entry, Header):
        raise BadInput(
            "recording", [Problem("header", "none", "a file that `nodewise extender --record` wrote")]
        )
    if header.entry.format != FORMAT:
        seen = f"{header.entry.format}, by nodewise {header.entry.nodewise}"
        raise BadInput("recording", [Problem("format", seen, str(FORMAT))])
    yield header
    yield from records


def _records(stream: io.BufferedReader) -> Iterator[Record]:
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
        seen = shown(str(error), 200)
        raise BadInput(
            "recording", [Problem(f"entry {number + 1}", seen, "an entry of a recording")]
        ) from error


class _Inflating(io.RawIOBase):
    """What a gzip stream holds; one that was cut off ends where it was cut."""

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
