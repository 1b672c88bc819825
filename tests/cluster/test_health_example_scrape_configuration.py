"""The scrape configuration of the health example: the job names each series after its node.

Debian's Prometheus is built without Kubernetes service discovery, so a file contains the targets that the discovery
would find. The relabelling is that of the example, and the exporters are real.
"""

import json
import re
from pathlib import Path

from tests.cluster import debian_packages, health_example_manifests, prometheus_and_exporters
from tests.cluster.api_client import Object
from tests.cluster.namespace_sandboxes import Sandbox
from tests.cluster.prometheus_and_exporters import HEALTH, NodeExporter

NODES = ("rack1-a", "rack1-b")
DAEMON_SET = health_example_manifests.CLUSTER / "node-exporter.yaml"


def discovered(node: str, port: int, template: Object) -> Object:
    """The target that the service discovery would find for a pod of the template."""
    meta = {
        "pod_node_name": node,
        "pod_container_port_name": template["spec"]["containers"][0]["ports"][0]["name"],
    }
    labels = {re.sub(r"\W", "_", key): value for key, value in template["metadata"]["labels"].items()}
    meta |= {f"pod_label_{key}": value for key, value in labels.items()}
    named = {f"__meta_kubernetes_{key}": value for key, value in meta.items()}
    return {"targets": [f"127.0.0.1:{port}"], "labels": named}


def job(targets: list[Object], file: Path) -> Object:
    """The scrape job of the example, with a file instead of the service discovery."""
    file.write_text(json.dumps(targets))
    [configuration] = health_example_manifests.read(health_example_manifests.CLUSTER / "scrape.yaml")
    assert configuration.pop("kubernetes_sd_configs") == [{"role": "pod"}]
    scrape_config: Object = configuration | {"file_sd_configs": [{"files": [str(file)]}]}
    return scrape_config | {"scrape_interval": prometheus_and_exporters.SCRAPE_INTERVAL}


def test_each_series_is_named_after_the_node_of_its_pod_and_other_pods_are_left_alone(
    prometheus_programs: debian_packages.PrometheusPrograms, tmp_path: Path
) -> None:
    template = health_example_manifests.read(DAEMON_SET)["spec"]["template"]
    other = {"metadata": {"labels": {"app": "web"}}, "spec": template["spec"]}
    exporters = [
        NodeExporter(prometheus_programs.node_exporter, tmp_path / name) for name in (*NODES, "other")
    ]
    try:
        for value, exporter in enumerate(exporters):
            exporter.write(HEALTH, value)
        pods = [template, template, other]
        named = zip((*NODES, "rack2-a"), exporters, pods, strict=True)
        targets = [discovered(node, exporter.port, pod) for node, exporter, pod in named]
        jobs = [job(targets, tmp_path / "pods.json")]
        with prometheus_and_exporters.running(
            prometheus_programs, tmp_path / "prometheus", jobs=jobs
        ) as running:
            running.wait_scraped(HEALTH, {"rack1-a": 0, "rack1-b": 1})
    finally:
        for exporter in exporters:
            exporter.process.stop()


def test_the_api_server_takes_the_manifests(sandbox: Sandbox) -> None:
    for file in (DAEMON_SET, health_example_manifests.CLUSTER / "deployment.yaml"):
        spec = sandbox.put(health_example_manifests.read(file))["spec"]
        assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
