"""Answers requests of the learned agent by look-up: the expected reward of a pod type on each node."""

from collections.abc import Generator, Iterable, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import MAX_SCORE, Names, ScorePlugin, Scores, Snapshot, StateExporter
from nodewise_scorers.learned import LearnedOptions
from nodewise_scorers.learned.pod_type_rewards import Floats, LearningRule, TypeRewards
from nodewise_scorers.learned.pod_types_and_outcomes import PodFields, pending_pod_type, pod_type_key
from nodewise_scorers.learned.state import LearnedState, LearnedStateBuilder
from nodewise_scorers.load import in_flight_accounting
from nodewise_scorers.statistics.load_annotations import NodeStatus

PRIORITY: Final = "rl-priority"
"""Its name in kube-scheduler's configuration, as in kubeRL."""
NEVER_TRIED: Final = "never tried"
_ROUNDING: Final = 1e-9
"""A reward of 0.9 is 9 points although 10 * 0.9 may be a little less in floating point."""
_NODES_PER_PART: Final = 256  # nodes that are exported between two yields
_encode = msgspec.json.encode


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
