"""The CPUs that systemd allows its units: `AllowedCPUs` in unit files, and the cpusets of their cgroups.

systemd writes `AllowedCPUs` to `cpuset.cpus` of the unit's cgroup (systemd.resource-control(5)). `systemctl
set-property` writes a drop-in file below `system.control`. A unit that runs is described by its cgroup, which another
program may have changed; one that does not run only by its files.
"""

import os
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Final

from nodewise.base.errors import BadInput
from nodewise_cpu import cpu_set_formats
from nodewise_cpu.cgroup_owners import parse_cgroup
from nodewise_cpu.kernel_file_reader import WHITE_SPACE, read_text, split_lines

Cpus = frozenset[int]

UNIT_FOLDERS: Final = (
    "etc/systemd/system.control",
    "run/systemd/system.control",
    "run/systemd/transient",
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
)
"""systemd's folders of unit files below the root, those with precedence first (systemd.unit(5))."""
CGROUP_ROOTS: Final = ("sys/fs/cgroup", "sys/fs/cgroup/cpuset")
"""The mount points of cgroups: of version 2, and of the controller `cpuset` of version 1."""
PODS: Final = "kubepods"
"""The cgroup of all pods, which systemd names `kubepods.slice`."""
_UNIT: Final = re.compile(r".+\.(?:service|slice|scope)")
_SETTING: Final = re.compile(r"^[ \t]*(?:Startup)?AllowedCPUs[ \t]*=(.*)$")
_MAX_FILE_BYTES: Final = 1 << 20
_MAX_DEPTH: Final = 8


def read(root: Path) -> Mapping[str, Cpus]:
    """The CPUs of each unit that is limited to some, by the unit's name. `root` has the host's files.

    Files that cannot be read or parsed are left out, as systemd ignores an invalid setting.
    """
    return {**_read_unit_files(root), **_read_unit_cgroups(root)}


def parse_allowed_cpus(*texts: str) -> Cpus:
    """The CPUs that the unit file and its drop-ins allow together; empty without a limit.

    An empty value removes the earlier ones. Indices and ranges are separated by commas or white space.
    """
    cpus: set[int] = set()
    for line in (line for text in texts for line in split_lines(text)):
        if match := _SETTING.match(line):
            words = match[1].replace(",", " ").split()
            try:
                listed = cpu_set_formats.parse_cpu_numbers(",".join(words), "AllowedCPUs")
            except BadInput:
                continue
            cpus = cpus | set(listed) if words else set()
    return frozenset(cpus)


def _read_unit_files(root: Path) -> Mapping[str, Cpus]:
    files: dict[str, dict[str, Path]] = {}
    for path in chain.from_iterable(_list_folder(root / folder) for folder in UNIT_FOLDERS):
        if path.name.endswith(".d"):
            drop_ins = files.setdefault(path.name.removesuffix(".d"), {})
            for file in _list_folder(path):
                drop_ins.setdefault(file.name, file)
        elif _UNIT.fullmatch(path.name):
            # the empty name is that of the unit file, which comes before its drop-ins
            files.setdefault(path.name, {}).setdefault("", path)
    allowed = {unit: parse_allowed_cpus(*_read_parts(parts)) for unit, parts in sorted(files.items())}
    return {unit: cpus for unit, cpus in allowed.items() if cpus}


def _read_parts(parts: Mapping[str, Path]) -> Iterator[str]:
    """The texts of a unit file and of its drop-ins, in systemd's order."""
    for name, file in sorted(parts.items()):
        if not name or name.endswith(".conf"):
            yield _read_file(file)


def _read_unit_cgroups(root: Path) -> Mapping[str, Cpus]:
    """The cpusets of the cgroups of units, without pods and what is below the units themselves."""
    allowed: dict[str, Cpus] = {}
    for top in CGROUP_ROOTS:
        for folder in _walk_units(root / top, 0):
            text = _read_file(folder / "cpuset.cpus").strip(WHITE_SPACE)
            try:
                cpus = frozenset(cpu_set_formats.parse_cpu_numbers(text))
            except BadInput:
                continue
            # in version 1 every cgroup has a list: only one that differs from its parent's is a limit
            inherited = _read_file(folder.parent / "cpuset.cpus").strip(WHITE_SPACE)
            if cpus and text != inherited:
                allowed[folder.name] = cpus
    return allowed


def _walk_units(folder: Path, depth: int) -> Iterator[Path]:
    for path in _list_folder(folder):
        is_unit = _UNIT.fullmatch(path.name) or path.name == PODS
        if not is_unit or path.is_symlink() or not path.is_dir() or parse_cgroup(f"0::/{path.name}").pod:
            continue
        yield path
        if path.name.endswith(".slice") and depth < _MAX_DEPTH:
            yield from _walk_units(path, depth + 1)


def _list_folder(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in sorted(os.listdir(folder))]  # noqa: PTH208 - only the names are needed
    except OSError:
        return []


def _read_file(file: Path) -> str:
    try:
        return read_text(file, _MAX_FILE_BYTES)
    except OSError:
        return ""
