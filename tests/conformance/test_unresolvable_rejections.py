"""Which rejections evicting pods can cure, as kube-scheduler reads them from the responses of filter and preempt."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest

from nodewise.cli import demo
from nodewise.cli.demo import ExtenderProcess
from tests import plain_http

POLICIES = """
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {nvidia.com/gpu.count: "2"}}
status: {allocatable: {nvidia.com/gpu: "2", cpu: "8"}}
---
apiVersion: v1
kind: Node
metadata: {name: n2}
status: {allocatable: {cpu: "8"}}
---
apiVersion: nodewise.io/v1alpha1
kind: PlacementPolicy
metadata: {name: cool, namespace: web}
spec:
  podSelector: {matchLabels: {app: web}}
  avoid:
  - {metric: temp, above: 80}
---
apiVersion: nodewise.io/v1alpha1
kind: PlacementPolicy
metadata: {name: quiet, namespace: shop}
spec:
  podSelector: {matchLabels: {app: shop}}
  avoid:
  - {metric: noise, above: 40, whenMissing: Reject}
---
apiVersion: nodewise.io/v1alpha1
kind: PlacementPolicy
metadata: {name: asks, namespace: shop}
spec:
  podSelector: {matchLabels: {app: query}}
  avoid:
  - {query: "max by (node) (load)", above: 40}
---
apiVersion: nodewise.io/v1alpha1
kind: PlacementPolicy
metadata: {name: unknown, namespace: shop}
spec:
  podSelector: {matchLabels: {app: absent}}
  avoid:
  - {metric: never-exported, above: 40}
"""
METRICS = "node,metric,value\nn1,temp,90\nn2,temp,50\nn2,noise,12\n"
TEMP = "placement policy web/cool: temp above 80"


def pod(namespace: str = "web", app: str = "web", **labels: str) -> dict[str, Any]:
    limits = {"telemetry/scheduling": "1"}
    return {
        "metadata": {"name": "p", "namespace": namespace, "uid": "u1", "labels": {"app": app, **labels}},
        "spec": {"priority": 100, "containers": [{"name": "c", "resources": {"limits": limits}}]},
    }


def post(served: ExtenderProcess, verb: str, body: Mapping[str, Any]) -> Any:
    answer = plain_http.post(f"{served.url}/scheduler/{verb}", json=body)
    assert answer.status_code == httpx2.codes.OK, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExtenderProcess]:
    folder: Path = tmp_path_factory.mktemp("cluster")
    (folder / "objects.yaml").write_text(POLICIES)
    (folder / "metrics.csv").write_text(METRICS)
    with demo.extender([f"--objects-from={folder}"]) as running:
        running.wait_ready()
        yield running


REJECTIONS = {
    "a metric": (pod(), {"n1": TEMP}),
    "a missing value": (pod("shop", "shop"), {"n1": "placement policy shop/quiet: no fresh value of noise"}),
    "a TASPolicy that does not exist": (
        pod("shop", "plain", **{"telemetry-policy": "gone"}),
        dict.fromkeys(("n1", "n2"), "nodewise: policy shop/gone does not exist"),
    ),
    "an empty label": (
        pod("shop", "plain", **{"telemetry-policy": ""}),
        dict.fromkeys(("n1", "n2"), "nodewise: pod label telemetry-policy is empty, it must name a policy"),
    ),
    "a query of a namespace without trust": (
        pod("shop", "query"),
        dict.fromkeys(("n1", "n2"), "placement policy shop/asks: "),
    ),
    "a metric without any value": (
        pod("shop", "absent"),
        dict.fromkeys(("n1", "n2"), "placement policy shop/unknown: metric never-exported was never fetched"),
    ),
}


@pytest.mark.parametrize(("asking", "expected"), REJECTIONS.values(), ids=REJECTIONS)
def test_no_eviction_helps(
    served: ExtenderProcess, asking: dict[str, Any], expected: Mapping[str, str]
) -> None:
    response = post(served, "filter", {"Pod": asking, "NodeNames": ["n1", "n2"]})
    assert response["FailedNodes"] == {}
    unresolvable = response["FailedAndUnresolvableNodes"]
    assert unresolvable.keys() == expected.keys()
    for node, text in expected.items():
        assert unresolvable[node].startswith(text)


def test_whole_nodes_are_in_the_same_map(served: ExtenderProcess) -> None:
    nodes = [{"metadata": {"name": name}} for name in ("n1", "n2")]
    response = post(served, "filter", {"Pod": pod(), "Nodes": {"items": nodes}})
    assert response["Nodes"]["items"] == nodes[1:]
    assert (response["FailedNodes"], response["FailedAndUnresolvableNodes"]) == ({}, {"n1": TEMP})


@pytest.mark.parametrize("no_pods", [[], None])
def test_preempt_without_victims_returns_accepted_nodes_unchanged(
    served: ExtenderProcess, no_pods: list[Any] | None
) -> None:
    """kube-scheduler 1.38 sends empty lists, and drops a node if no extender adds victims."""
    victims = {name: {"Pods": no_pods, "NumPDBViolations": 0} for name in ("n1", "n2")}
    response = post(served, "preempt", {"Pod": pod(), "NodeNameToMetaVictims": victims})
    assert response == {"NodeNameToMetaVictims": {"n2": {"Pods": no_pods, "NumPDBViolations": 0}}}


GPUS = """
apiVersion: v1
kind: Node
metadata: {name: %s, labels: {gpu.intel.com/gpu-numbers: "%s"}}
status: {allocatable: {gpu.intel.com/i915: "8", gpu.intel.com/millicores: "%d", cpu: "8"}}
---
"""
WITHOUT_GPUS = """
apiVersion: v1
kind: Node
metadata: {name: plain}
status: {allocatable: {cpu: "8"}}
---
apiVersion: v1
kind: Node
metadata: {name: bad, annotations: {nodewise.io/gpu-cards: "[{"}}
status: {allocatable: {gpu.intel.com/i915: "8", gpu.intel.com/millicores: "2000"}}
"""
HOLDER = """
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: d, uid: %s, annotations: {gas-container-cards: card%d}}
spec:
  nodeName: %s
  containers:
  - {name: c, resources: {requests: {gpu.intel.com/i915: "1", gpu.intel.com/millicores: "700"}}}
