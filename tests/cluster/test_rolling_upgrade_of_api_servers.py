"""Several API servers of different versions behind one address, as during a rolling upgrade: labels of native mode stay
right, none is removed, and nothing is written while nothing changes.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.cluster import (
    child_processes,
    controlplane,
    extender_process,
    fake_custom_metrics_server,
    kubernetes_objects,
    label_watch,
    load_balancer,
    namespace_sandboxes,
    native_mode,
)
from tests.cluster.api_client import path_of
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.label_watch import LabelWatch
from tests.cluster.load_balancer import BalancedEndpoint, LoadBalancer
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import policy

NODES: Final = [f"n{number}" for number in range(10)]
OLD: Final = {"emulated-version": "1.35", "storage-media-type": "application/json"}
NEW: Final = {"storage-media-type": "application/vnd.kubernetes.protobuf"}
REST_S: Final = 5.0
"""Ten periods of the controller."""


class ApiServers:
    """API servers of one etcd, behind a load balancer. The control plane's own one is not among them: tests use it."""

    def __init__(self, plane: ControlPlane, balancer: LoadBalancer) -> None:
        self._plane = plane
        self._balancer = balancer
        self._running: dict[str, tuple[Process, BalancedEndpoint]] = {}

    def start(self, name: str, flags: dict[str, str]) -> None:
        port = child_processes.free_port()
        url = f"https://127.0.0.1:{port}"
        server = self._plane.start_api_server(flags | {"secure-port": str(port)})
        self._running[name] = (server, BalancedEndpoint(url, url))
        self._publish()

    def stop(self, name: str) -> None:
        """Ends a server as an upgrade does: open connections are closed, new ones go to the others."""
        server, endpoint = self._running.pop(name)
        self._publish()
        wait("no new connection goes to it", lambda: endpoint not in self._balancer.ready or None)
        server.stop()

    def _publish(self) -> None:
        endpoints = [endpoint for _, endpoint in self._running.values()]
        self._balancer.set_endpoints(*endpoints)
        wait("the servers are ready", lambda: {*endpoints} <= {*self._balancer.ready} or None, 60)


@pytest.fixture(scope="module")
def own_plane(
    control_plane_programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    with controlplane.running(control_plane_programs, tmp_path_factory.mktemp("plane")) as plane:
        yield plane


def labels(sandbox: Sandbox, key: str) -> dict[str, str | None]:
    """The value of a label by node."""
    nodes = sandbox.api.get("/api/v1/nodes")["items"]
    return {node["metadata"]["name"]: node["metadata"].get("labels", {}).get(key) for node in nodes}


def resource_versions(sandbox: Sandbox) -> dict[str, str]:
    """The resource version of each node, which changes with each write."""
    nodes = sandbox.api.get("/api/v1/nodes")["items"]
    return {node["metadata"]["name"]: node["metadata"]["resourceVersion"] for node in nodes}


def test_labels_stay_right_and_nothing_is_written_at_rest(own_plane: ControlPlane, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        sandbox = stack.enter_context(namespace_sandboxes.created(own_plane))
        metrics = stack.enter_context(fake_custom_metrics_server.behind(sandbox, tmp_path))
        account = native_mode.install_with_account(own_plane)
        balancer = stack.enter_context(load_balancer.serving())
        servers = ApiServers(own_plane, balancer)
        servers.start("first", OLD)
        servers.start("second", OLD)
        config = account.kubeconfig.read_text().replace(own_plane.url, balancer.url)
        account.kubeconfig.write_text(config)

        sandbox.nodes(*map(kubernetes_objects.node, NODES))
        heat = {name: 90 if number % 2 else 10 for number, name in enumerate(NODES)}
        metrics.set("heat", heat)
        spec = {"podSelector": {}, "avoid": [{"metric": "heat", "above": 80}]}
        made = sandbox.put(policy(spec, name="cool"))
        key, path = native_mode.LABEL_PREFIX + made["metadata"]["uid"], path_of(made)
        log = stack.enter_context(
            extender_process.controller(account, tmp_path, "--native-mode", "--namespace=nodewise")
        ).log
        wait("the policy is active", lambda: sandbox.api.get(path).get("status", {}).get("active"), 60)
        expected = {name: "violating" if value > 80 else None for name, value in heat.items()}
        wait("the labels are right", lambda: labels(sandbox, key) == expected or None, 30)
        rejected = sum(map(bool, expected.values()))
        wait(
            "the status counts the rejected nodes",
            lambda: sandbox.api.get(path).get("status", {}).get("rejectedNodes") == rejected or None,
            30,
        )
        seen = stack.enter_context(label_watch.watch_labels(own_plane))
        rounds = Rounds(sandbox, seen, key, path)

        rounds.expect_rest("two old servers")
        servers.stop("first")
        rounds.expect_rest("one old server")
        servers.start("first", NEW)
        rounds.expect_rest("an old and a new server")
        metrics.set("heat", heat | {"n0": 95})
        rounds.expect_change("n0", None, "violating")
        servers.stop("second")
        rounds.expect_rest("one new server")
        metrics.set("heat", heat)
        rounds.expect_change("n0", "violating", None)
        servers.start("second", NEW | {"watch-cache": "false"})
        servers.stop("first")
        rounds.expect_rest("a new server without a watch cache")
        metrics.set("heat", heat | {"n1": 5})
        rounds.expect_change("n1", "violating", None)
        assert "lost_lease" not in log.read_text()


class Rounds:
    """Checks each stage of an upgrade."""

    def __init__(self, sandbox: Sandbox, seen: LabelWatch, key: str, policy_path: str) -> None:
        self._sandbox = sandbox
        self._seen = seen
        self._key = key
        self._path = policy_path
        self._count = 0

    def expect_rest(self, stage: str) -> None:
        """No label has changed since the last change that was expected, and no node is written now.

        The policy is written at most once: the numbers of nodes in its status follow a change after some seconds.
        """
        before = resource_versions(self._sandbox)
        policies = {self._policy_version()}
        end = time.monotonic() + REST_S
        while time.monotonic() < end:
            time.sleep(0.1)
            policies.add(self._policy_version())
        assert resource_versions(self._sandbox) == before, stage
        assert self._seen.of(self._key)[self._count :] == [], stage
        assert len(policies) <= 2, stage

    def _policy_version(self) -> str:
        version: str = self._sandbox.api.get(self._path)["metadata"]["resourceVersion"]
        return version

    def expect_change(self, node: str, old: str | None, new: str | None) -> None:
        """One label changes, and no other."""
        wait("the label changes", lambda: len(self._seen.of(self._key)) > self._count or None, 30)
        time.sleep(1)
        [change] = self._seen.of(self._key)[self._count :]
        assert (change.node, change.old, change.new) == (node, old, new)
        self._count += 1
