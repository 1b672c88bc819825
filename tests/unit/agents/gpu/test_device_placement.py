"""Scores of nodes for pods that claim DRA devices."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewise.agent import ClusterState, Names, NodeIndex, ObjectKey, Scores, Snapshot
from nodewise.agent.state import Change
from nodewise.agents.gpu import device_placement
from nodewise.agents.gpu.agent import GpuAgent
from nodewise.agents.gpu.device_placement import DeviceDetails
from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod, RequestedGpuPod
from nodewise.agents.gpu.node_gpus import GpuNode
from nodewise.agents.gpu.options import GpuOptions, Placement
from nodewise.agents.gpu.state import NAME, PODS, GpuStateBuilder
from nodewise.agents.gpu.vendor_resource_names import GENERIC
from nodewise.base import cooperative_scheduling
from nodewise.devices.device_inventory import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from nodewise.devices.device_taint_rules import DeviceTaintRule
from nodewise.devices.resource_claims import (
    MOST_REQUEST_BYTES,
    DeviceClassObject,
    ResourceClaimObject,
    parse_device_class,
    parse_resource_claim,
)
from nodewise.devices.resource_slices import ResourceSliceObject, parse_resource_slice
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from tests.cluster import device_objects

Object = dict[str, Any]
GPU = "nvidia.com/gpu"
CLASS = device_objects.device_class(extended_resource=GPU)
SHARED: Object = {
    "allowMultipleAllocations": True,
    "capacity": {"memory": {"value": "80Gi", "requestPolicy": {"default": "80Gi"}}},
}
"""A device that claims share by memory."""


def slices(node: str, devices: int = 4, **fields: Any) -> Object:
    return device_objects.resource_slice(
        node, [device_objects.device(f"gpu-{at}", **fields) for at in range(devices)]
    )


def claim(name: str, count: int = 1, **fields: Any) -> Object:
    return device_objects.claim(name, device_objects.request("gpu", count=count, **fields))


def held(name: str, node: str, *devices: str, **fields: Any) -> Object:
    """A claim that has devices, or parts of them."""
    results = [
        {"request": "gpu", "driver": device_objects.DRIVER, "pool": node, "device": device} | fields
        for device in devices
    ]
    return claim(name, len(devices)) | {"status": {"allocation": {"devices": {"results": results}}}}


def pod(name: str, *claims: str, **limits: str) -> RequestedGpuPod:
    document = device_objects.claiming_pod(name, *claims, limits={GPU: limits["gpu"]} if limits else {})
    document["metadata"]["namespace"] = "default"
    return msgspec.convert(document, RequestedGpuPod)


def cpu_pod(name: str, *claims: str, node: str = "") -> Object:
    """A pod that requests 4 CPU, on a node unless that is empty."""
    document = device_objects.claiming_pod(name, *claims, cpu="4")
    document["metadata"]["namespace"] = "default"
    document["spec"]["nodeName"] = node
    return document


class Cluster:
    """Nodes, devices and claims, and the agent's state of them."""

    def __init__(
        self, placement: Placement, *objects: Object, nodes: int = 3, cpu: str = "64", plugin_gpus: str = "0"
    ) -> None:
        self.agent = GpuAgent(GpuOptions(gpu_placement=placement), GENERIC)
        self.agent.serve()
        self._builder = GpuStateBuilder(GENERIC)
        self.names = [f"n{at}" for at in range(nodes)]
        self._index = NodeIndex(self.names)
        self._objects: dict[str, dict[ObjectKey, Any]] = {}
        node = msgspec.convert(
            {"status": {"allocatable": msgspec.Raw(msgspec.json.encode({"cpu": cpu, GPU: plugin_gpus}))}},
            GpuNode,
        )
        self._nodes = {("", name): node for name in self.names}
        self.apply(CLASS, *objects)

    def apply(self, *objects: Object, now: float = 0.0) -> None:
        kinds: dict[str, tuple[str, Any, Any]] = {
            "DeviceClass": (DEVICE_CLASSES, DeviceClassObject, parse_device_class),
            "Pod": (PODS, AllocatedPod, lambda pod: pod),
            "ResourceClaim": (RESOURCE_CLAIMS, ResourceClaimObject, parse_resource_claim),
            "DeviceTaintRule": (DEVICE_TAINT_RULES, DeviceTaintRule, lambda rule: rule),
            "ResourceSlice": (RESOURCE_SLICES, ResourceSliceObject, parse_resource_slice),
        }
        before = self._objects
        after = {key: dict(before.get(key, {})) for key, _, _ in kinds.values()}
        for each in objects:
            name, type_, parse = kinds[each["kind"]]
            namespace = "default" if each["kind"] in ("Pod", "ResourceClaim") else ""
            after[name][namespace, each["metadata"]["name"]] = parse(msgspec.convert(each, type_))
        changes = {
            name: {
                key: Change(before.get(name, {}).get(key), item)
                for key, item in items.items()
                if before.get(name, {}).get(key) is not item
            }
            for name, items in after.items()
        }
        state = ClusterState(
            self._index,
            after,
            MetricsSnapshot(),
            now,
            self._nodes,
            changes=changes if before else None,
        )
        self._objects = after
        built = cooperative_scheduling.run_without_pauses(self._builder.build(state))
        self.snapshot = Snapshot(self._index, {NAME: built}, now)

    def decide(self, wanted: RequestedGpuPod) -> tuple[list[int], list[str]]:
        """The points and the details by node."""
        candidates = Names(self._index, np.arange(len(self.names)))
        assert self.agent.filter(wanted, candidates, self.snapshot) is None or not (
            self.agent.filter(wanted, candidates, self.snapshot).codes.any()  # type: ignore[union-attr]
        )
        scores = self.agent.score(wanted, candidates, self.snapshot)
        assert scores is not None
        assert scores.details is not None
        assert isinstance(scores.details, DeviceDetails)
        self.misfits = scores.details.misfits().tolist()
        return scores.points.tolist(), [scores.details.text(at) for at in range(len(self.names))]

    def best(self, name: str, *claims: str) -> str:
        """Of the first two nodes, the one with most points for a pod."""
        wanted = msgspec.convert(cpu_pod(name, *claims), RequestedGpuPod)
        scores = self.agent.score(wanted, Names(self._index, np.arange(2)), self.snapshot)
        assert scores is not None
        return self.names[int(scores.points.argmax())]


