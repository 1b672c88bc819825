"""The risk that a node is overloaded, and scores and verdicts from it, fast enough for all nodes at every request.

The model of a node's load is a beta distribution with the measured mean and deviation. Functions take floats or arrays
of broadcastable shape and return float64 arrays; `alpha` and `beta` are the two shapes. Where one of them is not above
0, the result is NaN. They need scipy, which comes with the extra `risk` and is imported on first use.

The incomplete beta function takes microseconds, too long for each of 5,000 nodes in one request. But scores and
verdicts depend only on the two of a few levels between which the risk lies. Two numbers of a node decide that:

- its spread: the deviation as a share of the largest possible one at its mean, sqrt(mean (1 - mean));
- its headroom: the distance of its mean below the threshold, in deviations.

At a constant spread the risk falls as the headroom grows (the sum of the two shapes is constant), so each level is a
curve: the headroom at which the risk equals the level, over the spread. A `RiskScorer` computes the curves once, on a
grid of spreads, and interpolates them. The interpolation error is measured half-way between the points of the grid. For
a node that is nearer to a curve than a multiple of that error, the risk itself is computed, so the results are exact.

Most nodes are far from all curves. They are looked up in a table of cells over spread and headroom.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, cast

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from nodewise.agent import MAX_SCORE
from nodewise.base.errors import BadSettings, Problem

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

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
    """The first three moments; the first is the mean."""
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


def fit(mean: ArrayLike, deviation: ArrayLike) -> BetaShapes:
    """The distribution with this mean and deviation; the deviation is capped (`SPREAD`).

    NaN where the mean is not between 0 and 1, or the deviation is not above 0.
    """
    mean, deviation = _as_floats(mean, deviation)
    widest = mean * (1 - mean)
    with np.errstate(all="ignore"):
        weight = np.maximum(widest / (deviation * deviation), 1 / SPREAD) - 1
        good = (mean > 0) & (mean < 1) & (deviation > 0)
        return BetaShapes(np.where(good, mean * weight, np.nan), np.where(good, (1 - mean) * weight, np.nan))


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


def distribution_table(alpha: ArrayLike, beta: ArrayLike) -> dict[str, list[float]]:
    """Density, cumulative probability and mean residual life at steps of 0.05 from 0 to 1."""
    x = np.arange(21) / 20
    functions = {"pdf": pdf, "cdf": cdf, "residual": mean_residual_life}
    columns = {name: function(x, alpha, beta).tolist() for name, function in functions.items()}
    return {"x": x.tolist(), **columns}


@cache
def import_scipy_special() -> Any:
    """scipy.special; `BadSettings` where scipy is not installed."""
    try:
        from scipy import special as functions
    except ImportError as missing:
        raise BadSettings(
            "agents",
            [Problem("scipy", "is not installed", "the extra `risk`, which risk scores need")],
            remedy="pip install 'nodewise[risk]'",
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
    above, below = shift * total / alpha, -shift * total / beta
    far = alpha * (above - np.log1p(above)) + beta * (below - np.log1p(below))
    rest = _stirling_remainder(total) - _stirling_remainder(alpha) - _stirling_remainder(beta)
    large = np.sqrt(alpha / total * beta / (2 * np.pi)) * np.exp(rest - far)
    return np.where(np.minimum(alpha, beta) > _LARGE, large, np.exp(plain))


def _stirling_remainder(x: Floats) -> Floats:
    """The remainder of Stirling's formula for the logarithm of the gamma function, for x above `_LARGE`."""
    square = x * x
    return (1 / 12 - (1 / 360 - (1 / 1260 - 1 / 1680 / square) / square) / square) / x


_EDGE: Final = 1e-3  # thresholds nearer than this to 0 or 1 have no curves: every risk is computed

_PIECES: Final = 128  # the pieces of a curve, each a polynomial
_POINTS: Final = 6  # the neighbouring points of the grid that a piece interpolates
_ERROR_FACTOR: Final = 8.0
_MIN_ERROR: Final = 1e-7
"""The assumed error of a curve is the measured one times the factor, plus this minimum."""
_TOLERANCE: Final = 1e-11
_MIN_RISK: Final = 1e-300
_MAX_RISK: Final = 1 - NO_RISK  # bounds of risks, between which the normal quantile is finite

