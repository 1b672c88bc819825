"""The beta distribution as a model of utilisation: computes the risk of overload from a mean and a deviation.

All functions take floats or arrays of equal (or broadcastable) shape and return float64 arrays. `alpha` and `beta`
are the two shapes of the distribution; where one of them is not above 0, the result is NaN.

This needs scipy, which comes with the extra `risk` and is imported on first use.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nodewise.base.errors import BadSettings, Problem

Floats = NDArray[np.float64]

STEADY: Final = 1e-6
"""A deviation below this counts as 0: measured values are rounded by as much."""
SPREAD: Final = 0.99
"""A beta distribution of mean m has a variance below m (1 - m). A larger variance is capped at this share of it."""
NO_RISK: Final = 2.0**-53
"""A risk below this is 0, because 1 minus it rounds to 1."""


_LARGE: Final = 10.0
"""For shapes above this, Stirling's series yields 12 digits of the logarithm of the gamma function."""


class BetaShapes(NamedTuple):
    """The two shapes of beta distributions; both NaN where there is no such distribution."""

    alpha: Floats
    beta: Floats


class BetaMoments(NamedTuple):
    """The first three moments about 0."""

    first: Floats
    second: Floats
    third: Floats


def is_valid(alpha: ArrayLike, beta: ArrayLike) -> NDArray[np.bool_]:
    """Whether there is a beta distribution of these shapes: both above 0, infinity included."""
    return (np.asarray(alpha, np.float64) > 0) & (np.asarray(beta, np.float64) > 0)


def beta_function(alpha: ArrayLike, beta: ArrayLike) -> Floats:
    """The complete beta function B(alpha, beta)."""
    return _nan_for_invalid_shapes(import_scipy_special().beta(alpha, beta), alpha, beta)


def cdf(x: ArrayLike, alpha: ArrayLike, beta: ArrayLike) -> Floats:
    """The probability of a value of at most `x`: the regularised incomplete beta function."""
    return _nan_for_invalid_shapes(
        import_scipy_special().betainc(*_make_shapes_unequal(x, alpha, beta)), alpha, beta
    )


def survival(x: ArrayLike, alpha: ArrayLike, beta: ArrayLike) -> Floats:
    """The probability of a value above `x`, exact also where 1 - cdf would round to 0."""
    return _nan_for_invalid_shapes(
        import_scipy_special().betaincc(*_make_shapes_unequal(x, alpha, beta)), alpha, beta
    )


def pdf(x: ArrayLike, alpha: ArrayLike, beta: ArrayLike) -> Floats:
    """The density at `x`; infinite at 0 where alpha is below 1, and at 1 where beta is."""
    x, alpha, beta = _as_floats(x, alpha, beta)
    functions = import_scipy_special()
    with np.errstate(all="ignore"):
        inner = _scaled_beta_density(x, alpha, beta) / (x * (1 - x))
        logarithm = functions.xlogy(alpha - 1, x) + functions.xlog1py(beta - 1, -x)
        edge = np.exp(logarithm - functions.betaln(alpha, beta))
    density = np.where((x == 0) | (x == 1), edge, inner)
    return _nan_for_invalid_shapes(np.where((x < 0) | (x > 1), 0.0, density), alpha, beta)


def mean_residual_life(x: ArrayLike, alpha: ArrayLike, beta: ArrayLike) -> Floats:
    """The mean distance above `x` of the values above it; 0 where no value is above (Gupta, Bradley)."""
    x, alpha, beta = _as_floats(np.clip(x, 0, 1), alpha, beta)
    total = alpha + beta
    above = survival(x, alpha, beta)
    with np.errstate(all="ignore"):
        life = _scaled_beta_density(x, alpha, beta) / (above * total) + alpha / total - x
    return np.where(above == 0, 0.0, life)


def moments(alpha: ArrayLike, beta: ArrayLike) -> BetaMoments:
    """The first three moments; the first is the mean. For the variance use `variance`."""
    alpha, beta = _as_floats(_nan_for_invalid_shapes(alpha, alpha, beta), beta)
    with np.errstate(invalid="ignore"):
        total = alpha + beta
        first = alpha / total
        second = first * (alpha + 1) / (total + 1)
        return BetaMoments(first, second, second * (alpha + 2) / (total + 2))


def variance(alpha: ArrayLike, beta: ArrayLike) -> Floats:
    """The variance, computed without the difference of two nearly equal moments."""
    alpha, beta = _as_floats(_nan_for_invalid_shapes(alpha, alpha, beta), beta)
    with np.errstate(invalid="ignore"):
        total = alpha + beta
        return alpha / total * (beta / total) / (total + 1)


def match_moments(first: ArrayLike, second: ArrayLike) -> BetaShapes:
    """The distribution with these first two moments; NaN where there is none.

    The variance is a difference of the two and loses digits; `fit` is exact for a mean and a deviation.
    """
    first, second = _as_floats(first, second)
    spread = second - first * first
    widest = first * (1 - first)
    with np.errstate(all="ignore"):
        weight = np.maximum(widest / spread - 1, np.finfo(np.float64).smallest_subnormal)
    exists = (first >= 0) & (first <= 1) & (spread >= 0) & (spread < widest)
    return BetaShapes(
        np.where(exists, first * weight, np.nan), np.where(exists, (1 - first) * weight, np.nan)
    )


