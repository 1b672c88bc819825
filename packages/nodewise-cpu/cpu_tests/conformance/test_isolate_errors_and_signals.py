"""`isolate` as a real process: errors and signals."""

import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest
from tests.cluster import skip_conditions
from tests.node import temporary_cgroups

from cpu_tests.conformance import isolate_process
from cpu_tests.conformance.isolate_process import (
    PATIENCE_S,
    DirectoryNode,
    clean,
    parse_output,
    read_line,
    run,
    show_command,
    start,
    wait_until,
)
from nodewise_cpu import pool_allocations
from nodewise_cpu.allocation_store import Intent
from nodewise_cpu.directory_store import LOCK_TIMEOUT_S, TransactionalDirectory
from nodewise_cpu.pool_allocations import Task
from nodewise_cpu.workload.agent_client import RESPONSE_S

FAILED = 125
COUNT = """
import os, signal, sys, time
counts = {}
def count(number, frame):
    counts[number] = counts.get(number, 0) + 1
for name in sys.argv[1].split(","):
    signal.signal(getattr(signal, name), count)
print(os.getpid(), flush=True)
sys.stdin.readline()
while len(counts) < len(sys.argv[1].split(",")):
    time.sleep(0.01)
time.sleep(0.2)
print({signal.Signals(number).name: times for number, times in sorted(counts.items())}, flush=True)
"""
"""A command that counts its signals until it has read a line and has got each of them, and for a moment longer."""


def cpu(node: DirectoryNode, *options: str) -> list[str]:
    return node.words("--pool=exclusive", *options)


def test_a_list_that_names_a_cpu_that_is_offline_is_an_error(tmp_path: Path) -> None:
    last = max(map(int, re.findall(r"\d+", Path("/sys/devices/system/cpu/online").read_text())))
    node = isolate_process.create_node(
        tmp_path, pool_allocations.allocations_without_tasks({"exclusive": {0: (f"0,{last + 1}",)}})
    )
    done = run(cpu(node, *show_command()))
    assert done.returncode == FAILED
    assert f"0 of 1 CPU lists free, CPUs {last + 1} offline" in done.stderr
    assert node.holders() == {}
    document = parse_output(run(cpu(node, "--no-affinity", *show_command())))
    assert document["environment"]["CMK_CPUS_ASSIGNED"] == f"0,{last + 1}"


@contextmanager
def cpuset(cpus: str) -> Iterator[Path]:
    """A cgroup of processes with these CPUs."""
    with_cpus = [each for each in temporary_cgroups.hierarchies() if "cpuset" in each.controllers()]
    if not with_cpus:
        skip_conditions.not_run("there is no cgroup controller cpuset")
    with temporary_cgroups.created("cpuset") as name:
        root = with_cpus[0].place
        group = root / name.removeprefix("/")
        if with_cpus[0].version == 1:  # in version 2 an empty file stands for the nodes of the parent
            (group / "cpuset.mems").write_text((root / "cpuset.mems").read_text())
        (group / "cpuset.cpus").write_text(cpus)
        yield group


@pytest.mark.parametrize(("pool", "wanted"), [("shared", "1"), ("infra", "0-1")])
@pytest.mark.root
def test_a_cpuset_that_forbids_the_pool_is_an_error(
    two_cpu_node: DirectoryNode, pool: str, wanted: str
) -> None:
    with cpuset("0") as group:
        inside = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group)]
        done = run([*inside, *two_cpu_node.words(f"--pool={pool}", *show_command())])
        assert done.returncode == FAILED
        assert f"CPUs 1 cannot be used here, 0 can; expected all of {wanted}" in done.stderr
        assert two_cpu_node.holders() == {}
        done = run([*inside, *two_cpu_node.words("--pool=exclusive", *show_command())])
        assert parse_output(done)["cpus"] == [0]


def test_missing_state_names_remedy(tmp_path: Path) -> None:
    done = run(cpu(DirectoryNode(tmp_path / "none"), *show_command()))
    assert (done.returncode, "nodewise cpu init" in done.stderr) == (FAILED, True)
    assert not (tmp_path / "none").exists()


