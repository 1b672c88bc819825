"""Reads a machine's files for `topology.py` and `speed_select.py`; nothing is computed here.

Standard library only.

`root` holds `sys` and `proc`, and `dev` where the model-specific registers are wanted: `/` on a node, a mount of
the host's folders in a container, a folder of samples in a test.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from nodewise.cpu.topology import COMMAND_LINE, CPUS, NODES

_FILES: Final = (
    COMMAND_LINE,
    *(f"{CPUS}/{name}" for name in ("present", "online", "isolated")),
    f"{CPUS}/cpu[0-9]*/online",
    *(
        f"{CPUS}/cpu[0-9]*/topology/{name}"
        for name in ("physical_package_id", "die_id", "core_id", "thread_siblings*", "core_siblings*")
    ),
    f"{CPUS}/cpu[0-9]*/cpu_capacity",
    *(f"{CPUS}/cpu[0-9]*/acpi_cppc/{name}_perf" for name in ("nominal", "highest")),
    *(f"{CPUS}/cpu[0-9]*/cpufreq/{name}" for name in ("base_frequency", "energy_performance_preference")),
    f"{NODES}/node[0-9]*/cpulist",
    f"{NODES}/node[0-9]*/cpumap",
    "sys/devices/cpu_*/cpus",
)
_LONGEST_BYTES: Final = 65_536
_PLATFORM_INFO: Final = 0xCE
"""The register whose second byte is the base frequency in units of 100 MHz (MSR_PLATFORM_INFO)."""


def read(root: Path) -> Mapping[str, str]:
    """Path below `root` to text, of every file that the topology may need and that can be read.

    A CPU's folder is there with an empty text, for one that is offline may hold nothing.
    """
    texts = {str(path.relative_to(root)): "" for path in root.glob(f"{CPUS}/cpu[0-9]*")}
    for pattern in _FILES:
        for path in root.glob(pattern):
            text = _text(path)
            if text is not None:
                texts[str(path.relative_to(root))] = text
    return texts


def _text(path: Path) -> str | None:
    """None if it cannot be read: a kernel answers with an error in place of a figure that it does not know.

    In a copy that tar made a file is filled up with zeros to the size that the kernel tells, which is a page.
    """
    try:
        with path.open("rb") as file:
            return file.read(_LONGEST_BYTES).decode("utf-8", "replace").rstrip("\0")
    except OSError:
        return None


def read_base_mhz(root: Path) -> int | None:
    """The base frequency as the processor has it in a register; None without the right or the device to read it."""
    try:
        with (root / "dev/cpu/0/msr").open("rb", buffering=0) as file:
            file.seek(_PLATFORM_INFO)
            value = file.read(8)
    except OSError:
        return None
    return value[1] * 100 if len(value) == 8 else None  # noqa: PLR2004 - a register has eight bytes
