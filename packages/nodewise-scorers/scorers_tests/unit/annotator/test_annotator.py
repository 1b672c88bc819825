"""Bursts with an API server in memory: which annotations are written, and how errors are handled."""

from math import isnan
from typing import Any, cast

import numpy as np
import pytest
from tests.manual_clock import ManualClock

from nodewise.base import quantity
from nodewise.base.clock import format_rfc3339, parse_rfc3339
from nodewise.base.errors import Conflict, NodewiseError, Refused, Unavailable
from nodewise.kube.api_server_interface import NONE, Params, Patch
from nodewise.kube.resource_kinds import NODES
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.prometheus.source import PrometheusSource
from nodewise.metrics.series import Sample, Series
from nodewise.metrics.source_selection import FetchLimits, SourceSelector
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.scheduling_model.in_memory_api import FakeApi
from nodewise_scorers.annotator import AnnotatorConfig, ForecastOptions, annotator, node_patches, node_usage
from nodewise_scorers.annotator.annotator import Annotator
from nodewise_scorers.statistics.load_annotations import ANNOTATED_AT
from nodewise_scorers.statistics.node_usage_reader import WindowOptions
from scorers_tests.unit.annotator.annotator_node_and_pod_builders import (
    Object,
    node,
    pod,
    read_node,
    read_pods,
)

pytestmark = pytest.mark.anyio
START = 1_800_000_000.0
GIB = 2**30
EVERYTHING = AnnotatorConfig("all")
Uses = dict[str, tuple[float, float]]
"""Usage by node name: cores and bytes."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Meter:
    """A source of node usage like metrics-server, without unknown nodes."""

    name = "resource"

    def __init__(self, clock: ManualClock, **uses: tuple[float, float]) -> None:
        self._clock = clock
        self.uses: Uses = uses
        self.error: NodewiseError | None = None
        self.silent: set[str] = set()

    def supports(self, request: MetricRequest) -> bool:
        return True

    async def fetch(self, request: MetricRequest, now: float) -> Series:
        if self.error:
            raise self.error
        if request.metric in self.silent:
            raise Unavailable(f"{request.metric} is away")
        place = 0 if request.metric == node_usage.CPU else 1
        samples = {
            name: Sample(round(used[place] * quantity.NANO), self._clock.now())
            for name, used in self.uses.items()
        }
        return Series(request.metric, self.name, now, samples)


class RefusingApi(FakeApi):
    """An API server that refuses patches of some nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[str, NodewiseError] = {}
        self.bodies: list[tuple[str, Any, Patch, Params]] = []

    async def patch(
        self, path: str, body: object, kind: Patch, params: Params = NONE, *, timeout_s: float = 10.0
    ) -> bytes:
        self.bodies.append((path, body, kind, params))
        if error := self.errors.get(path.rpartition("/")[2]):
            raise error
        return await super().patch(path, body, kind, params, timeout_s=timeout_s)


class SteppedClock(ManualClock):
    """A clock whose time, unlike the monotonic one, can be set back."""

    set_back_s = 0.0

    def now(self) -> float:
        return super().now() - self.set_back_s


class AnnotatedCluster:
    """Nodes and pods in memory with their usage, and an annotator with a period of one minute."""

    def __init__(self, task: AnnotatorConfig = EVERYTHING, *nodes: Object, window_s: float = 900) -> None:
        self.clock = SteppedClock(START)
        self.api = RefusingApi()
        self.meter = Meter(self.clock)
        self.metrics_registry = MetricsRegistry()
        self.pods: list[Object] = []
        for manifest in nodes or (node("a"), node("b")):
            self.api.put(NODES, manifest)
        window = WindowOptions(statistics_window_s=window_s)
        selector = SourceSelector([self.meter], FetchLimits(5, 8), self.clock, self.metrics_registry)
        measure = annotator.create_usage_source([self.meter], task, window, selector, self.clock)
        self.annotator = Annotator(task, window.max_age_s, measure, self.clock, self.metrics_registry)

    def nodes(self) -> list[Any]:
        return [read_node(obj) for obj in self.api.objects(NODES).values()]

    def annotations(self, name: str) -> dict[str, str]:
        annotations: dict[str, str] = self.api.objects(NODES)["", name]["metadata"].get("annotations", {})
        return annotations

    async def minute(self, count: int = 1) -> node_patches.WriteResult:
        """Advance the time, take samples, and run a burst at the end."""
        for _ in range(count * 2):
            self.clock.advance(30)
            await self.annotator.take_sample()
        return await self.annotator.burst(self.api, self.nodes(), read_pods(*self.pods))


