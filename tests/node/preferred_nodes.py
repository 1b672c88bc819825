"""Pods that prefer one of two nodes, and a policy that leaves them the other.

One node is real; the other one is only an object for kube-scheduler, on which pods do not run.
"""

from typing import Any, Final

from tests.cluster import extender_process, kubernetes_objects
from tests.cluster.api_client import Object
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox
from tests.node import host_with_kubelet, script_pods

FAR: Final = "far"


def policy(host_sandbox: Sandbox, metrics_api: FakeCustomMetricsApi, hot: str) -> None:
    """Create the node `FAR`, and the policy `pol`, which makes kube-scheduler avoid the hot node."""
    far_node(host_sandbox, metrics_api, hot)
    extender_process.policy(host_sandbox, dontschedule=[extender_process.HOT])


def far_node(host_sandbox: Sandbox, metrics_api: FakeCustomMetricsApi, hot: str) -> None:
    """Create the node `FAR`, and the metric `heat`, which is high on the hot node."""
    # the pods of this module tolerate it; pods that have to run do not
    taint = {"key": "nodewise.test/no-kubelet", "effect": "NoSchedule"}
    far = kubernetes_objects.node(FAR, pods=1000)
    host_sandbox.nodes(far | {"spec": {"taints": [taint]}})
    metrics_api.set("heat", {name: 90 if name == hot else 10 for name in (host_with_kubelet.NAME, FAR)})


def plain(name: str, rather: str, **spec: Any) -> Object:
    """A pod that is placed on a node unless something prevents it."""
    return script_pods.pod(name, "exec sleep 1000", affinity=_rather(rather), **spec)


def with_policy(name: str, rather: str, **spec: Any) -> Object:
    """The same pod with the policy."""
    made = plain(name, rather, container={"resources": {"limits": extender_process.LIMITS}}, **spec)
    made["metadata"]["labels"] = {"telemetry-policy": "pol"}
    return made


def _rather(node: str) -> Object:
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    term = {"weight": 100, "preference": {"matchExpressions": [expression]}}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
