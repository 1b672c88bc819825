"""One round on the control plane: pods are pending, a kube-scheduler starts, a watch reports when each pod is bound."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2
import msgspec
from tests.cluster.api_client import Object
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait

from bench import benchmark_servers, generated_cluster_objects
from bench.alternating_rounds import of_rounds
from bench.progress_lines import report_progress_line

CONCURRENCY: Final = 8
"""Concurrent requests while objects are created."""
EXCLUDED_SHARE: Final = 0.1
"""Share of the first bindings that the rate excludes: connections are opened, caches fill."""
DEFAULT_LIMITS: Final[Object] = {}
"""kube-scheduler's default client limits: 50 requests per second, and 100 at once."""
RAISED_LIMITS: Final[Object] = {"qps": 5000, "burst": 5000}
"""Client limits that do not limit the rate."""


SLOWEST_RATE: Final = 2.0
"""Pods per second; a slower round is aborted."""


_IDLE_S: Final = 2.0  # a watch without events is reopened after this time


class WatchedPodCondition(msgspec.Struct):
    type: str
    status: str


class WatchedPodMetadata(msgspec.Struct):
    name: str = ""
    resource_version: str = msgspec.field(name="resourceVersion", default="")


class WatchedPodSpec(msgspec.Struct):
    node: str = msgspec.field(name="nodeName", default="")


class WatchedPodStatus(msgspec.Struct):
    conditions: list[WatchedPodCondition] = []


class WatchedPod(msgspec.Struct):
    metadata: WatchedPodMetadata
    spec: WatchedPodSpec = msgspec.field(default_factory=WatchedPodSpec)
    status: WatchedPodStatus = msgspec.field(default_factory=WatchedPodStatus)


class PodEvent(msgspec.Struct):
    type: str
    object: WatchedPod


class BindSummary(NamedTuple):
    """Summary of a round."""

    rate: float
    """Pods per second, without the first ones."""
    whole_rate: float
    """Pods per second, with the first ones."""
    pods: int
    seconds: float
    """Time from the first binding to the last."""
    failed: int
    """Pods that kube-scheduler reported as unschedulable at least once."""
    nodes: int
    """Number of nodes with a pod."""
    cpu_ms: float
    """CPU time of the scheduler per pod, without the first pods."""
    reopened: int
    """Number of times that the watch was reopened, because it was read too slowly: then times are late."""
    label_rate: float = 0.0
    """Labels of nodes that changed per second; 0 if none were changed on purpose."""
    batched: int = 0
    """Pods that were placed by the result of the pod before, where that was counted."""
    api_server_ms: float = 0.0
    """CPU time of the API server per pod, from before its creation until all are bound."""
    controller_ms: float = 0.0
    """CPU time of `nodewise controller` per pod in the same time and until the pods are deleted, if it runs."""
    profile: Mapping[str, float] = {}
    """By step of scheduling, its share of the scheduler's CPU time, where a profile was recorded."""


Rounds = dict[str, list[BindSummary]]
"""Rounds by contender, in order. The n-th rounds of all belong together."""


class BindBench(NamedTuple):
    """Inputs of every round."""

    plane: ControlPlane
    metrics: FakeCustomMetricsApi
    """Serves the metrics of `generated_cluster_objects`, which change every two seconds."""
    folder: Path
    names: Sequence[str]
    """Of the nodes."""
    pods: int
    limits: Object
    """`clientConnection` of kube-scheduler: `DEFAULT_LIMITS` or `RAISED_LIMITS`."""


class BindWatch:
    """Times and nodes of bindings and the rejected pods, from the events of a watch."""

    def __init__(self) -> None:
        self.at_s: dict[str, float] = {}
        self.node_of: dict[str, str] = {}
        self.rejected: set[str] = set()
        self.reopened = 0
        self.ended = ""
        self.cpu_ms = 0.0
        """CPU time of the scheduler per pod; 0 if it was not measured."""
        self.api_server_ms = 0.0

    def see(self, line: str) -> str:
        """Process one event and return its resource version. RuntimeError for an error event."""
        now, event = time.monotonic(), _EVENT.decode(line)
        if event.type == "ERROR":
            raise RuntimeError(line)
        name, node = event.object.metadata.name, event.object.spec.node
        if node and name not in self.at_s:
            self.at_s[name], self.node_of[name] = now, node
        if any(
            condition.type == "PodScheduled" and condition.status == "False"
            for condition in event.object.status.conditions
        ):
            self.rejected.add(name)
        return event.object.metadata.resource_version

    def is_done(self, pods: int) -> bool:
        """Whether that many pods are bound. RuntimeError if the watch ended before."""
        if self.ended and len(self.at_s) < pods:
            raise RuntimeError(f"the watch on pods ended: {self.ended}; {self.progress()}")
        return len(self.at_s) >= pods

    def progress(self) -> str:
        return f"{len(self.at_s)} bound, {len(self.rejected)} rejected at least once"


_EVENT = msgspec.json.Decoder(PodEvent)


def rate(times_s: Iterable[float], excluded_share: float = 0.0) -> float:
    """Pods per second between the first and the last of these times; needs two different times."""
    times = sorted(times_s)
    kept = times[int(len(times) * excluded_share) :]
    return (len(kept) - 1) / (kept[-1] - kept[0])


def summary(watch: BindWatch) -> BindSummary:
    times = watch.at_s.values()
    return BindSummary(
        round(rate(times, EXCLUDED_SHARE), 1),
        round(rate(times), 1),
        len(times),
        round(max(times) - min(times), 2),
        len(watch.rejected),
        len(set(watch.node_of.values())),
        round(watch.cpu_ms, 2),
        watch.reopened,
        api_server_ms=round(watch.api_server_ms, 2),
    )


