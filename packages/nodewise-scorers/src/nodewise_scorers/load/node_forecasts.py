"""Forecasts of the peak usage of each node over the next minutes, by three methods, and the choice among them.

| method | forecast |
|---|---|
| mean | mean plus two standard deviations, both decaying |
| percentile | a decaying percentile of the samples |
| profiles | the sum of the learned profiles of the node's pods |

Each method is backtested on the node itself: its forecast at the beginning of a period is compared with the highest
sample in the period, and the method with the smallest decaying loss is used. The loss is that of a quantile: a peak
above the forecast costs more than one below. Usage is a share of the node's capacity. All nodes are computed at once.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from nodewise.metrics.source_table import USAGE_MAX_AGE_S

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

METHODS: Final = ("mean", "percentile", "profiles")
MEAN, PERCENTILE, PROFILES = range(3)
PERIOD_S: Final = 300.0
"""How far a forecast looks ahead."""
_DEVIATIONS: Final = 2.0
_PERCENTILE: Final = 0.95
_HALF_LIFE_S: Final = 3600.0
_BUCKETS: Final = 40
_BUCKET: Final = 1.25 / _BUCKETS
"""Width of a bucket of the percentile, as a share of the capacity; usage can exceed what is allocatable."""
_QUANTILE: Final = 0.9
"""A peak above the forecast costs nine times as much as one below."""
_LOSS_DECAY: Final = 0.9
"""A loss weighs half after about seven periods."""
PRESSURE_FROM: Final = 0.7
"""Usage above which CPU pressure counts: below it, containers at their limits look like pressure."""


class NodeForecasts:
    """The history of one resource of all nodes, by number."""

    def __init__(self, size: int) -> None:
        self._weights = np.zeros(size)
        self._means = np.zeros(size)
        self._squares = np.zeros(size)
        self._histogram = np.zeros((size, _BUCKETS))
        self._sampled_at = np.full(size, np.nan)
        self._period_ends = np.full(size, np.nan)
        self._forecasts = np.full((len(METHODS), size), np.nan)
        """Of the current period, when it began."""
        self._statistics = np.full((2, size), np.nan)
        """The forecasts by mean and by percentile, of now."""
        self._peaks = np.zeros(size)
        self._losses = np.full((len(METHODS), size), np.nan)
        """Decaying; NaN for a method that was never compared."""
        self._chosen = np.full(size, MEAN)
        self._last = np.full(size, np.nan)

    def resize(self, size: int) -> None:
        """Add nodes without history."""
        for name, more in vars(NodeForecasts(size - len(self._weights))).items():
            axis = 0 if name == "_histogram" else -1
            setattr(self, name, np.concatenate([getattr(self, name), more], axis=axis))

    def forget(self, nodes: Ints) -> None:
        """The numbers are those of other nodes from now on."""
        for name, empty in vars(NodeForecasts(1)).items():
            if name == "_histogram":
                self._histogram[nodes] = 0.0
            else:
                getattr(self, name)[..., nodes] = empty

    @property
    def methods(self) -> Ints:
        """The number in `METHODS` of the method that is used for each node."""
        return self._chosen

    @property
    def deviation(self) -> Floats:
        """The standard deviation of the samples of each node; NaN without samples."""
        weights = np.where(self._weights > 0, self._weights, np.nan)
        deviation: Floats = np.sqrt(np.maximum(self._squares / weights - (self._means / weights) ** 2, 0.0))
        return deviation

    def observe(self, used: Floats, times: Floats, profiles: Floats) -> None:
        """Take samples: the used share and its time by node, NaN where unknown, and the sum of the pods' profiles.

        A sample that is not newer than the last one of its node does not count, unless the clock was set back: samples
        are from `now` and `USAGE_MAX_AGE_S` before it.
        """
        is_new = ~(times <= self._sampled_at) | (times < self._sampled_at - USAGE_MAX_AGE_S)
        new = np.flatnonzero(~np.isnan(used) & is_new & ~np.isnan(times))
        if not len(new):
            return
        values, at = used[new], times[new]
        elapsed_s = np.maximum(np.nan_to_num(at - self._sampled_at[new]), 0.0)
        keep = 0.5 ** (elapsed_s / _HALF_LIFE_S)
        self._sampled_at[new], self._last[new] = at, values
        self._weights[new] = self._weights[new] * keep + 1.0
        self._means[new] = self._means[new] * keep + values
        self._squares[new] = self._squares[new] * keep + values**2
        self._histogram[new] *= keep[:, None]
        buckets = np.clip((values / _BUCKET).astype(np.intp), 0, _BUCKETS - 1)
        self._histogram[new, buckets] += 1.0
        self._peaks[new] = np.maximum(self._peaks[new], values)
        self._summarize(new)
        ends = self._period_ends[new]
        ended = new[~((ends - PERIOD_S <= at) & (at < ends))]
        if len(ended):
            self._end_period(ended, profiles)

    def _end_period(self, nodes: Ints, profiles: Floats) -> None:
        error = self._peaks[nodes] - self._forecasts[:, nodes]
        loss = np.maximum(_QUANTILE * error, (_QUANTILE - 1) * error)
        before = self._losses[:, nodes]
        after = np.where(np.isnan(before), loss, _LOSS_DECAY * before + (1 - _LOSS_DECAY) * loss)
        self._losses[:, nodes] = np.where(np.isnan(loss), before, after)
        comparable = np.where(np.isnan(self._losses[:, nodes]), np.inf, self._losses[:, nodes])
        self._chosen[nodes] = comparable.argmin(axis=0)
        self._forecasts[:, nodes] = self._by_method(nodes, profiles)
        self._peaks[nodes] = 0.0
        self._period_ends[nodes] = self._sampled_at[nodes] + PERIOD_S

    def _by_method(self, nodes: Ints, profiles: Floats) -> Floats:
        return np.stack([self._statistics[0, nodes], self._statistics[1, nodes], profiles[nodes]])

    def _summarize(self, nodes: Ints) -> None:
        """The forecasts of the methods that depend on samples only."""
        weights = self._weights[nodes]
        means = self._means[nodes] / weights
        deviations = np.sqrt(np.maximum(self._squares[nodes] / weights - means**2, 0.0))
        sums = np.cumsum(self._histogram[nodes], axis=1)
        above = (sums < _PERCENTILE * sums[:, -1:]).sum(axis=1) + 1
        self._statistics[:, nodes] = means + _DEVIATIONS * deviations, above * _BUCKET

    def forecast(self, profiles: Floats) -> Floats:
        """The peak of each node as a share of its capacity; NaN for a node without samples.

        At least the last sample: the methods lag behind a rise. The sum of profiles is that of now.
        """
        everywhere = np.arange(len(self._weights))
        by_method = self._by_method(everywhere, profiles)
        chosen = by_method[self._chosen, everywhere]
        fallback: Floats = np.where(np.isnan(chosen), by_method[MEAN], chosen)
        peak: Floats = np.maximum(fallback, self._last)
        return peak


def add_pressure(forecast: Floats, used: Floats, pressure: Floats, used_from: float) -> Floats:
    """The forecast with what tasks wait for: pressure (PSI) is the share of the time in which some task waited.

    The time that tasks waited is demand that was not met. It counts where more than `used_from` of the capacity is
    used. NaN for an unknown pressure.
    """
    waiting = np.where((used > used_from) & (pressure > 0), np.minimum(pressure, 1.0), 0.0)
    with_pressure: Floats = forecast + np.nan_to_num(used) * waiting
    return with_pressure
