"""What is known of each pod type on each node: bounded, laid out by node number, and as JSON to be kept.

{"version": 1, "until": 1763720000, "types": {"default/web": {"n1": [reward, tried, recent, at], ...}, ...}}
"""

from collections import Counter
from collections.abc import Generator, Mapping
from itertools import chain
from typing import Annotated, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import NodeIndex
from nodewise.agents.learned.rewards import Floats, Pair, Rule
from nodewise.errors import UNREADABLE, BadInput, Problem, shown

VERSION: Final = 1
_TYPES: Final = 1000
_PAIRS: Final = 50_000
"""So much is held; the types of which nothing was heard for longest go first."""
_MOST_BYTES: Final = 500_000
"""So much is kept."""
_MOST_READ_BYTES: Final = 2**20
_Name = Annotated[str, msgspec.Meta(max_length=400)]
"""A namespace and a pod's name have less."""
_GONE_S: Final = 86400.0
"""What is known of a node that is gone is held for a day, or a half-life: it may come back."""


class Known(NamedTuple):
    """One type, by place: nodes in the order of their numbers. Never changes."""

    nodes: NDArray[np.intp]
    """Node numbers."""
    rewards: Floats
    """At their times."""
    tried: NDArray[np.int64]
    recent: Floats
    at: Floats


class _Type:
    """What is known of a type, by node name; the rest is made of it when it is needed."""

    def __init__(self, pairs: Mapping[str, Pair]) -> None:
        self.pairs = dict(pairs)
        self.known: Known | None = None
        self.text = b""

    def put(self, node: str, pair: Pair) -> None:
        self.pairs[node] = pair
        self.known, self.text = None, b""

    def drop(self, node: str) -> None:
        del self.pairs[node]
        self.known, self.text = None, b""

    def lay_out(self, index: NodeIndex) -> Known:
        names = list(self.pairs)
        numbers = index.numbers(names)
        there = np.flatnonzero(numbers < len(index))
        order = there[np.argsort(numbers[there])]
        every = np.fromiter(chain.from_iterable(self.pairs.values()), np.float64)
        rewards, tried, recent, at = every.reshape(-1, len(Pair._fields))[order].T
        self.known = Known(numbers[order], rewards, tried.astype(np.int64), recent, at)
        return self.known


class Kept(msgspec.Struct, frozen=True):
    """What was kept."""

    version: int
    until: float
    """What happened until then is in it, seconds since 1970."""
    types: dict[_Name, dict[_Name, Pair]]


class Memory:
    """The state of what is learned. Types stand in the order in which something was heard of them."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._types: dict[str, _Type] = {}
        self._pairs = 0
        self._index = NodeIndex()
        self.changes = 0
        """Grows with everything that is learned."""

    def __len__(self) -> int:
        """Types."""
        return len(self._types)

    def pair(self, type_: str, node: str) -> Pair | None:
        found = self._types.get(type_)
        return found.pairs.get(node) if found else None

    def teach(self, type_: str, node: str, reward: float, times: int, now: float) -> None:
        """A pod of that type came to this on the node."""
        self._put(type_, node, self._rule.taught(self.pair(type_, node), reward, times, now))
        self._trim()

    def _put(self, type_: str, node: str, pair: Pair) -> None:
        one = self._types.pop(type_, None) or _Type({})
        self._types[type_] = one  # at the end: it was heard of last
        self._pairs += node not in one.pairs
        one.put(node, pair)
        self.changes += 1

    def _trim(self) -> None:
        """Forget what is too much: of the namespace that has the most, what was heard of longest ago.

        Who may make pods can make up types, and shall push out nobody else's.
        """
        while len(self._types) > _TYPES or (self._pairs > _PAIRS and len(self._types) > 1):
            held: Counter[str] = Counter()
            for name, one in self._types.items():
                held[name.partition("/")[0]] += len(one.pairs)
            (most, _), *_ = held.most_common(1)
            oldest = next(name for name in self._types if name.partition("/")[0] == most)
            self._pairs -= len(self._types.pop(oldest).pairs)

    def lay_out(self, index: NodeIndex, now: float) -> Generator[None, None, dict[str, Known]]:
        """By type, what is known of nodes of the index."""
        is_new = index is not self._index
        self._index = index
        found: dict[str, Known] = {}
        for name, one in list(self._types.items()):
            if is_new:
                self._forget_gone(one, now)
            if is_new or one.known is None:
                found[name] = one.lay_out(index)
                yield
            else:
                found[name] = one.known
        return found

    def _forget_gone(self, one: _Type, now: float) -> None:
        before = now - max(self._rule.half_life_s, _GONE_S)
        gone = [node for node, pair in one.pairs.items() if pair.at < before and node not in self._index]
        for node in gone:
            one.drop(node)
        self._pairs -= len(gone)

    def take(self, kept: Kept, *, as_earlier: bool) -> None:
        """Take over what was kept.

        `as_earlier`: it happened before all that is known here. Otherwise it is the same, seen by somebody else, and
        whoever saw more of a pair is right.
        """
        for type_, pairs in kept.types.items():
            if type_ not in self._types:
                self._types[type_] = _Type(pairs)
                self._pairs += len(pairs)
                self.changes += len(pairs)
                continue
            for node, given in pairs.items():
                own = self.pair(type_, node)
                if own is None or (given.tried > own.tried and not as_earlier):
                    self._put(type_, node, given)
                elif as_earlier:
                    self._put(type_, node, self._rule.after(given, own))
        self._trim()

    def text(self, until: float) -> bytes:
        """All of it as JSON, of at most 500,000 bytes: what was heard of last first.

        Of a type that does not fit as a whole the nodes that differ most from the prior are kept.
        """
        room = _MOST_BYTES
        parts: list[bytes] = []
        for name, one in reversed(self._types.items()):
            if not one.text:
                one.text = msgspec.json.encode(one.pairs)
            key = msgspec.json.encode(name) + b":"
            text = one.text if len(one.text) + len(key) < room else self._fitting(one, room - len(key))
            if not text:
                break
            parts.append(key + text)
            room -= len(key) + len(text) + 1
        # the newest come last, as they are held, so that they are the last to be forgotten by who reads it
        types = b",".join(reversed(parts))
        return b'{"version":%d,"until":%d,"types":{%s}}' % (VERSION, int(until), types)

    def _fitting(self, one: _Type, room: int) -> bytes:
        """As many nodes as there is room for; none if there is none for any."""
        telling = sorted(one.pairs.items(), key=lambda item: -abs(item[1].reward - self._rule.prior))
        texts = [msgspec.json.encode({node: pair})[1:-1] for node, pair in telling]
        count = int(np.searchsorted(np.cumsum([len(text) + 1 for text in texts]), room, "right"))
        return b"{" + b",".join(texts[:count]) + b"}" if count else b""


def read(kept: bytes) -> Kept:
    """What was kept. `BadInput` names what is wrong with it."""
    if len(kept) > _MOST_READ_BYTES:
        raise _unreadable("", f"{len(kept)} bytes", f"at most {_MOST_READ_BYTES}")
    try:
        found = msgspec.json.decode(kept, type=Kept)
    except UNREADABLE as error:
        raise _unreadable("", str(error), "what nodewise wrote") from error
    if found.version != VERSION:
        raise _unreadable("version", shown(found.version), str(VERSION))
    return found


def _unreadable(field: str, seen: str, wanted: str) -> BadInput:
    return BadInput("what learned kept", [Problem(field, seen, wanted)])
