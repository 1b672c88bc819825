"""Metrics that nodewise computes: when the computation runs, and what a request gets before it has values."""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from nodewise.agent import ClusterState, Inputs, MetricRequest, ObjectKey, StateBuilder, Watched
from nodewise.base.clock import SystemClock
from nodewise.base.errors import NodewiseError, Refused
from nodewise.engine import computed_metrics
from nodewise.engine.computed_metrics import ComputationInputs, ComputedMetrics, ComputedMetricsSource
from nodewise.kube.resource_kinds import NODES, PODS
from nodewise.metrics import missing_values
from nodewise.metrics.metrics_source import MetricNotFound, NoValues, RefreshOptions
from nodewise.metrics.missing_values import NEVER_FETCHED, Cause
from nodewise.metrics.series import Sample, Series
from nodewise.metrics.source_selection import FetchLimits, SourceSelector
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.scheduling_model.in_memory_api import FakeApi

REQUEST = MetricRequest("pods_and_heat")
HEAT = MetricRequest("heat")


class _Fields(msgspec.Struct, frozen=True):
    """No fields."""


class _PodMetadata(msgspec.Struct, frozen=True):
    name: str
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815 - the API's name


class _PodSpec(msgspec.Struct, frozen=True):
    nodeName: str = ""  # noqa: N815 - the API's name


class _Pod(msgspec.Struct, frozen=True):
    metadata: _PodMetadata
    spec: _PodSpec = _PodSpec()


class _Builder(StateBuilder[NDArray[np.float64]]):
    """The number of pods of each node and its heat."""

    inputs = Inputs(frozenset({"pods"}))

    def metric_requests(self, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> frozenset[MetricRequest]:
        return frozenset([HEAT])

    def build(self, cluster_state: ClusterState) -> Generator[None, None, NDArray[np.float64]]:
        values = np.full(len(cluster_state.nodes) + 1, np.nan)
        series = cluster_state.metrics.series.get(HEAT.key)
        for number, name in enumerate(cluster_state.nodes.known):
            yield
            if series is not None and name in series.samples:
                pods = [pod for pod in cluster_state.objects["pods"].values() if pod.spec.nodeName == name]
                values[number] = len(pods) + series.samples[name].value / 10**9
        return values


class _Metrics(ComputedMetrics):
    def state(self) -> StateBuilder[Any]:
        return _Builder()

    def node_fields(self) -> type[msgspec.Struct]:
        return _Fields

    def watched(self) -> Sequence[Watched]:
        return [Watched("pods", PODS, _Pod)]

    def values(self, state: Any, metric: str) -> NDArray[np.float64]:
        assert metric == REQUEST.metric
        values: NDArray[np.float64] = state
        return values


class _Heat:
    """A source with a metric, which may fail."""

    name = "heat"
    error: NodewiseError | None = None

    def supports(self, request: MetricRequest) -> bool:
        return True

    async def fetch(self, request: MetricRequest, now: float) -> Series:
        if self.error is not None:
            raise self.error
        if request.metric != HEAT.metric:
            cause = missing_values.cause("MetricUnknown", self.name, "has no such metric")
            raise MetricNotFound(request.metric, cause=cause)
        return Series(request.metric, self.name, now, {"a": Sample(5 * 10**9, now, 0.0)})


class Fixture:
    """A computation with a short period, and a fake API server."""

    def __init__(self) -> None:
        self.api, self.heat = FakeApi(), _Heat()
        for name in "ab":
            self.api.put(NODES, {"metadata": {"name": name}})
        self.put_pod("p")
        refresh = RefreshOptions(sync_period_s=0.02)
        self.inputs = ComputationInputs(self.api, "nodewise", [self.heat], refresh, SystemClock())
        self.source = ComputedMetricsSource(frozenset([REQUEST.metric]), _Metrics, self.inputs)

    def put_pod(self, name: str) -> None:
        self.api.put(PODS, {"metadata": {"name": name, "namespace": "web"}, "spec": {"nodeName": "a"}})

    async def fetch(self) -> dict[str, int] | Cause:
        """The values, or why there are none."""
        try:
            series = await self.source.fetch(REQUEST, self.inputs.clock.now())
        except NoValues as error:
            return error.cause
        return {node: sample.value // 10**9 for node, sample in series.samples.items()}

    async def wait(self, expected: Callable[[dict[str, int] | Cause], bool]) -> None:
        async with asyncio.timeout(30):
            while not expected(await self.fetch()):
                await asyncio.sleep(0.01)

    async def wait_values(self, values: dict[str, int]) -> None:
        await self.wait(lambda fetched: fetched == values)


@pytest.fixture
async def fixture() -> AsyncIterator[Fixture]:
    made = Fixture()
    yield made
    await made.source.close()


async def test_values_follow_objects_and_metrics(fixture: Fixture) -> None:
    assert await fixture.fetch() is NEVER_FETCHED
    await fixture.wait_values({"a": 6})
    fixture.put_pod("q")
    await fixture.wait_values({"a": 7})


async def test_a_computation_ends_when_nothing_is_requested(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computed_metrics, "IDLE_S", 0.1)
    await asyncio.sleep(0.05)
    assert fixture.api.calls == []
    await fixture.wait_values({"a": 6})
    task = fixture.source._task
    assert task is not None
    await task
    fixture.put_pod("q")
    assert await fixture.fetch() is NEVER_FETCHED
    await fixture.wait_values({"a": 7})


async def test_the_cause_is_that_of_the_metric_that_is_missing(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At first the metric counts as not fetched yet, so that a restart changes no label."""
    cause = missing_values.cause("SourceNotInstalled", "resource", "is not installed")
    fixture.heat.error = MetricNotFound("metrics.k8s.io", cause=cause)
    for _ in range(10):
        assert await fixture.fetch() is NEVER_FETCHED
        await asyncio.sleep(0.01)
    monkeypatch.setattr(computed_metrics, "START_S", 0.0)
    await fixture.wait(lambda fetched: fetched == cause)


async def test_missing_rights_are_the_cause(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computed_metrics, "START_S", -1.0)
    fixture.api.fail(Refused("list pods"), times=10**6)
    assert "nodewise's computation waits for the list of nodes" in str(await fixture.fetch())


async def test_no_other_source_is_asked_for_a_computed_metric(fixture: Fixture) -> None:
    sources = [fixture.source, fixture.heat]
    selector = SourceSelector(sources, FetchLimits(5.0, 4), fixture.inputs.clock, MetricsRegistry())
    failure = await selector.fetch(REQUEST)
    assert not isinstance(failure, Series)
    assert failure.cause is NEVER_FETCHED
    assert isinstance(await selector.fetch(HEAT), Series)


async def test_the_metrics_of_the_scorers_are_offered(fixture: Fixture) -> None:
    offered = computed_metrics.create_sources(fixture.inputs)
    assert [source.supports(MetricRequest("predicted_cpu_share")) for source in offered] == [True]
    assert not any(source.supports(MetricRequest("predicted_cpu_share", "up")) for source in offered)
