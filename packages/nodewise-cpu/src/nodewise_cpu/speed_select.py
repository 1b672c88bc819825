"""Intel Speed Select: cores with a higher base frequency (SST-BF), and classes of core power (SST-CP).

Standard library only.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from nodewise_cpu.kernel_file_reader import WHITE_SPACE
from nodewise_cpu.topology import CPUS, Core

CLASSES: Final = ("performance", "balance_performance", "balance_power", "power")
"""The energy performance preferences of classes, the most important first; other preferences make no class."""

_FREQUENCY: Final = re.compile(rf"{CPUS}/cpu(\d+)/cpufreq/base_frequency", re.ASCII)
_PREFERENCE: Final = re.compile(rf"{CPUS}/cpu(\d+)/cpufreq/energy_performance_preference", re.ASCII)


def cpus_above_base_frequency(texts: Mapping[str, str], base_mhz: int | None) -> frozenset[int]:
    """The CPUs whose base frequency is above the processor's (`sysfs.read_base_mhz`).

    If the register cannot be read, the lowest frequency of all CPUs is used instead. Without frequencies the result is
    empty.
    """
    khz = {
        cpu: int(text)
        for cpu, text in _file_text_by_cpu(texts, _FREQUENCY)
        if re.fullmatch(r"\d{1,12}", text, re.ASCII)
    }
    base_khz = base_mhz * 1000 if base_mhz is not None else min(khz.values(), default=0)
    return frozenset(cpu for cpu, frequency in khz.items() if frequency > base_khz)


def preferences(texts: Mapping[str, str]) -> Mapping[int, str]:
    """The energy performance preference of each CPU that has one."""
    return dict(_file_text_by_cpu(texts, _PREFERENCE))


def _file_text_by_cpu(texts: Mapping[str, str], path: re.Pattern[str]) -> Iterable[tuple[int, str]]:
    matches = ((path.fullmatch(name), text) for name, text in texts.items())
    return ((int(match[1]), text.strip(WHITE_SPACE).partition("\n")[0]) for match, text in matches if match)


def group_cores_by_power_class(
    cores: Iterable[Core], preferences: Mapping[int, str]
) -> Mapping[str, tuple[Core, ...]]:
    """The classes that occur, the most important first, with their cores in the given order.

    A core whose CPUs differ, or have a preference that is not in `CLASSES`, is in no class.
    """
    members: dict[str, list[Core]] = {name: [] for name in CLASSES}
    for core in cores:
        names = {preferences.get(cpu, "") for cpu in core.cpus}
        for name in names & members.keys() if len(names) == 1 else ():
            members[name].append(core)
    return {name: tuple(cores) for name, cores in members.items() if cores}
