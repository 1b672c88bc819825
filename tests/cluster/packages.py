"""Finds Prometheus and its node exporter on the PATH, or takes them out of Debian's packages into the cache.

The packages are unpacked, not installed: their services would start by themselves on the default ports, and an
installation needs root, makes users and changes the machine. Neither program needs more than the C library. The list of
packages is fetched into the cache as well, so that the machine's own stays as it is.
"""

import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.cluster import building, toolchain
from tests.cluster.building import say
from tests.cluster.toolchain import MissingError

PACKAGES = ("prometheus", "prometheus-node-exporter")

REMEDY = (
    f"install Debian's packages {' and '.join(PACKAGES)}, or put prometheus and node_exporter on the PATH"
)


class Programs(NamedTuple):
    """Where the two programs are."""

    prometheus: Path
    node_exporter: Path


def get() -> Programs:
    """The programs, fetched now where the machine has none: about ten seconds. Raises MissingError."""
    if found := find():
        return found
    with building.alone(Path(f"{_home()}.lock"), "Prometheus"):
        if not _unpacked().prometheus.exists():
            _fetch()
    return _unpacked()


def find() -> Programs | None:
    """The programs of the PATH, or those fetched before; None where there are neither."""
    prometheus = shutil.which("prometheus")
    exporter = shutil.which("prometheus-node-exporter") or shutil.which("node_exporter")
    if prometheus and exporter:
        return Programs(Path(prometheus), Path(exporter))
    return _unpacked() if _unpacked().prometheus.exists() else None


def _home() -> Path:
    """Named after the release, since a program of one may want a newer C library than another has."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    system = f"{release.get('ID', 'none')}-{release.get('VERSION_ID', '')}".rstrip("-")
    return toolchain.cache() / "prometheus" / f"{system}-{platform.machine()}"


def _unpacked() -> Programs:
    return Programs(_home() / "prometheus", _home() / "prometheus-node-exporter")


def _fetch() -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise MissingError("there is no prometheus on the PATH and no apt-get to fetch it", REMEDY)
    say(f"fetching Debian's {' and '.join(PACKAGES)}, once, into {_home()}")
    with tempfile.TemporaryDirectory(dir=_home().parent) as name:
        part = Path(name)
        for file in _download(part):
            _run(["dpkg-deb", "-x", str(file), str(part / "root")])
        shutil.rmtree(_home(), ignore_errors=True)
        (part / "root" / "usr" / "bin").rename(_home())


def _download(part: Path) -> list[Path]:
    """The package files; a list that cannot be brought up to date is no reason to stop before the download."""
    (part / "lists" / "partial").mkdir(parents=True)
    own = {"Dir::State::Lists": part / "lists", "Dir::Cache": part, "Acquire::http::Timeout": 30}
    own |= {"APT::Sandbox::User": "root"}  # its own user may not write into our cache
    options = [word for key, value in own.items() for word in ("-o", f"{key}={value}")]
    subprocess.run(["apt-get", "-qq", *options, "update"], capture_output=True, check=False)
    _run(["apt-get", "-qq", *options, "download", *PACKAGES], part)
    return sorted(part.glob("*.deb"))


def _run(command: list[str], folder: Path | None = None) -> None:
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if said.returncode:
        last = (said.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise MissingError(f"{command[0]} could not get {' and '.join(PACKAGES)}: {last}", REMEDY)
