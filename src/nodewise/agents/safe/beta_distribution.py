"""The beta distribution as a model of utilisation: a mean and a deviation in, the risk of overload out.

All functions take floats or arrays of equal (or broadcastable) shape and answer float64 arrays. `alpha` and `beta`
are the two shapes of the distribution; where one of them is no number above 0, the answer is NaN.

Needs scipy, which comes with the extra `risk`; it is imported when the first number is asked for.
"""

from collections.abc import Sequence
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


_LARGE: Final = 10.0
"""Shapes above this have the logarithm of their gamma function to 12 digits from Stirling's series."""


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
    return _where_valid(special().betainc(*_apart(x, alpha, beta)), alpha, beta)


def survival(x: ArrayLike, alpha: ArrayLike, beta: ArrayLike) -> Floats:
    """The probability of a value above `x`, exact also where it is too small to be seen in 1 - cdf."""
    return _where_valid(special().betaincc(*_apart(x, alpha, beta)), alpha, beta)


def pdf(x: ArrayLike, alpha: ArrayLike, beta: ArrayLike) -> Floats:
    """The density at `x`; infinite at 0 where alpha is below 1, and at 1 where beta is."""
    x, alpha, beta = _floats(x, alpha, beta)
    functions = special()
    with np.errstate(all="ignore"):
        inner = _kernel(x, alpha, beta) / (x * (1 - x))
        logarithm = functions.xlogy(alpha - 1, x) + functions.xlog1py(beta - 1, -x)
        edge = np.exp(logarithm - functions.betaln(alpha, beta))
    density = np.where((x == 0) | (x == 1), edge, inner)
    return _where_valid(np.where((x < 0) | (x > 1), 0.0, density), alpha, beta)


def mean_residual_life(x: ArrayLike, alpha: ArrayLike, beta: ArrayLike) -> Floats:
    """How far above `x` a value is on the average, of those that are above it; 0 where none is (Gupta, Bradley)."""
    x, alpha, beta = _floats(np.clip(x, 0, 1), alpha, beta)
    total = alpha + beta
    above = survival(x, alpha, beta)
    with np.errstate(all="ignore"):
        life = _kernel(x, alpha, beta) / (above * total) + alpha / total - x
    return np.where(above == 0, 0.0, life)


def moments(alpha: ArrayLike, beta: ArrayLike) -> Moments:
    """The first three moments; the mean is the first, the variance is `variance`."""
    alpha, beta = _floats(_where_valid(alpha, alpha, beta), beta)
    with np.errstate(invalid="ignore"):
        total = alpha + beta
        first = alpha / total
        second = first * (alpha + 1) / (total + 1)
        return Moments(first, second, second * (alpha + 2) / (total + 2))


def variance(alpha: ArrayLike, beta: ArrayLike) -> Floats:
    """The variance, without the difference of two moments that are nearly the same."""
    alpha, beta = _floats(_where_valid(alpha, alpha, beta), beta)
    with np.errstate(invalid="ignore"):
        total = alpha + beta
        return alpha / total * (beta / total) / (total + 1)


def match_moments(first: ArrayLike, second: ArrayLike) -> Shapes:
    """The distribution of these two moments about 0; NaN where there is none.

    The variance is a difference here: from a mean and a deviation `fit` is exact.
    """
    first, second = _floats(first, second)
    spread = second - first * first
    widest = first * (1 - first)
    with np.errstate(all="ignore"):
        weight = np.maximum(widest / spread - 1, np.finfo(np.float64).smallest_subnormal)
    good = (first >= 0) & (first <= 1) & (spread >= 0) & (spread < widest)
    return Shapes(np.where(good, first * weight, np.nan), np.where(good, (1 - first) * weight, np.nan))


