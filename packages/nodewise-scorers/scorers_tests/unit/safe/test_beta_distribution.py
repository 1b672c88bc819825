"""Comparison of the beta distribution with arbitrary precision, for all possible means and deviations."""

import builtins
import itertools
import math
import subprocess
import sys

import mpmath
import numpy as np
import pytest

from nodewise.base.errors import BadSettings
from nodewise_scorers.safe import risk_scores
from scorers_tests.unit.safe.reference_beta_function import tails

SHAPES = [1e-8, 1e-3, 0.5, 1.0, 7.5, 400.0, 1e5, 3e7, 1e10, 1e13]
ROOMS = [-37.0, -8.0, -1.0, 0.0, 0.5, 6.0, 30.0]
"""Distances from the mean, in deviations of the logit."""


def _asked():
    for alpha, beta_, room in itertools.product(SHAPES, SHAPES, ROOMS):
        away = room * min(math.sqrt(1 / alpha + 1 / beta_), 10)
        logit = math.log(alpha / beta_) + away
        x = 1 / (1 + math.exp(-logit)) if logit > -700 else 0.0
        if 0 < x < 1:
            yield x, alpha, beta_
    for alpha, beta_, x in itertools.product(SHAPES, SHAPES, [0.1, 0.9]):
        yield x, alpha, beta_


class TestTheIncompleteBetaFunction:
    def test_it_is_exact_over_the_whole_domain(self) -> None:
        x, alpha, beta_ = (np.array(column) for column in zip(*list(_asked())[::3], strict=True))
        below, above = risk_scores.cdf(x, alpha, beta_), risk_scores.survival(x, alpha, beta_)
        for at in range(len(x)):
            lower, upper = (float(probability) for probability in tails(x[at], alpha[at], beta_[at]))
            assert below[at] == pytest.approx(lower, abs=1e-9)
            assert above[at] == pytest.approx(upper, abs=1e-9)
            assert below[at] == pytest.approx(lower, rel=1e-6, abs=1e-300)
            assert above[at] == pytest.approx(upper, rel=1e-6, abs=1e-300)

    @pytest.mark.parametrize(
        ("x", "alpha", "beta_"),
        [(0.3, 1, 1), (0.9, 0.02, 0.02), (0.9, 809.1, 89.9), (0.5, 1e-8, 2), (0.4, 30, 0.5)],
    )
    def test_the_reference_agrees_with_mpmath_where_that_is_quick(self, x, alpha, beta_) -> None:
        lower, upper = tails(x, alpha, beta_)
        with mpmath.workdps(40):
            assert mpmath.almosteq(lower, mpmath.betainc(alpha, beta_, 0, x, regularized=True), 1e-28)
            assert mpmath.almosteq(upper, mpmath.betainc(alpha, beta_, x, 1, regularized=True), 1e-28)

    @pytest.mark.parametrize("shape", [1e-8, 0.5, 1e3, 1e7, 1e11, 1e13])
    def test_equal_shapes_are_no_exception(self, shape) -> None:
        for x in (1e-16, 0.25, 0.5 - 1 / math.sqrt(shape + 9), 0.5 + 0.1 / math.sqrt(shape + 9), 1 - 2**-53):
            lower, upper = (float(probability) for probability in tails(x, shape, shape))
            assert risk_scores.cdf(x, shape, shape) == pytest.approx(lower, rel=1e-6, abs=1e-300)
            assert risk_scores.survival(x, shape, shape) == pytest.approx(upper, rel=1e-6, abs=1e-300)
            assert risk_scores.survival(x, shape, shape) == pytest.approx(upper, abs=1e-9)
        assert risk_scores.survival(0.5, shape, shape) == 0.5

    def test_at_the_ends_all_is_above_or_below(self) -> None:
        assert risk_scores.cdf([0, 1, -1, 2], 3, 4).tolist() == [0, 1, 0, 1]
        assert risk_scores.survival([0, 1], [1e-8, 1e13], [1e13, 1e-8]).tolist() == [1, 0]

    def test_functions_are_nan_for_shapes_not_above_0(self) -> None:
        shapes = ([0, -1, math.nan, 1, math.inf], [1, 1, 1, 0, 1])
        assert risk_scores.is_valid(*shapes).tolist() == [False, False, False, False, True]
        for answer in (
            risk_scores.cdf(0.5, *shapes),
            risk_scores.survival(0.5, *shapes),
            risk_scores.pdf(0.5, *shapes),
            risk_scores.mean_residual_life(0.5, *shapes),
            risk_scores.moments(*shapes).third,
            risk_scores.variance(*shapes),
        ):
            assert np.isnan(answer[:4]).all()


class TestTheDensity:
    def test_it_is_exact_for_small_and_large_shapes(self) -> None:
        for alpha, beta_ in itertools.product(SHAPES, SHAPES):
            x = min(max(alpha / (alpha + beta_), 1e-12), 1 - 1e-12)
            with mpmath.workdps(50):
                a, b, t = mpmath.mpf(alpha), mpmath.mpf(float(beta_)), mpmath.mpf(x)
                whole = mpmath.loggamma(a) + mpmath.loggamma(b) - mpmath.loggamma(a + b)
                wanted = float(mpmath.exp((a - 1) * mpmath.log(t) + (b - 1) * mpmath.log1p(-t) - whole))
            assert risk_scores.pdf(x, alpha, beta_) == pytest.approx(wanted, rel=1e-7)

    def test_at_the_ends(self) -> None:
        assert risk_scores.pdf(
            [0, 0, 0, 1, 1, 1], [0.5, 1, 2, 2, 2, 2], [2, 2, 2, 0.5, 1, 2]
        ).tolist() == pytest.approx([math.inf, 2, 0, math.inf, 2, 0])
        assert risk_scores.pdf([0, 1], 500, 500).tolist() == [0, 0]
        assert risk_scores.pdf([-0.1, 1.1], 2, 2).tolist() == [0, 0]


