"""Samples as arrays: the same as a dict of samples, in less memory."""

import tracemalloc
from collections.abc import Iterable

import numpy as np
import pytest

from nodewise.base import cooperative_scheduling
from nodewise.base.cooperative_scheduling import run_without_pauses
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.node_index import NodeIndex
from nodewise.metrics.refresher import with_lookback
from nodewise.metrics.series import (
    LOOKBACK_S,
    Column,
    DifferingValues,
    Sample,
    Samples,
    Series,
    ValueState,
    build_column,
    derived_max_age_s,
    is_near,
    keep_nodes,
    merge_newer,
    newest_distance_s,
    pack_samples,
    typical_distance_s,
)

BIG = 2**70


def pack(samples: dict[str, Sample]) -> Samples:
    return run_without_pauses(pack_samples(samples))


@pytest.mark.parametrize(
    "samples",
    [
        {},
        {"b": Sample(1, 2.0), "a": Sample(3, None), "c": Sample(-4, 5.0, 30.0)},
        {"a": Sample(1, None), "b": Sample(2, None)},
        {"a": Sample(BIG, 1.0), "b": Sample(2, 1.0)},
    ],
)
def test_packed_samples_are_the_same(samples: dict[str, Sample]) -> None:
    packed = pack(samples)
    assert packed == samples
    assert list(packed) == sorted(samples)
    assert list(packed.items()) == sorted(samples.items())
    assert list(packed.values()) == [samples[node] for node in sorted(samples)]
    expected = (len(samples), "a" in samples, False, None)
    assert (len(packed), "a" in packed, "aa" in packed, packed.get("z")) == expected
    assert run_without_pauses(pack_samples(packed)) is packed


def test_series_of_the_same_nodes_share_the_names() -> None:
    nodes = [f"node-{number}" for number in range(3)]
    first = pack({node: Sample(1, 1.0) for node in nodes})
    second = pack({node: Sample(2, 2.0) for node in reversed(nodes)})
    assert first.names is second.names
    index = NodeIndex(nodes)
    assert first.names.numbers(index) is second.names.numbers(index)
    assert first.names.numbers(NodeIndex(["node-2", "node-0"])).tolist() == [1, 2, 0]


def test_a_metric_of_5000_nodes_takes_a_tenth_of_a_megabyte() -> None:
    def samples(seed: int) -> dict[str, Sample]:
        nodes = (f"ip-10-0-{number}.eu-central-1.compute.internal" for number in range(5000))
        return {node: Sample(seed * 10**12 + number, 1e9 + number) for number, node in enumerate(nodes)}

    first = pack(samples(0))
    pack(samples(0))  # the second series makes the look-up of the shared names
    tracemalloc.start()
    try:
        others = [pack(samples(seed)) for seed in range(1, 11)]
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(other.names is first.names for other in others)
    assert held_bytes / len(others) < 100_000


def test_merged_series_of_other_nodes() -> None:
    old = Series("m", "s", 0.0, {node: Sample(1, 10.0, 30.0) for node in "abc"})
    new = Series("m", "s", 5.0, {"d": Sample(BIG, 9.0), "b": Sample(2, 9.0), "c": Sample(2, 11.0)})
    merged = run_without_pauses(merge_newer(old, new))
    assert merged.samples == {"b": Sample(1, 10.0, 30.0), "c": Sample(2, 11.0), "d": Sample(BIG, 9.0)}


INDEX = NodeIndex(["a", "b", "c"])


def series(**values: Sample) -> Series:
    return Series("m", "s", 0.0, values, {"c": "NaN"})


def lay_out(series: Series, index: NodeIndex) -> Column:
    return cooperative_scheduling.run_without_pauses(build_column(series, index))


def ages_s(column: Column, now: float) -> list[float]:
    return column.ages_s(now, np.arange(len(column.values)), column.initial_states).tolist()


def names(states: Iterable[int]) -> str:
    return " ".join(ValueState(state).name for state in states)


class TestIndex:
    def test_each_node_has_a_number_and_strangers_share_the_last(self) -> None:
        assert INDEX.numbers(["b", "x", "a", "b"]).tolist() == [1, 3, 0, 1]
        assert INDEX.names.tolist() == ["a", "b", "c", None]

    def test_a_name_counts_once(self) -> None:
        assert NodeIndex(["a", "b", "a"]).known == ("a", "b")


