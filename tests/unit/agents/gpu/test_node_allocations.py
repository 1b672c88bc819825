"""The allocations of a node; the numbers in names are those of the cases of GPU Aware Scheduling 0.5.6."""

from typing import Any

import pytest

from nodewise.agents.gpu import allocation_record, extended_resource_amounts, node_allocations
from nodewise.agents.gpu.allocation_record import Reservation
from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod
from nodewise.agents.gpu.node_allocations import NodeAllocations, PodIndex, may_hold_gpus
from nodewise.agents.gpu.node_gpus import NodeGpus
from nodewise.agents.gpu.vendor_resource_names import INTEL
from tests.unit.agents.gpu.gpu_cluster_state_builders import (
    ONE,
    PREFIX,
    agent_state,
    charged_amounts,
    cluster_state,
    decode,
    entry,
    lease,
    lease_of,
    node,
    pod,
)

HELD = {"i915": 1, "millicores": 100}
NODES = {"n1": node(), "n2": node()}


def allocations(*pods: AllocatedPod, version: str = "10", text: str = "", **entries: Any) -> Any:
    """The charged amounts on n1 by GPU."""
    leases = [lease_of("n1", text)] if text else [lease("n1", **entries)] if entries else []
    return charged_amounts(agent_state(cluster_state(NODES, pods, leases, version)))


def problems(*pods: AllocatedPod, version: str = "10", **entries: Any) -> tuple[str, ...]:
    leases = [lease("n1", **entries)] if entries else []
    return agent_state(cluster_state(NODES, pods, leases, version)).nodes["n1"].problems


class TestAnnotations:
    """Pods of the older system without an allocation record."""

    def test_156_a_running_pod(self) -> None:
        assert allocations(pod("a", "n1", "card0")) == {"card0": HELD}
        assert allocations(pod("a", "n1", "card0|card0", [ONE, ONE])) == {
            "card0": {"i915": 2, "millicores": 200}
        }

    def test_157_a_pod_without_annotation_holds_unknown_gpus(self) -> None:
        allocated_pod = pod("a", "n1")
        assert allocations(allocated_pod) == {}
        assert problems(allocated_pod) == ("pod d/a requests GPUs, but no annotation names them",)

    def test_158_a_pod_without_a_node_holds_nothing(self) -> None:
        assert allocations(pod("a", "", "card0", phase="Pending")) == {}

    def test_159_a_part_for_each_container(self) -> None:
        allocated_pod = pod("a", "n1", "card0|card1")
        assert allocations(allocated_pod) == {}
        assert problems(allocated_pod) == (
            "pod d/a: gas-container-cards is 'card0|card1', of 2 containers; it has 1",
        )

    def test_164_a_finished_pod_holds_nothing(self) -> None:
        for phase in ("Succeeded", "Failed"):
            assert allocations(pod("a", "n1", "card0", phase=phase)) == {}
        for phase in ("Pending", "Running", "Unknown", "", "Odd"):
            assert allocations(pod("a", "n1", "card0", phase=phase)) == {"card0": HELD}

    def test_amounts_are_divided_among_the_gpus_without_the_remainder(self) -> None:
        assert allocations(pod("a", "n1", "card0,card1", ["i915=2 mc=2001 mem=1"])) == {
            gpu: {"i915": 1, "millicores": 1000} for gpu in ("card0", "card1")
        }

    def test_a_gpu_that_is_named_twice_counts_twice(self) -> None:
        assert allocations(pod("a", "n1", "card0,card0", ["i915=2 mc=200"])) == {
            "card0": {"i915": 2, "millicores": 200}
        }

    def test_a_container_without_gpus_uses_nothing(self) -> None:
        assert allocations(pod("a", "n1", "|card1", ["mc=500", ONE])) == {"card1": HELD}

    def test_tiles(self) -> None:
        allocated_pod = pod(
            "a", "n1", "card0,card1", ["i915=2 t=4"], subdevices="card0:gt0+gt1,card1:gt3+nonsense"
        )
        held = agent_state(cluster_state(NODES, [allocated_pod])).nodes["n1"].allocations
        assert held.subdevices == {"card0": {0, 1}, "card1": {3}}
        assert held.amounts["card0"][f"{PREFIX}tiles"] == 2

    def test_gpus_that_the_node_does_not_have_are_reported(self) -> None:
        allocated_pod = pod("a", "n1", "card7")
        assert allocations(allocated_pod) == {"card7": HELD}
        assert problems(allocated_pod) == ("d/a hold 'card7', which the node does not have",)

    def test_an_allocation_beyond_the_capacity_is_reported(self) -> None:
        pods = [pod(f"p{number}", "n1", "card0", ["i915=1 mc=600"]) for number in range(2)]
        assert problems(*pods) == ("d/p0, d/p1 hold 1200 gpu.intel.com/millicores of card0, which has 1000",)

    @pytest.mark.parametrize("text", ["", ",", "card0,", "\x00", "🙂", "x" * 100_000, "card0|" * 1000])
    def test_an_invalid_annotation_does_not_affect_other_pods(self, text: str) -> None:
        good = pod("good", "n1", "card0")
        assert allocations(good, pod("bad", "n1", text, [ONE], subdevices=text))["card0"]["i915"] <= 2
        assert allocations(good, pod("bad", "n1", text, []))["card0"] == HELD

    def test_a_sum_is_never_more_than_the_largest_amount(self) -> None:
        pods = [
            pod(f"p{number}", "n1", "card0", [f"i915=1 mc={extended_resource_amounts.LARGEST}"])
            for number in range(3)
        ]
        assert allocations(*pods)["card0"] == {"i915": 3, "millicores": extended_resource_amounts.LARGEST}
        assert agent_state(cluster_state(NODES, pods)).layout.free[f"{PREFIX}millicores"].min() < 0


