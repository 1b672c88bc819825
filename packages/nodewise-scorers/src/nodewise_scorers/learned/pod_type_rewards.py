"""The estimated rewards of each pod type on each node: bounded, by node number, and in the JSON form that is stored.

{"version": 1, "until": 1763720000, "types": {"default/web": {"n1": [reward, tried, recent, at], ...}, ...}}

The learning rule: an estimate R becomes 0.9 R + 0.1 r with each reward r, and fades to the prior over time.

This is the rule of kubeRL, an exponentially weighted mean. Without fading, a node that failed once would never be tried
again, and its recovery would not be noticed. Tries fade as well, for exploration: the bonus is that of
discounted UCB (Garivier and Moulines, 2011).
"""

from collections import Counter
from collections.abc import Generator, Mapping
from itertools import chain
from typing import Annotated, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from nodewise.agent import NodeIndex
from nodewise.base.errors import UNREADABLE, BadInput, Problem, shown

RATE: Final = 0.1
"""The weight of the newest reward."""

Floats = NDArray[np.float64]


_MAX_EXACT: Final = 2**53  # a double holds every whole number up to here


class RewardEstimate(NamedTuple):
    reward: Annotated[float, msgspec.Meta(ge=0, le=1)]
    """As of `at`."""
    tried: Annotated[int, msgspec.Meta(ge=1, le=_MAX_EXACT)]
    """The number of rewards."""
    recent: Annotated[float, msgspec.Meta(ge=0, le=_MAX_EXACT)]
    """The number of rewards, weighted by how little each has faded."""
    at: Annotated[float, msgspec.Meta(ge=-_MAX_EXACT, le=_MAX_EXACT)]
    """The time of the newest reward, in seconds since 1970."""


class LearningRule(NamedTuple):
    """The parameters and formulas of learning."""

    prior: float
    half_life_s: float
    """0: nothing fades."""
    exploration: float = 0.0

    def remaining_weight(self, age_s: ArrayLike) -> Floats:
        """The weight that an estimate keeps after a time; 1 if the clock was set back."""
        age = np.maximum(np.asarray(age_s, np.float64), 0.0)
        return np.exp2(-age / self.half_life_s) if self.half_life_s else np.ones_like(age)

    def update(
        self, estimate: RewardEstimate | None, reward: float, times: int, now: float
    ) -> RewardEstimate:
        """The estimate after a reward that came `times` times at once."""
        before = estimate or RewardEstimate(self.prior, 0, 0.0, now)
        left = float(self.remaining_weight(now - before.at))
        weight = (1 - RATE) ** times
        faded = self.prior + (before.reward - self.prior) * left
        reward_after = weight * faded + (1 - weight) * reward
        return _round_to_stored_digits(
            reward_after, before.tried + times, before.recent * left + times, max(now, before.at)
        )

    def after(self, earlier: RewardEstimate, later: RewardEstimate) -> RewardEstimate:
        """The estimate `later` as if it had started from `earlier` instead of the prior."""
        left = float(self.remaining_weight(later.at - earlier.at))
        lasting = left * (1 - RATE) ** later.tried
        reward = later.reward + (earlier.reward - self.prior) * lasting
        tried = earlier.tried + later.tried
        return _round_to_stored_digits(
            min(max(reward, 0.0), 1.0), tried, earlier.recent * left + later.recent, later.at
        )

    def bonus(self, recent: Floats, total: float) -> Floats:
        """The exploration bonus of nodes by their recent tries, given the total of all nodes."""
        bonus: Floats = self.exploration * np.sqrt(np.log1p(total) / (1 + recent))
        return bonus


def _round_to_stored_digits(reward: float, tried: int, recent: float, at: float) -> RewardEstimate:
    return RewardEstimate(round(reward, 6), tried, round(recent, 3), round(at, 1))


VERSION: Final = 1
_MAX_TYPES: Final = 1000
_MAX_ESTIMATES: Final = 50_000
"""Limits of memory; the types without a reward for the longest time are removed first."""
_MAX_BYTES: Final = 500_000  # of the stored form
_MAX_READ_BYTES: Final = 2**20
_Name = Annotated[str, msgspec.Meta(max_length=400)]  # A namespace and the name of a pod together are shorter
_GONE_S: Final = 86400.0
"""Rewards of a deleted node are kept for a day, or a half-life: the node may come back."""


class TypeRewards(NamedTuple):
    """The rewards of one type as arrays in the order of node numbers. Immutable."""

    nodes: NDArray[np.intp]
    """Node numbers."""
    rewards: Floats
    """As of `at`."""
    tried: NDArray[np.int64]
    recent: Floats
    at: Floats


class _TypeEntry:
    """The estimates of a type by node name; arrays and text are computed when they are needed."""

    def __init__(self, estimates: Mapping[str, RewardEstimate]) -> None:
        self.estimates = dict(estimates)
        self.known: TypeRewards | None = None
        self.text = b""

    def lay_out(self, index: NodeIndex) -> TypeRewards:
        names = list(self.estimates)
        numbers = index.numbers(names)
        there = np.flatnonzero(numbers < len(index))
        order = there[np.argsort(numbers[there])]
        every = np.fromiter(chain.from_iterable(self.estimates.values()), np.float64)
        rewards, tried, recent, at = every.reshape(-1, len(RewardEstimate._fields))[order].T
        self.known = TypeRewards(numbers[order], rewards, tried.astype(np.int64), recent, at)
        return self.known


class StoredRewards(msgspec.Struct, frozen=True):
    version: int
    until: float
    """It includes all that happened until then, in seconds since 1970."""
    types: dict[_Name, dict[_Name, RewardEstimate]]


