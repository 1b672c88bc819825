"""Reading of processes, real ones and synthetic ones."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.namespace_sandboxes import wait

from nodewise.base.errors import BadInput, Unavailable
from nodewise_cpu import procfs
from nodewise_cpu.allocator import TASK_VARIABLE

PROC = Path("/proc")
NUMBERS = " ".join(["7", "(x)", "S", "3", *["0"] * 17, "99", *["0"] * 30])


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a mark that waits for the end of its input."""
    wait = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    started = subprocess.Popen(
        wait, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, TASK_VARIABLE: "100-5"}
    )
    assert started.stdout
    started.stdout.readline()
    yield started
    if started.poll() is None:
        started.communicate()


def test_a_process_and_its_mark(child: subprocess.Popen[bytes]) -> None:
    process_table = procfs.read_processes(PROC)
    process = process_table.processes[child.pid]
    assert (process.parent, process.mark) == (os.getpid(), "100-5")
    assert process.start >= process_table.processes[os.getpid()].start
    assert process_table.processes[os.getpid()].mark == ""
    assert child.pid not in process_table.unreadable


def test_a_zombie_has_ended(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert (PROC / str(child.pid)).exists()
    assert child.pid not in procfs.read_processes(PROC).processes
    child.wait()
    assert child.stdout
    child.stdout.close()


def test_a_process_that_has_just_been_started_has_its_wrappers_name() -> None:
    before = Path("/proc/self/comm").read_text()
    Path("/proc/self/comm").write_text("isolate-77")
    child = os.fork()
    if not child:
        signal.pause()
    try:
        processes = procfs.read_processes(PROC).processes
        assert [processes[pid].wrapper for pid in (os.getpid(), child, os.getppid())] == [77, 77, 0]
    finally:
        Path("/proc/self/comm").write_text(before)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_kernel_threads_and_empty_environments_are_readable() -> None:
    with subprocess.Popen(["sleep", "60"], env={}) as bare:
        process_table = procfs.read_processes(PROC)
        bare.kill()
    assert bare.pid in process_table.processes
    assert not process_table.unreadable & {2, bare.pid}


@pytest.mark.parametrize("words", [b"", b"sleep\0"])
def test_a_process_during_execve_may_belong_to_any_task(tmp_path: Path, words: bytes) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "stat").write_text(NUMBERS.replace(" 99 ", " 99 4096 "))
    (folder / "environ").write_bytes(b"")
    (folder / "cmdline").write_bytes(words)
    assert procfs.read_processes(tmp_path).unreadable == (set() if words else {7})


HOLDS_ON = """
import ctypes, threading, time
threading.Thread(target=lambda: (print("runs", flush=True), time.sleep(1000))).start()
ctypes.CDLL(None).syscall(60, 0)  # exit(2): of this thread only
"""


def test_a_process_whose_first_thread_ended_lives() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS_ON], stdout=subprocess.PIPE, env={**os.environ, TASK_VARIABLE: "100-5"}
    ) as started:
        try:
            assert started.stdout
            started.stdout.readline()
            stat = PROC / f"{started.pid}/stat"
            wait(
                "its first thread ended", lambda: procfs.parse_stat(stat.read_text()).has_ended or None, 30.0
            )
            assert not procfs.parse_stat(stat.read_text()).process_has_ended
            process_table = procfs.read_processes(PROC)
            assert process_table.processes[started.pid].mark == "100-5"
            assert started.pid not in process_table.unreadable
            assert [thread.tid != started.pid for thread in procfs.read_threads(PROC, started.pid)] == [True]
        finally:
            started.kill()


def fake(proc: Path, pid: int) -> Path:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(NUMBERS.replace(" 99 ", " 99 4096 ").replace("7 ", f"{pid} ", 1))
    (folder / "environ").write_bytes(b"A=1\0" + TASK_VARIABLE.encode() + b"=100-5\0")
    return folder


