"""The learning rule: an estimate R becomes 0.9 R + 0.1 r with each reward r, and fades to the prior over time.

This is the rule of kubeRL, an exponentially weighted mean. Without fading, a node that failed once would never be tried
again, and its recovery would not be noticed. Tries fade as well, for exploration: the bonus is that of
discounted UCB (Garivier and Moulines, 2011).
"""

from typing import Annotated, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

RATE: Final = 0.1
"""The weight of the newest reward."""

Floats = NDArray[np.float64]


_MAX_EXACT: Final = 2**53
"""A double holds every whole number up to here."""


class RewardEstimate(NamedTuple):
    """The estimated reward of a pod type on a node."""

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
    """Round to the digits that are stored."""
    return RewardEstimate(round(reward, 6), tried, round(recent, 3), round(at, 1))