def fit(mean: ArrayLike, deviation: ArrayLike) -> BetaShapes:
    """The distribution with this mean and deviation; the deviation is capped (`SPREAD`).

    NaN where the mean is not between 0 and 1, or the deviation is not above 0.
    """
    mean, deviation = _as_floats(mean, deviation)
    widest = mean * (1 - mean)
    with np.errstate(all="ignore"):
        weight = np.maximum(widest / (deviation * deviation), 1 / SPREAD) - 1
        good = (mean > 0) & (mean < 1) & (deviation > 0)
        return BetaShapes(
            np.where(good, mean * weight, np.nan),
            np.where(good, (1 - mean) * weight, np.nan),
        )


def risk(mean: ArrayLike, deviation: ArrayLike, threshold: float) -> Floats:
    """The probability that a utilisation of this mean and deviation is above `threshold` (0..1).

    Means are clipped to 0 and 1. Deviations are capped (`SPREAD`); below `STEADY` they count as 0, and only the mean
    counts. A probability below `NO_RISK` is 0. NaN where the mean or the deviation is NaN.
    """
    means, deviations = _as_floats(mean, deviation)
    means = np.clip(means, 0, 1)
    risks = np.where(means > threshold, 1.0, 0.0)
    alpha, beta = fit(means, deviations)
    spread = (deviations >= STEADY) & is_valid(alpha, beta)
    risks[spread] = survival(threshold, alpha[spread], beta[spread])
    risks[risks < NO_RISK] = 0
    risks[np.isnan(means) | np.isnan(deviations)] = np.nan
    return risks


def format_distribution(alpha: float, beta: float) -> str:
    """Format the distribution as one line of text."""
    first, second, third = (float(moment) for moment in moments(alpha, beta))
    named = {"alpha": alpha, "beta": beta, "mean": first, "var": float(variance(alpha, beta))}
    named |= {"m1": first, "m2": second, "m3": third}
    return "BetaDistribution: " + "".join(f"{name} = {value:f}; " for name, value in named.items()) + "\n"


def format_distribution_table(alpha: float, beta: float) -> str:
    """Format a header and 21 lines: x, the density, the distribution function and the mean residual life."""
    x = np.linspace(0, 1, 21)
    rows = np.transpose([x, pdf(x, alpha, beta), cdf(x, alpha, beta), mean_residual_life(x, alpha, beta)])
    lines = ["x \t pdf(x) \t PDF(x) \t m(x)", *(" \t ".join(f"{value:f}" for value in row) for row in rows)]
    return "\n".join(lines) + "\n"


@cache
def import_scipy_special() -> Any:
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


def _as_floats(*values: ArrayLike) -> Sequence[Floats]:
    return np.broadcast_arrays(*(np.asarray(value, np.float64) for value in values))


def _make_shapes_unequal(x: ArrayLike, alpha: ArrayLike, beta: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """The arguments for scipy: of two equal shapes, one is changed in its last digit.

    For equal shapes scipy uses a shortcut with an error of up to 1e-3 for large shapes, which is exact at 1/2 only.
    """
    x, alpha, beta = _as_floats(np.clip(x, 0, 1), alpha, beta)
    return alpha, np.where((alpha == beta) & (x != 1 / 2), np.nextafter(beta, np.inf), beta), x


def _nan_for_invalid_shapes(values: Any, alpha: ArrayLike, beta: ArrayLike) -> Floats:
    return np.where(is_valid(alpha, beta), values, np.nan)


def _scaled_beta_density(x: ArrayLike, alpha: ArrayLike, beta: ArrayLike) -> Floats:
    """x^alpha (1 - x)^beta / B(alpha, beta), for x between 0 and 1.

    For large shapes the three factors overflow or underflow. There the result is computed as one expression, from the
    distance of x to the mean and Stirling's series.
    """
    x, alpha, beta = _as_floats(x, alpha, beta)
    total = alpha + beta
    functions = import_scipy_special()
    plain = functions.xlogy(alpha, x) + functions.xlog1py(beta, -x) - functions.betaln(alpha, beta)
    shift = x - alpha / total
    far = alpha * _x_minus_log1p(shift * total / alpha) + beta * _x_minus_log1p(-shift * total / beta)
    rest = _stirling_remainder(total) - _stirling_remainder(alpha) - _stirling_remainder(beta)
    large = np.sqrt(alpha / total * beta / (2 * np.pi)) * np.exp(rest - far)
    return np.where(np.minimum(alpha, beta) > _LARGE, large, np.exp(plain))


def _x_minus_log1p(x: Floats) -> Floats:
    """x - log(1 + x)."""
    logarithm: Floats = np.log1p(x)
    return x - logarithm


def _stirling_remainder(x: Floats) -> Floats:
    """The remainder of Stirling's formula for the logarithm of the gamma function, for x above `_LARGE`."""
    square = x * x
    return (1 / 12 - (1 / 360 - (1 / 1260 - 1 / 1680 / square) / square) / square) / x
