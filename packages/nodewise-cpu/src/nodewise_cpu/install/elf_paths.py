"""The two paths in an executable: its loader's (PT_INTERP of ELF) and its libraries' (DT_RPATH).

Standard library only.

The kernel starts a dynamically linked program by the absolute path of the loader in it, and the loader finds the
libraries by the other path; a path relative to the program (`$ORIGIN`) would need `/proc`. The bundled loader and
libraries are at a path that is known at the installation, so it is written then, into space that the build reserves.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from nodewise.base.errors import BadInput, Problem, shown

LONGEST_PATH: Final = 255
"""The space in bytes that `bundle.build` reserves for a path, and so the longest path."""

_HEADER_BYTES: Final = 64
_MAGIC: Final = b"\x7fELF\x02"
"""The first bytes of 64-bit files; the next byte is the byte order, 1 for little-endian."""
_ORDERS: Final = {1: "<", 2: ">"}
_LOAD, _DYNAMIC, _INTERPRETER = 1, 2, 3
_STRINGS, _RPATH = 5, 15


class _Segment(NamedTuple):
    """A program header (Elf64_Phdr)."""

    kind: int
    flags: int
    offset: int
    address: int
    physical: int
    stored: int
    memory: int
    alignment: int


def relocate(program: bytes, loader: str, libraries: str) -> bytes:
    """The program with other paths. BadInput if it is not an executable with space for them."""
    for what, path, at in zip(
        ("loader", "libraries"), (loader, libraries), _path_offsets(program), strict=True
    ):
        text = path.encode()
        if len(text) > LONGEST_PATH:
            wanted = f"at most {LONGEST_PATH} bytes"
            raise BadInput(
                "cannot relocate the program", [Problem(f"path of the {what}", shown(path), wanted)]
            )
        program = program[:at] + text.ljust(LONGEST_PATH, b"\0") + program[at + LONGEST_PATH :]
    return program


def _path_offsets(program: bytes) -> tuple[int, int]:
    """The offsets of the two paths, each with space behind it."""
    order = _ORDERS.get(program[5]) if len(program) >= _HEADER_BYTES and program.startswith(_MAGIC) else None
    if order is None:
        raise _unsupported_elf_error(shown(program[:8]), "a 64-bit ELF executable")
    segments: dict[int, list[_Segment]] = {_LOAD: [], _DYNAMIC: [], _INTERPRETER: []}
    entries: dict[int, int] = {}
    try:
        for segment in _read_program_headers(program, order):
            segments.setdefault(segment.kind, []).append(segment)
        for segment in segments[_DYNAMIC]:
            entries.update(_dynamic_entries(program, order, segment))
    except struct.error as error:
        raise _unsupported_elf_error("cut off", "a whole file") from error
    if not segments[_INTERPRETER] or not {_RPATH, _STRINGS} <= entries.keys():
        raise _unsupported_elf_error(
            "no path of a loader or of libraries", "a program that `install --build` made"
        )
    loader = segments[_INTERPRETER][0].offset
    libraries = _file_offset(entries[_STRINGS] + entries[_RPATH], segments[_LOAD])
    if libraries is None or not all(_has_reserved_space(program, at) for at in (loader, libraries)):
        raise _unsupported_elf_error("no room for paths", "a program that `install --build` made")
    return loader, libraries


def _file_offset(address: int, loaded: Iterable[_Segment]) -> int | None:
    """The offset in the file of what is loaded at an address; None if no segment contains the address."""
    for segment in loaded:
        if 0 <= address - segment.address < segment.stored:
            return segment.offset + address - segment.address
    return None


def _has_reserved_space(program: bytes, at: int) -> bool:
    """Whether there is a path, padded with zeros to the reserved space."""
    path, _, rest = program[at : at + LONGEST_PATH + 1].partition(b"\0")
    return len(path) + len(rest) == LONGEST_PATH and not rest.strip(b"\0")


def _read_program_headers(program: bytes, order: str) -> Iterator[_Segment]:
    (table,) = struct.unpack_from(f"{order}Q", program, 32)
    size, count = struct.unpack_from(f"{order}HH", program, 54)
    for number in range(count):
        yield _Segment(*struct.unpack_from(f"{order}IIQQQQQQ", program, table + number * size))


def _dynamic_entries(program: bytes, order: str, segment: _Segment) -> Iterator[tuple[int, int]]:
    """Tag and value of each entry of the dynamic section."""
    for at in range(segment.offset, segment.offset + segment.stored, 16):
        tag, value = struct.unpack_from(f"{order}QQ", program, at)
        if not tag:
            return
        yield tag, value


def _unsupported_elf_error(seen: str, wanted: str) -> BadInput:
    return BadInput("cannot relocate the program", [Problem("executable", seen, wanted)])