class TestLedger:
    """Reservations, which are written before a pod is bound."""

    def test_an_entry_counts_before_its_pod_is_bound(self) -> None:
        waiting = pod("a", "", phase="Pending")
        assert allocations(waiting, uid_a=entry("a", "card1")) == {"card1": HELD}

    def test_it_counts_once_when_the_pod_is_bound(self) -> None:
        assert allocations(pod("a", "n1", "card1"), uid_a=entry("a", "card1")) == {"card1": HELD}

    def test_166_edited_annotations_change_nothing(self) -> None:
        assert allocations(pod("a", "n1", "card0"), uid_a=entry("a", "card1")) == {"card1": HELD}
        assert allocations(pod("a", "n1", None), uid_a=entry("a", "card1")) == {"card1": HELD}
        assert allocations(pod("a", "n1", "card0", phase="Failed"), uid_a=entry("a", "card1")) == {}

    def test_162_a_terminating_pod_holds_its_gpus(self) -> None:
        allocated_pod = pod("a", "n1", "card0")
        leaving = decode(
            AllocatedPod,
            {
                "metadata": {"name": "a", "namespace": "d", "uid": "uid-a", "deletionTimestamp": "now"},
                "spec": {
                    "nodeName": "n1",
                    "containers": [{"resources": {"requests": {f"{PREFIX}i915": "1"}}}],
                },
                "status": {"phase": "Running"},
            },
        )
        assert allocations(allocated_pod, uid_a=entry("a", "card0")) == {"card0": HELD}
        assert allocations(leaving, uid_a=entry("a", "card0")) == {"card0": {"i915": 1}}
        assert allocations(uid_a=entry("a", "card0")) == {}

    @pytest.mark.parametrize(
        ("version", "seen", "counts"),
        [
            ("10", "9", False),
            ("10", "10", False),
            ("10", "11", True),
            ("9", "10", True),
            ("100", "11", False),
        ],
    )
    def test_163_a_reservation_counts_until_its_pod_is_known_to_be_deleted(
        self, version: str, seen: str, counts: bool
    ) -> None:
        amounts_of_node = allocations(version=version, uid_a=entry("a", "card0", seen))
        assert amounts_of_node == ({"card0": HELD} if counts else {})

    @pytest.mark.parametrize(
        ("version", "seen"), [("", "5"), ("10", ""), ("x", "5"), ("10", "0x5"), ("10", "²")]
    )
    def test_a_reservation_counts_if_versions_are_not_numbers(self, version: str, seen: str) -> None:
        assert allocations(version=version, uid_a=entry("a", "card0", seen)) == {"card0": HELD}

    def test_165_another_pod_of_the_same_name_is_another_pod(self) -> None:
        again = pod("a", "", uid="uid-new", phase="Pending")
        assert allocations(again, uid_a=entry("a", "card0", "9")) == {}
        assert allocations(again, uid_a=entry("a", "card0", "11")) == {"card0": HELD}
        failed = pod("a", "n1", "card0", uid="uid-new", phase="Failed")
        assert allocations(failed, uid_a=entry("a", "card0", "9")) == {}

    def test_a_reservation_of_a_pod_on_another_node_does_not_count(self) -> None:
        gpu_state = agent_state(
            cluster_state(NODES, [pod("a", "n2", "card0")], [lease("n1", uid_a=entry("a", "card1"))])
        )
        assert charged_amounts(gpu_state) == {}
        assert charged_amounts(gpu_state, "n2") == {"card0": HELD}
        assert gpu_state.nodes["n1"].allocations.stale == {"uid-a"}

    def test_the_pods_own_requests_are_charged_where_it_is_known(self) -> None:
        reservation = entry("a", "card0", "11", ["i915=7"])
        assert allocations(pod("a", "n1"), uid_a=reservation) == {"card0": HELD}
        assert allocations(uid_a=reservation) == {"card0": {"i915": 7}}

    def test_several_containers(self) -> None:
        reservation = entry("a", "card0,card1||card0", "11", ["i915=1 mc=50", "", ONE])
        expected = {"card0": {"i915": 2, "millicores": 150}, "card1": {"i915": 1, "millicores": 50}}
        assert allocations(uid_a=reservation) == expected

    def test_an_entry_that_cannot_be_read_leaves_its_bound_pod_to_the_annotations(self) -> None:
        allocated_pod = pod("a", "n1", "card0")
        expected = {"card0": HELD, "card1": HELD}
        assert allocations(allocated_pod, uid_a={"pod": 3}, uid_b=entry("b", "card1", "11")) == expected
        assert problems(allocated_pod, uid_a={"pod": 3})[0].startswith("the reservation of pod uid uid-a: ")
        assert allocations(allocated_pod, text="{") == {"card0": HELD}

    @pytest.mark.parametrize(
        "odd",
        [
            Reservation("d/a", "card0", seen="11", charged=({f"{PREFIX}i915": -5},)),
            Reservation("d/a", "card0|", seen="11", charged=({f"{PREFIX}i915": 2**70},)),
            Reservation("", "", seen="11"),
            Reservation("d/a", ",,|,", seen="9" * 400, charged=({}, {}, {})),
        ],
    )
    def test_an_odd_entry_holds_nothing_negative(self, odd: Reservation) -> None:
        amounts_of_node = allocations(uid_a=odd, uid_b=entry("b", "card1", "11"))
        assert amounts_of_node["card1"] == HELD
        assert all(
            0 < amount <= extended_resource_amounts.LARGEST
            for gpu in amounts_of_node.values()
            for amount in gpu.values()
        )

    def test_reservations_that_do_not_count_are_returned_for_removal(self) -> None:
        record = lease(
            "n1",
            uid_gone=entry("gone", "card0", "9"),
            uid_late=entry("late", "card0", "11"),
            uid_odd={"pod": 3},
            uid_ended=entry("ended", "card0", "12"),
        )
        pods = [pod("ended", "n1", phase="Succeeded")]
        allocations_of_node = agent_state(cluster_state(NODES, pods, [record])).nodes["n1"].allocations
        assert allocations_of_node.stale == {"uid-gone", "uid-ended"}
        assert allocations_of_node.undecided


