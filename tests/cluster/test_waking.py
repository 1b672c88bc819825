"""A pod that every node was too bad for is bound soon after one heals; nothing is written while nobody waits."""

import time
from pathlib import Path

import httpx2

from tests.cluster import objects, served
from tests.cluster.controlplane import ControlPlane
from tests.cluster.custom_metrics import CustomMetrics
from tests.cluster.sandbox import Sandbox, wait
from tests.cluster.served import Served, heated, pod

PERIOD_S = 0.5
WRITES = ("create", "patch", "delete")
"""All but `replace`, by which the leader keeps its Lease."""


def writes(running: Served) -> float:
    """How many writes it sent so far, but for its Lease."""
    lines = httpx2.get(f"{running.health}/metrics").text.splitlines()
    found = [line for line in lines if line.startswith("nodewise_kube_requests_total{")]
    return sum(float(line.split()[1]) for line in found if any(f'verb="{verb}"' in line for verb in WRITES))


def test_a_pod_is_bound_within_5_s_and_a_period_of_the_heal(
    plane: ControlPlane, corner: Sandbox, metrics: CustomMetrics, tmp_path: Path
) -> None:
    heated(corner, metrics, {"a": 90, "b": 90})
    with served.extender(plane, tmp_path) as running:
        running.wait_fetched("heat")
        running.wait_leading()
        with plane.start_scheduler({"extenders": [running.entry()]}):
            corner.pods(pod("web-1"), pod("web-2"))
            corner.expect_event("web-1")
            corner.expect_event("web-2")
            time.sleep(3)  # longer than any retry of kube-scheduler's own that follows a rejection
            corner.expect_stays_unbound("web-1", 1)
            healed = time.monotonic()
            metrics.set("heat", {"a": 10, "b": 90})
            assert corner.expect_bound("web-1", 5 + PERIOD_S) == "a"
            assert corner.expect_bound("web-2", 5 + PERIOD_S) == "a"
            assert time.monotonic() - healed < 5 + PERIOD_S
        assert 1 <= len(running.events("woken")) <= 3


def test_nothing_is_written_while_nobody_waits(
    plane: ControlPlane, corner: Sandbox, metrics: CustomMetrics, tmp_path: Path
) -> None:
    heated(corner, metrics, {"a": 90, "b": 10})
    with served.extender(plane, tmp_path) as running:
        running.wait_fetched("heat")
        running.wait_leading()
        wait("the status is written", lambda: served.status(corner) or None)
        time.sleep(1)
        before = writes(running)
        assert before > 0, "the status at least"
        corner.pods(
            objects.running_on("b", objects.pod("runs")), pod("unseen")
        )  # nobody schedules: it waits unseen
        for heat in (10, 90, 10, 90):
            metrics.set("heat", {"a": heat, "b": 10})
            time.sleep(2 * PERIOD_S)
        assert writes(running) == before
        assert running.events("woken") == []
