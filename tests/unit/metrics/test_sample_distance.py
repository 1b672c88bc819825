"""The distance of samples, and the maximum age of values that follows from it."""

import pytest

from nodewise.base.cooperative_scheduling import run_without_pauses
from nodewise.metrics.metrics_source import MetricRequest, with_lookback
from nodewise.metrics.series import (
    LOOKBACK_S,
    Sample,
    Series,
    derived_max_age_s,
    is_near,
    merge_newer,
    newest_distance_s,
    typical_distance_s,
)


@pytest.mark.parametrize(
    ("distance_s", "max_age_s"),
    [(None, 60), (15, 60), (24, 60), (25, 62.5), (60, 150), (120, 300), (240, 600), (3600, 600)],
)
def test_the_default_maximum_age_is_two_and_a_half_distances_within_limits(
    distance_s: float | None, max_age_s: float
) -> None:
    assert derived_max_age_s(60.0, distance_s) == max_age_s


def test_a_longer_default_of_the_settings_stays() -> None:
    assert derived_max_age_s(150.0, 30.0) == 150.0


@pytest.mark.parametrize(
    ("times", "distance_s"),
    [([], None), ([7.0], None), ([100.0, 40.0], 60), ([160.0, 40.0, 100.0], 60), ([220.0, 100.0, 40.0], 60)],
)
def test_one_failed_scrape_does_not_count(times: list[float], distance_s: float | None) -> None:
    assert newest_distance_s(times) == distance_s


@pytest.mark.parametrize(
    ("distances", "typical_s"),
    [
        ([], None),
        ([60.3, 59.8, 61.9], 60),
        ([15.0] * 19 + [300.0], 15),
        ([15.0, 60.0], 60),
        ([0.2], 1),
        ([4.4], 4),
    ],
)
def test_nine_of_ten_nodes_have_samples_at_most_this_far_apart(
    distances: list[float], typical_s: float | None
) -> None:
    assert typical_distance_s(distances) == typical_s


@pytest.mark.parametrize(
    ("max_age_s", "distance_s", "near"),
    [(60, 60, True), (60, 45, True), (60, 40, False), (180, 60, False), (120, 300, True), (60, None, False)],
)
def test_a_maximum_age_near_the_distance(max_age_s: float, distance_s: float | None, near: bool) -> None:
    assert is_near(max_age_s, distance_s) == near


def responses(*times: float | None) -> Series:
    """The series after responses of a source with one sample per node."""
    series = None
    for number, at in enumerate(times):
        new = Series("cpu", "resource", float(number), {node: Sample(1, at) for node in "ab"})
        series = run_without_pauses(merge_newer(series, new))
    assert series is not None
    return series


@pytest.mark.parametrize(
    ("times", "distance_s"),
    [
        ([0.0, 0.0, 0.0], None),
        ([0.0, 60.0, 60.0], 60),
        ([0.0, 60.0, 120.0, 900.0], 60),
        ([0.0, 15.0, 30.0, 150.0, 270.0], 120),
        ([None, None], None),
    ],
)
def test_the_distance_follows_from_successive_responses(
    times: list[float | None], distance_s: float | None
) -> None:
    assert responses(*times).sample_distance_s == distance_s


def test_a_response_that_shows_the_distance_replaces_it_and_another_one_keeps_it() -> None:
    samples = {"a": Sample(1, 100.0)}
    shown = Series("t", "p", 100.0, samples, sample_distance_s=60.0, is_distance_measured=True)
    other = Series("t", "p", 105.0, samples)
    kept = run_without_pauses(merge_newer(shown, other))
    assert (kept.sample_distance_s, kept.is_distance_measured) == (60.0, False)
    shorter = Series("t", "p", 110.0, samples, sample_distance_s=15.0, is_distance_measured=True)
    assert run_without_pauses(merge_newer(kept, shorter)).sample_distance_s == 15.0
    other_source = Series("t", "q", 115.0, samples)
    assert run_without_pauses(merge_newer(kept, other_source)).sample_distance_s is None


def test_a_request_looks_back_until_a_response_shows_the_distance() -> None:
    request = MetricRequest("t", max_age_s=60.0)
    assert with_lookback(request, None, 60.0)[2] == 60.0
    assert with_lookback(request, None, 60.0).lookback_s == LOOKBACK_S
    shown = Series("t", "p", 100.0, {}, sample_distance_s=60.0, is_distance_measured=True)
    assert with_lookback(request, shown, 60.0) == request._replace(max_age_s=150.0)
    healthy = MetricRequest("t", "t", 60.0, empty_is_healthy=True)
    assert with_lookback(healthy, None, 60.0) == healthy, "a sample that has ended must not count"
