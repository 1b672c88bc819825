"""The inventory follows changes of slices and claims, and equals one that is built from scratch."""

import random
from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec
import pytest

from nodewise.base import cooperative_scheduling
from nodewise.devices import device_allocation, device_inventory
from nodewise.devices.device_inventory import DeviceInventory, DeviceInventoryBuilder
from nodewise.devices.device_selectors import device_matches
from nodewise.devices.device_taint_rules import DeviceSelector, DeviceTaintRule, RuleMetadata, TaintRuleSpec
from nodewise.devices.resource_claims import ResourceClaim
from nodewise.devices.resource_slices import (
    Device,
    DeviceId,
    DeviceObjectMetadata,
    DeviceTaint,
    ResourceSlice,
)
from nodewise.kube.store import Key, difference
from tests.unit.devices.test_resource_claims import claim_of
from tests.unit.devices.test_resource_slices import DRIVER, devices, slice_of

Slices = dict[Key, ResourceSlice]
Claims = dict[Key, ResourceClaim]
Rules = dict[Key, DeviceTaintRule]


def updated(
    builder: DeviceInventoryBuilder, old: tuple[dict[Key, Any], ...], new: tuple[dict[Key, Any], ...]
) -> DeviceInventory:
    changes = [difference(before, after).items() for before, after in zip(old, new, strict=True)]
    return cooperative_scheduling.run_without_pauses(builder.update(*changes))


def inventory_of(slices: Slices, claims: Claims | None = None, rules: Rules | None = None) -> DeviceInventory:
    return updated(DeviceInventoryBuilder(), ({}, {}, {}), (slices, claims or {}, rules or {}))


def keyed(*slices: ResourceSlice) -> Slices:
    return {("", item.metadata.name): item for item in slices}


def holding(*names: str, pool: str = "p", pod: str = "pod", **result: Any) -> ResourceClaim:
    results = [{"request": "r", "driver": DRIVER, "pool": pool, "device": name, **result} for name in names]
    consumers = [{"resource": "pods", "name": pod, "uid": "u"}, {"resource": "others", "name": "x"}]
    return claim_of({"allocation": {"devices": {"results": results}}, "reservedFor": consumers})


def rule_of(
    *selector: str | None, name: str = "r", annotations: dict[str, str] | None = None
) -> DeviceTaintRule:
    taint = DeviceTaint("sick", "NoSchedule")
    return DeviceTaintRule(
        RuleMetadata(name, annotations=annotations), TaintRuleSpec(taint, DeviceSelector(*selector))
    )


def states(inventory: DeviceInventory, node: str, **labels: str) -> dict[str, str]:
    there = inventory.of(node, labels)
    return {device.name: there.state(pool, device) for pool in there.pools for device in pool.devices}


def test_a_claim_has_its_devices_until_it_is_deallocated() -> None:
    slices = keyed(slice_of(devices=devices("a", "b")))
    builder = DeviceInventoryBuilder()
    free = updated(builder, ({}, {}), (slices, {("d", "c"): claim_of()}))
    held = updated(builder, (slices, {("d", "c"): claim_of()}), (slices, {("d", "c"): holding("a")}))
    again = updated(builder, (slices, {("d", "c"): holding("a")}), (slices, {("d", "c"): holding("b")}))
    gone = updated(builder, (slices, {("d", "c"): holding("b")}), (slices, {}))
    assert [states(each, "n") for each in (free, held, again, gone)] == [
        {"a": "free", "b": "free"},
        {"a": "allocated", "b": "free"},
        {"a": "free", "b": "allocated"},
        {"a": "free", "b": "free"},
    ]
    (holder,) = held.of("n").holders[DeviceId(DRIVER, "p", "a")]
    assert (holder.claim, holder.pods) == (("d", "c"), ("pod",))
    assert updated(builder, (slices, {}), (slices, {})) is gone


def test_devices_of_an_incomplete_pool_are_unknown_not_absent() -> None:
    slices = keyed(slice_of(devices=devices("a", "b"), pool={"resourceSliceCount": 2}))
    assert states(inventory_of(slices, {("d", "c"): holding("a")}), "n") == {"a": "allocated", "b": "unknown"}


