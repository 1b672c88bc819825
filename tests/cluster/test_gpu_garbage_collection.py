"""Garbage collection by the leader and the allocations of each replica, on a real API server."""

import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from nodewise.extender.binding import RESERVATION_DROPPED_ANNOTATION
from tests.cluster import asgi_server_thread, gpu_agent_replicas, gpu_cluster, kubernetes_objects
from tests.cluster.api_client import ApiError, Object
from tests.cluster.asgi_server_thread import Receive, Send
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import OWN_NAMESPACE, ExtenderProcess
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.conformance.tas.faulty_proxy import TasFaultyProxy

LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{OWN_NAMESPACE}/leases"
CENSUS = f"/api/v1/namespaces/{OWN_NAMESPACE}/configmaps/nodewise-gpu-typical-pods"
UNSCHEDULED = {"schedulerName": "nobody"}


def put_record(sandbox: Sandbox, node: str, **entries: Object) -> None:
    """Writes an allocation record, as a process that has ended may have left it."""
    sandbox.api.create(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": f"gpu-{node}",
                "namespace": OWN_NAMESPACE,
                "labels": {"nodewise.io/ledger": "gpu"},
                "annotations": {"nodewise.io/holdings": json.dumps(entries)},
            },
        }
    )


def entry(pod: str, seen: str) -> Object:
    return {"pod": pod, "cards": "card0", "seen": seen, "charged": [{f"{gpu_cluster.PREFIX}i915": 1}]}


def path(sandbox: Sandbox, pod: str) -> str:
    return f"/api/v1/namespaces/{sandbox.namespace}/pods/{pod}"


def test_a_claim_whose_bind_never_came_is_cleared_and_the_bind_refused_when_it_comes(
    plane: ControlPlane, sandbox: Sandbox, tmp_path: Path
) -> None:
    sandbox.nodes(gpu_cluster.node("g1", cards=1))
    waiting = gpu_cluster.pod("waiting")
    sandbox.pods(waiting | {"spec": waiting["spec"] | UNSCHEDULED})
    meta = (sandbox.pod("waiting") or {})["metadata"]
    put_record(sandbox, "g1", **{meta["uid"]: entry(f"{sandbox.namespace}/waiting", meta["resourceVersion"])})
    with (
        gpu_cluster.extender(plane, tmp_path) as served,
        plane.start_scheduler({"extenders": [gpu_cluster.entry(served)]}),
    ):
        wait("the entry is taken out", lambda: not gpu_cluster.allocation_record(sandbox, "g1") or None)
        assert RESERVATION_DROPPED_ANNOTATION in (sandbox.pod("waiting") or {})["metadata"]["annotations"]
        [event] = served.wait_events("claim_dropped")
        assert (event["pod"], event["why"]) == (f"{sandbox.namespace}/waiting", "unbound")
        late = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {key: meta[key] for key in ("name", "namespace", "uid", "resourceVersion")},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "g1"},
        }
        with pytest.raises(ApiError) as refused:
            sandbox.api.request("POST", f"{path(sandbox, 'waiting')}/binding", json=late)
        assert refused.value.code == 409
        sandbox.pods(gpu_cluster.pod("next"))
        assert sandbox.expect_bound("next") == "g1"


def test_the_ledger_of_a_node_that_is_gone_goes(
    plane: ControlPlane, sandbox: Sandbox, tmp_path: Path
) -> None:
    sandbox.nodes(gpu_cluster.node("g1"))
    sandbox.pods(kubernetes_objects.running_on("g1", gpu_cluster.pod("runs")))
    meta = (sandbox.pod("runs") or {})["metadata"]
    put_record(sandbox, "g1", **{meta["uid"]: entry(f"{sandbox.namespace}/runs", meta["resourceVersion"])})
    put_record(sandbox, "gone", somebody=entry(f"{sandbox.namespace}/left", "1"))
    with gpu_cluster.extender(plane, tmp_path):
        wait("the record is deleted", lambda: sandbox.api.find(f"{LEASES}/gpu-gone") is None or None)
    assert list(gpu_cluster.allocation_record(sandbox, "g1")) == [meta["uid"]]


