"""What is known of a pod's type on each candidate, in words and numbers."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agents.learned.worth import Worth

NEVER_TRIED: Final = "never tried"


class LearnedDetails(NamedTuple):
    """Of one answer (`agent.Details`)."""

    type: str
    candidates: NDArray[np.intp]
    """By candidate: the node's number."""
    worth: Worth

    @property
    def nbytes(self) -> int:
        return self.worth.nbytes

    def text(self, candidate: int) -> str:
        """`type web: reward 0.81 after 12 tries`."""
        told = self.numbers(candidate)
        tries = told["tried"]
        known = f"reward {told['reward']:.2f} after {tries} {'try' if tries == 1 else 'tries'}"
        bonus = f", bonus {told['bonus']:.2f}" if "bonus" in told else ""
        return f"type {self.type}: {known if tries else NEVER_TRIED}{bonus}"

    def distances(self) -> NDArray[np.float64]:
        """Nobody is rejected."""
        return np.zeros(len(self.candidates))

    def numbers(self, candidate: int) -> Mapping[str, Any]:
        """`reward`, how often `tried`, the pod's `type`; the `bonus` of exploration, where there is any.

        `missing` where the type was never tried there: the reward is the prior then.
        """
        worth, node = self.worth, self.candidates[candidate]
        place = int(np.searchsorted(worth.nodes, node))
        told: dict[str, Any]
        if place == len(worth.nodes) or worth.nodes[place] != node:
            told = {"reward": worth.untried, "tried": 0, "type": self.type, "missing": NEVER_TRIED}
            bonus = worth.untried_bonus
        else:
            told = {
                "reward": float(worth.rewards[place]),
                "tried": int(worth.tried[place]),
                "type": self.type,
            }
            bonus = float(worth.bonus[place])
        return {**told, "bonus": bonus} if bonus else told
