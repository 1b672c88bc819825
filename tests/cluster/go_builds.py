"""Builds the programs of a Go module in this repository, once, into a cache outside the tree.

Each module pins a set of programs and their dependencies. The name of the build folder is a hash of the inputs, so that
a change of one module rebuilds only this module.
"""

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tests.cluster import go_toolchain
from tests.cluster.go_toolchain import MissingError


class GoModule(NamedTuple):
    """A folder with a go.mod, and the programs that are built from it.

    `packages` maps programs to Go packages, in build order: later programs share most of the compiled code of earlier
    ones. `remedy` tells the reader what to do if a build fails.
    """

    name: str
    what: str
    version: str
    folder: Path
    packages: Mapping[str, str]
    ldflags: str = "-s -w"
    remedy: str = "mend that and try again"

    def lacks(self, place: Path) -> list[str]:
        """The programs that a folder does not contain as executable files."""
        return [name for name in self.packages if not os.access(place / name, os.X_OK)]

    def key(self) -> str:
        """The name of the build folder. It depends on the version, the dependencies, our program and the machine."""
        machine = f"{platform.system()} {platform.machine()}"
        text = f"{self.version} {self.ldflags} {machine} {sorted(self.packages)}".encode()
        files = [self.folder / "go.mod", self.folder / "go.sum", *self.folder.glob("main.go")]
        return hashlib.sha256(b"\0".join([text, *(file.read_bytes() for file in files)])).hexdigest()[:16]

    def home(self) -> Path:
        """The build folder, which may not exist yet."""
        return go_toolchain.cache() / self.name / self.key()

    def built(self) -> Path:
        """The folder with every program, built if necessary. Raises MissingError.

        The folder appears in one step, by a rename, so that an interrupted build is never taken for a complete one. If
        two processes build at the same time, the second waits for the first.
        """
        home = self.home()
        if self.lacks(home):
            with exclusive_lock(home.with_suffix(".lock"), self.what):
                if self.lacks(home):
                    self._build_into(home)
        return home

    def _build_into(self, home: Path) -> None:
        go = go_toolchain.find(self.folder)
        part = home.with_suffix(".part")
        for stale in (part, home):
            shutil.rmtree(stale, ignore_errors=True)
        part.mkdir()
        print_progress(f"building {self.what} with {go}, once, into {home}")
        for number, name in enumerate(self.packages, start=1):
            start_s = time.monotonic()
            with _shown(f"{name} ({number} of {len(self.packages)})"):
                self._build_one(go, name, part / name)
            print_progress(f"built {name} in {time.monotonic() - start_s:.0f} s")
        part.rename(home)

    def _build_one(self, go: str, name: str, out: Path) -> None:
        command = [go, "build", "-trimpath", "-buildvcs=false", "-ldflags", self.ldflags, "-o", str(out)]
        completed = subprocess.run(
            [*command, self.packages[name]],
            cwd=self.folder,
            env=go_toolchain.environment(),
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if completed.returncode:
            last = "\n".join(completed.stderr.strip().splitlines()[-15:])
            raise MissingError(f"building {name} failed:\n{last}\n", self.remedy)


@contextlib.contextmanager
def exclusive_lock(lock: Path, what: str) -> Iterator[None]:
    """Holds a file lock. If another process holds it, prints what that process is getting, and waits."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print_progress(f"another run is getting {what}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _shown(what: str) -> Iterator[None]:
    """Shows a progress line while the context is open, if stderr is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    columns = SpinnerColumn(), TextColumn("building {task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(what, total=None)
        yield


def print_progress(line: str) -> None:
    """Prints a progress message to stderr."""
    print(line, file=sys.stderr, flush=True)