async def test_free_and_requested_amounts_are_written() -> None:
    cluster = AnnotatedCluster()
    cluster.meter.uses = {"a": (1.0, 4 * GIB), "b": (0.25, GIB)}
    cluster.pods = [pod("p", "a", {"cpu": "500m", "memory": "1.5Gi"}, phase="Pending")]
    assert await cluster.minute(2) == (2, 0, 0, "")
    annotations = cluster.annotations("a")
    assert (annotations["mean-free-cpu"], annotations["std-free-cpu"]) == ("3000", "0")
    assert (annotations["mean-free-memory"], annotations["std-free-memory"]) == (str(12 * GIB), "0")
    assert (annotations["requested-cpu"], annotations["requested-memory"]) == ("500", "1610612736")
    assert annotations[ANNOTATED_AT] == format_rfc3339(cluster.clock.now())
    expected = (str(16 * GIB), "1610612736")
    assert (annotations["allocatable_memory"], annotations["reqested_memory"]) == expected
    assert cluster.annotations("b")["mean-free-cpu"] == "3750"
    assert "forcasted-free-cpu" not in annotations


async def test_each_write_names_its_manager_and_insists_on_the_uid() -> None:
    cluster = AnnotatedCluster()
    cluster.meter.uses = {"a": (1.0, GIB)}
    await cluster.minute()
    path, body, kind, params = cluster.api.bodies[0]
    assert (path, kind, params) == ("/api/v1/nodes/a", "merge", {"fieldManager": "nodewise-annotator"})
    assert body["metadata"]["uid"] == cluster.api.objects(NODES)["", "a"]["metadata"]["uid"]


async def test_a_node_that_was_made_anew_is_not_written() -> None:
    cluster = AnnotatedCluster()
    cluster.meter.uses = {"a": (1.0, GIB), "b": (1.0, GIB)}
    read = cluster.nodes()
    cluster.api.remove(NODES, "a")
    cluster.api.put(NODES, node("a"))
    cluster.api.remove(NODES, "b")
    await cluster.annotator.take_sample()
    assert await cluster.annotator.burst(cluster.api, read, []) == (0, 0, 2, "")
    assert cluster.annotations("a") == {}
    assert list(cluster.api.objects(NODES)) == [("", "a")], "no ghost of what was deleted"


async def test_nothing_is_written_while_nothing_moves_until_the_time_grows_old() -> None:
    cluster = AnnotatedCluster()
    cluster.meter.uses = {"a": (1.0, 4 * GIB), "b": (0.25, GIB)}
    await cluster.minute(20)
    written = [(await cluster.minute()).done for _ in range(60)]
    assert written[:28] == [0] * 28
    assert sum(written) == 4, "each node twice an hour: the time"
    age_s = cluster.clock.now() - parse_rfc3339(cluster.annotations("a")[ANNOTATED_AT])
    assert age_s <= 1860


async def test_only_the_node_that_moved_is_written() -> None:
    cluster = AnnotatedCluster()
    cluster.meter.uses = {"a": (1.0, 4 * GIB), "b": (0.25, GIB)}
    await cluster.minute(20)
    cluster.api.bodies.clear()
    cluster.meter.uses["b"] = (3.0, GIB)
    await cluster.minute(2)
    [(path, body, *_)] = cluster.api.bodies
    assert path.endswith("/b")
    assert set(body["metadata"]["annotations"]) == {"mean-free-cpu", "std-free-cpu", ANNOTATED_AT}


async def test_a_node_that_is_not_ready_keeps_its_annotations() -> None:
    stood = {"mean-free-cpu": "1", ANNOTATED_AT: "2026-01-01T00:00:00Z"}
    cluster = AnnotatedCluster(
        EVERYTHING, node("a", stood, ready="False"), node("b", ready="Unknown"), node("c")
    )
    cluster.meter.uses = dict.fromkeys("abc", (1.0, GIB))
    assert (await cluster.minute()).done == 1
    assert cluster.annotations("a") == stood
    assert cluster.annotations("b") == {}
    assert b'lacking{why="not_ready"} 2' in cluster.metrics_registry.exposition()


async def test_an_unmeasured_node_keeps_its_statistics_until_they_expire() -> None:
    cluster = AnnotatedCluster()
    cluster.meter.uses = {"a": (1.0, GIB), "b": (1.0, GIB)}
    await cluster.minute(16)
    stood = cluster.annotations("a")
    del cluster.meter.uses["a"]
    await cluster.minute(20)
    assert cluster.annotations("a") == stood
    cluster.pods = [pod("p", "a", {"cpu": "1"})]
    await cluster.minute()
    annotations = cluster.annotations("a")
    assert annotations["requested-cpu"] == "1000"
    assert annotations[ANNOTATED_AT] == stood[ANNOTATED_AT]
    await cluster.minute(60)
    annotations = cluster.annotations("a")
    assert "mean-free-cpu" not in annotations
    assert parse_rfc3339(annotations[ANNOTATED_AT]) > parse_rfc3339(stood[ANNOTATED_AT])


