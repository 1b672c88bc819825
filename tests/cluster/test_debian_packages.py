"""Finding and fetching Debian packages, with fakes of apt-get and dpkg-deb that use no network."""

import hashlib
import platform
from pathlib import Path

import pytest

from tests.cluster import debian_packages
from tests.cluster.debian_packages import UnpackedPackages
from tests.cluster.go_toolchain import MissingError

APT_GET = """#!/bin/sh
echo "$@" >> {asked}
case "$*" in
  indextargets*) printf '%s' '{targets}' ;;
  *"-s install"*) printf 'Inst libexample (1.0)\nConf libexample (1.0)\nInst manual (1.0)\n' ;;
  *update) exit 100 ;;
  *download*)
    for option in "$@"; do
      case "$option" in
        Dir::Etc::SourceList=*) read -r line < "${{option#*=}}"; echo "$line" > {asked}.source ;;
      esac
    done
    {fails}while [ "$1" != download ]; do shift; done
    shift
    for package in "$@"; do echo > "${{package%%=*}}"_1.deb; done ;;
esac
"""

DPKG_DEB = """#!/bin/sh
/bin/mkdir -p "$3/usr/bin"
name=$(/usr/bin/basename "$2" _1.deb)
printf '#!/bin/sh\\n' > "$3/usr/bin/$name"
"""


class EmptyPackageMachine:
    """A machine with an empty cache and only the given programs on its PATH."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._bin, self._asked = folder / "bin", folder / "asked"
        self._bin.mkdir()
        monkeypatch.setenv("PATH", str(self._bin))
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))

    def install(self, name: str, text: str = "#!/bin/sh\n") -> Path:
        program = self._bin / name
        program.write_text(text)
        program.chmod(0o755)
        return program

    def install_apt(self, fails: str = "", targets: str = "") -> None:
        self.install("apt-get", APT_GET.format(asked=self._asked, fails=fails, targets=targets))
        self.install("dpkg-deb", DPKG_DEB)

    @property
    def asked(self) -> list[str]:
        """The commands of apt-get without their options."""
        lines = self._asked.read_text().splitlines() if self._asked.exists() else []
        return [line.partition("User=root ")[2] for line in lines]

    @property
    def source(self) -> str:
        """The list of sources that replaced the machine's in the latest download."""
        return Path(f"{self._asked}.source").read_text().strip()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EmptyPackageMachine:
    return EmptyPackageMachine(tmp_path, monkeypatch)


def test_packages_are_fetched_once_even_where_their_list_is_old(machine: EmptyPackageMachine) -> None:
    machine.install_apt()
    assert debian_packages.find() is None
    folder = debian_packages.get()
    assert folder == debian_packages.get() == debian_packages.find()
    assert [program.name for program in folder] == list(debian_packages.PACKAGES)
    assert machine.asked == ["update", "download prometheus prometheus-node-exporter"]


def test_the_container_runtime_is_fetched_once_and_completely(machine: EmptyPackageMachine) -> None:
    machine.install_apt()
    machine.install("containerd")
    root = debian_packages.CONTAINERS.get()
    assert root == debian_packages.CONTAINERS.get()
    assert all((root / "usr/bin" / name).exists() for name in debian_packages.CONTAINERS.packages)
    assert machine.asked == ["update", f"download {' '.join(debian_packages.CONTAINERS.packages)}"]


def test_dependencies_of_packages_are_fetched(machine: EmptyPackageMachine) -> None:
    machine.install_apt()
    group = debian_packages.MACHINE._replace(proof=f"usr/bin/{debian_packages.MACHINE.packages[0]}")
    assert (group.get() / "usr/bin/libexample").exists()
    *_, download = machine.asked
    assert download == f"download {' '.join(debian_packages.MACHINE.packages)} libexample"


@pytest.mark.parametrize("exporter", ["prometheus-node-exporter", "node_exporter"])
def test_programs_of_the_path_are_taken(machine: EmptyPackageMachine, exporter: str) -> None:
    machine.install_apt()
    assert (
        debian_packages.PrometheusPrograms(machine.install("prometheus"), machine.install(exporter))
        == debian_packages.get()
    )
    assert machine.asked == []


def test_one_alone_is_not_enough(machine: EmptyPackageMachine) -> None:
    machine.install_apt()
    machine.install("prometheus")
    assert debian_packages.get() == debian_packages.find()
    assert machine.asked


def test_a_download_that_fails_says_why_and_leaves_nothing(machine: EmptyPackageMachine) -> None:
    machine.install_apt(fails="echo 'E: no such host' >&2; exit 100; ")
    with pytest.raises(
        MissingError, match=r"apt-get could not get .*: E: no such host; install Debian's packages"
    ):
        debian_packages.get()
    assert debian_packages.find() is None


def test_without_apt_the_error_names_the_package_to_install(machine: EmptyPackageMachine) -> None:
    with pytest.raises(
        MissingError, match="no apt-get to fetch it; install Debian's packages prometheus and"
    ):
        debian_packages.get()


PIN = hashlib.sha256(b"\n").hexdigest()
"""The hash of each package file that the fake of apt-get writes."""
TARGETS = "mirror://one/debian-security 12-security main\nmirror://one/debian bookworm main\n"


def back_end(pin: str = PIN) -> UnpackedPackages:
    return debian_packages.PROMETHEUS_2_53._replace(pins={"prometheus": pin, "promtool": PIN})


@pytest.fixture
def bookworm(machine: EmptyPackageMachine, monkeypatch: pytest.MonkeyPatch) -> EmptyPackageMachine:
    release = {"ID": "debian", "VERSION_ID": "12", "VERSION_CODENAME": "bookworm"}
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: release)
    return machine


def test_package_of_another_suite_comes_from_the_mirror_of_the_machine(bookworm: EmptyPackageMachine) -> None:
    """The suite is given to apt by options, so the configuration of the machine stays unchanged."""
    bookworm.install_apt(targets=TARGETS)
    folder = back_end().get()
    assert (folder / "bin" / "prometheus").exists()
    assert bookworm.asked[-1] == "download prometheus=2.53.3+ds1-2 promtool=2.53.3+ds1-2"
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    assert bookworm.source == f"deb [signed-by={keyring}] mirror://one/debian trixie main"


def test_package_with_another_hash_is_not_unpacked(bookworm: EmptyPackageMachine) -> None:
    bookworm.install_apt(targets=TARGETS)
    with pytest.raises(MissingError, match=f"prometheus_1.deb has the SHA-256 {PIN}, expected 0123"):
        back_end("0123").get()
    assert back_end().find() is None


def test_suite_needs_a_mirror_of_debian(bookworm: EmptyPackageMachine) -> None:
    bookworm.install_apt(targets="mirror://one/other noble main\n")
    with pytest.raises(MissingError, match="apt has no mirror of Debian, where trixie would be"):
        back_end().get()
