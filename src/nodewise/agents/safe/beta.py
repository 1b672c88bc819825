"""The beta distribution as a model of utilisation: a mean and a deviation in, the risk of overload out.

All functions take floats or arrays of equal (or broadcastable) shape and answer float64 arrays. `alpha` and `beta`
are the two shapes of the distribution; where one of them is no number above 0, the answer is NaN.

Needs scipy, which comes with the extra `risk`; it is imported when the first number is asked for.
"""

from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nodewise.errors import BadSettings, Problem

Floats = NDArray[np.float64]

STEADY: Final = 1e-6
"""A deviation below this counts as 0: rounding in what was measured is of this size."""
SPREAD: Final = 0.99
"""A beta distribution of mean m has a variance below m (1 - m). A larger one is taken as this share of it."""
NO_RISK: Final = 2.0**-53
"""A risk below this is 0: what is left of 1 after it is taken away is 1."""


class Shapes(NamedTuple):
    """The two shapes of beta distributions; both NaN where there is none."""

    alpha: Floats
    beta: Floats


class Moments(NamedTuple):
    """The first three moments about 0."""

    first: Floats
    second: Floats
    third: Floats


def valid(alpha: ArrayLike, beta: ArrayLike) -> NDArray[np.bool_]:
    """Whether there is a beta distribution of these shapes: both above 0, infinity included."""
    return (np.asarray(alpha, np.float64) > 0) & (np.asarray(beta, np.float64) > 0)


def complete(alpha: ArrayLike, beta: ArrayLike) -> Floats:
    """The complete beta function B(alpha, beta)."""
    return _where_valid(special().beta(alpha, beta), alpha, beta)


def cdf(x: ArrayLike, alpha: ArrayLike, beta: ArrayLike) -> Floats:
    """The probability of a value of at most `x`: the regularised incomplete beta function."""
    x = np.clip(np.asarray(x, np.float64), 0, 1)
    return _where_valid(special().betainc(alpha, beta, x), alpha, beta)


def survival(x: ArrayLike, alpha: ArrayLike, beta: ArrayLike) -> Floats:
    """The probability of a value above `x`, exact where it is too small to be seen in 1 - cdf."""
    x = np.clip(np.asarray(x, np.float64), 0, 1)
    return _where_valid(special().betaincc(alpha, beta, x), alpha, beta)


def fit(mean: ArrayLike, deviation: ArrayLike) -> Shapes:
    """The distribution with this mean and deviation; the deviation is capped (`SPREAD`).

    NaN where the mean is not between 0 and 1 or the deviation is not above 0: nothing is spread there.
    """
    mean = np.asarray(mean, np.float64)
    deviation = np.asarray(deviation, np.float64)
    widest = mean * (1 - mean)
    with np.errstate(all="ignore"):
        weight = np.maximum(widest / (deviation * deviation), 1 / SPREAD) - 1
        good = (mean > 0) & (mean < 1) & (deviation > 0)
        return Shapes(
            np.where(good, mean * weight, np.nan),
            np.where(good, (1 - mean) * weight, np.nan),
        )


def risk(mean: ArrayLike, deviation: ArrayLike, threshold: float) -> Floats:
    """The probability that a utilisation of this mean and deviation is above `threshold` (0..1).

    Means are taken as between 0 and 1, deviations as at least 0 and those below `STEADY` as 0: then the mean alone
    decides. A probability below `NO_RISK` is 0. NaN where the mean or the deviation is NaN.
    """
    means, deviations = np.broadcast_arrays(np.asarray(mean, np.float64), np.asarray(deviation, np.float64))
    means = np.clip(means, 0, 1)
    answer = np.where(means > threshold, 1.0, 0.0)
    alpha, beta = fit(means, deviations)
    spread = (deviations >= STEADY) & valid(alpha, beta)
    answer[spread] = survival(threshold, alpha[spread], beta[spread])
    answer[answer < NO_RISK] = 0
    answer[np.isnan(means) | np.isnan(deviations)] = np.nan
    return answer


@cache
def special() -> Any:
    """scipy.special; `BadSettings` where scipy is not installed."""
    try:
        from scipy import special as functions
    except ImportError as missing:
        raise BadSettings(
            "agents",
            [Problem("scipy", "is not installed", "it for the risks of the agent safe")],
            remedy="pip install nodewise[risk]",
        ) from missing
    return functions


def _where_valid(values: Any, alpha: ArrayLike, beta: ArrayLike) -> Floats:
    return np.where(valid(alpha, beta), values, np.nan)
