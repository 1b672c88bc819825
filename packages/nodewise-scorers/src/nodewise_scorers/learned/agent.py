"""The learned agent: learns from the changes of pods, in the same way in every replica and offline, and answers
requests by look-up: the expected reward of a pod type on each node.

Outcomes of pods before the first cluster state are known from the stored rewards, or else do not count, so a restart
learns nothing twice. Outcomes since the rewards were stored are learned from, as far as the status of pods shows them.
"""

import contextlib
import heapq
from collections import deque
from collections.abc import Generator, Iterable, Mapping
from itertools import islice
from math import inf, isnan
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import (
    MAX_SCORE,
    ClusterState,
    Inputs,
    Names,
    NodeIndex,
    ObjectKey,
    ScorePlugin,
    Scores,
    Snapshot,
    StateExporter,
)
from nodewise.agent.state import Change, Changes, difference
from nodewise.base.errors import BadInput
from nodewise_scorers.learned import LearnedOptions
from nodewise_scorers.learned import pod_type_rewards as memories
from nodewise_scorers.learned.pod_type_rewards import Floats, LearningRule, RewardMemory, TypeRewards
from nodewise_scorers.learned.pod_types_and_outcomes import (
    ObservedPod,
    PodFields,
    PodOutcome,
    bound_pod_type,
    outcome_between,
    outcome_since,
    pending_pod_type,
    pod_type_key,
)
from nodewise_scorers.load import in_flight_accounting
from nodewise_scorers.load.in_flight_accounting import CountingStateBuilder, InFlight, InFlightAccounting
from nodewise_scorers.statistics.load_annotations import NodeStatus

PRIORITY: Final = "rl-priority"
"""Its name in kube-scheduler's configuration, as in kubeRL."""
NEVER_TRIED: Final = "never tried"
_ROUNDING: Final = 1e-9
"""A reward of 0.9 is 9 points although 10 * 0.9 may be a little less in floating point."""
_NODES_PER_PART: Final = 256  # nodes that are exported between two yields
_encode = msgspec.json.encode
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


class NodeFields(msgspec.Struct, frozen=True, gc=False):
    """Read only to count pods in flight."""

    status: NodeStatus = NodeStatus()


class ExpectedRewards(NamedTuple):
    """The expected rewards of a pod type at one time: rewards faded until then, and the exploration bonus."""

    nodes: NDArray[np.intp]
    """The numbers of the nodes on which the type was tried, in order. The other arrays are by place in this one."""
    rewards: Floats
    tried: NDArray[np.int64]
    bonus: Floats
    untried: float
    """The reward of all other nodes."""
    untried_bonus: float

    @property
    def nbytes(self) -> int:
        return self.nodes.nbytes + self.rewards.nbytes + self.tried.nbytes + self.bonus.nbytes


def expected_rewards(known: TypeRewards | None, now: float, rule: LearningRule) -> ExpectedRewards:
    """The expected rewards at `now`, in seconds since 1970. `known` is None for a type that was never tried."""
    if known is None:
        none = np.empty(0)
        return ExpectedRewards(none.astype(np.intp), none, none.astype(np.int64), none, rule.prior, 0.0)
    left = rule.remaining_weight(now - known.at)
    rewards = rule.prior + (known.rewards - rule.prior) * left
    recent = known.recent * left
    total = float(recent.sum())
    untried_bonus = float(rule.bonus(np.zeros(1), total)[0])
    return ExpectedRewards(
        known.nodes, rewards, known.tried, rule.bonus(recent, total), rule.prior, untried_bonus
    )