def test_a_device_with_admin_access_stays_free() -> None:
    slices = keyed(slice_of(devices=devices("a")))
    assert states(inventory_of(slices, {("d", "c"): holding("a", adminAccess=True)}), "n") == {"a": "free"}


def test_a_shared_device_is_allocated_when_a_capacity_is_used_up() -> None:
    wire = {"name": "a", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "10"}}}
    slices = keyed(slice_of(devices=[wire]))
    parts = [holding("a", shareID=str(number), consumedCapacity={"memory": "5"}) for number in range(2)]
    assert states(inventory_of(slices, {("d", "c0"): parts[0]}), "n") == {"a": "shared"}
    both = {("d", f"c{number}"): part for number, part in enumerate(parts)}
    assert states(inventory_of(slices, both), "n") == {"a": "allocated"}


def test_a_driver_that_disappears_leaves_no_devices() -> None:
    slices = keyed(slice_of(devices=devices("a")))
    builder = DeviceInventoryBuilder()
    updated(builder, ({}, {}), (slices, {("d", "c"): holding("a")}))
    assert updated(builder, (slices, {}), ({}, {})).nodes == {}
    back = updated(builder, ({}, {}), (slices, {}))
    assert states(back, "n") == {"a": "allocated"}, "the claim still has the device"


def test_devices_of_the_network_belong_to_all_selected_nodes() -> None:
    selector = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "Exists"}]}]}
    rack = slice_of("rack", None, nodeSelector=selector, devices=devices("x"), pool={"name": "rack"})
    inventory = inventory_of(
        keyed(rack, slice_of(devices=devices("a"))), {("d", "c"): holding("x", pool="rack")}
    )
    assert states(inventory, "n", rack="1") == {"a": "free", "x": "allocated"}
    assert states(inventory, "n") == {"a": "free"}
    assert states(inventory, "m", rack="1") == {"x": "allocated"}


@pytest.mark.parametrize("slice_count", [1, 2], ids=["slices of each node", "slices of all nodes"])
def test_change_of_one_node_leaves_the_devices_of_other_nodes_in_its_pool(slice_count: int) -> None:
    size = {"resourceSliceCount": slice_count}
    before = keyed(*(slice_of(node, node, devices=devices(node), pool=size) for node in ("n1", "n2")))
    builder = DeviceInventoryBuilder()
    first = updated(builder, ({}, {}), (before, {}))
    changed = keyed(slice_of("n1", "n1", devices=devices("new"), pool=size))
    second = updated(builder, (before, {}), (before | changed, {}))
    assert second.nodes["n2"] is first.nodes["n2"]
    assert states(second, "n1") == {"new": "free"}
    third = updated(builder, (before | changed, {}), (before | changed, {("d", "c"): holding("new")}))
    assert third.nodes["n2"] is first.nodes["n2"]
    assert states(third, "n1") == {"new": "allocated"}


def test_incomplete_pool_concerns_all_of_its_nodes() -> None:
    before = keyed(
        *(slice_of(node, node, devices=devices(node), pool={"resourceSliceCount": 3}) for node in "abc")
    )
    builder = DeviceInventoryBuilder()
    assert states(updated(builder, ({}, {}), (before, {})), "a") == {"a": "free"}
    after = {key: item for key, item in before.items() if key != ("", "c")}
    assert states(updated(builder, (before, {}), (after, {})), "a") == {"a": "unknown"}


class CountedDevices(tuple[Device, ...]):
    """The devices of a slice, which count how often they are read."""

    __slots__ = ()
    reads: ClassVar = 0

    def __iter__(self) -> Iterator[Device]:
        CountedDevices.reads += 1
        return super().__iter__()