status: {phase: Running}
---
"""


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExtenderProcess]:
    """`full` has pods on both GPUs, `small` has GPUs with half as much, `one` has one GPU, `plain` has none,
    and the GPUs of `bad` cannot be read.
    """
    folder: Path = tmp_path_factory.mktemp("gpus")
    nodes = [("full", "0.1", 2000), ("small", "0.1", 1000), ("one", "0", 2000)]
    pods = [(f"h{number}", f"uid-{number}", number, "full") for number in (0, 1)]
    text = "".join(GPUS % row for row in nodes) + "".join(HOLDER % row for row in pods)
    (folder / "objects.yaml").write_text(text + WITHOUT_GPUS)
    with demo.extender([f"--objects-from={folder}", "--agents=gpu"]) as running:
        running.wait_ready()
        yield running


def gpu_pod(count: int, millicores: int) -> dict[str, Any]:
    limits = {"gpu.intel.com/i915": str(count), "gpu.intel.com/millicores": str(millicores)}
    return {
        "metadata": {"name": "p", "namespace": "d", "uid": "u1"},
        "spec": {"priority": 100, "containers": [{"name": "c", "resources": {"limits": limits}}]},
    }


ALL = ["full", "small", "one", "bad", "plain"]


@pytest.mark.parametrize(
    ("asking", "resolvable", "unresolvable"),
    [
        (gpu_pod(1, 800), ["full"], ["small", "bad", "plain"]),
        (gpu_pod(2, 1400), ["full"], ["small", "one", "bad", "plain"]),
        (gpu_pod(1, 1000), ["full"], ["small", "bad", "plain"]),
        (gpu_pod(3, 30), [], ALL),
    ],
    ids=["amount", "two GPUs", "a whole GPU", "more GPUs than any node has"],
)
def test_only_a_node_that_fits_without_pods_is_resolvable(
    gpus: ExtenderProcess, asking: dict[str, Any], resolvable: list[str], unresolvable: list[str]
) -> None:
    response = post(gpus, "filter", {"Pod": asking, "NodeNames": ALL})
    assert sorted(response["FailedNodes"] or {}) == sorted(resolvable)
    assert sorted(response["FailedAndUnresolvableNodes"] or {}) == sorted(unresolvable)
    assert sorted([*response["NodeNames"], *resolvable, *unresolvable]) == sorted(ALL)


def test_a_node_without_victims_that_help_is_left_out(gpus: ExtenderProcess) -> None:
    """Victims of other nodes, too few victims, and none at all do not help."""

    def accepted(victims: Mapping[str, list[str]]) -> list[str]:
        by_node = {name: {"Pods": [{"UID": uid} for uid in uids]} for name, uids in victims.items()}
        body = {"Pod": gpu_pod(2, 1400), "NodeNameToMetaVictims": by_node}
        return list(post(gpus, "preempt", body)["NodeNameToMetaVictims"])

    assert accepted({"full": [], "small": []}) == []
    assert accepted({"full": ["uid-0"], "small": ["uid-1"]}) == []
    assert accepted({"full": ["uid-0", "uid-1"], "small": ["uid-0"]}) == ["full"]


def test_the_details_of_a_small_node_are_those_of_a_full_one(gpus: ExtenderProcess) -> None:
    """Only the map differs: alerts and events find the same texts."""
    response = post(gpus, "filter", {"Pod": gpu_pod(1, 800), "NodeNames": ["full", "small"]})
    texts = {*response["FailedNodes"].values(), *response["FailedAndUnresolvableNodes"].values()}
    assert json.dumps(sorted(texts)).count("container c: no GPU has 800") == 1
