import numpy as np

from nodewise.base import cooperative_scheduling
from nodewise.base.cooperative_scheduling import run_without_pauses
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.node_index import NodeIndex
from nodewise.metrics.series import Column, Sample, Series, ValueState, build_column, merge_newer

INDEX = NodeIndex(["a", "b", "c"])


def series(**values: Sample) -> Series:
    return Series("m", "s", 0.0, values, {"c": "NaN"})


def lay_out(series: Series, index: NodeIndex) -> Column:
    return cooperative_scheduling.run_without_pauses(build_column(series, index))


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
        assert [ValueState(s).name for s in layout.initial_states] == [
            "MISSING",
            "FRESH",
            "INVALID",
            "MISSING",
        ]

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
        ages = lay_out(measured, INDEX).ages_s(130.0)
        assert ages[:2].tolist() == [30.0, 40.0]
        assert np.isnan(ages[2])

    def test_value_without_a_time_is_as_old_as_the_response(self) -> None:
        """The result of a PromQL expression, while the source fails."""
        response = Series("m", "s", 1000.0, {"a": Sample(5, None), "b": Sample(6, 990.0)})
        column = lay_out(response, INDEX)
        assert [ValueState(state).name for state in column.states(1060.0, 60.0)[:2]] == ["FRESH", "STALE"]
        assert [ValueState(state).name for state in column.states(1060.1, 60.0)[:2]] == ["STALE", "STALE"]

    def test_states_and_ages_at_a_time(self) -> None:
        layout = lay_out(series(a=Sample(1, 90.0), b=Sample(1, None)), INDEX)
        assert [ValueState(s).name for s in layout.states(100.0, 5.0)] == [
            "STALE",
            "FRESH",
            "INVALID",
            "MISSING",
        ]
        assert layout.states(95.0, 5.0)[0] == ValueState.FRESH
        assert layout.ages_s(100.0)[0] == 10.0
        assert layout.ages_s(80.0)[0] == 0.0  # with a clock that is behind, the age of a value is 0
        assert np.isnan(layout.ages_s(100.0)[1:]).all()


class TestNewer:
    def test_the_newer_sample_of_a_node_stays(self) -> None:
        old = Series("m", "s", 0.0, {"a": Sample(1, 10.0), "b": Sample(1, 10.0)})
        new = Series("m", "s", 5.0, {"a": Sample(2, 9.0), "b": Sample(2, 11.0)})
        assert {n: s.value for n, s in run_without_pauses(merge_newer(old, new)).samples.items()} == {
            "a": 1,
            "b": 2,
        }

    def test_the_vanished_go(self) -> None:
        old = Series("m", "s", 0.0, {"a": Sample(1, 10.0), "b": Sample(1, 10.0)})
        assert list(
            run_without_pauses(merge_newer(old, Series("m", "s", 5.0, {"a": Sample(2, 11.0)}))).samples
        ) == ["a"]

    def test_another_source_starts_anew(self) -> None:
        old = Series("m", "s", 0.0, {"a": Sample(1, 10.0)})
        assert (
            run_without_pauses(merge_newer(old, Series("m", "t", 5.0, {"a": Sample(2, 9.0)})))
            .samples["a"]
            .value
            == 2
        )

    def test_a_sample_without_a_time_is_newer(self) -> None:
        old = Series("m", "s", 0.0, {"a": Sample(1, 10.0)})
        assert (
            run_without_pauses(merge_newer(old, Series("m", "s", 5.0, {"a": Sample(2, None)})))
            .samples["a"]
            .value
            == 2
        )

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
