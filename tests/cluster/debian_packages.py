"""Unpacks programs from Debian packages into the cache: Prometheus with its node exporter, containerd with runc and CNI
plugins, skopeo and podman, a virtual machine, and emulators of other architectures.

The packages are unpacked, not installed: an installation starts services on the default ports, needs root, creates
users and changes the machine. The programs need only the C library and what every Debian has. The package list is
fetched into the cache as well, so that the machine's own list stays unchanged.
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
    """Packages that share a folder in the cache; `keeps` is the unpacked folder that is kept, `proof` a file in it."""

    name: str
    packages: tuple[str, ...]
    keeps: str
    proof: str
    remedy: str
    needs: str = ""
    """A pattern of package names. Matching dependencies that this machine lacks are fetched too."""

    def home(self) -> Path:
        """The folder in the cache. Its name contains the release, since programs may need the C library of their
        release.
        """
        try:
            release = platform.freedesktop_os_release()
        except OSError:
            release = {}
        system = f"{release.get('ID', 'none')}-{release.get('VERSION_ID', '')}".rstrip("-")
        return go_toolchain.cache() / self.name / f"{system}-{platform.machine()}"

    def find(self) -> Path | None:
        """The kept folder if it was fetched before, else None."""
        return self.home() if (self.home() / self.proof).exists() else None

    def get(self) -> Path:
        """The kept folder, fetched if necessary, which takes about ten seconds. Raises MissingError."""
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
        """Downloads the package files. A failed update of the package list is ignored; the download decides."""
        (part / "lists" / "partial").mkdir(parents=True)
        own = {"Dir::State::Lists": part / "lists", "Dir::Cache": part, "Acquire::http::Timeout": 30}
        own |= {"APT::Sandbox::User": "root"}  # apt's sandbox user may not write into the cache
        options = [word for key, value in own.items() for word in ("-o", f"{key}={value}")]
        subprocess.run(["apt-get", "-qq", *options, "update"], capture_output=True, check=False)
        self._run(["apt-get", "-qq", *options, "download", *self._whole(options)], part)
        return sorted(part.glob("*.deb"))

    def _whole(self, options: list[str]) -> list[str]:
        """The packages and their dependencies that match `needs`."""
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
"""The folder `usr` is mounted over that of the machine, because these programs call each other by absolute paths."""

EMULATORS = UnpackedPackages(
    name="emulators",
    packages=("qemu-user-static",),
    keeps="usr/bin",
    proof="qemu-aarch64-static",
    remedy="run this on Debian or Ubuntu, with a mirror that apt-get can reach",
)
"""Programs that run those of other architectures; statically linked, so they need nothing of an image."""


class PrometheusPrograms(NamedTuple):
    """The paths of Prometheus and its node exporter."""

    prometheus: Path
    node_exporter: Path


class ContainerPrograms(NamedTuple):
    """The paths of the programs that run containers; `plugins` is the folder of the CNI plugins."""

    containerd: Path
    ctr: Path
    runc: Path
    plugins: Path
    busybox: Path


def get() -> PrometheusPrograms:
    """Prometheus from the PATH or from the cache, fetched if necessary. Raises MissingError."""
    return find() or _prometheus(PROMETHEUS.get())


def find() -> PrometheusPrograms | None:
    """Prometheus from the PATH or from the cache; None if there is neither."""
    prometheus = shutil.which("prometheus")
    exporter = shutil.which("prometheus-node-exporter") or shutil.which("node_exporter")
    if prometheus and exporter:
        return PrometheusPrograms(Path(prometheus), Path(exporter))
    home = PROMETHEUS.find()
    return _prometheus(home) if home else None


def _prometheus(home: Path) -> PrometheusPrograms:
    return PrometheusPrograms(home / "prometheus", home / "prometheus-node-exporter")


def containers() -> ContainerPrograms:
    """The programs that run containers, always from Debian, so that all machines use the same. Raises MissingError."""
    root = CONTAINERS.get()
    folders = (root / "bin", root / "usr/bin")  # newer releases have only /usr/bin
    return ContainerPrograms(
        containerd=root / "usr/bin/containerd",
        ctr=root / "usr/bin/ctr",
        runc=root / "usr/sbin/runc",
        plugins=root / "usr/lib/cni",
        busybox=next(folder for folder in folders if (folder / "busybox").exists()) / "busybox",
    )
