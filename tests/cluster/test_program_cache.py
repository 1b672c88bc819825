"""Finding and building programs, with a fake go command."""

import os
import stat
import time
from pathlib import Path

import pytest

from tests.cluster import go_toolchain, program_cache, skip_conditions
from tests.cluster.go_toolchain import MissingError

GO = """#!/bin/sh
case "$1" in
  env) echo go{version} ;;
  build)
    while [ "$1" != -o ]; do shift; done
    echo "$2" >> {built}
    case "$2" in *{broken}*) echo "cannot compile" >&2; exit 1 ;; esac
    printf '#!/bin/sh\\n' > "$2"; /bin/chmod +x "$2" ;;
esac
"""


class EmptyBuildMachine:
    """A machine with an empty cache, and with a fake go command if one is given."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._built, self._bin = folder / "built", folder / "bin"
        self._bin.mkdir()
        monkeypatch.setenv("PATH", str(self._bin))
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
        monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)

    def install_go(self, version: str = "1.26.8", broken: str = "nothing") -> None:
        go = self._bin / "go"
        go.write_text(GO.format(version=version, broken=broken, built=self._built))
        go.chmod(go.stat().st_mode | stat.S_IXUSR)

    @property
    def built(self) -> list[str]:
        """The programs that the go command has built, in order."""
        return [Path(line).name for line in self._built.read_text().split()] if self._built.exists() else []


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EmptyBuildMachine:
    return EmptyBuildMachine(tmp_path, monkeypatch)


def test_programs_are_built_once(machine: EmptyBuildMachine) -> None:
    machine.install_go()
    assert program_cache.find() is None
    assert program_cache.folder() == program_cache.folder() == program_cache.find()
    assert machine.built == list(program_cache.PROGRAMS)


def test_a_build_that_breaks_off_is_not_taken_for_a_whole_one(machine: EmptyBuildMachine) -> None:
    machine.install_go(broken="kubectl")
    with pytest.raises(MissingError, match="building kubectl failed:\ncannot compile"):
        program_cache.folder()
    assert program_cache.find() is None
    machine.install_go()
    assert program_cache.folder() == program_cache.find()


@pytest.mark.parametrize("version", ["1.21.1", None], ids=["an old go", "no go"])
def test_without_go_the_error_names_the_package_to_install(
    machine: EmptyBuildMachine, version: str | None
) -> None:
    if version:
        machine.install_go(version)
    with pytest.raises(MissingError, match=r"install Go 1\.26\.0 or later .* put it on the PATH"):
        program_cache.folder()


def test_the_package_of_go_is_new_enough() -> None:
    packaged = tuple(int(n) for n in go_toolchain.PACKAGE.partition("==")[2].split("."))
    assert packaged >= go_toolchain.wanted(program_cache.MODULE)


def test_every_kubernetes_program_is_of_one_version() -> None:
    modules = [program_cache.KUBELET, *map(program_cache.kubeadm_module, (program_cache.DEFAULT, "1.36"))]
    for module in [*map(program_cache.control_plane, program_cache.RELEASES), *modules]:
        assert f"k8s.io/kubernetes {module.version}\n" in (module.folder / "go.mod").read_text()


def test_a_skipped_test_says_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TESTS_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"^not run: no Go; `make controlplane`$"):
        skip_conditions.not_run("no Go; `make controlplane`")


def test_a_test_that_cannot_run_fails_if_all_are_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTS_REQUIRE", "all")
    with pytest.raises(pytest.fail.Exception, match=r"^not run: no Go"):
        skip_conditions.not_run("no Go; `make controlplane`")


def test_old_builds_go_but_none_that_another_run_may_use(tmp_path: Path) -> None:
    ages_s = {"newest": 0, "new": 3600, "used": 2 * 3600, "old": 24 * 3600, "oldest": 48 * 3600}
    for name, age_s in ages_s.items():
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (time.time() - age_s,) * 2)
    go_toolchain.tidy(tmp_path.iterdir(), kept=2)
    assert {path.name for path in tmp_path.iterdir()} == {"newest", "new", "used"}
