"""Processes, real ones and those of a folder."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodewise.cpu import procfs
from nodewise.cpu.claims import MARK
from nodewise.errors import BadInput, Unavailable

PROC = Path("/proc")
NUMBERS = " ".join(["7", "(x)", "S", "3", *["0"] * 17, "99", *["0"] * 30])


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for its input to end, and carries a mark."""
    wait = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    started = subprocess.Popen(
        wait, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, MARK: "100-5"}
    )
    assert started.stdout
    started.stdout.readline()
    yield started
    if started.poll() is None:
        started.communicate()


def test_a_process_and_its_mark(child: subprocess.Popen[bytes]) -> None:
    census = procfs.read_processes(PROC)
    found = census.processes[child.pid]
    assert (found.parent, found.mark) == (os.getpid(), "100-5")
    assert found.start >= census.processes[os.getpid()].start
    assert census.processes[os.getpid()].mark == ""
    assert child.pid not in census.hidden


def test_a_process_that_nobody_has_waited_for_is_over(child: subprocess.Popen[bytes]) -> None:
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
        found = procfs.read_processes(PROC).processes
        assert [found[pid].wrapper for pid in (os.getpid(), child, os.getppid())] == [77, 77, 0]
    finally:
        Path("/proc/self/comm").write_text(before)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_threads_of_the_kernel_and_programs_without_an_environment_are_no_riddle() -> None:
    with subprocess.Popen(["sleep", "60"], env={}) as bare:
        census = procfs.read_processes(PROC)
        bare.kill()
    assert bare.pid in census.processes
    assert not census.hidden & {2, bare.pid}


@pytest.mark.parametrize("words", [b"", b"sleep\0"])
def test_a_process_that_is_executing_a_program_may_be_anybodys(tmp_path: Path, words: bytes) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "stat").write_text(NUMBERS.replace(" 99 ", " 99 4096 "))
    (folder / "environ").write_bytes(b"")
    (folder / "cmdline").write_bytes(words)
    assert procfs.read_processes(tmp_path).hidden == (set() if words else {7})


def test_oneself() -> None:
    me = procfs.read_self(PROC)
    assert (me.pid, me.parent) == (os.getpid(), os.getppid())
    assert procfs.read_allowed(PROC, os.getpid()) == os.sched_getaffinity(0)


def test_the_boot() -> None:
    boot = procfs.read_boot(PROC)
    assert len(boot) == 36
    assert boot == procfs.read_boot(PROC)


@pytest.mark.parametrize("name", ["x", "a b", ") R 1 (", "x) (y", "é"])
def test_a_name_may_hold_anything(name: str) -> None:
    assert procfs.parse_stat(NUMBERS.replace("(x)", f"({name})")) == procfs.Stat(
        7, "S", 3, 99, name, has_memory=False
    )


@pytest.mark.parametrize(
    "text", ["", "7", "7 (x) S 3", NUMBERS.replace("99", "-1"), NUMBERS.replace("7 ", "x ", 1)]
)
def test_what_is_no_process_is_an_error(text: str) -> None:
    with pytest.raises(BadInput, match="22 fields"):
        procfs.parse_stat(text)


def test_a_folder_that_is_no_proc_is_told(tmp_path: Path) -> None:
    assert procfs.read_processes(tmp_path).processes == {}
    assert procfs.read_allowed(tmp_path, 7) is None
    for read in (procfs.read_self, procfs.read_boot):
        with pytest.raises(Unavailable, match="No such file"):
            read(tmp_path)
    with pytest.raises(Unavailable, match="No such file"):
        procfs.read_processes(tmp_path / "none")


def test_a_kernel_that_does_not_say_where_a_process_may_run(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/status").write_text("Name:\tx\n")
    with pytest.raises(BadInput, match="Cpus_allowed_list"):
        procfs.read_allowed(tmp_path, 7)
    (tmp_path / "7/status").write_text("Name:\tx\nCpus_allowed_list:\t0-2,5\n")
    assert procfs.read_allowed(tmp_path, 7) == {0, 1, 2, 5}
