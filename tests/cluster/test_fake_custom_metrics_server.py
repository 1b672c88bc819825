"""The fake custom metrics server behind the aggregation layer of the real API server."""

import httpx2
import pytest

from tests.cluster.api_client import ApiError, Object
from tests.cluster.api_user_kubeconfigs import rule
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_custom_metrics_server import GROUP, FakeCustomMetricsApi, NodeSample

ROOT = f"/apis/{GROUP}"


def read_metric(plane: ControlPlane, metric: str, version: str = "v1beta1", nodes: str = "*") -> Object:
    return plane.api.get(f"{ROOT}/{version}/nodes/{nodes}/{metric}")


def test_the_api_server_lists_the_group(plane: ControlPlane, metrics: FakeCustomMetricsApi) -> None:
    group = plane.api.get(ROOT)
    assert group["preferredVersion"]["version"] == "v1beta2"
    assert {version["version"] for version in group["versions"]} == {"v1beta1", "v1beta2"}


def test_values_of_all_nodes(plane: ControlPlane, metrics: FakeCustomMetricsApi) -> None:
    metrics.set("temp", {"a": "81500m", "b": 40}, time="2026-07-01T12:00:00Z", window_s=60)
    response = read_metric(plane, "temp")
    assert (response["kind"], response["apiVersion"]) == ("MetricValueList", f"{GROUP}/v1beta1")
    assert [(item["describedObject"]["name"], item["value"]) for item in response["items"]] == [
        ("a", "81500m"),
        ("b", "40"),
    ]
    assert response["items"][0] == {
        "describedObject": {"kind": "Node", "name": "a", "apiVersion": "/v1"},
        "metricName": "temp",
        "timestamp": "2026-07-01T12:00:00Z",
        "windowSeconds": 60,
        "value": "81500m",
    }


def test_the_newer_version_names_the_metric_in_its_own_way(
    plane: ControlPlane, metrics: FakeCustomMetricsApi
) -> None:
    metrics.set("temp", {"a": 1})
    [item] = read_metric(plane, "temp", "v1beta2", "%2A")["items"]
    assert item["metric"] == {"name": "temp", "selector": None}


def test_one_node_by_name(plane: ControlPlane, metrics: FakeCustomMetricsApi) -> None:
    metrics.set("temp", {"a": 1, "b": NodeSample("2", window_s=30)})
    [item] = read_metric(plane, "temp", nodes="b")["items"]
    assert (item["value"], item["windowSeconds"]) == ("2", 30)


def test_a_metric_without_a_value_is_not_found(plane: ControlPlane, metrics: FakeCustomMetricsApi) -> None:
    with pytest.raises(ApiError, match="404: the server could not find the metric none for nodes"):
        read_metric(plane, "none")


def test_faults_come_through_and_heal(plane: ControlPlane, metrics: FakeCustomMetricsApi) -> None:
    metrics.set("temp", {"a": "NaN", "b": "12 apples"})
    assert [item["value"] for item in read_metric(plane, "temp")["items"]] == ["NaN", "12 apples"]
    metrics.say("temp", b'{"kind": "MetricValueList", "items"')
    with pytest.raises(ValueError, match="Expecting"):
        read_metric(plane, "temp")
    metrics.fail("temp", 500)
    with pytest.raises(ApiError, match="500: told to fail with 500"):
        read_metric(plane, "temp")
    metrics.heal("temp")
    assert len(read_metric(plane, "temp")["items"]) == 2


def test_a_hanging_metric_delays_no_other(plane: ControlPlane, metrics: FakeCustomMetricsApi) -> None:
    metrics.set("slow", {"a": 1})
    metrics.set("quick", {"a": 1})
    metrics.hang("slow")
    with pytest.raises(httpx2.TimeoutException):
        plane.api.request("GET", f"{ROOT}/v1beta1/nodes/*/slow", timeout=0.5)
    assert read_metric(plane, "quick")["items"], "while the other one hangs"


def test_a_user_needs_the_right_to_each_metric(plane: ControlPlane, metrics: FakeCustomMetricsApi) -> None:
    metrics.set("temp", {"a": 1})
    metrics.set("secret", {"a": 1})
    user = plane.user("metrics-reader", [rule("get", "nodes/temp", GROUP)])
    assert user.api.get(f"{ROOT}/v1beta1/nodes/*/temp")["items"]
    with pytest.raises(ApiError, match=r'403: .*User "metrics-reader" cannot get resource "nodes/secret"'):
        user.api.get(f"{ROOT}/v1beta1/nodes/*/secret")
