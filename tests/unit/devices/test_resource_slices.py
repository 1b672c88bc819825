"""ResourceSlices of all versions are decoded, and pools are complete or say what is missing."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from nodewise.base import cooperative_scheduling
from nodewise.base.quantity import NANO
from nodewise.devices import resource_slices
from nodewise.devices.device_inventory import DeviceInventoryBuilder
from nodewise.devices.resource_slices import (
    EMPTY,
    CapacityPolicy,
    CounterConsumption,
    DeviceCapacity,
    NodeDevicePool,
    NodeScope,
    NodeSelector,
    PoolId,
    ResourceSlice,
    ResourceSliceObject,
    SemanticVersion,
)
from nodewise.kube.store import Change

DRIVER = "gpu.example.com"
DEVICE: dict[str, Any] = {
    "attributes": {
        "uuid": {"string": "u-0"},
        "index": {"int": 3},
        "healthy": {"bool": True},
        "driverVersion": {"version": "1.2.3"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
        "links": {"ints": [1, 2]},
        "names": {"strings": ["a"]},
        "future": {"bytes": "AA=="},
    },
    "capacity": {
        "memory": {"value": "80Gi", "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi"}}},
        "cores": {"value": 2},
    },
    "consumesCounters": [{"counterSet": "gpu-0", "counters": {"memory": {"value": "10Gi"}}}],
    "taints": [{"key": "sick", "effect": "NoSchedule", "value": "x", "timeAdded": "2026-11-30T00:00:00Z"}],
    "allowMultipleAllocations": True,
    "unknown": {"of": ["a", "newer", "version"]},
}


def slice_of(name: str = "s", node: str | None = "n", **spec: Any) -> ResourceSlice:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1} | spec.pop("pool", {})
    document = {
        "metadata": {"name": name},
        "spec": {"driver": DRIVER, "pool": pool, "nodeName": node, **spec},
    }
    decoded = msgspec.json.decode(msgspec.json.encode(document), type=ResourceSliceObject)
    return resource_slices.parse_resource_slice(decoded)


def devices(*names: str) -> list[dict[str, Any]]:
    return [{"name": name} for name in names]


@pytest.mark.parametrize("is_beta", [False, True], ids=["v1", "v1beta1"])
def test_a_device_has_its_fields_in_every_version(is_beta: bool) -> None:
    wire = {"name": "gpu-0", "basic": DEVICE} if is_beta else {"name": "gpu-0", **DEVICE}
    device = slice_of(devices=[wire]).devices[0]
    assert device.attributes == {
        f"{DRIVER}/uuid": "u-0",
        f"{DRIVER}/index": 3,
        f"{DRIVER}/healthy": True,
        f"{DRIVER}/driverVersion": SemanticVersion("1.2.3"),
        "resource.kubernetes.io/pcieRoot": "pci0000:00",
        f"{DRIVER}/links": (1, 2),
        f"{DRIVER}/names": ("a",),
        f"{DRIVER}/future": None,
    }
    memory = DeviceCapacity(80 * 2**30 * NANO, CapacityPolicy(2**30 * NANO, minimum=2**30 * NANO))
    assert device.capacity == {f"{DRIVER}/memory": memory, f"{DRIVER}/cores": DeviceCapacity(2 * NANO)}
    assert device.consumes_counters == (CounterConsumption("gpu-0", {"memory": 10 * 2**30 * NANO}),)
    expected = ("sick", "NoSchedule", "x")
    assert (device.taints[0].key, device.taints[0].effect, device.taints[0].value) == expected
    assert device.allow_multiple_allocations
    assert str(device.id) == f"{DRIVER}/p/gpu-0"


@pytest.mark.parametrize(
    ("policy", "default", "smallest"),
    [
        (None, None, 1),
        ({"default": "0", "validRange": {"min": "0", "max": "8", "step": "1"}}, 0, 0),
        ({"default": "0"}, 0, 0),
        ({"default": "8"}, 8 * NANO, 1),
        ({"default": "8", "validRange": {"min": "2"}}, 8 * NANO, 2 * NANO),
        ({"default": "4", "validValues": ["2", "4", "8"]}, 4 * NANO, 2 * NANO),
    ],
)
def test_default_of_a_capacity_may_be_zero(policy: object, default: int | None, smallest: int) -> None:
    """The NVIDIA driver publishes 0 for the memory of GPUs that claims share."""
    wire = {"name": "gpu-0", "capacity": {"memory": {"value": "8", "requestPolicy": policy}}}
    capacity = slice_of(devices=[wire]).devices[0].capacity[f"{DRIVER}/memory"]
    assert (capacity.policy and capacity.policy.default, capacity.smallest_request) == (default, smallest)


def test_slice_without_attributes_is_otherwise_equal() -> None:
    document = {
        "metadata": {"name": "s"},
        "spec": {"driver": DRIVER, "pool": {"name": "p"}, "devices": [{"name": "a"} | DEVICE]},
    }
    decoded = msgspec.json.decode(msgspec.json.encode(document), type=ResourceSliceObject)
    whole = resource_slices.parse_resource_slice(decoded)
    without = resource_slices.parse_resource_slice(decoded, has_attributes=False)
    [device] = whole.devices
    assert device.attributes
    assert without == msgspec.structs.replace(
        whole, devices=(msgspec.structs.replace(device, attributes=resource_slices.EMPTY),)
    )


def test_equal_values_of_attributes_of_different_types_stay_different() -> None:
    for attribute, value in (
        ({"int": 1}, 1),
        ({"bool": True}, True),
        ({"string": "1"}, "1"),
        ({"version": "1"}, None),
    ):
        device = slice_of(devices=[{"name": "d", "attributes": {"a": attribute}}]).devices[0]
        stored = device.attributes[f"{DRIVER}/a"]
        assert (type(stored), stored) == (
            (type(value), value) if value is not None else (SemanticVersion, SemanticVersion("1"))
        )


@pytest.mark.parametrize(
    ("slices", "problem", "names"),
    [
        ([slice_of(devices=devices("a", "b"))], "", ["a", "b"]),
        ([slice_of(devices=None)], "", []),
        (
            [slice_of("s1", devices=devices("a"), pool={"resourceSliceCount": 2})],
            "found 1 of 2 slices of generation 1",
            ["a"],
        ),
        (
            [
                slice_of("old", devices=devices("a")),
                slice_of("new", devices=devices("b"), pool={"generation": 2}),
            ],
            "",
            ["b"],
        ),
        (
            [
                slice_of("old", devices=devices("a")),
                slice_of("new", devices=devices("b"), pool={"generation": 2, "resourceSliceCount": 2}),
            ],
            "found 1 of 2 slices of generation 2",
            ["b"],
        ),
        ([slice_of(devices=devices("a", "a"))], "found two devices of one name", ["a", "a"]),
        (
            [
                slice_of("a", sharedCounters=[{"name": "gpu-0"}], pool={"resourceSliceCount": 2}),
                slice_of("b", sharedCounters=[{"name": "gpu-0"}], pool={"resourceSliceCount": 2}),
            ],
            "found two counter sets of one name",
            [],
        ),
    ],
    ids=["complete", "empty", "incomplete", "replaced", "replaced in part", "invalid", "invalid counters"],
)
def test_only_the_newest_generation_of_a_pool_counts(
    slices: list[ResourceSlice], problem: str, names: list[str]
) -> None:
    pool = resource_slices.group_pool(slices)
    of_node = pool.for_node("n", {})
    assert of_node is not None
    assert of_node.pool is pool.newest
    assert of_node.pool.problem == problem
    assert [device.name for device in of_node.devices] == names
    assert pool.for_node("other", {}) is None


def test_generation_of_a_pool_counts_by_node_as_in_kube_scheduler() -> None:
    """kube-scheduler reads slices for other nodes only if those for the node are not the whole pool."""
    two = {"resourceSliceCount": 2}
    slices = [
        slice_of("own", "n1", devices=devices("a")),
        slice_of("newer", "n2", devices=devices("a"), pool={"generation": 2}),
        slice_of("part", "n3", devices=devices("c"), pool=two),
        slice_of("same name", "n4", devices=devices("a"), pool={"generation": 2} | two),
    ]
    pool = resource_slices.group_pool(slices)
    by_node = {}
    for node in ("n1", "n2", "n3", "n4"):
        of_node = pool.for_node(node, {})
        by_node[node] = of_node and ([device.name for device in of_node.devices], of_node.pool.problem)
    # n3 needs another slice of its generation, which the driver has replaced
    assert by_node == {"n1": (["a"], ""), "n2": (["a"], ""), "n3": None, "n4": (["a"], "")}


def pools_of(*slices: ResourceSlice) -> Callable[..., tuple[NodeDevicePool, ...]]:
    """The pools of a node by its name and labels."""
    changes = [(("", item.metadata.name), Change(None, item)) for item in slices]
    inventory = cooperative_scheduling.run_without_pauses(DeviceInventoryBuilder().update(changes, ()))
    return lambda node, labels=EMPTY: inventory.of(node, labels).pools


def test_two_drivers_may_use_one_pool_name() -> None:
    pools = pools_of(slice_of("a", driver="b.example.com"), slice_of("b"))("n")
    assert [each.pool.id for each in pools] == [PoolId("b.example.com", "p"), PoolId(DRIVER, "p")]
    assert not any(each.pool.problem for each in pools)


def test_devices_of_the_network_are_those_of_the_selected_nodes() -> None:
    selector = {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["1"]}]}]
    }
    by_device = [
        {"name": "a", "nodeName": "n1"},
        {"name": "b", "allNodes": True},
        {"name": "c", "nodeSelector": selector},
        {"name": "d"},
    ]
    slices = [
        slice_of("all", None, allNodes=True, devices=devices("x"), pool={"name": "all"}),
        slice_of("rack", None, nodeSelector=selector, devices=devices("y"), pool={"name": "rack"}),
        slice_of("by-device", None, perDeviceNodeSelection=True, devices=by_device, pool={"name": "z"}),
        slice_of("local", "n1", devices=devices("l"), pool={"name": "n1"}),
        slice_of("gone", "deleted", devices=devices("g"), pool={"name": "deleted"}),
    ]
    pools = pools_of(*slices)
    names = {
        node: [device.name for each in pools(node, labels) for device in each.devices]
        for node, labels in {"n1": {"rack": "1"}, "n2": {"rack": "2"}, "n3": {}}.items()
    }
    assert names == {"n1": ["x", "l", "y", "a", "b", "c"], "n2": ["x", "b"], "n3": ["x", "b"]}


def test_counters_of_a_pool_are_shared_by_all_of_its_slices() -> None:
    counters = [{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]
    slices = [
        slice_of("counters", sharedCounters=counters, pool={"resourceSliceCount": 2}),
        slice_of("devices", devices=devices("a"), pool={"resourceSliceCount": 2}),
    ]
    pool = resource_slices.group_pool(slices)
    assert (pool.newest.problem, pool.nodes()) == ("", frozenset({"n"}))
    assert pool.newest.counters.sets == {"gpu-0": {"memory": 80 * 2**30 * NANO}}


def test_pool_with_an_unknown_counter_is_invalid() -> None:
    consumption = [{"counterSet": "gpu-0", "counters": {"memory": {"value": "1Gi"}}}]
    pool = resource_slices.group_pool([slice_of(devices=[{"name": "a", "consumesCounters": consumption}])])
    assert pool.newest.problem == "device a has a counter that the pool does not have"
    of_node = pool.for_node("n", {})
    assert of_node is not None
    assert of_node.pool is pool.newest


@pytest.mark.parametrize(
    ("expression", "is_matched"),
    [
        ({"key": "a", "operator": "In", "values": ["1"]}, True),
        ({"key": "a", "operator": "NotIn", "values": ["1"]}, False),
        ({"key": "b", "operator": "NotIn", "values": ["1"]}, True),
        ({"key": "a", "operator": "Exists"}, True),
        ({"key": "b", "operator": "DoesNotExist"}, True),
        ({"key": "a", "operator": "Gt", "values": ["0"]}, True),
        ({"key": "a", "operator": "Lt", "values": ["1"]}, False),
        ({"key": "a", "operator": "Gt", "values": []}, False),
        ({"key": "b", "operator": "Gt", "values": ["0"]}, False),
        ({"key": "a", "operator": "Like", "values": ["1"]}, False),
    ],
)
def test_node_selectors_match_labels_as_in_kubernetes(expression: dict[str, Any], is_matched: bool) -> None:
    document = {"nodeSelectorTerms": [{}, {"matchExpressions": [expression]}]}
    selector = msgspec.convert(document, NodeSelector)
    assert NodeScope(selector=selector).matches("n", {"a": "1"}) == is_matched


def test_a_node_selector_matches_the_name_of_a_node() -> None:
    field = {"key": "metadata.name", "operator": "In", "values": ["n"]}
    selector = msgspec.convert({"nodeSelectorTerms": [{"matchFields": [field]}]}, NodeSelector)
    assert [selector.matches(name, {}) for name in ("n", "m")] == [True, False]
    assert not NodeScope().matches("n", {})
