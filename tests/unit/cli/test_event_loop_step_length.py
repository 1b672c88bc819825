"""No step of the event loop processes all nodes: long work yields to the loop in between.

The test counts the lines of nodewise's Python code that a step runs, because a count does not depend on the machine's
speed. About 20,000 lines take the 2 ms that a step may take. A list of all names is fewer lines, and any work for each
of 5,000 nodes is more. An operation of numpy or msgspec on all nodes is one line. `bench/startup_and_memory.py`
measures the time of steps.
"""

import asyncio
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec
from bench import generated_cluster_objects

import nodewise
from nodewise import agents
from nodewise.base import clock as clocks
from nodewise.base import cooperative_scheduling
from nodewise.base.clock import SystemClock
from nodewise.engine import object_feed
from nodewise.engine.agent_chain import AgentChain
from nodewise.engine.decision import DecisionRing
from nodewise.engine.leader_controller_loop import LeaderLoop
from nodewise.engine.pod_requeueing import Requeuer
from nodewise.engine.snapshot_cache import SnapshotCache
from nodewise.extender.routes import Extender, RequestHandler
from nodewise.kube.reflector import Reflector
from nodewise.kube.resource_kinds import NAMESPACES, NODES, PODS, Resource
from nodewise.metrics.custom_metrics_api import CustomMetricsSource
from nodewise.metrics.metrics_source import RefreshOptions
from nodewise.metrics.refresher import MetricsRefresher
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.scheduling_model.in_memory_api import FakeApi
from nodewise.server.application import Request
from tests.unit.agents.fake_controller_handle import build_handle

COUNT: Final = 5000
MAX_LINES: Final = 4 * COUNT
METRICS: Final = (
    generated_cluster_objects.TEMPERATURE,
    generated_cluster_objects.ERRORS,
    generated_cluster_objects.POWER,
)
NAMES: Final = generated_cluster_objects.names(COUNT)
PERIOD_S: Final = 0.5
OURS: Final = str(Path(nodewise.__file__).parent)
NOT_MEASURED: Final = str(Path(OURS, "scheduling_model"))
"""The API server in memory is not part of the extender."""
TASPOLICIES: Final = Resource("telemetry.intel.com", "v1alpha1", "taspolicies", "TASPolicy")
KIND: Final = agents.load("telemetry")
OPTIONS: Final = {"telemetry": KIND.options()}
LABELLED: Final = [
    {
        "metricname": generated_cluster_objects.TEMPERATURE,
        "operator": "GreaterThan",
        "target": 80,
        "labels": ["heat=high"],
    }
]


