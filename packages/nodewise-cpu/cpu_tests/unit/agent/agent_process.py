"""A process of the node agent, whose allocations are in a directory, and its clients."""

import contextlib
import json
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from tests.cluster.child_processes import Process
from tests.cluster.namespace_sandboxes import wait
from tests.forked_commands import CMK, NODEWISE, ForkedProcess

from nodewise_cpu import pool_allocations
from nodewise_cpu.allocation_store import AllocationStore
from nodewise_cpu.directory_store import DirectoryStore
from nodewise_cpu.pool_allocations import Task

PATIENCE_S = 60.0
CLAIM_AND_END = """
import json, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(json.dumps({"do": "claim", "pool": sys.argv[2]}).encode() + b"\\n")
sys.stdout.buffer.write(s.recv(65536))
"""
CLAIM_AND_RELEASE = """
import json, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
f = s.makefile("rwb", buffering=0)
f.write(b'{"do":"claim","pool":"exclusive"}\\n')
task = json.loads(f.readline())["task"]
f.write(json.dumps({"do": "release", "task": task}).encode() + b"\\n")
assert json.loads(f.readline()) == {"released": True}
"""
ONLINE = "sys/devices/system/cpu/online"


class RunningNodeAgent:
    """A running node agent, and the allocations of its node."""

    def __init__(self, process: Process, store: AllocationStore, path: Path) -> None:
        self.process = process
        self.store = store
        self.path = path

    @property
    def log(self) -> str:
        return self.process.log.read_text()

    def fetch(self, path: str) -> str:
        """Fetch a page of the admin port."""
        urls = re.findall(r"health=(http\S+)", self.log)
        with urllib.request.urlopen(urls[-1] + path, timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError, IndexError):
            return self.path.exists() and '"ready":true' in self.fetch("/readyz")
        return False

    def holders(self) -> dict[str, tuple[Task, ...]]:
        """The tasks of each allocated CPU list."""
        return {
            cpu_list.text: cpu_list.tasks
            for _, cpu_list in self.store.read().allocations.cpu_lists
            if cpu_list.tasks
        }

    def expect_free(self) -> None:
        wait("all is free", lambda: True if not self.holders() else None, PATIENCE_S, lambda: self.log)

    def expect_held(self, text: str) -> tuple[Task, ...]:
        return wait(f"list {text} is held", lambda: self.holders().get(text), PATIENCE_S, lambda: self.log)

    def client(self) -> "AgentConnection":
        return AgentConnection(self.path)

    def isolate(
        self, *command: str, pool: str = "exclusive", options: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        """Start a real `cmk isolate` that uses this agent."""
        ours = [f"--pool={pool}", f"--agent-socket={self.path}", *options]
        return subprocess.Popen(
            [CMK, "isolate", *ours, command[0], "--", *command[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def holder(self, pool: str = "exclusive") -> subprocess.Popen[str]:
        """Start a wrapper whose command runs until its standard input ends."""
        (wrapper,) = self.start_holders(1, pool)
        return wrapper

    def start_holders(self, number: int, pool: str) -> list[subprocess.Popen[str]]:
        """Start several wrappers at the same time."""
        wrappers = [self.isolate("sh", "-c", "echo runs; exec cat", pool=pool) for _ in range(number)]
        for wrapper in wrappers:
            assert wrapper.stdout
            assert wrapper.stdout.readline() == "runs\n"
        return wrappers

    def claim_and_end(self, pool: str) -> Any:
        """The response to a process that allocates a list of the pool and ends without a release."""
        command = [sys.executable, "-S", "-c", CLAIM_AND_END, self.path, pool]
        completed = subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE_S)
        return json.loads(completed.stdout)

    def expect_served(self) -> None:
        """Check that a process can allocate and release an exclusive list."""
        command = [sys.executable, "-S", "-c", CLAIM_AND_RELEASE, self.path]
        subprocess.run(command, check=True, timeout=PATIENCE_S)


class AgentConnection:
    """A connection to the agent that can send any bytes."""

    def __init__(self, path: Path) -> None:
        self.link = socket.socket(socket.AF_UNIX)
        self.link.settimeout(PATIENCE_S)
        self.link.connect(str(path))
        self._lines = self.link.makefile("rb")

    def ask(self, message: Any) -> Any:
        return self.ask_bytes(json.dumps(message).encode() + b"\n")

    def ask_bytes(self, sent: bytes) -> Any:
        self.link.sendall(sent)
        return self.answer()

    def answer(self) -> Any:
        """The next response line; None if the agent closed the connection."""
        try:
            line = self._lines.readline()
        except ConnectionResetError:
            return None
        return json.loads(line) if line else None

    def close(self) -> None:
        self._lines.close()
        self.link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def running(
    folder: Path,
    *options: str,
    pools: dict[str, dict[int, tuple[str, ...]]],
    start: Callable[[list[str | Path], Path], Process] = ForkedProcess,
) -> Iterator[RunningNodeAgent]:
    """An agent that runs until the block ends. Its node has these pools. `start` gets the command and the log file."""
    store = DirectoryStore(folder / "state")
    if not (folder / "state").exists():
        store.create(pool_allocations.allocations_without_tasks(pools))
    with started(folder, *options, start=start) as agent:
        yield agent


@contextlib.contextmanager
def started(
    folder: Path, *options: str, start: Callable[[list[str | Path], Path], Process] = ForkedProcess
) -> Iterator[RunningNodeAgent]:
    """An agent that uses the existing state and is ready."""
    with starting(folder, *options, start=start) as agent:
        agent.process.wait_ready(agent.is_ready)
        yield agent


@contextlib.contextmanager
def starting(
    folder: Path, *options: str, start: Callable[[list[str | Path], Path], Process] = ForkedProcess
) -> Iterator[RunningNodeAgent]:
    """An agent that uses the existing state and may not be ready yet."""
    path = folder / "run/cpu.sock"
    command = [NODEWISE, "cpu", "agent", f"--conf-dir={folder / 'state'}", f"--socket={path}"]
    process = start([*command, "--health-port=0", "--proc-fs=/proc", *options], folder / "agent.log")
    with process:
        yield RunningNodeAgent(process, DirectoryStore(folder / "state"), path)
