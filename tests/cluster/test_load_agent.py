"""The agent load with a real API server and kube-scheduler, and a metrics server with set values."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.cluster import extender_process, fake_metrics_server, kubernetes_objects
from tests.cluster.api_client import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import ExtenderProcess
from tests.cluster.fake_metrics_server import FakeResourceMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, node_of, wait

NODES = tuple(f"node-{number}" for number in range(10))
BUSY = NODES[3:5]
SCORES_ONLY = {"managedResources": [], "filterVerb": "", "preemptVerb": "", "weight": 10}


@pytest.fixture
def usage(plane: ControlPlane, tmp_path: Path) -> Iterator[FakeResourceMetricsApi]:
    folder = tmp_path / "metrics"
    folder.mkdir()
    with fake_metrics_server.behind(plane.api, folder) as server:
        server.cpu = {node: "14500m" if node in BUSY else "1500m" for node in NODES}
        yield server


@pytest.fixture
def nodewise(plane: ControlPlane, usage: FakeResourceMetricsApi, tmp_path: Path) -> Iterator[ExtenderProcess]:
    with extender_process.extender(plane, tmp_path, "--agents=load", "--metrics=resource") as running:
        yield running


def predicted(nodewise: ExtenderProcess, node: str) -> Object:
    """The state of a node, as the admin port shows it."""
    body = httpx2.get(f"{nodewise.health}/state/load", params={"node": node}).json()
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
    assert max(counts.values()) - min(counts.values()) <= 2, counts

    calm, busy = (predicted(nodewise, node)["cpu"] for node in (NODES[0], BUSY[0]))
    assert calm["in_flight_share"] > 0
    assert calm["predicted_share"] == pytest.approx(calm["used_share"] + calm["in_flight_share"], abs=0.05)
    assert busy["in_flight_share"] == 0
    scored = nodewise.decisions(names[-1])[-1]
    assert scored["scores"][BUSY[0]] < scored["scores"][NODES[0]]