class LineCounter:
    """Counts nodewise's lines in each step, and keeps the maximum of the steps with too many lines."""

    def __init__(self) -> None:
        self.steps = 0
        self.too_many: dict[str, int] = {}
        """Number of lines by the function that ran most of them."""
        self._by_function: dict[str, int] = {}

    def run(self, callback: Callable[..., Any], *arguments: Any) -> Any:
        """Run a callback as a step."""
        before = sys.gettrace()
        self._by_function = {}
        sys.settrace(self._called)
        try:
            return callback(*arguments)
        finally:
            sys.settrace(before)
            self._note(self._by_function)

    def _note(self, lines_by_function: dict[str, int]) -> None:
        self.steps += 1
        if (ran := sum(lines_by_function.values())) >= MAX_LINES:
            name = max(lines_by_function, key=lambda function: lines_by_function[function])
            self.too_many[name] = max(ran, self.too_many.get(name, 0))

    def _called(self, frame: FrameType, _event: str, _given: Any) -> Any:
        file = frame.f_code.co_filename
        return self._line if file.startswith(OURS) and not file.startswith(NOT_MEASURED) else None

    def _line(self, frame: FrameType, _event: str, _given: Any) -> Any:
        name = frame.f_code.co_qualname
        self._by_function[name] = self._by_function.get(name, 0) + 1
        return self._line


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that counts the lines of each step, of tasks and timers."""

    def __init__(self, lines: LineCounter) -> None:
        super().__init__()
        self._lines = lines

    def call_soon(self, callback: Any, *arguments: Any, context: Any = None) -> Any:
        return super().call_soon(self._lines.run, callback, *arguments, context=context)

    def call_at(self, when: float, callback: Any, *arguments: Any, context: Any = None) -> Any:
        return super().call_at(when, self._lines.run, callback, *arguments, context=context)


def cluster() -> FakeApi:
    """5,000 nodes, waiting pods, policies, and metrics with which half of the nodes violate a rule."""
    api = FakeApi(TASPOLICIES)
    for name in NAMES:
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
        api.put(NODES, {"metadata": metadata, "status": {"addresses": []}})
    labels = {"nodewise.io/trusted": "true"}
    api.put(NAMESPACES, {"metadata": {"name": generated_cluster_objects.NAMESPACE, "labels": labels}})
    for policy in [
        generated_cluster_objects.policies()[0],
        generated_cluster_objects.policy("hot", {"labeling": {"rules": LABELLED}}),
    ]:
        api.put(TASPOLICIES, policy)
    for number in range(10):
        api.put(PODS, generated_cluster_objects.pod(number))
    api.raw["/apis/custom.metrics.k8s.io"] = msgspec.json.encode({"preferredVersion": {"version": "v1beta2"}})
    put_metrics(api, 0)
    return api


def put_metrics(api: FakeApi, seed: int) -> None:
    """Set other values for all nodes."""
    now = clocks.format_rfc3339(SystemClock().now()).encode()
    for metric in METRICS:
        body = generated_cluster_objects.answer(metric, NAMES, seed).replace(
            generated_cluster_objects.TIMESTAMP_PLACEHOLDER, now
        )
        api.raw[f"/apis/custom.metrics.k8s.io/v1beta2/nodes/%2A/{metric}"] = body


class ExtenderWithoutSockets:
    """All components of an extender, connected as in `cli.extender.wire_extender`, without sockets."""

    def __init__(self, api: FakeApi) -> None:
        clock, self.registry = SystemClock(), MetricsRegistry()
        self.feed = object_feed.watch_cluster(
            api,
            object_feed.data_requirements([KIND], OPTIONS),
            clock,
            self.registry,
            "nodewise",
        )
        self.refresher = MetricsRefresher(
            [CustomMetricsSource(api)], RefreshOptions(sync_period_s=PERIOD_S), clock, self.registry
        )
        states = {"telemetry": KIND.state(OPTIONS["telemetry"], 60.0)}
        self.snapshot_cache = SnapshotCache(
            states, self.feed.stores, self.refresher, clock, self.registry, PERIOD_S
        )
        self.refresher.subscribe(self.snapshot_cache.touch)
        handle = build_handle(api, self.feed.objects, self.feed.nodes, clock, self.registry)
        chain = AgentChain([KIND.agent(OPTIONS["telemetry"])])
        waiting = object_feed.waiting_pods_target([KIND], chain)
        self.pods = Reflector(api, waiting, clock, self.registry, random.random)
        waker = Requeuer(chain, self.pods.store, handle, PERIOD_S)
        controller = KIND.controller(OPTIONS["telemetry"], handle)
        assert controller is not None
        self.leading = LeaderLoop(
            [controller, waker], lambda: self.snapshot_cache.snapshot, lambda: True, clock
        )
        self.snapshot_cache.on_publish(self.leading.notify)
        ring = DecisionRing()
        self.extender = Extender(
            RequestHandler([KIND], OPTIONS),
            lambda *_: self.snapshot_cache.snapshot,
            ring,
            clock,
            self.registry,
        )

    def tasks(self) -> list[asyncio.Task[None]]:
        running = [*(task() for task in self.feed.tasks), self.pods.run(), self.refresher.run()]
        running += [self.snapshot_cache.run(), self.leading.run(PERIOD_S)]
        return [asyncio.create_task(coroutine) for coroutine in running]

    async def send_requests(self) -> None:
        """Send a filter and a prioritize request."""
        bodies = generated_cluster_objects.requests(NAMES, 2)
        routes = {route.path: route for route in self.extender.routes()}
        for path, body in zip(("/scheduler/filter", "/scheduler/prioritize"), bodies, strict=True):
            request = Request("POST", path, {}, body, "application/json", "")
            response = routes[path].handler(request)
            assert response.status == 200
            response.completion()
            await asyncio.sleep(0)


def count_labelled(api: FakeApi) -> int:
    key = "telemetry.aware.scheduling.hot/heat"
    return sum(key in node["metadata"]["labels"] for node in api.objects(NODES).values())


async def run_with_refreshes(extender: ExtenderWithoutSockets, api: FakeApi) -> None:
    """Run from the first list until all labels are written and metrics are refreshed, with requests in between."""
    tasks = extender.tasks()
    while count_labelled(api) < COUNT * 0.3:
        await asyncio.sleep(0.05)
    put_metrics(api, 1)
    generation = extender.snapshot_cache.snapshot.generation
    while extender.snapshot_cache.snapshot.generation < generation + len(METRICS):
        await extender.send_requests()
        await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_no_step_of_the_event_loop_goes_through_all_nodes() -> None:
    api, lines = cluster(), LineCounter()
    with asyncio.Runner(loop_factory=lambda: CountingLoop(lines)) as runner:
        runner.run(run_with_refreshes(ExtenderWithoutSockets(api), api))
    assert lines.steps > 100
    assert lines.too_many == {}


def test_a_loop_over_all_nodes_would_be_seen() -> None:
    lines = LineCounter()
    lines.run(iterate_at_once, COUNT // 2)
    assert lines.too_many == {}
    lines.run(iterate_at_once, 2 * COUNT)
    assert lines.too_many.keys() == {"run_without_pauses"}


def iterate_at_once(count: int) -> None:
    """Iterate over `count` items in one step."""
    cooperative_scheduling.run_without_pauses(None for _ in range(count))
