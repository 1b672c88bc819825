"""From the annotation `congestion-factor` to a score: 10 where nothing is congested, 0 from the maximum on.

The factor is a whole number of whatever unit its writer likes: load, or traffic in or out of the node. What is no whole
number is no reading; the older agent took it for no congestion at all, without a word.
"""

import re
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import MAX_SCORE
from nodewise.statistics.annotations import CONGESTION_FACTOR

_LONGEST: Final = 40
"""Characters of a text that is no number, as people are shown it."""

KEPT: Final = _LONGEST + 1
"""Characters of it that are kept, to tell that there are more."""

_DIGITS: Final = re.compile(r"[+-]?[0-9]+")

Factors = NDArray[np.float64]
"""Whole numbers; NaN where there is none."""


def points(factors: Factors, most: int, missing: int) -> NDArray[np.int64]:
    """The score of each factor; `missing` is that of none. Less than nothing is nothing."""
    share = np.clip(np.nan_to_num(factors), 0, most) / most
    scores = np.trunc(MAX_SCORE * (1 - share) + 0.5).astype(np.int64)
    found: NDArray[np.int64] = np.where(np.isnan(factors), missing, scores)
    return found


def why_missing(given: str | None) -> str:
    """Why an annotation holds no factor, in words."""
    if not given:
        return f"no {CONGESTION_FACTOR}"
    shown = given if len(given) <= _LONGEST else f"{given[:_LONGEST]}…"
    quoted = msgspec.json.encode(shown).decode()
    wrong = "more than 64 bits hold" if _DIGITS.fullmatch(given) else "not a whole number"
    return f"{CONGESTION_FACTOR} {quoted} is {wrong}"
