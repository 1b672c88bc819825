"""Pods in, the learned slot of the snapshot out; the same code online and offline, and the same in every replica.

The changes of pods show what happened. The first cluster state is the start: what its pods came to before is known if
it was kept, or else not counted, so a restart learns nothing twice. Where something was kept, what happened since then
is caught up on, as far as pods still show it.
"""

import heapq
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from math import inf, isnan
from typing import Final, NamedTuple

from nodewise.agent import ClusterState, Inputs, NodeIndex, ObjectKey, StateBuilder
from nodewise.agents.learned import memory as memories
from nodewise.agents.learned import outcomes
from nodewise.agents.learned.memory import Known, Memory
from nodewise.agents.learned.options import LearnedOptions
from nodewise.agents.learned.outcomes import Outcome
from nodewise.agents.learned.pods import LivingPod, key, living_type
from nodewise.agents.learned.rewards import Rule
from nodewise.errors import BadInput
from nodewise.state import Change, Changes, difference

PODS: Final = "learned_pods"
"""The key of the pods in `World.objects`."""
_STRIDE: Final = 64
"""Pods that are looked at between two pauses."""
_SORTED: Final = 512
"""News that are put in order at once."""
_PAUSE_S: Final = 1.0
"""Between two looks: to lay out what is known takes some milliseconds, and pods change many times a second."""
_PATIENCE_S: Final = 300.0
"""So long after the first world it may still be told what was kept."""

Pods = Mapping[ObjectKey, LivingPod]


class Slot(NamedTuple):
    """All that is known, at that time."""

    nodes: NodeIndex
    types: Mapping[str, Known]
    """By the type's key."""
    now: float


class _First(NamedTuple):
    """The first world."""

    pods: Pods
    now: float


class _News(NamedTuple):
    """What one pod came to."""

    type: str
    node: str
    outcome: Outcome


class _Offer(NamedTuple):
    """What is to be kept, and until which change."""

    text: bytes
    changes: int


