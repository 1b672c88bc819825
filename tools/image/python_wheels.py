"""Python wheels of the image: those of the lock file, verified by hash, and nodewise's own."""

import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from packaging.requirements import Requirement

from tools.image import image_constants
from tools.image.command_execution_and_errors import ImageError, run, say

_UNUSED_FOLDERS: Final = ("tests", "__pycache__")  # folders of wheels that the image does not need
_OLDEST_GLIBC: Final = 5  # minor version of the oldest glibc 2.x with wheels
_MACHINE_PYTHON: Final = ("/usr/bin/python3", "-B")
"""The Python of this machine's Debian, which does not depend on the Python that runs this program."""


class PythonTarget(NamedTuple):
    """The Python of the image, and its platform."""

    root: Path
    """Folder of the unpacked Debian packages."""
    version: str
    """For example 3.11."""
    full_version: str
    glibc: str
    """For example 2.36."""
    machine: str
    interpreter: tuple[str, ...] = ()
    """The command that starts a Python of the same version on this machine; empty for the Python in `root`."""

    @property
    def packages(self) -> str:
        """The folder for packages that are not Debian's."""
        return f"usr/local/lib/python{self.version}/dist-packages"

    @property
    def platforms(self) -> list[str]:
        """Supported wheel platforms, best first."""
        newest = int(self.glibc.split(".")[1])
        names = [f"manylinux_2_{minor}_{self.machine}" for minor in range(newest, _OLDEST_GLIBC - 1, -1)]
        return [
            *names,
            f"manylinux2014_{self.machine}",
        ]  # the older name of 2.17, for wheels that have only it


def target(root: Path, glibc: str, machine: str) -> PythonTarget:
    """The Python in a folder of unpacked packages. ImageError if it does not start."""
    full_version = _full_version(_interpreter(root))
    return PythonTarget(root, full_version.rpartition(".")[0], full_version, glibc, machine)


def foreign_target(root: Path, glibc: str, machine: str, full_version: str) -> PythonTarget:
    """The Python of another architecture in a folder of unpacked packages, which this machine cannot start.

    Byte code depends on the version only, so the Python of this machine's Debian compiles. ImageError unless it has the
    same version.
    """
    actual = _full_version(_MACHINE_PYTHON)
    if actual != full_version:
        raise ImageError(
            f"{_MACHINE_PYTHON[0]}: found Python {actual}, expected {full_version} as in the packages of {machine}; "
            f"upgrade this machine's packages, or build on {machine}"
        )
    return PythonTarget(root, full_version.rpartition(".")[0], full_version, glibc, machine, _MACHINE_PYTHON)


def machine_library() -> str:
    """Debian's package of the shared library of this machine's Python, for example `libpython3.11`."""
    return f"libpython{_full_version(_MACHINE_PYTHON).rpartition('.')[0]}"


def _full_version(interpreter: Sequence[str]) -> str:
    return run(
        [*interpreter, "-c", "import platform; print(platform.python_version())"], "starting Python"
    ).strip()


