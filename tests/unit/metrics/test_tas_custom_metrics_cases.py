"""The rows M of the older system's cases that concern sources and stored values.

The rows with another result in nodewise are marked with `Differs`, such as M5, M7 (an invalid quantity) and M17. M11
and M12 are about names that the policy parser refuses before a request.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from nodewise.base import clock as clocks
from nodewise.base.errors import Unavailable
from nodewise.kube.api_server_interface import NotFound
from nodewise.metrics.custom_metrics_api import CustomMetricsSource
from nodewise.metrics.metrics_source import MetricRequest, RefreshOptions
from nodewise.metrics.refresher import MetricsRefresher
from nodewise.metrics.series import Sample
from nodewise.observe.metrics_registry import MetricsRegistry
from tests.manual_clock import ManualClock
from tests.unit.metrics.custom_metrics_objects import group, item

NANO = 10**9
STAMP = "2026-11-21T00:00:00Z"
GROUP = "/apis/custom.metrics.k8s.io"


class CustomMetricsAdapter:
    """An API server with the versions of an API group, and a response or an error for each metric."""

    def __init__(self, offered: Any, **metrics: Any) -> None:
        self.offered = offered
        self.metrics = metrics
        self.requests: list[tuple[str, Any]] = []

    async def get(self, path: str, params: Any = None, **_: Any) -> bytes:
        self.requests.append((path, params))
        answer = self.offered if path == GROUP else self.metrics[path.rpartition("/")[2]]
        if isinstance(answer, Exception):
            raise answer
        return json.dumps(answer if isinstance(answer, dict) else {"items": answer}).encode()

    @property
    def polled(self) -> list[str]:
        return [path.removeprefix(f"{GROUP}/") for path, _ in self.requests if path != GROUP]


class Play(NamedTuple):
    """A refresher with an adapter, whose rounds the test runs."""

    adapter: CustomMetricsAdapter
    refresher: MetricsRefresher
    clock: ManualClock

    async def request(self, *metrics: str) -> None:
        self.refresher.set_requests(frozenset(MetricRequest(metric) for metric in metrics))
        await self.refresher.settle()

    async def round(self) -> None:
        self.clock.advance(5.0)
        for request in self.refresher._requests.values():
            self.refresher._start_fetch(request)
        await self.refresher.settle()

    def values(self, metric: str = "m") -> dict[str, int]:
        series = self.refresher.snapshot.series.get(metric)
        return {node: sample.value // NANO for node, sample in series.samples.items()} if series else {}


V1 = group("v1beta1", "v1beta1", "v1beta2")
V2 = group("v1beta2", "v1beta2", "v1beta1")
V3 = group("v2", "v2", "v1beta1", "v1beta2")


def play(offered: dict[str, Any] = V1, **metrics: Any) -> Play:
    adapter: Any = CustomMetricsAdapter(offered, **metrics)
    clock = ManualClock(1000.0)
    return Play(
        adapter,
        MetricsRefresher([CustomMetricsSource(adapter)], RefreshOptions(), clock, MetricsRegistry()),
        clock,
    )


async def m1() -> None:
    """One call per metric and round, without query parameters."""
    on = play(m=[item("a")])
    await on.request("m")
    await on.round()
    assert on.adapter.polled == ["v1beta1/nodes/%2A/m"] * 2
    assert all(not params for _, params in on.adapter.requests)


async def m2() -> None:
    """v1beta2 is used if it is the preferred version, with its `windowSeconds`."""
    on = play(V2, m=[item("a", windowSeconds=30)])
    await on.request("m")
    assert on.adapter.polled == ["v1beta2/nodes/%2A/m"]
    assert on.refresher.snapshot.series["m"].samples["a"].window_s == 30


async def m3() -> None:
    """If the preferred version is not supported, the first supported one is used."""
    on = play(V3, m=[item("a")])
    await on.request("m")
    assert on.adapter.polled == ["v1beta1/nodes/%2A/m"]


async def m5() -> None:
    """Differs: if only v1beta2 remains, it is used from the second round on."""
    on = play(m=[item("a")])
    await on.request("m")
    on.adapter.offered = group("v1beta2", "v1beta2")
    on.adapter.metrics["m"] = NotFound("gone")
    await on.round()
    on.adapter.metrics["m"] = [item("a")]
    await on.round()
    assert on.adapter.polled[-1] == "v1beta2/nodes/%2A/m"


async def m6() -> None:
    """Differs: a node with two different items has no value."""
    on = play(m=[item("x", "1"), item("x", "9"), item("y", "3")])
    await on.request("m")
    assert on.values() == {"y": 3}


async def m7() -> None:
    """A failure keeps the values. Differs: an invalid quantity affects only its node, not the metric."""
    on = play(m=[item("a", "1"), item("b", "2")])
    await on.request("m")
    for failure in (NotFound("404"), Unavailable("503"), []):
        on.adapter.metrics["m"] = failure
        await on.round()
        assert on.values() == {"a": 1, "b": 2}
        assert "m" in on.refresher.snapshot.failures
    on.adapter.metrics["m"] = [item("a", "x"), item("b", "3")]
    await on.round()
    assert on.values() == {"b": 3}


async def m8() -> None:
    """Nodes that the next response leaves out have no value."""
    on = play(m=[item("n1"), item("n2")])
    await on.request("m")
    on.adapter.metrics["m"] = [item("n1")]
    await on.round()
    assert on.values() == {"n1": 1}


async def m9() -> None:
    """A metric that is requested but was never fetched has no value."""
    on = play(m=[item("a")])
    on.refresher.set_requests(frozenset({MetricRequest("m")}))
    assert not on.refresher.snapshot.was_fetched("m")
    await on.refresher.settle()


async def m10() -> None:
    """A metric is polled while a policy names it, and removed with the last one."""
    on = play(m=[item("a")])
    for _ in range(2):
        await on.request("m")
    await on.request()
    await on.round()
    assert (on.values(), len(on.adapter.polled)) == ({}, 1)


async def m11() -> None:
    """A metric without a name is never polled."""
    on = play()
    await on.request("")
    assert on.adapter.requests == []


async def m14() -> None:
    """A repeated request keeps the values and causes no further call."""
    on = play(m=[item("a")], k=[item("a")])
    await on.request("m")
    before = on.refresher.snapshot.series["m"]
    await on.request("m", "k")
    assert on.refresher.snapshot.series["m"] is before
    assert on.adapter.polled.count("v1beta1/nodes/%2A/m") == 1


async def m15() -> None:
    """Value, window and time of the item; the default window is 60 s."""
    on = play(
        m=[item("node-1", "50", windowSeconds=60, timestamp=STAMP), item("node-2", "50", timestamp=STAMP)]
    )
    await on.request("m")
    sample = Sample(50 * NANO, clocks.parse_rfc3339(STAMP), 60.0)
    assert on.refresher.snapshot.series["m"].samples == {"node-1": sample, "node-2": sample}


async def m16() -> None:
    """A policy that names k instead of m: k is polled, m no longer."""
    on = play(m=[item("a")], k=[item("b", "2")])
    await on.request("m")
    await on.request("k")
    await on.round()
    assert (on.values("m"), on.values("k")) == ({}, {"b": 2})
    assert [path.rpartition("/")[2] for path in on.adapter.polled] == ["m", "k", "k"]


async def m17() -> None:
    """Differs: a metric that no strategy names any more is not polled, whichever strategy named it before."""
    on = play(m=[item("a")], k=[item("a")])
    await on.request("k")
    await on.request("m")
    await on.request()
    before = len(on.adapter.polled)
    await on.round()
    assert len(on.adapter.polled) == before


async def appears() -> None:
    """A missing API is looked up once per round for all metrics, until it exists."""
    on = play(m=[item("a")], k=[item("a")])
    on.adapter.offered = NotFound("404")
    await on.request("m", "k")
    assert on.adapter.requests == [(GROUP, None)]
    on.adapter.offered = V1
    await on.round()
    assert (on.values("m"), on.values("k")) == ({"a": 1}, {"a": 1})


ROWS = {row.__name__.upper(): row for row in (m1, m2, m3, m5, m6, m7, m8, m9, m10, m11, m14, m15, m16, m17)}


@pytest.mark.parametrize("row", [*ROWS.values(), appears], ids=[*ROWS, "section 15"])
def test_row(row: Callable[[], Any]) -> None:
    asyncio.run(row())
