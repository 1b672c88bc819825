"""Decisions: what each agent said of each candidate, kept as values in a ring that is bounded by bytes."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import Details, Evidence, Scores, Verdict
from nodewise.metrics.node_index import Names

Verb = Literal["filter", "prioritize", "preempt", "bind"]
_FIXED_BYTES = 1500
"""What a decision costs besides its arrays: the structs, the pod's names, the reasons."""


class PodRef(msgspec.Struct, frozen=True, gc=False):
    """Which pod."""

    namespace: str
    name: str
    uid: str = ""


class Decision(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One answer. All arrays are by candidate, in the order of the request."""

    verb: Verb
    pod: PodRef
    at: float
    """Seconds since 1970."""
    generation: int
    """Of the snapshot that it was made from."""
    names: Names
    """The candidates' names."""
    verdicts: tuple[tuple[str, Verdict], ...] = ()
    """By agent, those that had something to say."""
    scores: tuple[tuple[str, Scores], ...] = ()
    description: str = ""
    """What a bind came to, in words: what the pod holds, or why it is not on the node. What scores lack, and why."""

    def kept(self) -> NDArray[np.bool_]:
        """Which candidates no agent rejects."""
        kept = np.ones(len(self.names), bool)
        for _, verdict in self.verdicts:
            kept &= verdict.codes == 0
        return kept

    def points(self) -> NDArray[np.int64]:
        """Each candidate's score: the weighted mean of those that were given, rounded; 0 where none were."""
        total = sum(scores.weight for _, scores in self.scores)
        if not total:
            return np.zeros(len(self.names), np.int64)
        weighed = np.sum([scores.weight * scores.points for _, scores in self.scores], axis=0)
        mean: NDArray[np.int64] = np.rint(weighed / total).astype(np.int64)
        return mean

    def evidence(self) -> Iterator[Evidence]:
        """All values that the decision rests on."""
        for _, verdict in self.verdicts:
            yield from verdict.evidence
        for _, scores in self.scores:
            yield from scores.evidence

    def details(self) -> Iterator[tuple[str, Details]]:
        """What agents know besides, by agent: of verdicts, then of scores."""
        for agent, verdict in self.verdicts:
            if verdict.details is not None:
                yield agent, verdict.details
        for agent, scores in self.scores:
            if scores.details is not None:
                yield agent, scores.details

    def size_bytes(self) -> int:
        """What keeping this decision costs, near enough."""
        arrays = self.names.nbytes
        arrays += sum(verdict.codes.nbytes for _, verdict in self.verdicts)
        arrays += sum(details.nbytes for _, details in self.details())
        arrays += sum(scores.points.nbytes for _, scores in self.scores)
        arrays += sum(e.values.nbytes + e.states.nbytes + e.ages_s.nbytes for e in self.evidence())
        texts = (self.pod.namespace, self.pod.name, self.pod.uid, self.description)
        return arrays + sum(map(len, texts)) + _FIXED_BYTES


class DecisionRing:
    """The newest decisions, as many as fit into `max_bytes`."""

    def __init__(self, max_bytes: int = 64 * 2**20) -> None:
        self._max_bytes = max_bytes
        self._kept: deque[tuple[Decision, int]] = deque()
        self._by_pod: dict[tuple[str, str], deque[Decision]] = {}
        self.size_bytes = 0

    def add(self, decision: Decision) -> None:
        """Keep a decision; the oldest make room."""
        size = decision.size_bytes()
        self._kept.append((decision, size))
        self._by_pod.setdefault(_key(decision), deque()).append(decision)
        self.size_bytes += size
        while self.size_bytes > self._max_bytes and self._kept:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest, size = self._kept.popleft()
        self.size_bytes -= size
        same = self._by_pod[_key(oldest)]
        same.popleft()  # a pod's decisions leave in the order in which they came
        if not same:
            del self._by_pod[_key(oldest)]

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def since(self) -> float | None:
        """When the oldest decision that is kept was made, seconds since 1970."""
        return self._kept[0][0].at if self._kept else None

    def about(self, namespace: str = "", name: str = "") -> Sequence[Decision]:
        """All about some pods, the oldest first; an empty namespace or name means any. Both given: no search."""
        if namespace and name:
            return self._by_pod.get((namespace, name), ())
        return [
            decision
            for decision, _ in self._kept
            if namespace in {"", decision.pod.namespace} and name in {"", decision.pod.name}
        ]


def _key(decision: Decision) -> tuple[str, str]:
    return decision.pod.namespace, decision.pod.name
