"""Python's wheels in the image: those of the lock file, by their hashes, and nodewise's own."""

import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from packaging.requirements import Requirement

from tools.image import contents
from tools.image.errors import ImageError, run, say

_UNUSED: Final = ("tests", "__pycache__")
"""Folders of wheels: what tests them, and what Python makes anew."""
_OLDEST_GLIBC: Final = 5
"""The first 2.x for which there are wheels."""


class Target(NamedTuple):
    """The Python of the image."""

    root: Path
    """Where Debian's packages are unpacked."""
    version: str
    """Such as 3.11."""
    full_version: str
    glibc: str
    """Such as 2.36."""
    machine: str

    @property
    def packages(self) -> str:
        """The folder that Debian's Python has for what is not Debian's."""
        return f"usr/local/lib/python{self.version}/dist-packages"

    @property
    def platforms(self) -> list[str]:
        """What wheels may be made for, best first."""
        newest = int(self.glibc.split(".")[1])
        return [f"manylinux_2_{minor}_{self.machine}" for minor in range(newest, _OLDEST_GLIBC - 1, -1)]


def target(root: Path, glibc: str, machine: str) -> Target:
    """The Python that was unpacked there. ImageError if it does not start."""
    version = run([*_interpreter(root), "-c", "import sys; print(*sys.version_info[:3])"], "starting Python")
    major, minor, micro = version.split()
    return Target(root, f"{major}.{minor}", f"{major}.{minor}.{micro}", glibc, machine)


def requirements(lock: str, python: Target) -> list[str]:
    """The lines of `uv export` that hold for the image's Python, without their conditions."""
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
    return list(_holding(lock, environment))


def _holding(lock: str, environment: Mapping[str, str]) -> Iterator[str]:
    lines = [line for line in lock.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        text, *hashes = re.split(r"\s--hash=", line)
        wanted = Requirement(text.strip())
        if wanted.marker is None or wanted.marker.evaluate(dict(environment)):
            yield " ".join(
                [f"{wanted.name}{wanted.specifier}", *(f"--hash={digest.strip()}" for digest in hashes)]
            )


def exported() -> str:
    """What the lock file says of nodewise's dependencies."""
    uv = Path(sys.executable).with_name("uv")
    extras = [word for extra in contents.EXTRAS for word in ("--extra", extra)]
    command = [uv, "export", "--quiet", "--frozen", "--no-emit-project", "--no-dev", *extras]
    return run(command, "reading the lock file", contents.ROOT)


def install(lines: Sequence[str], python: Target, root: Path) -> None:
    """The wheels in a new folder, compiled. ImageError."""
    say(f"fetching {len(lines)} wheels for Python {python.version}")
    into = root / python.packages
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "requirements.txt"
        file.write_text("\n".join(lines))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--no-compile", "--require-hashes", "--only-binary=:all:"]
        command += ["--implementation=cp", f"--python-version={python.version}", f"--abi=cp{_digits(python)}"]
        command += ["--abi=abi3", "--abi=none", *(f"--platform={name}" for name in python.platforms)]
        run([*command, "--target", into, "--requirement", file], "fetching wheels")
    shutil.rmtree(into / "bin", ignore_errors=True)
    for path in sorted(into.rglob("*"), reverse=True):
        if path.is_dir() and path.name in _UNUSED:
            shutil.rmtree(path)
    compiled(python, root)


def install_own(wheel: Path, python: Target, root: Path) -> None:
    """nodewise itself in a new folder, with the programs that its wheel names, compiled."""
    into = root / python.packages
    into.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(into)
    programs = root / "usr/local/bin"
    programs.mkdir(parents=True)
    (entries,) = into.glob("*.dist-info/entry_points.txt")
    for name, module, function in re.findall(r"^(\w+) = ([\w.]+):(\w+)$", entries.read_text(), re.MULTILINE):
        _script(programs / name, module, function)
    for path, module in contents.SCRIPTS.items():
        _script(root / path.lstrip("/"), module, "run")
    compiled(python, root)


def built(folder: Path) -> Path:
    """nodewise's wheel, made of this tree."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(contents.EPOCH_S), "PYTHONPATH": ""}
    run([*command, "--wheel-dir", folder, contents.ROOT], "making nodewise's wheel", environment=environment)
    wheels = list(folder.glob("nodewise-*.whl"))
    if len(wheels) != 1:
        raise ImageError(f"making nodewise's wheel: {len(wheels)} came, one was wanted")
    return wheels[0]


def compiled(python: Target, root: Path) -> None:
    """Compiles all modules of a folder by the image's own Python: a read-only container cannot keep what it compiles.

    They are not compared with their sources again, whose times all are one.
    """
    command = [
        *_interpreter(python.root),
        "-m",
        "compileall",
        "-q",
        "-j1",
        "--invalidation-mode=unchecked-hash",
    ]
    environment = {"PYTHONHASHSEED": "0", "PYTHONHOME": str(python.root / "usr")}
    run([*command, "-s", root, "-p", "/", root], "compiling modules", environment=environment)


def _interpreter(root: Path) -> list[str]:
    """The image's Python, started where it was unpacked: by its own loader, with its own libraries.

    It compiles nothing by itself, for that would bear its place and the time.
    """
    loaders = sorted(root.glob("usr/lib/*/ld-linux*.so.*")) or sorted(root.glob("usr/lib/ld-linux*.so.*"))
    programs = sorted(path for path in (root / "usr/bin").glob("python3.*") if path.name.count(".") == 1)
    if not loaders or not programs:
        raise ImageError("the packages have no Python")
    libraries = ":".join(str(root / path) for path in (loaders[0].parent, "usr/lib"))
    return [str(loaders[0]), "--library-path", libraries, str(programs[0]), "-B"]


def _script(path: Path, module: str, function: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"#!/usr/bin/python3\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n"
    )
    path.chmod(0o755)


def _digits(python: Target) -> str:
    return python.version.replace(".", "")