_COLUMNS_PER_PIECE: Final = 4  # columns of the table per piece
_COLUMNS: Final = _COLUMNS_PER_PIECE * _PIECES
_ROWS: Final = 1024  # equal steps of headroom / (|headroom| + `_BEND`)
_BEND: Final = 4.0
_SAMPLES: Final = 4  # samples of a curve per column
_COMPUTED: Final = -128  # the value of a cell instead of a band: the risk itself has to be computed

_BELOW_1: Final = 1 - 1e-12  # keeps the upper edge inside the table
_MAX_SPREAD: Final = SPREAD**0.5
_COLUMNS_PER_SPREAD: Final = _COLUMNS / _MAX_SPREAD * _BELOW_1  # columns per spread of 1


class RiskScorer:
    """Scores and rejects nodes by the risk of a utilisation above `threshold`; `percentile` is the accepted risk.

    Both are from 0 to 1. `BadSettings` without scipy.
    """

    def __init__(self, threshold: float, percentile: float) -> None:
        import_scipy_special()
        self.threshold = threshold
        self.percentile = percentile
        levels = percentile * (1 - np.arange(MAX_SCORE) / MAX_SCORE) ** 2
        levels = np.array([*levels[(levels > NO_RISK) & (levels < 1)], NO_RISK])
        self.levels = levels
        """The risks at which the score or the verdict changes, in descending order."""
        between = np.array([*(np.array([1.0, *levels[:-1]]) + levels) / 2, 0.0])
        self._scores = self._scores_of_risk(between)
        self._rejects = between > percentile
        self._curves = _curves(threshold, levels) if _EDGE <= threshold <= 1 - _EDGE else None

    def risk(self, mean: ArrayLike, deviation: ArrayLike) -> Floats:
        """The exact risk, for a few nodes at a time. NaN where the mean or the deviation is NaN."""
        return risk(mean, deviation, self.threshold)

    def scores(self, mean: ArrayLike, deviation: ArrayLike) -> NDArray[np.int64]:
        """From 10 for no risk to 0 for the accepted risk; -1 where the mean or the deviation is NaN."""
        return self._band_or_exact_risk(mean, deviation, self._scores, self._scores_of_risk)

    def rejects(self, mean: ArrayLike, deviation: ArrayLike) -> NDArray[np.bool_]:
        """Whether the risk is above the accepted one. NaN is not rejected here."""
        return self._band_or_exact_risk(mean, deviation, self._rejects, lambda risk: risk > self.percentile)

    def _scores_of_risk(self, risk: Floats) -> NDArray[np.int64]:
        """The score of each risk: 10 less the root of its share of the percentile; -1 for NaN."""
        with np.errstate(all="ignore"):
            share = np.where(risk == 0, 0.0, np.minimum(risk / self.percentile, 1))
        grades = np.floor(MAX_SCORE * (1 - np.sqrt(share)))
        return np.where(np.isnan(share), -1, grades).astype(np.int64)

    def _band_or_exact_risk(
        self,
        mean: ArrayLike,
        deviation: ArrayLike,
        by_band: NDArray[Any],
        by_risk: Callable[[Floats], NDArray[Any]],
    ) -> NDArray[Any]:
        """`by_band` where the band of a node is certain, and `by_risk` of its exact risk elsewhere."""
        means, deviations = np.broadcast_arrays(
            np.asarray(mean, np.float64), np.asarray(deviation, np.float64)
        )
        if self._curves is None:
            return by_risk(self.risk(means, deviations))
        shape = means.shape
        means, deviations = means.ravel(), deviations.ravel()
        bands = self._curves.bands(means, deviations)
        answer = by_band.take(bands, mode="clip")
        uncertain = np.flatnonzero(bands < 0)
        if len(uncertain):
            answer[uncertain] = by_risk(self.risk(means[uncertain], deviations[uncertain]))
        return answer.reshape(shape)


