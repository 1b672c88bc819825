"""Reports of devices count the claims that still fit, also where devices are shared or partitioned."""

from collections.abc import Sequence
from typing import Any

import pytest

from nodewise.base import cooperative_scheduling
from nodewise.devices import device_report
from nodewise.devices.device_inventory import DeviceInventory
from nodewise.devices.device_report import ClaimCounter, ClaimFit, DeviceCounter, NodeReport
from nodewise.devices.device_taint_rules import DeviceTaintRule
from nodewise.devices.resource_claims import DeviceClass
from nodewise.devices.resource_slices import DeviceId, DeviceObjectMetadata
from tests.unit.devices.test_device_inventory import holding, inventory_of, keyed, rule_of
from tests.unit.devices.test_resource_slices import DRIVER, devices, slice_of


def report(
    wire: list[dict[str, Any]],
    *held: Any,
    rules: Sequence[DeviceTaintRule] = (),
    device_class: DeviceClass | None = None,
    **spec: Any,
) -> NodeReport:
    claims = {("d", f"c{number}"): claim for number, claim in enumerate(held)}
    keyed_rules = {("", f"r{number}"): rule for number, rule in enumerate(rules)}
    inventory = inventory_of(keyed(slice_of(devices=wire, **spec)), claims, keyed_rules)
    return device_report.report_node("n", inventory.of("n"), device_class)


def states(of_node: NodeReport) -> dict[str, str]:
    return {each.device.name: each.state for each in of_node.devices}


@pytest.mark.parametrize(
    ("selector", "tainted"),
    [
        ((DRIVER, "p", "a"), {"a"}),
        ((DRIVER, "p", None), {"a", "b"}),
        ((None, None, "b"), {"b"}),
        ((None, None, None), {"a", "b"}),
        (("other", "p", "a"), set()),
    ],
)
def test_a_rule_taints_the_devices_that_it_selects(
    selector: tuple[str | None, ...], tainted: set[str]
) -> None:
    rule = rule_of(*selector)
    of_node = report(devices("a", "b"), rules=[rule])
    assert {each.device.name for each in of_node.devices if each.is_tainted} == tainted
    assert all(each.is_available != each.is_tainted for each in of_node.devices)


def test_device_that_a_claim_got_before_it_could_be_shared_has_no_free_part() -> None:
    wire = {"name": "a", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "10"}}}
    of_node = report([wire], holding("a"))
    (each,) = of_node.devices
    assert (each.state, each.is_available) == ("allocated", False)
    assert each.free_capacity() == {f"{DRIVER}/memory": 0}
    assert ClaimCounter().fitting(of_node, 1) == 0


def test_rule_taints_devices_that_several_nodes_can_use() -> None:
    shared = slice_of("rack", None, allNodes=True, devices=devices("a", "b"), pool={"name": "rack"})
    inventory = inventory_of(keyed(shared), rules={("", "r"): rule_of(DRIVER, "rack", "a")})
    (tainted, free) = device_report.report_node("(network)", inventory.network).devices
    assert [taint.owner for taint in tainted.taints] == ["rule r"]
    assert (tainted.is_available, free.is_available) == (False, True)


def test_taints_of_the_driver_and_of_rules_have_their_owners() -> None:
    wire = [
        {"name": "a", "taints": [{"key": "xid", "effect": "NoExecute"}, {"key": "note", "effect": "None"}]}
    ]
    rule = rule_of(DRIVER, "p", "a")
    (each,) = report(wire, rules=[rule]).devices
    expected = [("driver", "xid"), ("driver", "note"), ("rule r", "sick")]
    assert [(taint.owner, taint.taint.key) for taint in each.taints] == expected
    (noted,) = report([{"name": "a", "taints": [{"key": "note", "effect": "None"}]}]).devices
    assert noted.is_available


def test_claims_of_a_size_need_free_devices_on_one_node() -> None:
    large, small = report(devices("a", "b", "c", "d"), holding("a")), report(devices("a"))
    counter = ClaimCounter()
    assert [counter.fitting(large, size) for size in (1, 2, 3, 4)] == [3, 1, 1, 0]
    expected = [ClaimFit(1, 4, 2, 0.0), ClaimFit(2, 1, 1, 0.5), ClaimFit(4, 0, 0, 1.0)]
    assert counter.summarize([large, small], [1, 2, 4]) == expected
    assert device_report.claim_sizes([large, small]) == [1, 2, 4]
    assert device_report.claim_sizes([]) == []


def test_no_claim_fits_devices_of_an_incomplete_pool() -> None:
    of_node = report(devices("a", "b"), pool={"resourceSliceCount": 2})
    assert states(of_node) == {"a": "unknown", "b": "unknown"}
    assert ClaimCounter().fitting(of_node, 1) == 0
    assert of_node.problems == (f"pool {DRIVER}/p: found 1 of 2 slices of generation 1",)


def test_a_shared_device_fits_claims_until_its_capacity_is_used_up() -> None:
    capacity = {"memory": {"value": "80Gi", "requestPolicy": {"default": "20Gi"}}}
    wire = [{"name": "a", "allowMultipleAllocations": True, "capacity": capacity}]
    part = holding("a", shareID="s", consumedCapacity={"memory": "20Gi"})
    of_node = report(wire, part)
    (each,) = of_node.devices
    assert (each.state, each.free_capacity()) == ("shared", {f"{DRIVER}/memory": 60 * 2**30 * 10**9})
    assert ClaimCounter().fitting(of_node, 1) == 3
    assert ClaimCounter().fitting(report(wire), 1) == 4


