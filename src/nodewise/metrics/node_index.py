"""The node index assigns a number to each node. All values per node are arrays by that number.

Each array has one entry more than there are nodes. The last entry represents unknown nodes, so that a request may name
any node and lookups need no branch.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from types import MappingProxyType
from typing import Any, Final, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.metrics import node_name_json_rows
from nodewise.metrics.node_name_json_rows import NameTable, Numbers

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
        return node_name_json_rows.build_name_table(list(self._numbers))

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