class _Curves(NamedTuple):
    """The headroom at each level, over the spread; the first level is the highest risk."""

    threshold: float
    pieces: Floats
    """[power, level, piece]: asinh of the headroom, as a polynomial in the place within the piece (0..1)."""
    margins: Floats
    """[level, piece]: the assumed error of the curve."""
    cells: NDArray[np.int8]
    """[column * _ROWS + row]: the band of the whole cell, -1 - level if a curve crosses it, or `_COMPUTED`."""

    def bands(self, means: Floats, deviations: Floats) -> NDArray[np.int8]:
        """The band of each node: the number of levels above its risk; below 0 where that is uncertain."""
        with np.errstate(all="ignore"):
            limits = np.sqrt(means * (1 - means))
            spreads = np.minimum(deviations / limits, _MAX_SPREAD)
            headrooms = (self.threshold - means) / (spreads * limits)
            places = spreads * _COLUMNS_PER_SPREAD
            bands: NDArray[np.int8] = self.cells.take(
                places.astype(np.intp) * _ROWS + _table_rows_of_headrooms(headrooms), mode="clip"
            )
        bands[~((deviations >= STEADY) & (limits > 0))] = _COMPUTED  # includes NaN
        near = np.flatnonzero((bands < 0) & (bands != _COMPUTED))
        if len(near):
            bands[near] = self._band_next_to_curve(
                -1 - bands[near].astype(np.intp), places[near] / _COLUMNS_PER_PIECE, headrooms[near]
            )
        return bands

    def _band_next_to_curve(self, levels: Ints, places: Floats, headrooms: Floats) -> NDArray[np.int8]:
        """The band of nodes in cells that the curve of a level crosses, or `_COMPUTED` too close to it."""
        at = places.astype(np.intp)
        beyond = np.arcsinh(headrooms) - _evaluate_polynomials(self.pieces[:, levels, at], places - at)
        margins = self.margins[levels, at]
        sides = np.where(beyond > margins, levels + 1, np.where(beyond < -margins, levels, _COMPUTED))
        return sides.astype(np.int8)


def _curves(threshold: float, levels: Floats) -> _Curves:
    spreads = np.arange(2 * _PIECES + 1) * (_COLUMNS_PER_PIECE / _COLUMNS_PER_SPREAD / 2)
    points = _headroom_curve_points(threshold, *np.meshgrid(spreads, levels))
    pieces = _interpolating_polynomials(points[:, ::2])
    errors = np.abs(_evaluate_polynomials(pieces, 0.5) - points[:, 1::2])
    around = sliding_window_view(np.pad(errors, ((0, 0), (1, 1))), 3, axis=1)
    margins = _MIN_ERROR + _ERROR_FACTOR * around.max(axis=-1)
    return _Curves(threshold, pieces, margins, _build_risk_band_table(pieces, margins))


def _headroom_curve_points(threshold: float, spreads: Floats, levels: Floats) -> Floats:
    """asinh of the headroom at which the risk equals the level, for each spread; normal at spread 0."""
    points: Floats = np.arcsinh(-import_scipy_special().ndtri(levels))
    some = spreads > 0
    spreads, levels = spreads[some], levels[some]

    def quantile_difference(at: Floats, which: Ints) -> Floats:
        means, rests = _means_below_threshold(threshold, np.sinh(at) * spreads[which])
        weights = 1 / spreads[which] ** 2 - 1
        risks = np.clip(survival(threshold, means * weights, rests * weights), _MIN_RISK, _MAX_RISK)
        ndtri = import_scipy_special().ndtri
        return cast("Floats", ndtri(levels[which]) - ndtri(risks))

    # Cantelli's inequality bounds the headroom.
    least = -np.arcsinh(np.sqrt(levels / (1 - levels))) - _MIN_ERROR
    most = np.arcsinh(np.sqrt((1 - levels) / levels)) + _MIN_ERROR
    points[some] = _find_zeros(quantile_difference, least, most, points[some])
    return points


def _means_below_threshold(threshold: float, shifts: Floats) -> tuple[Floats, Floats]:
    """The means that are `shifts` times sqrt(mean (1 - mean)) below the threshold, and 1 minus these."""
    squares = shifts * shifts
    roots = np.sqrt(squares * (squares + 4 * threshold * (1 - threshold)))
    low = 2 * threshold**2 / (2 * threshold + squares + roots)
    high = 2 * (1 - threshold) ** 2 / (2 * (1 - threshold) + squares + roots)
    return np.where(shifts > 0, low, 1 - high), np.where(shifts > 0, 1 - low, high)


