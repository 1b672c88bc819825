"""What usage profiles learn from samples."""

import numpy as np
import pytest

from nodewise_scorers.load.usage_profiles import UsageProfiles

REQUESTED = np.array([2.0, 2.0, 0.0])


def test_before_any_statistics_a_pod_is_expected_to_use_half_of_its_request() -> None:
    forecast = UsageProfiles(2).forecast(np.array([1.0, 1.0]))
    assert forecast.mean.tolist() == [0.5, 0.5, 0.5]
    assert forecast.general_mean == 0.5
    assert forecast.general_variance > 0


def test_pods_of_an_application_share_its_usage_and_others_the_mean() -> None:
    profiles = UsageProfiles(3)
    for _ in range(10):
        profiles.observe(np.array([0, 0, 1]), np.array([1.0, 1.0, 3.0]))
    forecast = profiles.forecast(REQUESTED)
    assert forecast.mean.tolist() == pytest.approx([1.0, 3.0, 2.0, 2.0])
    assert forecast.general_mean == pytest.approx(2.0)
    assert forecast.common[2] == pytest.approx(1.0), "an unknown application differs as the known ones do"
    assert forecast.common[:2].tolist() == pytest.approx([0.0, 0.0], abs=1e-9)
    assert forecast.general_variance == pytest.approx(1.0)


def test_common_variance_is_separated_from_that_of_single_pods() -> None:
    profiles = UsageProfiles(2)
    for level in (1.0, 3.0) * 20:
        profiles.observe(np.array([0, 0]), np.array([level, level]))
        profiles.observe(np.array([1, 1]), np.array([1.0, 3.0]))
    forecast = profiles.forecast(np.array([1.0, 1.0]))
    assert forecast.common[:2].tolist() == pytest.approx([1.0, 0.0], abs=0.1)
    assert forecast.independent[:2].tolist() == pytest.approx([0.0, 1.0], abs=0.1)


def test_new_usage_replaces_old_usage() -> None:
    profiles = UsageProfiles(1, half_life=2)
    for usage in (1.0,) * 20 + (3.0,) * 2:
        profiles.observe(np.array([0]), np.array([usage]))
    forecast = profiles.forecast(np.array([1.0]))
    assert forecast.mean[0] == pytest.approx(2.0, abs=0.01)
    assert forecast.common[0] == pytest.approx(0.9, abs=0.1)


def test_an_application_that_ended_is_remembered() -> None:
    profiles = UsageProfiles(2)
    profiles.observe(np.array([0]), np.array([4.0]))
    for _ in range(50):
        profiles.observe(np.array([1]), np.array([1.0]))
    assert profiles.forecast(np.array([0.0, 1.0])).mean[:2].tolist() == pytest.approx([4.0, 1.0])


def test_a_single_sample_does_not_count_as_steady() -> None:
    profiles = UsageProfiles(2)
    for usage in (0.0, 2.0) * 10:
        profiles.observe(np.array([0]), np.array([usage]))
    profiles.observe(np.array([1]), np.array([1.0]))
    assert profiles.forecast(np.array([1.0, 1.0])).common[1] > 0.2
