"""Two tenants of one cluster, and nodewise with the rights that ship: the cluster of `test_tenants.py`.

A tenant has a namespace without trust and may write pods and TASPolicies there, as the ClusterRole `edit` allows, and
nothing else. The only success of an attack test is that nothing of the other tenant changes:

    with stage.unchanged():
        stage.attacker.policy("evil", labeling=[HOT | {"labels": ["gas-disable-card0=true"]}])
        stage.settle()

`settle` waits until nodewise has read everything that was written before and has written everything that follows from
it, so that a successful attack is visible, and the absence of an effect is significant.
"""

import contextlib
import itertools
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from tests.cluster import (
    api_user_kubeconfigs,
    asgi_server_thread,
    extender_process,
    fake_custom_metrics_server,
    gpu_cluster,
    kubernetes_objects,
    namespace_sandboxes,
)
from tests.cluster.api_client import ClusterApi, Object
from tests.cluster.asgi_server_thread import Receive, Scope, Send
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import HOT, OWN_NAMESPACE, ExtenderProcess
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait

__all__ = ["HOT", "NODES", "POLICY_LABEL", "Tenant", "TenantCluster", "running"]

NODES = ("g1", "g2")
"""Nodes with two GPUs each; the metric `heat` is 90 on both, so the rule `HOT` is broken everywhere."""
POLICY_LABEL = "telemetry-policy"
TASPOLICY = "telemetry.intel.com/v1alpha1"
PROBE = "settled"
"""The name prefix of the policies in nodewise's own namespace whose labels tell `settle` that nodewise has written
labels.
"""

_RIGHTS = [
    api_user_kubeconfigs.rule("get list watch create update patch delete", "pods pods/status"),
    api_user_kubeconfigs.rule(
        "get list watch create update patch delete", "taspolicies", "telemetry.intel.com"
    ),
]
_numbers = itertools.count(1)


class Tenant:
    """A user who may write pods and policies in one namespace."""

    def __init__(self, plane: ControlPlane, name: str) -> None:
        self.sandbox: Sandbox = Sandbox(plane, trusted=False)
        self.namespace = self.sandbox.namespace
        self.api: ClusterApi = plane.user(f"{name}-{self.namespace}", _RIGHTS, self.namespace).api

    def policy(self, name: str, **strategies: list[Object]) -> Object:
        """Creates a TASPolicy with these strategies, each a list of rules."""
        return self.api.create(policy(name, self.namespace, **strategies))

    def pod(self, name: str, node: str = "", **fields: Any) -> Object:
        """Creates a pod (see `kubernetes_objects.pod`), bound to a node if `node` is given."""
        made = kubernetes_objects.pod(name, **fields)
        return self.create(kubernetes_objects.running_on(node, made) if node else made)

    def gpu_pod(self, name: str, node: str, cards: str) -> Object:
        """Creates a running pod that holds these GPUs according to the annotation of the older system."""
        made = kubernetes_objects.running_on(node, gpu_cluster.pod(name))
        made["metadata"]["annotations"] = {gpu_cluster.CARDS: cards}
        created = self.create(made)
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/status"
        self.sandbox.api.patch(path, {"status": {"phase": "Running"}})
        return created

    def put_waiting_pods(self, pods: Sequence[Object], message: str = "nodewise: no") -> None:
        """Creates pods of no scheduler, with the condition that a scheduler writes if no node is feasible."""
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
        }

        def put(pod: Object) -> None:
            made = self.create(pod | {"spec": pod["spec"] | {"schedulerName": "none"}})
            path = f"/api/v1/namespaces/{self.namespace}/pods/{made['metadata']['name']}/status"
            self.api.patch(path, {"status": {"conditions": [condition]}})

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(put, pods))

    def create(self, obj: Object) -> Object:
        """Creates an object in the tenant's namespace, with the tenant's rights."""
        return self.api.create(obj | {"metadata": obj["metadata"] | {"namespace": self.namespace}})

    def status(self, name: str) -> Object:
        """The status of one of the tenant's policies; empty if it has none."""
        return extender_process.status(self.sandbox, name)

    def condition(self, kind: str, name: str) -> Object:
        """A condition of one of the tenant's policies; its status is empty if the condition is missing."""
        return extender_process.condition(self.sandbox, kind, name)

    def delete_policies(self) -> None:
        self.sandbox.api.delete(f"/apis/{TASPOLICY}/namespaces/{self.namespace}/taspolicies")