THREE = [slices(f"n{at}") for at in range(3)]
HELD = [held("one", "n1", "gpu-0"), held("two", "n2", "gpu-0", "gpu-2")]


@pytest.mark.parametrize(("placement", "best"), [("pack", "n2"), ("fragmentation", "n2"), ("spread", "n0")])
def test_best_node_follows_the_placement(placement: Placement, best: str) -> None:
    cluster = Cluster(placement, *THREE, *HELD, claim("c", 2))
    points, details = cluster.decide(pod("p", "c"))
    assert cluster.names[points.index(10)] == best
    expected = ["devices gpu: gpu-0, gpu-1", "devices gpu: gpu-1, gpu-2", "devices gpu: gpu-1, gpu-3"]
    assert details == expected


def test_node_where_the_claim_does_not_fit_has_no_points_and_is_not_rejected() -> None:
    cluster = Cluster("pack", *THREE, *HELD, claim("c", 3))
    points, details = cluster.decide(pod("p", "c"))
    assert cluster.misfits == [False, False, True]
    assert points[2] == 0
    assert points[1] == 10
    assert details[2] == "the claims do not fit the free devices"


def test_command_examines_nodes_beyond_the_limit_of_a_request() -> None:
    cluster = Cluster("pack", *(slices(f"n{at}") for at in range(1_200)), claim("c"), nodes=1_200)
    assert cluster.decide(pod("p", "c"))[1][-1] == "devices of claim c not predicted: too many nodes changed"
    cluster.agent = GpuAgent(GpuOptions(gpu_placement="pack"), GENERIC)
    assert cluster.decide(pod("p", "c"))[1][-1] == "devices gpu: gpu-0"


