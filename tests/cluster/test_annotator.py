"""`nodewise annotate` with a real Prometheus, and with a real API server and the shipped rights."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import numpy as np
import pytest

from nodewise.kube.api_client_creation import connect
from nodewise.kube.kubeconfig import KubeOptions
from nodewise.kube.resource_kinds import NODES, PODS
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.scheduling_model import in_memory_api_http_server
from nodewise.scheduling_model.in_memory_api import FakeApi
from nodewise_scorers.annotator import node_patches
from nodewise_scorers.annotator.node_patches import NodePlan, WriteResult
from scorers_tests.unit.annotator.annotator_node_and_pod_builders import node, pod
from tests.cluster import (
    admission_policy_waits,
    debian_packages,
    extender_process,
    fake_metrics_server,
    kubernetes_objects,
    namespace_sandboxes,
    prometheus_process,
    rbac_rights_comparison,
    read_only_commands,
)
from tests.cluster.audit_log_reader import AuditLog
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.prometheus_process import PrometheusProcess

STEP_S = 15
SPAN_S = 3600
GIB = 2**30
WHOLE_CPU, WHOLE_MEMORY = 4000, 16 * GIB


def wave(seconds: float) -> float:
    """The used share of a CPU: five minutes at a quarter, five minutes at three quarters."""
    return 0.25 if seconds // 300 % 2 else 0.75


def steady(_: float) -> float:
    return 0.5


def rising(seconds: float) -> float:
    return 0.9 * seconds / SPAN_S


def samples(now: float) -> Iterator[str]:
    """An hour of node exporter samples for nodes with 4 CPUs and 16 GiB each."""
    for name, used in (("wave", wave), ("steady", steady), ("rising", rising)):
        yield from _exporter(f'node="{name}",job="node"', used, now, (0, SPAN_S))
    # a rollout ten minutes ago: the pod has another name, the counters continue
    for pod_, part in (("exporter-1", (0, 3000)), ("exporter-2", (3000, SPAN_S))):
        yield from _exporter(f'node="rolled",job="node",pod="{pod_}"', steady, now, part)
    # two jobs scrape this node
    for job, used in (("node", steady), ("other", wave)):
        yield from _exporter(f'node="twice",job="{job}"', used, now, (0, SPAN_S))


def _exporter(
    labels: str, used: Callable[[float], float], now: float, part: tuple[int, int]
) -> Iterator[str]:
    began = now - SPAN_S
    times = [second for second in range(0, SPAN_S + 1, STEP_S) if part[0] <= second <= part[1]]
    idle = np.cumsum([STEP_S * (1 - used(second)) for second in range(0, SPAN_S + 1, STEP_S)])
    for cpu in range(4):
        for second in times:
            value = idle[second // STEP_S]
            yield f'node_cpu_seconds_total{{cpu="{cpu}",mode="idle",{labels}}} {value} {began + second:.3f}'
    for second in times:
        yield f"node_memory_MemTotal_bytes{{{labels}}} {WHOLE_MEMORY} {began + second:.3f}"
    for second in times:
        available = WHOLE_MEMORY * (1 - used(second))
        yield f"node_memory_MemAvailable_bytes{{{labels}}} {available} {began + second:.3f}"


@pytest.fixture(scope="module")
def server(
    prometheus_programs: debian_packages.PrometheusPrograms, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrometheusProcess]:
    running = PrometheusProcess(prometheus_programs, tmp_path_factory.mktemp("annotator") / "prometheus", {})
    try:
        running.hold_samples(samples(time.time()))
        running.start()
        yield running
    finally:
        running.stop()


class AnnotatedCluster:
    """Nodes in memory, which are served over HTTP to the real command."""

    def __init__(self, prometheus_url: str, folder: Path) -> None:
        self._url = prometheus_url
        self._folder = folder
        self.api = FakeApi()
        for name in ("wave", "steady", "rising", "rolled", "twice"):
            self.api.put(NODES, node(name))

    def annotate(self, *arguments: str) -> tuple[Any, dict[str, dict[str, str]]]:
        """Runs the command. Returns its output and the annotations of the nodes."""
        with in_memory_api_http_server.serving(self.api) as server:
            server_flags = [
                f"--kubeconfig={server.kubeconfig(self._folder)}",
                f"--prometheus-url={self._url}",
            ]
            done = read_only_commands.run("annotate", "--once", "-o", "json", *server_flags, *arguments)
            assert done.stdout, done.stderr
            nodes = server.call(lambda api: api.objects(NODES))
        return msgspec.json.decode(done.stdout), {
            name: node["metadata"].get("annotations", {}) for (_, name), node in nodes.items()
        }


@pytest.fixture
def cluster(server: PrometheusProcess, tmp_path: Path) -> AnnotatedCluster:
    return AnnotatedCluster(server.url, tmp_path)


def free(annotations: Mapping[str, str], what: str) -> float:
    """The value of an annotation as a share of the node's total."""
    return float(annotations[what]) / (WHOLE_CPU if what.endswith("cpu") else WHOLE_MEMORY)


