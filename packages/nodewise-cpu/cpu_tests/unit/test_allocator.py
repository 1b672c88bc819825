"""Allocation, beyond the numbered cases of CMK."""

import pytest

from nodewise.base.errors import BadInput, Unavailable
from nodewise_cpu import allocator, pool_allocations
from nodewise_cpu.allocator import AllocationRequest, AllocationResult
from nodewise_cpu.pool_allocations import Allocations, Task

TASK = Task(7, start=1, boot="b")
NODE = pool_allocations.allocations_without_tasks(
    {
        "exclusive": {0: ["2,10", "9,17"], 1: ["4,12", "5,13", "6,14"]},
        "shared": {0: ["0,8"], 1: ["3,11"]},
        "infra": {0: ["1"]},
    }
)


def allocate(request: AllocationRequest, node: Allocations = NODE, draw: float = 0.0) -> AllocationResult:
    return allocator.allocate(node, request, TASK, draw)


def texts(claim: AllocationResult) -> list[str]:
    return [cpu_list.text for cpu_list in claim.cpu_lists]


def test_several_lists_are_on_one_socket_where_one_has_enough() -> None:
    assert texts(allocate(AllocationRequest("exclusive", 2))) == ["2,10", "9,17"]
    assert texts(allocate(AllocationRequest("exclusive", 3))) == ["4,12", "5,13", "6,14"]
    assert texts(allocate(AllocationRequest("exclusive", 4))) == ["2,10", "4,12", "5,13", "6,14"]


def test_lists_of_preferred_cpus_come_first() -> None:
    assert texts(allocate(AllocationRequest("exclusive", 1, prefer={9, 17}))) == ["9,17"]


def test_lists_with_offline_cpus_are_skipped_and_reported() -> None:
    assert texts(allocate(AllocationRequest("exclusive", 2, socket=1, avoid={4}))) == ["5,13", "6,14"]
    with pytest.raises(Unavailable, match="CPUs 4,13 offline"):
        allocate(AllocationRequest("exclusive", 2, socket=1, avoid={4, 13}))
    with pytest.raises(Unavailable, match="pool infra: 0 of 1 CPU lists usable, CPUs 1 offline"):
        allocate(AllocationRequest("infra", avoid={1}))


def test_a_shared_task_comes_to_one_of_the_lists_with_the_fewest_tasks() -> None:
    once = allocate(AllocationRequest("shared"), draw=0.9)
    assert texts(once) == ["3,11"]
    assert texts(allocator.allocate(once.allocations, AllocationRequest("shared"), Task(8), 0.9)) == ["0,8"]


def test_lists_that_overlap_are_never_given_together() -> None:
    node = pool_allocations.parse_allocations({"exclusive": {0: {"0-3": [], "2": [], "4": []}}})
    assert texts(allocate(AllocationRequest("exclusive", 2), node)) == ["0-3", "4"]
    held = allocator.allocate(node, AllocationRequest("exclusive"), Task(8), 0.0).allocations
    assert texts(allocate(AllocationRequest("exclusive"), held)) == ["4"]
    with pytest.raises(Unavailable):
        allocate(AllocationRequest("exclusive", 2), held)


def test_a_pool_without_lists_has_none_to_give() -> None:
    node = pool_allocations.parse_allocations({"shared": {0: {}}, "exclusive": {}})
    for pool in ("shared", "exclusive"):
        with pytest.raises(Unavailable, match=f"pool {pool}: 0 of 0"):
            allocate(AllocationRequest(pool), node)


def test_missing_pools_are_not_reported() -> None:
    node = pool_allocations.parse_allocations({"exclusive": {0: {"64": []}}})
    claim = allocate(AllocationRequest("exclusive"), node)
    assert allocator.task_environment(claim.allocations, claim.cpu_lists, TASK) == {
        "CMK_CPUS_ASSIGNED": "64",
        "CMK_CPUS_ASSIGNED_MASK": "10000000000000000",
        "NODEWISE_CPU_TASK": "7-1",
    }
    assert claim.cpus == (64,)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "x", "²", "9" * 20])
def test_a_number_of_cores_is_positive_and_whole(text: str) -> None:
    with pytest.raises(BadInput, match="CMK_NUM_CORES"):
        allocator.parse_core_count(text)
    assert allocator.parse_core_count(" 3 ") == 3


CACHES = {cpu: cpu - cpu % 4 for cpu in range(12)}
TWELVE = pool_allocations.allocations_without_tasks({"exclusive": {0: [str(cpu) for cpu in range(1, 12)]}})


@pytest.mark.parametrize(
    ("lists", "cpus"),
    [
        (1, ["1"]),
        (3, ["1", "2", "3"]),
        (4, ["4", "5", "6", "7"]),
        (6, ["1", "2", "4", "5", "6", "7"]),
        (8, ["10", "11", "4", "5", "6", "7", "8", "9"]),
    ],
)
def test_exclusive_lists_share_a_cache_where_possible(lists: int, cpus: list[str]) -> None:
    assert sorted(texts(allocate(AllocationRequest("exclusive", lists, caches=CACHES), TWELVE))) == cpus


def test_preferred_cpus_come_before_a_common_cache() -> None:
    request = AllocationRequest("exclusive", 2, prefer={3, 9}, caches=CACHES)
    assert texts(allocate(request, TWELVE)) == ["3", "9"]
