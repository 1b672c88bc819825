"""Garbage collections with real processes of this machine."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.folder_permissions import let_other_users_read

from nodewise_cpu import allocation_store, pool_allocations, procfs
from nodewise_cpu.allocation_store import StoredAllocations
from nodewise_cpu.directory_store import DirectoryStore
from nodewise_cpu.ended_tasks import NodeProcess
from nodewise_cpu.node import task_garbage_collection
from nodewise_cpu.pool_allocations import Allocations, Task
from nodewise_cpu.procfs import ProcessTable

PROC = Path("/proc")
GONE = 99_999_999
FREE = pool_allocations.allocations_without_tasks({"exclusive": {0: ["0", "1"]}, "shared": {0: ["2,3"]}})


def no_wait(_: int) -> None:
    """Do not wait between attempts."""


def collect(store: DirectoryStore) -> task_garbage_collection.CollectionRound:
    return task_garbage_collection.collect_garbage(store, PROC, None, no_wait)


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    made = DirectoryStore(tmp_path / "conf")
    made.create(FREE)
    return made


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as child:
        yield child
        child.kill()


def held(allocations: Allocations) -> dict[str, set[int]]:
    return {
        cpu_list.text: {task.pid for task in cpu_list.tasks}
        for _, cpu_list in allocations.cpu_lists
        if cpu_list.tasks
    }


def hold(store: DirectoryStore, tasks: dict[str, Task]) -> None:
    def decide(stored: StoredAllocations) -> tuple[Allocations, None]:
        return stored.allocations.with_tasks(
            lambda _, cpu_list: [*cpu_list.tasks, *([tasks[cpu_list.text]] if cpu_list.text in tasks else [])]
        ), None

    allocation_store.update(store, decide, no_wait)


def test_ended_tasks_are_removed_and_others_get_their_start(
    store: DirectoryStore, sleeper: subprocess.Popen[bytes]
) -> None:
    hold(store, {"0": Task(sleeper.pid), "1": Task(GONE)})
    done = collect(store)
    assert [(reclaimed.cpus, reclaimed.task.pid) for reclaimed in done.reclaimed] == [("1", GONE)]
    (task,) = [cpu_list.tasks[0] for _, cpu_list in store.read().allocations.cpu_lists if cpu_list.tasks]
    assert task == Task(sleeper.pid, _start(sleeper.pid), procfs.read_boot_id(PROC))


def _start(pid: int) -> int:
    return procfs.parse_stat((PROC / f"{pid}/stat").read_text()).start


def test_a_process_that_took_over_an_id_is_another_one(
    store: DirectoryStore, sleeper: subprocess.Popen[bytes]
) -> None:
    hold(store, {"0": Task(sleeper.pid, _start(sleeper.pid) - 1, procfs.read_boot_id(PROC))})
    assert len(collect(store).reclaimed) == 1
    assert held(store.read().allocations) == {}


@pytest.mark.root
def test_unreadable_processes_keep_their_tasks(
    store: DirectoryStore, sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """A wrapper is gone, and root runs something that was started after it."""
    boot = procfs.read_boot_id(PROC)
    begun = _start(sleeper.pid)
    inside = "c" * 64  # no process is in this container
    hold(
        store,
        {"0": Task(GONE, begun, boot), "1": Task(GONE - 1, begun, boot, "p", inside), "2,3": Task(GONE - 2)},
    )
    let_other_users_read(tmp_path)
    for path in (tmp_path / "conf", *(tmp_path / "conf").rglob("*")):
        os.chown(path, 65_534, 65_534)
    program = (
        "import os, sys; from pathlib import Path\n"
        "from nodewise_cpu.node import task_garbage_collection\n"
        "from nodewise_cpu.directory_store import DirectoryStore\n"
        "os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
        "store = DirectoryStore(Path(sys.argv[1]))\n"
        "done = task_garbage_collection.collect_garbage(store, Path('/proc'), None, lambda number: None)\n"
        "print(sorted(one.cpus for one in done.reclaimed), [task.pid for task in done.uncertain])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "conf")], capture_output=True, text=True, check=False
    )
    assert ran.stdout.strip() == f"['1', '2,3'] [{GONE}]", ran.stderr
    for path in (tmp_path / "conf", *(tmp_path / "conf").rglob("*")):
        os.chown(path, 0, 0)  # root does not trust files of other users
    assert held(store.read().allocations) == {"0": {GONE}}
    collect(store)
    assert held(store.read().allocations) == {}


def test_a_new_task_is_never_collected(store: DirectoryStore) -> None:
    """New tasks are added during collections. A task is alive before it is in the state, so it is found alive."""
    children: list[subprocess.Popen[bytes]] = []
    over = threading.Event()
    failed: list[BaseException] = []

    def sweep() -> None:
        try:
            while not over.is_set():
                collect(store)
        except BaseException as error:
            failed.append(error)

    sweepers = [threading.Thread(target=sweep) for _ in range(2)]
    for thread in sweepers:
        thread.start()
    try:
        for _ in range(25):
            children.append(subprocess.Popen(["sleep", "1000"]))
            pid = children[-1].pid
            hold(store, {"2,3": Task(pid, _start(pid), procfs.read_boot_id(PROC))})
    finally:
        over.set()
        for thread in sweepers:
            thread.join()
    living = {child.pid for child in children}
    try:
        assert not failed
        assert held(store.read().allocations) == {"2,3": living}
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert len(collect(store).reclaimed) == 25


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
