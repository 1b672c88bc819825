"""The possible owners of unreadable processes."""

from pathlib import Path

import pytest

from nodewise_cpu import procfs
from nodewise_cpu.ended_tasks import NodeProcess
from nodewise_cpu.pool_allocations import Task
from nodewise_cpu.procfs import ProcessTable

POD, OTHER = "a" * 32, "b" * 32
HERE, THERE = "c" * 64, "d" * 64
TASK = Task(100, 5, "now", POD, HERE)
CASES = {
    "its container": (TASK, 9, f"/kubepods/pod{POD}/{HERE}", True),
    "a group that was made in its container": (TASK, 9, f"/kubepods/pod{POD}/{HERE}/{THERE}", True),
    "started before it": (TASK, 4, f"/kubepods/pod{POD}/{HERE}", False),
    "another container of its pod": (TASK, 9, f"/kubepods/pod{POD}/{THERE}", False),
    "another pod, which made a group with its name": (
        TASK, 9, f"/kubepods/pod{OTHER}/{THERE}/kubepods/pod{POD}/{HERE}", False,
    ),
    "the host": (TASK, 9, "/system.slice/ssh.service", False),
    "its pod, where no container is known": (TASK._replace(container=""), 9, f"/kubepods/pod{POD}/{HERE}", True),
    "a task of which nothing is known": (Task(100, 5, "now"), 9, f"/kubepods/pod{OTHER}/{THERE}", True),
    "a task of an older program": (Task(100), 9, f"/kubepods/pod{POD}/{HERE}", False),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_possible_tasks_of_an_unreadable_process(tmp_path: Path, case: str) -> None:
    """A tenant can hide its processes. This may keep the allocations of its own tasks only."""
    task, start, path, may = CASES[case]
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(f"0::{path}\n")
    process_table = ProcessTable({7: NodeProcess(start, 1), 8: NodeProcess(9, 1)}, frozenset({7, 8}))
    assert procfs.unreadable_processes_of(task, process_table, tmp_path) == ((7,) if may else ())
