"""What nodes are worth to a pod type at a time: rewards as they have faded until then, and what exploration adds."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agents.learned.memory import Known
from nodewise.agents.learned.rewards import Floats, Rule


class Worth(NamedTuple):
    """By place; a node that is not here was never tried."""

    nodes: NDArray[np.intp]
    """Node numbers, in order."""
    rewards: Floats
    tried: NDArray[np.int64]
    bonus: Floats
    """For being little known."""
    untried: float
    """The reward of all others."""
    untried_bonus: float

    @property
    def nbytes(self) -> int:
        return self.nodes.nbytes + self.rewards.nbytes + self.tried.nbytes + self.bonus.nbytes


def nothing(rule: Rule) -> Worth:
    """To a type that was never tried anywhere, all nodes are the same."""
    none = np.empty(0)
    return Worth(none.astype(np.intp), none, none.astype(np.int64), none, rule.prior, 0.0)


def weigh(known: Known, now: float, rule: Rule) -> Worth:
    """As of a time, seconds since 1970."""
    left = rule.left(now - known.at)
    rewards = rule.prior + (known.rewards - rule.prior) * left
    recent = known.recent * left
    total = float(recent.sum())
    untried = float(rule.bonus(np.zeros(1), total)[0])
    return Worth(known.nodes, rewards, known.tried, rule.bonus(recent, total), rule.prior, untried)