async def test_few_samples_after_a_restart_do_not_replace_complete_statistics() -> None:
    whole = {
        "mean-free-cpu": "3000",
        "std-free-cpu": "500",
        "mean-free-memory": str(12 * GIB),
        "std-free-memory": "1000",
        ANNOTATED_AT: format_rfc3339(START - 60),
    }
    cluster = AnnotatedCluster(AnnotatorConfig("usage"), node("a", whole), node("new"))
    cluster.meter.uses = {"a": (3.0, GIB), "new": (3.0, GIB)}
    await cluster.minute()
    assert cluster.annotations("a") == whole
    assert cluster.annotations("new")["mean-free-cpu"] == "1000"
    await cluster.minute(9)
    assert cluster.annotations("a")["mean-free-cpu"] == "1000"


async def test_a_part_of_the_statistics_does_not_replace_the_whole() -> None:
    cluster = AnnotatedCluster(AnnotatorConfig("usage"), window_s=300)
    cluster.meter.uses = {"a": (1.0, GIB)}
    await cluster.minute(6)
    stood = cluster.annotations("a")
    cluster.meter.uses = {"a": (3.0, GIB)}
    cluster.meter.silent = {node_usage.MEMORY}
    await cluster.minute(10)
    assert cluster.annotations("a") == stood
    await cluster.minute(60)
    annotations = cluster.annotations("a")
    assert annotations["mean-free-cpu"] == "1000", (
        "what stood is too old to count: better the part than nothing"
    )
    assert "mean-free-memory" not in annotations


async def test_statistics_are_of_the_window() -> None:
    cluster = AnnotatedCluster(window_s=300)
    for cores in (0, 1, 2, 3, 4):
        cluster.meter.uses = {"a": (cores, GIB)}
        await cluster.minute()
    cluster.meter.uses = {"a": (2.0, GIB)}
    await cluster.minute(6)
    annotations = cluster.annotations("a")
    assert (annotations["mean-free-cpu"], annotations["std-free-cpu"]) == ("2000", "0")


async def test_statistics_are_current_after_the_clock_is_set_back() -> None:
    cluster = AnnotatedCluster(window_s=300)
    cluster.meter.uses = {"a": (1.0, GIB)}
    await cluster.minute(6)
    cluster.clock.set_back_s = 86_400.0
    cluster.meter.uses = {"a": (3.0, GIB)}
    await cluster.minute(6)
    annotations = cluster.annotations("a")
    assert (annotations["mean-free-cpu"], annotations["std-free-cpu"]) == ("1000", "0")


@pytest.mark.parametrize("error", [Refused("no right"), Conflict("newer"), Unavailable("busy")])
async def test_an_error_of_one_node_does_not_stop_others(error: NodewiseError) -> None:
    nodes = [node(f"n-{number}") for number in range(30)]
    cluster = AnnotatedCluster(EVERYTHING, *nodes)
    cluster.meter.uses = {f"n-{number}": (1.0, GIB) for number in range(30)}
    cluster.api.errors = {"n-3": error}
    written = await cluster.minute()
    assert written.done == 29
    assert (written.failed, written.gone) == (1, 0)
    assert str(error) in written.error
    cluster.api.errors = {}
    assert (await cluster.minute()).done == 1, "the next burst tries again"


async def test_an_unavailable_api_server_gets_no_further_requests() -> None:
    nodes = [node(f"n-{number}") for number in range(100)]
    cluster = AnnotatedCluster(EVERYTHING, *nodes)
    cluster.api.errors = {f"n-{number}": Unavailable("down") for number in range(100)}
    written = await cluster.minute()
    assert (written.done, written.failed) == (0, 100)
    assert len(cluster.api.bodies) < 20
    assert "down" in written.error


async def test_without_measuring_only_allocation_is_written() -> None:
    cluster = AnnotatedCluster(AnnotatorConfig("allocation"))
    assert cluster.annotator.is_sampled is False
    assert (await cluster.minute()).done == 2
    assert set(cluster.annotations("a")) == {
        *(f"{what}-{resource}" for what in ("free", "requested") for resource in RESOURCES),
        "reqested_memory",
        ANNOTATED_AT,
    }


RESOURCES = ("cpu", "memory", "pods", "gpu", "ephemeral-storage")