def fit(mean: ArrayLike, deviation: ArrayLike) -> Shapes:
    """The distribution with this mean and deviation; the deviation is capped (`SPREAD`).

    NaN where the mean is not between 0 and 1 or the deviation is not above 0: nothing is spread there.
    """
    mean, deviation = _floats(mean, deviation)
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

    Means are brought between 0 and 1. A deviation is capped (`SPREAD`); below `STEADY` it counts as 0 and the mean
    alone decides. A probability below `NO_RISK` is 0. NaN where the mean or the deviation is NaN.
    """
    means, deviations = _floats(mean, deviation)
    means = np.clip(means, 0, 1)
    answer = np.where(means > threshold, 1.0, 0.0)
    alpha, beta = fit(means, deviations)
    spread = (deviations >= STEADY) & valid(alpha, beta)
    answer[spread] = survival(threshold, alpha[spread], beta[spread])
    answer[answer < NO_RISK] = 0
    answer[np.isnan(means) | np.isnan(deviations)] = np.nan
    return answer


def line(alpha: float, beta: float) -> str:
    """The distribution in one line of text."""
    first, second, third = (float(moment) for moment in moments(alpha, beta))
    named = {"alpha": alpha, "beta": beta, "mean": first, "var": float(variance(alpha, beta))}
    named |= {"m1": first, "m2": second, "m3": third}
    return "BetaDistribution: " + "".join(f"{name} = {value:f}; " for name, value in named.items()) + "\n"


def table(alpha: float, beta: float) -> str:
    """A header and 21 lines of text: x, the density, the distribution and the mean residual life."""
    x = np.linspace(0, 1, 21)
    rows = np.transpose([x, pdf(x, alpha, beta), cdf(x, alpha, beta), mean_residual_life(x, alpha, beta)])
    lines = ["x \t pdf(x) \t PDF(x) \t m(x)", *(" \t ".join(f"{value:f}" for value in row) for row in rows)]
    return "\n".join(lines) + "\n"


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


def _floats(*values: ArrayLike) -> Sequence[Floats]:
    return np.broadcast_arrays(*(np.asarray(value, np.float64) for value in values))


def _apart(x: ArrayLike, alpha: ArrayLike, beta: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """What scipy is asked with: of two equal shapes one is moved by one last digit.

    For equal shapes it takes a shorter way that is off by up to 1e-3 where they are large, and exact at 1/2 alone.
    """
    x, alpha, beta = _floats(np.clip(x, 0, 1), alpha, beta)
    return alpha, np.where((alpha == beta) & (x != 1 / 2), np.nextafter(beta, np.inf), beta), x


def _where_valid(values: Any, alpha: ArrayLike, beta: ArrayLike) -> Floats:
    return np.where(valid(alpha, beta), values, np.nan)


def _kernel(x: ArrayLike, alpha: ArrayLike, beta: ArrayLike) -> Floats:
    """x^alpha (1 - x)^beta / B(alpha, beta), for x between 0 and 1.

    Where both shapes are large the three are so large or small that nothing is left of their quotient. There they
    are put together: how far x is from the mean, and Stirling's series.
    """
    x, alpha, beta = _floats(x, alpha, beta)
    total = alpha + beta
    functions = special()
    plain = functions.xlogy(alpha, x) + functions.xlog1py(beta, -x) - functions.betaln(alpha, beta)
    shift = x - alpha / total
    far = alpha * _above_log(shift * total / alpha) + beta * _above_log(-shift * total / beta)
    rest = _stirling(total) - _stirling(alpha) - _stirling(beta)
    large = np.sqrt(alpha / total * beta / (2 * np.pi)) * np.exp(rest - far)
    return np.where(np.minimum(alpha, beta) > _LARGE, large, np.exp(plain))


def _above_log(x: Floats) -> Floats:
    """x - log(1 + x)."""
    logarithm: Floats = np.log1p(x)
    return x - logarithm


def _stirling(x: Floats) -> Floats:
    """What Stirling's formula lacks of the logarithm of the gamma function, for x above `_LARGE`."""
    square = x * x
    return (1 / 12 - (1 / 360 - (1 / 1260 - 1 / 1680 / square) / square) / square) / x
