"""Takes programs out of Debian's packages into the cache: Prometheus with its node exporter, what runs containers, what
operators bring images to nodes with, and a virtual machine.

The packages are unpacked, not installed: their services would start by themselves on the default ports, and an
installation needs root, makes users and changes the machine. No program needs more than the C library and what every
Debian has. The list of packages is fetched into the cache as well, so that the machine's own stays as it is.
"""

import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.cluster import go_builds, go_toolchain
from tests.cluster.go_builds import print_progress
from tests.cluster.go_toolchain import MissingError

PACKAGES = ("prometheus", "prometheus-node-exporter")


class UnpackedPackages(NamedTuple):
    """Packages that stay together in the cache; `keeps` is the folder of theirs that is kept, `proof` a file in it."""

    name: str
    packages: tuple[str, ...]
    keeps: str
    proof: str
    remedy: str
    needs: str = ""
    """A pattern of names: packages that these need and this machine lacks are fetched too."""

    def home(self) -> Path:
        """Named after the release, since a program of one may want a newer C library than another has."""
        try:
            release = platform.freedesktop_os_release()
        except OSError:
            release = {}
        system = f"{release.get('ID', 'none')}-{release.get('VERSION_ID', '')}".rstrip("-")
        return go_toolchain.cache() / self.name / f"{system}-{platform.machine()}"

    def find(self) -> Path | None:
        """The folder that is kept, where it was fetched before."""
        return self.home() if (self.home() / self.proof).exists() else None

    def get(self) -> Path:
        """The folder that is kept, fetched now where it must be: about ten seconds. Raises MissingError."""
        if not self.find():
            with go_builds.exclusive_lock(Path(f"{self.home()}.lock"), self.name):
                if not self.find():
                    self._fetch()
        return self.home()

    def _fetch(self) -> None:
        if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
            raise MissingError(f"there is no {self.packages[0]} and no apt-get to fetch it", self.remedy)
        print_progress(f"fetching Debian's {' and '.join(self.packages)}, once, into {self.home()}")
        with tempfile.TemporaryDirectory(dir=self.home().parent) as name:
            part = Path(name)
            for file in self._download(part):
                self._run(["dpkg-deb", "-x", str(file), str(part / "root")])
            shutil.rmtree(self.home(), ignore_errors=True)
            (part / "root" / self.keeps).rename(self.home())

    def _download(self, part: Path) -> list[Path]:
        """The package files; a list that cannot be brought up to date is no reason to stop before the download."""
        (part / "lists" / "partial").mkdir(parents=True)
        own = {"Dir::State::Lists": part / "lists", "Dir::Cache": part, "Acquire::http::Timeout": 30}
        own |= {"APT::Sandbox::User": "root"}  # its own user may not write into our cache
        options = [word for key, value in own.items() for word in ("-o", f"{key}={value}")]
        subprocess.run(["apt-get", "-qq", *options, "update"], capture_output=True, check=False)
        self._run(["apt-get", "-qq", *options, "download", *self._whole(options)], part)
        return sorted(part.glob("*.deb"))

    def _whole(self, options: list[str]) -> list[str]:
        """The packages, with those that they need."""
        if not self.needs:
            return list(self.packages)
        simulation = self._run(
            ["apt-get", *options, "-s", "install", "--no-install-recommends", *self.packages]
        )
        installed = re.findall(r"^Inst (\S+)", simulation, re.MULTILINE)
        return list(
            dict.fromkeys(
                [*self.packages, *(package for package in installed if re.match(self.needs, package))]
            )
        )

    def _run(self, command: list[str], folder: Path | None = None) -> str:
        completed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if completed.returncode:
            last = (completed.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise MissingError(
                f"{command[0]} could not get {' and '.join(self.packages)}: {last}", self.remedy
            )
        return completed.stdout


PROMETHEUS = UnpackedPackages(
    name="prometheus",
    packages=PACKAGES,
    keeps="usr/bin",
    proof="prometheus",
    remedy=f"install Debian's packages {' and '.join(PACKAGES)}, or put prometheus and node_exporter on the PATH",
)

CONTAINERS = UnpackedPackages(
    name="containers",
    packages=("containerd", "runc", "containernetworking-plugins", "busybox-static"),
    keeps=".",
    proof="usr/bin/containerd",
    remedy="run this on Debian or Ubuntu, with a mirror that apt-get can reach",
)

MACHINE = UnpackedPackages(
    name="machine",
    packages=("qemu-system-x86", "seabios", "linux-image-cloud-amd64", "busybox-static"),
    keeps=".",
    proof="usr/bin/qemu-system-x86_64",
    remedy="run this on Debian for amd64, with a mirror that apt-get can reach",
    needs="lib|qemu-system-|linux-image-",
)

IMAGE_TOOLS = UnpackedPackages(
    name="image-tools",
    packages=("skopeo", "podman", "conmon"),
    keeps="usr",
    proof="bin/podman",
    remedy="run this on Debian or Ubuntu, with a mirror that apt-get can reach",
    needs="lib|netavark",
)
"""Their `usr`, which is laid over that of the machine, for they name one another by absolute paths."""


class PrometheusPrograms(NamedTuple):
    """Where Prometheus and its node exporter are."""

    prometheus: Path
    node_exporter: Path


class ContainerPrograms(NamedTuple):
    """Where the programs are that run containers; `plugins` is the folder of CNI's."""

    containerd: Path
    ctr: Path
    runc: Path
    plugins: Path
    busybox: Path


def get() -> PrometheusPrograms:
    """Prometheus, of the PATH or fetched. Raises MissingError."""
    return find() or _prometheus(PROMETHEUS.get())


def find() -> PrometheusPrograms | None:
    """Prometheus of the PATH, or as fetched before; None where there is neither."""
    prometheus = shutil.which("prometheus")
    exporter = shutil.which("prometheus-node-exporter") or shutil.which("node_exporter")
    if prometheus and exporter:
        return PrometheusPrograms(Path(prometheus), Path(exporter))
    home = PROMETHEUS.find()
    return _prometheus(home) if home else None


def _prometheus(home: Path) -> PrometheusPrograms:
    return PrometheusPrograms(home / "prometheus", home / "prometheus-node-exporter")


def containers() -> ContainerPrograms:
    """What runs containers, always Debian's, so that every machine has the same. Raises MissingError."""
    root = CONTAINERS.get()
    folders = (root / "bin", root / "usr/bin")  # newer releases have only the second
    return ContainerPrograms(
        containerd=root / "usr/bin/containerd",
        ctr=root / "usr/bin/ctr",
        runc=root / "usr/sbin/runc",
        plugins=root / "usr/lib/cni",
        busybox=next(folder for folder in folders if (folder / "busybox").exists()) / "busybox",
    )