def test_a_process_that_cannot_be_read_is_not_taken_for_gone(tmp_path: Path) -> None:
    """A read fails with EIO if a process mapped a file over its environment, or because no descriptor is left."""
    environment = fake(tmp_path, 7) / "environ"
    environment.unlink()
    environment.symlink_to("/proc/self/mem")
    process_table = procfs.read_processes(tmp_path)
    assert (list(process_table.processes), process_table.unreadable) == ([7], {7})
    stat = fake(tmp_path, 8) / "stat"
    stat.unlink()
    stat.symlink_to(stat)
    with pytest.raises(Unavailable, match="Too many levels"):
        procfs.read_processes(tmp_path)


def test_an_environment_without_an_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    """A process can set the location of its environment itself (prctl(2), PR_SET_MM_MAP)."""
    with (fake(tmp_path, 7) / "environ").open("r+b") as file:
        file.truncate(2**40)
    (fake(tmp_path, 8) / "environ").write_bytes(
        b"\0" * 100 + TASK_VARIABLE.encode() + b"=1-2\0" + TASK_VARIABLE.encode() + b"=3-4"
    )
    processes = procfs.read_processes(tmp_path).processes
    assert (processes[7].mark, processes[8].mark) == ("100-5", "3-4")


@pytest.mark.parametrize("is_named", [True, False])
def test_a_process_with_a_mark_is_read_with_its_container(tmp_path: Path, is_named: bool) -> None:
    folder = fake(tmp_path, 7)
    if is_named:
        (folder / "stat").write_text((folder / "stat").read_text().replace("(x)", "(isolate-100)"))
        (folder / "environ").write_bytes(b"A=1\0")
    (folder / "cgroup").write_text(f"0::/kubepods/pod{'a' * 32}/{'b' * 64}\n")
    assert procfs.read_processes(tmp_path).processes[7].container == "b" * 64


def test_reading_this_process_and_boot() -> None:
    me = procfs.read_own_process(PROC)
    assert (me.pid, me.parent) == (os.getpid(), os.getppid())
    assert procfs.read_allowed_cpus(PROC, os.getpid()) == os.sched_getaffinity(0)
    assert len(procfs.read_boot_id(PROC)) == 36


@pytest.mark.parametrize("name", ["x", "a b", ") R 1 (", "x) (y", "é"])
def test_a_name_may_hold_anything(name: str) -> None:
    assert procfs.parse_stat(NUMBERS.replace("(x)", f"({name})")) == procfs.ProcessStat(
        7, "S", 3, 99, name, has_memory=False, threads=0
    )


@pytest.mark.parametrize(
    "text", ["", "7", "7 (x) S 3", NUMBERS.replace("99", "-1"), NUMBERS.replace("7 ", "x ", 1)]
)
def test_an_invalid_stat_file_is_an_error(text: str) -> None:
    with pytest.raises(BadInput, match="22 fields"):
        procfs.parse_stat(text)


def test_a_folder_other_than_proc_is_an_error(tmp_path: Path) -> None:
    assert procfs.read_processes(tmp_path).processes == {}
    assert procfs.read_allowed_cpus(tmp_path, 7) is None
    for read in (procfs.read_own_process, procfs.read_boot_id):
        with pytest.raises(Unavailable, match="No such file"):
            read(tmp_path)
    with pytest.raises(Unavailable, match="No such file"):
        procfs.read_processes(tmp_path / "none")


def test_a_kernel_that_does_not_say_where_a_process_may_run(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/status").write_text("Name:\tx\n")
    with pytest.raises(BadInput, match="Cpus_allowed_list"):
        procfs.read_allowed_cpus(tmp_path, 7)
    (tmp_path / "7/status").write_text("Name:\tx\nCpus_allowed_list:\t0-2,5\n")
    assert procfs.read_allowed_cpus(tmp_path, 7) == {0, 1, 2, 5}
