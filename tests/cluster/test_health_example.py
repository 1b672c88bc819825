"""The health example from end to end, as its page describes it: metrics, placement, labels, eviction and recovery.

Only the kubelet is missing. node exporter, Prometheus, prometheus-adapter, kube-scheduler, the controllers for
Deployments and the descheduler are real, with the files that an operator applies.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import plain_http
from tests.cluster import (
    descheduler_run,
    extender_process,
    health_example_manifests,
    kubernetes_objects,
    label_watch,
    metrics_pipeline,
)
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import ExtenderProcess
from tests.cluster.health_example_manifests import LABEL, NODES, POD_LABELS, POLICY
from tests.cluster.label_watch import NodeLabelChange
from tests.cluster.metrics_pipeline import MetricsServices
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.prometheus_and_exporters import HEALTH, Monitoring

ADAPTER, DIRECT = "through the adapter", "straight from Prometheus"
METRICS = {ADAPTER: "health_metric", DIRECT: HEALTH}
"""The name of the metric in the policies, by the source of values."""
[(KEY, FAILED)] = LABEL.items()


@pytest.fixture(params=[ADAPTER, DIRECT])
def way(request: pytest.FixtureRequest, sandbox: Sandbox, measuring: MetricsServices) -> Iterator[str]:
    """The source of nodewise's metrics: the adapter or Prometheus. Creates the nodes, all of them healthy."""
    sandbox.nodes(*(kubernetes_objects.node(name) for name in NODES))
    with metrics_pipeline.registered(sandbox.api, *measuring) as both_ends:
        both_ends.monitoring.set(HEALTH, dict.fromkeys(NODES, 0))
        both_ends.wait_visible("health_metric", dict.fromkeys(NODES, "0"))
        yield request.param


@pytest.fixture
def nodes(way: str, measuring: MetricsServices) -> Monitoring:
    """The metrics of the nodes, which the test changes."""
    return measuring.monitoring


@contextlib.contextmanager
def serving(
    plane: ControlPlane, sandbox: Sandbox, way: str, folder: Path, *more: str
) -> Iterator[ExtenderProcess]:
    """Runs nodewise with the policies and the metric."""
    extender_process.define(sandbox.api)
    health_example_manifests.put_policies(sandbox, METRICS[way])
    with extender_process.extender(plane, folder, *more) as running:
        wait("the metric is known", lambda: running.fetched(METRICS[way]) or None)
        yield running


@pytest.fixture
def source(way: str, measuring: MetricsServices) -> list[str]:
    """The flags of nodewise for this source of metrics."""
    direct = ["--metrics=prometheus", f"--prometheus-url={measuring.monitoring.url}"]
    return direct if way == DIRECT else ["--metrics=custom"]


@pytest.fixture
def nodewise(
    plane: ControlPlane, sandbox: Sandbox, way: str, source: list[str], tmp_path: Path
) -> Iterator[ExtenderProcess]:
    """nodewise and a kube-scheduler that calls it for every pod."""
    with (
        serving(plane, sandbox, way, tmp_path, *source) as running,
        plane.start_scheduler({"extenders": [running.entry(managedResources=[])]}),
    ):
        yield running


@pytest.fixture
def application(plane: ControlPlane, sandbox: Sandbox, nodewise: ExtenderProcess) -> Iterator[str]:
    """Deploys the demo application; yields the node of its pod."""
    with plane.start_controller_manager("deployment-controller,replicaset-controller"):
        sandbox.put(health_example_manifests.deployment())
        yield health_example_manifests.placed(sandbox)


def labelled(sandbox: Sandbox) -> set[str]:
    """The nodes that are labelled as failed."""
    nodes = sandbox.api.get("/api/v1/nodes", labelSelector=f"{KEY}={FAILED}")["items"]
    return {node["metadata"]["name"] for node in nodes}


def until_labelled(sandbox: Sandbox, *wanted: str) -> None:
    wait(
        f"{wanted} are labelled",
        lambda: labelled(sandbox) == set(wanted) or None,
        show=lambda: labelled(sandbox),
    )


def suspended(sandbox: Sandbox) -> str:
    """The status of the policy's condition Suspended."""
    path = f"/apis/nodewise.io/v1alpha1/namespaces/{sandbox.namespace}/placementpolicies/{POLICY}"
    conditions = sandbox.api.get(path).get("status", {}).get("conditions", [])
    return next(
        (str(condition["status"]) for condition in conditions if condition["type"] == "Suspended"), ""
    )


def until_suspended(sandbox: Sandbox, wanted: str) -> None:
    wait(
        f"Suspended is {wanted}",
        lambda: suspended(sandbox) == wanted or None,
        show=lambda: suspended(sandbox),
    )


def test_a_node_that_fails_is_drained_and_taken_back_when_it_is_well(
    plane: ControlPlane, sandbox: Sandbox, nodes: Monitoring, application: str, descheduler_program: Path
) -> None:
    with label_watch.watch_labels(plane) as labels:
        nodes.set_health(application, 2)
        until_labelled(sandbox, application)
        assert descheduler_run.once(plane, descheduler_program).evicted == 1
        assert health_example_manifests.placed(sandbox) != application
        assert descheduler_run.once(plane, descheduler_program).evicted == 0
        nodes.set_health(application, 0)
        until_labelled(sandbox)
        marked, cleared = (None, FAILED), (FAILED, None)
        labels.expect(NodeLabelChange(application, KEY, *marked), NodeLabelChange(application, KEY, *cleared))


def test_a_pod_that_no_node_takes_is_placed_soon_after_one_is_well_again(
    sandbox: Sandbox, nodes: Monitoring, nodewise: ExtenderProcess
) -> None:
    nodes.set(HEALTH, dict.fromkeys(NODES, 1))
    for node in NODES:
        wait(
            f"{node} is bad",
            lambda at=node: nodewise.rejects(sandbox.namespace, at, labels=POD_LABELS) or None,
        )
    sandbox.pods(health_example_manifests.pod("late"))
    assert "3 placement policy" in sandbox.expect_event("late")
    nodes.set_health(NODES[1], 0)
    assert sandbox.expect_bound("late") == NODES[1]


def test_without_prometheus_verdicts_and_labels_hold_and_the_policy_says_so(
    plane: ControlPlane, sandbox: Sandbox, nodes: Monitoring, way: str, source: list[str], tmp_path: Path
) -> None:
    with (
        serving(plane, sandbox, way, tmp_path, "--max-age=5s", *source) as running,
        label_watch.watch_labels(plane) as labels,
    ):
        nodes.set_health(NODES[1], 2)
        until_labelled(sandbox, NODES[1])
        with nodes.without_prometheus():
            until_suspended(sandbox, "True")
            assert [running.rejects(sandbox.namespace, node, labels=POD_LABELS) for node in NODES] == [
                False,
                True,
                False,
            ]
            suspended = re.compile(r"(?m)^nodewise_rules_suspended [1-9]")
            wait(
                "the gauge is set",
                lambda: suspended.search(plain_http.get(f"{running.health}/metrics").text),
            )
            assert "the last verdicts hold" in sandbox.expect_event(POLICY, "LostNodes")
        until_suspended(sandbox, "False")
    assert labels.changes == [NodeLabelChange(NODES[1], KEY, None, FAILED)]
