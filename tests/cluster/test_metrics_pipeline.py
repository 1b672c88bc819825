"""Metric values from a text file through node exporter, Prometheus, prometheus-adapter and API server to nodewise."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import extender_process, health_example_manifests, kubernetes_objects
from tests.cluster import metrics_pipeline as way
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import ExtenderProcess
from tests.cluster.health_example_manifests import NODES, POD_LABELS
from tests.cluster.metrics_pipeline import MetricsPipeline
from tests.cluster.namespace_sandboxes import Sandbox, wait

WELL = dict.fromkeys(NODES, "0")
BAD = "rack1-b"


def seen(**others: str) -> dict[str, str]:
    """The values that the API returns if all nodes but these are healthy."""
    return WELL | {name.replace("_", "-"): value for name, value in others.items()}


@pytest.fixture
def measured(sandbox: Sandbox, pipeline: MetricsPipeline) -> MetricsPipeline:
    """The pipeline with the nodes of the example, all of them healthy."""
    sandbox.nodes(*(kubernetes_objects.node(name) for name in NODES))
    for node in NODES:
        pipeline.set_health(node, 0)
    pipeline.wait_visible("health_metric", WELL)
    return pipeline


@pytest.fixture
def nodewise(
    plane: ControlPlane, sandbox: Sandbox, measured: MetricsPipeline, tmp_path: Path
) -> Iterator[ExtenderProcess]:
    """An extender that has read the example's policy and its metric."""
    extender_process.define(sandbox.api)
    health_example_manifests.put_policies(sandbox)
    with extender_process.extender(plane, tmp_path) as running:
        wait("the metric is known", lambda: running.fetched("health_metric") or None)
        yield running


def until(nodewise: ExtenderProcess, sandbox: Sandbox, node: str, *, rejected: bool) -> None:
    """Waits until nodewise rejects a node, or no longer rejects it."""
    wait(
        f"{node} is {'rejected' if rejected else 'let through'}",
        lambda: nodewise.rejects(sandbox.namespace, node, labels=POD_LABELS) == rejected or None,
    )


def test_a_value_travels_from_a_text_file_to_the_api_server(measured: MetricsPipeline) -> None:
    measured.set_health(BAD, 2)
    measured.wait_visible("health_metric", seen(rack1_b="2"))
    [item] = measured.read("health_metric", BAD, "v1beta1")
    assert item["describedObject"] == {"kind": "Node", "name": BAD, "apiVersion": "/v1"}
    assert (item["metricName"], item["value"]) == ("health_metric", "2")
    listed = measured.api.get(f"/apis/{way.GROUP}/v1beta2")["resources"]
    assert "nodes/health_metric" in {resource["name"] for resource in listed}


def test_a_node_that_is_no_longer_measured_has_no_value(measured: MetricsPipeline) -> None:
    measured.monitoring.exporter(BAD).remove("node_health_metric")
    measured.wait_visible("health_metric", {node: "0" for node in NODES if node != BAD})


@pytest.mark.parametrize(
    ("written", "arrives"),
    [
        ("0.0625", "62m"),
        ("12345678.9", "12345678900m"),
        ("NaN", "0"),
        ("+Inf", "-9223372036854775808m"),
        ("1e+16", "-9223372036854775808m"),
    ],
)
def test_values_that_the_adapter_serves(measured: MetricsPipeline, written: str, arrives: str) -> None:
    """The adapter truncates values to thousandths, and turns NaN and infinity into numbers."""
    measured.monitoring.set("node_health_metric", {BAD: written})
    measured.wait_visible("health_metric", seen(rack1_b=arrives))


def test_nodewise_rejects_the_node_that_falls_ill_and_takes_it_back(
    plane: ControlPlane, sandbox: Sandbox, measured: MetricsPipeline, nodewise: ExtenderProcess
) -> None:
    with plane.start_scheduler({"extenders": [nodewise.entry(managedResources=[])]}):
        measured.set_health(BAD, 2)
        measured.set_health("rack1-a", 1)
        until(nodewise, sandbox, BAD, rejected=True)
        until(nodewise, sandbox, "rack1-a", rejected=True)
        sandbox.pods(*(health_example_manifests.pod(f"demo-{number}") for number in range(3)))
        assert {sandbox.expect_bound(f"demo-{number}") for number in range(3)} == {"rack2-a"}
        measured.set_health(BAD, 0)
        measured.set_health("rack2-a", 2)
        until(nodewise, sandbox, BAD, rejected=False)
        until(nodewise, sandbox, "rack2-a", rejected=True)
        sandbox.pods(health_example_manifests.pod("late"))
        assert sandbox.expect_bound("late") == BAD


def test_without_prometheus_there_are_no_answers_and_nodewise_says_so(
    sandbox: Sandbox, measured: MetricsPipeline, nodewise: ExtenderProcess
) -> None:
    measured.set_health(BAD, 2)
    until(nodewise, sandbox, BAD, rejected=True)
    with measured.monitoring.without_prometheus():
        wait("the API has no answer", lambda: True if measured.values("health_metric") is None else None)
        # the adapter may report more than one cause, one after another
        assert {event["metric"] for event in nodewise.wait_events("metric_failed")} == {"health_metric"}
        assert nodewise.rejects(sandbox.namespace, BAD, labels=POD_LABELS), "what it knew last still holds"
    nodewise.wait_events("metric_back")
