"""The power example with real programs: nodewise and the autoscaler use the same series."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster import (
    debian_packages,
    health_example_manifests,
    kubernetes_objects,
    metrics_pipeline,
    program_cache,
)
from tests.cluster.api_client import ApiError, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.metrics_pipeline import MetricsPipeline, MetricsServices
from tests.cluster.namespace_sandboxes import Sandbox, wait

FOLDER = health_example_manifests.FOLDER.parent / "power" / "cluster"
SERIES = "node_package_power_avg"
DRAWN = {"rack1-a": "72.133", "rack1-b": "40.821", "rack2-a": "51.774"}
EXTERNAL = "external.metrics.k8s.io"
APIS = {**metrics_pipeline.APIS, EXTERNAL: ("v1beta1",)}


@pytest.fixture
def power(plane: ControlPlane, sandbox: Sandbox, measuring: MetricsServices) -> Iterator[MetricsPipeline]:
    """The custom and the external metrics API, served by an adapter with the rules of the power example."""
    sandbox.nodes(*(kubernetes_objects.node(name) for name in DRAWN))
    program, url = program_cache.prometheus_adapter(), measuring.monitoring.url
    with (
        metrics_pipeline.running_adapter(plane, program, url, FOLDER / "adapter-rules.yaml") as adapter,
        metrics_pipeline.registered(sandbox.api, measuring.monitoring, adapter, APIS) as both_ends,
    ):
        both_ends.monitoring.set(SERIES, DRAWN)
        yield both_ends


def external(sandbox: Sandbox) -> str | None:
    """The external metric that the autoscaler uses; None if there is none."""
    try:
        metric = sandbox.api.get(f"/apis/{EXTERNAL}/v1beta1/namespaces/{sandbox.namespace}/package_power_max")
    except ApiError:
        return None
    return metric["items"][0]["value"] if metric["items"] else None


def run(sandbox: Sandbox) -> bool | None:
    """Sets the pods' status to running and ready, as a kubelet does, since the autoscaler counts only ready pods."""
    pods = sandbox.api.get(f"/api/v1/namespaces/{sandbox.namespace}/pods")["items"]
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    for pod in pods:
        path = f"/api/v1/namespaces/{sandbox.namespace}/pods/{pod['metadata']['name']}/status"
        sandbox.api.patch(path, {"status": ready})
    return True if pods else None


def test_the_autoscaler_spreads_the_work_while_a_node_is_above_the_limit(
    plane: ControlPlane, sandbox: Sandbox, power: MetricsPipeline
) -> None:
    power.wait_visible("package_power_avg", {"rack1-a": "72133m", "rack1-b": "40821m", "rack2-a": "51774m"})
    assert wait("there is an external metric", lambda: external(sandbox)) == "72133m"
    path = f"/apis/autoscaling/v2/namespaces/{sandbox.namespace}/horizontalpodautoscalers/power-autoscaler"

    def status() -> Object:
        status: Object = sandbox.api.get(path).get("status", {})
        return status

    controllers = "deployment-controller,replicaset-controller,horizontal-pod-autoscaler-controller"
    with plane.start_controller_manager(controllers, {"horizontal-pod-autoscaler-sync-period": "2s"}):
        sandbox.put(health_example_manifests.read(FOLDER / "deployment.yaml"))
        wait("the pod runs", lambda: run(sandbox))
        sandbox.put(health_example_manifests.read(FOLDER / "autoscaler.yaml"))
        wait("two replicas are wanted", lambda: status().get("desiredReplicas") == 2 or None, 60, status)
    assert "72133m/60" in plane.kubectl("get", "hpa", "--namespace", sandbox.namespace)


def test_the_recording_rule_makes_per_cent_of_the_energy_counters(
    prometheus_programs: debian_packages.PrometheusPrograms, tmp_path: Path
) -> None:
    """Two packages draw 205 W and 102.5 W, on average 75 % of 205 W."""
    counters = [
        {
            "series": f'node_rapl_package_joules_total{{instance="node1",index="{index}"}}',
            "values": f"0+{step}x40",
        }
        for index, step in enumerate((1025, 512.5))
    ]
    expected = [{"labels": f'{SERIES}{{instance="node1"}}', "value": 75}]
    test = {
        "interval": "5s",
        "input_series": counters,
        "promql_expr_test": [{"expr": SERIES, "eval_time": "3m", "exp_samples": expected}],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(FOLDER / "recording-rules.yaml")], "tests": [test]}))
    promtool = prometheus_programs.prometheus.parent / "promtool"
    completed = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
