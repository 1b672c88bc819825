"""Computes the state of the learned agent from the changes of pods, in the same way in every replica and offline.

Outcomes of pods before the first cluster state are known from the stored rewards, or else do not count, so a restart
learns nothing twice. Outcomes since the rewards were stored are learned from, as far as the status of pods shows them.
"""

import contextlib
import heapq
from collections import deque
from collections.abc import Generator, Iterable, Mapping
from math import inf, isnan
from typing import Final, NamedTuple

from nodewise.agent import ClusterState, Inputs, NodeIndex, ObjectKey
from nodewise.agent.state import Change, Changes, difference
from nodewise.base.errors import BadInput
from nodewise_scorers.learned import LearnedOptions
from nodewise_scorers.learned import pod_type_rewards as memories
from nodewise_scorers.learned.pod_type_rewards import LearningRule, RewardMemory, TypeRewards
from nodewise_scorers.learned.pod_types_and_outcomes import (
    ObservedPod,
    PodOutcome,
    bound_pod_type,
    outcome_between,
    outcome_since,
    pod_type_key,
)
from nodewise_scorers.load import in_flight_accounting
from nodewise_scorers.load.in_flight_accounting import CountingStateBuilder, InFlight, InFlightAccounting

PODS: Final = "learned_pods"
"""The key of the pods in `ClusterState.objects`."""
_STRIDE: Final = 64  # pods between two yields
_SORTED: Final = 512  # observations that are sorted between two yields
_MIN_INTERVAL_S: Final = 1.0
"""Between two computations: one takes some milliseconds, and pods change many times a second."""
_RECALL_TIMEOUT_S: Final = 300.0
"""How long after the first cluster state stored rewards are accepted as earlier ones."""

Pods = Mapping[ObjectKey, ObservedPod]


class LearnedState(NamedTuple):
    """The rewards of all types at a time."""

    nodes: NodeIndex
    types: Mapping[str, TypeRewards]
    """By the type's key."""
    now: float
    in_flight: InFlight | None = None
    """None if pods in flight are not counted."""


class _InitialState(NamedTuple):
    """The first cluster state."""

    pods: Pods
    now: float


class _Observation(NamedTuple):
    """The outcome of one pod."""

    type: str
    node: str
    outcome: PodOutcome


class _StoredText(NamedTuple):
    """A stored form, and the change that it includes."""

    text: bytes
    changes: int


