"""Replicas of `nodewise controller --shards N` share the nodes: each node is written by the holder of its shard."""

import contextlib
import json
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import pytest

from nodewise.kube import shard_election
from tests import short_and_long_case_counts
from tests.cluster import (
    api_user_kubeconfigs,
    audit_log_reader,
    child_processes,
    extender_process,
    kubernetes_objects,
    native_mode,
)
from tests.cluster.api_client import Object
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.killed_leaders import StateComparison
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import policy
from tests.cluster.test_native_mode_failover import Labels, labels_of_nodes
from tests.forked_commands import ForkedProcess

KILLS: Final = short_and_long_case_counts.of(1, 50)
PERIOD_S: Final = 4.0
LEASE_S: Final = 5.0
NODES: Final = [f"n{number:02}" for number in range(24)]
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/nodewise/leases"


class ShardedServer(NamedTuple):
    """An API server with the feature gate ShardedListAndWatch, on the etcd of the control plane, and its audit log."""

    url: str
    log: Path


@pytest.fixture(scope="module")
def sharded_server(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> ShardedServer:
    folder = tmp_path_factory.mktemp("sharded-audit")
    port = child_processes.free_port()
    rules = [
        {"level": "Request", "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}]},
        {"level": "Metadata", "resources": [{"group": "", "resources": ["nodes"]}]},
        {"level": "None"},
    ]
    flags = audit_log_reader.flags(folder)
    Path(flags["audit-policy-file"]).write_text(json.dumps(audit_log_reader.POLICY | {"rules": rules}))
    gate = {"feature-gates": "ShardedListAndWatch=true", "secure-port": str(port)}
    process = plane.start_api_server(flags | gate)
    url = f"https://127.0.0.1:{port}"
    process.wait_ready(lambda: plane.api.answers(f"{url}/readyz"))
    return ShardedServer(url, folder / "audit.log")


class Replicas:
    """Replicas of the controller. Each has its own token, by which the audit log tells them apart."""

    def __init__(self, plane: ControlPlane, account: User, url: str, folder: Path) -> None:
        self._plane = plane
        self._account = account
        self._url = url
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self.running: dict[str, Process] = {}
        """By identity."""
        self.credentials: dict[str, str] = {}
        """By identity, the id of the token."""
        self.shards: dict[str, int] = {}
        """By identity."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, shards: int, url: str = "") -> str:
        """Starts a replica, and returns its identity."""

        identity = f"replica-{child_processes.number()}"
        token = api_user_kubeconfigs.service_account_token(
            self._plane.api, "nodewise", native_mode.NAMESPACE, 7200
        )
        config = json.loads(self._account.kubeconfig.read_text())
        config["clusters"][0]["cluster"]["server"] = url or self._url
        config["users"][0]["user"] = {"token": token}
        kubeconfig = self._folder / f"{identity}.kubeconfig"
        kubeconfig.write_text(json.dumps(config))
        self.shards[identity] = shards
        self.credentials[identity] = f"JTI={_token_id(token)}"
        command: list[str | Path] = [
            extender_process.NODEWISE,
            "controller",
            "--log-format=json",
            f"--kubeconfig={kubeconfig}",
            f"--identity={identity}",
            "--health-port=0",
            "--native-mode",
            "--namespace=nodewise",
            f"--sync-period={PERIOD_S:g}s",
            f"--shards={shards}",
        ]
        process = ForkedProcess(command, self._folder / f"{identity}.log")
        self._stack.callback(process.stop)
        self.running[identity] = process
        return identity

    def kill(self, identity: str) -> None:
        self.running.pop(identity).kill()

    def stop(self, identity: str) -> None:
        self.running.pop(identity).stop()


def _token_id(token: str) -> str:
    import base64

    payload = token.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return str(claims["jti"])


def holders(sandbox: Sandbox, shards: int) -> list[str]:
    """The holder of each shard; empty for none."""
    leases = (sandbox.api.find(f"{LEASES}/{shard_election.shard_lease(shard)}") for shard in range(shards))
    return [(lease or {}).get("spec", {}).get("holderIdentity") or "" for lease in leases]


class Policies:
    """Policies of several metrics, whose values change, and the labels that follow."""

    def __init__(self, sandbox: Sandbox, metrics: FakeCustomMetricsApi, chance: random.Random) -> None:
        self._metrics = metrics
        self._chance = chance
        sandbox.nodes(*map(kubernetes_objects.node, NODES))
        self._values = {metric: dict.fromkeys(NODES, 20) for metric in ("heat", "load")}
        self.uids = {}
        for metric, nodes in self._values.items():
            metrics.set(metric, nodes)
            spec = {
                "podSelector": {"matchLabels": {"app": metric}},
                "avoid": [{"metric": metric, "above": 80}],
            }
            self.uids[metric] = sandbox.put(policy(spec, name=metric))["metadata"]["uid"]

    def change(self) -> Labels:
        """Changes about half of the values, and returns the labels that follow."""
        for metric, nodes in self._values.items():
            nodes |= {node: self._chance.choice((20, 90)) for node in NODES}
            self._metrics.set(metric, dict(nodes))
        return {
            (node, uid): "violating" if self._values[metric][node] > 80 else ""
            for metric, uid in self.uids.items()
            for node in NODES
        }

    def statuses(self, sandbox: Sandbox) -> dict[str, Object]:
        """The status of each policy, by its metric."""
        path = f"/apis/nodewise.io/v1alpha1/namespaces/{sandbox.namespace}/placementpolicies"
        return {metric: sandbox.api.get(f"{path}/{metric}").get("status", {}) for metric in self.uids}

    def are_counted(self, sandbox: Sandbox, expected: Labels) -> bool:
        """Whether each policy is active, and its status counts the nodes that it rejects."""
        statuses = self.statuses(sandbox)
        return all(
            statuses[metric].get("active")
            and statuses[metric].get("rejectedNodes")
            == sum(value == "violating" for (_, of), value in expected.items() if of == uid)
            for metric, uid in self.uids.items()
        )


class AuditedWrite(NamedTuple):
    """A successful write, as the audit log has it."""

    began: str
    ended: str
    credential: str
    body: Object


def audited_writes(server: ShardedServer) -> Iterator[tuple[str, str, AuditedWrite]]:
    """The successful writes to leases and nodes, with resource and name, oldest first."""
    *whole, _ = server.log.read_text().split("\n")
    entries = [json.loads(line) for line in whole]
    for entry in sorted(entries, key=lambda entry: str(entry["requestReceivedTimestamp"])):
        about, code = entry.get("objectRef", {}), entry.get("responseStatus", {}).get("code", 0)
        if entry["verb"] not in ("create", "update", "patch") or code >= 300:
            continue
        credential = entry["user"].get("extra", {}).get("authentication.kubernetes.io/credential-id", [""])[0]
        body = entry.get("requestObject") or {}
        name = about.get("name") or body.get("metadata", {}).get("name", "")
        write = AuditedWrite(entry["requestReceivedTimestamp"], entry["stageTimestamp"], credential, body)
        yield about.get("resource", ""), name, write


class NodeWriteCheck(NamedTuple):
    """The result of comparing the writes to nodes with the Leases of their shards."""

    writes: int
    foreign: list[str]
    """Writes by a replica that did not hold the shard of the node, or while another one acquired it."""


def check_node_writes(server: ShardedServer, uids: Mapping[str, str], replicas: Replicas) -> NodeWriteCheck:
    """Compares each write to a node with the Leases at that time.

    The last write of the Lease of its shard that ended before the write to the node began must name its writer, and so
    must each one that ended during it. The record in the leader's Lease must have the number of shards of the writer.
    """
    leases: dict[str, list[tuple[str, str]]] = {}
    records: list[tuple[str, str]] = []
    node_writes: list[tuple[str, AuditedWrite]] = []
    identities = {credential: identity for identity, credential in replicas.credentials.items()}
    for resource, name, write in audited_writes(server):
        if resource == "leases":
            annotations = write.body["metadata"].get("annotations", {})
            layout = shard_election.parse_layout(annotations)
            records += [(write.ended, str(layout))] if name == "nodewise-controller" else []
            holder = write.body.get("spec", {}).get("holderIdentity") or ""
            leases.setdefault(name, []).append((write.ended, holder))
        elif resource == "nodes" and write.credential in identities:
            node_writes.append((name, write))
    foreign = []
    for name, write in node_writes:
        identity = identities[write.credential]
        shards = replicas.shards[identity]
        shard = shard_election.shard_of(uids[name], shards)
        lease = "nodewise-controller" if shards == 1 else shard_election.shard_lease(shard)
        holders_then = _values_during(leases.get(lease, []), write)
        records_then = _values_during(records, write)
        if holders_then != {identity} or records_then != {str(shard_election.ShardLayout(shards))}:
            foreign.append(f"{name} by {identity} at {write.began}: {lease} {holders_then} {records_then}")
    return NodeWriteCheck(len(node_writes), foreign)


def _values_during(history: list[tuple[str, str]], write: AuditedWrite) -> set[str]:
    """The value when a write began, and all until it ended."""
    before = [value for ended, value in sorted(history) if ended <= write.began]
    return {*before[-1:], *(value for ended, value in history if write.began < ended <= write.ended)}


def uids_of_nodes(sandbox: Sandbox) -> dict[str, str]:
    nodes = sandbox.api.get("/api/v1/nodes")["items"]
    return {node["metadata"]["name"]: node["metadata"]["uid"] for node in nodes}


def test_two_replicas_share_two_shards_and_a_killed_one_hands_over(
    plane: ControlPlane,
    sandbox: Sandbox,
    metrics: FakeCustomMetricsApi,
    native_account: User,
    sharded_server: ShardedServer,
    tmp_path: Path,
) -> None:
    chance = random.Random(3)
    policies, labels = Policies(sandbox, metrics, chance), StateComparison(plane, labels_of_nodes)
    with Replicas(plane, native_account, sharded_server.url, tmp_path) as replicas:
        replicas.start(2)
        replicas.start(2)
        wait(
            "each replica holds a shard",
            lambda: sorted(holders(sandbox, 2)) == sorted(replicas.running) or None,
            show=lambda: holders(sandbox, 2),
        )
        with labels:
            labels.expected = policies.change()
            wait("all labels are right", lambda: labels.is_right() or None, show=labels.wrong)
            labels.longest_s = 0.0
            wait(
                "the status has the nodes of both shards",
                lambda: policies.are_counted(sandbox, labels.expected) or None,
                show=lambda: policies.statuses(sandbox),
            )
            for number in range(KILLS):
                labels.expected = policies.change()
                time.sleep(chance.uniform(0, PERIOD_S))
                replicas.kill(chance.choice(sorted(replicas.running)))
                labels.count_from_now()
                replicas.start(2)
                wait(
                    f"all labels are right after kill {number}",
                    lambda: labels.is_right() or None,
                    show=labels.wrong,
                )
                wait(
                    "each replica holds a shard",
                    lambda: sorted(holders(sandbox, 2)) == sorted(replicas.running) or None,
                    show=lambda: holders(sandbox, 2),
                )
        checked = check_node_writes(sharded_server, uids_of_nodes(sandbox), replicas)
        assert checked.writes > KILLS * len(NODES) / 2
        assert checked.foreign == []
        assert labels.longest_s < LEASE_S + PERIOD_S


def test_number_of_shards_changes_in_a_rolling_restart_and_no_node_has_two_writers(
    plane: ControlPlane,
    sandbox: Sandbox,
    metrics: FakeCustomMetricsApi,
    native_account: User,
    sharded_server: ShardedServer,
    tmp_path: Path,
) -> None:
    policies, labels = Policies(sandbox, metrics, random.Random(4)), StateComparison(plane, labels_of_nodes)
    with Replicas(plane, native_account, sharded_server.url, tmp_path) as replicas, labels:
        old = [replicas.start(1), replicas.start(1)]
        labels.expected = policies.change()
        wait("all labels are right", lambda: labels.is_right() or None, show=labels.wrong)
        for identity in old:
            replicas.start(3)
            labels.expected = policies.change()
            replicas.stop(identity)
        wait(
            "the new replicas hold all shards",
            lambda: set(holders(sandbox, 3)) == set(replicas.running) or None,
            show=lambda: holders(sandbox, 3),
        )
        labels.expected = policies.change()
        wait("all labels are right with shards", lambda: labels.is_right() or None, show=labels.wrong)
        checked = check_node_writes(sharded_server, uids_of_nodes(sandbox), replicas)
        assert checked.writes > len(NODES)
        assert checked.foreign == []
