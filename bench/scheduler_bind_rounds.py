"""One round on the control plane: pods are pending, a kube-scheduler starts, a watch reports when each pod is bound."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import httpx2
import msgspec
from tests.cluster import kubernetes_objects
from tests.cluster.api_client import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import Sandbox, wait

CONCURRENCY: Final = 8
"""Concurrent requests while objects are created."""
EXCLUDED_SHARE: Final = 0.1
"""Share of the first bindings that the rate excludes: connections are opened, caches fill."""
CONNECTION: Final = {"qps": 5000, "burst": 5000}
"""kube-scheduler's client limits, high enough not to limit the rate; the defaults are 50 and 100."""


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
    reopened: int
    """Number of times that the watch was reopened, because it was read too slowly: then times are late."""


class BindWatch:
    """Times and nodes of bindings and the rejected pods, from the events of a watch."""

    def __init__(self) -> None:
        self.at_s: dict[str, float] = {}
        self.node_of: dict[str, str] = {}
        self.rejected: set[str] = set()
        self.reopened = 0
        self.ended = ""

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
        watch.reopened,
    )


def run_concurrently(do: Callable[[Object], Any], items: Sequence[Object]) -> None:
    """Call `do` for all items concurrently; raises the first exception."""
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        list(pool.map(do, items))


def bind_pods(
    sandbox: Sandbox, pods: int, policy: str, extenders: Sequence[Object], deadline_s: float
) -> BindWatch:
    """Create pods of a policy, let a new kube-scheduler bind them all, and delete them."""
    plane = sandbox.plane
    path = f"/api/v1/namespaces/{sandbox.namespace}/pods"
    labels = {"app": "web", "telemetry-policy": policy}
    wanted = [kubernetes_objects.pod(f"web-{number:05d}", labels=labels) for number in range(pods)]
    run_concurrently(lambda pod: plane.api.request("POST", path, json=pod), wanted)
    with watching(plane, path) as watch:
        config = {"clientConnection": CONNECTION, "extenders": list(extenders)}
        scheduler = plane.start_scheduler(config, verbosity=0)
        try:
            wait(
                "all pods are bound",
                lambda: watch.is_done(pods) or None,
                deadline_s,
                watch.progress,
            )
        finally:
            scheduler.stop()
    plane.api.delete(path)
    wait("all pods are gone", lambda: not plane.api.get(path, limit="1")["items"] or None, 60)
    return watch


@contextlib.contextmanager
def watching(plane: ControlPlane, path: str) -> Iterator[BindWatch]:
    """Watch the pods at a path until the block ends."""
    watch, opened = BindWatch(), threading.Event()
    context = plane.authority.client_context(plane.admin.pair)
    version = plane.api.get(path, limit="1")["metadata"]["resourceVersion"]
    with httpx2.Client(base_url=plane.url, verify=context, timeout=None, trust_env=False) as client:

        def follow() -> None:
            since = version
            try:
                while True:  # the API server ends slow watches; continue at the last version
                    query = {"watch": "1", "resourceVersion": since}
                    with client.stream("GET", path, params=query) as lines:
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
                watch.ended = repr(error)  # also when the block ends

        threading.Thread(target=follow, daemon=True).start()
        if not opened.wait(10):
            raise RuntimeError("the watch on pods did not open")
        yield watch
