"""Nodes whose GPUs a DRA driver provides are left to kube-scheduler."""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from nodewise.agent import ClusterState, Snapshot
from nodewise.agent.bind_plugin_interface import BindPlan, Refusal
from nodewise.agents.gpu.agent import GpuAgent
from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod
from nodewise.agents.gpu.node_gpus import GpuNode
from nodewise.agents.gpu.options import GpuOptions
from nodewise.agents.gpu.state import NAME, GpuStateBuilder
from nodewise.agents.gpu.vendor_resource_names import GENERIC, INTEL
from nodewise.devices import resource_claims, resource_slices
from nodewise.devices.device_inventory import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from nodewise.devices.resource_claims import DeviceClass, DeviceClassObject
from nodewise.devices.resource_slices import ResourceSlice, ResourceSliceObject
from tests.unit.agents.gpu.gpu_cluster_state_builders import agent_state, cluster_state, decode, node
from tests.unit.agents.gpu.gpu_node_and_pod_builders import raw_node
from tests.unit.devices.test_resource_claims import claim_of

GPU = "nvidia.com/gpu"
NODES = {
    "driver": raw_node({}, {"cpu": "8"}),
    "labelled": raw_node({f"{GPU}.count": "4"}, {"cpu": "8", GPU: "0"}),
    "plugin": raw_node({}, {GPU: "2"}),
    "mixed": raw_node({}, {GPU: "1"}),
    "plain": raw_node({}, {"cpu": "8"}),
}


def device_class(resource: str | None = GPU, driver: str = "d") -> DeviceClass:
    document = {
        "metadata": {"name": "c"},
        "spec": {
            "extendedResourceName": resource,
            "selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}],
        },
    }
    return resource_claims.parse_device_class(msgspec.convert(document, DeviceClassObject))


def slice_of(node: str, **changed: Any) -> ResourceSlice:
    spec = {"nodeName": node, "driver": "d", "pool": {"name": node}, "devices": [{"name": "a"}]}
    document = {"metadata": {"name": f"s-{node}"}, "spec": spec | changed}
    return resource_slices.parse_resource_slice(msgspec.convert(document, ResourceSliceObject))


def with_driver(
    *nodes: str | ResourceSlice,
    classes: tuple[DeviceClass, ...] = (device_class(),),
    of: Mapping[str, GpuNode] = NODES,
) -> ClusterState:
    before = cluster_state(of)
    made = [slice_of(node) if isinstance(node, str) else node for node in nodes]
    slices = {("", item.metadata.name): item for item in made}
    objects = {
        **before.objects,
        DEVICE_CLASSES: {("", str(at)): item for at, item in enumerate(classes)},
        RESOURCE_SLICES: slices,
    }
    return msgspec.structs.replace(before, objects=objects)


def pod(**requests: Any) -> AllocatedPod:
    containers = [{"name": "c", "resources": {"requests": requests or {GPU: "1"}}}]
    metadata = {"name": "p", "namespace": "d", "uid": "u", "resourceVersion": "3"}
    return decode(AllocatedPod, {"metadata": metadata, "spec": {"containers": containers}})


AGENT = GpuAgent(GpuOptions(), GENERIC)


HELD = {"request": "r", "driver": "d", "pool": "driver", "device": "a"}


def snapshot_of(cluster: ClusterState, builder: GpuStateBuilder | None = None) -> Snapshot:
    state = agent_state(cluster, builder or GpuStateBuilder(GENERIC))
    return Snapshot(cluster.nodes, {NAME: state}, 0.0, 1)


def passing(snapshot: Snapshot, requesting: AllocatedPod, agent: GpuAgent = AGENT) -> set[str]:
    names = list(snapshot.nodes.known)
    verdict = agent.filter(requesting, snapshot.nodes.named(names), snapshot)
    assert verdict is not None
    return {name for name, code in zip(names, verdict.codes.tolist(), strict=True) if not code}


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
    expected = {"labelled", "plugin", "mixed", "plain"}
    assert passing(snapshot_of(with_driver("plain"), builder), pod()) == expected
    assert passing(snapshot_of(with_driver("plain", classes=()), builder), pod()) == {"plugin", "mixed"}


def test_devices_of_an_incomplete_pool_may_exist() -> None:
    incomplete = {"name": "plain", "generation": 2, "resourceSliceCount": 2}
    assert "plain" in passing(snapshot_of(with_driver(slice_of("plain", pool=incomplete))), pod())


def test_devices_of_an_older_generation_count_where_kube_scheduler_allocates_them() -> None:
    """A driver may use one pool for all nodes, and count the slices of each node."""
    slices = [
        slice_of(node, pool={"name": "gpus", "generation": at})
        for at, node in enumerate(("plain", "driver"), 1)
    ]
    assert passing(snapshot_of(with_driver(*slices)), pod()) == set(NODES)


