"""Allocation without a node agent: `isolate` writes the store itself.

Standard library only.
"""

import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from nodewise.base.errors import BadSettings
from nodewise_cpu import allocation_store, allocator, cmk_names, cpu_set_formats, procfs
from nodewise_cpu.agent_messages import AllocateRequest, AllocateResponse
from nodewise_cpu.allocation_store import AllocationStore, StoredAllocations
from nodewise_cpu.allocator import AllocationRequest
from nodewise_cpu.kernel_file_reader import read_text
from nodewise_cpu.pool_allocations import Allocations, Task

_ONLINE: Final = Path("/sys/devices/system/cpu/online")
INITIAL_PID_NAMESPACE: Final = "pid:[4026531836]"
"""The number that the kernel gives to the initial namespace of process ids, and to no other (PROC_PID_INIT_INO)."""
_PAUSE_S: Final = 0.01
_MAX_PAUSE_S: Final = 1.0


class DirectAllocator:
    """A `CpuAllocator` that writes a store; `proc` is the host's `/proc`."""

    def __init__(
        self, store: AllocationStore, proc: Path, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._store = store
        self._sleep = sleep
        self._random = random.Random()  # noqa: S311 - which of several lists is no secret
        stat = procfs.read_own_process(proc)
        self.task: Final = Task(stat.pid, stat.start, procfs.read_boot_id(proc))

    def allocate(self, request: AllocateRequest, pin: Callable[[AllocateResponse], None]) -> AllocateResponse:
        """Allocate CPUs, on which `pin` makes this process run.

        `pin` is called before the store is written: a stored task always is on its CPUs, and if they cannot be used
        nothing is stored.
        """
        draw = self._random.random()

        def decide(stored: StoredAllocations) -> tuple[Allocations, AllocateResponse]:
            avoid = _offline_cpus(stored.allocations) if request.affinity else frozenset[int]()
            # an earlier attempt may have been stored although its response was lost
            released = stored.allocations.without(self.task)
            result = allocator.allocate(
                released,
                AllocationRequest(request.pool, request.lists, request.socket, avoid=avoid),
                self.task,
                draw,
            )
            environment = allocator.task_environment(result.allocations, result.cpu_lists, self.task)
            response = AllocateResponse(result.cpus, environment, self.task)
            pin(response)
            return result.allocations, response

        return allocation_store.update(self._store, decide, self._pause_before_attempt)

    def release(self, task: Task) -> None:
        """Release the task's CPUs, also during a reconfiguration."""
        allocation_store.release(self._store, task, self._pause_before_attempt)

    def leave(self, task: Task) -> None:
        """Nothing to do: the next garbage collection recognises the processes by their environment."""

    def close(self) -> None:
        """Nothing to do: nothing is open."""

    def _pause_before_attempt(self, attempt: int) -> None:
        self._sleep(min(_PAUSE_S * 2.0**attempt, _MAX_PAUSE_S) * self._random.random())


def _offline_cpus(allocations: Allocations) -> frozenset[int]:
    try:
        online = cpu_set_formats.parse_cpu_numbers(read_text(_ONLINE), str(_ONLINE))
    except OSError:
        return frozenset()
    return allocations.cpus - frozenset(online)


def find_host_proc(configured: str) -> Path:
    """The host's `/proc`: as configured, else by `CMK_PROC_FS`, else `/proc` outside of containers.

    BadSettings in a container, whose own `/proc` has other process ids.
    """
    path = configured or os.environ.get(cmk_names.PROC_FS, "")
    if path:
        return Path(path)
    own, namespace = Path("/proc"), ""
    with suppress(OSError):
        namespace = (own / "self/ns/pid").readlink().name
    if namespace != INITIAL_PID_NAMESPACE:
        seen = "not set, and /proc is a container's own"
        raise BadSettings.of(
            "cannot see the host's processes",
            cmk_names.PROC_FS,
            seen,
            "where the host's /proc is mounted, such as /host/proc",
        )
    return own
