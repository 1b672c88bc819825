"""Which processes run in a container, and the CPUs of each of their threads.

Process and thread ids are the host's, as `proc` is; to give a thread other CPUs the agent has to share its ids.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from nodewise.cpu import cpulist, procfs
from nodewise.cpu.node import peers
from nodewise.errors import Problem, Refused


def find(proc: Path, containers: Collection[str]) -> Mapping[str, Sequence[int]]:
    """Of each of the containers, by id, the processes in it. Unavailable if `proc` cannot be read."""
    found: dict[str, list[int]] = {container: [] for container in containers}
    for pid in procfs.pids(proc):
        try:
            text = (proc / f"{pid}/cgroup").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        processes = found.get(peers.parse_cgroup(text).container)
        if processes is not None:
            processes.append(pid)
    return found


def read_masks(proc: Path, pid: int) -> Mapping[int, frozenset[int]]:
    """Of each thread of a process the CPUs that it may use; nothing of one that is gone."""
    try:
        threads = [int(path.name) for path in (proc / f"{pid}/task").iterdir()]
    except OSError:
        return {}
    masks = {thread: procfs.read_allowed(proc / f"{pid}/task", thread) for thread in threads}
    return {thread: mask for thread, mask in masks.items() if mask is not None}


def assign(thread: int, cpus: frozenset[int]) -> None:
    """Lets a thread use these CPUs and no others; one that is gone is no error. Refused if the kernel says no."""
    try:
        os.sched_setaffinity(thread, cpus)
    except ProcessLookupError:
        return
    except OSError as error:
        wanted = f"CPUs {cpulist.format_ranges(cpus)}"
        raise Refused(
            "cannot keep a thread on its CPUs", [Problem(f"thread {thread}", str(error), wanted)]
        ) from error
