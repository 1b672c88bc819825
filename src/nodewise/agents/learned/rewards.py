"""The learning rule: R becomes 0.9 R + 0.1 r with each reward r, and fades to the prior as time goes by.

The rule is that of kubeRL, the rewards' mean weighted with the newest. Without fading, a node that failed once would
never be tried again, and so never be seen to have healed. Tries fade as well, for exploration: the bonus is that of
discounted UCB (Garivier and Moulines, 2011).
"""

from typing import Annotated, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

RATE: Final = 0.1
"""How much the newest reward counts."""

Floats = NDArray[np.float64]


_MOST: Final = 2**53
"""Whole numbers to which a double is exact."""


class Pair(NamedTuple):
    """What is known of a pod type on a node."""

    reward: Annotated[float, msgspec.Meta(ge=0, le=1)]
    """At that time."""
    tried: Annotated[int, msgspec.Meta(ge=1, le=_MOST)]
    """Rewards, ever."""
    recent: Annotated[float, msgspec.Meta(ge=0, le=_MOST)]
    """Rewards, each counted by how little it has faded."""
    at: Annotated[float, msgspec.Meta(ge=-_MOST, le=_MOST)]
    """Of the newest reward, seconds since 1970."""


class Rule(NamedTuple):
    """How rewards are put together."""

    prior: float
    half_life_s: float
    """0: nothing fades."""
    exploration: float = 0.0

    def left(self, age_s: ArrayLike) -> Floats:
        """How much of what was known is left after a time; all of it where the clock was set back."""
        age = np.maximum(np.asarray(age_s, np.float64), 0.0)
        return np.exp2(-age / self.half_life_s) if self.half_life_s else np.ones_like(age)

    def taught(self, known: Pair | None, reward: float, times: int, now: float) -> Pair:
        """What is known after a reward that came so many times at once."""
        before = known or Pair(self.prior, 0, 0.0, now)
        left = float(self.left(now - before.at))
        weight = (1 - RATE) ** times
        faded = self.prior + (before.reward - self.prior) * left
        taught = weight * faded + (1 - weight) * reward
        return _rounded(taught, before.tried + times, before.recent * left + times, max(now, before.at))

    def after(self, earlier: Pair, later: Pair) -> Pair:
        """What would be known if `later`, which began with nothing, had begun with `earlier`."""
        left = float(self.left(later.at - earlier.at))
        lasting = left * (1 - RATE) ** later.tried
        taught = later.reward + (earlier.reward - self.prior) * lasting
        tried = earlier.tried + later.tried
        return _rounded(min(max(taught, 0.0), 1.0), tried, earlier.recent * left + later.recent, later.at)

    def bonus(self, recent: Floats, total: float) -> Floats:
        """What a node gains that was tried so often, of so many tries on all nodes."""
        found: Floats = self.exploration * np.sqrt(np.log1p(total) / (1 + recent))
        return found


def _rounded(reward: float, tried: int, recent: float, at: float) -> Pair:
    """With as many digits as are worth keeping."""
    return Pair(round(reward, 6), tried, round(recent, 3), round(at, 1))
