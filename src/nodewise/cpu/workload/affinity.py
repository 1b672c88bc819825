"""Where this process may run.

Standard library only.
"""

import os
from collections.abc import Collection
from typing import Final

from nodewise.cpu import cpulist
from nodewise.errors import Problem, Refused

_ALL: Final = range(cpulist.LAST_CPU + 1)


def confine(cpus: Collection[int]) -> None:
    """Let this process, and all that it will start, run on these CPUs and on no others.

    The kernel takes from a wish what is offline or not in the cgroup's cpuset, and says nothing as long as some is
    left, so the outcome is read back. Refused if it is not all: then this process may run where it could before.
    """
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus)
        seen = os.sched_getaffinity(0)
        why = ""
    except OSError as error:
        seen, why = set(), error.strerror or str(error)
    if seen == set(cpus):
        return
    usable = _usable()
    os.sched_setaffinity(0, before)
    lacking = cpulist.format_ranges(set(cpus) - usable) or why
    problem = Problem(
        "affinity",
        f"CPUs {lacking} cannot be used here, {cpulist.format_ranges(usable)} can",
        f"all of {cpulist.format_ranges(cpus)}",
    )
    remedy = (
        "they are offline, or the container's cpuset lacks them: does the kubelet's CPU manager choose CPUs?"
    )
    raise Refused("cannot run on the CPUs of the pool", [problem], remedy=remedy)


def _usable() -> set[int]:
    """All that this process could run on."""
    try:
        os.sched_setaffinity(0, _ALL)
    except OSError:
        return set()
    return os.sched_getaffinity(0)
