"""Cgroups and cpusets of containers and processes, and files with the state of enforcement.

Standard library only.

Process ids are those of the host, as in its `/proc`, `proc`.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from nodewise.base import trusted_files
from nodewise.base.errors import BadInput, Unavailable, shown
from nodewise_cpu import cpu_set_formats, procfs
from nodewise_cpu.kernel_file_reader import read_text
from nodewise_cpu.procfs import parse_cgroup

Cpus = frozenset[int]
T = TypeVar("T")


class Cpuset(NamedTuple):
    """CPUs, and NUMA nodes for memory. An empty set means unspecified."""

    cpus: Cpus = frozenset()
    mems: Cpus = frozenset()

    def __str__(self) -> str:
        mems = f", NUMA nodes {cpu_set_formats.format_cpu_ranges(self.mems)}" if self.mems else ""
        return f"CPUs {cpu_set_formats.format_cpu_ranges(self.cpus)}{mems}"


class ContainerCpuset(NamedTuple):
    """The cpuset of a running container: as configured at the runtime, and as inherited from its pod."""

    configured: Cpuset
    inherited: Cpuset

    @property
    def effective(self) -> Cpuset:
        return Cpuset(
            self.configured.cpus or self.inherited.cpus, self.configured.mems or self.inherited.mems
        )


class CpusetRuntime(Protocol):
    """The containers of a node, by id. Both methods raise `Unavailable` or `Refused`."""

    def find(self, container: str) -> ContainerCpuset | None:
        """The container's cpuset; None if it is not running."""
        ...

    def confine(self, container: str, cpuset: Cpuset) -> None:
        """Set the parts of the cpuset that are not empty. A container that has ended is no error."""
        ...


def parse_cpuset(cpus: str, mems: str, field: str) -> Cpuset:
    """A cpuset from two lists in the kernel's form. BadInput names `field`."""
    return Cpuset(*(frozenset(cpu_set_formats.parse_cpu_numbers(text, field)) for text in (cpus, mems)))


def read_cpuset(proc: Path, pid: int) -> Cpuset:
    """The cpuset of a process's first thread. Unavailable if the process has ended."""
    file = proc / f"{pid}/status"
    try:
        text = read_text(file)
    except OSError as error:
        raise Unavailable.of("cannot read a container's cpuset", str(file), str(error)) from error
    lists = dict(re.findall(r"^(Cpus|Mems)_allowed_list:[ \t]*([^ \t\n]+)", text, re.MULTILINE))
    return parse_cpuset(lists.get("Cpus", ""), lists.get("Mems", ""), str(file))


def list_container_processes(proc: Path, containers: Collection[str]) -> Mapping[str, Sequence[int]]:
    """The processes of each of the containers, by container id. Unavailable if `proc` cannot be read."""
    processes: dict[str, list[int]] = {container: [] for container in containers}
    for pid in procfs.pids(proc):
        try:
            text = read_text(proc / f"{pid}/cgroup")
        except OSError:
            continue
        if (pids := processes.get(parse_cgroup(text).container)) is not None:
            pids.append(pid)
    return processes


def load_container_file(
    file: Path, parse: Callable[[str, Any], T], content: str, remedy: str
) -> dict[str, T]:
    """The values of a file by container, read by `parse`; empty without a file.

    Unavailable or BadInput if it cannot be read; `content` names the content in errors.
    """
    try:
        trusted_files.check_folder(file.parent)
        document = json.loads(trusted_files.read_bytes(file))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Unavailable.of(f"cannot read {content}", str(file), str(error)) from error
    except ValueError as error:
        document = error
    try:
        return {container: parse(container, value) for container, value in document.items()}
    except (AttributeError, BadInput, KeyError, TypeError) as error:
        expected = "what nodewise wrote"
        raise BadInput.of(
            f"cannot read {content}", str(file), shown(str(error)), expected, remedy=remedy
        ) from error


def save_container_file(file: Path, values: Mapping[str, Mapping[str, str]], content: str) -> None:
    """Replace the file atomically. Unavailable if it cannot be written."""
    new = file.with_suffix(".new")
    try:
        trusted_files.check_folder(file.parent)
        file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        new.write_text(json.dumps(values), encoding="utf-8")
        new.chmod(0o644)
        new.replace(file)
    except OSError as error:
        raise Unavailable.of(f"cannot write {content}", str(file), str(error)) from error


def load_original_cpusets(file: Path) -> dict[str, Cpuset]:
    """The original cpusets by container; empty without a file. Unavailable or BadInput if it cannot be read."""
    remedy = "remove the file: containers that are confined now stay so until they end"
    return load_container_file(
        file,
        lambda container, value: parse_cpuset(value["cpus"], value["mems"], f"{file}: {container}"),
        "the original cpusets",
        remedy,
    )


def save_original_cpusets(file: Path, originals: Mapping[str, Cpuset]) -> None:
    """Replace the file atomically. Unavailable if it cannot be written."""
    values = {
        container: {
            "cpus": cpu_set_formats.format_cpu_ranges(cpuset.cpus),
            "mems": cpu_set_formats.format_cpu_ranges(cpuset.mems),
        }
        for container, cpuset in originals.items()
    }
    save_container_file(file, values, "the original cpusets")


_PODS: Final = ("kubepods", "kubepods.slice")
_MAX_DEPTH: Final = 6


def find_cgroups(root: Path) -> Mapping[str, str]:
    """The path of each container's cgroup below the root cgroup, by container id.

    A container can create cgroups below its own only, which are not searched.
    """
    cgroups: dict[str, str] = {}
    for path in chain.from_iterable(_walk(root / pods, 0) for pods in _PODS):
        cgroup = str(path.relative_to(root))
        if container := parse_cgroup(f"0::/{cgroup}").container:
            cgroups.setdefault(container, cgroup)
    return cgroups


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    """The cgroups below a cgroup, without those inside of containers."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
    for path in (folder / name for name in names):
        yield path
        if depth < _MAX_DEPTH and not parse_cgroup(f"0::{path}").container:
            yield from _walk(path, depth + 1)


def read_cgroup_cpus(roots: Sequence[Path], containers: Collection[str]) -> Mapping[str, Cpus]:
    """`cpuset.cpus` of the cgroups of these containers, empty without a limit, as far as they can be read.

    `roots` are the root cgroups of version 2 and of the controller `cpuset` of version 1: the first one that has a
    container counts.
    """
    cpus: dict[str, Cpus] = {}
    for root in roots:
        for container, cgroup in find_cgroups(root).items():
            if container in containers and container not in cpus:
                with contextlib.suppress(BadInput, OSError):
                    text = read_text(root / cgroup / "cpuset.cpus")
                    cpus[container] = frozenset(cpu_set_formats.parse_cpu_numbers(text))
    return cpus