class TestTheMeanResidualLife:
    @pytest.mark.parametrize(("alpha", "beta_"), [(2, 3), (0.5, 0.5), (0.02, 0.7), (40, 4), (9000, 1000)])
    @pytest.mark.parametrize("x", [0.01, 0.3, 0.88, 0.9, 0.91])
    def test_mean_residual_life_is_the_mean_distance_of_values_above(self, alpha, beta_, x) -> None:
        above = risk_scores.survival(x, alpha, beta_)
        wanted = alpha / (alpha + beta_) * risk_scores.survival(x, alpha + 1, beta_) / above - x
        assert risk_scores.mean_residual_life(x, alpha, beta_) == pytest.approx(wanted, abs=1e-9)

    def test_at_the_ends_it_is_the_mean_and_nothing(self) -> None:
        assert risk_scores.mean_residual_life([0, 1], 0.5, 1.5).tolist() == [0.25, 0]


class TestFitting:
    def test_a_fit_has_the_mean_and_the_deviation(self) -> None:
        mean, deviation = np.array([0.3, 0.9, 0.5, 1e-6]), np.array([0.1, 1e-6, 0.45, 1e-5])
        shapes = risk_scores.fit(mean, deviation)
        assert risk_scores.moments(*shapes).first.tolist() == pytest.approx(mean.tolist(), rel=1e-12)
        assert np.sqrt(risk_scores.variance(*shapes)).tolist() == pytest.approx(deviation.tolist(), rel=1e-9)

    def test_a_deviation_is_capped(self) -> None:
        assert risk_scores.variance(*risk_scores.fit(0.1, 0.31)) == pytest.approx(0.99 * 0.09)
        assert risk_scores.fit(0.1, 0.31) == risk_scores.fit(0.1, 7)

    def test_no_distribution_fits_without_a_spread(self) -> None:
        assert np.isnan(
            risk_scores.fit([0, 1, 0.5, 0.5, math.nan, 0.5], [0.1, 0.1, 0, -1, 0.1, math.nan])
        ).all()


class TestRisk:
    def test_without_a_spread_the_mean_decides(self) -> None:
        mean = [0.625, 0.9, 0.925, 0, 1, 0.95, 0.95, 1.2, -0.2]
        deviation = [0, 0, 0, 0.25, 0.3, 2.5e-9, -1, 0, 0.1]
        assert risk_scores.risk(mean, deviation, 0.9).tolist() == [0, 0, 1, 0, 1, 1, 1, 1, 0]

    def test_it_is_the_tail_of_the_fit(self) -> None:
        mean, deviation = (
            np.array([0.3, 0.9, 0.895, 0.905, 0.895]),
            np.array([0.3, 0.005, 0.005, 0.005, 0.00651]),
        )
        assert risk_scores.risk(mean, deviation, 0.9).tolist() == pytest.approx(
            [0.049684, 0.505911, 0.158614, 0.841397, 0.223460], abs=1e-6
        )

    def test_it_has_no_jump_where_the_deviation_is_capped(self) -> None:
        below, above = risk_scores.risk([0.1, 0.1], [0.2984, 0.31], 0.9)
        assert below == pytest.approx(above, abs=1e-3)
        assert above == pytest.approx(0.1, abs=0.01)

    def test_a_risk_that_rounds_to_0_beside_1_is_0(self) -> None:
        assert risk_scores.survival(0.9, *risk_scores.fit(0.2, 0.05)) > 0
        assert risk_scores.risk(0.2, 0.05, 0.9) == 0
        assert risk_scores.risk(0.2, 0.1, 0.9) > 0

    def test_the_risk_of_nan_is_nan(self) -> None:
        assert np.isnan(risk_scores.risk([math.nan, 0.5, math.nan], [0.1, math.nan, 0], 0.9)).all()

    def test_a_threshold_at_an_end(self) -> None:
        assert risk_scores.risk([0.5, 1, 0], [0.1, 0, 0], 1).tolist() == [0, 0, 0]
        assert risk_scores.risk([0.5, 1, 0, 0.2], [0.1, 0, 0, 0], 0).tolist() == [1, 1, 0, 1]


class TestScipy:
    def test_without_it_the_extra_is_named(self, monkeypatch) -> None:
        ours = builtins.__import__

        def without_scipy(name, *args, **kwargs):
            if name.startswith("scipy"):
                raise ImportError(name)
            return ours(name, *args, **kwargs)

        risk_scores.import_scipy_special.cache_clear()
        monkeypatch.setattr(builtins, "__import__", without_scipy)
        with pytest.raises(BadSettings, match=r"pip install 'nodewise\[risk\]'"):
            risk_scores.risk(0.5, 0.1, 0.9)

    def test_it_is_imported_when_it_is_needed(self) -> None:
        code = "import sys; from nodewise_scorers.safe import risk_scores; sys.exit('scipy' in sys.modules)"
        subprocess.run([sys.executable, "-c", code], check=True)
