"""Mean and covariance of a table, and their values after one column has grown.

The table has a row for each resource and a column for each node: the requested share of the node's capacity. The sums
are not repeated for a pod: with the deviation x of a column from the mean, a growth d of the column changes the mean to
m + d/n, and the covariance to C + (d xᵀ + x dᵀ)/n + d dᵀ(n - 1)/n². All nodes together take O(nodes · resources²).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class TableMoments(NamedTuple):
    """Mean and covariance of a table with n columns."""

    mean: Floats
    """(R)"""
    covariance: Floats
    """(R, R): the population covariance."""
    deviations: Floats
    """(R, n): each column minus the mean."""


def mean_and_covariance(table: Floats) -> TableMoments:
    """The moments of a table; zeros for a table without columns."""
    resources, count = table.shape
    if not count:
        return TableMoments(np.zeros(resources), np.zeros((resources, resources)), table)
    mean = table.mean(axis=1)
    deviations = table - mean[:, None]
    return TableMoments(mean, deviations @ deviations.T / count, deviations)


class ColumnGrowth(NamedTuple):
    """The growth of one column, in k alternative cases."""

    columns: NDArray[np.intp]
    """(k)"""
    by: Floats
    """(R, k)"""


def mean_after_growth(before: TableMoments, growth: ColumnGrowth) -> Floats:
    """The mean (R, k) after each growth."""
    mean: Floats = before.mean[:, None] + growth.by / before.deviations.shape[1]
    return mean


def variance_after_growth(before: TableMoments, growth: ColumnGrowth, along: Floats) -> Floats:
    """The variance aᵀΣa (k) along the directions a (R, k), with the covariance Σ after each growth."""
    count = before.deviations.shape[1]
    steps = _column_dot_products(along, growth.by)
    crossed = _column_dot_products(along, before.deviations[:, growth.columns])
    grown = 2 * steps * crossed / count + steps**2 * ((count - 1) / count**2)
    variance: Floats = np.maximum(_column_dot_products(along, before.covariance @ along) + grown, 0.0)
    return variance


def variability(mean: Floats, variance: Floats) -> Floats:
    """The multivariate coefficient of variation: √(µᵀΣµ) / µᵀµ, and 0 where either is 0.

    The arguments are µ (R, k) and µᵀΣµ (k), which is not negative. Albert and Zhang, Biometrical Journal 52(5), 2010.
    """
    length = _column_dot_products(mean, mean)
    coefficients: Floats = np.divide(np.sqrt(variance), length, out=np.zeros_like(variance), where=length > 0)
    return coefficients


def _column_dot_products(left: Floats, right: Floats) -> Floats:
    """The sum of the products of each column."""
    sums: Floats = (left * right).sum(axis=0)
    return sums
