"""Two replicas of `nodewise controller` on a real API server: one writes, and the other one takes over."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from nodewise.base import clock
from tests import plain_http
from tests.cluster import api_user_kubeconfigs, child_processes, extender_process
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import HOT, NODEWISE, OWN_NAMESPACE, heated
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.hostile.broken_agent_packages import BROKEN_PACKAGES

LEASE_S = 5 + 2.2
"""Seconds after which the Lease of a dead leader changes: it lasts 5 s and is checked at least every 2.2 s."""
SLACK_S = 60
"""Additional seconds for a loaded machine."""


class ControllerReplica:
    """A running `nodewise controller`."""

    def __init__(self, process: Process) -> None:
        self.process = process

    def leads(self) -> bool:
        return '"event":"leading"' in self.process.log.read_text().replace(" ", "")

    def is_ready(self) -> bool:
        lines = (line for line in self.process.log.read_text().splitlines() if line.startswith("{"))
        started = next((event for event in map(json.loads, lines) if event["event"] == "started"), None)
        if started is None:
            return False
        with contextlib.suppress(httpx2.TransportError):
            return plain_http.get(f"{started['health']}/readyz").status_code == httpx2.codes.OK
        return False


@contextlib.contextmanager
def replica(user: User, folder: Path) -> Iterator[ControllerReplica]:
    """Runs a replica and yields it once it is ready."""
    with extender_process.controller(user, folder, f"--namespace={OWN_NAMESPACE}") as process:
        running = ControllerReplica(process)
        process.wait_ready(running.is_ready)
        yield running


def controller_user(plane: ControlPlane) -> User:
    """A user with the shipped rights of the controller."""
    granted = {
        document["kind"]: document.get("rules") for document in extender_process.manifest("controller.yaml")
    }
    everywhere = [*extender_process.rules(), *granted["ClusterRole"]]
    made = plane.user(f"nodewise-{child_processes.number()}", everywhere)
    inside = [*extender_process.rules("Role"), *granted["Role"]]
    api_user_kubeconfigs.grant(plane.api, made.name, inside, OWN_NAMESPACE)
    return made


def until_labelled(sandbox: Sandbox, node: str, value: str, seconds: float = SLACK_S) -> None:
    def label() -> str:
        labels: dict[str, str] = sandbox.api.get(f"/api/v1/nodes/{node}")["metadata"]["labels"]
        return labels.get("pol", "")

    wait(f"{node} has pol={value}", lambda: label() == value or None, seconds, show=label)


def until_valid(sandbox: Sandbox, policy: str) -> None:
    def status() -> str:
        return str(extender_process.condition(sandbox, "Valid", policy)["status"])

    wait(f"{policy} has a status", lambda: status() == "True" or None, show=status)


def test_the_other_replica_takes_over_when_the_leader_is_killed(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> None:
    heated(sandbox, metrics, {"a": 90, "b": 50}, deschedule=[HOT])
    user = controller_user(plane)
    with replica(user, tmp_path) as first:
        wait("the first leads", lambda: first.leads() or None)
        with replica(user, tmp_path) as second:
            until_labelled(sandbox, "a", "violating")
            until_valid(sandbox, "pol")
            assert not second.leads()
            first.process.kill()
            metrics.set("heat", {"a": 20, "b": 95})
            sandbox.put(extender_process.tas_policy("late", {"dontschedule": {"rules": [HOT]}}))
            until_labelled(sandbox, "b", "violating", LEASE_S + SLACK_S)
            until_labelled(sandbox, "a", "")
            until_valid(sandbox, "late")
            assert second.leads()
            second.process.stop()
            # a replica that is terminated releases the Lease, so that another one leads at once
            path = f"/apis/coordination.k8s.io/v1/namespaces/{OWN_NAMESPACE}/leases/nodewise-controller"
            lease = sandbox.api.get(path)
            assert not lease["spec"].get("holderIdentity")
            evaluated = clock.parse_rfc3339(lease["metadata"]["annotations"]["nodewise.io/last-evaluation"])
            assert abs(clock.parse_rfc3339(lease["spec"]["renewTime"]) - evaluated) < SLACK_S


def test_broken_agent_packages_stop_neither_labels_nor_the_doctor(
    plane: ControlPlane,
    sandbox: Sandbox,
    metrics: FakeCustomMetricsApi,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The settings file is one of an extender that used the agents before an upgrade."""
    for number, install in enumerate(BROKEN_PACKAGES.values()):
        install(tmp_path / "site", f"broken{number}")
    settings = tmp_path / "settings.yaml"
    settings.write_text("telemetry: {max_age: 2m}\nbroken0: {label: a}\nbroken1_wait: 5s\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("NODEWISE_CONFIG", str(settings))
    heated(sandbox, metrics, {"a": 90, "b": 50}, deschedule=[HOT])
    with replica(controller_user(plane), tmp_path) as running:
        until_labelled(sandbox, "a", "violating")
        until_valid(sandbox, "pol")
        lines = [line for line in running.process.log.read_text().splitlines() if line.startswith("{")]
        events = [json.loads(line) for line in lines]
        ignored = [event["agent"] for event in events if event["event"] == "agent_settings_ignored"]
        assert ignored == ["broken0", "broken1"]
    command = [NODEWISE, "doctor", "-o", "json", f"--kubeconfig={plane.admin.kubeconfig}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "")
    assert json.loads(done.stdout)["checked"]
