"""One round on the control plane: pods wait, a kube-scheduler starts, a watch tells when each pod was bound."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import httpx2
import msgspec
from tests.cluster import objects
from tests.cluster.api import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.test_namespaces import Sandbox, wait

AT_ONCE: Final = 8
"""Requests in flight while objects are made."""
LEFT_OUT_SHARE: Final = 0.1
"""The first bindings are not counted: connections are opened, caches fill."""
CONNECTION: Final = {"qps": 5000, "burst": 5000}
"""Of kube-scheduler, so that its own request rate is not the limit; its default is 50 and 100."""


class Condition(msgspec.Struct):
    type: str
    status: str


class Metadata(msgspec.Struct):
    name: str = ""
    resource_version: str = msgspec.field(name="resourceVersion", default="")


class Spec(msgspec.Struct):
    node: str = msgspec.field(name="nodeName", default="")


class Status(msgspec.Struct):
    conditions: list[Condition] = []


class Pod(msgspec.Struct):
    metadata: Metadata
    spec: Spec = msgspec.field(default_factory=Spec)
    status: Status = msgspec.field(default_factory=Status)


class Event(msgspec.Struct):
    type: str
    object: Pod


class Bound(NamedTuple):
    """What came of a round."""

    rate: float
    """Pods a second, without the first ones."""
    whole_rate: float
    """The same with the first ones."""
    pods: int
    seconds: float
    """From the first binding to the last."""
    failed: int
    """Pods of which kube-scheduler said at least once that it found no node."""
    nodes: int
    """How many nodes got a pod."""
    reopened: int
    """How often the watch was, because we read too slowly: then moments are late."""


class Bindings:
    """When each pod was bound and where, and which pods were turned down, as a watch tells of it."""

    def __init__(self) -> None:
        self.at_s: dict[str, float] = {}
        self.node_of: dict[str, str] = {}
        self.turned_down: set[str] = set()
        self.reopened = 0
        self.ended = ""

    def see(self, line: str) -> str:
        """Takes in one event; the version to go on from. RuntimeError if the server says that it lost track."""
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
            self.turned_down.add(name)
        return event.object.metadata.resource_version

    def is_done(self, pods: int) -> bool:
        """Whether so many are bound. RuntimeError if the watch cannot tell any more."""
        if self.ended and len(self.at_s) < pods:
            raise RuntimeError(f"the watch on pods ended: {self.ended}; {self.told()}")
        return len(self.at_s) >= pods

    def told(self) -> str:
        return f"{len(self.at_s)} bound, {len(self.turned_down)} turned down at least once"


_EVENT = msgspec.json.Decoder(Event)


def rate(times_s: Iterable[float], left_out_share: float = 0.0) -> float:
    """Pods a second from the first of these moments to the last; needs two that differ."""
    times = sorted(times_s)
    kept = times[int(len(times) * left_out_share) :]
    return (len(kept) - 1) / (kept[-1] - kept[0])


def summary(seen: Bindings) -> Bound:
    times = seen.at_s.values()
    return Bound(
        round(rate(times, LEFT_OUT_SHARE), 1),
        round(rate(times), 1),
        len(times),
        round(max(times) - min(times), 2),
        len(seen.turned_down),
        len(set(seen.node_of.values())),
        seen.reopened,
    )


def at_once(do: Callable[[Object], Any], things: Sequence[Object]) -> None:
    """Does it with all things, some at a time; raises what any of them raised."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(do, things))


def round_of(
    sandbox: Sandbox, pods: int, policy: str, extenders: Sequence[Object], deadline_s: float
) -> Bindings:
    """Makes pods of a policy, has a fresh kube-scheduler bind them all, and takes them away again."""
    plane = sandbox.plane
    place = f"/api/v1/namespaces/{sandbox.namespace}/pods"
    labels = {"app": "web", "telemetry-policy": policy}
    wanted = [objects.pod(f"web-{number:05d}", labels=labels) for number in range(pods)]
    at_once(lambda pod: plane.api.request("POST", place, json=pod), wanted)
    with watching(plane, place) as seen:
        config = {"clientConnection": CONNECTION, "extenders": list(extenders)}
        scheduler = plane.start_scheduler(config, verbosity=0)
        try:
            wait("all pods are bound", lambda: seen.is_done(pods) or None, deadline_s, seen.told)
        finally:
            scheduler.stop()
    plane.api.delete(place)
    wait("all pods are gone", lambda: not plane.api.get(place, limit="1")["items"] or None, 60)
    return seen


@contextlib.contextmanager
def watching(plane: ControlPlane, place: str) -> Iterator[Bindings]:
    """A watch on the pods of a place, from now until the block is left."""
    seen, opened = Bindings(), threading.Event()
    context = plane.authority.client_context(plane.admin.pair)
    version = plane.api.get(place, limit="1")["metadata"]["resourceVersion"]
    with httpx2.Client(base_url=plane.url, verify=context, timeout=None, trust_env=False) as client:

        def follow() -> None:
            since = version
            try:
                while True:  # the API server ends the watch of who reads too slowly; it goes on where it was
                    query = {"watch": "1", "resourceVersion": since}
                    with client.stream("GET", place, params=query) as lines:
                        opened.set()
                        for line in lines.iter_lines():
                            since = seen.see(line)
                    seen.reopened += 1
            except (
                httpx2.HTTPError,
                httpx2.StreamError,
                msgspec.MsgspecError,
                RuntimeError,
                OSError,
            ) as error:
                seen.ended = repr(error)  # leaving the block is one

        threading.Thread(target=follow, daemon=True).start()
        if not opened.wait(10):
            raise RuntimeError("the watch on pods did not open")
        yield seen
