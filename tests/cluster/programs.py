"""Finds the programs of the control plane, or builds them once into a cache outside the tree.

`python -m tests.cluster.programs` prints the folder that holds them. `KUBEBUILDER_ASSETS`, the convention of
envtest, names a folder that has them already.
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
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tests.cluster import toolchain
from tests.cluster.toolchain import MissingError

VERSION = "v1.36.3"
MODULE = Path(__file__).parent / "bin"
PROGRAMS = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
}
"""Program to Go package, in the order they are built: later ones share most of what earlier ones compiled."""

LDFLAGS = f"-s -w -X k8s.io/component-base/version.gitVersion={VERSION}"
"""Without the version an API server calls itself v0.0.0-master, which clients cannot parse."""

SET_UP = "make controlplane"
"""The command that a person runs to have the programs."""


def folder() -> Path:
    """The folder that holds every program of PROGRAMS; builds them where it must. Raises MissingError."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and (lacking := lacks(Path(assets))):
        _say(f"KUBEBUILDER_ASSETS={assets} lacks {', '.join(lacking)}; taking our own")
    return find() or build()


def find() -> Path | None:
    """The folder that holds every program, or None where they have yet to be built."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    places = [Path(assets)] if assets else []
    return next((place for place in [*places, _home()] if not lacks(place)), None)


def lacks(place: Path) -> list[str]:
    """The programs that a folder does not hold, executable."""
    return [name for name in PROGRAMS if not os.access(place / name, os.X_OK)]


def key() -> str:
    """What a built folder is named after: another version, dependency or machine is another folder."""
    text = f"{VERSION} {LDFLAGS} {platform.system()} {platform.machine()} {sorted(PROGRAMS)}".encode()
    pinned = [(MODULE / name).read_bytes() for name in ("go.mod", "go.sum")]
    return hashlib.sha256(b"\0".join([text, *pinned])).hexdigest()[:16]


def build() -> Path:
    """Builds every program, about five minutes on two cores, and returns their folder. Raises MissingError.

    They appear in one step, by a rename, so that an interrupted build is never taken for a whole one; of two
    runs at the same time the second waits for the first.
    """
    home = _home()
    home.parent.mkdir(parents=True, exist_ok=True)
    with _alone(home.with_suffix(".lock")):
        if lacks(home):
            _build_into(home)
    return home


def _home() -> Path:
    return toolchain.cache() / "controlplane" / key()


def _build_into(home: Path) -> None:
    go = toolchain.find(MODULE)
    part = home.with_suffix(".part")
    for stale in (part, home):
        shutil.rmtree(stale, ignore_errors=True)
    part.mkdir()
    _say(f"building Kubernetes {VERSION} and etcd with {go}, once, into {home}")
    for number, name in enumerate(PROGRAMS, start=1):
        start_s = time.monotonic()
        with _shown(f"{name} ({number} of {len(PROGRAMS)})"):
            _build_one(go, name, part / name)
        _say(f"built {name} in {time.monotonic() - start_s:.0f} s")
    part.rename(home)


def _build_one(go: str, name: str, out: Path) -> None:
    command = [
        go,
        "build",
        "-trimpath",
        "-buildvcs=false",
        "-ldflags",
        LDFLAGS,
        "-o",
        str(out),
        PROGRAMS[name],
    ]
    said = subprocess.run(
        command, cwd=MODULE, env=toolchain.environment(), stderr=subprocess.PIPE, text=True, check=False
    )
    if said.returncode:
        last = "\n".join(said.stderr.strip().splitlines()[-15:])
        raise MissingError(
            f"building {name} failed:\n{last}\n",
            f"mend that, or have KUBEBUILDER_ASSETS name a folder with {', '.join(PROGRAMS)}",
        )


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another run is building the control-plane programs; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _shown(what: str) -> Iterator[None]:
    """On a terminal, a line that moves while `what` is under way; elsewhere nothing."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    columns = SpinnerColumn(), TextColumn("building {task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(what, total=None)
        yield


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Prints the folder on stdout, progress on stderr."""
    try:
        print(folder())
    except MissingError as missing:
        _say(f"not run: {missing}")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
