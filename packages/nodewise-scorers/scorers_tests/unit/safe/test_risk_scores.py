"""Scores and verdicts equal those of the exact risk near all levels and edges, and few risks are computed."""

import math

import numpy as np
import pytest

from nodewise_scorers.safe import risk_scores
from nodewise_scorers.safe.risk_scores import RiskScorer

NODES = 1000


def _scores_of_risk(risk, percentile):
    """The score by its definition."""
    if math.isnan(risk):
        return -1
    share = (0 if risk == 0 else 1) if percentile == 0 else min(risk / percentile, 1)
    return 0 if share >= 1 else int(10 * (1 - math.sqrt(share)))


def _agrees(tail: RiskScorer, mean, deviation) -> None:
    risk = risk_scores.risk(mean, deviation, tail.threshold)
    assert tail.scores(mean, deviation).tolist() == [
        _scores_of_risk(node_risk, tail.percentile) for node_risk in risk
    ]
    assert tail.rejects(mean, deviation).tolist() == (risk > tail.percentile).tolist()


def _near_levels(tail: RiskScorer, rng):
    """Nodes at all distances from 1e-11 to 1 from the levels of risk."""
    levels = tail.levels
    wide, steady = (
        rng.uniform(1e-4, risk_scores._MAX_SPREAD, NODES // 20),
        10 ** rng.uniform(-6, -1, NODES // 20),
    )
    spreads = np.concatenate([wide, steady])
    points = risk_scores._headroom_curve_points(tail.threshold, *np.meshgrid(spreads, levels))
    points += rng.choice([-1, 1], points.shape) * 10 ** rng.uniform(-11, 0, points.shape)
    means, rests = risk_scores._means_below_threshold(tail.threshold, np.sinh(points) * spreads)
    return means.ravel(), (spreads * np.sqrt(means * rests)).ravel()


def _at_edges(threshold, rng):
    """Means near 0, near 1 and near the threshold; deviations near 0 and near the cap."""
    powers = 10 ** rng.uniform(-18, 0, (3, NODES))
    mean = np.concatenate(
        [powers[0], 1 - powers[1], np.clip(threshold + rng.choice([-1, 1], NODES) * powers[2], 0, 1)]
    )
    deviation = 10 ** rng.uniform(-8, 0, mean.shape)
    cap = np.sqrt(risk_scores.SPREAD * mean * (1 - mean)) * (
        1 + rng.normal(0, 1, mean.shape) * 10 ** rng.uniform(-16, -1, mean.shape)
    )
    return mean, np.where(rng.random(mean.shape) < 0.2, cap, deviation)


class TestAgainstTheRisk:
    @pytest.mark.parametrize("threshold", [0.01, 0.1, 0.5, 0.73205, 0.9, 0.99])
    @pytest.mark.parametrize("percentile", [0, 1e-15, 0.01, 0.3, 1])
    def test_near_levels_and_edges(self, threshold, percentile) -> None:
        rng = np.random.default_rng(round(1000 * (threshold + percentile)))
        tail = RiskScorer(threshold, percentile)
        _agrees(tail, *_near_levels(tail, rng))
        _agrees(tail, *_at_edges(threshold, rng))
        _agrees(tail, rng.random(NODES), rng.random(NODES) / 2)

    @pytest.mark.parametrize("threshold", [0, 1e-9, 0.0009, 0.9991, 1])
    def test_where_there_are_no_curves(self, threshold) -> None:
        rng = np.random.default_rng(1)
        _agrees(RiskScorer(threshold, 0.3), *_at_edges(threshold, rng))

    @pytest.mark.parametrize("threshold", [0.1, 0.5, 0.9, 0.95])
    def test_few_risks_are_computed(self, threshold, monkeypatch) -> None:
        rng = np.random.default_rng(2)
        tail = RiskScorer(threshold, 0.3)
        sizes = []
        survival = risk_scores.survival
        monkeypatch.setattr(
            risk_scores,
            "survival",
            lambda x, alpha, beta_: sizes.append(len(alpha)) or survival(x, alpha, beta_),
        )
        tail.scores(rng.random(NODES), rng.random(NODES) / 2)
        tail.scores(np.clip(threshold + rng.normal(0, 0.05, NODES), 0, 1), rng.gamma(3, 0.02, NODES))
        assert sum(sizes) < NODES / 100


class TestScores:
    def test_the_percentile_moves_them(self) -> None:
        assert [int(RiskScorer(0.9, percentile).scores(0.85, 0.1)) for percentile in (0.5, 0.38)] == [1, 0]
        actual = [bool(RiskScorer(0.9, percentile).rejects(0.85, 0.1)) for percentile in (0.5, 0.38, 0.3)]
        assert actual == [False, False, True]

    def test_without_any_accepted_risk_no_risk_is_best(self) -> None:
        none = RiskScorer(0.9, 0)
        assert none.scores([0.2, 0.2, 0.95], [0.05, 0.1, 0]).tolist() == [10, 0, 0]
        assert none.rejects([0.2, 0.2, 0.95], [0.05, 0.1, 0]).tolist() == [False, True, True]

    def test_where_all_risk_is_accepted_none_is_rejected(self) -> None:
        assert not RiskScorer(0.9, 1).rejects([0.95, 1, 0.2], [0.15, 0, 0]).any()

    def test_missing_statistics_have_no_score_and_are_not_rejected(self) -> None:
        tail = RiskScorer(0.9, 0.3)
        expected = [-1, -1, -1, 10]
        assert tail.scores([math.nan, 0.95, math.nan, 0.3], [0.1, math.nan, 0, 0]).tolist() == expected
        assert tail.rejects([math.nan, 0.95, math.nan, 0.95], [0.1, math.nan, 0, 0]).tolist() == [
            False
        ] * 3 + [True]

    def test_means_and_deviations_out_of_range(self) -> None:
        actual = RiskScorer(0.9, 0.3).scores([-0.5, 1.5, 0.5, math.inf], [0.1, 0.1, -1, 0.1]).tolist()
        assert actual == [10, 0, 10, 0]

    def test_shapes(self) -> None:
        tail = RiskScorer(0.9, 0.3)
        assert tail.scores(np.full((2, 3), 0.5), 0.1).shape == (2, 3)
        assert tail.scores([], []).shape == tail.rejects([], []).shape == (0,)
