"""The node index assigns a number to each node. All values per node are arrays by that number.

Each array has one entry more than there are nodes. The last entry represents unknown nodes, so that a request may name
any node and lookups need no branch. The names are also kept as JSON text in rows of equal width, which numpy decodes
and encodes all at once.

Decoding 5,000 names as strings and looking them up in a dict takes half a millisecond, mostly cache misses: each name
is a separate object, also in the dict. The rows are contiguous, so numpy needs only a few passes.

A row ends with the last quote of a name, and is looked up with a multilinear hash (Carter and Wegman 1979, "Universal
classes of hash functions") of those 8-byte words that tell the names apart, usually one or two, in tables;
each is for names that collide in the one before. Matches are then compared completely. A row is encoded as spaces, the
name in quotes and a comma; JSON allows spaces there. Rows are selected with `take`, which takes a third of the time of
indexing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from random import Random
from types import MappingProxyType
from typing import Any, Final, NamedTuple, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.base.errors import UNREADABLE

Numbers = NDArray[np.intp]
Words = NDArray[np.uint64]
"""By row and word."""

_WORD: Final = 8
_COMMA, _SPACE = b", "
_SPREAD: Final = 4
"""Minimum number of slots of a table per name, so that few names collide."""
_SAMPLE: Final = 512
"""Names that are examined for words that differ."""
_MOST_TABLES: Final = 8
"""A name that collides in all of these is found by the slower decoder."""
_PART_BYTES: Final = 2**18
"""Parts of a list that are read at once, so that arrays stay in the processor's cache."""
_MOST_WASTE: Final = 2
"""Limit of the ratio of rows to names in bytes. Above it there is no table, and names are looked up in a dict."""
_SEED: Final = 20_260
_SHORT_BYTES: Final = 2**13
"""Up to this length a list is decoded and looked up in a dict, which takes less time than the calls of numpy."""


def encode_names(names: Sequence[str]) -> list[bytes]:
    """Each name as the content of a JSON string.

    All names are encoded in one call and then split, which is several times faster than one by one. If no name contains
    a quote, `","` occurs only between names.
    """
    if not names:
        return []
    whole = msgspec.json.encode(names)
    if b'\\"' in whole:
        return [msgspec.json.encode(name)[1:-1] for name in names]
    return whole[2:-2].split(b'","')


