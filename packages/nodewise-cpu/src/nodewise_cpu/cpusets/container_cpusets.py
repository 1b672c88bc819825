"""Cgroups, cpusets and isolated cgroup partitions of containers, and files with the state of enforcement.

Standard library only.

Process ids are those of the host, as in its `/proc`, `proc`.

An isolated partition (cgroup version 2, Linux 6.7 or newer) takes its CPUs from all other cgroups and from the load
balancing of the kernel, as `isolcpus=` does, without a reboot. It is the container's own cgroup, because processes of a
pod cannot run anywhere else: a remote partition, whose CPUs each cgroup above it has in `cpuset.cpus.exclusive`
(Documentation/admin-guide/cgroup-v2.rst).

The kernel removes a partition with its cgroup. What may remain are the CPUs in `cpuset.cpus.exclusive` of the cgroups
above, which take nothing from anybody as long as no partition uses them. The file `RECORD` names all partitions. It is
written before the cgroups, so that the next agent, or `uninstall`, can undo what an ended one began.
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
from nodewise.base.errors import BadInput, Refused, Unavailable, shown
from nodewise_cpu import cpu_set_formats, procfs
from nodewise_cpu.kernel_file_reader import WHITE_SPACE, read_text
from nodewise_cpu.procfs import parse_cgroup
from nodewise_cpu.topology import OWN_PARTITIONS, PARTITION_CPUS

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
        text = trusted_files.read_bytes(file)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Unavailable.of(f"cannot read {content}", str(file), str(error)) from error
    try:
        return {container: parse(container, value) for container, value in json.loads(text).items()}
    except (AttributeError, BadInput, KeyError, TypeError, ValueError) as error:
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


RECORD: Final = Path("/") / OWN_PARTITIONS
"""The file of the partitions: the CPUs and the cgroup by container id. Like them it does not survive a reboot."""
EXCLUSIVE_CPUS: Final = "cpuset.cpus.exclusive"
PARTITION: Final = "cpuset.cpus.partition"
_ISOLATED: Final = "isolated"
_MEMBER: Final = "member"
_FAILED: Final = "cannot isolate the container's CPUs"


class Partition(NamedTuple):
    cpus: Cpus
    cgroup: str
    """The path of its cgroup below the root cgroup."""

    def ancestors(self) -> Iterator[str]:
        """The cgroups above it except the root, the uppermost first."""
        parts = self.cgroup.split("/")
        return ("/".join(parts[:count]) for count in range(1, len(parts)))


class CgroupPartitions:
    """The partitions of a node. `root` is its root cgroup; `record` the file that outlives the agent.

    The caller serializes the calls. The methods raise Refused if the kernel or another cgroup prevents a partition, and
    Unavailable or BadInput if a file cannot be read or written.
    """

    def __init__(self, root: Path, record: Path = RECORD) -> None:
        self._root = root
        self._record = record

    def check_support(self) -> None:
        """Refused if this kernel cannot create partitions in the cgroups of pods."""
        if not (self._root / "cgroup.controllers").exists():
            raise Refused.of(
                "cannot isolate CPUs by partitions", str(self._root), "cgroup version 1", "cgroup version 2"
            )
        if not (self._root / Path(PARTITION_CPUS).name).exists():
            seen = f"no {Path(PARTITION_CPUS).name}"
            expected = "Linux 6.7 or newer, with the controller cpuset"
            raise Refused.of("cannot isolate CPUs by partitions", str(self._root), seen, expected)

    def isolate(self, container: str, cpus: Cpus) -> bool:
        """Make the container's cgroup an isolated partition of these CPUs. Returns whether anything changed.

        Its `cpuset.cpus` already is this list. If it fails, the container has no partition.
        """
        self.release_ended()
        partitions = self._load()
        cgroup = find_cgroups(self._root).get(container)
        if cgroup is None:
            raise Refused.of(
                _FAILED, f"container {container}", f"no cgroup below {self._root}", "one below kubepods"
            )
        wanted = {**partitions, container: Partition(cpus, cgroup)}
        is_isolated = self._read(cgroup, PARTITION) == _ISOLATED
        if is_isolated and partitions.get(container) == wanted[container]:
            return False
        self._save(wanted)
        try:
            self._apply_exclusive_cpus(partitions, wanted)
            self._write(cgroup, EXCLUSIVE_CPUS, cpu_set_formats.format_cpu_ranges(cpus))
            self._write(cgroup, PARTITION, _ISOLATED)
            # the kernel tells the reason of an invalid partition in its state
            if (state := self._read(cgroup, PARTITION)) != _ISOLATED:
                raise Refused.of(_FAILED, f"{cgroup}/{PARTITION}", shown(state), _ISOLATED)
        except (Refused, Unavailable):
            self.release([container])
            raise
        return True

    def release(self, containers: Collection[str] | None = None) -> bool:
        """Undo the partitions of these containers, or of all. Returns whether there were any."""
        partitions = self._load()
        ended = set(partitions) if containers is None else set(containers) & set(partitions)
        if not ended:
            return False
        for container in ended:
            cgroup = partitions[container].cgroup
            if (self._root / cgroup).is_dir():
                self._write(cgroup, PARTITION, _MEMBER)
                self._write(cgroup, EXCLUSIVE_CPUS, "")
        kept = {name: partition for name, partition in partitions.items() if name not in ended}
        self._apply_exclusive_cpus(partitions, kept)
        self._save(kept)
        return True

    def release_ended(self) -> bool:
        """Undo what remains of the partitions of containers whose cgroup has been removed."""
        ended = [
            name for name, partition in self._load().items() if not (self._root / partition.cgroup).is_dir()
        ]
        return bool(ended) and self.release(ended)

    def release_unless(self, container: str, cpus: Cpus | None) -> None:
        """Undo the container's partition if it has other CPUs than these."""
        partition = self._load().get(container)
        if partition and partition.cpus != cpus:
            self.release([container])

    def _apply_exclusive_cpus(self, before: Mapping[str, Partition], after: Mapping[str, Partition]) -> None:
        """Write `cpuset.cpus.exclusive` of all cgroups above partitions, and keep the CPUs of other partitions there.

        CPUs are first removed from the lower cgroups and then from the upper ones; they are added in the other order.
        """
        ours = frozenset[int]().union(*(partition.cpus for partition in (*before.values(), *after.values())))
        wanted: dict[str, Cpus] = {}
        for partition in before.values():
            wanted |= dict.fromkeys(partition.ancestors(), frozenset[int]())
        for partition in after.values():
            for cgroup in partition.ancestors():
                wanted[cgroup] = wanted.get(cgroup, frozenset()) | partition.cpus
        existing = {cgroup for cgroup in wanted if (self._root / cgroup).is_dir()}
        targets = {}
        for cgroup in sorted(existing, key=lambda name: -name.count("/")):
            current = self._read_cpus(cgroup)
            targets[cgroup] = (current - ours) | wanted[cgroup]
            if current - targets[cgroup]:
                self._write(
                    cgroup, EXCLUSIVE_CPUS, cpu_set_formats.format_cpu_ranges(current & targets[cgroup])
                )
        for cgroup in sorted(existing, key=lambda name: name.count("/")):
            if self._read_cpus(cgroup) != targets[cgroup]:
                self._write(cgroup, EXCLUSIVE_CPUS, cpu_set_formats.format_cpu_ranges(targets[cgroup]))

    def _read_cpus(self, cgroup: str) -> Cpus:
        text = self._read(cgroup, EXCLUSIVE_CPUS)
        return frozenset(cpu_set_formats.parse_cpu_numbers(text, f"{cgroup}/{EXCLUSIVE_CPUS}"))

    def _read(self, cgroup: str, name: str) -> str:
        file = self._root / cgroup / name
        try:
            return read_text(file).strip(WHITE_SPACE)
        except OSError as error:
            raise Refused.of(
                _FAILED, str(file), str(error), "the controller cpuset in all cgroups of pods"
            ) from error

    def _write(self, cgroup: str, name: str, text: str) -> None:
        """A removed cgroup is no error. Refused if the kernel refuses the value."""
        file = self._root / cgroup / name
        try:
            with file.open("wb") as opened:
                opened.write(f"{text}\n".encode())
        except FileNotFoundError:
            return
        except OSError as error:
            seen = f"{shown(text)}: {error.strerror}"
            expected = "CPUs that no other cgroup has exclusively, or as its only ones"
            raise Refused.of(_FAILED, f"{cgroup}/{name}", seen, expected) from error

    def _load(self) -> dict[str, Partition]:
        return load_container_file(
            self._record,
            lambda container, value: Partition(
                frozenset(cpu_set_formats.parse_cpu_numbers(value["cpus"], container)), value["cgroup"]
            ),
            "the partitions",
            "remove it",
        )

    def _save(self, partitions: Mapping[str, Partition]) -> None:
        if not partitions:
            try:
                self._record.unlink(missing_ok=True)
            except OSError as error:
                raise Unavailable.of("cannot write the partitions", str(self._record), str(error)) from error
            return
        values = {
            container: {"cpus": cpu_set_formats.format_cpu_ranges(partition.cpus), "cgroup": partition.cgroup}
            for container, partition in sorted(partitions.items())
        }
        save_container_file(self._record, values, "the partitions")