def test_an_annotation_with_too_many_gpus_holds_none_and_is_a_problem() -> None:
    """Tenants write it, and adding up hundreds of thousands of names would delay all requests."""
    allocated_pod = pod("a", "n1", ",".join(f"c{number}" for number in range(20_000)))
    assert allocations(allocated_pod) == {}
    (problem,) = problems(allocated_pod)
    assert "names more than 1024 GPUs" in problem


def test_a_limited_number_of_conflicts_is_reported() -> None:
    pods = [pod(f"p{number}", "n1", ",".join(f"c{number}-{at}" for at in range(100))) for number in range(20)]
    allocations_of_node = node_allocations.allocations_of_node(
        "n1", allocation_record.EMPTY, pods, PodIndex({}, "10"), INTEL
    )
    conflicts = list(node_allocations.conflicts(allocations_of_node, NodeGpus()))
    assert len(conflicts) == 17
    assert conflicts[-1].startswith("pods hold more than there is of further GPUs")


@pytest.mark.parametrize(
    ("record_after", "pod_after", "is_same"),
    [
        (entry("a", "card0"), None, True),
        (entry("a", "card1"), None, False),
        (entry("a", "card0"), pod("a", requests=["i915=1 mc=700"]), False),
    ],
    ids=["nothing changed", "another GPU", "another request"],
)
def test_an_allocation_is_used_again_while_its_reservation_and_pod_are_the_same(
    record_after: Any, pod_after: AllocatedPod | None, is_same: bool
) -> None:
    def allocations_of(record: Any, allocated_pod: AllocatedPod, before: Any) -> NodeAllocations:
        parsed = allocation_record.parse_lease(lease("n1", uid_a=record))
        index = PodIndex({("d", "a"): allocated_pod}, "10")
        return node_allocations.allocations_of_node("n1", parsed, [], index, INTEL, before)

    unchanged = pod("a")
    before = allocations_of(entry("a", "card0"), unchanged, {}).by_uid
    after = allocations_of(record_after, pod_after or unchanged, before)
    assert after == allocations_of(record_after, pod_after or unchanged, {})
    assert (after.by_uid["uid-a"].amounts is before["uid-a"].amounts) is is_same
    assert before["uid-a"].computed_from is not None
    assert after.by_uid["uid-a"].computed_from is not before["uid-a"].computed_from, "the old record is freed"


def test_169_a_deleted_node_has_no_allocations() -> None:
    gpu_state = agent_state(
        cluster_state({"n2": node()}, [pod("a", "n1", "card0")], [lease("n1", uid_a=entry("a", "card0"))])
    )
    assert list(gpu_state.nodes) == ["n2"]


@pytest.mark.parametrize(
    ("requests", "may"),
    [("i915=1", True), ("", False)],
)
def test_which_pods_are_kept(requests: str, may: bool) -> None:
    assert may_hold_gpus(pod("a", requests=[requests])) is may


def test_plain_resources_are_no_devices() -> None:
    plain = {"cpu": "1", "hugepages-2Mi": "4Mi", "example.kubernetes.io/x": 1}
    container = {"resources": {"requests": plain, "limits": None}}
    meta = {"name": "a"}
    assert not may_hold_gpus(
        decode(AllocatedPod, {"metadata": meta, "spec": {"containers": [container, {}]}})
    )
    device = {"resources": {"limits": {"example.com/x": 1}}}
    assert may_hold_gpus(decode(AllocatedPod, {"metadata": meta, "spec": {"initContainers": [device]}}))
