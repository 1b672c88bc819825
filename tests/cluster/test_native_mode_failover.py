"""The leader of native mode is killed again and again while metrics change: no label stays wrong for two periods."""

import contextlib
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests import short_and_long_case_counts
from tests.cluster import kubernetes_objects, native_mode
from tests.cluster.api_client import ClusterApi
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.killed_leaders import ControllerReplicas, StateComparison, wait_for_leader
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import policy

KILLS: Final = short_and_long_case_counts.of(1, 50)
PERIOD_S: Final = 10.0
"""Two periods are longer than the Lease of a killed leader, also on a loaded machine."""
NODES: Final = [f"n{number:02}" for number in range(20)]
Labels = dict[tuple[str, str], str]
"""Values by node and uid of a policy; empty for no label."""


def labels_of_nodes(api: ClusterApi) -> Labels:
    """The labels that nodes have."""
    return {
        (node["metadata"]["name"], uid): value
        for node in api.get("/api/v1/nodes")["items"]
        for uid, value in native_mode.labels_of(node).items()
    }


def expected_labels(uids: Mapping[str, str], values: Mapping[str, Mapping[str, int]]) -> Labels:
    """The labels of policies that avoid values above 80, by metric."""
    return {
        (node, uid): "violating" if values[metric][node] > 80 else ""
        for metric, uid in uids.items()
        for node in NODES
    }


def test_labels_follow_the_metrics_while_leaders_are_killed(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, native_account: User, tmp_path: Path
) -> None:
    chance, labels = random.Random(50), StateComparison(plane, labels_of_nodes)
    sandbox.nodes(*map(kubernetes_objects.node, NODES))
    values = {metric: dict.fromkeys(NODES, 20) for metric in ("heat", "load", "errors")}
    uids = {}
    for metric, nodes in values.items():
        metrics.set(metric, nodes)
        spec = {"podSelector": {"matchLabels": {"app": metric}}, "avoid": [{"metric": metric, "above": 80}]}
        uids[metric] = sandbox.put(policy(spec, name=metric))["metadata"]["uid"]

    def change() -> None:
        """Changes about half of the values."""
        for metric, nodes in values.items():
            nodes |= {node: chance.choice((20, 90)) for node in NODES}
            metrics.set(metric, dict(nodes))
        labels.expected = expected_labels(uids, values)

    with contextlib.ExitStack() as stack:
        replicas = ControllerReplicas(
            native_account,
            tmp_path,
            stack,
            ("--native-mode", "--namespace=nodewise", f"--sync-period={PERIOD_S:g}s"),
        )
        stack.enter_context(labels)
        killed = ""
        for _ in range(KILLS):
            holder = wait_for_leader(sandbox.api, killed)
            change()
            time.sleep(chance.uniform(0, 1))
            replicas.kill(holder)
            killed = holder
            wait("all labels are right", lambda: labels.is_right() or None, show=labels.wrong)
        assert labels.longest_s < 2 * PERIOD_S
    assert labels.checks > 10 * KILLS
