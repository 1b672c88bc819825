"""Preemption for a pod that nodewise rejects on all nodes: the candidates of the scheduler, and its message.

Pods of lower priority are on all nodes.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from nodewise.cli import demo
from tests.cluster import fake_scheduler_extender, kubernetes_objects
from tests.cluster.api_client import Object
from tests.cluster.scheduler_interface import CLAIMS, SchedulerUnderTest

pytestmark = [
    pytest.mark.kubernetes_versions,
    pytest.mark.parametrize("scheduler", ["kube-scheduler"], indirect=True),
]

PRIORITY = 1000
MARK = {"telemetry/scheduling": "1"}
MANAGED = [{"name": name, "ignoredByScheduler": True} for name in MARK]


def policy(name: str, app: str, **rule: object) -> Object:
    return {
        "apiVersion": "nodewise.io/v1alpha1",
        "kind": "ClusterPlacementPolicy",
        "metadata": {"name": name},
        "spec": {"podSelector": {"matchLabels": {"app": app}}, "namespaceSelector": {}, "avoid": [rule]},
    }


@contextlib.contextmanager
def nodewise(folder: Path, objects: Sequence[Object], metrics: str, *arguments: str) -> Iterator[Object]:
    """A running extender with these objects and metrics, as its entry of the scheduler's configuration."""
    (folder / "objects.yaml").write_text(yaml.safe_dump_all(objects))
    (folder / "metrics.csv").write_text("node,metric,value\n" + metrics)
    with demo.extender([f"--objects-from={folder}", *arguments]) as running:
        running.wait_ready()
        yield fake_scheduler_extender.entry(f"{running.url}/scheduler")


def lesser_pods(nodes: Sequence[Object]) -> list[Object]:
    """A pod without priority on each node."""
    names = [node["metadata"]["name"] for node in nodes]
    return [kubernetes_objects.running_on(name, kubernetes_objects.pod(f"lesser-{name}")) for name in names]


def not_helpful(count: int, reason: str) -> str:
    of = f"0/{count} nodes are available: {count}"
    return f"{of} {reason}. {CLAIMS}preemption: {of} Preemption is not helpful for scheduling."


def test_the_message_of_a_pod_that_a_metric_rejects_does_not_grow_with_the_nodes(
    scheduler: SchedulerUnderTest, tmp_path: Path
) -> None:
    """With these nodes in FailedNodes, kube-scheduler up to 1.37 reports and logs an error for each of them."""
    nodes = kubernetes_objects.nodes(" ".join(f"n{number}" for number in range(60)))
    heat = "".join(f"{node['metadata']['name']},temp,{81 + at}\n" for at, node in enumerate(nodes))
    objects = [*nodes, policy("cool", "web", metric="temp", above=80)]
    with (
        nodewise(tmp_path, objects, heat) as entry,
        scheduler.cluster(nodes, [entry | {"managedResources": MANAGED}], lesser_pods(nodes)) as cluster,
    ):
        web = kubernetes_objects.pod("web", labels={"app": "web"}, limits=MARK, priority=PRIORITY)
        outcome = cluster.submit(web)["web"]
        assert outcome.message == not_helpful(60, "cluster placement policy cool: temp above 80")
        assert cluster.event("web") == outcome.message
        assert cluster.log_errors() == []
        assert not any(cluster.is_gone(f"lesser-n{number}") for number in range(60))


def test_the_same_holds_for_missing_values_and_unknown_policies(
    scheduler: SchedulerUnderTest, tmp_path: Path
) -> None:
    nodes = kubernetes_objects.nodes("a b c")
    objects = [*nodes, policy("quiet", "shop", metric="noise", above=40, whenMissing="Reject")]
    with (
        nodewise(tmp_path, objects, "elsewhere,noise,3\n") as entry,
        scheduler.cluster(nodes, [entry | {"managedResources": MANAGED}], lesser_pods(nodes)) as cluster,
    ):
        shop = kubernetes_objects.pod("shop", labels={"app": "shop"}, limits=MARK, priority=PRIORITY)
        lost = kubernetes_objects.pod(
            "lost", labels={"telemetry-policy": "gone"}, limits=MARK, priority=PRIORITY
        )
        outcomes = cluster.submit(shop, lost)
        assert outcomes["shop"].message.endswith("3 Preemption is not helpful for scheduling.")
        assert outcomes["lost"].message.endswith("3 Preemption is not helpful for scheduling.")
        assert "does not exist" in outcomes["lost"].message
        assert cluster.log_errors() == []


def gpu_node(name: str, millicores: int) -> Object:
    resources = {"gpu.intel.com/i915": "8", "gpu.intel.com/millicores": str(millicores)}
    return kubernetes_objects.node(name, labels={"gpu.intel.com/gpu-numbers": "0.1"}, extra=resources)


def gpu_pod(name: str, millicores: int, priority: int = 0) -> Object:
    limits = {"gpu.intel.com/i915": "1", "gpu.intel.com/millicores": str(millicores)}
    return kubernetes_objects.pod(name, limits=limits, priority=priority)


def test_a_node_whose_gpus_are_too_small_is_no_candidate_and_a_full_one_is(
    scheduler: SchedulerUnderTest, tmp_path: Path
) -> None:
    """kube-scheduler compares the sums of a node's GPUs, so that the pod fits `full` for it without any victim."""
    small, full = gpu_node("small", 1200), gpu_node("full", 2000)
    holders = [
        kubernetes_objects.running_on("full", gpu_pod(f"holder-{number}", 600))
        | {"metadata": {"name": f"holder-{number}", "annotations": {"gas-container-cards": f"card{number}"}}}
        for number in (0, 1)
    ]
    cached = [
        pod | {"metadata": pod["metadata"] | {"namespace": "d", "uid": pod["metadata"]["name"]}}
        for pod in holders
    ]
    with nodewise(tmp_path, [small, full, *cached], "", "--agents=gpu") as entry:
        with scheduler.cluster([small], [entry], lesser_pods([small])) as cluster:
            outcome = cluster.submit(gpu_pod("large", 700, PRIORITY))["large"]
            assert outcome.message.endswith("1 Preemption is not helpful for scheduling.")
            assert cluster.log_errors() == []
        with scheduler.cluster([small, full], [entry], [*holders, *lesser_pods([small])]) as cluster:
            outcome = cluster.submit(gpu_pod("large", 700, PRIORITY))["large"]
            assert outcome.message.endswith('preemption: expected at least one victim pod on node "full"')
