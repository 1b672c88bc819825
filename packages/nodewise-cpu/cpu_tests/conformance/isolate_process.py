"""`cmk isolate` as a real process, with a store in a directory."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from nodewise_cpu import pool_allocations
from nodewise_cpu.directory_store import DirectoryStore
from nodewise_cpu.pool_allocations import Allocations

PATIENCE_S = 60.0
SHOW = """
import json, os, sys
print(json.dumps({
    "words": sys.argv[1:],
    "environment": dict(os.environ),
    "cpus": sorted(os.sched_getaffinity(0)),
    "parent": os.getppid(),
}), flush=True)
"""
"""A command that prints its environment and CPUs."""


class DirectoryNode(NamedTuple):
    """A node whose store is a directory."""

    root: Path

    @property
    def store(self) -> DirectoryStore:
        return DirectoryStore(self.root, PATIENCE_S)

    def holders(self) -> dict[str, list[int]]:
        """The process ids of tasks, by CPU list."""
        cpu_lists = self.store.read().allocations.cpu_lists
        return {
            cpu_list.text: [task.pid for task in cpu_list.tasks]
            for _, cpu_list in cpu_lists
            if cpu_list.tasks
        }

    def words(self, *more: str) -> list[str]:
        """The command line of an `isolate` without a node agent."""
        return [
            sys.executable,
            "-m",
            "nodewise_cpu.cmk",
            "isolate",
            "--direct",
            f"--conf-dir={self.root}",
            *more,
        ]


def create_node(root: Path, allocations: Allocations) -> DirectoryNode:
    node = DirectoryNode(root / "cmk")
    node.store.create(allocations)
    return node


def on_two_cpus(root: Path) -> DirectoryNode:
    """The allocations with every list replaced by CPUs that this machine has."""
    lists = {"exclusive": {0: ("0", "1")}, "shared": {0: ("1",)}, "infra": {0: ("0,1",)}}
    return create_node(root, pool_allocations.allocations_without_tasks(lists))


def show_command(*words: str) -> list[str]:
    return ["--", sys.executable, "-c", SHOW, *words]


def clean(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without variables of CMK and nodewise."""
    inherited = {
        name: text for name, text in os.environ.items() if not name.startswith(("CMK_", "NODEWISE_"))
    }
    return inherited | dict(more or {})


def run(words: list[str], more: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, env=clean(more), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def parse_output(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@contextmanager
def start(words: list[str], more: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process in a process group of its own; the whole group is killed at the end."""
    process = subprocess.Popen(
        words, env=clean(more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def texts(root: Path) -> dict[str, str]:
    return {str(path): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}
