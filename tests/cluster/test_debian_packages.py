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
  *update) exit 100 ;;
  *download*)
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


def test_a_download_that_fails_says_why_and_leaves_nothing(machine: EmptyPackageMachine) -> None:
    machine.install_apt(fails="echo 'E: no such host' >&2; exit 100; ")
    with pytest.raises(
        MissingError, match=r"apt-get could not get .*: E: no such host; install Debian's packages"
    ):
        debian_packages.get()
    assert debian_packages.find() is None


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


def test_package_with_another_hash_is_not_unpacked(bookworm: EmptyPackageMachine) -> None:
    bookworm.install_apt(targets=TARGETS)
    with pytest.raises(MissingError, match=f"prometheus_1.deb has the SHA-256 {PIN}, expected 0123"):
        back_end("0123").get()
    assert back_end().find() is None