class NameTable:
    """Unique names by number, as rows. No name has a quote, a backslash or a comma."""

    def __init__(self, quoted: Sequence[bytes]) -> None:
        lengths = [*map(len, quoted)]
        self.width = -(-(max(lengths) + 1) // _WORD) * _WORD
        """Bytes a row; room for the name, its quotes and a comma."""
        self.least_bytes = min(lengths) + 1
        """Of a name, its quotes and a comma."""
        self._row = np.dtype(f"V{self.width}")
        held = np.array([name.rjust(self.width, b"\0") for name in quoted], f"S{self.width}")
        matrix = held.view(np.uint8).reshape(len(quoted), self.width)
        self._held = _as_words(matrix)
        self._is_sparse = min(lengths) >= _WORD
        """Whether a list of names has at most one comma in each word."""
        text = np.full_like(matrix, _COMMA)
        text[:, :-1] = np.where(matrix == 0, np.uint8(_SPACE), matrix)[:, 1:]
        self._text = _as_words(text)
        self._framed: Words | None = None
        # only the first words of a row may begin before the name
        self._head = (self.width - min(lengths) + _WORD - 1) // _WORD
        is_name = np.tri(self.width + 1, self.width, -1, dtype=np.uint8)[:, ::-1]
        self._masks = _as_words(is_name * np.uint8(255))[:, : self._head].copy()
        chance = Random(_SEED)  # noqa: S311 - not for secrets; numpy's generators take 3 MiB of memory
        for columns in (self._differing_columns(chance), [*range(self._held.shape[1])]):
            self._columns, self._factors = columns, _odd_numbers(chance, len(columns))
            self._hashes = self._hash(self._held)
            if len(np.unique(self._hashes)) == len(self._hashes):
                break
        self._tables = _build_hash_tables(self._hashes, chance)

    def _differing_columns(self, chance: Random) -> list[int]:
        """Columns of words that tell some names apart, the best one first."""
        count, width = self._held.shape
        sample = self._held[chance.sample(range(count), min(count, _SAMPLE))]
        ranks = [np.unique(sample[:, column], return_inverse=True)[1] for column in range(width)]
        columns: list[int] = []
        groups = np.zeros(len(sample), np.intp)
        while not columns or groups.max() + 1 < len(sample):
            divided = [np.unique(groups * len(sample) + rank, return_inverse=True)[1] for rank in ranks]
            columns.append(max(range(width), key=lambda column: int(divided[column].max())))
            groups = divided[columns[-1]]
        return columns

    def _hash(self, words: Words) -> NDArray[np.uint64]:
        hashes: NDArray[np.uint64] = words[:, self._columns[0]] * self._factors[0]
        for column, factor in zip(self._columns[1:], self._factors[1:], strict=True):
            hashes += words[:, column] * factor
        return hashes

    def read(  # complexity: one condition for each form that is not accepted
        self, text: bytes, start: int = 0, end: int | None = None
    ) -> Numbers | None:
        """The numbers of a JSON list of names, `text[start:end]`, in the form that Go, msgspec and Python write.

        None for other forms and invalid JSON, or if a name is unknown: then use the slower decoder.
        """
        end = len(text) if end is None else end
        if end - start < len("[]") or not (text.startswith(b"[", start) and text.endswith(b"]", start, end)):
            return None
        start, end = start + 1, end - 1
        # rows have zeros before the names
        if text.find(b"\0", start, end) >= 0:
            return None
        if start < self.width:  # rows begin before the list
            text, start, end = bytes(self.width) + text, start + self.width, end + self.width
        comma = text.find(b",", start, end)
        separator = b", " if comma >= 0 and text[comma + 1] == _SPACE else b","
        gap = len(separator)
        parts = [np.empty(0, np.int32)]
        if start == end:
            end -= gap  # an empty list, and not a list after a comma
        while start != end + gap:
            part_end = (
                end if end - start <= _PART_BYTES else text.rfind(separator, start, start + _PART_BYTES)
            )
            numbers = self._find_numbers(text, start, part_end, gap) if part_end > start else None
            if numbers is None:
                return None
            parts.append(numbers)
            start = part_end + gap
        node_numbers: Numbers = np.concatenate(parts).astype(np.intp)
        return node_numbers

    def _find_numbers(self, text: bytes, start: int, end: int, gap: int) -> NDArray[np.int32] | None:
        """The numbers of `"a","b"`, with a space after each comma if `gap` is 2; None if a name is unknown."""
        listed = np.frombuffer(text, np.uint8, end - start, start)
        ends = np.append(_find_byte(listed, _COMMA, is_sparse=self._is_sparse), len(listed))
        if gap > 1 and (listed.take(ends[:-1] + 1, mode="clip") != _SPACE).any():
            return None
        lengths = ends - gap
        lengths[1:] -= ends[:-1]
        lengths[0] = ends[0]
        if lengths.max() >= self.width:
            return None
        rows = np.ndarray((len(listed) + 1,), self._row, text, start - self.width, strides=(1,))[ends]
        words = rows.view(np.uint64).reshape(len(rows), -1)
        words[:, : self._head] &= self._masks.take(lengths, 0, mode="clip")
        hashes = self._hash(words)
        numbers = self._tables[0].numbers(hashes)
        left = (self._hashes.take(numbers) != hashes).nonzero()[0]
        for table in self._tables[1:]:
            if not len(left):
                break
            left_hashes = hashes.take(left)
            numbers[left] = left_numbers = table.numbers(left_hashes)
            left = left[self._hashes.take(left_numbers) != left_hashes]
        return numbers if np.array_equal(self._held.take(numbers, 0), words) else None

    def text(self, numbers: Numbers) -> Words:
        """A copy of each name as a JSON string, after spaces and before a comma."""
        return self._text.take(numbers, 0)

    def framed_text(self, before: Words, after: Words, numbers: Numbers) -> Words:
        """The same between these words, which are the same in every call."""
        if self._framed is None:
            count = len(self._text)
            frame = [np.broadcast_to(words, (count, len(words))) for words in (before, after)]
            self._framed = np.concatenate((frame[0], self._text, frame[1]), axis=1)
        return self._framed.take(numbers, 0)


class _HashTable(NamedTuple):
    factor: np.uint64
    shift: np.uint64
    held: NDArray[np.int32]

    def places(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        return ((hashes * self.factor) >> self.shift).view(np.int64)

    def numbers(self, hashes: NDArray[np.uint64]) -> NDArray[np.int32]:
        """The number at the place of each hash, whether or not it has this hash."""
        return self.held.take(self.places(hashes))


def _build_hash_tables(hashes: NDArray[np.uint64], chance: Random) -> Sequence[_HashTable]:
    """Tables, each for the numbers that collide in the one before."""
    tables: list[_HashTable] = []
    left = np.arange(len(hashes), dtype=np.int32)
    while len(left) and len(tables) < _MOST_TABLES:  # so that it ends, whatever the hashes are
        bits = max(len(left) * _SPREAD - 1, 1).bit_length()
        table = _HashTable(_odd_numbers(chance, 1)[0], np.uint64(64 - bits), np.zeros(1 << bits, np.int32))
        places = table.places(hashes[left])
        table.held[places] = left
        tables.append(table)
        left = left[table.held[places] != left]
    return tables


def _odd_numbers(chance: Random, count: int) -> NDArray[np.uint64]:
    return np.array([chance.getrandbits(64) | 1 for _ in range(count)], np.uint64)


def _as_words(matrix: NDArray[np.uint8]) -> Words:
    return np.ascontiguousarray(matrix).view(np.uint64)


def _find_byte(values: NDArray[np.uint8], byte: int, *, is_sparse: bool) -> Numbers:
    """The positions of a byte. If `is_sparse`, at most one of 8 neighbours and none of the last 7 values is equal to
    it: then the search takes half of the time, and it finds too few where that is wrong.
    """
    is_byte = values == byte
    if not is_sparse:
        return np.flatnonzero(is_byte)
    words = is_byte[: len(values) // _WORD * _WORD].view("<u8")
    at = (words != 0).nonzero()[0]
    # a flag is 1 in its byte; of the number below, all lower bits are 1
    positions: Numbers = (at << 3) + (np.bitwise_count(words.take(at) - np.uint64(1)) >> 3)
    return positions


def build_name_table(names: Sequence[str]) -> NameTable | None:
    """The table of these names; None if rows of equal width would be much longer than the names, or for names with
    characters that node names do not have.
    """
    listed = msgspec.json.encode(names)
    if b"\\" in listed or listed.count(b",") >= max(len(names), 1):
        return None
    quoted = listed[1:-1].split(b",") if names else []
    if not quoted or max(map(len, quoted)) * len(quoted) > _MOST_WASTE * len(listed):
        return None
    return NameTable(quoted)


_NONE: Final[Mapping[int, str]] = MappingProxyType({})
_read_list: Final = msgspec.json.Decoder(list[str]).decode


class NodeIndex:
    """An immutable numbering of nodes in the given order. `len(index)` is the number of unknown nodes' entry."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        self.names: NDArray[np.object_] = np.array([*self._numbers, None], dtype=object)
        """Names by number; None for the unknown node."""

    @cached_property
    def table(self) -> NameTable | None:
        """The table of names, built on first use; None if the lengths of the names differ too much."""
        return build_name_table(list(self._numbers))

    @property
    def least_bytes(self) -> int:
        """Of a known name in a JSON list, with its comma, at least."""
        return self.table.least_bytes if self.table else len('"",')

    def prepare(self) -> None:
        """Build the table in advance, so that no request waits for it: about 2 ms for 5,000 names."""
        _ = self.table

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, name: object) -> bool:
        return name in self._numbers

    @property
    def known(self) -> Sequence[str]:
        """The names in order, without the unknown node."""
        return tuple(self._numbers)

    @cached_property
    def every(self) -> "Names":
        """All of them, in order."""
        return Names(self, np.arange(len(self)))

    def numbers(self, names: Sequence[str]) -> Numbers:
        """The number of each name, in the same order; `len(self)` for an unknown node."""
        numbers = map(self._numbers.get, names, repeat(len(self._numbers)))
        return np.fromiter(numbers, np.intp, len(names))

    def named(self, names: "Sequence[str] | Names") -> "Names":
        """The same names with numbers of this index."""
        if isinstance(names, Names):
            return names if names.index is self else self.named(names.tolist())
        numbers = self.numbers(names)
        strange = {
            position: names[position] for position in np.flatnonzero(numbers == len(self._numbers)).tolist()
        }
        return Names(self, numbers, strange)

    def read(self, listed: bytes) -> "Names":
        """The names in a JSON list. msgspec.MsgspecError or UnicodeDecodeError if it is not a list of names."""
        return self.find(listed) or self.named(_read_list(listed))

    def find(self, text: bytes, start: int = 0, end: int | None = None) -> "Names | None":
        """The names in a JSON list, `text[start:end]`, if all are known and the table can find them; else None."""
        if (len(text) if end is None else end) - start <= _SHORT_BYTES:
            try:
                names = self.named(_read_list(memoryview(text)[start:end]))
            except UNREADABLE:
                return None
            return None if names.strange else names
        numbers = self.table.read(text, start, end) if self.table else None
        return None if numbers is None else Names(self, numbers)


def node_bits(mask: NDArray[np.bool_]) -> int:
    """A mask by node number as the bits of one number, which takes an eighth of the memory."""
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


class Names(msgspec.Struct, eq=False, gc=False):
    """Node names by position, stored as numbers of an index: values per node are looked up without thousands of
    strings. Indexing, iteration and `tolist` return names.
    """

    index: NodeIndex
    numbers: Numbers
    strange: Mapping[int, str] = _NONE
    """Unknown names, by position."""

    @classmethod
    def of(cls, names: Sequence[str]) -> "Names":
        """These names, with a new index."""
        return NodeIndex(names).named(names)

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: NDArray[Any]) -> NDArray[np.object_]: ...

    def __getitem__(self, at: int | NDArray[Any]) -> str | NDArray[np.object_]:
        """The name at a position, or those at the positions of an array or a mask."""
        if isinstance(at, int):
            return self.strange[at] if at in self.strange else str(self.index.names[self.numbers[at]])
        if self.strange:
            chosen: NDArray[np.object_] = self._all_names_in_order()[at]
            return chosen
        names: NDArray[np.object_] = self.index.names[self.numbers[at]]
        return names

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def tolist(self) -> list[str]:
        """All names, in order."""
        names: list[str] = self._all_names_in_order().tolist()
        return names

    def _all_names_in_order(self) -> NDArray[np.object_]:
        names: NDArray[np.object_] = self.index.names[self.numbers]
        for position, name in self.strange.items():
            names[position] = name
        return names

    @property
    def nbytes(self) -> int:
        """Approximate memory in bytes, without the index."""
        return self.numbers.nbytes + sum(100 + len(name) for name in self.strange.values())
