"""Reads a machine's files for `topology.py` and `speed_select.py`; computes nothing.

Standard library only.

`root` has the folders `sys` and `proc`, and `dev` for model-specific registers: it is `/` on a node, a mount of the
host's folders in a container, and a folder of samples in a test.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from nodewise_cpu.topology import (
    COMMAND_LINE,
    CPUS,
    NODES,
    OWN_PARTITIONS,
    PARTITION_CPUS,
    ROOT_CGROUP,
    ROOT_CPUS,
)

_FILES: Final = (
    COMMAND_LINE,
    OWN_PARTITIONS,
    *(f"{CPUS}/{name}" for name in ("present", "online", "isolated")),
    f"{CPUS}/cpu[0-9]*/online",
    *(f"{CPUS}/cpu[0-9]*/topology/{name}" for name in ("physical_package_id", "die_id", "core_id")),
    *(
        f"{CPUS}/cpu[0-9]*/topology/{name}"
        for name in ("thread_siblings*", "core_cpus*", "core_siblings*", "package_cpus*")
    ),
    *(
        f"{CPUS}/cpu[0-9]*/cache/index[0-9]*/{name}"
        for name in ("level", "shared_cpu_list", "shared_cpu_map")
    ),
    f"{CPUS}/cpu[0-9]*/regs/identification/midr_el1",
    f"{CPUS}/cpu[0-9]*/cpu_capacity",
    *(f"{CPUS}/cpu[0-9]*/acpi_cppc/{name}_perf" for name in ("nominal", "highest")),
    *(f"{CPUS}/cpu[0-9]*/cpufreq/{name}" for name in ("base_frequency", "energy_performance_preference")),
    f"{NODES}/node[0-9]*/cpulist",
    f"{NODES}/node[0-9]*/cpumap",
    *(f"{NODES}/{name}" for name in ("has_memory", "has_normal_memory")),
    "sys/devices/cpu_*/cpus",
)
_ROOT_CGROUPS: Final = (ROOT_CGROUP, f"proc/1/root/{ROOT_CGROUP}")
"""Where the root cgroup (version 2) of the machine may be: a container that sees the host's processes finds it there,
and at the first place its own cgroup."""
_LONGEST_BYTES: Final = 65_536
_PLATFORM_INFO: Final = 0xCE
"""The register whose second byte is the base frequency in units of 100 MHz (MSR_PLATFORM_INFO)."""


def read(root: Path) -> Mapping[str, str]:
    """The files that the topology may need, path below `root` to text; unreadable ones are left out.

    The folder of each CPU is included with an empty text, because that of an offline CPU may be empty.
    """
    texts = {str(path.relative_to(root)): "" for path in root.glob(f"{CPUS}/cpu[0-9]*")}
    for pattern in _FILES:
        for path in root.glob(pattern):
            text = _read_sysfs_file(path)
            if text is not None:
                texts[str(path.relative_to(root))] = text
    return texts | _read_root_cgroup(root)


def _read_root_cgroup(root: Path) -> dict[str, str]:
    """The files of the root cgroup. Only a cgroup below it has the file `cpuset.cpus`, and is not read."""
    for folder in (root / place for place in _ROOT_CGROUPS):
        if _read_sysfs_file(folder / "cpuset.cpus") is not None:
            continue
        texts = {name: _read_sysfs_file(folder / Path(name).name) for name in (ROOT_CPUS, PARTITION_CPUS)}
        if existing := {name: text for name, text in texts.items() if text is not None}:
            return existing
    return {}


def _read_sysfs_file(path: Path) -> str | None:
    """None if the file cannot be read: the kernel returns an error for a value that it does not know.

    In a copy made by tar, a file is padded with zeros to the size that the kernel reports, which is a page.
    """
    try:
        with path.open("rb") as file:
            return file.read(_LONGEST_BYTES).decode("utf-8", "replace").rstrip("\0")
    except OSError:
        return None


def read_base_mhz(root: Path) -> int | None:
    """The processor's base frequency from a register; None without the device or the right to read it."""
    try:
        with (root / "dev/cpu/0/msr").open("rb", buffering=0) as file:
            file.seek(_PLATFORM_INFO)
            value = file.read(8)
    except OSError:
        return None
    return value[1] * 100 if len(value) == 8 else None  # noqa: PLR2004 - a register has eight bytes
