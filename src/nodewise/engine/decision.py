"""Decisions: the verdicts and scores for one request, the ring buffer of the newest ones, and their events on pods."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import Details, Evidence, Scores, Verdict
from nodewise.kube.event_recorder import NO_NODE_PASSES, EventRecorder, ObjectReference
from nodewise.kube.resource_kinds import PODS
from nodewise.metrics.node_index import Names

Verb = Literal["filter", "prioritize", "preempt", "bind"]
_FIXED_BYTES = 1500
"""The memory of a decision without its arrays: structs, names and reasons."""


class PodRef(msgspec.Struct, frozen=True, gc=False):
    namespace: str
    name: str
    uid: str = ""


class Decision(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The decision of one request. All arrays are by candidate, in the order of the request."""

    verb: Verb
    pod: PodRef
    at: float
    """Seconds since 1970."""
    generation: int
    """The generation of its snapshot."""
    names: Names
    """The candidates' names."""
    verdicts: tuple[tuple[str, Verdict], ...] = ()
    """By agent; only agents that the pod concerns."""
    scores: tuple[tuple[str, Scores], ...] = ()
    description: str = ""
    """Text: what the pod holds after a bind, or why it is not on the node; or which scores are missing, and why."""

    def feasible(self) -> NDArray[np.bool_]:
        """Which candidates no agent rejects."""
        if len(self.verdicts) == 1:
            return np.equal(self.verdicts[0][1].codes, 0)
        kept = np.ones(len(self.names), bool)
        for _, verdict in self.verdicts:
            kept &= verdict.codes == 0
        return kept

    def unresolvable(self) -> NDArray[np.bool_]:
        """Which candidates at least one agent rejects for a reason that no eviction of pods removes."""
        mask = np.zeros(len(self.names), bool)
        for _, verdict in self.verdicts:
            mask |= verdict.unresolvable()
        return mask

    def points(self) -> NDArray[np.int64]:
        """Each candidate's score: the weighted mean of the agents' scores, rounded; 0 without any."""
        total = sum(scores.weight for _, scores in self.scores)
        if not total:
            return np.zeros(len(self.names), np.int64)
        if len(self.scores) == 1:
            return self.scores[0][1].points
        weighed = np.sum([scores.weight * scores.points for _, scores in self.scores], axis=0)
        mean: NDArray[np.int64] = np.rint(weighed / total).astype(np.int64)
        return mean

    def evidence(self) -> Iterator[Evidence]:
        """All values that the decision is based on."""
        for _, verdict in self.verdicts:
            yield from verdict.evidence
        for _, scores in self.scores:
            yield from scores.evidence

    def details(self) -> Iterator[tuple[str, Details]]:
        """The agents' details: those of verdicts, then those of scores."""
        for agent, verdict in self.verdicts:
            if verdict.details is not None:
                yield agent, verdict.details
        for agent, scores in self.scores:
            if scores.details is not None:
                yield agent, scores.details

    def size_bytes(self) -> int:
        """The approximate memory of the decision."""
        arrays = self.names.nbytes
        arrays += sum(verdict.codes.nbytes for _, verdict in self.verdicts)
        arrays += sum(
            policy.rejected.nbytes
            + len(policy.not_enforced)
            + (0 if policy.would_reject is None else policy.would_reject.nbytes)
            for _, verdict in self.verdicts
            for policy in verdict.policies
        )
        arrays += sum(details.nbytes for _, details in self.details())
        arrays += sum(scores.points.nbytes for _, scores in self.scores)
        arrays += sum(e.values.nbytes + e.states.nbytes + e.ages_s.nbytes for e in self.evidence())
        texts = (self.pod.namespace, self.pod.name, self.pod.uid, self.description)
        return arrays + sum(map(len, texts)) + _FIXED_BYTES


class _NamespaceDecisions:
    def __init__(self) -> None:
        self.numbers: deque[int] = deque()
        """Of the stored decisions, in the order in which they came."""
        self.has_dropped = False
        """Whether older ones were dropped."""
        self.size_bytes = 0


