"""Statistics and forecasts of samples."""

import numpy as np
import pytest

from nodewise_scorers.annotator import node_usage

FREE = np.array([100.0, 110, 90, 120, 80])


def test_one_sample_has_no_deviation_and_no_sample_no_statistics() -> None:
    assert node_usage.summarize(np.array([7.0])) == pytest.approx((7, np.nan, 7), nan_ok=True)
    assert np.isnan(node_usage.summarize(np.array([]))).all()


def test_few_samples_are_their_own_chunks() -> None:
    assert list(node_usage.means_of_sample_chunks(FREE)) == list(FREE)


def test_a_trend_goes_on() -> None:
    assert node_usage.predict_next(np.arange(0.0, 1e10, 1e8)) == pytest.approx(1e10)


def test_a_wave_goes_on() -> None:
    time = np.arange(300)
    wave = 5 + np.sin(time / 7)
    assert node_usage.predict_next(wave) == pytest.approx(5 + np.sin(300 / 7), abs=1e-3)


def test_noise_is_expected_to_stay_where_it_is() -> None:
    noise = np.random.default_rng(1).normal(1000, 30, 1000)
    assert node_usage.forecast_mean(noise) == pytest.approx(1000, abs=30)


@pytest.mark.parametrize("values", [[], [1.0] * 14, [1.0] * 20 + [np.nan]])
def test_of_too_little_there_is_no_forecast(values: list[float]) -> None:
    assert np.isnan(node_usage.predict_next(np.array(values)))


def test_the_forecast_of_a_constant_is_the_constant() -> None:
    assert node_usage.predict_next(np.full(50, 3e9)) == 3e9


def test_a_forecast_does_not_run_away() -> None:
    jump = np.array([0.0] * 40 + [1, 10, 100, 1000, 1e4, 1e5])
    assert node_usage.predict_next(jump) <= 2e5
