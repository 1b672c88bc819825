"""Patches contain the annotations that changed, and the time."""

from math import nan

import numpy as np
import pytest

from nodewise.base import cooperative_scheduling
from nodewise.base.clock import format_rfc3339
from nodewise_scorers.annotator import AnnotatorConfig, node_patches, node_usage
from nodewise_scorers.annotator.node_patches import Allocation, NodeMeasurements
from nodewise_scorers.annotator.node_usage import NodeUsage, ResourceUsage
from nodewise_scorers.statistics.load_annotations import ANNOTATED_AT, Capacity
from scorers_tests.unit.annotator import annotator_node_and_pod_builders

NOW = 1_800_000_000.0
MAX_AGE_S = 3600
WHOLE = Capacity(4000, 16 * 2**30)


def at(age_s: float) -> dict[str, str]:
    return {ANNOTATED_AT: format_rfc3339(NOW - age_s)}


@pytest.mark.parametrize(
    ("stands", "wanted", "is_moved"),
    [
        ("100", "100", False),
        ("100", "102", False),
        ("100", "98", False),
        ("100", "102.1", True),
        ("100", "97.9", True),
        ("0", "0", False),
        ("0", "1", True),
        ("-50", "50", True),
        (None, "100", True),
        ("100", None, True),
        (None, None, False),
        ("NaN", "100", True),
        ("N/A", "100", True),
        ("", "100", True),
        ("1e308", "100", True),
        ("inf", "100", True),
    ],
)
def test_a_number_moved_if_it_is_off_by_more_than_two_percent(
    stands: str | None, wanted: str | None, is_moved: bool
) -> None:
    assert node_patches.has_annotation_changed(stands, wanted) is is_moved


def test_only_changed_values_are_written_with_the_time() -> None:
    stands = {"free-cpu": "100", "free-memory": "100", **at(60)}
    wanted = {"free-cpu": "101", "free-memory": "110"}
    assert node_patches.compute_patch(stands, wanted, {}, NOW, MAX_AGE_S) == {"free-memory": "110", **at(0)}


def test_unchanged_values_are_not_written() -> None:
    assert (
        node_patches.compute_patch(
            {"free-cpu": "100", **at(60)}, {"free-cpu": "101"}, {"old": "1"}, NOW, MAX_AGE_S
        )
        == {}
    )


@pytest.mark.parametrize("time", [{}, {ANNOTATED_AT: "yesterday"}, at(1800), at(1e6), at(-600)])
def test_the_time_is_written_before_it_is_too_old(time: dict[str, str]) -> None:
    assert node_patches.compute_patch(
        {"free-cpu": "100", **time}, {"free-cpu": "101"}, {}, NOW, MAX_AGE_S
    ) == at(0)


def test_informational_annotations_are_written_with_others() -> None:
    stands = {"free-cpu": "100", "same": "1", "other": "1", **at(60)}
    patch = node_patches.compute_patch(
        stands, {"free-cpu": "200"}, {"same": "1", "other": "2"}, NOW, MAX_AGE_S
    )
    assert patch == {"free-cpu": "200", "other": "2", **at(0)}


def test_an_unmeasured_node_keeps_its_statistics_with_their_time() -> None:
    stands = {"mean-free-cpu": "100", "free-cpu": "1", **at(600)}
    assert node_patches.patch_without_usage(stands, {}, NOW, MAX_AGE_S) == {}
    assert node_patches.patch_without_usage(stands, {"free-cpu": "2"}, NOW, MAX_AGE_S) == {"free-cpu": "2"}


def test_expired_statistics_are_replaced_by_known_values() -> None:
    stands = {"mean-free-cpu": "100", "free-cpu": "1", **at(3600)}
    patch = node_patches.patch_without_usage(stands, {"free-cpu": "2"}, NOW, MAX_AGE_S)
    assert patch == {"mean-free-cpu": None, "free-cpu": "2", **at(0)}
    assert node_patches.patch_without_usage(stands, {}, NOW, MAX_AGE_S) == {}, (
        "nothing new is known of the node"
    )


def test_a_node_that_was_never_measured_has_its_allocation_with_the_time() -> None:
    actual = node_patches.patch_without_usage({}, {"free-cpu": "2"}, NOW, MAX_AGE_S)
    assert actual == {"free-cpu": "2", **at(0)}


@pytest.mark.parametrize(("stands", "is_timed"), [({}, True), ({"mean-free-cpu": "1000"}, False)])
@pytest.mark.parametrize("time", [{}, at(60), at(1e6)])
def test_allocation_alone_does_not_renew_the_time_of_usage(
    stands: dict[str, str], time: dict[str, str], *, is_timed: bool
) -> None:
    node = annotator_node_and_pod_builders.read_node(
        annotator_node_and_pod_builders.node("n1", {**stands, **time})
    )
    known = NodeMeasurements(None, {"n1": Allocation(cpu_milli=1500)}, NOW)
    (plan,) = cooperative_scheduling.run_without_pauses(
        node_patches.plan_patches([node], known, AnnotatorConfig("allocation"), MAX_AGE_S)
    ).nodes
    assert plan.patch["requested-cpu"] == "1500"
    assert (ANNOTATED_AT in plan.patch) is is_timed
    assert "mean-free-cpu" not in plan.patch


def test_free_is_allocatable_less_usage() -> None:
    patch = node_usage.usage_annotations(
        NodeUsage(ResourceUsage(1234.5678, 10.0004, 2000), ResourceUsage(6 * 2**30, 1234.5, 5e9)), WHOLE
    )
    assert patch == {
        "mean-free-cpu": "2765.432",
        "std-free-cpu": "10",
        "forcasted-free-cpu": "2000",
        "mean-free-memory": str(10 * 2**30),
        "std-free-memory": "1234",
        "forcasted-free-memory": str(16 * 2**30 - 5_000_000_000),
    }


@pytest.mark.parametrize(("used", "free"), [(5000, "0"), (-1, "4000"), (0, "4000"), (1e300, "0")])
def test_free_is_between_nothing_and_all(used: float, free: str) -> None:
    assert node_usage.usage_annotations(NodeUsage(ResourceUsage(used, 1)), WHOLE)["mean-free-cpu"] == free


def test_annotations_of_unknown_values_are_deleted() -> None:
    patch = node_usage.usage_annotations(NodeUsage(ResourceUsage(100.0, nan), ResourceUsage()), WHOLE)
    assert patch["mean-free-cpu"] == "3900"
    assert {key for key, text in patch.items() if text is None} == {*node_usage.USAGE_KEYS} - {
        "mean-free-cpu"
    }


def test_a_node_without_capacity_has_no_usage_annotations() -> None:
    assert set(
        node_usage.usage_annotations(NodeUsage(ResourceUsage(1, 1), ResourceUsage(1, 1)), Capacity()).values()
    ) == {None}


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
