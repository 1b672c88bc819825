"""The forecast of each node is that of the method with the smallest error on this node."""

import numpy as np
import pytest

from nodewise_scorers.load.node_forecasts import MEAN, METHODS, PERCENTILE, PROFILES, NodeForecasts

MINUTES = 240


def usage_by_minute() -> dict[int, np.ndarray]:
    """By the method that fits best: the usage of a node in each minute."""
    minutes = np.arange(MINUTES)
    return {
        # the highest of five samples is about the mean and one to two deviations
        MEAN: 0.3 + 0.1 * np.random.default_rng(0).standard_normal(MINUTES),
        # rare peaks: the mean and two deviations are far below them, and the percentile is near them
        PERCENTILE: np.where(minutes % 5 == 4, 0.9, 0.1),
        # pods that come and go: only the sum of their profiles follows
        PROFILES: np.where(minutes // 60 % 2 == 1, 0.9, 0.2),
    }


@pytest.fixture
def forecasts() -> NodeForecasts:
    usage = usage_by_minute()
    forecasts = NodeForecasts(len(usage))
    for minute in range(MINUTES):
        used = np.array([usage[method][minute] for method in sorted(usage)])
        # profiles know the next five minutes of the third node only, and are far off on the others
        profiles = np.array([1.2, 1.2, usage[PROFILES][minute : minute + 6].max()])
        forecasts.observe(used, np.full(len(used), 60.0 * minute), profiles)
    return forecasts


def test_the_backtest_chooses_the_method_by_node(forecasts: NodeForecasts) -> None:
    chosen = [METHODS[method] for method in forecasts.methods]
    assert chosen == ["mean", "percentile", "profiles"]


def test_the_forecast_is_that_of_the_chosen_method(forecasts: NodeForecasts) -> None:
    mean, percentile, profiles = forecasts.forecast(np.array([1.2, 1.2, 0.95]))
    assert mean == pytest.approx(0.5, abs=0.06)
    assert percentile == pytest.approx(0.9, abs=0.04)
    assert profiles == 0.95


def test_without_profiles_the_mean_and_two_deviations_replace_them(forecasts: NodeForecasts) -> None:
    *_, without = forecasts.forecast(np.full(3, np.nan))
    assert without > 0.9


def test_a_forecast_is_never_below_the_last_sample(forecasts: NodeForecasts) -> None:
    forecasts.observe(np.array([1.1, np.nan, np.nan]), np.full(3, 60.0 * MINUTES), np.zeros(3))
    assert forecasts.forecast(np.zeros(3))[0] == 1.1


def test_the_same_samples_count_once() -> None:
    once, twice = NodeForecasts(1), NodeForecasts(1)
    for number, used in enumerate((0.1, 0.5, 0.3)):
        for forecasts, times in ((once, 1), (twice, 2)):
            for _ in range(times):
                forecasts.observe(np.array([used]), np.array([60.0 * number]), np.zeros(1))
    assert once.forecast(np.zeros(1)) == twice.forecast(np.zeros(1))


def test_samples_count_after_the_clock_is_set_back() -> None:
    forecasts = NodeForecasts(1)
    forecasts.observe(np.array([0.5]), np.array([86_400.0]), np.zeros(1))
    usage = usage_by_minute()[PROFILES]
    for minute, used in enumerate(usage):
        profiles = usage[minute : minute + 6].max(keepdims=True)
        forecasts.observe(np.array([used]), np.array([60.0 * minute]), profiles)
    assert METHODS[forecasts.methods[0]] == "profiles"
    assert forecasts.forecast(np.array([0.95]))[0] == 0.95


def test_a_number_that_names_another_node_has_no_history(forecasts: NodeForecasts) -> None:
    forecasts.forget(np.array([1]))
    assert METHODS[forecasts.methods[1]] == "mean"
    assert np.isnan(forecasts.forecast(np.full(3, 0.5))[1])