def test_devices_of_the_network_belong_to_the_nodes_that_their_labels_select() -> None:
    expression = {"key": f"{GPU}.count", "operator": "Exists"}
    selector = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    labelled = slice_of("x", nodeName=None, nodeSelector=selector)
    assert passing(snapshot_of(with_driver(labelled)), pod()) == {"labelled", "plugin", "mixed"}
    everywhere = slice_of("x", nodeName=None, allNodes=True)
    assert passing(snapshot_of(with_driver(everywhere)), pod()) == set(NODES)


def test_each_resource_of_a_node_has_its_own_form() -> None:
    i915, xe = "gpu.intel.com/i915", "gpu.intel.com/xe"
    both = {"both": node("i915=1", "0"), "plugin": node("i915=1", "0"), "xe": node("xe=1", "0")}
    cluster = with_driver("both", "xe", classes=(device_class(xe),), of=both)
    snapshot = snapshot_of(cluster, GpuStateBuilder(INTEL))
    agent = GpuAgent(GpuOptions(), INTEL)
    assert passing(snapshot, pod(**{xe: "1"}), agent) == {"both", "xe"}
    assert passing(snapshot, pod(**{xe: "2"}), agent) == {"both"}, "kube-scheduler counts its devices"
    assert passing(snapshot, pod(**{i915: "1"}), agent) == {"both", "plugin"}
    assert agent.bind(pod(**{xe: "1"}), "both", snapshot, 1.0) is None
    assert isinstance(agent.bind(pod(**{i915: "1"}), "both", snapshot, 1.0), BindPlan)


def test_an_amount_of_a_driver_is_not_divided_among_gpus() -> None:
    memory, shares = "nvidia.com/gpumem", {GPU: "1", "nvidia.com/gpumem": "1"}
    both = with_driver("driver", "mixed", classes=(device_class(), device_class(memory)))
    for requests in (shares, {memory: "1"}):
        assert {"driver", "mixed"} <= passing(snapshot_of(both), pod(**requests))
    assert "mixed" not in passing(snapshot_of(with_driver("driver", "mixed")), pod(**shares))


def test_rules_of_device_plugins_reject_no_pod_on_a_node_with_a_driver() -> None:
    init = {"name": "i", "resources": {"requests": {GPU: "2"}}}
    larger = decode(AllocatedPod, {"metadata": {"name": "i"}, "spec": {"initContainers": [init]}})
    spec = msgspec.structs.replace(pod().spec, initContainers=larger.spec.initContainers)
    invalid = msgspec.structs.replace(pod(), spec=spec)
    assert passing(snapshot_of(with_driver("driver", "mixed")), invalid) == {"driver", "labelled"}


def test_a_class_maps_its_implicit_resource_too() -> None:
    implicit = "deviceclass.resource.kubernetes.io/c"
    profile = msgspec.structs.replace(
        GENERIC, prefix="deviceclass.resource.kubernetes.io/", counts=(implicit,)
    )
    snapshot = snapshot_of(with_driver("driver", classes=(device_class(None),)), GpuStateBuilder(profile))
    expected = {"driver", "labelled"}
    assert passing(snapshot, pod(**{implicit: "1"}), GpuAgent(GpuOptions(), profile)) == expected


def test_claims_do_not_change_which_nodes_are_left() -> None:
    builder = GpuStateBuilder(GENERIC)
    cluster = with_driver("driver")
    before = agent_state(cluster, builder)
    claim = claim_of({"allocation": {"devices": {"results": [HELD]}}})
    objects = {**cluster.objects, RESOURCE_CLAIMS: {("d", "c"): claim}}
    after = agent_state(msgspec.structs.replace(cluster, objects=objects), builder)
    assert after.dra is before.dra
    assert after.devices.of("driver").holders


def test_devices_of_other_classes_do_not_make_a_node_one_with_gpus() -> None:
    nic = with_driver("driver", classes=(device_class(driver="gpu"),))
    assert passing(snapshot_of(nic), pod()) == {"labelled", "plugin", "mixed"}
    unknown = with_driver("driver", classes=(device_class(driver="' + unknown() + '"),))
    assert "driver" in passing(snapshot_of(unknown), pod())


def test_details_say_which_form_of_gpus_a_node_has() -> None:
    """A node without slices whose label shows GPUs is left, too: its driver is not known yet."""
    snapshot = snapshot_of(with_driver("driver"))
    nodes = snapshot.nodes.named(["driver", "labelled", "plugin", "plain"])
    verdict = AGENT.filter(pod(), nodes, snapshot)
    assert verdict is not None
    assert verdict.details is not None
    assert [verdict.details.text(at) for at in range(4)] == [
        "kube-scheduler allocates devices of the DRA driver d",
        "kube-scheduler allocates devices of a DRA driver",
        "c: card0",
        "",
    ]


def test_a_rejection_says_that_no_class_names_the_devices_of_a_driver() -> None:
    snapshot = snapshot_of(with_driver("driver", classes=()))
    verdict = AGENT.filter(pod(), snapshot.nodes.named(["driver", "plain"]), snapshot)
    assert verdict is not None
    texts = [verdict.reasons[code - 1].text() for code in verdict.codes.tolist()]
    assert texts[0] == f"{texts[1]}; no DeviceClass names it for devices of the DRA driver d"
