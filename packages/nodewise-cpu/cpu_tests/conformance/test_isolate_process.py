"""The numbered cases of CMK about `isolate`, with real processes."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from cpu_tests.conformance import case_table_rows, isolate_process
from cpu_tests.conformance.case_table_rows import ClaimRow, StoryRow, WordsRow
from cpu_tests.conformance.isolate_process import (
    DirectoryNode,
    clean,
    parse_output,
    read_line,
    run,
    show_command,
    start,
    texts,
    wait_until,
)
from cpu_tests.conformance.test_task_cpus_and_ended_tasks import node as state_of_row
from nodewise_cpu import ended_tasks, pool_allocations
from nodewise_cpu.cmk_names import LOCK_TIMEOUT
from nodewise_cpu.directory_store import TransactionalDirectory
from nodewise_cpu.node import task_garbage_collection

FAILED = 125
STAY = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
FORK = """
import os, signal
child = os.fork()
if not child:
    os.setsid()
    os.closerange(0, 3)
    signal.pause()
print(child, flush=True)
"""
"""A command that ends, and leaves an unrelated process."""


def wait(number: int) -> None:
    """Wait between two attempts to write."""


def swept(node: DirectoryNode, known: ended_tasks.KnownProcesses | None = None) -> ended_tasks.KnownProcesses:
    return task_garbage_collection.collect_garbage(node.store, Path("/proc"), known, wait).known


@pytest.mark.parametrize("row", case_table_rows.read("isolate", ClaimRow), ids=lambda row: row.id)
def test_lists_and_environment(row: ClaimRow, tmp_path: Path) -> None:
    """The machine of the rows has other CPUs than ours, so no affinity is set."""
    node = isolate_process.create_node(tmp_path, state_of_row(row))
    before = node.holders()
    unchanged = texts(node.root)
    socket = [] if row.socket is None else [f"--socket-id={row.socket}"]
    tell = "--", sys.executable, "-c", f"{isolate_process.SHOW}\nos.system({f'cat {node.root}/tasks.json'!r})"
    done = run(
        node.words(f"--pool={row.pool}", "--no-affinity", *socket, *tell), {"CMK_NUM_CORES": row.cores}
    )
    if row.error:
        assert done.returncode == FAILED
        assert all(part in done.stderr for part in row.error), done.stderr
        assert texts(node.root) == unchanged
        return
    assert done.returncode == 0, done.stderr
    first, tasks = done.stdout.splitlines()
    document = json.loads(first)
    environment = document["environment"]
    assert environment["CMK_CPUS_ASSIGNED"] == row.gets.replace(" ", ",")
    assert environment["CMK_CPUS_ASSIGNED_MASK"] == (row.mask or environment["CMK_CPUS_ASSIGNED_MASK"])
    assert environment.get("CMK_CPUS_SHARED") == (row.shared or environment.get("CMK_CPUS_SHARED"))
    assert environment.get("CMK_CPUS_INFRA") == (row.infra or environment.get("CMK_CPUS_INFRA"))
    during = json.loads(tasks)[row.pool]
    held = {cpu for text in during for cpu in pool_allocations.parse_cpu_list(text).cpus}
    assert held == set(map(int, environment["CMK_CPUS_ASSIGNED"].split(",")))
    assert {task["pid"] for listed in during.values() for task in listed} == {document["parent"]}
    assert node.holders() == before


@pytest.mark.parametrize("row", case_table_rows.read("words", WordsRow), ids=lambda row: row.id)
def test_words(row: WordsRow, two_cpu_node: DirectoryNode, tmp_path: Path) -> None:
    for name in ("sleep", "cmk.py", "cmd", "echo"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!{sys.executable}\n{isolate_process.SHOW.replace('sys.argv[1:]', 'sys.argv')}")
        program.chmod(0o755)
    line = row.line.format(conf=two_cpu_node.root)
    done = run(two_cpu_node.words(*shlex.split(line)), {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"})
    if row.error:
        assert done.returncode == FAILED
        assert all(part in done.stderr for part in row.error), done.stderr
        return
    document = parse_output(done)
    first, *rest = document["words"]
    assert [Path(first).name, *rest] == row.runs
    assigned = [int(cpu) for cpu in document["environment"]["CMK_CPUS_ASSIGNED"].split(",")]
    assert (document["cpus"] == assigned) == row.pins


def both_win(two_cpu_node: DirectoryNode) -> None:
    """Two processes read the same version at once, and both get an allocation."""
    words = two_cpu_node.words("--pool=exclusive", *show_command())
    with start(words) as first, start(words) as other:
        cpus = [json.loads(read_line(process))["cpus"] for process in (first, other)]
        assert [first.wait(isolate_process.PATIENCE_S), other.wait(isolate_process.PATIENCE_S)] == [0, 0]
    # whichever was over first may have left its CPU to the other
    assert all(cpu in ([0], [1]) for cpu in cpus)
    assert two_cpu_node.holders() == {}


def holder_that_died(two_cpu_node: DirectoryNode) -> None:
    """The case for a ConfigMap is in packages/nodewise-cpu/cpu_tests/unit/store/test_configmap.py."""
    ready, tell = os.pipe()
    if not (holder := os.fork()):
        with TransactionalDirectory(two_cpu_node.root, "pools", (), ()).locked(1):
            os.write(tell, b"x")
            signal.pause()
    os.read(ready, 1)
    with start(two_cpu_node.words("--pool=exclusive", *show_command())) as process:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        assert json.loads(read_line(process))["cpus"] == [0]


def lock_that_is_held(two_cpu_node: DirectoryNode) -> None:
    with TransactionalDirectory(two_cpu_node.root, "pools", (), ()).locked(1):
        done = run(two_cpu_node.words("--pool=exclusive", *show_command()), {LOCK_TIMEOUT: "0.1"})
    assert (done.returncode, "lock: still locked" in done.stderr) == (FAILED, True)
    assert two_cpu_node.holders() == {}
    assert parse_output(run(two_cpu_node.words("--pool=exclusive", *show_command())))["cpus"] == [0]


def no_affinity(two_cpu_node: DirectoryNode) -> None:
    done = run(two_cpu_node.words("--pool=exclusive", "--no-affinity", *show_command()))
    document = parse_output(done)
    assert document["cpus"] == sorted(os.sched_getaffinity(0))
    assert document["environment"]["CMK_CPUS_ASSIGNED"] == "0"
    assert "no affinity is set" in done.stderr
    words = two_cpu_node.words("--pool=exclusive", "--no-affinity", *show_command())
    assert run(words, {"CMK_LOG_LEVEL": "ERROR"}).stderr == ""


def exit_code(two_cpu_node: DirectoryNode) -> None:
    for script, code in (("exit 7", 7), ("kill -9 $$", 128 + signal.SIGKILL)):
        assert run(two_cpu_node.words("--pool=exclusive", "sh", "--", "-c", script)).returncode == code
    assert two_cpu_node.holders() == {}


def no_such_command(two_cpu_node: DirectoryNode) -> None:
    done = run(two_cpu_node.words("--pool=exclusive", "no-such-command"))
    assert (done.returncode, "no-such-command" in done.stderr) == (127, True)
    for path in ("/etc/passwd", "/"):
        assert run(two_cpu_node.words("--pool=exclusive", path)).returncode == 126
    assert two_cpu_node.holders() == {}


def signals(two_cpu_node: DirectoryNode) -> None:
    with start(two_cpu_node.words("--pool=exclusive", "--", sys.executable, "-c", STAY)) as process:
        child = int(read_line(process))
        assert two_cpu_node.holders() == {"0": [process.pid]}
        process.terminate()
        assert process.wait(isolate_process.PATIENCE_S) == 128 + signal.SIGTERM
        assert not Path(f"/proc/{child}").exists()
    assert two_cpu_node.holders() == {}


def killed_wrapper(two_cpu_node: DirectoryNode) -> None:
    """The allocation of a killed wrapper stays as long as any of its processes runs."""
    with start(two_cpu_node.words("--pool=exclusive", "--", sys.executable, "-c", STAY)) as process:
        child = int(read_line(process))
        process.kill()
        process.wait()
        known = swept(two_cpu_node)
        assert two_cpu_node.holders() == {"0": [process.pid]}
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: not is_alive(child))
        swept(two_cpu_node, known)
    assert two_cpu_node.holders() == {}


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def no_proc_fs(two_cpu_node: DirectoryNode) -> None:
    """The process ids are those of a container."""
    inside = ["unshare", "--pid", "--fork", "--mount-proc"]
    before = texts(two_cpu_node.root)
    done = run([*inside, *two_cpu_node.words("--pool=exclusive", *show_command())])
    assert (done.returncode, "CMK_PROC_FS" in done.stderr) == (FAILED, True)
    assert texts(two_cpu_node.root) == before
    # with the host's /proc it is the host that knows it
    shell = 'mkdir -p "$0" && mount --rbind /proc "$0" && exec "$@"'
    outside = str(two_cpu_node.root.parent / "proc")
    isolate = two_cpu_node.words("--pool=exclusive", *show_command())
    words = ["unshare", "--mount", "sh", "-c", shell, outside, *inside, *isolate]
    with start(words, {"CMK_PROC_FS": outside}) as process:
        child = json.loads(read_line(process))
        assert child["environment"]["NODEWISE_CPU_TASK"].partition("-")[0] != str(child["parent"])
        assert process.wait(isolate_process.PATIENCE_S) == 0


STORIES: tuple[Callable[[DirectoryNode], None], ...] = (
    both_win, holder_that_died, lock_that_is_held, no_affinity, exit_code, no_such_command, signals, killed_wrapper,
    no_proc_fs,
)  # fmt: skip


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.id, marks=[pytest.mark.root] * (row.story == "no_proc_fs"))
        for row in case_table_rows.read("isolate_process", StoryRow)
    ],
)
def test_stories(row: StoryRow, two_cpu_node: DirectoryNode) -> None:
    {story.__name__: story for story in STORIES}[row.story](two_cpu_node)


def test_101_a_directory_is_described_with_its_path(two_cpu_node: DirectoryNode) -> None:
    words = [sys.executable, "-m", "nodewise_cpu.cmk", "describe", "--conf-dir", str(two_cpu_node.root)]
    done = subprocess.run(words, env=clean(), capture_output=True, text=True, check=True)
    document = yaml.load(done.stdout, yaml.CSafeLoader)
    assert document["path"] == str(two_cpu_node.root)
    assert list(document["pools"]) == ["exclusive", "infra", "shared"]
    lists = {"1": {"cpus": "1", "tasks": []}}
    assert document["pools"]["shared"] == {"cpuLists": lists, "exclusive": False, "name": "shared"}


def test_a_child_that_forks_away_keeps_its_cpus_until_it_ends(two_cpu_node: DirectoryNode) -> None:
    done = run(two_cpu_node.words("--pool=exclusive", "--", sys.executable, "-c", FORK))
    left = int(done.stdout)
    try:
        assert done.returncode == 0
        assert "still run: CPUs 0 stay held" in done.stderr
        known = swept(two_cpu_node)
        assert list(two_cpu_node.holders()) == ["0"]
        assert os.sched_getaffinity(left) == {0}
    finally:
        os.kill(left, signal.SIGKILL)
    wait_until(lambda: not is_alive(left))
    swept(two_cpu_node, known)
    assert two_cpu_node.holders() == {}
