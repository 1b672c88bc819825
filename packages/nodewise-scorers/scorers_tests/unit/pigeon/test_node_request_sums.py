"""Requested amounts of nodes, computed from pods."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from nodewise.base import cooperative_scheduling
from nodewise.kube.pod_requests import HoldingStatus
from nodewise.kube.store import difference
from nodewise_scorers import pigeon
from nodewise_scorers.pigeon import agent
from nodewise_scorers.pigeon.agent import HoldingPod, NodeRequests
from nodewise_scorers.pigeon.options import PigeonOptions
from scorers_tests.unit.pigeon.cluster_notation import PigeonCluster, node

Pods = Mapping[tuple[str, str], HoldingPod]


def holding_pod(
    name: str, on: str, requests: dict[str, Any] | None = None, phase: str = "Running", **more: Any
) -> HoldingPod:
    spec = {"nodeName": on, "containers": [{"resources": {"requests": requests}}], **more}
    document = {
        "metadata": {"name": name, "namespace": "d", "uid": name},
        "spec": spec,
        "status": {"phase": phase},
    }
    return msgspec.json.decode(msgspec.json.encode(document), type=HoldingPod)


def reduced_pods(pods: Iterable[HoldingPod], gpu: str = "gpu") -> dict[tuple[str, str], HoldingPod]:
    """The reduced pods as a store keeps them."""
    keep = agent.make_pod_request_reducer(gpu)
    reduced = ((pod, keep(pod)) for pod in pods)
    return {("d", pod.metadata.name): rest for pod, rest in reduced if rest is not None}


def apply_pod_changes(
    holdings: NodeRequests,
    pods: dict[tuple[str, str], HoldingPod],
    before: Mapping[tuple[str, str], HoldingPod] = MappingProxyType({}),
) -> NodeRequests:
    cooperative_scheduling.run_without_pauses(holdings.apply(difference(before, pods).items()))
    return holdings


ONE = {"cpu": "1500m", "memory": "1Gi", "ephemeral-storage": "2Gi", "gpu": 2, "hugepages-2Mi": "4Mi"}


def test_requests_of_the_pods_of_a_node_are_summed() -> None:
    pods = reduced_pods(
        [holding_pod("a", "n1", ONE), holding_pod("b", "n1", {"cpu": "0.5"}), holding_pod("c", "n2", ONE)]
    )
    holdings = apply_pod_changes(NodeRequests("gpu"), pods)
    assert holdings.of("n1") == (2000, 2**30, 2, 2, 2**31)
    assert holdings.of("n2") == (1500, 2**30, 1, 2, 2**31)
    assert holdings.of("n3") == (0, 0, 0, 0, 0)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_pods_that_ended_take_nothing(phase: str) -> None:
    assert reduced_pods([holding_pod("a", "n1", ONE, phase)]) == {}


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown", ""])
def test_pods_hold_their_requests_from_the_bind_on(phase: str) -> None:
    assert len(reduced_pods([holding_pod("a", "n1", ONE, phase)])) == 1


def test_pods_on_no_node_take_nothing() -> None:
    assert reduced_pods([holding_pod("a", "", ONE)]) == {}


def test_reduced_pods_have_the_same_requests() -> None:
    sidecar_pod = holding_pod("a", "n1", ONE, initContainers=[{"resources": {"requests": {"cpu": "64"}}}])
    (rest,) = reduced_pods([sidecar_pod]).values()
    assert msgspec.json.decode(msgspec.json.encode(rest), type=HoldingPod) == rest
    assert reduced_pods([rest]) == {("d", "a"): rest}
    assert apply_pod_changes(NodeRequests("gpu"), reduced_pods([sidecar_pod])).of("n1") == apply_pod_changes(
        NodeRequests("gpu"), reduced_pods([rest])
    ).of("n1")


def test_a_pod_holds_allocated_resources_until_its_resize_ends() -> None:
    holdings = NodeRequests("gpu")
    name = {"containers": [{"name": "web", "resources": {"requests": {"cpu": "1"}}}]}
    before: Mapping[tuple[str, str], HoldingPod] = MappingProxyType({})
    for allocated, milli in (("3", 3000), ("500m", 1000), ("1", 1000)):
        status = {"containerStatuses": [{"name": "web", "allocatedResources": {"cpu": allocated}}]}
        pod = holding_pod("a", "n1", **name)
        pod = msgspec.structs.replace(pod, status=msgspec.convert(status, HoldingStatus))
        after = reduced_pods([pod])
        assert apply_pod_changes(holdings, after, before).of("n1")[0] == milli
        before = after


def test_requests_of_deleted_pods_are_subtracted() -> None:
    before = reduced_pods([holding_pod("a", "n1", ONE), holding_pod("b", "n1", {"cpu": "0.5"})])
    holdings = apply_pod_changes(NodeRequests("gpu"), before)
    after = reduced_pods([holding_pod("b", "n2", {"cpu": "0.5"})])
    assert apply_pod_changes(holdings, after, before).of("n1") == (0, 0, 0, 0, 0)
    assert holdings.of("n2") == (500, 0, 1, 0, 0)


def test_nothing_is_held_of_nodes_whose_pods_are_gone() -> None:
    holdings = NodeRequests("gpu")
    before: Mapping[tuple[str, str], HoldingPod] = MappingProxyType({})
    for number in range(5):
        after = reduced_pods([holding_pod("a", f"gone-{number}", ONE), holding_pod("b", "n1", ONE)])
        apply_pod_changes(holdings, after, before)
        before = after
    assert len(holdings) == 2


def test_after_a_reset_everything_is_summed_up_again() -> None:
    pods = reduced_pods([holding_pod(f"p{number}", "n1", ONE) for number in range(1000)])
    holdings = apply_pod_changes(NodeRequests("gpu"), pods)
    steps = holdings.apply(difference(pods, reduced_pods([holding_pod("q", "n1", ONE)])).items())
    for _ in range(4):
        next(steps)
    steps.close()
    holdings.reset()
    assert apply_pod_changes(holdings, pods).of("n1")[2] == 1000


@pytest.mark.parametrize("requests", [None, {}, {"cpu": "abc", "memory": None}, {"cpu": "-1"}])
def test_odd_requests_are_none(requests: dict[str, Any] | None) -> None:
    assert apply_pod_changes(NodeRequests("gpu"), reduced_pods([holding_pod("a", "n1", requests)])).of(
        "n1"
    ) == (0, 0, 1, 0, 0)


def test_a_pod_that_was_just_bound_counts_at_once() -> None:
    same = {"n1": node({"cpu": "4", "memory": "8Gi"}, None), "n2": node({"cpu": "4", "memory": "8Gi"}, None)}
    cluster = PigeonCluster(same, policy_objective="LOAD_BALANCE", pigeon_usage="pods")
    assert cluster.score().scores == [10, 10]
    assert "no statistics" not in cluster.score().texts[0]
    cluster.set_nodes(same, reduced_pods([holding_pod("a", "n1", {"cpu": "1"})]))
    assert cluster.score().scores == [1, 10]
    cluster.set_nodes(same, reduced_pods([holding_pod("a", "n1", {"cpu": "4"})]))
    assert cluster.score().scores == [0, 10]
    cluster.set_nodes(same, {})
    assert cluster.score().scores == [10, 10]


def test_annotations_are_not_looked_at_then() -> None:
    full = {"n1": node({"cpu": "4", "memory": "8Gi"}, {"requested-cpu": "4000"})}
    assert PigeonCluster(full, pigeon_usage="pods").score().scores == [10]


def test_pods_are_watched_only_then() -> None:
    assert pigeon.KIND.watched(PigeonOptions()) == ()
    (watch,) = pigeon.KIND.watched(PigeonOptions(pigeon_usage="pods"))
    assert watch.selectors == {
        "fieldSelector": "spec.nodeName!=,status.phase!=Failed,status.phase!=Succeeded"
    }
    assert watch.name in pigeon.KIND.state(PigeonOptions(pigeon_usage="pods"), 5.0).inputs.objects