class LearnedDetails(NamedTuple):
    """The expected reward of a pod's type on each candidate (`agent.Details`)."""

    type: str
    candidates: NDArray[np.intp]
    """By candidate: the node's number."""
    expected: ExpectedRewards

    @property
    def nbytes(self) -> int:
        return self.expected.nbytes

    def text(self, candidate: int) -> str:
        """`type web: reward 0.81 after 12 tries`."""
        numbers = self.numbers(candidate)
        tries = numbers["tried"]
        known = f"reward {numbers['reward']:.2f} after {tries} {'try' if tries == 1 else 'tries'}"
        bonus = f", bonus {numbers['bonus']:.2f}" if "bonus" in numbers else ""
        return f"type {self.type}: {known if tries else NEVER_TRIED}{bonus}"

    def distances(self) -> NDArray[np.float64]:
        """0: no candidate is rejected."""
        return np.zeros(len(self.candidates))

    def numbers(self, candidate: int) -> Mapping[str, Any]:
        """`reward`, the number of rewards `tried`, the pod's `type`, and the `bonus` of exploration if there is any.

        `missing` where the type was never tried: the reward is the prior.
        """
        expected, node = self.expected, self.candidates[candidate]
        place = int(np.searchsorted(expected.nodes, node))
        if place == len(expected.nodes) or expected.nodes[place] != node:
            reward, tried, bonus = expected.untried, 0, expected.untried_bonus
        else:
            reward, tried = float(expected.rewards[place]), int(expected.tried[place])
            bonus = float(expected.bonus[place])
        numbers: dict[str, Any] = {"reward": reward, "tried": tried, "type": self.type}
        if not tried:
            numbers["missing"] = NEVER_TRIED
        return {**numbers, "bonus": bonus} if bonus else numbers


class LearnedAgent(ScorePlugin[PodFields, LearnedState], StateExporter[PodFields, LearnedState]):
    """The agent `learned`. It rejects no node: a node on which a pod type was never tried has to be tried."""

    name = "learned"

    def __init__(self, options: LearnedOptions) -> None:
        self._options = options
        self._rule = LearningRule(
            options.learned_prior, options.learned_half_life_s, options.learned_exploration
        )
        self.priorities = {PRIORITY: self.score}

    def score(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Scores | None:
        state = self.state(snapshot)
        if state is None:
            return None
        type_ = pending_pod_type(pod)
        known = state.types.get(pod_type_key(pod.metadata.namespace, type_))
        expected = expected_rewards(known, state.now, self._rule)
        untried = _scores_from_rewards(np.array([expected.untried + expected.untried_bonus]))
        by_node = np.full(len(snapshot.nodes) + 1, self._options.score_without_statistics(int(untried[0])))
        by_node[expected.nodes] = _scores_from_rewards(expected.rewards + expected.bonus)
        details = LearnedDetails(type_, candidates.numbers, expected)
        points = in_flight_accounting.lower_scores(
            by_node[candidates.numbers], state.in_flight, candidates.numbers
        )
        return Scores(points, details=details)

    def export(self, state: LearnedState, query: Mapping[str, str]) -> Generator[None, None, bytes]:
        """`{"types": {type: {node: {"reward", "tried"}}}}` in parts, types by name; `?type=NAMESPACE/TYPE` for one."""
        selected = query.get("type")
        types: Iterable[str] = sorted(state.types) if selected is None else {selected} & state.types.keys()
        parts = []
        for type_ in types:
            expected = expected_rewards(state.types[type_], state.now, self._rule)
            names = state.nodes.names[expected.nodes].tolist()
            rows = zip(names, expected.rewards.tolist(), expected.tried.tolist(), strict=True)
            entries: list[bytes] = []
            while part := list(islice(rows, _NODES_PER_PART)):
                entries += [
                    _encode(name) + b": " + _encode({"reward": reward, "tried": tried})
                    for name, reward, tried in part
                ]
                yield
            parts.append(_encode(type_) + b": {" + b", ".join(entries) + b"}")
        return b'{"types": {' + b",\n".join(parts) + b"}}\n"


create_state_builder = LearnedStateBuilder
create_agent = LearnedAgent


def _scores_from_rewards(rewards: Floats) -> NDArray[np.int64]:
    whole = np.trunc(MAX_SCORE * rewards + _ROUNDING)
    points: NDArray[np.int64] = np.clip(whole, 0, MAX_SCORE).astype(np.int64)
    return points