def _find_zeros(
    function: Callable[[Floats, Ints], Floats], low: Floats, high: Floats, guess: Floats
) -> Floats:
    """The zeros of increasing functions between `low` and `high`, by regula falsi (Anderson and Björck's method)."""
    zeros = guess.copy()
    old, last = np.where(function(guess, np.arange(len(guess))) > 0, low, high), guess
    which = np.arange(len(guess))
    at_old, at_last = function(old, which), function(last, which)
    while len(which):
        new = last - at_last * (last - old) / (at_last - at_old)
        at_new = function(new, which)
        same = at_new * at_last > 0
        kept = np.where(
            same & (np.abs(at_new) < np.abs(at_last)), 1 - at_new / np.where(same, at_last, 1), 0.5
        )
        at_old = np.where(same, at_old * kept, at_last)
        old = np.where(same, old, last)
        zeros[which] = new
        is_unfinished = (np.abs(new - last) > _TOLERANCE * (1 + np.abs(new))) & (at_new != 0)
        which, old, at_old, last, at_last = (
            values[is_unfinished] for values in (which, old, at_old, new, at_new)
        )
    return zeros


def _interpolating_polynomials(points: Floats) -> Floats:
    """The polynomials [power, level, piece] through the points [level, place] around each piece."""
    count = points.shape[1]
    pieces = np.arange(count - 1)
    first = np.clip(pieces - (_POINTS // 2 - 1), 0, count - _POINTS)
    powers = np.arange(_POINTS)
    places = (first - pieces)[:, None] + powers
    solved = np.linalg.inv(places[:, :, None].astype(np.float64) ** powers)
    around = sliding_window_view(points, _POINTS, axis=1)[:, first]
    polynomials: Floats = np.einsum("pkn,lpn->klp", solved, around)
    return polynomials


def _evaluate_polynomials(polynomials: Floats, at: Floats | float) -> Floats:
    """Evaluate polynomials, given by power, at one place each (Horner's method)."""
    value: Floats = polynomials[-1]
    for coefficients in polynomials[-2::-1]:
        value = value * at + coefficients
    return value


def _build_risk_band_table(pieces: Floats, margins: Floats) -> NDArray[np.int8]:
    """Build the table: a curve crosses all cells of a column between its minimum and its maximum there."""
    curves = _evaluate_polynomials(pieces[..., None], np.linspace(0, 1, _COLUMNS_PER_PIECE * _SAMPLES + 1))
    samples = sliding_window_view(curves, _SAMPLES + 1, axis=-1)[..., ::_SAMPLES, :]
    low, high = samples.min(axis=-1), samples.max(axis=-1)
    slack = margins[..., None] + (high - low) / _SAMPLES
    lowest = _table_rows_of_headrooms(np.sinh(low - slack)).reshape(len(margins), _COLUMNS, 1)
    highest = _table_rows_of_headrooms(np.sinh(high + slack)).reshape(len(margins), _COLUMNS, 1)
    rows = np.arange(_ROWS)
    bands = np.zeros((_COLUMNS, _ROWS), np.int8)
    crossings = np.zeros_like(bands)
    crossing = np.zeros_like(bands)
    for level in range(len(margins)):
        bands += rows > highest[level]
        crossed = (rows >= lowest[level]) & (rows <= highest[level])
        crossings += crossed
        crossing[crossed] = -1 - level
    # where the error ranges of two curves overlap, the side of one curve does not determine the band
    simple = (crossings == 1) & (bands == -1 - crossing)
    return np.where(crossings == 0, bands, np.where(simple, crossing, _COMPUTED)).astype(np.int8).ravel()


def _table_rows_of_headrooms(headrooms: Floats) -> Ints:
    return ((headrooms / (np.abs(headrooms) + _BEND) + 1) * (_ROWS / 2 * _BELOW_1)).astype(np.intp)