class SecretSeries:
    """A fake Prometheus with one series per node, `victim_secret`, which belongs to the other tenant.

    It evaluates `floor(victim_secret / 2^N) % 2`, one bit of the value; every other query has an empty result.
    """

    def __init__(self) -> None:
        self.value = 0
        self.asked: list[str] = []
        """All queries that it has received."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = (await asgi_server_thread.body_of(receive)).decode() or scope["query_string"].decode()
        query = parse_qs(sent).get("query", [""])[0]
        self.asked.append(query)
        bit = re.fullmatch(r"floor\(victim_secret / 2\^(\d+)\) % 2", query)
        values = {} if bit is None else dict.fromkeys(NODES, self.value >> int(bit[1]) & 1)
        series = [
            {"metric": {"node": node}, "value": [time.time(), str(value)]} for node, value in values.items()
        ]
        data = {"resultType": "vector", "result": series}
        await asgi_server_thread.answer(send, 200, {"status": "success", "data": data})


class TenantCluster(NamedTuple):
    """The cluster, nodewise, and the two tenants."""

    plane: ControlPlane
    metrics: FakeCustomMetricsApi
    """The fake custom metrics API."""
    served: ExtenderProcess
    """nodewise, with the agents telemetry and gpu; its own namespace is `default`."""
    attacker: Tenant
    victim: Tenant
    prometheus: SecretSeries

    def state(self) -> Object:
        """The state that an attacker must not change: nodes, and the other tenant's pods and policies."""
        api, inside = self.plane.api, f"namespaces/{self.victim.namespace}"
        nodes = {node["metadata"]["name"]: _node(node) for node in api.get("/api/v1/nodes")["items"]}
        pods = api.get(f"/api/v1/{inside}/pods")["items"]
        policies = api.get(f"/apis/{TASPOLICY}/{inside}/taspolicies")["items"]
        return {
            "nodes": nodes,
            "pods": {pod["metadata"]["name"]: _pod(pod) for pod in pods},
            "policies": {policy["metadata"]["name"]: policy["spec"] for policy in policies},
        }

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Checks that the state at the end is equal to the state at the beginning."""
        before = self.state()
        yield
        after = self.state()
        assert after == before, f"found {after}, expected {before}"

    def settle(self) -> None:
        """Waits until nodewise has acted on everything that was written before.

        A policy in nodewise's own namespace labels every node. nodewise writes the node labels of all policies
        together, and labels pods according to the node's labels, so this function waits for two rounds.
        """
        for _ in range(2):
            name = f"{PROBE}-{next(_numbers)}"
            key = f"telemetry.aware.scheduling.{name}/seen"
            self.plane.api.create(policy(name, OWN_NAMESPACE, labeling=[HOT | {"labels": ["seen=yes"]}]))
            wait(
                f"all nodes have {key}", partial(self._count, key, len(NODES)), show=self.served.process.tail
            )
            self.plane.api.delete(f"/apis/{TASPOLICY}/namespaces/{OWN_NAMESPACE}/taspolicies/{name}")
            wait(f"no node has {key}", partial(self._count, key, 0), show=self.served.process.tail)

    def _count(self, key: str, expected: int) -> bool | None:
        """Whether exactly `expected` nodes have a label."""
        return sum(key in self.node_labels(node) for node in NODES) == expected or None

    def node_labels(self, node: str) -> Object:
        labels: Object = self.plane.api.get(f"/api/v1/nodes/{node}")["metadata"]["labels"]
        return labels


def policy(name: str, namespace: str, **strategies: list[Object]) -> Object:
    """A TASPolicy with these strategies, each a list of rules."""
    return {
        "apiVersion": TASPOLICY,
        "kind": "TASPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"strategies": {strategy: {"rules": rules} for strategy, rules in strategies.items()}},
    }


def _node(node: Object) -> Object:
    metadata = node["metadata"]
    own = {"labels": metadata.get("labels", {}), "annotations": metadata.get("annotations", {})}
    return own | {"spec": node["spec"], "allocatable": node["status"].get("allocatable", {})}


def _pod(pod: Object) -> Object:
    metadata = pod["metadata"]
    kept = {key: metadata.get(key) for key in ("uid", "labels", "annotations", "deletionTimestamp")}
    return kept | {"node": pod["spec"].get("nodeName")}


@contextlib.contextmanager
def running(plane: ControlPlane, folder: Path, *flags: str) -> Iterator[TenantCluster]:
    """Runs the cluster with nodewise, which is ready and the leader; `flags` are added to its command line."""
    with namespace_sandboxes.created(plane) as own, fake_custom_metrics_server.behind(own, folder) as metrics:
        extender_process.define(plane.api)
        own.nodes(*(gpu_cluster.node(name, cards=2) for name in NODES))
        metrics.set("heat", dict.fromkeys(NODES, 90))
        tenants = [Tenant(plane, name) for name in ("attacker", "victim")]
        prometheus = SecretSeries()
        try:
            with (
                asgi_server_thread.serving(prometheus) as url,
                gpu_cluster.extender(
                    plane, folder, "--agents=telemetry,gpu", f"--prometheus-url={url}", *flags
                ) as serving,
            ):
                serving.wait_leading()
                yield TenantCluster(plane, metrics, serving, *tenants, prometheus)
        finally:
            for tenant in tenants:
                tenant.delete_policies()
                tenant.sandbox.clean()