def test_statistics_are_those_of_the_window(cluster: AnnotatedCluster) -> None:
    _, annotations = cluster.annotate("--exporter-matchers", 'job="node"', "--statistics-window=10m")
    for resource in ("cpu", "memory"):
        assert free(annotations["wave"], f"mean-free-{resource}") == pytest.approx(0.5, abs=0.03)
        assert free(annotations["wave"], f"std-free-{resource}") == pytest.approx(0.25, abs=0.04)
        assert free(annotations["steady"], f"mean-free-{resource}") == pytest.approx(0.5)
        assert free(annotations["steady"], f"std-free-{resource}") == pytest.approx(0, abs=1e-6)


def test_an_exporter_that_was_rolled_out_anew_is_still_one_of_its_node(cluster: AnnotatedCluster) -> None:
    report, annotations = cluster.annotate("--exporter-matchers", 'job="node"')
    assert "rolled" not in report["unmeasured"]
    for resource in ("cpu", "memory"):
        assert free(annotations["rolled"], f"mean-free-{resource}") == pytest.approx(0.5, abs=0.02)


def test_a_node_that_two_exporters_measure_is_not_measured_until_one_is_chosen(
    cluster: AnnotatedCluster,
) -> None:
    report, annotations = cluster.annotate("--what=usage")
    assert report["unmeasured"] == ["twice"]
    assert annotations["twice"] == {}
    assert "mean-free-cpu" in annotations["steady"], "the others are"
    report, annotations = cluster.annotate("--exporter-matchers", 'job="node"')
    assert report["unmeasured"] == []
    assert free(annotations["twice"], "mean-free-cpu") == pytest.approx(0.5)


def test_a_forecast_goes_on_as_it_was_going(cluster: AnnotatedCluster) -> None:
    arguments = ("--annotate-forecast", "--annotate-forecast-window=50m", "--exporter-matchers", 'job="node"')
    _, annotations = cluster.annotate(*arguments)
    for resource in ("cpu", "memory"):
        now = free(annotations["rising"], f"mean-free-{resource}")
        ahead = free(annotations["rising"], f"forcasted-free-{resource}")
        assert ahead == pytest.approx(0.1, abs=0.04)
        assert ahead < now - 0.05
        assert free(annotations["steady"], f"forcasted-free-{resource}") == pytest.approx(0.5, abs=0.01)


def test_use_beyond_requests_can_be_left_out(cluster: AnnotatedCluster) -> None:
    cluster.api.put(PODS, pod("p", "steady", {"memory": "4Gi"}))
    _, annotations = cluster.annotate("--annotate-use-requests", "--exporter-matchers", 'job="node"')
    assert free(annotations["steady"], "mean-free-memory") == pytest.approx(0.75)
    assert free(annotations["wave"], "mean-free-memory") == 1, "nothing is requested there"
    assert free(annotations["steady"], "mean-free-cpu") == pytest.approx(0.5)


def test_a_query_of_ones_own_is_asked_with_the_window(cluster: AnnotatedCluster) -> None:
    query = 'avg_over_time((sum by (node) (rate(node_cpu_seconds_total{job="node"}[2m])))[{window}:1m])'
    _, annotations = cluster.annotate("--cpu-mean-query", query, "--exporter-matchers", 'job="node"')
    assert free(annotations["steady"], "mean-free-cpu") == pytest.approx(0.5, abs=0.01)


def test_prometheus_that_does_not_answer_leaves_statistics_as_they_are(cluster: AnnotatedCluster) -> None:
    cluster.annotate("--what=usage", "--exporter-matchers", 'job="node"')
    before = cluster.annotate("--what=usage", "--exporter-matchers", 'job="node"')[1]
    cluster._url = "http://127.0.0.1:1"
    report, annotations = cluster.annotate("--what=usage", "--exporter-matchers", 'job="node"')
    assert annotations == before
    assert len(report["failures"]) == 4
    assert len(report["unmeasured"]) == 5


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_write_insists_on_the_uid_and_makes_no_ghost(plane: ControlPlane, sandbox: Sandbox) -> None:
    """The real API server refuses a wrong UID and creates no node, like the API server in memory."""
    sandbox.nodes(kubernetes_objects.node("anew"), kubernetes_objects.node("there"))
    uid = plane.api.get("/api/v1/nodes/there")["metadata"]["uid"]
    api = connect(KubeOptions(kubeconfig=str(plane.admin.kubeconfig)), MetricsRegistry())
    plans = [
        NodePlan("anew", "0-not-its-uid", {}, {}, {"mean-free-cpu": "1"}),
        NodePlan("gone", "0-no-uid", {}, {}, {"mean-free-cpu": "1"}),
        NodePlan("there", uid, {}, {}, {"mean-free-cpu": "1", "std-free-cpu": None}),
    ]
    try:
        assert await node_patches.write_patches(api, plans) == WriteResult(done=1, failed=0, gone=2)
    finally:
        await api.close()
    assert "annotations" not in plane.api.get("/api/v1/nodes/anew")["metadata"]
    assert plane.api.find("/api/v1/nodes/gone") is None
    metadata = plane.api.get("/api/v1/nodes/there")["metadata"]
    assert metadata["annotations"] == {"mean-free-cpu": "1"}
    assert "nodewise-annotator" in {entry["manager"] for entry in metadata["managedFields"]}