def alternate(order: Sequence[str], count: int, measure: Callable[[str], BindSummary]) -> Rounds:
    """Measure `count` rounds of all contenders; every other round uses the reverse order."""
    rounds: Rounds = {name: [] for name in order}
    for number in range(count):
        for name in order if number % 2 == 0 else order[::-1]:
            report_progress_line(f"round {number + 1} of {count}, {name}: starting")
            bound = measure(name)
            rounds[name].append(bound)
            report_progress_line(f"round {number + 1} of {count}, {name}: {bound.rate:g} pods a second")
    return rounds


def median_rate(rounds: Rounds, name: str) -> float:
    """Pods per second of the median round of a contender."""
    return of_rounds((each.rate for each in rounds[name]), 1)


def median_cpu_ms(rounds: Rounds, name: str) -> float:
    """CPU time of the scheduler per pod, in the median round of a contender."""
    return of_rounds((each.cpu_ms for each in rounds[name]), 2)


def median_label_rate(rounds: Rounds, name: str) -> float:
    """Labels of nodes that changed per second, in the median round of a contender."""
    return of_rounds((each.label_rate for each in rounds[name]), 1)


def median_batched_share(rounds: Rounds, name: str) -> float:
    """The share of the pods that were batched, in the median round of a contender."""
    return of_rounds((each.batched / each.pods for each in rounds[name]), 2)


def median_ratio(rounds: Rounds, name: str, to: str) -> float:
    """The median of the rounds' ratios of two contenders."""
    pairs = zip(rounds[name], rounds[to], strict=True)
    return of_rounds((own.rate / other.rate for own, other in pairs), 2)


def count_rejected_nodes(watch: BindWatch, names: Sequence[str]) -> int:
    """Number of pods on nodes that a policy rejects, with the rules of `generated_cluster_objects`."""
    numbers = {name: number for number, name in enumerate(names)}
    return sum(generated_cluster_objects.is_rejected(numbers[node]) for node in watch.node_of.values())


def run_concurrently(do: Callable[[Object], Any], items: Sequence[Object]) -> None:
    """Call `do` for all items concurrently; raises the first exception."""
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        list(pool.map(do, items))


@contextlib.contextmanager
def new_scheduler(bench: BindBench, config: Object) -> Iterator[Process]:
    """Run a kube-scheduler with these fields of its configuration."""
    scheduler = bench.plane.start_scheduler({"clientConnection": bench.limits} | config, verbosity=0)
    try:
        yield scheduler
    finally:
        scheduler.stop()


def bind_pods(
    sandbox: Sandbox, pods: int, wanted: Callable[[str], Object], scheduler: AbstractContextManager[Process]
) -> BindWatch:
    """Create pods, let a scheduler bind them all, and delete them.

    `wanted` makes a pod from its name. A scheduler that does not run yet is started by entering its context.
    """
    plane = sandbox.plane
    path = f"/api/v1/namespaces/{sandbox.namespace}/pods"
    made = [wanted(f"web-{number:05d}") for number in range(pods)]
    deadline_s = 60 + pods / SLOWEST_RATE
    first = int(EXCLUDED_SHARE * pods)
    api_server = plane.processes[1]  # after etcd
    api_server_s = benchmark_servers.cpu_s(api_server)
    with watching(plane, path) as watch:
        run_concurrently(lambda pod: plane.api.request("POST", path, json=pod), made)
        with scheduler as process:
            wait("the first pods are bound", lambda: watch.is_done(first) or None, deadline_s, watch.progress)
            bound, cpu_s = len(watch.at_s), benchmark_servers.cpu_s(process)
            wait("all pods are bound", lambda: watch.is_done(pods) or None, deadline_s, watch.progress)
            watch.cpu_ms = 1000 * (benchmark_servers.cpu_s(process) - cpu_s) / max(pods - bound, 1)
            watch.api_server_ms = 1000 * (benchmark_servers.cpu_s(api_server) - api_server_s) / pods
    plane.api.delete(path)
    wait("all pods are gone", lambda: not plane.api.get(path, limit="1")["items"] or None, 60)
    return watch


@contextlib.contextmanager
def watching(plane: ControlPlane, path: str) -> Iterator[BindWatch]:
    """Watch the pods at a path until the block ends."""
    watch, opened, closing = BindWatch(), threading.Event(), threading.Event()
    context = plane.authority.client_context(plane.admin.pair)
    version = plane.api.get(path, limit="1")["metadata"]["resourceVersion"]
    # the thread ends before its connection is closed: otherwise it would read from the next one with that descriptor
    timeout = httpx2.Timeout(None, read=_IDLE_S)
    with httpx2.Client(base_url=plane.url, verify=context, timeout=timeout, trust_env=False) as client:

        def follow() -> None:
            since = version
            try:
                while not closing.is_set():  # the API server ends slow watches; continue at the last version
                    query = {"watch": "1", "resourceVersion": since}
                    with (
                        contextlib.suppress(httpx2.ReadTimeout),
                        client.stream("GET", path, params=query) as lines,
                    ):
                        opened.set()
                        for line in lines.iter_lines():
                            since = watch.see(line)
                        watch.reopened += 1
            except (
                httpx2.HTTPError,
                httpx2.StreamError,
                msgspec.MsgspecError,
                RuntimeError,
                OSError,
            ) as error:
                watch.ended = repr(error)

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            if not opened.wait(10):
                raise RuntimeError("the watch on pods did not open")
            yield watch
        finally:
            closing.set()
            thread.join()
