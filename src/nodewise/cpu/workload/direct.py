"""Claims of a process that writes the node's state itself, where no node agent does it.

Standard library only.
"""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from nodewise.cpu import book as books
from nodewise.cpu import claims, cpulist, names, procfs
from nodewise.cpu.book import Book, Stored
from nodewise.cpu.claims import Wish
from nodewise.cpu.kernel_files import read_text
from nodewise.cpu.messages import ClaimAnswer, ClaimRequest
from nodewise.cpu.state import State, Task
from nodewise.errors import BadSettings, Problem

_ONLINE: Final = Path("/sys/devices/system/cpu/online")
_FIRST_NAMESPACE: Final = "pid:[4026531836]"
"""The kernel's number of the namespace of process ids that everybody else is below."""
_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 1.0


class Direct:
    """Claims of this process in a book; `proc` is the host's `/proc`."""

    def __init__(self, book: Book, proc: Path, sleep: Callable[[float], None] = time.sleep) -> None:
        self._book = book
        self._sleep = sleep
        self._random = random.Random()  # noqa: S311 - which of several lists is no secret
        stat = procfs.read_self(proc)
        self.task: Final = Task(stat.pid, stat.start, procfs.read_boot(proc))

    def claim(self, request: ClaimRequest, pin: Callable[[ClaimAnswer], None]) -> ClaimAnswer:
        """CPUs that are held from now on, on which `pin` has made this process run.

        It does so before anything is written: who finds this process in the book finds it on its CPUs, and if they
        cannot be used nothing is written.
        """
        draw = self._random.random()

        def decide(stored: Stored) -> tuple[State, ClaimAnswer]:
            avoid = _offline(stored.state) if request.affinity else frozenset[int]()
            wish = Wish(request.pool, request.lists, request.socket, avoid=avoid)
            # a try before this one may have been written although nobody said so
            free = claims.release(stored.state, self.task)
            claim = claims.claim(free, wish, self.task, draw)
            environment = claims.environment(claim.state, claim.slots, self.task)
            answer = ClaimAnswer(claim.cpus, environment, self.task)
            pin(answer)
            return claim.state, answer

        return books.change(self._book, decide, self._pause)

    def release(self, task: Task) -> None:
        """Give back what the task holds, also while the node is being reconfigured."""
        books.change(
            self._book,
            lambda stored: (claims.release(stored.state, task), None),
            self._pause,
            whatever=True,
        )

    def leave(self, task: Task) -> None:
        """Nobody is there to be told: who sweeps next goes by what processes carry."""

    def close(self) -> None:
        """Nothing is open."""

    def _pause(self, number: int) -> None:
        """Before the try of this number: longer each time, and never as long as others."""
        longest = min(_PAUSE_S * 2.0**number, _LONGEST_PAUSE_S)
        self._sleep(longest * self._random.random())


def _offline(state: State) -> frozenset[int]:
    """CPUs in the pools that the kernel does not use now; none where it does not say."""
    try:
        online = cpulist.parse_list(read_text(_ONLINE), str(_ONLINE))
    except OSError:
        return frozenset()
    return frozenset(cpu for _, slot in state.slots for cpu in slot.cpus) - frozenset(online)


def host_proc(given: str) -> Path:
    """The host's `/proc`: as given, else as told, else ours, which it is outside of containers. BadSettings in one."""
    told = given or os.environ.get(names.PROC_FS, "")
    if told:
        return Path(told)
    own = Path("/proc")
    if _namespace(own) != _FIRST_NAMESPACE:
        seen = "not set, and /proc is a container's own"
        problem = Problem(names.PROC_FS, seen, "where the host's /proc is mounted, such as /host/proc")
        raise BadSettings("cannot see the host's processes", [problem])
    return own


def _namespace(proc: Path) -> str:
    try:
        return (proc / "self/ns/pid").readlink().name
    except OSError:
        return ""
