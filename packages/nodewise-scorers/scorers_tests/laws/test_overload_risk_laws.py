"""Laws of the risk of overload: it is the tail of the distribution, and scores follow from it."""

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewise_scorers.safe import risk_scores
from nodewise_scorers.safe.risk_scores import RiskScorer
from scorers_tests.unit.safe.reference_beta_function import tails

SHAPE = st.floats(-8, 13).map(lambda power: 10**power)
PLACE = st.integers(0, 2**20).map(lambda steps: steps / 2**20)
SMALL = st.floats(-18, 0).map(lambda power: 10**power)
MEAN = st.floats(0, 1) | SMALL | SMALL.map(lambda rest: 1 - rest)
DEVIATION = st.floats(0, 1) | st.floats(-6, 0).map(lambda power: 10**power)
NODES = st.lists(st.tuples(MEAN | st.just(math.nan), DEVIATION | st.just(math.nan)), max_size=30)
THRESHOLD = st.sampled_from([0.0, 0.02, 0.3, 0.5, 0.75, 0.9, 0.97, 1.0])
PERCENTILE = st.sampled_from([0.0, 0.01, 0.3, 0.5, 1.0])

tail = cache(RiskScorer)


@given(PLACE, SHAPE, SHAPE)
def test_both_sides_are_exact_and_make_1(x, alpha, beta_) -> None:
    lower, upper = tails(x, alpha, beta_)
    assert risk_scores.cdf(x, alpha, beta_) == pytest.approx(float(lower), abs=1e-9)
    assert risk_scores.survival(x, alpha, beta_) == pytest.approx(float(upper), abs=1e-9)
    assert risk_scores.cdf(x, alpha, beta_) + risk_scores.survival(x, alpha, beta_) == pytest.approx(
        1, abs=1e-9
    )


@given(SHAPE, SHAPE, st.floats(-40, 40))
def test_around_the_mean_as_well(alpha, beta_, room) -> None:
    logit = math.log(alpha / beta_) + room * min(math.sqrt(1 / alpha + 1 / beta_), 10)
    x = 1 / (1 + math.exp(min(-logit, 700)))
    lower, upper = tails(x, alpha, beta_)
    assert risk_scores.cdf(x, alpha, beta_) == pytest.approx(float(lower), abs=1e-9)
    assert risk_scores.survival(x, alpha, beta_) == pytest.approx(float(upper), abs=1e-9)


@given(PLACE, SHAPE, SHAPE)
def test_the_mirror_image_has_the_other_side(x, alpha, beta_) -> None:
    assert risk_scores.survival(x, alpha, beta_) == pytest.approx(
        risk_scores.cdf(1 - x, beta_, alpha), abs=1e-9
    )


@given(MEAN, MEAN, st.floats(1e-3, 1), st.floats(0.01, 0.99))
def test_at_one_spread_the_risk_rises_with_the_mean(first, other, spread, threshold) -> None:
    means = np.array(sorted([first, other]))
    low, high = risk_scores.risk(
        means, np.maximum(spread * np.sqrt(means * (1 - means)), 2 * risk_scores.STEADY), threshold
    )
    assert low <= high + 1e-9


@given(MEAN, DEVIATION, st.floats(0.01, 0.99))
def test_risk_is_within_the_bounds_of_its_moments(mean, deviation, threshold) -> None:
    """Markov's inequality, for the utilisation and for the free share."""
    risk = float(risk_scores.risk(mean, deviation, threshold))
    assert 0 <= risk <= min(1, mean / threshold) + 1e-9
    assert 1 - risk <= min(1, (1 - mean) / (1 - threshold)) + 1e-9


@given(THRESHOLD, PERCENTILE, NODES)
def test_scores_and_verdicts_follow_from_the_risk(threshold, percentile, nodes) -> None:
    scorer = tail(threshold, percentile)
    mean, deviation = (np.array([node[at] for node in nodes], float) for at in (0, 1))
    risk = risk_scores.risk(mean, deviation, threshold)
    assert scorer.rejects(mean, deviation).tolist() == (risk > percentile).tolist()
    for score, node_risk in zip(scorer.scores(mean, deviation).tolist(), risk.tolist(), strict=True):
        if math.isnan(node_risk):
            assert score == -1
        elif node_risk == 0:
            assert score == 10
        elif node_risk >= percentile:
            assert score == 0
        else:
            assert score == int(10 * (1 - math.sqrt(node_risk / percentile)))