def test_device_that_a_rule_taints_is_not_predicted() -> None:
    cluster = Cluster("pack", *THREE, *HELD, claim("c"))
    rule = device_objects.taint_rule("r", driver=device_objects.DRIVER, pool="n2", device="gpu-1")
    assert cluster.decide(pod("p", "c"))[1][2] == "devices gpu: gpu-1"
    cluster.apply(CLASS, *THREE, *HELD, claim("c"), rule, now=60.0)
    assert cluster.decide(pod("q", "c"))[1][2] == "devices gpu: gpu-3"


def test_extended_resource_is_predicted_as_the_claim_that_kube_scheduler_creates() -> None:
    points, details = Cluster("pack", *THREE, *HELD).decide(pod("p", gpu="2"))
    assert points[2] == 10
    assert details[2] == "devices container-0-request-2: gpu-1, gpu-3"


def test_parts_of_devices_are_packed_by_consumed_capacity() -> None:
    nodes = [slices(f"n{at}", 2, **SHARED) for at in range(3)]
    part = {"shareID": "s", "consumedCapacity": {"memory": "60Gi"}}
    wanted = claim("c", capacity={"requests": {"memory": "20Gi"}})
    points, details = Cluster("pack", *nodes, held("one", "n1", "gpu-0", **part), wanted).decide(
        pod("p", "c")
    )
    assert points[1] == 10
    assert details[1] == "devices gpu: gpu-0"
    whole = Cluster("pack", *nodes, held("one", "n1", "gpu-0", **part), claim("c"))
    assert whole.decide(pod("p", "c"))[1][1] == "devices gpu: gpu-1"


def test_claim_that_was_not_seen_or_is_allocated_is_named() -> None:
    cluster = Cluster("pack", *THREE, *HELD)
    wanted = pod("p", "unknown")
    candidates = Names(cluster.snapshot.nodes, np.arange(3))
    assert cluster.agent.score(wanted, candidates, cluster.snapshot) is None
    for name, text in (
        ("unknown", "devices not predicted: claim unknown of the pod was not seen yet"),
        ("one", "devices not predicted: claim one is allocated already"),
    ):
        verdict = cluster.agent.filter(pod("p", name), candidates, cluster.snapshot)
        assert verdict is not None
        assert verdict.details is not None
        assert not verdict.codes.any()
        assert verdict.details.text(0) == text


def test_gpus_of_a_device_plugin_are_placed_beside_a_claim_that_is_not_predicted() -> None:
    cluster = Cluster("pack", held("nic", "fabric", "nic-0"), plugin_gpus="4")
    candidates = Names(cluster.snapshot.nodes, np.arange(3))
    expected = cluster.agent.score(pod("p", gpu="1"), candidates, cluster.snapshot)
    assert expected is not None
    for name in ("unknown", "nic"):
        scores = cluster.agent.score(pod("p", name, gpu="1"), candidates, cluster.snapshot)
        assert scores is not None
        assert scores.points.tolist() == expected.points.tolist()


def test_next_pod_counts_devices_that_are_allocated_but_not_seen_yet() -> None:
    cluster = Cluster("pack", *THREE, *HELD, *[claim(f"c{at}") for at in range(4)])
    assert cluster.decide(pod("p0", "c0"))[1][2] == "devices gpu: gpu-1"
    points, details = cluster.decide(pod("p1", "c1"))
    assert details[2] == "devices gpu: gpu-3"
    assert points[2] == 10
    points, details = cluster.decide(pod("p2", "c2"))
    assert points[2] == 0
    assert points[1] == 10
    # kube-scheduler chose another node for the first pod: its device is free again
    cluster.apply(held("c0", "n0", "gpu-0"))
    assert cluster.decide(pod("p3", "c3"))[1][2] == "devices gpu: gpu-1"


