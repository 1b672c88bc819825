"""The node index: it gives each node a number, and everything per node is an array by that number.

Every such array has one entry more than there are nodes: the last one stands for a node that we do not know,
so that a request may name any node at all and look-ups need no branch.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat

import msgspec
import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.intp]


class NodeIndex:
    """An immutable numbering of nodes, in the order given. `len(index)` is the number of the unknown node."""

    __slots__ = ("_numbers", "encoded", "names")

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        self.names: NDArray[np.object_] = np.array([*self._numbers, None], dtype=object)
        """Names by number; None for the unknown node."""
        self.encoded: NDArray[np.object_] = np.array([*encoded(list(self._numbers)), None], dtype=object)
        """The same as the inside of a JSON string, so that an answer is joined and not encoded."""

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, name: object) -> bool:
        return name in self._numbers

    @property
    def known(self) -> Sequence[str]:
        """The names in order, without the unknown node."""
        return tuple(self._numbers)

    def numbers(self, names: Sequence[str]) -> Numbers:
        """The number of each name, in the same order; `len(self)` for a node that is not known."""
        found = map(self._numbers.get, names, repeat(len(self._numbers)))
        return np.fromiter(found, np.intp, len(names))


def encoded(names: Sequence[str]) -> list[bytes]:
    """Each name as the inside of a JSON string.

    All are encoded in one call and cut apart again, several times faster than one by one. Where no quote is inside a
    name, `","` stands between two names and nowhere else.
    """
    if not names:
        return []
    whole = msgspec.json.encode(names)
    if b'\\"' in whole:
        return [msgspec.json.encode(name)[1:-1] for name in names]
    return whole[2:-2].split(b'","')