def counted_pods(sandbox: Sandbox) -> int:
    """The number of pods in the demand histogram."""
    histogram = sandbox.api.find(CENSUS) or {"data": {}}
    days = [json.loads(text) for key, text in histogram["data"].items() if key.startswith("day-")]
    return sum(row["pods"] for rows in days for row in rows)


def test_the_pods_that_come_are_counted_once_whoever_leads(
    plane: ControlPlane, sandbox: Sandbox, tmp_path: Path
) -> None:
    sandbox.api.delete(CENSUS)
    sandbox.nodes(gpu_cluster.node("g1", shares=10))
    sandbox.pods(gpu_cluster.pod("one"), gpu_cluster.pod("two"), kubernetes_objects.pod("plain"))
    with gpu_cluster.extender(plane, tmp_path):
        wait("the pods are counted", lambda: counted_pods(sandbox) == 2 or None)
    time.sleep(1.1)  # creation timestamps have a resolution of one second
    with gpu_cluster.extender(plane, tmp_path) as served:
        served.wait_leading()
        sandbox.pods(gpu_cluster.pod("three"))
        wait("another pod is counted", lambda: counted_pods(sandbox) == 3 or None)


class LossyTransport(TasFaultyProxy):
    """A proxy that drops selected lines of watches."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.swallows: list[bytes] = []
        """The texts that a line must contain to be dropped."""
        self.swallowed = 0

    async def _stream(self, path: str, response: Any, receive: Receive, send: Send) -> None:
        await super()._stream(path, _LossyLines(response, self), receive, send)

    def is_lost(self, line: bytes) -> bool:
        lost = bool(self.swallows) and all(part in line for part in self.swallows)
        self.swallowed += lost
        return lost


class _LossyLines:
    def __init__(self, response: httpx2.Response, lossy: LossyTransport) -> None:
        self._response, self._lossy = response, lossy
        self.status_code = response.status_code

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        rest = b""
        async for piece in self._response.aiter_bytes():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if not self._lossy.is_lost(line):
                    yield line + b"\n"


@contextlib.contextmanager
def lossy_extender(
    plane: ControlPlane, folder: Path, *more: str
) -> Iterator[tuple[ExtenderProcess, LossyTransport]]:
    """An extender whose connection to the API server loses selected watch events."""
    user = gpu_cluster.user(plane)
    lossy = LossyTransport(plane.url, plane.authority.client_context(user.pair))
    with asgi_server_thread.serving(lossy) as address:
        user.kubeconfig = asgi_server_thread.kubeconfig(folder, address)
        with gpu_cluster.extender(plane, folder, *more, by=user) as served:
            yield served, lossy


def test_an_event_that_was_missed_is_found_and_mended(
    plane: ControlPlane, sandbox: Sandbox, tmp_path: Path
) -> None:
    sandbox.nodes(gpu_cluster.node("g1"), gpu_cluster.node("g2"))
    made = gpu_cluster.pod("missed")
    made["metadata"]["annotations"] = {gpu_cluster.CARDS: "card0"}
    sandbox.pods(kubernetes_objects.running_on("g1", made))
    put_record(sandbox, "g2")

    def stir(number: list[int]) -> None:
        """Causes watch events, since an idle watch gets only a bookmark per minute."""
        number[0] += 1
        touched = {"metadata": {"annotations": {"touched": str(number[0])}}}
        for object_path in ("/api/v1/nodes/g2", f"{LEASES}/gpu-g2", path(sandbox, "other")):
            sandbox.api.patch(object_path, touched)

    sandbox.pods(kubernetes_objects.running_on("g2", kubernetes_objects.pod("other")))
    with lossy_extender(plane, tmp_path, "--gpu-check-period=3s") as (served, lossy):
        assert "g1" in gpu_agent_replicas.held_gpus(served)
        lossy.swallows = [b'"DELETED"', b'"missed"']
        sandbox.api.delete(path(sandbox, "missed"))
        sandbox.expect_gone("missed")
        wait("the event is dropped", lambda: lossy.swallowed or None)
        assert "g1" in gpu_agent_replicas.held_gpus(served)
        count = [0]

        def mended() -> bool | None:
            stir(count)
            return "g1" not in gpu_agent_replicas.held_gpus(served) or None

        wait("the allocations are corrected", mended, 180)
        assert {event["node"] for event in served.wait_events("books_differ")} == {"g1"}
