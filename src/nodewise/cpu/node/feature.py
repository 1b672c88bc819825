"""Tells Node Feature Discovery that the classes of core power of this node differ (SST-CP).

The older CPU manager had a script for it, which wrote over the file `cpu` that other features may be in. Ours is a
file of its own, with the label's whole name, so that it means the same to versions of Node Feature Discovery that put
the file's name before a feature and to those that do not. It ignores files whose name begins with a dot, which ours
does until it is whole.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from nodewise import trusted_files
from nodewise.cpu.names import SST_CP
from nodewise.errors import Problem, Refused

FOLDER: Final = Path("/etc/kubernetes/node-feature-discovery/features.d")
FILE: Final = "nodewise-cpu"


def write(folder: Path, preferences: Iterable[str]) -> bool:
    """Keep the file as it should be, given the energy performance preference of each CPU; whether it changed.

    Nothing is written where there is no such folder: then nobody would read it. Refused if it cannot be written,
    BadInput if others than root can write to the folder.
    """
    if not folder.is_dir():
        return False
    trusted_files.check_folder(folder)
    file = folder / FILE
    text = f"{SST_CP}=true\n" if len(set(preferences)) > 1 else ""
    try:
        if not text:
            existed = file.exists()
            file.unlink(missing_ok=True)
            return existed
        if file.is_file() and file.read_text(encoding="utf-8", errors="replace") == text:
            return False
        _replace(file, text)
    except OSError as error:
        problem = Problem(str(file), str(error), "a folder that may be written to")
        raise Refused("cannot tell Node Feature Discovery of core power", [problem]) from error
    return True


def _replace(file: Path, text: str) -> None:
    half = file.with_name(f".{file.name}.new")
    try:
        half.write_text(text, encoding="utf-8")
        half.chmod(0o644)
        half.replace(file)
    except OSError:
        with suppress(OSError):
            half.unlink(missing_ok=True)
        raise
