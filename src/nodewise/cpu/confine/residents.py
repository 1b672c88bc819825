"""Which processes run in a container, and what a process may use. Process ids are the host's, as `proc` is."""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from nodewise.cpu import procfs
from nodewise.cpu.cgroups import parse_cgroup
from nodewise.cpu.confine import confinement
from nodewise.cpu.confine.confinement import Confinement
from nodewise.cpu.kernel_files import read_text
from nodewise.errors import Problem, Unavailable


def find(proc: Path, containers: Collection[str]) -> Mapping[str, Sequence[int]]:
    """Of each of the containers, by id, the processes in it. Unavailable if `proc` cannot be read."""
    found: dict[str, list[int]] = {container: [] for container in containers}
    for pid in procfs.pids(proc):
        try:
            text = read_text(proc / f"{pid}/cgroup")
        except OSError:
            continue
        processes = found.get(parse_cgroup(text).container)
        if processes is not None:
            processes.append(pid)
    return found


def read_confinement(proc: Path, pid: int) -> Confinement:
    """What a process may use, by its first thread; Unavailable if it is gone."""
    file = proc / f"{pid}/status"
    try:
        text = read_text(file)
    except OSError as error:
        raise Unavailable("cannot tell what a container has", [Problem(str(file), str(error), "")]) from error
    lists = dict(re.findall(r"^(Cpus|Mems)_allowed_list:[ \t]*([^ \t\n]+)", text, re.MULTILINE))
    return confinement.parse(lists.get("Cpus", ""), lists.get("Mems", ""), str(file))