def test_a_state_that_cannot_be_read_is_named(two_cpu_node: DirectoryNode) -> None:
    (two_cpu_node.root / "pools/exclusive/0/1/tasks").write_text("17,x")
    done = run(cpu(two_cpu_node, *show_command()))
    assert done.returncode == FAILED
    assert "config.exclusive.0.1: 'x'; expected a whole number" in done.stderr


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (["--pool=exclusive"], "command: not given"),
        (["--pool=exclusive", ""], "command: empty; expected a command"),
        (["--pool=exclusive", "--", "", "true"], "command: empty; expected a command"),
        (["--pool=exclusive", "--socket-id=x", "true"], "--socket-id: 'x'"),
        (["--pool=exclusive", "--socket-id=7", "true"], "--socket-id: 7; expected one of 0"),
        (["--pool=exclusive", "--wait=long", "true"], "--wait: 'long'"),
        (
            ["--pool=exclusive", "--no", "--n=x", "true"],
            "--n: not one option; expected --no-affinity or --namespace",
        ),
        (["--pool=exclusive", "--no-affinity=1", "true"], "--no-affinity: '1'; expected no value"),
        (["true", "--pool"], "--pool: nothing after it"),
        (["--pool=exclusive", "ls", "-l"], "-l: no such option"),
    ],
)
def test_words_that_mean_nothing_are_named(two_cpu_node: DirectoryNode, words: list[str], seen: str) -> None:
    done = run(two_cpu_node.words(*words))
    assert done.returncode == FAILED
    assert seen in done.stderr
    assert two_cpu_node.holders() == {}


def test_isolate_waits_during_a_reconfiguration(two_cpu_node: DirectoryNode) -> None:
    stored = two_cpu_node.store.read()
    target = pool_allocations.allocations_without_tasks(
        {"exclusive": {0: ("1",)}, "shared": {}, "infra": {0: ("0",)}}
    )
    two_cpu_node.store.replace(
        stored.version, stored.allocations, Intent(target, Task(1, 1, "boot"), "2026-01-01T00:00:00Z")
    )
    done = run(cpu(two_cpu_node, *show_command()))
    assert (done.returncode, "being reconfigured by process 1" in done.stderr) == (FAILED, True)
    with start(cpu(two_cpu_node, "--wait=1m", *show_command()), {"CMK_LOG_LEVEL": "debug"}) as process:
        assert process.stderr
        assert "trying again" in process.stderr.readline()
        two_cpu_node.store.replace(two_cpu_node.store.read().version, target)
        assert json.loads(read_line(process))["cpus"] == [1]


def test_isolate_waits_for_a_free_list_and_ends_at_a_signal(two_cpu_node: DirectoryNode) -> None:
    with start(
        cpu(two_cpu_node, *show_command()[:-1], "import os,time; print(1, flush=True); time.sleep(600)")
    ) as first:
        read_line(first)
        taken = {"CMK_NUM_CORES": "2", "CMK_LOG_LEVEL": "debug"}
        done = run(cpu(two_cpu_node, *show_command()), taken)
        assert done.returncode == FAILED
        assert "pool exclusive: 1 of 2 CPU lists free, 1 held; expected 2" in done.stderr
        with start(cpu(two_cpu_node, "--wait=1h", *show_command()), taken) as waiting:
            assert waiting.stderr
            assert "trying again" in waiting.stderr.readline()
            waiting.send_signal(signal.SIGTERM)
            assert waiting.wait(PATIENCE_S) == 128 + signal.SIGTERM
        with start(cpu(two_cpu_node, "--wait=1h", *show_command()), taken) as waiting:
            assert waiting.stderr
            assert "trying again" in waiting.stderr.readline()
            first.terminate()
            assert json.loads(read_line(waiting))["cpus"] == [0, 1]
            assert waiting.wait(PATIENCE_S) == 0
    assert two_cpu_node.holders() == {}


def test_isolate_ends_at_a_signal_while_it_waits_for_the_lock(two_cpu_node: DirectoryNode) -> None:
    begin_s = time.monotonic()
    with locked(two_cpu_node), start(cpu(two_cpu_node, *show_command())) as waiting:
        wait_until(lambda: blocks_sigterm(waiting.pid))
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert time.monotonic() - begin_s < LOCK_TIMEOUT_S
    assert two_cpu_node.holders() == {}


def test_isolate_ends_at_a_signal_while_the_agent_does_not_answer(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    words = [sys.executable, "-m", "nodewise_cpu.cmk", "isolate", "--pool=infra", f"--agent-socket={path}"]
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        begin_s = time.monotonic()
        with start([*words, *show_command()]) as waiting, listening.accept()[0] as connected:
            assert connected.recv(1000)
            waiting.send_signal(signal.SIGTERM)
            assert waiting.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert time.monotonic() - begin_s < RESPONSE_S


def test_a_signal_after_the_command_does_not_replace_its_exit_code(two_cpu_node: DirectoryNode) -> None:
    command = ["--", "sh", "-c", "trap 'exit 7' USR1; echo $$; while :; do sleep 0.1; done"]
    with start(cpu(two_cpu_node, *command)) as process:
        child = int(read_line(process))
        with locked(two_cpu_node):
            os.kill(child, signal.SIGUSR1)
            wait_until(lambda: not Path(f"/proc/{child}").exists())
            process.send_signal(signal.SIGTERM)
            error = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 7
    assert "stay held until the next garbage collection: Terminated" in error


def locked(node: DirectoryNode) -> AbstractContextManager[None]:
    """The lock of the node's directory, held."""
    return TransactionalDirectory(node.root, "pools", (), ()).locked(1)


def blocks_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(re.findall(r"^SigBlk:\s*(\w+)", status, re.MULTILINE)[0], 16) >> signal.SIGTERM - 1 & 1)