async def test_gpus_may_have_another_resource_name() -> None:
    task = AnnotatorConfig("allocation", options=ForecastOptions(annotate_gpu_resource="nvidia.com/gpu"))
    manifest = node("a")
    manifest["status"]["allocatable"]["nvidia.com/gpu"] = "8"
    cluster = AnnotatedCluster(task, manifest)
    cluster.pods = [pod("p", "a", {"nvidia.com/gpu": "3"}, {"gpu": "1"})]
    await cluster.minute()
    annotations = cluster.annotations("a")
    assert (annotations["requested-gpu"], annotations["free-gpu"]) == ("3", "5")


async def test_a_failing_source_is_reported_and_allocation_is_written() -> None:
    cluster = AnnotatedCluster()
    cluster.meter.error = Unavailable("metrics-server is away")
    assert (await cluster.minute()).done == 2
    plan = await cluster.annotator.plan(cluster.nodes(), [], keeps_complete=True)
    assert plan.unmeasured == ("a", "b")
    assert [text.partition(":")[0] for text in plan.failures] == ["cpu_usage", "memory_usage"]


async def test_unmeasured_nodes_are_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[dict[str, object]] = []
    monkeypatch.setattr(
        annotator.logs,
        "emit",
        lambda event, **fields: logged.append(fields) if event == "usage_unknown" else None,
    )
    cluster = AnnotatedCluster()
    cluster.meter.uses = {"a": (1.0, GIB)}
    for _ in range(3):
        await cluster.minute()
    assert logged == [{"nodes": 1, "example": "b", "error": "no recent value"}]
    cluster.meter.uses["b"] = (1.0, GIB)
    await cluster.minute()
    cluster.meter.uses.clear()
    await cluster.minute(16)
    assert logged[1:] == [{"nodes": 2, "example": "a, b", "error": "no recent value"}]


async def test_a_burst_is_due_once_a_period() -> None:
    cluster = AnnotatedCluster()
    assert cluster.annotator.is_due()
    await cluster.minute()
    assert not cluster.annotator.is_due()
    cluster.clock.advance(59)
    assert not cluster.annotator.is_due()
    cluster.clock.advance(1)
    assert cluster.annotator.is_due()


async def test_forecasts_are_written_on_request() -> None:
    cluster = AnnotatedCluster(AnnotatorConfig("usage", options=ForecastOptions(annotate_forecast=True)))
    for step in range(30):
        cluster.meter.uses = {"a": (step / 10, GIB)}
        await cluster.minute()
    annotations = cluster.annotations("a")
    assert float(annotations["forcasted-free-cpu"]) < float(annotations["mean-free-cpu"])
    assert float(annotations["forcasted-free-memory"]) == 15 * GIB


class SampledPrometheus:
    """Samples of a forecast window for one node, or an error."""

    def __init__(self) -> None:
        self.error: NodewiseError | None = None
        self.failing = ""
        """What queries with the error contain."""

    async def samples(self, query: str) -> dict[str, node_usage.Points]:
        if self.error and self.failing in query:
            raise self.error
        return {"a": np.array([[60.0 * minute, 1.0 + minute % 2] for minute in range(300)])}


def forecasting_source(clock: ManualClock, prometheus: SampledPrometheus) -> node_usage.PrometheusUsageSource:
    """A source whose forecasts are for 600 s."""
    selector = SourceSelector([Meter(clock, a=(1.0, GIB))], FetchLimits(5, 8), clock, MetricsRegistry())
    options = ForecastOptions(annotate_forecast=True, annotate_forecast_window_s=60_000)
    return node_usage.PrometheusUsageSource(
        selector, WindowOptions(), options, [cast("PrometheusSource", prometheus)], clock
    )


async def test_forecasts_outlive_a_failed_query_for_the_time_that_they_are_for() -> None:
    clock, prometheus = ManualClock(START), SampledPrometheus()
    source = forecasting_source(clock, prometheus)
    known = (await source.measure({})).usage["a"]
    assert known.cpu.forecast > 0
    prometheus.error = Unavailable("timeout")
    clock.advance(300)
    measured = await source.measure({})
    assert measured.usage["a"] == known
    assert measured.failures == ("samples of cpu: timeout", "samples of memory: timeout")
    clock.advance(300)
    assert isnan((await source.measure({})).usage["a"].cpu.forecast)


async def test_forecast_of_one_resource_outlives_one_failure_after_many_of_the_other() -> None:
    clock, prometheus = ManualClock(START), SampledPrometheus()
    source = forecasting_source(clock, prometheus)
    prometheus.error, prometheus.failing = Unavailable("timeout"), "memory"
    for _ in range(4):
        known = (await source.measure({})).usage["a"]
        clock.advance(300)
    prometheus.failing = ""
    measured = (await source.measure({})).usage["a"]
    assert measured.cpu.forecast == known.cpu.forecast > 0
    assert isnan(measured.memory.forecast)
