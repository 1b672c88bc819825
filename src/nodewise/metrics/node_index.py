"""The node index assigns a number to each node. All values per node are arrays by that number.

Each array has one entry more than there are nodes. The last entry represents unknown nodes, so that a request may name
any node and lookups need no branch. The names are also kept as JSON text in rows of equal width, which numpy decodes
and encodes all at once.

Decoding 5,000 names as strings and looking them up in a dict takes half a millisecond, mostly cache misses: each name
is a separate object, also in the dict. The rows are contiguous, so numpy needs only a few passes.

A row is looked up with a multilinear hash of its 8-byte words (Carter and Wegman 1979, "Universal classes of hash
functions") in two tables; the second one is for names that collide in the first. Matches are then compared completely.
A row is encoded as its name in quotes, padded with spaces and terminated by a comma; JSON allows spaces there. Rows are
selected with `take`, which takes a third of the time of indexing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from types import MappingProxyType
from typing import Any, Final, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.intp]
Rows = NDArray[np.void]
"""One item per name, each of `NameTable.width` bytes."""
Words = NDArray[np.uint64]
"""By row and word."""

_WORD: Final = 8
_QUOTE, _COMMA, _SPACE = b'", '
_SPREAD: Final = 4
"""Minimum number of slots of a table per name, so that few names collide."""
_MOST_WASTE: Final = 2
"""Limit of the ratio of rows to names in bytes. Above it there is no table, and names are looked up in a dict."""
_SEED: Final = 20_260


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
    """Unique names by number, as rows."""

    def __init__(self, quoted: Sequence[bytes]) -> None:
        longest = max(map(len, quoted))
        self.width = -(-(longest + 1) // _WORD) * _WORD
        """Bytes a row; room for the name, its quotes and a comma."""
        self._row = np.dtype(f"V{self.width}")
        held = np.array(quoted, f"S{self.width}").view(np.uint8).reshape(len(quoted), self.width)
        self._held = self._as_rows(held)
        text = np.where(held == 0, np.uint8(_SPACE), held)
        text[:, -1] = _COMMA
        self._text = self._as_rows(text)
        ends = np.tri(self.width + 1, self.width, -1, dtype=np.uint8)
        self._masks = self._as_rows(ends * np.uint8(255))
        self._build_hash_tables(self._rows_as_words(self._held))

    def _as_rows(self, matrix: NDArray[np.uint8]) -> Rows:
        rows: Rows = np.ascontiguousarray(matrix).reshape(-1).view(self._row)
        return rows

    def _rows_as_words(self, rows: Rows) -> Words:
        return rows.view(np.uint64).reshape(len(rows), -1)

    def _build_hash_tables(self, words: Words) -> None:
        """Choose hash factors and fill both tables; repeat with larger ones while names collide in both."""
        count = len(words)
        bits = max(count * _SPREAD - 1, 1).bit_length()
        every = np.arange(count, dtype=np.int32)
        chance = np.random.default_rng(_SEED)
        while True:
            self._shift = np.uint64(64 - bits)
            self._factors = chance.integers(0, 2**63, words.shape[1], np.uint64) * np.uint64(2) + np.uint64(1)
            self._again = chance.integers(0, 2**63, None, np.uint64) * np.uint64(2) + np.uint64(1)
            self._hashes = words @ self._factors
            places = self._hashes >> self._shift
            self._first = np.zeros(1 << bits, np.int32)
            self._first[places] = every
            left = np.flatnonzero(self._first[places] != every)
            places = self._hashes[left] * self._again >> self._shift
            self._second = np.zeros(1 << bits, np.int32)
            self._second[places] = left
            if np.array_equal(self._second[places], left):
                return
            # with 20,000 names and more, tables of the first size hardly ever suffice
            bits += 1

    def read(self, listed: bytes) -> Numbers | None:
        """The numbers of a JSON list of names in the form that Go and msgspec write.

        None for other forms, or if a name is unknown: then use the slower decoder. The bytes must be valid JSON.
        """
        if listed == b"[]":
            return np.empty(0, np.intp)
        quotes = np.flatnonzero(np.frombuffer(listed, np.uint8) == _QUOTE)
        starts, ends = quotes[0::2], quotes[1::2]
        if not _is_unescaped_list(listed, starts, ends):
            return None
        every = np.ndarray((len(listed),), self._row, listed + bytes(self.width), strides=(1,))
        words = self._rows_as_words(every[starts])
        words &= self._rows_as_words(self._masks.take(np.minimum(ends - starts + 1, self.width)))
        hashes = words @ self._factors
        numbers = self._first[hashes >> self._shift]
        left = np.flatnonzero(self._hashes[numbers] != hashes)
        numbers[left] = self._second[hashes[left] * self._again >> self._shift]
        if not np.array_equal(self._rows_as_words(self._held.take(numbers)), words):
            return None
        node_numbers: Numbers = numbers.astype(np.intp)
        return node_numbers

    def text(self, numbers: Numbers) -> Rows:
        """A copy of each name as a JSON string, followed by spaces and a comma."""
        rows: Rows = self._text.take(numbers)
        return rows


def build_name_table(names: Sequence[str]) -> NameTable | None:
    """The table of these names; None if rows of equal width would be much longer than the names."""
    quoted = [b'"' + name + b'"' for name in encode_names(names)]
    if not quoted or max(map(len, quoted)) * len(quoted) > _MOST_WASTE * sum(map(len, quoted)):
        return None
    return NameTable(quoted)


def _is_unescaped_list(listed: bytes, starts: NDArray[np.intp], ends: NDArray[np.intp]) -> bool:
    """Whether a JSON value is a list `["…","…"]` of strings without escapes.

    In valid JSON, a single byte between two strings of a list is a comma.
    """
    return (
        b"\\" not in listed
        and listed.startswith(b'["')
        and listed.endswith(b'"]')
        and len(starts) == len(ends)
        and bool((starts[1:] - ends[:-1] == len(',"')).all())
    )


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
        numbers = self.table.read(listed) if self.table else None
        return self.named(_read_list(listed)) if numbers is None else Names(self, numbers)


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