class LearnedStateBuilder(CountingStateBuilder[LearnedState]):
    """Learns from pods, and stores the rewards."""

    memory_scope = "leader"

    def __init__(self, options: LearnedOptions) -> None:
        super().__init__(InFlightAccounting() if options.in_flight else None)
        rule = LearningRule(options.learned_prior, options.learned_half_life_s, options.learned_exploration)
        objects = frozenset({PODS}) | self.counted_objects
        self.inputs = Inputs(objects, node_objects=self._accounting is not None, metrics=False)
        self._mttf_s = options.learned_mttf_s
        self._memory = RewardMemory(rule)
        self._pods: Pods | None = None
        """Of the newest cluster state."""
        self._changes: dict[ObjectKey, Change[ObservedPod]] = {}
        """Those that were not processed yet."""
        self._until = 0.0
        """Outcomes until then were learned from."""
        self._first: _InitialState | None = None
        """While stored rewards are accepted as earlier ones."""
        self._caught_up_from: float | None = None
        """Outcomes since then are still to be learned from."""
        self._observations: deque[_Observation] = deque()
        """Not yet learned from."""
        self._state: LearnedState | None = None
        """The newest."""
        self._kept: _StoredText | None = None
        self._offered: _StoredText | None = None

    def build(self, cluster_state: ClusterState) -> Generator[None, None, LearnedState]:
        """Learn from the changes since the last call. Pods are in flight until they start: then outcomes show them."""
        state = yield from self._learn(cluster_state)
        if self._accounting is None:
            return state
        now, at_once_s = cluster_state.now, in_flight_accounting.AT_ONCE_S
        return state._replace(in_flight=(yield from self._accounting.count(cluster_state, now, at_once_s)))

    def _learn(
        self, cluster_state: ClusterState
    ) -> Generator[None, None, LearnedState]:  # complexity: steps in order
        """Learn from the changes since the last call.

        If the generator is closed early, no outcome is lost or counted twice.
        """
        self._note_changes(cluster_state)
        now, before = cluster_state.now, self._state
        is_waited_for = bool(self._observations) or self._caught_up_from is not None
        is_recent = before is not None and 0 <= now - before.now < _MIN_INTERVAL_S
        if before is not None and cluster_state.nodes is before.nodes and is_recent and not is_waited_for:
            return before
        observations = yield from _observe(map(self._outcome_of_change, self._changes.values()))
        self._changes = {}
        self._observations.extend(observations)
        if self._first is not None and self._caught_up_from is not None:
            since_s = self._caught_up_from
            observations = yield from _observe(
                (pod, outcome_since(pod, since_s, self._mttf_s)) for pod in self._first.pods.values()
            )
            self._first = self._caught_up_from = None
            self._observations.extendleft(reversed(observations))
        elif self._first is not None and now - self._first.now > _RECALL_TIMEOUT_S:
            self._first = None
        for number in range(len(self._observations)):
            type_, node, outcome = self._observations.popleft()
            self._memory.learn(type_, node, outcome.reward, outcome.times, now)
            if not number % _STRIDE:
                yield
        self._until = now
        types = yield from self._memory.lay_out(cluster_state.nodes, now)
        self._state = LearnedState(cluster_state.nodes, types, now)
        return self._state

    def _outcome_of_change(self, change: Change[ObservedPod]) -> tuple[ObservedPod | None, PodOutcome | None]:
        before, after = change
        if after is None or before is after:
            return None, None
        is_same = before is not None and before.metadata.uid == after.metadata.uid
        return after, outcome_between(before if is_same else None, after, self._mttf_s)

    def _note_changes(self, cluster_state: ClusterState) -> None:
        """Store the changes, so that they are not lost if this build fails."""
        pods: Pods = cluster_state.objects.get(PODS, {})
        changes: Changes[ObservedPod] = {}
        if self._pods is None:
            self._first = _InitialState(pods, cluster_state.now)
        elif cluster_state.changes is None:
            changes = difference(self._pods, pods)
        else:
            changes = cluster_state.changes.get(PODS, {})
        for pod, change in changes.items():
            earlier = self._changes.get(pod, change)
            self._changes[pod] = Change(earlier.old, change.new)
        self._pods = pods

    def recall(self, kept: bytes) -> None:
        """Continue from stored rewards. `BadInput` if they cannot be read."""
        if self._offered is not None and kept == self._offered.text:
            self._kept = self._offered
            return
        stored = memories.parse_stored_rewards(kept)
        changes = self._memory.changes
        self._memory.take(stored, as_earlier=True)
        if self._pods is None or self._first is not None:
            self._caught_up_from = stored.until
        self._kept = _StoredText(kept, -1 if changes else self._memory.changes)

    def keep(self, kept: bytes | None) -> bytes | None:
        """The form to store, if it changed. All replicas learn from the same pods, so the leader may overwrite it."""
        known = self._kept
        if kept is not None and (known is None or kept != known.text):
            # rewards that another replica stored: estimates unknown here are not lost, unreadable ones are overwritten
            with contextlib.suppress(BadInput):
                self._memory.take(memories.parse_stored_rewards(kept), as_earlier=False)
        elif self._memory.changes == (known.changes if known is not None and kept is not None else 0):
            return None
        if not len(self._memory):
            return None
        self._offered = _StoredText(self._memory.text(self._until), self._memory.changes)
        return self._offered.text


def _observe(
    outcomes: Iterable[tuple[ObservedPod | None, PodOutcome | None]],
) -> Generator[None, None, list[_Observation]]:
    """The outcomes that count, by time, because the newest counts most; those without a time are last."""
    observations: list[_Observation] = []
    for number, (pod, outcome) in enumerate(outcomes):
        if pod is not None and outcome is not None:
            type_ = pod_type_key(pod.metadata.namespace, bound_pod_type(pod))
            observations.append(_Observation(type_, pod.spec.nodeName, outcome))
        if not number % _STRIDE:
            yield
    parts = []
    for start in range(0, len(observations), _SORTED):
        parts.append(sorted(observations[start : start + _SORTED], key=_outcome_time))
        yield
    ordered: list[_Observation] = []
    for observation in heapq.merge(*parts, key=_outcome_time):
        ordered.append(observation)
        if not len(ordered) % _STRIDE:
            yield
    return ordered


def _outcome_time(observation: _Observation) -> float:
    return inf if isnan(observation.outcome.at) else observation.outcome.at
