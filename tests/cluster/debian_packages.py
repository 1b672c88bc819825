"""Unpacks programs from Debian packages into the cache: Prometheus with its node exporter, VictoriaMetrics, containerd
with runc and CNI plugins, skopeo and podman, a virtual machine, and emulators of other architectures.

The packages are unpacked, not installed: an installation starts services on the default ports, needs root, creates
users and changes the machine. The programs need only the C library and what every Debian has. The package list is
fetched into the cache as well, so that the machine's own list stays unchanged.
"""

import hashlib
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from tests.cluster import go_builds, go_toolchain
from tests.cluster.go_builds import print_progress
from tests.cluster.go_toolchain import MissingError

PACKAGES = ("prometheus", "prometheus-node-exporter")
NO_PINS: Final[Mapping[str, str]] = MappingProxyType({})
_KEYRING: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"
"""The keys of all releases of Debian, in the package debian-archive-keyring."""


class UnpackedPackages(NamedTuple):
    """Packages that share a folder in the cache; `keeps` is the unpacked folder that is kept, `proof` a file in it."""

    name: str
    packages: tuple[str, ...]
    keeps: str
    proof: str
    remedy: str
    needs: str = ""
    """A pattern of package names. Matching dependencies that this machine lacks are fetched too."""
    suite: str = ""
    """Another suite of Debian, from the mirror that apt uses on this machine. Empty: the suites of the machine."""
    pins: Mapping[str, str] = NO_PINS
    """The SHA-256 of package files in hex, by the names of packages. apt verifies the signatures of all files."""

    def home(self) -> Path:
        """The folder in the cache. Its name contains the release, since programs may need the C library of their
        release.
        """
        release = _release()
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
                self._verify(file)
                self._run(["dpkg-deb", "-x", str(file), str(part / "root")])
            shutil.rmtree(self.home(), ignore_errors=True)
            (part / "root" / self.keeps).rename(self.home())

    def _download(self, part: Path) -> list[Path]:
        """Downloads the package files. A failed update of the package list is ignored; the download decides."""
        (part / "lists" / "partial").mkdir(parents=True)
        own = {"Dir::State::Lists": part / "lists", "Dir::Cache": part, "Acquire::http::Timeout": 30}
        if self.suite:
            own |= self._suite_source(part)
        own |= {"APT::Sandbox::User": "root"}  # apt's sandbox user may not write into the cache
        options = [word for key, value in own.items() for word in ("-o", f"{key}={value}")]
        subprocess.run(["apt-get", "-qq", *options, "update"], capture_output=True, check=False)
        self._run(["apt-get", "-qq", *options, "download", *self._whole(options)], part)
        return sorted(part.glob("*.deb"))

    def _suite_source(self, part: Path) -> dict[str, Path]:
        """The options with which apt reads only this suite, from the mirror of the machine's own release."""
        pattern = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
        targets = self._run(["apt-get", "indextargets", "--format", pattern, "Created-By: Packages"])
        own = f" {_release().get('VERSION_CODENAME', '')} main"
        mirror = next((line.removesuffix(own) for line in targets.splitlines() if line.endswith(own)), None)
        if not mirror:
            raise MissingError(f"apt has no mirror of Debian, where {self.suite} would be", self.remedy)
        (part / "suite.list").write_text(f"deb [signed-by={_KEYRING}] {mirror} {self.suite} main\n")
        (part / "no-parts").mkdir()
        return {"Dir::Etc::SourceList": part / "suite.list", "Dir::Etc::SourceParts": part / "no-parts"}

    def _verify(self, file: Path) -> None:
        """Compares a package file with its pin. A file without a pin is a dependency that apt has verified."""
        pin = self.pins.get(file.name.partition("_")[0])
        actual = hashlib.sha256(file.read_bytes()).hexdigest() if pin else None
        if actual != pin:
            raise MissingError(f"{file.name} has the SHA-256 {actual}, expected {pin}", self.remedy)

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


