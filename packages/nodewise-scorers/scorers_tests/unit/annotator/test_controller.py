"""The annotator in the extender's leader."""

import asyncio
from typing import Any

import msgspec
import pytest
from tests.manual_clock import ManualClock
from tests.unit.agents.fake_controller_handle import build_handle

from nodewise.agent import NodeIndex, Snapshot
from nodewise.kube.resource_kinds import NODES
from nodewise.kube.store import StoreWriter
from nodewise.scheduling_model.in_memory_api import FakeApi
from nodewise_scorers.annotator import AnnotatorOptions, annotator, node_usage
from nodewise_scorers.annotator.annotator import BOUND_PODS, AnnotatorController
from nodewise_scorers.statistics.node_usage_reader import WindowOptions
from scorers_tests.unit.annotator.annotator_node_and_pod_builders import node, pod, read_node, read_pods
from scorers_tests.unit.annotator.test_annotator import GIB, START, Meter

pytestmark = pytest.mark.anyio
VIEW = Snapshot(NodeIndex(), {}, START)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class AnnotatorLeader:
    """A controller, its stores, and the API server that it writes to."""

    def __init__(self, options: AnnotatorOptions) -> None:
        self.clock = ManualClock(START)
        self.api = FakeApi()
        self.nodes: StoreWriter[Any] = StoreWriter()
        self.pods: StoreWriter[Any] = StoreWriter()
        self.meter = Meter(self.clock, a=(1.0, GIB))
        self.nodes.replace([read_node(self.api.put(NODES, node("a")))])
        objects = {BOUND_PODS: self.pods.store} if annotator.watched(options) else {}
        self.handle = build_handle(self.api, objects, self.nodes.store, self.clock)
        self.controller = AnnotatorController(options, WindowOptions(), [self.meter], self.handle)

    async def step(self) -> int:
        """Run a step; returns the number of writes since the start."""
        await self.controller.step(VIEW)
        await self.controller.settle()
        return len([verb for verb, _ in self.api.calls if verb == "patch"])

    def annotations(self) -> dict[str, str]:
        annotations: dict[str, str] = self.api.objects(NODES)["", "a"]["metadata"]["annotations"]
        return annotations


async def test_it_writes_once_a_period_however_often_the_view_changes() -> None:
    leader = AnnotatorLeader(AnnotatorOptions(annotate="usage"))
    leader.controller.begin()
    assert [await leader.step() for _ in range(3)] == [1, 1, 1]
    assert leader.annotations()["mean-free-cpu"] == "3000"
    assert leader.handle.node_writes.count == 1
    leader.clock.advance(60)
    leader.meter.uses["a"] = (3.0, GIB)
    assert await leader.step() == 2


async def test_it_waits_for_the_pods_where_these_count() -> None:
    leader = AnnotatorLeader(AnnotatorOptions(annotate="all"))
    assert await leader.step() == 0
    leader.pods.replace(read_pods(pod("p", "a", {"cpu": "1"})))
    assert await leader.step() == 1
    assert leader.annotations()["requested-cpu"] == "1000"


async def test_a_step_does_not_wait_for_a_burst() -> None:
    leader = AnnotatorLeader(AnnotatorOptions(annotate="usage"))
    done = asyncio.Event()
    fetch = leader.meter.fetch

    async def slowly(*arguments: Any) -> Any:
        await done.wait()
        return await fetch(*arguments)

    leader.meter.fetch = slowly  # type: ignore[method-assign]
    await leader.controller.step(VIEW)
    await leader.controller.step(VIEW)
    done.set()
    assert await leader.step() == 1


async def test_a_defect_is_raised_once_and_the_burst_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = AnnotatorLeader(AnnotatorOptions(annotate="usage"))
    with monkeypatch.context() as patched:
        patched.setattr(node_usage.SampledUsageSource, "take_sample", lambda _: 1 // 0)
        await leader.step()
        with pytest.raises(ZeroDivisionError):
            await leader.controller.step(VIEW)
    assert await leader.step() == 1


def test_pods_are_watched_only_where_they_count() -> None:
    assert annotator.watched(AnnotatorOptions()) == ()
    assert annotator.watched(AnnotatorOptions(annotate="usage")) == ()
    [watched] = annotator.watched(AnnotatorOptions(annotate="allocation"))
    assert msgspec.json.decode(b'{"metadata": {"name": "p"}}', type=watched.type).metadata.name == "p"
    assert watched.selectors == {
        "fieldSelector": "spec.nodeName!=,status.phase!=Failed,status.phase!=Succeeded"
    }
    assert annotator.watched(AnnotatorOptions(annotate="usage", annotate_use_requests=True))


def test_the_annotator_is_off_by_default() -> None:
    with pytest.raises(TypeError):
        AnnotatorLeader(AnnotatorOptions())
