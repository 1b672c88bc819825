"""Reads text files of the kernel: `/proc`, `/sys` and cgroups.

Standard library only.

The kernel ends a line with `\\n` and escapes nothing else. Names of cgroups and of processes are chosen by tenants and
may contain every other character that Python treats as the end of a line or as white space: `\\r`, `\\x0b`, U+2028.
So these files are never read in Python's text mode, which translates `\\r`, and never split by `str.splitlines`.
"""

from pathlib import Path
from typing import Final

WHITE_SPACE: Final = " \t\n"
"""The white space that the kernel itself writes around values."""


def read_text(path: Path, limit_bytes: int = -1) -> str:
    """The file's text, at most `limit_bytes` of it; bytes that are not UTF-8 become surrogates. Raises OSError."""
    with path.open("rb") as file:
        return file.read(limit_bytes).decode("utf-8", "surrogateescape")


def split_lines(text: str) -> list[str]:
    """The lines of a kernel file, without their ends; no line after the last `\\n`."""
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]
