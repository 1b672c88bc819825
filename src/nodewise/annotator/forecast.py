"""What comes next: an autoregression of order 5 on the first differences of a series, fitted by least squares.

That is ARIMA(5, 1, 0), which the older annotator took from a statistics package. Samples are averaged in chunks
first, so that the next value is the average over a stretch of time, without the noise of single scrapes.
"""

from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

CHUNKS: Final = 100
ORDER: Final = 5
LEAST: Final = 3 * ORDER
"""With fewer values there would be hardly more equations than unknowns."""


def chunk_means(samples: NDArray[np.float64], chunks: int = CHUNKS) -> NDArray[np.float64]:
    """The averages of so many near-equal stretches, oldest first; samples that are fewer stay as they are.

    Each is the average of its own samples. The older annotator filled shorter chunks up with the median of all, which
    drew the newest values, the ones on which a forecast rests, towards the middle.
    """
    if samples.size <= chunks:
        return samples
    short, longer = divmod(samples.size, chunks)
    sizes = np.full(chunks, short)
    sizes[:longer] += 1
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    means: NDArray[np.float64] = np.add.reduceat(samples, starts) / sizes
    return means


def following(values: NDArray[np.float64]) -> float:
    """The value that is to follow; NaN for fewer than `LEAST` values, or where one of them is no number.

    A forecast never leaves the range of the values by more than their spread: a fit to a series that jumped once may
    run away.
    """
    if values.size < LEAST or not np.isfinite(values).all():
        return float("nan")
    steps = np.diff(values)
    size = np.abs(steps).max()
    if size == 0:
        return float(values[-1])
    steps = steps / size  # bytes squared would cost half of the digits
    known = sliding_window_view(steps, ORDER)
    weights, *_ = np.linalg.lstsq(known[:-1], steps[ORDER:], rcond=1e-10)
    ahead = float(values[-1] + size * (known[-1] @ weights))
    low, high = values.min(), values.max()
    return float(np.clip(ahead, low - (high - low), high + (high - low)))


def forecast(samples: NDArray[np.float64]) -> float:
    """The average to be expected over the next chunk of as many samples as the last."""
    return following(chunk_means(samples))
