"""Similar names for metrics that a source does not have, at a cost that does not depend on policies."""

import asyncio
import math
from collections.abc import Mapping, Sequence

import pytest

from nodewise.base import cooperative_scheduling
from nodewise.base.errors import Unavailable
from nodewise.metrics import source_selection
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.missing_values import Cause
from nodewise.metrics.series import Series
from nodewise.metrics.source_selection import (
    MAX_COMPARED,
    MAX_OF_ALL,
    MAX_OF_NAMESPACE,
    NAMES_S,
    RECHECK_S,
    RETRY_S,
    MetricNameSuggestions,
)
from tests.manual_clock import ManualClock

UNKNOWN = Cause("MetricUnknown", "Prometheus has no series of this name", "correct the name")
NAMES = ("node_temperature", "node_load1", "up")


class Catalog:
    name = "prometheus"

    def __init__(self, names: Sequence[str] | Exception) -> None:
        self.answer = names
        self.calls = 0

    def supports(self, request: MetricRequest) -> bool:
        return True

    async def fetch(self, request: MetricRequest, now: float) -> Series:
        raise NotImplementedError

    async def metric_names(self) -> Sequence[str]:
        self.calls += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def remedies(catalog: Catalog, *metrics: str, cause: Cause = UNKNOWN) -> list[str]:
    async def run() -> list[str]:
        suggestions = MetricNameSuggestions(ManualClock(0.0), 1.0)
        causes = [await suggestions.suggest(cause, MetricRequest(metric), catalog) for metric in metrics]
        return [each.remedy for each in causes]

    return asyncio.run(run())


def test_the_most_similar_name_is_suggested_for_many_metrics_with_one_request() -> None:
    catalog = Catalog(NAMES)
    misspelt = ("node_temprature", "node_laod1", "upp", "something")
    assert remedies(catalog, *misspelt) == [
        'correct the name; it has "node_temperature"',
        'correct the name; it has "node_load1"',
        'correct the name; it has "up"',
        "correct the name",
    ]
    assert catalog.calls == 1


