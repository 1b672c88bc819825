"""A pod that every node rejected is bound soon after a node recovers; without waiting pods nothing is written."""

import time
from pathlib import Path

from nodewise.engine import pod_requeueing
from tests import plain_http
from tests.cluster import (
    api_server_front,
    device_objects,
    extender_process,
    gpu_cluster,
    kubernetes_objects,
)
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import ExtenderProcess, heated, pod
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.test_network_faults import through

PERIOD_S = 0.5
EVENTS_PER_GAIN = pod_requeueing.TRIES
TRIES = 3
"""Number of attempts, since a stalled machine may spoil one."""
WRITES = ("create", "patch", "delete")
"""All write verbs except `replace`, with which the leader renews its Lease."""


def writes(running: ExtenderProcess) -> float:
    """The number of write requests so far, except renewals of the Lease."""
    lines = plain_http.get(f"{running.health}/metrics").text.splitlines()
    counters = [line for line in lines if line.startswith("nodewise_kube_requests_total{")]
    return sum(
        float(line.split()[1]) for line in counters if any(f'verb="{verb}"' in line for verb in WRITES)
    )


def test_a_pod_is_bound_within_5_s_and_a_period_of_the_heal(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> None:
    heated(sandbox, metrics, {"a": 90, "b": 90})
    with extender_process.extender(plane, tmp_path) as running:
        running.wait_fetched("heat")
        running.wait_leading()
        with plane.start_scheduler({"extenders": [running.entry()]}):
            sandbox.pods(pod("web-1"), pod("web-2"))
            sandbox.expect_event("web-1")
            sandbox.expect_event("web-2")
            took_s = [_healed(sandbox, metrics)]
            while took_s[-1] >= 5 + PERIOD_S and len(took_s) < TRIES:
                _sickened(sandbox, metrics, running)
                took_s.append(_healed(sandbox, metrics))
        assert took_s[-1] < 5 + PERIOD_S, took_s
        assert len(running.wait_events("woken")) <= 2 * len(took_s) + sum(took_s)


def test_pod_is_bound_when_the_only_node_that_it_selects_recovers_while_another_node_passes(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> None:
    """Nothing else happens in the cluster, so without nodewise the pod waits for five minutes."""
    heated(sandbox, metrics, {"a": 90, "b": 10})
    sandbox.api.patch("/api/v1/nodes/a", {"metadata": {"labels": {"disk": "ssd"}}})
    waiting = pod("web")
    waiting["spec"]["nodeSelector"] = {"disk": "ssd"}
    with extender_process.extender(plane, tmp_path) as running:
        running.wait_fetched("heat")
        running.wait_leading()
        with plane.start_scheduler({"extenders": [running.entry()]}):
            sandbox.pods(waiting)
            sandbox.expect_rejected("web")
            wait("the new pod is requeued", lambda: len(running.events("woken")) == EVENTS_PER_GAIN or None)
            metrics.set("heat", {"a": 10, "b": 10})
            assert sandbox.expect_bound("web") == "a"
            assert len(running.events("woken")) <= 2 * EVENTS_PER_GAIN


def _healed(sandbox: Sandbox, metrics: FakeCustomMetricsApi) -> float:
    """The seconds until two pending pods are bound to a node that recovers."""
    time.sleep(3)  # longer than any retry by which kube-scheduler itself follows a rejection
    sandbox.expect_stays_unbound("web-1", 1)
    healed_s = time.monotonic()
    metrics.set("heat", {"a": 10, "b": 90})
    assert sandbox.expect_bound("web-1") == "a"
    assert sandbox.expect_bound("web-2") == "a"
    return time.monotonic() - healed_s


def _sickened(sandbox: Sandbox, metrics: FakeCustomMetricsApi, running: ExtenderProcess) -> None:
    """Restores the state before the recovery: two pods for which all nodes are rejected."""
    for name in ("web-1", "web-2"):
        sandbox.api.delete(f"/api/v1/namespaces/{sandbox.namespace}/pods/{name}")
        wait(f"{name} is gone", lambda name=name: True if sandbox.pod(name) is None else None)  # type: ignore[misc]
    metrics.set("heat", {"a": 90, "b": 90})
    wait("a is rejected", lambda: running.rejects(sandbox.namespace, "a") or None)
    sandbox.pods(pod("web-1"), pod("web-2"))
    sandbox.expect_rejected("web-1")
    sandbox.expect_rejected("web-2")


def test_pod_is_bound_after_nodewise_sees_a_device_class_later_than_kube_scheduler(
    plane: ControlPlane, sandbox: Sandbox, tmp_path: Path
) -> None:
    """nodewise passes another node all the time, which the pod does not select."""
    gpu = "nvidia.com/gpu"
    sandbox.nodes(kubernetes_objects.node("driver", labels={"form": "driver"}))
    sandbox.nodes(kubernetes_objects.node("plugin", extra={gpu: "4"}))
    sandbox.create(device_objects.resource_slice("driver", [device_objects.device("gpu-0")]))
    waiting = kubernetes_objects.pod("late", limits={gpu: "1"})
    waiting["spec"]["nodeSelector"] = {"form": "driver"}
    user = gpu_cluster.user(plane)
    with api_server_front.serving(plane.url, plane.authority.client_context(user.pair)) as front:
        account = through(user, front.kubeconfig(user.kubeconfig, tmp_path))
        with gpu_cluster.extender(plane, tmp_path, "--gpu-profile=nvidia", by=account) as running:
            running.wait_leading()
            with plane.start_scheduler(
                {"extenders": [running.entry(bindVerb="bind", managedResources=[{"name": gpu}])]}
            ):
                sandbox.pods(waiting)
                sandbox.expect_event("late")
                front.held_path = device_objects.CLASS_PATH
                sandbox.create(device_objects.device_class(extended_resource=gpu))
                wait(
                    "nodewise rejects the pod",
                    lambda: "no DeviceClass names it" in sandbox.expect_rejected("late") or None,
                )
                front.held_path = ""
                assert sandbox.expect_bound("late") == "driver"


def _settled_writes(running: ExtenderProcess) -> float:
    """The number of writes so far, after six periods without a write."""
    seen = [-1.0, writes(running)]
    while seen[-1] != seen[-2]:
        assert len(seen) < 20, seen
        time.sleep(6 * PERIOD_S)
        seen.append(writes(running))
    return seen[-1]


def test_nothing_is_written_while_no_pod_waits(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> None:
    heated(sandbox, metrics, {"a": 90, "b": 10})
    with extender_process.extender(plane, tmp_path) as running:
        running.wait_fetched("heat")
        running.wait_leading()
        wait("the status is written", lambda: extender_process.status(sandbox) or None)
        before = _settled_writes(running)
        assert before > 0, "the status at least"
        sandbox.pods(
            kubernetes_objects.running_on("b", kubernetes_objects.pod("runs")), pod("unseen")
        )  # no scheduler runs, so the pod waits without an attempt
        for heat in (10, 90, 10, 90):
            metrics.set("heat", {"a": heat, "b": 10})
            time.sleep(2 * PERIOD_S)
        assert writes(running) == before
        assert running.events("woken") == []
