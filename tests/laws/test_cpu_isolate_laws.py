"""Laws of `isolate` as real processes: many at once, which somebody ends at any time in any way."""

import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from nodewise.cpu import state, sweep
from nodewise.cpu.node import sweeping
from nodewise.cpu.state import State
from tests.conformance.cmk import isolating
from tests.conformance.cmk.isolating import Node, clean, until

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
"""Holds a lock of its own for each CPU that it was told, for as long as it lives; nobody else may have it."""
SIGNALS: Final = (None, None, signal.SIGTERM, signal.SIGINT, *3 * [signal.SIGKILL])


class Crowd:
    """Isolates that come and go. `step` starts some, ends some and sweeps."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.node: Node = isolating.made(root, fresh())
        self.folder = root / "witness"
        self.folder.mkdir()
        self._chance = chance
        self._running: dict[subprocess.Popen[bytes], int | None] = {}
        self._started = 0
        self._known: sweep.Known | None = None

    @property
    def is_over(self) -> bool:
        return self._started == IN_ALL and not self._running

    def step(self) -> None:
        if self._started < IN_ALL and len(self._running) < AT_ONCE:
            self._start()
        holders = {pid for pids in self.node.holders().values() for pid in pids}
        for process, number in list(self._running.items()):
            if process.poll() is not None:
                del self._running[process]
            elif number is not None and self._chance.random() < (0.3 if process.pid in holders else 0.005):
                process.send_signal(number)
                self._running[process] = None
        if self._chance.random() < 0.4:
            self.sweep()

    def sweep(self) -> None:
        found = sweeping.carry_out(
            self.node.book, Path("/proc"), self._known, lambda number: time.sleep(0.01)
        )
        self._known = found.known

    def _start(self) -> None:
        self._started += 1
        pool = self._chance.choice(["exclusive", "exclusive", "shared"])
        words = self.node.words(
            f"--pool={pool}", "--wait=50s", "--no-affinity", "--", sys.executable, "-S", "-c"
        )
        folder = self.folder if pool == "exclusive" else self.folder / "shared"
        folder.mkdir(exist_ok=True)
        seconds = self._chance.uniform(0, 1.2)
        environment = clean({"CMK_LOG_LEVEL": "error", "CMK_NUM_CORES": self._chance.choice(["1", "1", "2"])})
        program = WITNESS if pool == "exclusive" else "import sys, time; time.sleep(float(sys.argv[2]))"
        process = subprocess.Popen(
            [*words, program, str(folder), str(seconds)], env=environment, stderr=subprocess.DEVNULL
        )
        self._running[process] = self._chance.choice(SIGNALS)


def fresh() -> State:
    return state.from_lists({"exclusive": {0: LISTS}, "shared": {0: ("5",)}, "infra": {0: ("6",)}})


@settings(max_examples=2)
@given(st.integers(0, 2**32))
def test_no_cpu_has_two_owners_and_nothing_is_left(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        crowd = Crowd(Path(folder), random.Random(seed))
        deadline = time.monotonic() + 300
        while not crowd.is_over:
            crowd.step()
            owners = [slot.tasks for pool, slot in crowd.node.book.read().state.slots if pool.is_exclusive]
            assert all(len(tasks) <= 1 for tasks in owners)
            assert time.monotonic() < deadline, "somebody waits for ever"
            time.sleep(0.02)
        assert not (crowd.folder / "twice").exists()
        assert (crowd.folder / "served").stat().st_size > IN_ALL / 5

        def is_free() -> bool:
            crowd.sweep()
            return crowd.node.book.read().state == fresh()

        until(is_free)
