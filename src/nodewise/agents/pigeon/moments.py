"""Mean and covariance of a table, and what they become when one column of it grows.

The table has a row a resource and a column a node: the share of what the node has that is requested. Nothing is summed
up again for a pod: with the deviations x of a column from the mean, a growth d makes of the mean m + d/n, and of the
covariance C + (d xᵀ + x dᵀ)/n + d dᵀ (n - 1)/n². So all nodes together cost O(nodes · resources²), not nodes as often.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Moments(NamedTuple):
    """Of a table of n columns."""

    mean: Floats
    """(R)"""
    covariance: Floats
    """(R, R), of the population."""
    deviations: Floats
    """(R, n): each column without the mean."""


def of(table: Floats) -> Moments:
    """Zeros for a table without columns."""
    resources, count = table.shape
    if not count:
        return Moments(np.zeros(resources), np.zeros((resources, resources)), table)
    mean = table.mean(axis=1)
    deviations = table - mean[:, None]
    return Moments(mean, deviations @ deviations.T / count, deviations)


def grown(moments: Moments, columns: NDArray[np.intp], growths: Floats) -> tuple[Floats, Floats]:
    """Mean (R, k) and covariance (R, R, k) after one column or another has grown.

    `columns` are the k columns, each a case of its own, and `growths` (R, k) by how much.
    """
    count = moments.deviations.shape[1]
    deviations = moments.deviations[:, columns]
    cross = growths[:, None] * deviations[None]
    both = growths[:, None] * growths[None]
    covariance = (
        moments.covariance[:, :, None]
        + (cross + cross.swapaxes(0, 1)) / count
        + both * ((count - 1) / count**2)
    )
    return moments.mean[:, None] + growths / count, covariance


def variability(mean: Floats, covariance: Floats) -> Floats:
    """The coefficient of variation of many dimensions: √(µᵀΣµ) / µᵀµ, and 0 where either is 0.

    Albert and Zhang, Biometrical Journal 52(5), 2010. Of mean (R, k) and covariance (R, R, k): (k).
    """
    square = (mean[:, None] * mean[None] * covariance).sum(axis=(0, 1))
    length = (mean * mean).sum(axis=0)
    root = np.sqrt(np.maximum(square, 0.0))
    found: Floats = np.divide(root, length, out=np.zeros_like(root), where=length > 0)
    return found
