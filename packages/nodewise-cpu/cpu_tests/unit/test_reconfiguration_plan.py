"""Plans of reconfigurations, beyond the numbered cases of CMK."""

import pytest

from cpu_tests.unit.allocation_factory import create_allocations as node
from nodewise.base.errors import BadInput, Refused
from nodewise_cpu import pool_allocations, reconfiguration_plan
from nodewise_cpu.pool_allocations import Allocations, Task
from nodewise_cpu.reconfiguration_plan import Move

A, B, C = (Task(pid, start=pid, boot="b") for pid in (1, 2, 3))


def test_a_blocking_task_is_moved_first() -> None:
    """The exclusive task gets cores of infra, and infra gets the core of the task."""
    before = node({"exclusive": {"0": (A,)}, "infra": {"1,2": (B,)}})
    plan = reconfiguration_plan.plan(before, {"exclusive": {0: ["1"]}, "infra": {0: ["0,2"]}})
    assert plan.moves == (
        Move(B, frozenset({1, 2}), frozenset({2})),
        Move(A, frozenset({0}), frozenset({1})),
        Move(B, frozenset({2}), frozenset({0, 2})),
    )


def test_tasks_that_change_places_take_a_free_list_in_between() -> None:
    before = node(
        {"exclusive": {"0": (A,), "2": ()}, "exclusive-non-isolcpus": {"1": (B,)}, "infra": {"3": ()}}
    )
    lists = {"exclusive": {0: ["1"]}, "exclusive-non-isolcpus": {0: ["0"]}, "infra": {0: ["2,3"]}}
    plan = reconfiguration_plan.plan(before, lists)
    assert plan.moves == (
        Move(A, frozenset({0}), frozenset({2})),
        Move(B, frozenset({1}), frozenset({0})),
        Move(A, frozenset({2}), frozenset({1})),
    )


def test_tasks_that_change_places_with_nothing_free_are_named() -> None:
    before = node({"exclusive": {"0": (A,)}, "exclusive-non-isolcpus": {"1": (B,)}, "infra": {"2": (C,)}})
    lists = {"exclusive": {0: ["1"]}, "exclusive-non-isolcpus": {0: ["0"]}, "infra": {0: ["2"]}}
    with pytest.raises(Refused, match=r"task 1: CPUs 0.*task 2: CPUs 1"):
        reconfiguration_plan.plan(before, lists)


def test_all_pools_that_are_too_small_are_reported_together() -> None:
    before = node({"exclusive": {"0": (A,), "1": (B,)}, "shared": {"2": (C,)}, "infra": {"3": ()}})
    with pytest.raises(BadInput) as caught:
        reconfiguration_plan.plan(
            before, {"exclusive": {0: ["0"]}, "shared": {0: []}, "infra": {0: ["1,2,3"]}}
        )
    assert [problem.field for problem in caught.value.problems] == ["pool exclusive", "pool shared"]


def test_a_task_stays_on_its_socket_where_a_list_is_free() -> None:
    before = Allocations(
        {
            "exclusive": pool_allocations.pool(
                "exclusive",
                {
                    0: [pool_allocations.parse_cpu_list("0", tasks=[A])],
                    1: [
                        pool_allocations.parse_cpu_list("4", tasks=[B]),
                        pool_allocations.parse_cpu_list("5"),
                    ],
                },
            )
        }
    )
    plan = reconfiguration_plan.plan(before, {"exclusive": {0: ["1", "2"], 1: ["6"]}})
    assert {move.task: move.after for move in plan.moves} == {A: {1}, B: {6}}


def test_a_task_whose_lists_come_together_is_on_the_list_once() -> None:
    before = node({"shared": {"0": (A,), "1": (A, B)}, "infra": {"2": ()}})
    plan = reconfiguration_plan.plan(before, {"shared": {0: ["0,1"]}, "infra": {0: ["2"]}})
    assert [cpu_list.tasks for _, cpu_list in plan.allocations.cpu_lists if cpu_list.tasks] == [(A, B)]


def test_an_unknown_pool_is_an_error() -> None:
    pool = pool_allocations.pool("fast", {0: [pool_allocations.parse_cpu_list("1")]}, is_exclusive=True)
    before = Allocations({**node({"exclusive": {"0": ()}}).pools, "fast": pool})
    with pytest.raises(BadInput, match="pool fast: not one of ours"):
        reconfiguration_plan.plan(before, {"exclusive": {0: ["0"]}})


def test_a_list_written_with_ranges_survives() -> None:
    before = node({"infra": {"0-2": (A,)}})
    assert reconfiguration_plan.plan(before, {"infra": {0: ["0,1,2"]}}).moves == ()


@pytest.mark.parametrize(
    ("cpus", "before", "after", "there"),
    [
        ({3, 11}, {3, 11}, {1, 9}, {1, 9}),
        ({3}, {3, 11}, {1, 9}, {1}),
        ({11}, {3, 11}, {1, 9}, {9}),
        ({2}, {1, 2}, {2, 3}, {3}),
        ({5}, {5, 13}, {3, 11, 5, 13}, {5}),
        ({3, 11}, {3, 11, 5, 13}, {5, 13}, {5, 13}),
    ],
)
def test_a_thread_on_some_of_its_tasks_cpus_goes_to_as_many(
    cpus: set[int], before: set[int], after: set[int], there: set[int]
) -> None:
    sets = map(frozenset, (cpus, before, after))
    assert reconfiguration_plan.thread_affinity_after_move(*sets) == there
