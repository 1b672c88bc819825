"""The regularised incomplete beta function in arbitrary precision, by direct integration.

mpmath's own `betainc` takes minutes for large shapes. As a function of the logit of t, the integrand is log-concave and
its singularities are at a distance of pi from the real line, so Gauss-Legendre panels converge geometrically.
"""

from functools import cache
from typing import NamedTuple

import mpmath
from mpmath import mp, mpf

DIGITS = 50
_ENOUGH = mpf(10) ** -36
_NODES = 24


class Tails(NamedTuple):
    lower: mpf
    upper: mpf


def tails(x: float, alpha: float, beta: float) -> Tails:
    """The probabilities below and above `x`, to 30 digits each."""
    with mp.workdps(DIGITS):
        t, a, b = mpf(x), mpf(alpha), mpf(beta)
        if t <= 0:
            return Tails(mpf(0), mpf(1))
        if t >= 1:
            return Tails(mpf(1), mpf(0))
        if t >= a / (a + b):
            upper = _lower(1 - t, b, a)
            return Tails(1 - upper, upper)
        lower = _lower(t, a, b)
        return Tails(lower, 1 - lower)


def _lower(x: mpf, a: mpf, b: mpf) -> mpf:
    """The probability below `x`. `x` must be below the mean, where the integrand decreases towards 0."""
    scale = mpmath.log(mpmath.gamma(a + b)) if a + b < 1 else mpmath.loggamma(a + b)
    scale -= mpmath.loggamma(a) + mpmath.loggamma(b)
    deviation = mpmath.sqrt((a + b) / (a * b))
    at = mpmath.log(x) - mpmath.log1p(-x)
    total = mpf(0)
    while True:
        t = 1 / (1 + mpmath.exp(-at))
        if t * (b + 1) < mpf("0.3"):
            return total + _series(t, a, b, scale)
        slope = abs(a * (1 - t) - b * t)
        width = min(mpf(1), 3 * deviation, 10 / slope if slope else mpf(1))
        half, middle = width / 2, at - width / 2
        panel = half * sum(w * _integrand(middle + half * n, a, b, scale) for n, w in _gauss())
        total += panel
        if panel < total * _ENOUGH:
            return total
        at -= width


def _integrand(at: mpf, a: mpf, b: mpf, scale: mpf) -> mpf:
    grown = mpmath.log1p(mpmath.exp(-abs(at)))
    low, high = (at - grown, -grown) if at < 0 else (-grown, -at - grown)
    return mpmath.exp(scale + a * low + b * high)


def _series(t: mpf, a: mpf, b: mpf, scale: mpf) -> mpf:
    term, total, n = mpf(1), 1 / a, 0
    while abs(term) > _ENOUGH:
        n += 1
        term *= (n - b) * t / n
        total += term / (a + n)
    return mpmath.exp(scale + a * mpmath.log(t)) * total


@cache
def _gauss() -> list[tuple[mpf, mpf]]:
    """Nodes and weights of the rule on -1..1, by Newton's method on the Legendre polynomial."""
    pairs = []
    for k in range(_NODES):
        node = mpmath.cos(mpmath.pi * (k + mpf("0.75")) / (_NODES + mpf("0.5")))
        for _ in range(9):
            before, value = mpf(1), node
            for n in range(2, _NODES + 1):
                before, value = value, ((2 * n - 1) * node * value - (n - 1) * before) / n
            slope = _NODES * (node * value - before) / (node * node - 1)
            node -= value / slope
        pairs.append((node, 2 / ((1 - node * node) * slope * slope)))
    return pairs
