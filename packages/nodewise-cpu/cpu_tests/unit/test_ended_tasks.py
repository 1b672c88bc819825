"""Detection of ended tasks: reused process ids, killed wrappers, reboots."""

from collections.abc import Mapping

import pytest

from cpu_tests.unit.allocation_factory import create_allocations
from nodewise_cpu.ended_tasks import CollectionResult, KnownProcesses, NodeProcess, remove_ended_tasks
from nodewise_cpu.pool_allocations import Task

TASK = Task(100, start=5, boot="now")
INSIDE = TASK._replace(pod="pod", container="mine")
WRAPPER = {100: NodeProcess(start=5, parent=1)}


def collect(
    task: Task, processes: Mapping[int, NodeProcess], known: KnownProcesses | None = None
) -> CollectionResult:
    held = create_allocations({"exclusive": {"0,4": [task]}})
    return remove_ended_tasks(held, {1: NodeProcess(0, 0), **processes}, "now", known)


def is_held(result: CollectionResult) -> bool:
    return any(cpu_list.tasks for _, cpu_list in result.allocations.cpu_lists)


CASES = {
    "the wrapper lives": (TASK, WRAPPER, True),
    "the wrapper is gone": (TASK, {}, False),
    "its process id came again": (TASK, {100: NodeProcess(start=6, parent=1)}, False),
    "the machine booted": (TASK._replace(boot="before"), WRAPPER, False),
    "a descendant carries its mark": (TASK, {200: NodeProcess(start=9, parent=1, mark="100-5")}, True),
    "a descendant of another": (TASK, {200: NodeProcess(start=9, parent=1, mark="100-6")}, False),
    "a mark of another boot": (
        TASK._replace(boot="before"),
        {200: NodeProcess(start=9, parent=1, mark="100-5")},
        False,
    ),
    "its command is about to be executed": (TASK, {200: NodeProcess(start=9, parent=1, wrapper=100)}, True),
    "that of an older wrapper of this process id": (
        TASK,
        {200: NodeProcess(start=4, parent=1, wrapper=100)},
        False,
    ),
    "that of another wrapper": (TASK, {200: NodeProcess(start=9, parent=1, wrapper=101)}, False),
    "a descendant in its container": (
        INSIDE,
        {200: NodeProcess(start=9, parent=1, mark="100-5", container="mine")},
        True,
    ),
    "somebody in another container who carries its mark": (
        INSIDE,
        {200: NodeProcess(start=9, parent=1, mark="100-5", container="other")},
        False,
    ),
    "somebody on the host who carries its mark": (
        INSIDE,
        {200: NodeProcess(start=9, parent=1, mark="100-5", container="")},
        False,
    ),
    "a descendant of which the container is not known": (
        INSIDE,
        {200: NodeProcess(start=9, parent=1, mark="100-5")},
        True,
    ),
    "somebody in another container with the name of its wrapper": (
        INSIDE,
        {200: NodeProcess(start=9, parent=1, wrapper=100, container="other")},
        False,
    ),
    "a task of which no container is known": (
        TASK,
        {200: NodeProcess(start=9, parent=1, mark="100-5", container="other")},
        True,
    ),
    "only a process id is known, and there is one": (Task(100), WRAPPER, True),
    "only a process id is known, and there is none": (Task(100), {}, False),
}


@pytest.mark.parametrize("case", CASES)
def test_detection_of_ended_tasks(case: str) -> None:
    task, processes, held = CASES[case]
    assert is_held(collect(task, processes)) == held


def test_a_task_of_an_older_program_is_known_by_its_start_from_then_on() -> None:
    result = collect(Task(100), WRAPPER)
    assert [cpu_list.tasks for _, cpu_list in result.allocations.cpu_lists] == [(TASK,)]
    assert not is_held(
        remove_ended_tasks(result.allocations, {100: NodeProcess(start=6, parent=1)}, "now", result.known)
    )


def test_descendants_known_from_a_collection_need_no_mark() -> None:
    family = {**WRAPPER, 101: NodeProcess(6, 100), 102: NodeProcess(7, 101)}
    for task in (TASK, Task(100)):
        known = collect(task, family).known
        orphans = {102: NodeProcess(7, 1), 103: NodeProcess(8, 102)}
        later = collect(task, orphans, known)
        assert is_held(later)
        assert later.known[task] == {(102, 7), (103, 8)}
        assert is_held(collect(task, {103: NodeProcess(8, 1)}, later.known))
        assert not is_held(collect(task, {103: NodeProcess(9, 1)}, later.known))


def test_a_living_wrapper_keeps_the_task_alive() -> None:
    result = collect(TASK, {**WRAPPER, 101: NodeProcess(6, 100)})
    assert result.known == {TASK: {(100, 5), (101, 6)}}
    assert result.reclaimed == ()


def test_processes_that_claim_to_be_each_others_parents_end_the_search() -> None:
    assert is_held(collect(TASK, {100: NodeProcess(5, 101), 101: NodeProcess(6, 100)}))