NAMESPACE = "nodewise"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:nodewise-annotator"


def test_the_rights_that_ship_are_those_that_were_needed(
    plane: ControlPlane, audit_log: AuditLog, tmp_path: Path
) -> None:
    """The shipped rights are exactly those that the audit log shows as used in a run of the command."""
    with contextlib.ExitStack() as stack:
        for name in ("rbac.yaml", "annotator.yaml"):
            plane.kubectl("apply", "-f", str(extender_process.ROOT / "deploy" / name))
        all_sandboxes = [stack.enter_context(namespace_sandboxes.created(plane)) for _ in range(2)]
        measured = stack.enter_context(fake_metrics_server.behind(plane.api, tmp_path))
        measured.cpu = {"a": "1", "b": "500m"}
        all_sandboxes[0].nodes(*kubernetes_objects.nodes("a b"))
        for sandbox, name in zip(all_sandboxes, "ab", strict=True):
            sandbox.pods(kubernetes_objects.running_on(name, kubernetes_objects.pod("web", cpu="250m")))
        account = plane.service_account("nodewise-annotator", NAMESPACE)
        admission_policy_waits.wait_nodes(plane.api, account.api)
        command = ["annotate", f"--kubeconfig={account.kubeconfig}", "--health-port=0", "--log-format=json"]
        process = stack.enter_context(
            Process([extender_process.NODEWISE, *command], tmp_path / "annotate.log")
        )

        def annotated(name: str) -> dict[str, str] | None:
            annotations = plane.api.get(f"/api/v1/nodes/{name}")["metadata"].get("annotations", {})
            return annotations if "mean-free-cpu" in annotations else None

        a, b = (
            wait(f"{name} is annotated", lambda name=name: annotated(name), show=process.tail)
            for name in "ab"
        )
        assert (a["mean-free-cpu"], b["mean-free-cpu"]) == ("3000", "3500")
        assert (a["requested-cpu"], a["requested-pods"]) == ("250", "1")
        health = next(
            line["health"]
            for line in map(msgspec.json.decode, process.log.read_bytes().splitlines())
            if line["event"] == "started"
        )
        with httpx2.Client(trust_env=False) as client:
            assert prometheus_process.answers(f"{health}/readyz", client)
            counted = 'nodewise_node_annotations_total{outcome="done"} 2.0'
            # the annotations are counted after they are written
            wait("both are counted", lambda: counted in client.get(f"{health}/metrics").text or None)
    requests = [request for request in audit_log.requests(ACCOUNT) if request.resource]
    assert [request for request in requests if request.is_refused] == []
    assert [request for request in requests if "nodewise-annotator" not in request.allowed_by] == []
    assert rbac_rights_comparison.needed(requests) == rbac_rights_comparison.granted(
        extender_process.manifest("annotator.yaml")
    )


def test_the_extenders_leader_annotates_with_the_rights_of_the_extender(
    plane: ControlPlane, sandbox: Sandbox, tmp_path: Path
) -> None:
    sandbox.nodes(*kubernetes_objects.nodes("a b"))
    sandbox.pods(kubernetes_objects.running_on("a", kubernetes_objects.pod("web", cpu="250m")))
    with fake_metrics_server.behind(plane.api, tmp_path) as measured:
        measured.cpu = {"a": "1", "b": "500m"}
        with extender_process.extender(plane, tmp_path, "--annotate=all") as running:
            running.wait_leading()

            def free(name: str) -> str | None:
                annotations = plane.api.get(f"/api/v1/nodes/{name}")["metadata"].get("annotations", {})
                return annotations.get("mean-free-cpu")

            assert wait("a is annotated", lambda: free("a"), show=running.process.tail) == "3000"
            assert wait("b is annotated", lambda: free("b")) == "3500"
            annotations = plane.api.get("/api/v1/nodes/a")["metadata"]["annotations"]
            assert (annotations["requested-cpu"], annotations["free-pods"]) == ("250", "109")
