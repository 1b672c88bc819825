"""Nodes whose GPUs a DRA driver provides are left to kube-scheduler."""

from typing import Any

import msgspec
import numpy as np

from nodewise.agent import ClusterState, Snapshot
from nodewise.agent.bind_plugin_interface import Refusal
from nodewise.agents.gpu import missing_gpus
from nodewise.agents.gpu.agent import GpuAgent
from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod
from nodewise.agents.gpu.options import GpuOptions
from nodewise.agents.gpu.state import NAME, GpuStateBuilder
from nodewise.agents.gpu.vendor_resource_names import GENERIC
from nodewise.devices import resource_claims, resource_slices
from nodewise.devices.resource_claims import DeviceClass, DeviceClassObject
from nodewise.devices.resource_slices import ResourceSlice, ResourceSliceObject
from tests.unit.agents.gpu.gpu_cluster_state_builders import agent_state, cluster_state, decode
from tests.unit.agents.gpu.gpu_node_and_pod_builders import raw_node

GPU = "nvidia.com/gpu"
NODES = {
    "driver": raw_node({}, {"cpu": "8"}),
    "labelled": raw_node({f"{GPU}.count": "4"}, {"cpu": "8", GPU: "0"}),
    "plugin": raw_node({}, {GPU: "2"}),
    "mixed": raw_node({}, {GPU: "1"}),
    "plain": raw_node({}, {"cpu": "8"}),
}


def device_class(resource: str = GPU) -> DeviceClass:
    document = {
        "metadata": {"name": "c"},
        "spec": {"extendedResourceName": resource, "selectors": [{"cel": {}}]},
    }
    return resource_claims.parse_device_class(msgspec.convert(document, DeviceClassObject))


def slice_of(node: str) -> ResourceSlice:
    spec = {"nodeName": node, "driver": "d", "pool": {"name": node}, "devices": [{"name": "a"}]}
    document = {"metadata": {"name": f"s-{node}"}, "spec": spec}
    return resource_slices.parse_resource_slice(msgspec.convert(document, ResourceSliceObject))


def with_driver(*nodes: str, classes: tuple[DeviceClass, ...] = (device_class(),)) -> ClusterState:
    before = cluster_state(NODES)
    slices = {("", f"s-{node}"): slice_of(node) for node in nodes}
    objects = {
        **before.objects,
        missing_gpus.DEVICE_CLASSES: {("", str(at)): item for at, item in enumerate(classes)},
        missing_gpus.RESOURCE_SLICES: slices,
    }
    return msgspec.structs.replace(before, objects=objects)


def pod(**requests: Any) -> AllocatedPod:
    containers = [{"name": "c", "resources": {"requests": requests or {GPU: "1"}}}]
    metadata = {"name": "p", "namespace": "d", "uid": "u", "resourceVersion": "3"}
    return decode(AllocatedPod, {"metadata": metadata, "spec": {"containers": containers}})


AGENT = GpuAgent(GpuOptions(), GENERIC)


def snapshot_of(cluster: ClusterState, builder: GpuStateBuilder | None = None) -> Snapshot:
    state = agent_state(cluster, builder or GpuStateBuilder(GENERIC))
    return Snapshot(cluster.nodes, {NAME: state}, 0.0, 1)


def passing(snapshot: Snapshot, requesting: AllocatedPod) -> set[str]:
    verdict = AGENT.filter(requesting, snapshot.nodes.named(list(NODES)), snapshot)
    assert verdict is not None
    return {name for name, code in zip(NODES, verdict.codes.tolist(), strict=True) if not code}


def test_nodes_with_devices_of_a_driver_pass_filter_and_preempt() -> None:
    snapshot = snapshot_of(with_driver("driver", "labelled", "mixed"))
    assert passing(snapshot, pod()) == {"driver", "labelled", "plugin", "mixed"}
    victims = dict.fromkeys(NODES, frozenset[str]())
    verdict = AGENT.preempt(pod(), snapshot.nodes.named(list(NODES)), snapshot, victims)
    assert verdict is not None
    assert np.flatnonzero(verdict.codes).tolist() == [list(NODES).index("plain")]


def test_a_node_with_a_device_plugin_is_not_left_to_kube_scheduler() -> None:
    snapshot = snapshot_of(with_driver("driver", "mixed"))
    assert passing(snapshot, pod(**{GPU: "2"})) == {"driver", "labelled", "plugin"}


def test_without_a_class_of_the_resource_nodes_are_rejected() -> None:
    for classes in ((), (device_class("example.com/gpu"),), (device_class(""),)):
        assert passing(snapshot_of(with_driver("driver", classes=classes)), pod()) == {"plugin", "mixed"}


def test_a_bind_to_such_a_node_plans_no_gpus() -> None:
    snapshot = snapshot_of(with_driver("driver"))
    assert AGENT.bind(pod(), "driver", snapshot, 1.0) is None
    refusal = AGENT.bind(pod(), "plain", snapshot, 1.0)
    assert isinstance(refusal, Refusal)
    assert refusal.reason.text().startswith(
        "Not enough GPU-resources for deployment: will not fit: the node has no GPUs: found no resource of GPUs"
    )


def test_nodes_follow_the_slices_and_classes() -> None:
    builder = GpuStateBuilder(GENERIC)
    assert passing(snapshot_of(with_driver(), builder), pod()) == {"labelled", "plugin", "mixed"}
    assert passing(snapshot_of(with_driver("plain"), builder), pod()) == {
        "labelled",
        "plugin",
        "mixed",
        "plain",
    }
    assert passing(snapshot_of(with_driver("plain", classes=()), builder), pod()) == {"plugin", "mixed"}
