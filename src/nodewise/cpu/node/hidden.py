"""Processes that we may not look at: which tasks they may be of, after their wrapper is gone.

Standard library only.
"""

from pathlib import Path

from nodewise.cpu.cgroups import parse_cgroup
from nodewise.cpu.kernel_files import read_text
from nodewise.cpu.procfs import Census
from nodewise.cpu.state import Task


def of(task: Task, census: Census, proc: Path) -> tuple[int, ...]:
    """Those that may be of the task: started after it, and where it runs, as far as that is known."""
    return tuple(
        pid
        for pid in sorted(census.hidden)
        if task.start is not None
        and census.processes[pid].start >= task.start
        and _may_be_inside(task, proc / f"{pid}/cgroup")
    )


def _may_be_inside(task: Task, cgroup: Path) -> bool:
    """A task of which no container is known may be in any, for who writes the book itself does not know its own."""
    try:
        place = parse_cgroup(read_text(cgroup))
    except FileNotFoundError:
        return False  # it ended meanwhile
    except OSError:
        return True
    return not task.pod or (task.pod == place.pod and task.container in ("", place.container))
