"""Detection of ended tasks: reused process ids, killed wrappers, reboots."""

from collections.abc import Mapping

import pytest

from nodewise_cpu import pool_allocations
from nodewise_cpu.ended_tasks import CollectionResult, KnownProcesses, NodeProcess, remove_ended_tasks
from nodewise_cpu.pool_allocations import Allocations, Task

TASK = Task(100, start=5, boot="now")
INSIDE = TASK._replace(pod="pod", container="mine")
WRAPPER = {100: NodeProcess(start=5, parent=1)}


def node(*tasks: Task) -> Allocations:
    return Allocations(
        {
            "exclusive": pool_allocations.pool(
                "exclusive", {0: [pool_allocations.parse_cpu_list("0,4", tasks=tasks)]}
            )
        }
    )


def collect(
    task: Task, processes: Mapping[int, NodeProcess], known: KnownProcesses | None = None
) -> CollectionResult:
    return remove_ended_tasks(node(task), {1: NodeProcess(0, 0), **processes}, "now", known)


def is_held(result: CollectionResult) -> bool:
    return any(cpu_list.tasks for _, cpu_list in result.allocations.cpu_lists)


@pytest.mark.parametrize(
    ("task", "processes", "held"),
    [
        (TASK, WRAPPER, True),
        (TASK, {}, False),
        (TASK, {100: NodeProcess(start=6, parent=1)}, False),
        (TASK._replace(boot="before"), WRAPPER, False),
        (TASK, {200: NodeProcess(start=9, parent=1, mark="100-5")}, True),
        (TASK, {200: NodeProcess(start=9, parent=1, mark="100-6")}, False),
        (TASK._replace(boot="before"), {200: NodeProcess(start=9, parent=1, mark="100-5")}, False),
        (TASK, {200: NodeProcess(start=9, parent=1, wrapper=100)}, True),
        (TASK, {200: NodeProcess(start=4, parent=1, wrapper=100)}, False),
        (TASK, {200: NodeProcess(start=9, parent=1, wrapper=101)}, False),
        (INSIDE, {200: NodeProcess(start=9, parent=1, mark="100-5", container="mine")}, True),
        (INSIDE, {200: NodeProcess(start=9, parent=1, mark="100-5", container="other")}, False),
        (INSIDE, {200: NodeProcess(start=9, parent=1, mark="100-5", container="")}, False),
        (INSIDE, {200: NodeProcess(start=9, parent=1, mark="100-5")}, True),
        (INSIDE, {200: NodeProcess(start=9, parent=1, wrapper=100, container="other")}, False),
        (TASK, {200: NodeProcess(start=9, parent=1, mark="100-5", container="other")}, True),
        (Task(100), WRAPPER, True),
        (Task(100), {}, False),
    ],
    ids=[
        "the wrapper lives",
        "the wrapper is gone",
        "its process id came again",
        "the machine booted",
        "a descendant carries its mark",
        "a descendant of another",
        "a mark of another boot",
        "its command is about to be executed",
        "that of an older wrapper of this process id",
        "that of another wrapper",
        "a descendant in its container",
        "somebody in another container who carries its mark",
        "somebody on the host who carries its mark",
        "a descendant of which the container is not known",
        "somebody in another container with the name of its wrapper",
        "a task of which no container is known",
        "only a process id is known, and there is one",
        "only a process id is known, and there is none",
    ],
)
def test_detection_of_ended_tasks(task: Task, processes: Mapping[int, NodeProcess], held: bool) -> None:
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
