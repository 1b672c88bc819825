"""Statistics of the samples of one resource of one node: mean, standard deviation, minimum and forecast.

The forecast is an autoregression of order 5 on the first differences of a series, fitted by least squares. That is
ARIMA(5, 1, 0), which the older annotator took from a statistics package. Samples are averaged in chunks first, so
that the next value is the average over a stretch of time, without the noise of single scrapes.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

CHUNKS: Final = 100
ORDER: Final = 5
MIN_VALUES: Final = 3 * ORDER
"""With fewer values there are hardly more equations than unknowns."""


class SampleSummary(NamedTuple):
    """NaN for statistics that need more samples."""

    mean: float
    deviation: float
    """Of a sample, with the divisor n - 1."""
    minimum: float


def summarize(samples: NDArray[np.float64]) -> SampleSummary:
    """Return mean, standard deviation and minimum; the deviation needs two samples."""
    if not samples.size:
        return SampleSummary(np.nan, np.nan, np.nan)
    deviation = float(samples.std(ddof=1)) if samples.size > 1 else np.nan
    return SampleSummary(float(samples.mean()), deviation, float(samples.min()))


def limit_usage_to_requests(
    free: NDArray[np.float64], allocatable: float, requested: float
) -> NDArray[np.float64]:
    """Raise samples of free memory to allocatable less requested: usage beyond the requests does not count."""
    return np.maximum(free, allocatable - requested)


def means_of_sample_chunks(samples: NDArray[np.float64], chunks: int = CHUNKS) -> NDArray[np.float64]:
    """Return the means of `chunks` stretches of nearly equal length, oldest first; fewer samples are returned as is.

    Each mean is of the stretch's own samples. The older annotator filled shorter chunks up with the median of all,
    which drew the newest values, the ones on which a forecast rests, towards the middle.
    """
    if samples.size <= chunks:
        return samples
    short, longer = divmod(samples.size, chunks)
    sizes = np.full(chunks, short)
    sizes[:longer] += 1
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    means: NDArray[np.float64] = np.add.reduceat(samples, starts) / sizes
    return means


def predict_next(values: NDArray[np.float64]) -> float:
    """Predict the next value; NaN for fewer than `MIN_VALUES` values, or where one of them is not finite.

    A forecast never leaves the range of the values by more than their spread: a fit to a series that jumped once may
    run away.
    """
    if values.size < MIN_VALUES or not np.isfinite(values).all():
        return float("nan")
    steps = np.diff(values)
    size = np.abs(steps).max()
    if size == 0:
        return float(values[-1])
    steps = steps / size  # squares of bytes would cost half of the digits
    windows = sliding_window_view(steps, ORDER)
    weights, *_ = np.linalg.lstsq(windows[:-1], steps[ORDER:], rcond=1e-10)
    prediction = float(values[-1] + size * (windows[-1] @ weights))
    low, high = values.min(), values.max()
    return float(np.clip(prediction, low - (high - low), high + (high - low)))


def forecast(samples: NDArray[np.float64]) -> float:
    """Predict the mean over the next chunk, which has as many samples as the last one."""
    return predict_next(means_of_sample_chunks(samples))
