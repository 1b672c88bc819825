"""Mean and covariance of a table, and what they become when one column of it grows.

The table has a row for each resource and a column for each node: the share of what the node has that is requested. For
a pod nothing is summed up again: with x the deviation of a column from the mean, a growth d of it makes m + d/n of the
mean, and C + (d xᵀ + x dᵀ)/n + d dᵀ(n - 1)/n² of the covariance. So all nodes together cost O(nodes · resources²).
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


class Growth(NamedTuple):
    """One column or another has grown: k cases."""

    columns: NDArray[np.intp]
    """(k)"""
    by: Floats
    """(R, k)"""


def grown_mean(before: Moments, growth: Growth) -> Floats:
    """(R, k)"""
    mean: Floats = before.mean[:, None] + growth.by / before.deviations.shape[1]
    return mean


def grown_variance(before: Moments, growth: Growth, along: Floats) -> Floats:
    """aᵀΣa (k) for the directions a (R, k), of the covariance Σ after each growth."""
    count = before.deviations.shape[1]
    steps = _products(along, growth.by)
    crossed = _products(along, before.deviations[:, growth.columns])
    grown = 2 * steps * crossed / count + steps**2 * ((count - 1) / count**2)
    variance: Floats = np.maximum(_products(along, before.covariance @ along) + grown, 0.0)
    return variance


def variability(mean: Floats, variance: Floats) -> Floats:
    """The coefficient of variation of many dimensions: √(µᵀΣµ) / µᵀµ, and 0 where either is 0.

    Of µ (R, k) and µᵀΣµ (k), which is 0 at least. Albert and Zhang, Biometrical Journal 52(5), 2010.
    """
    length = _products(mean, mean)
    coefficients: Floats = np.divide(np.sqrt(variance), length, out=np.zeros_like(variance), where=length > 0)
    return coefficients


def _products(left: Floats, right: Floats) -> Floats:
    """Column by column, the sum of the products."""
    sums: Floats = (left * right).sum(axis=0)
    return sums
