"""A tenant whose policy changes its verdict on all nodes all the time does not delay the labels of another tenant."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests import short_and_long_case_counts
from tests.cluster import extender_process, kubernetes_objects, label_watch, namespace_sandboxes, native_mode
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.label_watch import LabelWatch
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import policy

COUNT: Final = short_and_long_case_counts.of(300, 5000)
QPS: Final = 50
"""The default. All nodes are written in 6 s, or in 100 s."""
VICTIM_NODES: Final = 10
MOST_BEFORE: Final = 175
"""Labels that may change before the victim's are complete: those of a step in progress (2 s), and one of the other
tenant for each of the victim."""


def avoiding(sandbox: Sandbox, metric: str) -> str:
    """Creates a policy that avoids large values of a metric, and returns its uid."""
    spec = {"podSelector": {}, "avoid": [{"metric": metric, "above": 50}]}
    uid: str = sandbox.put(policy(spec, name=metric))["metadata"]["uid"]
    return uid


def position_after_request(sandbox: Sandbox, metrics: FakeCustomMetricsApi, labels: LabelWatch) -> int:
    """Waits until the values of the victim's metric have been read, and returns the position of a later change.

    A change by the test marks the position, since the watch may be late.
    """
    requests = metrics.asked.count("calm")
    wait("the values are read", lambda: metrics.asked.count("calm") > requests or None)
    sandbox.api.patch("/api/v1/nodes/n0000", {"metadata": {"labels": {"position": ""}}})
    wait("the change is seen", lambda: labels.of("position") or None)
    return labels.changes.index(labels.of("position")[0])


def test_labels_of_a_tenant_do_not_wait_for_those_of_another_one(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, native_account: User, tmp_path: Path
) -> None:
    nodes = [f"n{number:04}" for number in range(COUNT)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(sandbox.create, map(kubernetes_objects.node, nodes)))
    flapping = avoiding(sandbox, "flapping")
    ended = threading.Event()

    def flap() -> None:
        for value in itertools.cycle((90, 10)):
            metrics.set("flapping", dict.fromkeys(nodes, value))
            if ended.wait(2):
                break

    metrics.set("calm", dict.fromkeys(nodes, 10))
    options = ("--native-mode", "--namespace=nodewise", f"--kube-qps={QPS}", "--kube-burst=1")
    thread = threading.Thread(target=flap)
    thread.start()
    with (
        namespace_sandboxes.created(plane) as victim,
        label_watch.watch_labels(plane) as labels,
        extender_process.controller(native_account, tmp_path, *options),
    ):
        try:
            calm = native_mode.LABEL_PREFIX + avoiding(victim, "calm")
            wait("labels change", lambda: len(labels.changes) > QPS or None)
            # the last nodes by name, which are written last without fairness
            metrics.set("calm", {node: 90 if node in nodes[-VICTIM_NODES:] else 10 for node in nodes})
            before = position_after_request(sandbox, metrics, labels)
            wait("the victim's labels", lambda: len(labels.of(calm)) == VICTIM_NODES or None)
            position = labels.changes.index(labels.of(calm)[-1])
        finally:
            ended.set()
            thread.join()
        assert position - before < MOST_BEFORE
        # at last, all nodes change at once
        metrics.set("flapping", dict.fromkeys(nodes, 90))

        def violating() -> int:
            selector = f"{native_mode.LABEL_PREFIX}{flapping}=violating"
            return len(plane.api.get("/api/v1/nodes", labelSelector=selector)["items"])

        wait("all nodes are labelled", lambda: violating() == COUNT or None, 60 + 2 * COUNT / QPS, violating)
