"""The leader of native mode is killed again and again while metrics change: no label stays wrong for two periods."""

import contextlib
import random
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from tests import short_and_long_case_counts
from tests.cluster import api_client, extender_process, kubernetes_objects, native_mode
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import policy

KILLS: Final = short_and_long_case_counts.of(1, 50)
PERIOD_S: Final = 10.0
"""Two periods are longer than the Lease of a killed leader, also on a loaded machine."""
NODES: Final = [f"n{number:02}" for number in range(20)]
LEASE: Final = "/apis/coordination.k8s.io/v1/namespaces/nodewise/leases/nodewise-controller"
Labels = dict[tuple[str, str], str]
"""Values by node and uid of a policy; empty for no label."""


class WrongLabels:
    """Compares the labels with the expected ones all the time, and measures for how long they differ."""

    def __init__(self, plane: ControlPlane) -> None:
        self.expected: Labels = {}
        self.longest_s = 0.0
        self.checks = 0
        self._context = plane.authority.client_context(plane.admin.pair)
        self._url = plane.url
        self._ended = threading.Event()
        self._since_s: dict[tuple[str, str], float] = {}
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def are_right(self) -> bool:
        """Whether all labels have been right for at least one more check."""
        before = self.checks
        while self.checks < before + 2:
            time.sleep(0.05)
        return not self._since_s

    def count_from_now(self) -> None:
        """Counts the time of labels that are wrong now from now on."""
        self._since_s = dict.fromkeys(self._since_s, time.monotonic())

    def wrong(self) -> dict[tuple[str, str], float]:
        """For how many seconds each label has been wrong."""
        now_s = time.monotonic()
        return {key: now_s - since_s for key, since_s in self._since_s.items()}

    def _run(self) -> None:
        api = api_client.ClusterApi(self._url, self._context)
        while not self._ended.wait(0.1):
            expected = self.expected
            labels = {
                node["metadata"]["name"]: native_mode.labels_of(node)
                for node in api.get("/api/v1/nodes")["items"]
            }
            now_s = time.monotonic()
            differing = {key for key, value in expected.items() if labels[key[0]].get(key[1], "") != value}
            self._since_s = {key: self._since_s.get(key, now_s) for key in differing}
            self.longest_s = max([self.longest_s, *(now_s - since for since in self._since_s.values())])
            self.checks += 1
        api.close()


class ControllerReplicas:
    """Two controllers; one of them leads."""

    def __init__(self, account: User, folder: Path, stack: contextlib.ExitStack) -> None:
        self._account = account
        self._folder = folder
        self._stack = stack
        self._running = [self._start(), self._start()]

    def _start(self) -> Process:
        options = ("--native-mode", "--namespace=nodewise", f"--sync-period={PERIOD_S:g}s")
        return self._stack.enter_context(extender_process.controller(self._account, self._folder, *options))

    def kill(self, holder: str) -> None:
        """Kills the replica with this identity, and starts another one."""
        killed = next(process for process in self._running if holder in process.log.read_text())
        killed.kill()
        self._running.remove(killed)
        self._running.append(self._start())


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
    chance, labels = random.Random(50), WrongLabels(plane)
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

    def leader() -> str | None:
        lease = sandbox.api.find(LEASE)
        return (lease or {}).get("spec", {}).get("holderIdentity") or None

    with contextlib.ExitStack() as stack:
        replicas = ControllerReplicas(native_account, tmp_path, stack)
        stack.enter_context(labels)
        killed = ""
        for _ in range(KILLS):
            holder = wait("another replica leads", lambda k=killed: h if (h := leader()) != k else None)
            change()
            time.sleep(chance.uniform(0, 1))
            replicas.kill(holder)
            killed = holder
            wait("all labels are right", lambda: labels.are_right() or None, show=labels.wrong)
        assert labels.longest_s < 2 * PERIOD_S
    assert labels.checks > 10 * KILLS