def test_prediction_for_a_node_does_not_read_the_slices_of_other_nodes() -> None:
    size = {"resourceSliceCount": 20}
    slices = []
    for node in map(str, range(10)):
        counters = [{"name": node, "counters": {"units": {"value": "2"}}}]
        use = [{"counterSet": node, "counters": {"units": {"value": "1"}}}]
        slices += [
            slice_of(f"c{node}", node, sharedCounters=counters, pool=size),
            slice_of(node, node, devices=[{"name": node, "consumesCounters": use}], pool=size),
        ]
    counted = (msgspec.structs.replace(item, devices=CountedDevices(item.devices)) for item in slices)
    of_node = inventory_of(keyed(*counted), {("d", "c"): holding("0")}).of("0")
    CountedDevices.reads = 0
    use = device_inventory.device_use(of_node)
    assert not [*device_allocation.blocked_devices(of_node.pools, use)]
    claims = [ResourceClaim(metadata=DeviceObjectMetadata("c"))]
    assert device_allocation.predict_devices(of_node.pools, claims, {}, use, device_matches) == ()
    assert CountedDevices.reads == 0


def test_counters_are_used_up_by_devices_of_another_node() -> None:
    size = {"resourceSliceCount": 3}
    counters = [{"name": "set", "counters": {"units": {"value": "1"}}}]
    use = [{"counterSet": "set", "counters": {"units": {"value": "1"}}}]
    slices = keyed(
        slice_of("counters", "n1", sharedCounters=counters, pool=size),
        *(slice_of(n, n, devices=[{"name": n, "consumesCounters": use}], pool=size) for n in ("n1", "n2")),
    )
    builder = DeviceInventoryBuilder()

    def blocked(inventory: DeviceInventory) -> list[str]:
        of_node = inventory.of("n2")
        use = device_inventory.device_use(of_node)
        return [each.device for each in device_allocation.blocked_devices(of_node.pools, use)]

    assert not blocked(updated(builder, ({}, {}), (slices, {})))
    held = {("d", "c"): holding("n1")}
    assert blocked(updated(builder, (slices, {}), (slices, held))) == ["n2"]
    assert not blocked(updated(builder, (slices, held), (slices, {})))


def test_any_sequence_of_changes_gives_the_inventory_of_its_end() -> None:
    draw = random.Random(39)
    builder = DeviceInventoryBuilder()
    before: tuple[Slices, Claims, Rules] = ({}, {}, {})
    for _ in range(300):
        slices, claims, rules = dict(before[0]), dict(before[1]), dict(before[2])
        for _ in range(draw.randint(1, 3)):
            name, pool = f"s{draw.randint(0, 4)}", f"p{draw.randint(0, 2)}"
            slices.pop(("", name), None)
            if draw.random() < 0.7:
                by_device = [
                    {"name": f"{name}-{at}", "nodeName": f"n{draw.randint(0, 2)}"} for at in range(2)
                ]
                of_node = {"devices": devices(f"{name}-0", f"{name}-1")}
                node = draw.choice([f"n{draw.randint(0, 2)}", None])
                scope = draw.choice(
                    [{"allNodes": True}, {"perDeviceNodeSelection": True, "devices": by_device}]
                )
                spec = of_node if node else {**of_node, **scope}
                size = {
                    "name": pool,
                    "generation": draw.randint(1, 2),
                    "resourceSliceCount": draw.randint(1, 2),
                }
                slices["", name] = slice_of(name, node, pool=size, **spec)
            claim = ("d", f"c{draw.randint(0, 4)}")
            claims.pop(claim, None)
            if draw.random() < 0.7:
                held = (f"s{draw.randint(0, 4)}-{draw.randint(0, 1)}" for _ in range(draw.randint(0, 2)))
                claims[claim] = holding(*held, pool=f"p{draw.randint(0, 2)}")
            rule = f"r{draw.randint(0, 2)}"
            rules.pop(("", rule), None)
            if draw.random() < 0.5:
                device = draw.choice([f"s{draw.randint(0, 4)}-{draw.randint(0, 1)}", None])
                rules["", rule] = rule_of(DRIVER, f"p{draw.randint(0, 2)}", device, name=rule)
        after = (slices, claims, rules)
        now, whole = updated(builder, before, after), inventory_of(*after)
        assert {node: each.pools for node, each in now.nodes.items()} == {
            node: each.pools for node, each in whole.nodes.items()
        }
        for node in ("n0", "n1", "n2", "n3"):
            assert states(now, node) == states(whole, node)
            assert now.of(node).taint_rules == whole.of(node).taint_rules
            assert {device: sorted(held) for device, held in now.of(node).holders.items()} == {
                device: sorted(held) for device, held in whole.of(node).holders.items()
            }
        before = after