def _release() -> Mapping[str, str]:
    """The fields of /etc/os-release; empty without such a file."""
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


PROMETHEUS = UnpackedPackages(
    name="prometheus",
    packages=PACKAGES,
    keeps="usr/bin",
    proof="prometheus",
    remedy=f"install Debian's packages {' and '.join(PACKAGES)}, or put prometheus and node_exporter on the PATH",
)

_OTHER_SUITE_REMEDY: Final = (
    "run this on Debian for amd64 with a mirror that apt-get can reach, and compare the versions and the hashes in"
    " tests/cluster/debian_packages.py with those of the suite"
)


def _metric_back_end(program: str, version: str, suite: str, pins: Mapping[str, str]) -> UnpackedPackages:
    """A pinned metric back end, with the packages that have pins."""
    return UnpackedPackages(
        name=f"{program}-{version.partition('+')[0]}",
        packages=tuple(f"{package}={version}" for package in pins),
        keeps="usr",
        proof=f"bin/{program}",
        remedy=_OTHER_SUITE_REMEDY,
        suite=suite,
        pins=pins,
    )


PROMETHEUS_2_53 = _metric_back_end(
    "prometheus",
    "2.53.3+ds1-2",
    "trixie",
    {
        "prometheus": "58c3e6a86c56cb3bfd71032fa48d65945d526441a212f5815dfe5ed9cb787ecc",
        "promtool": "ff27654eacc95abd846d344e91fe4ba3b4f0588a50d606ed1d2f09ad3408722f",
    },
)
PROMETHEUS_3_5 = _metric_back_end(
    "prometheus",
    "3.5.3+ds1-6",
    "testing",
    {
        "prometheus": "593bcced02d8082688ea034dfc543848ad145c5f793aae5aad756c4dbdfa98da",
        "promtool": "1fb8bad7b932e7a44bccb12517f0bd96d5d5d83f15d3a1c0e2aa705cbf93fe90",
    },
)
VICTORIA_METRICS_1_112 = _metric_back_end(
    "victoria-metrics",
    "1.112.0+ds1-2",
    "trixie",
    {"victoria-metrics": "1d3717f1a8ab5bf690271095dd286730f6fb0761cc8c09c0fc8f529c9838f346"},
)
VICTORIA_METRICS_1_145 = _metric_back_end(
    "victoria-metrics",
    "1.145.0+ds1-2",
    "testing",
    {"victoria-metrics": "c858b5c15b1c3a3872ec7520cddb2bb51fc48d4b61b6b88f05ac7304edb44557"},
)
"""VictoriaMetrics needs libzstd, which apt itself needs too."""

CONTAINERS = UnpackedPackages(
    name="containers",
    packages=("containerd", "runc", "containernetworking-plugins", "busybox-static"),
    keeps=".",
    proof="usr/bin/containerd",
    remedy="run this on Debian or Ubuntu, with a mirror that apt-get can reach",
)

MACHINE = UnpackedPackages(
    name="machine",
    packages=("qemu-system-x86", "seabios", "busybox-static"),
    keeps=".",
    proof="usr/bin/qemu-system-x86_64",
    remedy="run this on Debian for amd64, with a mirror that apt-get can reach",
    needs="lib|qemu-system-",
)

KERNEL = UnpackedPackages(
    name="kernel",
    packages=("linux-image-cloud-amd64",),
    keeps=".",
    proof="boot",
    remedy="run this on Debian for amd64, with a mirror that apt-get can reach",
    needs="linux-image-",
    suite="trixie",
)
"""Linux 6.12, whose cgroups have `cpuset.cpus.isolated` (since 6.7). A suite has its latest kernel only: no pin."""

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


class MachinePackages(NamedTuple):
    """The folders with a virtual machine and with its kernel."""

    emulator: Path
    kernel: Path


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


def machine() -> MachinePackages:
    """A virtual machine and its kernel. Raises MissingError."""
    return MachinePackages(MACHINE.get(), KERNEL.get())


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