@pytest.mark.parametrize(
    ("memory", "shares", "state", "claims"), [("80Gi", "3", "shared", 1), ("0", "4", "allocated", 0)]
)
def test_shared_device_without_free_memory_fits_claims_without_memory(
    memory: str, shares: str, state: str, claims: int
) -> None:
    of_memory = {"default": "0", "validRange": {"min": "0", "max": "80Gi", "step": "1Mi"}}
    of_shares = {"default": "1", "validRange": {"min": "1", "max": "4", "step": "1"}}
    capacity = {
        "memory": {"value": "80Gi", "requestPolicy": of_memory},
        "shares": {"value": "4", "requestPolicy": of_shares},
    }
    wire = [{"name": "a", "allowMultipleAllocations": True, "capacity": capacity}]
    of_node = report(wire, holding("a", shareID="s", consumedCapacity={"memory": memory, "shares": shares}))
    (each,) = of_node.devices
    assert (each.state, each.free_capacity()[f"{DRIVER}/shares"]) == (state, (4 - int(shares)) * 10**9)
    assert ClaimCounter().fitting(of_node, 1) == claims


def test_a_partition_is_blocked_when_others_have_its_counters() -> None:
    def uses(amount: str) -> list[dict[str, Any]]:
        return [{"counterSet": "g", "counters": {"memory": {"value": amount}}}]

    counters = [{"name": "g", "counters": {"memory": {"value": "80Gi"}}}]
    wire = [
        {"name": "whole", "consumesCounters": uses("80Gi")},
        *({"name": f"half{number}", "consumesCounters": uses("40Gi")} for number in range(2)),
    ]
    slices = keyed(
        slice_of("c", None, nodeName="n", sharedCounters=counters, pool={"resourceSliceCount": 2}),
        slice_of("d", devices=wire, pool={"resourceSliceCount": 2}),
    )

    def of_node(*names: str) -> NodeReport:
        inventory = inventory_of(slices, {("d", "c"): holding(*names)})
        return device_report.report_node("n", inventory.of("n"))

    assert states(of_node("half0")) == {"whole": "blocked", "half0": "allocated", "half1": "free"}
    assert ClaimCounter().fitting(of_node("half0"), 1) == 1
    assert states(of_node("whole")) == {"whole": "allocated", "half0": "blocked", "half1": "blocked"}
    assert ClaimCounter().fitting(of_node(), 1) == 1, "the first device in order is the whole one"


def test_a_class_selects_devices_and_an_unknown_selector_makes_them_unavailable() -> None:
    def of_class(*selectors: str) -> NodeReport:
        device_class = DeviceClass(metadata=DeviceObjectMetadata("c"), selectors=selectors)
        return report(devices("a"), device_class=device_class)

    assert states(of_class("device.driver == 'other'")) == {}
    assert states(of_class(f"device.driver == '{DRIVER}'")) == {"a": "free"}
    (unknown,) = of_class("unknown()").devices
    assert not unknown.is_available


def test_states_and_tainted_devices_are_counted() -> None:
    rule = [rule_of(DRIVER, "p", name) for name in ("a", "b")]
    of_node = report(devices("a", "b", "c"), holding("a"), rules=rule)
    assert device_report.count_states([of_node]) == {"allocated": 1, "free": 1, "tainted": 2}
    assert of_node.devices[0].holders[0].allocated.device == DeviceId(DRIVER, "p", "a")


def counted(
    counter: DeviceCounter, inventory: DeviceInventory, *classes: DeviceClass
) -> dict[tuple[str, ...], int]:
    groups = cooperative_scheduling.run_without_pauses(counter.update(inventory, classes))
    return {tuple(group): count for group, count in groups.items()}


def test_devices_are_counted_by_driver_class_and_state() -> None:
    gpu = DeviceClass(metadata=DeviceObjectMetadata("gpu"), selectors=(f"device.driver == '{DRIVER}'",))
    every = DeviceClass(metadata=DeviceObjectMetadata("any"))
    nic = {"driver": "nic", "nodeName": "n", "pool": {"name": "n"}}
    slices = keyed(slice_of("a", devices=devices("a", "b")), slice_of("b", devices=devices("x"), **nic))
    counter = DeviceCounter()
    held = inventory_of(slices, {("d", "c"): holding("a")}, {("", "r"): rule_of(DRIVER, "p", "a")})
    assert counted(counter, held, gpu) == {
        (DRIVER, "gpu", "allocated"): 1,
        (DRIVER, "gpu", "tainted"): 1,
        (DRIVER, "gpu", "free"): 1,
        ("nic", "", "free"): 1,
    }
    expected = {(DRIVER, "gpu", "free"): 2, ("nic", "any", "free"): 1}
    assert counted(counter, inventory_of(slices), gpu, every) == expected
    assert counted(counter, inventory_of({})) == {}


def test_the_number_of_series_is_limited() -> None:
    slices = keyed(
        *(
            slice_of(f"s{number}", f"n{number}", driver=f"d{number}", devices=devices("a"))
            for number in range(500)
        )
    )
    groups = counted(DeviceCounter(), inventory_of(slices))
    assert len(groups) <= 201
    assert sum(groups.values()) == 500