def requirements(lock: str, python: PythonTarget) -> list[str]:
    """The lines of `uv export` whose markers match the image's Python, without the markers."""
    environment = {
        "python_version": python.version,
        "python_full_version": python.full_version,
        "platform_machine": python.machine,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    return list(_applicable_requirements(lock, environment))


def _applicable_requirements(lock: str, environment: Mapping[str, str]) -> Iterator[str]:
    lines = [line for line in lock.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        text, *hashes = re.split(r"\s--hash=", line)
        wanted = Requirement(text.strip())
        if wanted.marker is None or wanted.marker.evaluate(dict(environment)):
            yield " ".join(
                [f"{wanted.name}{wanted.specifier}", *(f"--hash={digest.strip()}" for digest in hashes)]
            )


def export_lock(extras: Sequence[str] = image_constants.EXTRAS) -> str:
    """nodewise's dependencies in the lock file, in the format of requirements files."""
    uv = Path(sys.executable).with_name("uv")
    words = [word for extra in extras for word in ("--extra", extra)]
    command = [uv, "export", "--quiet", "--frozen", "--no-emit-workspace", "--no-dev", *words]
    return run(command, "reading the lock file", image_constants.ROOT)


def install(lines: Sequence[str], python: PythonTarget, root: Path) -> None:
    """Install the wheels into a new folder and compile them. ImageError if a wheel cannot be fetched."""
    into = root / python.packages
    fetch(lines, python, into)
    shutil.rmtree(into / "bin", ignore_errors=True)
    for path in sorted(into.rglob("*"), reverse=True):
        if path.is_dir() and path.name in _UNUSED_FOLDERS:
            shutil.rmtree(path)
    compile_modules(python, root)


def fetch(lines: Sequence[str], python: PythonTarget, into: Path) -> None:
    """Unpack the wheels into a folder. ImageError if a wheel cannot be fetched."""
    say(f"fetching {len(lines)} wheels for Python {python.version} on {python.machine}")
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "requirements.txt"
        file.write_text("\n".join(lines))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--no-compile", "--require-hashes", "--only-binary=:all:"]
        command += ["--implementation=cp", f"--python-version={python.version}", f"--abi=cp{_digits(python)}"]
        command += ["--abi=abi3", "--abi=none", *(f"--platform={name}" for name in python.platforms)]
        run([*command, "--target", into, "--requirement", file], "fetching wheels")


def install_own(wheels: Iterable[Path], python: PythonTarget, root: Path) -> None:
    """Install nodewise's distributions and their scripts into a new folder and compile them."""
    into = root / python.packages
    into.mkdir(parents=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(into)
    programs = root / "usr/local/bin"
    programs.mkdir(parents=True)
    for entries in sorted(into.glob("*.dist-info/entry_points.txt")):
        for name, module, function in _console_scripts(entries.read_text()):
            _script(programs / name, module, function)
    for path, module in image_constants.SCRIPTS.items():
        _script(root / path.lstrip("/"), module, "run")
    compile_modules(python, root)


def _console_scripts(entry_points: str) -> list[tuple[str, str, str]]:
    """Name, module and function of each script. Not those for kubectl, which run on workstations."""
    scripts = entry_points.partition("[console_scripts]")[2].partition("\n[")[0]
    return re.findall(r"^(\w+) = ([\w.]+):(\w+)$", scripts, re.MULTILINE)


def build_wheels(folder: Path) -> list[Path]:
    """Build the wheels of nodewise's distributions from this source tree."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(image_constants.EPOCH_S), "PYTHONPATH": ""}
    run(
        [*command, "--wheel-dir", folder, image_constants.ROOT, *image_constants.PLUGINS],
        "building nodewise's wheels",
        environment=environment,
    )
    wheels, expected = sorted(folder.glob("nodewise*.whl")), 1 + len(image_constants.PLUGINS)
    if len(wheels) != expected:
        raise ImageError(f"building nodewise's wheels: found {len(wheels)} wheels, expected {expected}")
    return wheels


def compile_modules(python: PythonTarget, root: Path) -> None:
    """Compile all modules of a folder with a Python of the image's version, because a read-only container cannot store
    the results.

    Python does not compare them with their sources, because all files have the same time.
    """
    command = [
        *(python.interpreter or _interpreter(python.root)),
        "-m",
        "compileall",
        "-q",
        "-j1",
        "--invalidation-mode=unchecked-hash",
    ]
    home = {} if python.interpreter else {"PYTHONHOME": str(python.root / "usr")}
    environment = {"PYTHONHASHSEED": "0", **home}
    run([*command, "-s", root, "-p", "/", root], "compiling modules", environment=environment)


def _interpreter(root: Path) -> list[str]:
    """The command that starts the image's Python in its folder: with its own loader and libraries.

    `-B` prevents compiled modules that would contain the folder and the current time.
    """
    loaders = sorted(root.glob("usr/lib/*/ld-linux*.so.*")) or sorted(root.glob("usr/lib/ld-linux*.so.*"))
    programs = sorted(path for path in (root / "usr/bin").glob("python3.*") if path.name.count(".") == 1)
    if not loaders or not programs:
        raise ImageError("the packages contain no Python")
    libraries = ":".join(str(root / path) for path in (loaders[0].parent, "usr/lib"))
    return [str(loaders[0]), "--library-path", libraries, str(programs[0]), "-B"]


def _script(path: Path, module: str, function: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"#!/usr/bin/python3\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n"
    )
    path.chmod(0o755)


def _digits(python: PythonTarget) -> str:
    return python.version.replace(".", "")