class CatalogOfSeries(Catalog):
    """A catalog whose names are also those of series that have ended."""

    def __init__(
        self,
        names: Sequence[str],
        existing: Sequence[str] | Exception,
        ends: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(names)
        self.existing = existing
        self.ends = ends or {}

    async def series_end(self, request: MetricRequest) -> float | None:
        return self.ends.get(request.metric)

    async def existing_metrics(self, names: Sequence[str]) -> Sequence[str]:
        if isinstance(self.existing, Exception):
            raise self.existing
        return [name for name in names if name in self.existing]


@pytest.mark.parametrize(
    ("metric", "remedy"),
    [
        ("predicted_cpu_shares", 'correct the name; nodewise computes "predicted_cpu_share"'),
        ("node_temprature", 'correct the name; it has "node_temperature"'),
        ("something", "correct the name"),
    ],
)
def test_a_metric_that_nodewise_computes_is_suggested_beside_those_of_a_source(
    metric: str, remedy: str
) -> None:
    async def run(catalog: Catalog) -> str:
        computed = [Catalog(["predicted_cpu_share", "predicted_memory_share"])]
        suggestions = MetricNameSuggestions(ManualClock(0.0), 1.0, computed)
        return (await suggestions.suggest(UNKNOWN, MetricRequest(metric), catalog)).remedy

    assert asyncio.run(run(Catalog(NAMES))) == remedy
    assert asyncio.run(run(CatalogOfSeries(NAMES, existing=NAMES))) == remedy


def test_suggested_metric_has_series() -> None:
    names = ("node_temperature", "node_temperatures", "rack_fan", "node_rack_fan")
    catalog = CatalogOfSeries(names, ["node_temperatures", "rack_fan"])
    assert remedies(catalog, "node_temprature", "node_rack_fam", "power") == [
        'correct the name; it has "node_temperatures"',
        'correct the name; it has "rack_fan"',
        "correct the name",
    ]
    assert remedies(CatalogOfSeries(names, Unavailable("down")), "node_temprature") == ["correct the name"]


ENDED = (
    "Prometheus has no current series of this name: the last one ended at 2026-11-21T00:43:47Z; remedy: check that the "
    "exporter runs, and that Prometheus scrapes it: its page of targets has the errors"
)


def test_a_metric_whose_series_ended_says_when_and_does_not_call_the_name_wrong() -> None:
    async def run() -> None:
        clock = ManualClock(0.0)
        ends = {"node_rack_temp": 1795221827.0}  # 2026-11-21T00:43:47Z
        catalog = CatalogOfSeries(["node_rack_temps"], ["node_rack_temps"], ends)
        suggestions = MetricNameSuggestions(clock, 1.0)
        request = MetricRequest("node_rack_temp")

        async def text(cause: Cause = UNKNOWN) -> str:
            return str(await suggestions.suggest(cause, request, catalog))

        assert await text() == ENDED
        ends.clear()
        clock.advance(NAMES_S)
        assert await text() == ENDED, "no write of a status"
        clock.advance(RECHECK_S)
        assert await text() == str(UNKNOWN._replace(remedy='correct the name; it has "node_rack_temps"'))
        ends["node_rack_temp"] = 1795221827.0
        suggestions.forget(frozenset([request.key]))
        assert await text() == ENDED, "it had values again"

    asyncio.run(run())


def test_a_series_that_exists_without_a_fresh_value_is_outdated_until_it_ends() -> None:
    async def run() -> None:
        clock, ends = ManualClock(0.0), {"fan": math.inf}
        suggestions = MetricNameSuggestions(clock, 1.0)

        async def reason() -> str:
            catalog = CatalogOfSeries(["fans"], ["fans"], ends)
            return (await suggestions.suggest(UNKNOWN, MetricRequest("fan"), catalog)).reason

        assert await reason() == "ValuesOutdated"
        ends["fan"] = 1795221827.0
        assert await reason() == "ValuesOutdated"
        clock.advance(NAMES_S)
        assert await reason() == "SeriesEnded"

    asyncio.run(run())


def test_a_failed_question_about_a_metric_is_repeated_soon_and_then_less_often() -> None:
    """A source that was too slow once, for example at its start, delays the cause by a few periods, not by a minute."""

    async def run() -> None:
        clock = ManualClock(0.0)
        catalog = CatalogOfSeries(NAMES, Unavailable("down"), {"node_rack_temp": 1795221827.0})
        suggestions = MetricNameSuggestions(clock, 1.0)
        questions = 0

        async def series_end(_: MetricRequest) -> float | None:
            nonlocal questions
            questions += 1
            raise Unavailable("no response")

        async def text() -> str:
            return str(await suggestions.suggest(UNKNOWN, MetricRequest("node_rack_temp"), catalog))

        answering, catalog.series_end = catalog.series_end, series_end  # type: ignore[method-assign]
        for _ in range(300):
            assert await text() == str(UNKNOWN)
            clock.advance(1.0)
        assert 6 <= questions <= 10
        suggestions.forget(frozenset([MetricRequest("node_rack_temp").key]))
        assert await text() == str(UNKNOWN)
        catalog.series_end = answering  # type: ignore[method-assign]
        clock.advance(RETRY_S)
        assert await text() == ENDED

    asyncio.run(run())


def test_a_query_that_is_a_selector_says_when_its_series_ended() -> None:
    async def run() -> None:
        catalog = CatalogOfSeries([], [], {"query": 1795221827.0})
        nothing = Cause("NoSeries", "Prometheus gives no series for the query", "set emptyMeans: Healthy")
        suggestions = MetricNameSuggestions(ManualClock(0.0), 1.0)
        ended = await suggestions.suggest(nothing, MetricRequest("query", 'temp{job="rack"}'), catalog)
        assert (ended.reason, ended.text) == (
            "SeriesEnded",
            "Prometheus has no current series for the query: the last one ended at 2026-11-21T00:43:47Z",
        )
        assert await suggestions.suggest(nothing, MetricRequest("other", "up == 0"), catalog) == nothing
        assert await suggestions.suggest(nothing, MetricRequest("other", "up == 0"), Catalog(())) == nothing

    asyncio.run(run())


def test_name_with_the_prefix_of_the_node_exporter_is_suggested_if_it_exists() -> None:
    assert remedies(Catalog(("node_up", "ups")), "up") == ['correct the name; it has "node_up"']
    assert remedies(Catalog(("ups",)), "load1") == ["correct the name"]


def test_names_are_requested_again_after_a_while_and_a_suggestion_stays() -> None:
    async def run() -> None:
        clock, catalog = ManualClock(0.0), Catalog(Unavailable("down"))
        suggestions = MetricNameSuggestions(clock, 1.0)

        async def remedy(metric: str) -> str:
            return (await suggestions.suggest(UNKNOWN, MetricRequest(metric), catalog)).remedy

        assert await remedy("node_laod1") == "correct the name"
        catalog.answer = NAMES
        assert await remedy("node_laod1") == "correct the name", "not requested again at once"
        clock.advance(RETRY_S)
        assert await remedy("node_laod1") == 'correct the name; it has "node_load1"'
        catalog.answer = ("node_load",)
        clock.advance(NAMES_S)
        assert await remedy("node_laod1") == 'correct the name; it has "node_load1"', "no write of a status"
        suggestions.forget(frozenset({MetricRequest("node_laod1").key}))
        assert await remedy("node_laod1") == 'correct the name; it has "node_load"'

    asyncio.run(run())


def test_a_namespace_with_many_misspelt_names_takes_no_suggestions_from_others() -> None:
    async def run() -> None:
        clock, catalog = ManualClock(0.0), Catalog(NAMES)
        suggestions = MetricNameSuggestions(clock, 1.0)

        async def is_suggested(number: int, namespace: str) -> bool:
            request = MetricRequest(f"node_laod{number}", namespaces=frozenset([namespace]))
            return (await suggestions.suggest(UNKNOWN, request, catalog)).remedy != UNKNOWN.remedy

        hostile = [await is_suggested(number, "hostile") for number in range(30)]
        assert sum(hostile) == MAX_OF_NAMESPACE
        assert await is_suggested(1000, "other")
        later = [await is_suggested(2000 + number, f"other{number}") for number in range(30)]
        assert sum(later) == MAX_OF_ALL - MAX_OF_NAMESPACE - 1
        clock.advance(NAMES_S)
        assert await is_suggested(29, "hostile")

    asyncio.run(run())


def test_other_causes_request_no_names() -> None:
    catalog = Catalog(NAMES)
    down = Cause("SourceUnreachable", "Prometheus is unreachable", "start it")
    assert remedies(catalog, "node_laod1", cause=down) == ["start it"]
    assert catalog.calls == 0


@pytest.mark.parametrize("metric", ["node_temprature", "temprature"])
def test_few_of_many_names_are_compared(metric: str) -> None:
    names = [f"node_metric_{number}" for number in range(5000)] + ["node_temperature", "temperature"]
    chosen = cooperative_scheduling.run_without_pauses(source_selection.select_similar_names(metric, names))
    assert len(chosen) <= MAX_COMPARED
    assert metric.replace("prature", "perature") in chosen