class DecisionRing:
    """Stores the newest decisions, as many as fit into `max_bytes`.

    The oldest decision of the namespace with the most bytes makes room, so that the pods of one namespace do not
    displace the decisions about those of others.
    """

    def __init__(self, max_bytes: int = 64 * 2**20) -> None:
        self._max_bytes = max_bytes
        self._kept: dict[int, tuple[Decision, int]] = {}
        """By number, in the order in which they came, with their sizes."""
        self._number = 0
        self._by_namespace: dict[str, _NamespaceDecisions] = {}
        self._by_pod: dict[tuple[str, str], deque[Decision]] = {}
        self.size_bytes = 0

    def add(self, decision: Decision) -> None:
        """Store a decision, and drop old ones to make room."""
        size = decision.size_bytes()
        self._number += 1
        self._kept[self._number] = decision, size
        same = self._by_namespace.setdefault(decision.pod.namespace, _NamespaceDecisions())
        same.numbers.append(self._number)
        same.size_bytes += size
        self._by_pod.setdefault((decision.pod.namespace, decision.pod.name), deque()).append(decision)
        self.size_bytes += size
        while self.size_bytes > self._max_bytes and self._kept:
            self._drop_oldest(max(self._by_namespace, key=lambda name: self._by_namespace[name].size_bytes))

    def _drop_oldest(self, namespace: str) -> None:
        same = self._by_namespace[namespace]
        oldest, size = self._kept.pop(same.numbers.popleft())
        same.has_dropped = True
        same.size_bytes -= size
        self.size_bytes -= size
        if not same.numbers:
            del self._by_namespace[namespace]
        of_pod = self._by_pod[namespace, oldest.pod.name]
        of_pod.popleft()  # a pod's decisions leave in the order in which they came
        if not of_pod:
            del self._by_pod[namespace, oldest.pod.name]

    def __len__(self) -> int:
        return len(self._kept)

    def since(self, namespace: str = "") -> float | None:
        """The time, seconds since 1970, of the oldest decision after which none was dropped about pods of the
        namespace; without a namespace, of the oldest of all. None without any.
        """
        same = self._by_namespace.get(namespace)
        number = same.numbers[0] if same is not None and same.has_dropped else next(iter(self._kept), None)
        return None if number is None else self._kept[number][0].at

    def about(self, namespace: str = "", name: str = "") -> Sequence[Decision]:
        """The decisions about some pods, the oldest first. An empty namespace or name means any.

        With both, it is a look-up without a search.
        """
        if namespace and name:
            return self._by_pod.get((namespace, name), ())
        return [
            decision
            for decision, _ in self._kept.values()
            if namespace in {"", decision.pod.namespace} and name in {"", decision.pod.name}
        ]


NOT_BOUND: Final = "NotBound"


class PodEventRecorder:
    """Records an event for each pod whose candidates were all rejected.

    It does not block. The recorder limits the rate.
    """

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def __call__(self, decision: Decision) -> None:
        # without verdicts no candidate is rejected
        if not decision.verdicts or not len(decision.names) or decision.feasible().any():
            return
        if decision.verb == "filter":
            reason, action, text = NO_NODE_PASSES, "Filtering", summarize_rejections(decision)
        elif decision.verb == "bind":
            # kube-scheduler's own event has the status of the response, and not its text
            why = "; ".join(item.text() for _, verdict in decision.verdicts for item in verdict.reasons)
            reason, action, text = NOT_BOUND, "Binding", f"not bound to {decision.names[0]}: {why}"
        else:
            return
        about = ObjectReference(PODS, decision.pod.namespace, decision.pod.name, decision.pod.uid)
        self._recorder.record(about, "Warning", reason, text, action)


def summarize_rejections(decision: Decision) -> str:
    """How many candidates were rejected, by reason.

    Without measured values: everyone with access to the pod's namespace can read its events, and a metric may belong to
    another tenant. `explain` shows the values.
    """
    counts: dict[str, int] = {}
    for _, verdict in decision.verdicts:
        for code, count in zip(*np.unique(verdict.codes[verdict.codes > 0], return_counts=True), strict=True):
            text = verdict.reasons[int(code) - 1].text()
            counts[text] = counts.get(text, 0) + int(count)
    why = "; ".join(f"{count} {text}" for text, count in sorted(counts.items(), key=lambda item: -item[1]))
    return f"none of {len(decision.names)} candidates passes: {why}"