class TestLayOut:
    def test_values_stand_by_node_number(self) -> None:
        layout = lay_out(series(b=Sample(7, 5.0), ghost=Sample(1, 1.0)), INDEX)
        assert layout.values.tolist() == [0, 7, 0, 0]
        assert layout.values.dtype == np.int64
        assert names(layout.initial_states) == "MISSING FRESH INVALID MISSING"

    def test_values_beyond_64_bits_stay_exact(self) -> None:
        layout = lay_out(series(a=Sample(2**63 - 1, 0.0), b=Sample(10**30 + 1, 0.0)), INDEX)
        assert layout.values.tolist()[:2] == [2**63 - 1, 10**30 + 1]
        assert (layout.values > 10**30).tolist() == [False, True, False, False]

    def test_values_of_many_nodes_stay_exact_wherever_one_is_beyond_64_bits(self) -> None:
        names = [f"n{number}" for number in range(1300)]
        for large in (0, 700, 1299):
            wanted = [10**30 if number == large else 2**62 + number for number in range(1300)]
            samples = {name: Sample(value, 1.0) for name, value in zip(names, wanted, strict=True)}
            layout = lay_out(Series("m", "s", 0.0, samples), NodeIndex(names))
            assert layout.values.tolist() == [*wanted, 0]
            assert layout.times[:-1].tolist() == [1.0] * 1300

    def test_value_is_never_newer_than_its_response(self) -> None:
        measured = Series(
            "m", "s", 100.0, {"a": Sample(1, 5000.0), "b": Sample(1, 90.0), "c": Sample(1, None)}, {}
        )
        ages = ages_s(lay_out(measured, INDEX), 130.0)
        assert ages[:2] == [30.0, 40.0]
        assert np.isnan(ages[2])

    def test_value_without_a_time_is_as_old_as_the_response(self) -> None:
        """The result of a PromQL expression, while the source fails."""
        response = Series("m", "s", 1000.0, {"a": Sample(5, None), "b": Sample(6, 990.0)})
        column = lay_out(response, INDEX)
        assert names(column.states(1060.0, 60.0)[:2]) == "FRESH STALE"
        assert names(column.states(1060.1, 60.0)[:2]) == "STALE STALE"

    def test_states_and_ages_at_a_time(self) -> None:
        layout = lay_out(series(a=Sample(1, 90.0), b=Sample(1, None)), INDEX)
        assert names(layout.states(100.0, 5.0)) == "STALE FRESH INVALID MISSING"
        assert layout.states(95.0, 5.0)[0] == ValueState.FRESH
        assert ages_s(layout, 100.0)[0] == 10.0
        assert ages_s(layout, 80.0)[0] == 0.0  # with a clock that is behind, the age of a value is 0
        assert np.isnan(ages_s(layout, 100.0)[1:]).all()


class TestNewer:
    @pytest.mark.parametrize(
        ("source", "samples", "values"),
        [
            ("s", {"a": Sample(2, 9.0), "b": Sample(2, 11.0)}, {"a": 1, "b": 2}),
            ("s", {"a": Sample(2, 11.0)}, {"a": 2}),
            ("t", {"a": Sample(2, 9.0)}, {"a": 2}),
            ("s", {"a": Sample(2, None)}, {"a": 2}),
        ],
        ids=["older and newer", "a vanished node", "another source", "without a time"],
    )
    def test_the_newer_sample_of_a_node_stays(
        self, source: str, samples: dict[str, Sample], values: dict[str, int]
    ) -> None:
        old = Series("m", "s", 0.0, {"a": Sample(1, 10.0), "b": Sample(1, 10.0)})
        merged = run_without_pauses(merge_newer(old, Series("m", source, 5.0, samples)))
        assert {node: sample.value for node, sample in merged.samples.items()} == values

    def test_requests_come_in_between(self) -> None:
        old, new = (
            Series("m", "s", at, {f"n-{i}": Sample(1, at) for i in range(5_000)}) for at in (0.0, 5.0)
        )
        assert sum(1 for _ in merge_newer(old, new)) >= 9


class TestSnapshot:
    good = Series("m", "s", 1.0, {"a": Sample(1, 1.0)})

    def test_a_failure_keeps_the_last_values(self) -> None:
        failed = MetricsSnapshot().with_series(self.good).with_failure("m", "gone")
        assert failed.series["m"] is self.good
        assert failed.failures == {"m": "gone"}
        assert failed.with_series(self.good).failures == {}

    def test_unused_names_are_dropped(self) -> None:
        both = MetricsSnapshot().with_series(self.good).with_failure("k", "gone")
        assert both.only(frozenset({"k"})).series == {}
        assert both.only(frozenset({"k", "m"})) is both

    def test_asked_is_asked_whatever_came_of_it(self) -> None:
        both = MetricsSnapshot().with_series(self.good).with_failure("k", "gone")
        assert [both.was_fetched(name) for name in ("m", "k", "x")] == [True, True, False]


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


def test_samples_of_nodes_of_other_replicas_are_dropped() -> None:
    samples = {name: Sample(number, 10.0) for number, name in enumerate(("a", "b", "c"))}
    differing = DifferingValues(1, 2, 10.0)
    whole = Series("m", "test", 10.0, samples, {"d": "bad", "e": "bad"}, {"e": differing}, ("host",))
    own = cooperative_scheduling.run_without_pauses(keep_nodes(whole, {"a", "c", "d"}))
    assert dict(own.samples) == {"a": samples["a"], "c": samples["c"]}
    assert (own.invalid, own.differing, own.unmatched) == ({"d": "bad"}, {}, ())
