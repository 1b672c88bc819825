"""Which processes run in a container, and the CPUs of each of their threads.

Process and thread ids are the host's, as `proc` is; to give a thread other CPUs the agent has to share its ids.
"""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from nodewise.cpu import cpulist, procfs
from nodewise.cpu.node import confinement, peers
from nodewise.cpu.node.confinement import Confinement
from nodewise.errors import Problem, Refused, Unavailable


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


def read_confinement(proc: Path, pid: int) -> Confinement:
    """What a process may use, by its first thread; Unavailable if it is gone."""
    file = proc / f"{pid}/status"
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise Unavailable("cannot tell what a container has", [Problem(str(file), str(error), "")]) from error
    lists = dict(re.findall(r"^(Cpus|Mems)_allowed_list:\s*(\S+)", text, re.MULTILINE))
    return confinement.parse(lists.get("Cpus", ""), lists.get("Mems", ""), str(file))