class RewardMemory:
    """The estimates of all types, ordered by the time of their last reward."""

    def __init__(self, rule: LearningRule) -> None:
        self._rule = rule
        self._types: dict[str, _TypeEntry] = {}
        self._estimate_count = 0
        self._index = NodeIndex()
        self.changes = 0
        """Increases with each reward."""

    def __len__(self) -> int:
        """Types."""
        return len(self._types)

    def estimate(self, type_: str, node: str) -> RewardEstimate | None:
        entry = self._types.get(type_)
        return entry.estimates.get(node) if entry else None

    def learn(self, type_: str, node: str, reward: float, times: int, now: float) -> None:
        """Learn from a reward that came `times` times at once."""
        self._put_estimate(type_, node, self._rule.update(self.estimate(type_, node), reward, times, now))
        self._evict_oldest_types()

    def _put_estimate(self, type_: str, node: str, estimate: RewardEstimate) -> None:
        entry = self._types.pop(type_, None) or _TypeEntry({})
        self._types[type_] = entry  # at the end: it has the newest reward
        self._estimate_count += node not in entry.estimates
        entry.estimates[node] = estimate
        entry.known, entry.text = None, b""
        self.changes += 1

    def _evict_oldest_types(self) -> None:
        """Remove the oldest types of the namespace with the most estimates until the limits hold.

        Anyone who may create pods can invent types, which must not displace those of other namespaces.
        """
        while len(self._types) > _MAX_TYPES or (
            self._estimate_count > _MAX_ESTIMATES and len(self._types) > 1
        ):
            held: Counter[str] = Counter()
            for name, entry in self._types.items():
                held[name.partition("/")[0]] += len(entry.estimates)
            (most, _), *_ = held.most_common(1)
            oldest = next(name for name in self._types if name.partition("/")[0] == most)
            self._estimate_count -= len(self._types.pop(oldest).estimates)

    def lay_out(self, index: NodeIndex, now: float) -> Generator[None, None, dict[str, TypeRewards]]:
        """The rewards of each type on the nodes of the index; yields between types."""
        is_new = index is not self._index
        self._index = index
        layouts: dict[str, TypeRewards] = {}
        for name, entry in list(self._types.items()):
            if is_new:
                self._forget_deleted_nodes(entry, now)
            if is_new or entry.known is None:
                layouts[name] = entry.lay_out(index)
                yield
            else:
                layouts[name] = entry.known
        return layouts

    def _forget_deleted_nodes(self, entry: _TypeEntry, now: float) -> None:
        before = now - max(self._rule.half_life_s, _GONE_S)
        gone = [
            node
            for node, estimate in entry.estimates.items()
            if estimate.at < before and node not in self._index
        ]
        for node in gone:
            del entry.estimates[node]
            entry.known, entry.text = None, b""
        self._estimate_count -= len(gone)

    def take(self, kept: StoredRewards, *, as_earlier: bool) -> None:
        """Merge stored rewards.

        `as_earlier`: they are older than all rewards here. Otherwise another replica learned from the same pods, and
        the estimate with more rewards counts.
        """
        for type_, estimates in kept.types.items():
            if type_ not in self._types:
                self._types[type_] = _TypeEntry(estimates)
                self._estimate_count += len(estimates)
                self.changes += len(estimates)
                continue
            for node, stored in estimates.items():
                own = self.estimate(type_, node)
                if own is None or (stored.tried > own.tried and not as_earlier):
                    self._put_estimate(type_, node, stored)
                elif as_earlier:
                    self._put_estimate(type_, node, self._rule.after(stored, own))
        self._evict_oldest_types()

    def text(self, until: float) -> bytes:
        """The stored form in at most 500,000 bytes, which holds the types with the newest rewards.

        Of a type that does not fit as a whole, it has the nodes that differ most from the prior.
        """
        free_bytes = _MAX_BYTES
        parts: list[bytes] = []
        for name, entry in reversed(self._types.items()):
            entry.text = entry.text or msgspec.json.encode(entry.estimates)
            key, text = msgspec.json.encode(name) + b":", entry.text
            if len(key) + len(text) >= free_bytes:
                text = self._encode_fitting(entry, free_bytes - len(key))
            if not text:
                break
            parts.append(key + text)
            free_bytes -= len(key) + len(text) + 1
        # the newest are last, as in memory, so that a reader removes them last
        types = b",".join(reversed(parts))
        return b'{"version":%d,"until":%d,"types":{%s}}' % (VERSION, int(until), types)

    def _encode_fitting(self, entry: _TypeEntry, free_bytes: int) -> bytes:
        """Encode as many nodes as fit, those that differ most from the prior first; empty if none fits."""
        by_difference = sorted(
            entry.estimates.items(), key=lambda item: -abs(item[1].reward - self._rule.prior)
        )
        texts = [msgspec.json.encode({node: estimate})[1:-1] for node, estimate in by_difference]
        count = int(np.searchsorted(np.cumsum([len(text) + 1 for text in texts]), free_bytes, "right"))
        return b"{" + b",".join(texts[:count]) + b"}" if count else b""


def parse_stored_rewards(kept: bytes) -> StoredRewards:
    """Parse the stored form. `BadInput` lists its problems."""
    if len(kept) > _MAX_READ_BYTES:
        raise _unreadable_rewards_error("", f"{len(kept)} bytes", f"at most {_MAX_READ_BYTES}")
    try:
        stored = msgspec.json.decode(kept, type=StoredRewards)
    except UNREADABLE as error:
        raise _unreadable_rewards_error("", str(error), "rewards in the form that nodewise stores") from error
    if stored.version != VERSION:
        raise _unreadable_rewards_error("version", shown(stored.version), str(VERSION))
    return stored


def _unreadable_rewards_error(field: str, value: str, expected: str) -> BadInput:
    return BadInput("stored rewards of the agent learned", [Problem(field, value, expected)])