def test_next_pod_counts_capacity_that_is_not_seen_as_consumed_yet() -> None:
    nodes = [slices(f"n{at}", 2, **SHARED) for at in range(3)]
    part = {"shareID": "s", "consumedCapacity": {"memory": "60Gi"}}
    claims = [claim(f"c{at}", capacity={"requests": {"memory": "20Gi"}}) for at in range(2)]
    cluster = Cluster("pack", *nodes, held("one", "n1", "gpu-0", **part), *claims)
    devices = [cluster.decide(pod(f"p{at}", f"c{at}"))[1][1] for at in range(2)]
    assert devices == ["devices gpu: gpu-0", "devices gpu: gpu-1"]


def test_capacity_that_is_seen_as_consumed_counts_once_until_the_pod_is_seen_on_its_node() -> None:
    part = {"shareID": "s", "consumedCapacity": {"memory": "60Gi"}}
    claims = [claim(f"p{at}", capacity={"requests": {"memory": "10Gi"}}) for at in range(2)]
    nodes = [slices(f"n{at}", 2, **SHARED) for at in range(3)]
    cluster = Cluster("pack", *nodes, held("one", "n1", "gpu-0", **part), *claims)
    assert cluster.decide(pod("p0", "p0"))[1][1] == "devices gpu: gpu-0"
    cluster.apply(reserved("p0", "n1", shareID="t", consumedCapacity={"memory": "10Gi"}))
    assert cluster.decide(pod("p1", "p1"))[1][1] == "devices gpu: gpu-0"


def test_pod_that_is_scored_again_does_not_count_its_own_devices() -> None:
    cluster = Cluster("pack", *THREE, *HELD, claim("c"))
    devices = [cluster.decide(pod("p", "c"))[1][2] for _ in range(2)]
    assert devices == ["devices gpu: gpu-1"] * 2


def test_expected_device_is_free_again_after_a_time() -> None:
    cluster = Cluster("pack", *THREE, *HELD, claim("c0"), claim("c1"))
    cluster.decide(pod("p0", "c0"))
    cluster.apply(now=60.0)
    assert cluster.decide(pod("p1", "c1"))[1][2] == "devices gpu: gpu-1"


def test_only_the_newest_pods_that_were_not_seen_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_placement, "_MOST_EXPECTED", 1)
    cluster = Cluster("pack", *THREE, *HELD, *[claim(f"c{at}") for at in range(3)])
    devices = [cluster.decide(pod(f"p{at}", f"c{at}"))[1][2] for at in range(3)]
    assert devices == ["devices gpu: gpu-1", "devices gpu: gpu-3", "devices gpu: gpu-1"]


def reserved(pod: str, node: str, **fields: Any) -> Object:
    """The claim of a pod, with the first device of a node, or a part of it."""
    allocated = held(pod, node, "gpu-0", **fields)
    allocated["status"]["reservedFor"] = [{"resource": "pods", "name": pod, "uid": pod}]
    return allocated


@pytest.mark.parametrize(
    ("claims", "cpu", "seen", "now", "is_same"),
    [
        ([], "8", lambda _best, _other: [], 0.0, False),
        (["first"], "8", lambda _best, _other: [], 0.0, False),
        (["first"], "8", lambda best, _other: [reserved("first", best)], 0.0, False),
        # the pod was seen: it counts once
        ([], "12", lambda best, _other: [cpu_pod("first", node=best)], 0.0, True),
        (["first"], "12", lambda best, _other: [cpu_pod("first", "first", node=best)], 0.0, True),
        (
            ["first"],
            "12",
            lambda best, _other: [reserved("first", best), cpu_pod("first", "first", node=best)],
            0.0,
            True,
        ),
        # kube-scheduler chose another node
        ([], "8", lambda _best, other: [cpu_pod("first", node=other)], 0.0, True),
        (
            ["first"],
            "8",
            lambda _best, other: [reserved("first", other), cpu_pod("first", "first", node=other)],
            0.0,
            True,
        ),
        ([], "8", lambda _best, _other: [], 60.0, True),
    ],
)
def test_next_pod_counts_cpu_of_a_pod_that_was_not_seen_on_a_node(
    claims: list[str], cpu: str, seen: Callable[[str, str], list[Object]], now: float, is_same: bool
) -> None:
    """The next pod leaves the CPU of a typical pod, which has one device and 4 CPU, beside free devices."""
    typical = [reserved("typical", "n2"), cpu_pod("typical", "typical", node="n2")]
    devices = [slices("n0", 2), slices("n1", 2), slices("n2", 1)]
    cluster = Cluster("fragmentation", *devices, *typical, claim("first"), cpu=cpu)
    best = cluster.best("first", *claims)
    cluster.apply(*seen(best, "n1" if best == "n0" else "n0"), now=now)
    assert (cluster.best("next") == best) == is_same


