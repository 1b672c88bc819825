"""The controller and the extender behind a network with faults: silent connections, latency, missing API groups."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import (
    api_server_front,
    extender_process,
    faulty_network,
    kubernetes_objects,
    native_mode,
)
from tests.cluster.api_client import path_of
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import policy

LEASE = "/apis/coordination.k8s.io/v1/namespaces/nodewise/leases/nodewise-controller"
SPEC = {"podSelector": {"matchLabels": {"app": "web"}}, "avoid": [{"metric": "heat", "above": 80}]}
OPTIONS = ("--native-mode", "--namespace=nodewise", "--sync-period=1s")
PATIENCE_S = 180.0
"""Longest wait on a loaded machine. Without a limit of its own, a program waits 15 minutes for a silent connection."""


def events(process: Process, name: str) -> list[dict[str, Any]]:
    """The log lines of a program with this event."""
    lines = [line for line in process.log.read_text().splitlines() if line.startswith("{")]
    return [event for event in map(json.loads, lines) if event["event"] == name]


def nodes_with_label(sandbox: Sandbox, uid: str) -> set[str]:
    """The nodes that violate a policy by their labels."""
    return {
        node["metadata"]["name"]
        for node in sandbox.api.get("/api/v1/nodes")["items"]
        if native_mode.labels_of(node).get(uid) == "violating"
    }


def wait_labels(sandbox: Sandbox, uid: str, nodes: set[str], deadline_s: float = 60) -> None:
    def are_right() -> bool | None:
        return nodes_with_label(sandbox, uid) == nodes or None

    wait(f"{nodes} violate", are_right, deadline_s, show=lambda: nodes_with_label(sandbox, uid))


def holder(sandbox: Sandbox) -> str:
    """The identity of the leader; empty if there is none."""
    lease = sandbox.api.find(LEASE) or {}
    return str(lease.get("spec", {}).get("holderIdentity") or "")


def wait_renewal(sandbox: Sandbox, leader: str, what: str) -> None:
    """Waits until the Lease is renewed, and fails if it has another holder."""
    before = sandbox.api.get(LEASE)["spec"]["renewTime"]

    def is_renewed() -> bool | None:
        assert holder(sandbox) == leader
        return sandbox.api.get(LEASE)["spec"]["renewTime"] != before or None

    wait(what, is_renewed, PATIENCE_S)


def through(account: User, kubeconfig: Path) -> Any:
    """The account with another kubeconfig."""
    changed = object.__new__(User)
    changed.__dict__ |= account.__dict__ | {"kubeconfig": kubeconfig}
    return changed


def test_changes_take_effect_after_connections_have_gone_silent(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, native_account: User, tmp_path: Path
) -> None:
    sandbox.nodes(*map(kubernetes_objects.node, "ab"))
    metrics.set("heat", {"a": 90, "b": 85, "c": 90})
    made = sandbox.put(policy(SPEC, name="cool"))
    uid = made["metadata"]["uid"]
    user = extender_process.user(plane)
    (folder := tmp_path / "extender").mkdir()
    with faulty_network.between(plane.url) as network:
        account = through(native_account, network.kubeconfig(native_account.kubeconfig, tmp_path))
        user = through(user, network.kubeconfig(user.kubeconfig, folder))
        with (
            extender_process.controller(account, tmp_path, *OPTIONS) as process,
            extender_process.extender(plane, folder, by=user) as extender,
        ):

            def rejected_nodes() -> set[str]:
                labels = {"app": "web"}
                return {node for node in "abc" if extender.rejects(sandbox.namespace, node, labels=labels)}

            wait_labels(sandbox, uid, {"a", "b"})
            wait("the extender rejects a and b", lambda: rejected_nodes() == {"a", "b"} or None, PATIENCE_S)
            leader = holder(sandbox)
            assert network.silence() > 6
            sandbox.nodes(kubernetes_objects.node("c"))
            warmer = {"spec": SPEC | {"avoid": [{"metric": "heat", "above": 87}]}}
            sandbox.api.patch(path_of(made), warmer)
            wait_labels(sandbox, uid, {"a", "c"}, PATIENCE_S)
            wait("the extender rejects a and c", lambda: rejected_nodes() == {"a", "c"} or None, PATIENCE_S)
            assert holder(sandbox) == leader
            for program in (process, extender.process):
                assert "Node" in {event["kind"] for event in events(program, "kube_lost")}


@pytest.mark.parametrize("renewals", [3, pytest.param(60, marks=pytest.mark.long)])
def test_with_2_s_per_call_one_replica_leads_and_keeps_the_lead(
    plane: ControlPlane, sandbox: Sandbox, native_account: User, tmp_path: Path, renewals: int
) -> None:
    with faulty_network.between(plane.url) as network:
        network.delay_s = 1.0
        account = through(native_account, network.kubeconfig(native_account.kubeconfig, tmp_path))
        with (
            extender_process.controller(account, tmp_path, *OPTIONS) as first,
            extender_process.controller(account, tmp_path, *OPTIONS) as second,
        ):
            processes = (first, second)
            wait("one leads", lambda: [p for p in processes if events(p, "leading")] or None, PATIENCE_S)
            leader = holder(sandbox)
            for number in range(renewals):
                wait_renewal(sandbox, leader, f"renewal {number}")
            assert sandbox.api.get(LEASE)["spec"]["leaseDurationSeconds"] == 30
            assert sum(len(events(process, "leading")) for process in processes) == 1
            assert not [event for process in processes for event in events(process, "not_leading")]


def test_labels_stay_while_the_kinds_of_policies_are_missing_for_a_moment(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, native_account: User, tmp_path: Path
) -> None:
    sandbox.nodes(*map(kubernetes_objects.node, "ab"))
    metrics.set("heat", {"a": 90, "b": 20})
    uid = sandbox.put(policy(SPEC, name="cool"))["metadata"]["uid"]
    with api_server_front.serving(plane.url, plane.authority.client_context(None)) as front:
        account = through(native_account, front.kubeconfig(native_account.kubeconfig, tmp_path))
        with extender_process.controller(account, tmp_path, *OPTIONS) as process:
            wait_labels(sandbox, uid, {"a"})
            front.hidden_group = "nodewise.io"
            wait("requests get 404", lambda: front.refused >= 3 or None)
            metrics.set("heat", {"a": 90, "b": 95})

            def are_labelled() -> bool | None:
                nodes = nodes_with_label(sandbox, uid)
                assert "a" in nodes
                return (nodes == {"a", "b"} and front.refused >= 6) or None

            wait("b violates, and lists were refused again", are_labelled)
            assert not [e for e in events(process, "kube_kind_not_served") if e["kind"] == "PlacementPolicy"]
            front.hidden_group = ""
            late = sandbox.put(policy(SPEC, name="late"))["metadata"]["uid"]
            wait_labels(sandbox, late, {"a", "b"})
