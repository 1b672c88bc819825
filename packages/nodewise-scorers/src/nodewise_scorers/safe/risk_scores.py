"""Scores and verdicts from the risk of overload at one threshold, fast enough for all nodes at every request.

The incomplete beta function takes microseconds, too long for each of 5,000 nodes in one request. But scores and
verdicts depend only on the two of a few levels between which the risk lies. Two numbers of a node decide that:

- its spread: the deviation as a share of the largest possible one at its mean, sqrt(mean (1 - mean));
- its headroom: the distance of its mean below the threshold, in deviations.

At a constant spread the risk falls as the headroom grows (the sum of the two shapes is constant), so each level is a
curve: the headroom at which the risk equals the level, over the spread. A `RiskScorer` computes the curves once, on a
grid of spreads, and interpolates them. The interpolation error is measured half-way between the points of the grid. For
a node that is nearer to a curve than a multiple of that error, the risk itself is computed, so the results are exact.

Most nodes are far from all curves. They are looked up in a table of cells over spread and headroom.

The risk of each candidate, as numbers and as text, which are computed when they are read.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, cast

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from nodewise_scorers.safe import beta_distribution
from nodewise_scorers.safe.state import Shares
from nodewise_scorers.statistics.missing_statistics import StatisticStatus
from nodewise_scorers.statistics.node_usage_reader import RESOURCES

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

_MAX_SCORE: Final = 10
_EDGE: Final = 1e-3
"""Thresholds nearer than this to 0 or 1 have no curves: every risk is computed."""

_PIECES: Final = 128
"""The pieces of a curve, each a polynomial."""
_POINTS: Final = 6
"""The neighbouring points of the grid that a piece interpolates."""
_ERROR_FACTOR: Final = 8.0
_MIN_ERROR: Final = 1e-7
"""The assumed error of a curve is the measured one times the factor, plus this minimum."""
_TOLERANCE: Final = 1e-11
_MIN_RISK: Final = 1e-300
_MAX_RISK: Final = 1 - beta_distribution.NO_RISK
"""Bounds of risks, between which the normal quantile is finite."""

_COLUMNS_PER_PIECE: Final = 4
"""Columns of the table per piece."""
_COLUMNS: Final = _COLUMNS_PER_PIECE * _PIECES
_ROWS: Final = 1024
"""Equal steps of headroom / (|headroom| + `_BEND`)."""
_BEND: Final = 4.0
_SAMPLES: Final = 4
"""Samples of a curve per column."""
_COMPUTED: Final = -128
"""The value of a cell instead of a band: the risk itself has to be computed."""

_BELOW_1: Final = 1 - 1e-12
"""Keeps the upper edge inside the table."""
_MAX_SPREAD: Final = beta_distribution.SPREAD**0.5
_COLUMNS_PER_SPREAD: Final = _COLUMNS / _MAX_SPREAD * _BELOW_1
"""Columns per spread of 1."""


class RiskScorer:
    """Scores and rejects nodes by the risk of a utilisation above `threshold`; `percentile` is the accepted risk.

    Both are from 0 to 1. `BadSettings` without scipy.
    """

    def __init__(self, threshold: float, percentile: float) -> None:
        beta_distribution.import_scipy_special()
        self.threshold = threshold
        self.percentile = percentile
        levels = _risks_where_scores_change(percentile)
        between = np.array([*(np.array([1.0, *levels[:-1]]) + levels) / 2, 0.0])
        self._scores = self._scores_of_risk(between)
        self._rejects = between > percentile
        self._curves = _curves(threshold, levels) if _EDGE <= threshold <= 1 - _EDGE else None

    def risk(self, mean: ArrayLike, deviation: ArrayLike) -> Floats:
        """The exact risk, for a few nodes at a time. NaN where the mean or the deviation is NaN."""
        return beta_distribution.risk(mean, deviation, self.threshold)

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
        grades = np.floor(_MAX_SCORE * (1 - np.sqrt(share)))
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


def _risks_where_scores_change(percentile: float) -> Floats:
    """The risks at which the score or the verdict changes, in descending order."""
    levels = percentile * (1 - np.arange(_MAX_SCORE) / _MAX_SCORE) ** 2
    return np.array([*levels[(levels > beta_distribution.NO_RISK) & (levels < 1)], beta_distribution.NO_RISK])


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
        bands[~((deviations >= beta_distribution.STEADY) & (limits > 0))] = _COMPUTED  # includes NaN
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
    points: Floats = np.arcsinh(-beta_distribution.import_scipy_special().ndtri(levels))
    some = spreads > 0
    spreads, levels = spreads[some], levels[some]

    def quantile_difference(at: Floats, which: Ints) -> Floats:
        means, rests = _means_below_threshold(threshold, np.sinh(at) * spreads[which])
        weights = 1 / spreads[which] ** 2 - 1
        risks = np.clip(
            beta_distribution.survival(threshold, means * weights, rests * weights), _MIN_RISK, _MAX_RISK
        )
        ndtri = beta_distribution.import_scipy_special().ndtri
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


_BLOCK: Final = 64
"""Candidates whose risk is computed together in about 0.3 ms; one by one it takes ten times as long."""


class RiskDetails:
    """Details of one response (`agent.Details`). Exact risks are computed when they are first read."""

    def __init__(
        self, shares: Shares, threshold: float, percentile: float, *, prints_table: bool = False
    ) -> None:
        self.shares = shares
        self.threshold = threshold
        self.percentile = percentile
        self.prints_table = prints_table
        self._risks: dict[int, NDArray[np.float64]] = {}
        """By block, by resource and candidate."""

    @property
    def nbytes(self) -> int:
        """Includes the risks of all candidates."""
        return self.shares.nbytes + self.shares.mean.nbytes

    def text(self, candidate: int) -> str:
        """`cpu 62 % ± 10 %, risk 0.03 %; memory: no statistics`."""
        return "; ".join(
            self._resource_text(resource, number, candidate) for number, resource in enumerate(RESOURCES)
        )

    def _resource_text(self, resource: str, number: int, candidate: int) -> str:
        missing = StatisticStatus(int(self.shares.missing[number, candidate]))
        if missing not in (StatisticStatus.PRESENT, StatisticStatus.NO_DEVIATION):
            return f"{resource}: {missing.words}"
        mean = self.shares.mean[number, candidate]
        spread = missing.words and f", {missing.words}"
        deviation = spread or f" ± {_format_percent(self.shares.deviation[number, candidate])}"
        risk = _format_percent(self._candidate_risk(number, candidate))
        return f"{resource} {_format_percent(mean)}{deviation}, risk {risk}"

    def _candidate_risk(self, number: int, candidate: int) -> float:
        block, place = divmod(candidate, _BLOCK)
        return float(self._compute_risks_of_block(block)[number, place])

    def _compute_risks_of_block(self, block: int) -> NDArray[np.float64]:
        """The risks of some candidates, by resource."""
        risks = self._risks.get(block)
        if risks is None:
            here = slice(block * _BLOCK, (block + 1) * _BLOCK)
            mean, deviation = self.shares.mean[:, here], self.shares.deviation[:, here]
            risks = self._risks[block] = beta_distribution.risk(mean, deviation, self.threshold)
        return risks

    def distances(self) -> NDArray[np.float64]:
        """By candidate: how far the risk is above the accepted one; 1 where there are no statistics."""
        size = self.shares.mean.shape[1]
        if not size:
            return np.zeros(0)
        risks = np.concatenate(
            [self._compute_risks_of_block(block) for block in range(-(-size // _BLOCK))], axis=1
        )
        worst = np.fmax(*risks)
        beyond = np.maximum(worst - self.percentile, 0.0) / max(1 - self.percentile, np.finfo(float).tiny)
        distances: NDArray[np.float64] = np.nan_to_num(np.minimum(beyond, 1.0), nan=1.0)
        return distances

    def numbers(self, candidate: int) -> Mapping[str, Any]:
        """By resource: `mean_share`, `std_share`, `alpha`, `beta`, `risk`, `threshold`; `missing` where it is."""
        return {
            resource: self._resource_numbers(number, candidate) for number, resource in enumerate(RESOURCES)
        }

    def _resource_numbers(self, number: int, candidate: int) -> dict[str, Any]:
        mean = float(self.shares.mean[number, candidate])
        deviation = float(self.shares.deviation[number, candidate])
        shapes = beta_distribution.fit(mean, deviation if deviation >= beta_distribution.STEADY else 0.0)
        numbers: dict[str, Any] = {
            "mean_share": mean,
            "std_share": deviation,
            "alpha": float(shapes.alpha),
            "beta": float(shapes.beta),
            "risk": self._candidate_risk(number, candidate),
            "threshold": self.threshold,
        }
        missing = StatisticStatus(int(self.shares.missing[number, candidate]))
        if missing:
            numbers["missing"] = missing.words
        if self.prints_table and beta_distribution.is_valid(*shapes):
            numbers["table"] = _distribution_table(shapes)
        return numbers


def _distribution_table(shapes: beta_distribution.BetaShapes) -> dict[str, list[float]]:
    """Density, cumulative probability and mean residual of the distribution at steps of 0.05."""
    x = np.arange(21) / 20
    functions = {
        "pdf": beta_distribution.pdf,
        "cdf": beta_distribution.cdf,
        "residual": beta_distribution.mean_residual_life,
    }
    return {"x": x.tolist(), **{name: function(x, *shapes).tolist() for name, function in functions.items()}}


def _format_percent(share: float) -> str:
    """Format with three digits: `62 %`, `0.0345 %`."""
    return f"{100 * share:.3g} %"