def test_partition_blocks_the_partitions_that_overlap_it() -> None:
    def parts(node: str) -> list[Object]:
        counters = [
            device_objects.device(
                name, consumesCounters=[{"counterSet": "g", "counters": {"slices": {"value": size}}}]
            )
            for name, size in (("half-1", "4"), ("half-2", "4"), ("whole", "8"))
        ]
        shared = [{"name": "g", "counters": {"slices": {"value": "8"}}}]
        return [
            device_objects.resource_slice(node, counters, slices=2),
            device_objects.resource_slice(node, [], number=1, slices=2, sharedCounters=shared),
        ]

    nodes = [item for at in range(3) for item in parts(f"n{at}")]
    cluster = Cluster("pack", *nodes, held("one", "n1", "half-1"), claim("c"))
    points, details = cluster.decide(pod("p", "c"))
    assert points[1] == 10
    assert details[:2] == ["devices gpu: half-1", "devices gpu: half-2"]


@pytest.mark.parametrize(("most_compared", "is_predicted"), [(48, True), (47, False)])
def test_request_is_compared_with_few_devices_of_several_nodes(
    monkeypatch: pytest.MonkeyPatch, most_compared: int, is_predicted: bool
) -> None:
    """Two pools of 8 devices, the selector of the class, and two of the requests."""
    monkeypatch.setattr(device_placement, "_MOST_NETWORK_CHECKS", most_compared)
    devices = [device_objects.device(f"d{at}", attributes={"slot": 9}) for at in range(8)]
    pools = [device_objects.resource_slice("", devices, pool=name, allNodes=True) for name in ("a", "b")]
    alternatives = [
        device_objects.alternative(f"a{at}", f"device.attributes['{device_objects.DRIVER}'].slot == {at}")
        for at in (1, 2)
    ]
    request = {"name": "gpu", "firstAvailable": alternatives}
    cluster = Cluster("pack", *THREE, *pools, device_objects.claim("c", request))
    _, details = cluster.decide(pod("p", "c"))
    reason = "devices not predicted: several nodes can use devices of pool gpu.example.com/a"
    assert (details[0] == reason) == (not is_predicted)


def test_reason_for_devices_of_several_nodes_follows_the_class_after_a_pod_without_claims() -> None:
    pool = device_objects.resource_slice("", [device_objects.device("d0")], pool="fabric", allNodes=True)
    no_device = device_objects.device_class(device_objects.DRIVER, "false", extended_resource=GPU)
    cluster = Cluster("pack", *THREE, pool, claim("c"))
    reason = "devices not predicted: several nodes can use devices of pool gpu.example.com/fabric"
    assert cluster.decide(pod("p", "c"))[1][0] == reason
    cluster.apply(no_device)
    cluster.best("q")
    assert cluster.decide(pod("p", "c"))[1][0] == "the claims do not fit the free devices"


def test_predictions_follow_a_changed_class() -> None:
    cluster = Cluster("pack", *THREE, claim("c"))
    assert cluster.decide(pod("p", "c"))[1][1] == "devices gpu: gpu-0"
    cluster.apply(device_objects.device_class(device_objects.DRIVER, "false"))
    assert cluster.decide(pod("q", "c"))[1][1] == "the claims do not fit the free devices"


