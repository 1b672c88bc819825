"""Scores and verdicts from the risk of overload at one threshold, fast enough for all nodes at every request.

The incomplete beta function takes microseconds, and the whole answer for one of 5,000 nodes must take less. But what is
asked for is only between which two of a few levels the risk lies. Two numbers of a node decide that:

- its spread: the deviation as a share of the largest one there is at its mean, sqrt(mean (1 - mean));
- its room: the distance of its mean below the threshold, in deviations.

At one spread the risk falls as the room grows (the sum of the two shapes is the same there), so that each level is a
curve: the room at which the risk is that level, over the spread. The curves are worked out when a `Tail` is made, on a
grid of spreads, and interpolated. Half-way between the points of the grid it is seen how far off that is; for a node
that is nearer to a curve than some times that, the risk itself is computed. So the answers are those of the risk.

Most nodes are far from all curves. They are told by a table of cells over spread and room that no curve goes through.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from nodewise.agents.safe import beta_distribution

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

HIGHEST: Final = 10
_EDGE: Final = 1e-3
"""Thresholds nearer than this to 0 or 1 have no curves: all is computed."""

_PIECES: Final = 128
"""How many pieces a curve has, each a polynomial."""
_POINTS: Final = 6
"""Neighbouring points of the grid that a piece goes through."""
_SAFETY: Final = 8.0
_FLOOR: Final = 1e-7
"""Curves are taken to be off by this many times what was seen half-way, and by this much at the least."""
_EXACT: Final = 1e-11
_LEAST: Final = 1e-300
_MOST: Final = 1 - beta_distribution.NO_RISK
"""Risks of which the normal quantile is finite."""

_CUTS: Final = 4
"""Columns of the table for each piece."""
_COLUMNS: Final = _CUTS * _PIECES
_ROWS: Final = 1024
"""Equal steps of room / (|room| + `_BEND`)."""
_BEND: Final = 4.0
_LOOKS: Final = 4
"""How often a curve is looked at in each column."""
_COMPUTED: Final = -128
"""In the place of a band: the risk itself has to be computed."""

_BELOW_1: Final = 1 - 1e-12
"""What is at the upper edge of the table is inside it."""
_WIDEST: Final = beta_distribution.SPREAD**0.5
_ACROSS: Final = _COLUMNS / _WIDEST * _BELOW_1
"""Columns to a spread of 1."""


class Tail:
    """The risk of a utilisation above `threshold`, judged against the risk `percentile` that is accepted; both 0..1.

    `BadSettings` without scipy.
    """

    def __init__(self, threshold: float, percentile: float) -> None:
        beta_distribution.special()
        self.threshold = threshold
        self.percentile = percentile
        levels = _levels(percentile)
        between = np.array([*(np.array([1.0, *levels[:-1]]) + levels) / 2, 0.0])
        self._scores = self._graded(between)
        self._rejects = between > percentile
        self._curves = _curves(threshold, levels) if _EDGE <= threshold <= 1 - _EDGE else None

    def risk(self, mean: ArrayLike, deviation: ArrayLike) -> Floats:
        """The risk itself: for few nodes at a time. NaN where the mean or the deviation is."""
        return beta_distribution.risk(mean, deviation, self.threshold)

    def scores(self, mean: ArrayLike, deviation: ArrayLike) -> NDArray[np.int64]:
        """10 for no risk down to 0 for what is hardly accepted; -1 where the mean or the deviation is NaN."""
        return self._told(mean, deviation, self._scores, self._graded)

    def rejects(self, mean: ArrayLike, deviation: ArrayLike) -> NDArray[np.bool_]:
        """Whether the risk is above the one that is accepted. NaN is not rejected here."""
        return self._told(mean, deviation, self._rejects, lambda risk: risk > self.percentile)

    def _graded(self, risk: Floats) -> NDArray[np.int64]:
        with np.errstate(all="ignore"):
            share = np.where(risk == 0, 0.0, np.minimum(risk / self.percentile, 1))
        grades = np.floor(HIGHEST * (1 - np.sqrt(share)))
        return np.where(np.isnan(share), -1, grades).astype(np.int64)

    def _told(
        self,
        mean: ArrayLike,
        deviation: ArrayLike,
        by_band: NDArray[Any],
        judged: Callable[[Floats], NDArray[Any]],
    ) -> NDArray[Any]:
        """`judged` of the risk, or what it is in all of a band where the band is sure."""
        means, deviations = np.broadcast_arrays(
            np.asarray(mean, np.float64), np.asarray(deviation, np.float64)
        )
        if self._curves is None:
            return judged(self.risk(means, deviations))
        shape = means.shape
        means, deviations = means.ravel(), deviations.ravel()
        bands = self._curves.bands(means, deviations)
        answer = by_band.take(bands, mode="clip")
        unsure = np.flatnonzero(bands < 0)
        if len(unsure):
            answer[unsure] = judged(self.risk(means[unsure], deviations[unsure]))
        return answer.reshape(shape)


def _levels(percentile: float) -> Floats:
    """The risks at which the score or the verdict changes, from the highest on."""
    levels = percentile * (1 - np.arange(HIGHEST) / HIGHEST) ** 2
    return np.array([*levels[(levels > beta_distribution.NO_RISK) & (levels < 1)], beta_distribution.NO_RISK])


class _Curves(NamedTuple):
    """Of each level, how much room there must be at a spread; the first level is the highest risk."""

    threshold: float
    pieces: Floats
    """[power, level, piece]: asinh of the room, as a polynomial in the place within the piece (0..1)."""
    margins: Floats
    """[level, piece]: how far off that may be."""
    cells: NDArray[np.int8]
    """[column * _ROWS + row]: the band that all of the cell is in; -1 - level if a curve is there; or `_COMPUTED`."""

    def bands(self, means: Floats, deviations: Floats) -> NDArray[np.int8]:
        """Between which levels the risk is: how many are above it; below 0 where that is not sure."""
        with np.errstate(all="ignore"):
            limits = np.sqrt(means * (1 - means))
            spreads = np.minimum(deviations / limits, _WIDEST)
            rooms = (self.threshold - means) / (spreads * limits)
            places = spreads * _ACROSS
            bands: NDArray[np.int8] = self.cells.take(
                places.astype(np.intp) * _ROWS + _rows(rooms), mode="clip"
            )
        bands[~((deviations >= beta_distribution.STEADY) & (limits > 0))] = _COMPUTED  # NaN is among these
        near = np.flatnonzero((bands < 0) & (bands != _COMPUTED))
        if len(near):
            bands[near] = self._beside(-1 - bands[near].astype(np.intp), places[near] / _CUTS, rooms[near])
        return bands

    def _beside(self, levels: Ints, places: Floats, rooms: Floats) -> NDArray[np.int8]:
        """On which side of the curve of this level each is."""
        at = places.astype(np.intp)
        beyond = np.arcsinh(rooms) - _value(self.pieces[:, levels, at], places - at)
        margins = self.margins[levels, at]
        sides = np.where(beyond > margins, levels + 1, np.where(beyond < -margins, levels, _COMPUTED))
        return sides.astype(np.int8)


def _curves(threshold: float, levels: Floats) -> _Curves:
    spreads = np.arange(2 * _PIECES + 1) * (_CUTS / _ACROSS / 2)
    points = _points(threshold, *np.meshgrid(spreads, levels))
    pieces = _interpolated(points[:, ::2])
    seen = np.abs(_value(pieces, 0.5) - points[:, 1::2])
    around = sliding_window_view(np.pad(seen, ((0, 0), (1, 1))), 3, axis=1)
    margins = _FLOOR + _SAFETY * around.max(axis=-1)
    return _Curves(threshold, pieces, margins, _cells(pieces, margins))


def _points(threshold: float, spreads: Floats, levels: Floats) -> Floats:
    """asinh of the room at which the risk is that level, for each spread; without a spread the normal one."""
    points: Floats = np.arcsinh(-beta_distribution.special().ndtri(levels))
    some = spreads > 0
    spreads, levels = spreads[some], levels[some]

    def missing(at: Floats, which: Ints) -> Floats:
        means, rests = _means(threshold, np.sinh(at) * spreads[which])
        weights = 1 / spreads[which] ** 2 - 1
        risks = np.clip(
            beta_distribution.survival(threshold, means * weights, rests * weights), _LEAST, _MOST
        )
        ndtri = beta_distribution.special().ndtri
        return cast("Floats", ndtri(levels[which]) - ndtri(risks))

    # Cantelli's inequality says between which rooms it is.
    least = -np.arcsinh(np.sqrt(levels / (1 - levels))) - _FLOOR
    most = np.arcsinh(np.sqrt((1 - levels) / levels)) + _FLOOR
    points[some] = _zeros(missing, least, most, points[some])
    return points


def _means(threshold: float, shifts: Floats) -> tuple[Floats, Floats]:
    """The means that lie `shifts` times sqrt(mean (1 - mean)) below the threshold, and 1 less these."""
    squares = shifts * shifts
    roots = np.sqrt(squares * (squares + 4 * threshold * (1 - threshold)))
    low = 2 * threshold**2 / (2 * threshold + squares + roots)
    high = 2 * (1 - threshold) ** 2 / (2 * (1 - threshold) + squares + roots)
    return np.where(shifts > 0, low, 1 - high), np.where(shifts > 0, 1 - low, high)


def _zeros(function: Callable[[Floats, Ints], Floats], low: Floats, high: Floats, guess: Floats) -> Floats:
    """Where rising functions are 0 between `low` and `high`: false position as Anderson and Bjoerck mend it."""
    tried = guess.copy()
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
        tried[which] = new
        going = (np.abs(new - last) > _EXACT * (1 + np.abs(new))) & (at_new != 0)
        which, old, at_old, last, at_last = which[going], old[going], at_old[going], new[going], at_new[going]
    return tried


def _interpolated(points: Floats) -> Floats:
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


def _value(polynomials: Floats, at: Floats | float) -> Floats:
    """The polynomials by power, each at its place."""
    value: Floats = polynomials[-1]
    for coefficients in polynomials[-2::-1]:
        value = value * at + coefficients
    return value


def _cells(pieces: Floats, margins: Floats) -> NDArray[np.int8]:
    """The table: a curve is in all cells of a column between its lowest and its highest place there."""
    curves = _value(pieces[..., None], np.linspace(0, 1, _CUTS * _LOOKS + 1))
    looks = sliding_window_view(curves, _LOOKS + 1, axis=-1)[..., ::_LOOKS, :]
    low, high = looks.min(axis=-1), looks.max(axis=-1)
    slack = margins[..., None] + (high - low) / _LOOKS
    lowest = _rows(np.sinh(low - slack)).reshape(len(margins), _COLUMNS, 1)
    highest = _rows(np.sinh(high + slack)).reshape(len(margins), _COLUMNS, 1)
    rows = np.arange(_ROWS)
    bands = np.zeros((_COLUMNS, _ROWS), np.int8)
    crossings = np.zeros_like(bands)
    crossing = np.zeros_like(bands)
    for level in range(len(margins)):
        bands += rows > highest[level]
        crossed = (rows >= lowest[level]) & (rows <= highest[level])
        crossings += crossed
        crossing[crossed] = -1 - level
    # Where the slack of one curve is over others as well, being beside it does not say which band it is.
    simple = (crossings == 1) & (bands == -1 - crossing)
    return np.where(crossings == 0, bands, np.where(simple, crossing, _COMPUTED)).astype(np.int8).ravel()


def _rows(rooms: Floats) -> Ints:
    return ((rooms / (np.abs(rooms) + _BEND) + 1) * (_ROWS / 2 * _BELOW_1)).astype(np.intp)
