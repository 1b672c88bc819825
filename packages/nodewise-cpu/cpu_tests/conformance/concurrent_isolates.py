"""Many concurrent `isolate` processes, which end at random times in different ways."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from cpu_tests.conformance.isolate_process import clean, wait_until
from nodewise_cpu import ended_tasks, pool_allocations
from nodewise_cpu.allocation_store import AllocationStore
from nodewise_cpu.node import task_garbage_collection
from nodewise_cpu.pool_allocations import Allocations

AT_ONCE: Final = 12
IN_ALL: Final = 40
LISTS: Final = ("0", "1", "2,3", "4")
WITNESS: Final = """
import fcntl, os, sys, time
folder, seconds = sys.argv[1], float(sys.argv[2])
held = []
for cpu in os.environ["CMK_CPUS_ASSIGNED"].split(","):
    held.append(open(f"{folder}/{cpu}", "w"))
    try:
        fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        open(f"{folder}/twice", "a").write(f"{cpu} ")
open(f"{folder}/served", "a").write("x")
time.sleep(seconds)
"""
"""The command: it holds a lock for each of its CPUs as long as it runs, which no other command may hold."""
SIGNALS: Final = (None, None, signal.SIGTERM, signal.SIGINT, *3 * [signal.SIGKILL])


class IsolateTarget(Protocol):
    """The store of a node, and the command line of an `isolate` there."""

    @property
    def store(self) -> AllocationStore: ...

    def words(self, *more: str) -> list[str]: ...


class ConcurrentIsolates:
    """Concurrent `isolate` processes. `step` starts some, ends some and collects garbage."""

    def __init__(
        self, node: IsolateTarget, folder: Path, chance: random.Random, environment: Mapping[str, str]
    ) -> None:
        self._node = node
        self._environment = environment
        self.folder = folder / "witness"
        self.folder.mkdir()
        self._chance = chance
        self._running: dict[subprocess.Popen[bytes], int | None] = {}
        self._started = 0
        self._known: ended_tasks.KnownProcesses | None = None

    @property
    def is_over(self) -> bool:
        return self._started == IN_ALL and not self._running

    def step(self) -> None:
        if self._started < IN_ALL and len(self._running) < AT_ONCE:
            self._start()
        cpu_lists = list(self._node.store.read().allocations.cpu_lists)
        assert all(len(cpu_list.tasks) <= 1 for pool, cpu_list in cpu_lists if pool.is_exclusive)
        holders = {task.pid for _, cpu_list in cpu_lists for task in cpu_list.tasks}
        for process, number in list(self._running.items()):
            if process.poll() is not None:
                del self._running[process]
            elif number is not None and self._chance.random() < (0.3 if process.pid in holders else 0.005):
                process.send_signal(number)
                self._running[process] = None
        if self._chance.random() < 0.4:
            self.sweep()

    def sweep(self) -> None:
        collection = task_garbage_collection.collect_garbage(
            self._node.store, Path("/proc"), self._known, lambda number: time.sleep(0.01)
        )
        self._known = collection.known

    def _start(self) -> None:
        self._started += 1
        pool = self._chance.choice(["exclusive", "exclusive", "shared"])
        words = self._node.words(
            f"--pool={pool}", "--wait=50s", "--no-affinity", "--", sys.executable, "-S", "-c"
        )
        folder = self.folder if pool == "exclusive" else self.folder / "shared"
        folder.mkdir(exist_ok=True)
        seconds = self._chance.uniform(0, 1.2)
        count = self._chance.choice(["1", "1", "2"])
        environment = clean({**self._environment, "CMK_LOG_LEVEL": "error", "CMK_NUM_CORES": count})
        program = WITNESS if pool == "exclusive" else "import sys, time; time.sleep(float(sys.argv[2]))"
        process = subprocess.Popen(
            [*words, program, str(folder), str(seconds)], env=environment, stderr=subprocess.DEVNULL
        )
        self._running[process] = self._chance.choice(SIGNALS)


def fresh() -> Allocations:
    return pool_allocations.allocations_without_tasks(
        {"exclusive": {0: LISTS}, "shared": {0: ("5",)}, "infra": {0: ("6",)}}
    )


def check_isolation(isolates: ConcurrentIsolates, store: AllocationStore) -> None:
    """No CPU has two owners, every process ends, and at the end nothing is allocated."""
    deadline = time.monotonic() + 300
    while not isolates.is_over:
        isolates.step()
        assert time.monotonic() < deadline, "somebody waits for ever"
        time.sleep(0.02)
    assert not (isolates.folder / "twice").exists()
    assert (isolates.folder / "served").stat().st_size > IN_ALL / 5

    def is_free() -> bool:
        isolates.sweep()
        return store.read().allocations == fresh()

    wait_until(is_free)
