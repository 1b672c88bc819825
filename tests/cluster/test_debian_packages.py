"""Finding and fetching Debian packages, with fakes of apt-get and dpkg-deb that use no network."""

from pathlib import Path

import pytest

from tests.cluster import debian_packages
from tests.cluster.go_toolchain import MissingError

APT_GET = """#!/bin/sh
echo "$@" >> {asked}
case "$*" in
  *"-s install"*) printf 'Inst libexample (1.0)\nConf libexample (1.0)\nInst manual (1.0)\n' ;;
  *update) exit 100 ;;
  *download*)
    {fails}while [ "$1" != download ]; do shift; done
    shift
    for one in "$@"; do echo > "$one"_1.deb; done ;;
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

    def install_apt(self, fails: str = "") -> None:
        self.install("apt-get", APT_GET.format(asked=self._asked, fails=fails))
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


def test_what_runs_containers_is_fetched_once_and_whole(machine: EmptyPackageMachine) -> None:
    machine.install_apt()
    machine.install("containerd")
    root = debian_packages.CONTAINERS.get()
    assert root == debian_packages.CONTAINERS.get()
    assert all((root / "usr/bin" / name).exists() for name in debian_packages.CONTAINERS.packages)
    assert machine.asked == ["update", f"download {' '.join(debian_packages.CONTAINERS.packages)}"]


def test_what_packages_need_is_fetched_with_them(machine: EmptyPackageMachine) -> None:
    machine.install_apt()
    for name in (*debian_packages.MACHINE.packages, "libexample"):
        machine.install(name)
    with pytest.raises(StopIteration):
        next((debian_packages.MACHINE.get() / "boot").glob("vmlinuz-*"))
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


def test_without_apt_the_error_says_what_to_install(machine: EmptyPackageMachine) -> None:
    with pytest.raises(
        MissingError, match="no apt-get to fetch it; install Debian's packages prometheus and"
    ):
        debian_packages.get()