def test_signals_reach_the_command_once_each(two_cpu_node: DirectoryNode) -> None:
    names = ["SIGUSR1", "SIGUSR2", "SIGHUP", "SIGWINCH", "SIGQUIT", "SIGINT", "SIGALRM", "SIGRTMIN"]
    words = cpu(two_cpu_node, "--", sys.executable, "-c", COUNT, ",".join(names))
    process = subprocess.Popen(
        words, env=clean(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
    )
    assert process.stdin
    read_line(process)
    for name in names:
        process.send_signal(getattr(signal, name))
    time.sleep(0.2)
    process.stdin.write("\n")
    process.stdin.flush()
    assert eval(read_line(process)) == dict.fromkeys(names, 1)
    process.communicate()
    assert process.returncode == 0


def test_a_key_of_the_terminal_reaches_the_command_once(two_cpu_node: DirectoryNode) -> None:
    pid, terminal = pty.fork()
    if not pid:
        words = cpu(two_cpu_node, "--", sys.executable, "-c", COUNT, "SIGINT,SIGQUIT")
        os.execve(words[0], words, clean())
    seen = b""
    while b"\n" not in seen:
        seen += os.read(terminal, 1000)
    os.write(terminal, b"\x03\x1c")
    time.sleep(0.3)
    os.write(terminal, b"\n")
    with suppress(OSError):  # EIO when the other side has gone
        while piece := os.read(terminal, 1000):
            seen += piece
    assert "{'SIGINT': 1, 'SIGQUIT': 1}" in seen.decode()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)


def test_isolate_stops_and_continues_with_its_command(two_cpu_node: DirectoryNode) -> None:
    """As a shell's job."""
    stay = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with start(cpu(two_cpu_node, "--", sys.executable, "-c", stay)) as process:
        child = int(read_line(process))
        process.send_signal(signal.SIGTSTP)
        wait_until(lambda: state_of(child) == "T" and state_of(process.pid) == "T")
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: state_of(child) == "S" and state_of(process.pid) == "S")
        process.send_signal(signal.SIGTSTP)
        wait_until(lambda: state_of(process.pid) == "T")
        process.send_signal(signal.SIGCONT)
        process.terminate()
        assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert two_cpu_node.holders() == {}


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


@pytest.mark.root
def test_isolate_as_first_process_of_a_container_forwards_signals(two_cpu_node: DirectoryNode) -> None:
    stay = "import os, time; print(os.getpid(), os.getppid(), flush=True); time.sleep(600)"
    unshare = ["unshare", "--pid", "--fork", "--kill-child"]
    with start(
        [*unshare, *cpu(two_cpu_node, "--", sys.executable, "-c", stay)], {"CMK_PROC_FS": "/proc"}
    ) as process:
        assert read_line(process).split()[1] == "1"
        (wrapper,) = (pid for pids in two_cpu_node.holders().values() for pid in pids)
        os.kill(wrapper, signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert two_cpu_node.holders() == {}


def test_orphans_are_waited_for_by_it(two_cpu_node: DirectoryNode) -> None:
    """`isolate` reaps orphaned processes, so none remains a zombie."""
    grandchild = "(sh -c 'sleep 0.05' &) ; sleep 1; ps -o stat= --ppid $PPID | grep -c Z || true"
    if shutil.which("ps") is None:
        skip_conditions.not_run("ps is missing")
    done = run(cpu(two_cpu_node, "--", "sh", "-c", grandchild))
    assert (done.stdout.strip(), done.returncode) == ("0", 0)


def test_the_command_has_no_more_signals_blocked_or_ignored_than_without_isolate(
    two_cpu_node: DirectoryNode,
) -> None:
    """The tests may run with ignored signals, for example under nohup."""
    command = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]
    # glibc's own two, 32 and 33, are left ignored by some ways of starting a program
    with_it, without = (
        [int(line.split()[1], 16) & ~(1 << 31 | 1 << 32) for line in run(words).stdout.splitlines()]
        for words in (cpu(two_cpu_node, "--", *command), command)
    )
    assert with_it == without


def test_isolate_imports_only_the_standard_library(two_cpu_node: DirectoryNode) -> None:
    words = cpu(two_cpu_node, "true")
    done = run([words[0], "-X", "importtime", *words[1:]])
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    # Debian's sitecustomize tries to import a hook of apport, which need not be installed
    foreign = imported - sys.stdlib_module_names - {"apport_python_hook"}
    foreign = {name for name in foreign if not name.startswith(("_", "site", "sitecustomize"))}
    assert foreign == {"nodewise", "nodewise_cpu", "imported package"}
    slow = "asyncio http email ssl hashlib subprocess argparse dataclasses"
    assert imported.isdisjoint(slow.split())
