"""The agent load with a real API server and kube-scheduler, and a metrics server with set values."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodewise_scorers.load.bound_load import POD_REQUESTS
from nodewise_scorers.load.state import NODE_REQUESTS, PRESSURE_REQUESTS
from tests import plain_http
from tests.cluster import (
    debian_packages,
    extender_process,
    fake_metrics_server,
    kubernetes_objects,
)
from tests.cluster.api_client import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import ExtenderProcess
from tests.cluster.fake_metrics_server import FakeResourceMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, node_of, wait
from tests.cluster.prometheus_process import PrometheusProcess
from tests.unit.metrics import prometheus_suite

NODES = tuple(f"node-{number}" for number in range(10))
BUSY = NODES[3:5]
SCORES_ONLY = {"managedResources": [], "filterVerb": "", "preemptVerb": "", "weight": 10}


@pytest.fixture
def usage(plane: ControlPlane, tmp_path: Path) -> Iterator[FakeResourceMetricsApi]:
    folder = tmp_path / "metrics"
    folder.mkdir()
    with fake_metrics_server.behind(plane.api, folder) as server:
        server.cpu = {
            node: "14500m" if node in BUSY else f"{1500 + 20 * number}m" for number, node in enumerate(NODES)
        }
        yield server


@pytest.fixture
def nodewise(plane: ControlPlane, usage: FakeResourceMetricsApi, tmp_path: Path) -> Iterator[ExtenderProcess]:
    with extender_process.extender(plane, tmp_path, "--agents=load", "--metrics=resource") as running:
        yield running


def predicted(nodewise: ExtenderProcess, node: str) -> Object:
    """The state of a node, as the admin port shows it."""
    body = plain_http.get(f"{nodewise.health}/state/load", params={"node": node}).json()
    state: Object = body["nodes"].get(node, {"cpu": {"predicted_share": None}})
    return state


def test_a_burst_is_spread_and_spares_the_busy_nodes(
    plane: ControlPlane, sandbox: Sandbox, nodewise: ExtenderProcess
) -> None:
    """100 pods within seconds, while the statistics show none of them."""
    sandbox.nodes(*(kubernetes_objects.node(name, cpu="16") for name in NODES))
    wait(
        "all nodes have statistics",
        lambda: all(predicted(nodewise, node)["cpu"]["predicted_share"] for node in NODES) or None,
    )
    with plane.start_scheduler({"extenders": [nodewise.entry(**SCORES_ONLY)]}):
        names = [f"web-{number}" for number in range(100)]
        sandbox.pods(*(kubernetes_objects.pod(name, cpu="500m") for name in names))
        placed = wait(
            "all pods are bound",
            lambda: nodes if all(nodes := [node_of(sandbox.pod(name)) for name in names]) else None,
            show=nodewise.process.tail,
        )
    counts = Counter(placed)
    assert not counts.keys() & set(BUSY)
    assert len(counts) == len(NODES) - len(BUSY)
    # without the pods in flight, a few nodes would get most of the pods
    assert max(counts.values()) <= 1.5 * len(names) / len(counts), counts

    calm, busy = (predicted(nodewise, node)["cpu"] for node in (NODES[0], BUSY[0]))
    assert calm["in_flight_share"] > 0
    assert calm["predicted_share"] == pytest.approx(calm["used_share"] + calm["in_flight_share"], abs=0.05)
    assert busy["in_flight_share"] == 0
    scored = nodewise.decisions(names[-1])[-1]
    assert scored["scores"][BUSY[0]] < scored["scores"][NODES[0]]


def scraped_usage(now: float) -> Iterator[str]:
    """Four minutes of node exporter, and of cAdvisor with the pressure of nodes, for the nodes a and b.

    Two jobs scrape the kubelet, as with the Prometheus operator and with annotations.
    """
    pod_labels = 'namespace="shop",pod="web-1"'
    for step in range(8, -1, -1):
        elapsed_s = 240 - 30 * step
        for node, idle, waiting in (("a", 0.25, 0.6), ("b", 0.9, 0.0)):
            host = f'node="{node}",instance="{node}:9100"'
            series = {
                f'node_cpu_seconds_total{{{host},cpu="0",mode="idle"}}': idle * elapsed_s,
                f'node_cpu_seconds_total{{{host},cpu="1",mode="idle"}}': idle * elapsed_s,
                f"node_memory_MemTotal_bytes{{{host}}}": 4e9,
                f"node_memory_MemAvailable_bytes{{{host}}}": 3e9,
            }
            for job in ("kubelet", "kubernetes-cadvisor"):
                kubelet = f'node="{node}",instance="{node}:10250",job="{job}"'
                for resource in ("cpu", "memory"):
                    name = f"container_pressure_{resource}_waiting_seconds_total"
                    series[f'{name}{{{kubelet},id="/"}}'] = waiting * elapsed_s
                    series[f'{name}{{{kubelet},id="/kubepods.slice"}}'] = elapsed_s
                if node == "a":
                    cpu, memory = "container_cpu_usage_seconds_total", "container_memory_working_set_bytes"
                    for container, cores in (("main", 0.5), ("proxy", 0.25)):
                        labels = f'{kubelet},{pod_labels},container="{container}",id="/{container}"'
                        series |= {f"{cpu}{{{labels}}}": cores * elapsed_s, f"{memory}{{{labels}}}": 1e8}
                    whole = f'{kubelet},{pod_labels},container="",id="/pod"'
                    series |= {f"{cpu}{{{whole}}}": 0.75 * elapsed_s, f"{memory}{{{whole}}}": 3e8}
            for text, value in series.items():
                yield f"{text} {value} {now - 30 * step:.3f}"


def test_prometheus_has_the_usage_and_the_pressure_of_nodes_and_the_usage_of_pods(
    prometheus_programs: debian_packages.PrometheusPrograms, tmp_path: Path
) -> None:
    prometheus = PrometheusProcess(prometheus_programs, tmp_path, {})
    prometheus.hold_samples(scraped_usage(time.time()))
    prometheus.start()

    async def fetch_all() -> list[dict[str, float]]:
        source = prometheus_suite.source(prometheus.url)
        try:
            requests = (*NODE_REQUESTS, *PRESSURE_REQUESTS, *POD_REQUESTS)
            return [prometheus_suite.values(await source.fetch(each, time.time())) for each in requests]
        finally:
            await source.close()

    try:
        cpu, memory, cpu_pressure, memory_pressure, pod_cpu, pod_memory = asyncio.run(fetch_all())
    finally:
        prometheus.stop()
    assert cpu == pytest.approx({"a": 1.5, "b": 0.2}, abs=0.01)
    assert memory == pytest.approx({"a": 1e9, "b": 1e9})
    assert cpu_pressure == memory_pressure == pytest.approx({"a": 0.6, "b": 0.0}, abs=0.01)
    assert pod_cpu == pytest.approx({"shop/web-1": 0.75}, abs=0.01)
    assert pod_memory == pytest.approx({"shop/web-1": 2e8})