class LearnedState(StateBuilder[Slot]):
    """Watches pods, and remembers."""

    inputs = Inputs(frozenset({PODS}), metrics=False)
    memory_scope = "leader"

    def __init__(self, options: LearnedOptions) -> None:
        rule = Rule(options.learned_prior, options.learned_half_life_s, options.learned_exploration)
        self._mttf_s = options.learned_mttf_s
        self._memory = Memory(rule)
        self._pods: Pods | None = None
        """Of the newest cluster state."""
        self._changes: dict[ObjectKey, Change[LivingPod]] = {}
        """Those that were not looked at yet."""
        self._until = 0.0
        """What happened until then was learned from."""
        self._first: _First | None = None
        """While it may still be told what was kept."""
        self._caught_up_from: float | None = None
        """What happened since then is still to be caught up on."""
        self._news: deque[_News] = deque()
        """Seen, and not yet learned from."""
        self._slot: Slot | None = None
        """The newest."""
        self._kept: _Offer | None = None
        self._offered: _Offer | None = None

    def build(self, cluster_state: ClusterState) -> Generator[None, None, Slot]:
        """Learn from what happened since the last look.

        If it is given up half-way nothing is lost or counted twice.
        """
        self._note_changes(cluster_state)
        if self._slot is not None and self._is_early(self._slot, cluster_state):
            return self._slot
        yield from self._look()
        if self._first is not None and self._caught_up_from is not None:
            yield from self._catch_up(self._first.pods, self._caught_up_from)
        elif self._first is not None and cluster_state.now - self._first.now > _PATIENCE_S:
            self._first = None
        for number in range(len(self._news)):
            type_, node, outcome = self._news.popleft()
            self._memory.teach(type_, node, outcome.reward, outcome.times, cluster_state.now)
            if not number % _STRIDE:
                yield
        self._until = cluster_state.now
        types = yield from self._memory.lay_out(cluster_state.nodes, cluster_state.now)
        self._slot = Slot(cluster_state.nodes, types, cluster_state.now)
        return self._slot

    def _is_early(self, before: Slot, cluster_state: ClusterState) -> bool:
        """Whether another look can wait for the next change, or the next refresh."""
        is_waited_for = bool(self._news) or self._caught_up_from is not None
        return (
            cluster_state.nodes is before.nodes
            and 0 <= cluster_state.now - before.now < _PAUSE_S
            and not is_waited_for
        )

    def _note_changes(self, cluster_state: ClusterState) -> None:
        """What was noted is not lost, whether or not this build succeeds."""
        pods: Pods = cluster_state.objects.get(PODS, {})
        if self._pods is None:
            self._first = _First(pods, cluster_state.now)
        elif cluster_state.changes is None:
            self._merge(difference(self._pods, pods))
        else:
            self._merge(cluster_state.changes.get(PODS, {}))
        self._pods = pods

    def _merge(self, changes: Changes[LivingPod]) -> None:
        for pod, change in changes.items():
            earlier = self._changes.get(pod, change)
            self._changes[pod] = Change(earlier.old, change.new)

    def _look(self) -> Generator[None, None, None]:
        news: list[_News] = []
        for number, (before, after) in enumerate(self._changes.values()):
            if after is not None and before is not after:
                is_same = before is not None and before.metadata.uid == after.metadata.uid
                news += _news(after, outcomes.between(before if is_same else None, after, self._mttf_s))
            if not number % _STRIDE:
                yield
        ordered = yield from _in_order(news)
        self._changes = {}
        self._news.extend(ordered)

    def _catch_up(self, pods: Pods, since_s: float) -> Generator[None, None, None]:
        found: list[_News] = []
        for number, pod in enumerate(pods.values()):
            found += _news(pod, outcomes.since(pod, since_s, self._mttf_s))
            if not number % _STRIDE:
                yield
        ordered = yield from _in_order(found)
        self._first = self._caught_up_from = None
        self._news.extendleft(reversed(ordered))

    def recall(self, kept: bytes) -> None:
        """Go on from what was kept. `BadInput` if it cannot be read."""
        if self._offered is not None and kept == self._offered.text:
            self._kept = self._offered
            return
        found = memories.read(kept)
        news = self._memory.changes
        self._memory.take(found, as_earlier=True)
        if self._pods is None or self._first is not None:
            self._caught_up_from = found.until
        self._kept = _Offer(kept, -1 if news else self._memory.changes)

    def keep(self, kept: bytes | None) -> bytes | None:
        """All that is known, if that is news. All replicas see the same, so who leads may write over what is kept."""
        known = self._kept
        if kept is not None and (known is None or kept != known.text):
            self._fold(kept)
        elif self._memory.changes == (known.changes if known is not None and kept is not None else 0):
            return None
        if not len(self._memory):
            return None
        self._offered = _Offer(self._memory.text(self._until), self._memory.changes)
        return self._offered.text

    def _fold(self, kept: bytes) -> None:
        """Somebody else wrote; what they know of pairs that we never heard of is not lost."""
        try:
            self._memory.take(memories.read(kept), as_earlier=False)
        except BadInput:
            return  # it is written over


def _news(pod: LivingPod, outcome: Outcome | None) -> list[_News]:
    if outcome is None:
        return []
    return [_News(key(pod.metadata.namespace, living_type(pod)), pod.spec.nodeName, outcome)]


def _in_order(news: Sequence[_News]) -> Generator[None, None, list[_News]]:
    """The order in which it happened, as the newest counts most; what has no time comes last."""
    parts = []
    for start in range(0, len(news), _SORTED):
        parts.append(sorted(news[start : start + _SORTED], key=_happened))
        yield
    found: list[_News] = []
    for one in heapq.merge(*parts, key=_happened):
        found.append(one)
        if not len(found) % _STRIDE:
            yield
    return found


def _happened(one: _News) -> float:
    return inf if isnan(one.outcome.at) else one.outcome.at