def test_claim_in_use_decides_the_node_also_where_other_devices_are_expected() -> None:
    used = held("used", "n1", "gpu-0")
    used["status"]["reservedFor"] = [{"resource": "pods", "name": "other", "uid": "other"}]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    used["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [term]}
    cluster = Cluster("pack", *THREE, *HELD, used, claim("c"))
    cluster.decide(pod("p", "c"))
    candidates = Names(cluster.snapshot.nodes, np.arange(3))
    verdict = cluster.agent.filter(pod("q", "used"), candidates, cluster.snapshot)
    assert verdict is not None
    assert isinstance(verdict.details, DeviceDetails)
    assert verdict.details.misfits().tolist() == [True, False, True]


def test_claim_without_requests_and_a_claim_that_is_too_large_differ() -> None:
    selector = {"cel": {"expression": "x" * MOST_REQUEST_BYTES}}
    empty, large = claim("empty"), claim("large", selectors=[selector])
    empty["spec"]["devices"]["requests"] = []
    cluster = Cluster("pack", *THREE, empty, large)
    assert cluster.decide(pod("p", "empty"))[1] == [""] * 3
    reason = f"a claim has more than {MOST_REQUEST_BYTES} bytes of requests"
    assert cluster.decide(pod("q", "large"))[1] == [f"devices of claim large not predicted: {reason}"] * 3


NODES = st.sampled_from(["n0", "n1", "n2"])
CHANGES = st.one_of(
    st.builds(slices, NODES, st.integers(1, 4)),
    st.builds(lambda node: slices(node, 2, **SHARED), NODES),
    st.builds(lambda node, at: held(f"held-{node}", node, f"gpu-{at}"), NODES, st.integers(0, 3)),
    st.builds(lambda node: claim(f"held-{node}"), NODES),
    st.builds(lambda at, node: held(f"c{at}", node, "gpu-1"), st.integers(0, 2), NODES),
    st.builds(claim, st.sampled_from([f"c{at}" for at in range(3)]), st.integers(1, 3)),
    st.builds(lambda at, node: cpu_pod(f"p{at}", f"c{at}", node=node), st.integers(0, 2), NODES),
    st.builds(
        lambda selector: device_objects.device_class(device_objects.DRIVER, selector, extended_resource=GPU),
        st.sampled_from(["true", "false"]),
    ),
)
ATTEMPTS = st.tuples(st.integers(0, 2), st.sets(st.integers(0, 2), min_size=1).map(sorted))
"""The number of a pod and of its claim, and the candidates."""


def outcome(scores: Scores | None) -> object:
    """The points, the misfits and the details by candidate; None without scores."""
    if scores is None:
        return None
    details = scores.details
    assert isinstance(details, DeviceDetails)
    return scores.points.tolist(), details.misfits().tolist(), [*map(details.text, range(len(scores.points)))]


@given(
    st.lists(st.one_of(CHANGES, ATTEMPTS, ATTEMPTS, st.sampled_from([1.0, 60.0])), min_size=10, max_size=40)
)
@settings(max_examples=150, deadline=None)
def test_kept_predictions_are_those_that_are_made_from_scratch(steps: list[Any]) -> None:
    """An agent that decided the pods before has the same scores as one that only knows the expected devices."""
    cluster, now = Cluster("pack", *THREE, *(claim(f"c{at}", 1 + at % 2) for at in range(3))), 0.0
    for step in steps:
        if isinstance(step, dict):
            cluster.apply(step, now=now)
        elif isinstance(step, float):
            now += step
            cluster.apply(now=now)
        else:
            number, positions = step
            candidates = Names(cluster.snapshot.nodes, np.array(positions))
            fresh = GpuAgent(GpuOptions(gpu_placement="pack"), GENERIC)
            fresh.serve()
            fresh._predictions._expected = dict(cluster.agent._predictions._expected)
            for wanted in (pod(f"p{number}", f"c{number}"), pod(f"q{number}", gpu="1")):
                kept, scratch = (
                    outcome(agent.score(wanted, candidates, cluster.snapshot))
                    for agent in (cluster.agent, fresh)
                )
                assert kept == scratch
                assert cluster.agent._predictions._expected == fresh._predictions._expected
