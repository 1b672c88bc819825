"""Formats of CPU sets: lists such as `0-2,8-10`, masks such as `0000,00000007`, and `isolcpus=` of a kernel.

Standard library only.

Lists have the kernel's format (Documentation/core-api/printk-formats and lib/bitmap-str.c): numbers, ranges
`first-last`, ranges with strides `first-last:used/group`, `all`, and `N` for the last CPU if that is known. Some texts
that the kernel ignores (nothing between two commas) and CMK accepted (`3-1`, `1-2-3`) are errors here. The order is
kept, because CMK's shared lists are not sorted; duplicates are removed.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from nodewise.base.errors import BadInput, Problem, shown
from nodewise_cpu.kernel_file_reader import WHITE_SPACE

LAST_CPU: Final = 65_535
"""The highest accepted CPU number: eight times the maximum that kernels are built for."""

_GRAMMAR: Final = "numbers and ranges separated by commas, such as 0-3,8 or 1-8:1/2"
_REGION: Final = re.compile(
    r"(?P<first>\d+|N)(?:-(?P<last>\d+|N)(?::(?P<used>\d+)/(?P<group>\d+))?)?", re.ASCII
)
_FLAGS: Final = frozenset({"nohz", "domain", "managed_irq"})


def parse_cpu_numbers(text: str, field: str = "CPU list", last: int | None = None) -> tuple[int, ...]:
    """The CPUs of a list, in its order. `last` is the number of the last CPU, for `all` and `N`.

    An empty list is valid. BadInput names `field` and every part that cannot be parsed.
    """
    cpus: dict[int, None] = {}
    problems = []
    listed = text.strip(WHITE_SPACE)
    for piece in listed.split(",") if listed else ():
        try:
            cpus.update(dict.fromkeys(_parse_cpu_range(piece.strip(WHITE_SPACE), last)))
        except ValueError as error:
            problems.append(Problem(field, shown(piece), str(error)))
    if problems:
        raise BadInput(f"cannot read {shown(text)} as a list of CPUs", problems)
    return tuple(cpus)


def _parse_cpu_range(piece: str, last: int | None) -> Iterable[int]:
    if piece == "all" and last is not None:
        return range(last + 1)
    match = _REGION.fullmatch(piece)
    if not match:
        raise ValueError(_GRAMMAR)
    begin = _parse_cpu_number(match["first"], last)
    end = begin if match["last"] is None else _parse_cpu_number(match["last"], last)
    if begin > end:
        raise ValueError("a range whose first number is not above its last")
    if match["group"] is None:
        return range(begin, end + 1)
    used, group = _parse_cpu_number(match["used"], None), _parse_cpu_number(match["group"], None)
    if not 0 < used <= group:
        raise ValueError("a stride used/group with 0 < used <= group")
    return (cpu for cpu in range(begin, end + 1) if (cpu - begin) % group < used)


def _parse_cpu_number(digits: str, last: int | None) -> int:
    if digits == "N":
        if last is None:
            raise ValueError(_GRAMMAR)
        return last
    # the length first: Python raises an error of its own when it converts thousands of digits
    if len(digits) > len(str(LAST_CPU)) + 8 or int(digits) > LAST_CPU:
        raise ValueError(f"numbers up to {LAST_CPU}")
    return int(digits)


def format_cpu_ranges(cpus: Iterable[int]) -> str:
    """The kernel's shortest form, sorted: `0-2,8-10`. It is empty without CPUs."""
    ordered = sorted(set(cpus))
    begins = [cpu for at, cpu in enumerate(ordered) if at == 0 or ordered[at - 1] != cpu - 1]
    ends = [cpu for at, cpu in enumerate(ordered) if at + 1 == len(ordered) or ordered[at + 1] != cpu + 1]
    return ",".join(
        str(begin) if begin == end else f"{begin}-{end}" for begin, end in zip(begins, ends, strict=True)
    )


def format_cpu_list_without_ranges(cpus: Iterable[int]) -> str:
    """CMK's form, without ranges and in the given order: `2,6,3,7`."""
    return ",".join(map(str, cpus))


def parse_cpu_mask(text: str, field: str = "CPU mask") -> frozenset[int]:
    """The CPUs of a mask: hexadecimal digits, in comma-separated groups of 32 bits or without groups.

    BadInput names `field` if it is no mask.
    """
    digits = text.strip(WHITE_SPACE).removeprefix("0x").replace(",", "")
    if not re.fullmatch(r"[0-9a-fA-F]+", digits, re.ASCII) or 4 * len(digits) > 2 * LAST_CPU:
        raise BadInput.of(
            "cannot read a mask of CPUs", field, shown(text), "hexadecimal digits, such as 00ff"
        )
    bits = int(digits, 16)
    return frozenset(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1)


def format_cpu_mask(cpus: Iterable[int]) -> str:
    """The form of `CMK_CPUS_ASSIGNED_MASK`: upper-case hexadecimal digits without groups, `0` without CPUs."""
    return f"{_cpu_bitmask(cpus):X}"


def _cpu_bitmask(cpus: Iterable[int]) -> int:
    bits = 0
    for cpu in cpus:
        bits |= 1 << cpu
    return bits


def parse_isolcpus(command_line: str, last: int | None = None) -> tuple[frozenset[int], Sequence[Problem]]:
    """The CPUs that a kernel's command line removes from load balancing, and problems with its fields.

    As `kernel/sched/isolation.c` of Linux 6.12 reads them: words in front of the list are flags, of which unknown ones
    are skipped (also `all`, so `isolcpus=all` isolates nothing); flags without `domain` isolate other things than
    scheduling; the first field with a list counts. A kernel ignores a field that it cannot parse, so it is a problem
    but no error here. Words after `--` are for the first process.
    """
    problems: list[Problem] = []
    words = re.split(r"\s+", command_line.partition(" -- ")[0], flags=re.ASCII)
    for name, _, value in (word.replace('"', "").partition("=") for word in words):
        if name != "isolcpus":
            continue
        try:
            cpus = _parse_isolcpus_value(value, last)
        except BadInput as error:
            problems += error.problems
            continue
        if cpus:
            return cpus, tuple(problems)
    return frozenset(), tuple(problems)


def _parse_isolcpus_value(value: str, last: int | None) -> frozenset[int]:
    """The CPUs without load balancing by one field; BadInput if the kernel ignores all of it."""
    flags, listed = [], value
    while re.match("[A-Za-z]", listed, re.ASCII):
        flag, _, listed = listed.partition(",")
        flags.append(flag if listed else "")
        if not re.fullmatch("[A-Za-z_]+", flag, re.ASCII):
            wanted = f"one of {', '.join(sorted(_FLAGS))}, or a list of CPUs"
            raise BadInput.of("cannot read isolcpus", "isolcpus", shown(flag), wanted)
    cpus = frozenset(parse_cpu_numbers(listed, "isolcpus", last))
    has_other_flags = not _FLAGS.isdisjoint(flags)
    return cpus if "domain" in flags or not has_other_flags else frozenset()
