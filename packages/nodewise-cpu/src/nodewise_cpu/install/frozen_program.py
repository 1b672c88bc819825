"""Freezes a program with PyInstaller: a folder with Python, all modules and all libraries.

PyInstaller collects all libraries but the C library and its loader; `copy_system_libraries` adds them. The build is
reproducible: the same sources, libraries and tools make the same bytes.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from nodewise.base.errors import BadInput, Problem

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
    for library in _missing_libraries(folder, libraries):
        shutil.copy(library, libraries / library.name)


def _missing_libraries(folder: Path, libraries: Path) -> Iterator[Path]:
    paths: dict[str, Path] = {}
    for file in sorted(folder.rglob("*")):
        if not file.is_file() or file.is_symlink() or file.open("rb").read(4) != b"\x7fELF":
            continue
        output = run_command(["ldd", file], "ldd", {"LD_LIBRARY_PATH": str(libraries)})
        for path in map(Path, _LIBRARY.findall(output)):
            paths.setdefault(path.name, path)
    present = {file.name for file in libraries.iterdir()}
    return (path for name, path in sorted(paths.items()) if name not in present)


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
        problem = Problem(name, f"ended with {done.returncode}: {last}", "")
        raise BadInput("cannot build the program", [problem])
    return done.stdout
