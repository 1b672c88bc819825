"""The metric names in `/metrics`, which tenants choose, are limited and shared fairly."""

from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.refresher import (
    MAX_METRIC_NAMES,
    MetricsRefresher,
    RefreshOptions,
    select_exported_names,
)
from nodewise.metrics.series import Sample, Series
from nodewise.observe.metrics_registry import MetricsRegistry
from tests.manual_clock import ManualClock
from tests.unit.kube import virtual_time

NONE: frozenset[str] = frozenset()


def requests(namespace: str, count: int) -> set[MetricRequest]:
    return {MetricRequest(f"{namespace}{n:04}", namespaces=frozenset({namespace})) for n in range(count)}


def test_all_names_up_to_the_limit_are_exported_and_one_beyond_it_is_not() -> None:
    assert len(select_exported_names(requests("a", MAX_METRIC_NAMES), NONE)) == MAX_METRIC_NAMES
    assert len(select_exported_names(requests("a", MAX_METRIC_NAMES + 1), NONE)) == MAX_METRIC_NAMES


def test_a_namespace_keeps_its_share_whatever_others_request() -> None:
    chosen = select_exported_names(requests("a", 2000) | requests("b", 10) | requests("c", 2000), NONE)
    assert [sum(name[0] == namespace for name in chosen) for namespace in "abc"] == [245, 10, 245]


def test_names_of_agents_are_always_exported_and_take_no_share() -> None:
    of_agents = {MetricRequest("cpu"), MetricRequest("a0000", "query", namespaces=frozenset({"a"}))}
    chosen = select_exported_names(of_agents | requests("a", 2000) | {MetricRequest("a0000")}, NONE)
    assert {"cpu", "a0000"} <= chosen
    assert len(chosen) == MAX_METRIC_NAMES + 2


def test_a_new_name_of_a_namespace_replaces_none_of_its_own() -> None:
    before = select_exported_names(requests("b", 20), NONE, 10)
    earlier = {MetricRequest("a", namespaces=frozenset({"b"}))}
    assert select_exported_names(requests("b", 20) | earlier, before, 10) == before


def test_a_name_that_is_shared_counts_for_the_namespace_where_it_is_first() -> None:
    shared = {MetricRequest("z", namespaces=frozenset({"a", "b"}))}
    assert "z" in select_exported_names(requests("a", 20) | shared, NONE, 2)


class Source:
    name = "s"

    def supports(self, request: MetricRequest) -> bool:
        return True

    async def fetch(self, request: MetricRequest, now: float) -> Series:
        return Series(request.metric, self.name, now, {"a": Sample(1, now)})


def test_series_of_excess_names_disappear_and_return() -> None:
    registry = MetricsRegistry()

    def exported() -> tuple[int, str]:
        lines = registry.exposition().decode().splitlines()
        total = next(line for line in lines if line.startswith("nodewise_metric_names_not_exported "))
        return sum(line.startswith("nodewise_metric_nodes{") for line in lines), total.split()[1]

    async def run() -> list[tuple[int, str]]:
        refresher = MetricsRefresher([Source()], RefreshOptions(), ManualClock(), registry)
        counts = []
        first = requests("a", MAX_METRIC_NAMES)
        for wanted in (first, first | requests("b", 1), requests("b", 1)):
            refresher.set_requests(frozenset(wanted))
            await refresher.settle()
            counts.append(exported())
        return counts

    assert virtual_time.run(run()) == [(500, "0.0"), (500, "1.0"), (1, "0.0")]
    assert MAX_METRIC_NAMES == 500
