"""A hostile tenant with very many waiting pods does not delay the requeueing of another tenant's pod."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests import plain_http
from tests.cluster import extender_process, gpu_cluster, kubernetes_objects
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import wait
from tests.hostile import tenant_cluster
from tests.hostile.tenant_cluster import HOT, NODES, TenantCluster

UNRELATED = 1000
"""Waiting pods that concern no agent."""
FORMER = 200
"""Waiting pods that nodewise rejected, and that no policy selects any more."""
DEMANDS = 300
"""Waiting pods with different GPU requests."""


@pytest.fixture
def cluster(plane: ControlPlane, tmp_path: Path) -> Iterator[TenantCluster]:
    with tenant_cluster.running(plane, tmp_path) as cluster:
        yield cluster


def _waiting(cluster: TenantCluster) -> int:
    """The number of waiting pods that nodewise filters again."""
    text = plain_http.get(f"{cluster.served.health}/metrics").text
    lines = [line for line in text.splitlines() if line.startswith("nodewise_pods_waiting ")]
    return int(float(lines[0].split()[1])) if lines else 0


def test_a_healed_pod_is_requeued_beside_a_namespace_with_very_many_waiting_pods(
    cluster: TenantCluster,
) -> None:
    victim = cluster.victim
    victim.policy("cool", dontschedule=[HOT])
    cluster.attacker.put_waiting_pods(
        [kubernetes_objects.pod(f"a-{number}") for number in range(UNRELATED)],
        "0/2 nodes are available: 2 Insufficient cpu.",
    )
    cluster.attacker.put_waiting_pods(
        [kubernetes_objects.pod(f"former-{number}") for number in range(FORMER)]
        + [gpu_cluster.pod(f"b-{number}", len(NODES) + 1 + number) for number in range(DEMANDS)],
    )
    with cluster.plane.start_scheduler({"extenders": [cluster.served.entry()]}):
        victim.pod("web", labels={tenant_cluster.POLICY_LABEL: "cool"}, limits=extender_process.LIMITS)
        victim.sandbox.expect_rejected("web")
        wait(
            "nodewise filters these pods",
            lambda: _waiting(cluster) == FORMER + DEMANDS + 1 or None,
            show=partial(_waiting, cluster),
        )
        woken = len(cluster.served.events("woken"))
        cluster.metrics.set("heat", dict.fromkeys(NODES, 10))
        assert victim.sandbox.expect_bound("web") in NODES
        cluster.served.wait_events("woken", woken + 1)
