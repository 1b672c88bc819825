"""Answers requests by look-up: how pods of the same type fared on each node."""

from collections.abc import Generator, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import (
    MAX_SCORE,
    Names,
    ScorePlugin,
    Scores,
    Snapshot,
    StateExporter,
)
from nodewise.agents.learned import showing, worth
from nodewise.agents.learned.details import LearnedDetails
from nodewise.agents.learned.options import LearnedOptions
from nodewise.agents.learned.pods import AskingPod, asking_type, key
from nodewise.agents.learned.rewards import Floats, Rule
from nodewise.agents.learned.state import Slot

PRIORITY: Final = "rl-priority"
"""Its name in kube-scheduler's configuration, as in kubeRL."""
_ROUNDING: Final = 1e-9
"""Nine tenths of a reward of 1 are nine points, whatever doubles make of it."""


class LearnedAgent(ScorePlugin[AskingPod, Slot], StateExporter[AskingPod, Slot]):
    """The agent `learned`. It rejects no node: one on which a pod type was never tried has to be tried."""

    name = "learned"

    def __init__(self, options: LearnedOptions) -> None:
        self._options = options
        self._rule = Rule(options.learned_prior, options.learned_half_life_s, options.learned_exploration)
        self.priorities = {PRIORITY: self.score}

    def score(self, pod: AskingPod, candidates: Names, snapshot: Snapshot) -> Scores | None:
        agent_state = self.state(snapshot)
        if agent_state is None:
            return None
        type_ = asking_type(pod)
        known = agent_state.types.get(key(pod.metadata.namespace, type_))
        found = (
            worth.nothing(self._rule) if known is None else worth.weigh(known, agent_state.now, self._rule)
        )
        untried = _points(np.array([found.untried + found.untried_bonus]))
        by_node = np.full(len(snapshot.nodes) + 1, self._options.points_missing(int(untried[0])))
        by_node[found.nodes] = _points(found.rewards + found.bonus)
        details = LearnedDetails(type_, candidates.numbers, found)
        return Scores(by_node[candidates.numbers], details=details)

    def export(self, state: Slot, query: Mapping[str, str]) -> Generator[None, None, bytes]:
        """What is known, by pod type and node."""
        return showing.state(state, self._rule, query)


def _points(rewards: Floats) -> NDArray[np.int64]:
    whole = np.trunc(MAX_SCORE * rewards + _ROUNDING)
    points: NDArray[np.int64] = np.clip(whole, 0, MAX_SCORE).astype(np.int64)
    return points
