"""The installed program in minimal images: no Python, no C library, no writable folder."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nodewise_cpu import installation
from nodewise_cpu.cli import COMMANDS
from tests.cluster import debian_packages, skip_conditions
from tests.node import containerd_runtime, host_program_installation

BIN = Path(sys.executable).parent
ELSEWHERE = ("agent", "cluster-init", "webhook")
"""Commands that run from nodewise's image only."""
ALIEN = 12345
"""A user id that the machine does not know."""

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    if why := containerd_runtime.lacking():
        skip_conditions.not_run(f"no file systems of their own: {why}")


class ReadOnlyRoot:
    """A root file system that is mounted read-only around each command."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "opt/bin").mkdir(parents=True)
        self.mounts: list[str] = []

    def mount(self, source: Path, name: str, options: str = "rbind") -> None:
        (self.root / name).mkdir(parents=True, exist_ok=True)
        self.mounts.append(f"mount -o {options} {source} {self.root / name}")

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command as an unknown user."""
        steps = [
            f"mount --bind {self.root} {self.root}",
            f"mount -o remount,bind,ro {self.root}",
            *self.mounts,
        ]
        steps.append(f'exec chroot --userspec={ALIEN}:{ALIEN} {self.root} "$@"')
        words = ["unshare", "--mount", "--propagation=private", "sh", "-e", "-c", "\n".join(steps), "sh"]
        return subprocess.run(
            [*words, *command],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **environment},
        )


@pytest.fixture
def empty(tmp_path: Path, program: Path) -> ReadOnlyRoot:
    """An image with nothing but the mount."""
    image = ReadOnlyRoot(tmp_path / "image")
    installation.install(program, tmp_path / "host", host_program_installation.MOUNT, None)
    image.mount(tmp_path / "host", "opt/bin", "bind,ro")
    return image


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_225_in_an_empty_image_the_program_prints_the_same(empty: ReadOnlyRoot, option: str) -> None:
    completed = empty.run("/opt/bin/cmk", option)
    assert (completed.returncode, completed.stderr) == (0, "")
    source = subprocess.run([BIN / "cmk", option], capture_output=True, text=True, check=True)
    assert completed.stdout == source.stdout
    assert sorted(path.name for path in empty.root.iterdir()) == ["opt"]


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ELSEWHERE])
def test_every_command_starts_there(empty: ReadOnlyRoot, name: str) -> None:
    completed = empty.run("/opt/bin/cmk", name, "--help")
    assert (completed.returncode, completed.stderr) == (0, "")
    assert f"cmk {name}" in completed.stdout


@pytest.mark.parametrize("name", ELSEWHERE)
def test_missing_command_names_the_image_that_has_it(empty: ReadOnlyRoot, name: str) -> None:
    completed = empty.run("/opt/bin/cmk", name, "--help")
    assert (completed.returncode, completed.stdout) == (1, "")
    assert f"{name} is not part of the program that is installed on hosts" in completed.stderr


@pytest.fixture
def busybox(tmp_path: Path, empty: ReadOnlyRoot, request: pytest.FixtureRequest) -> ReadOnlyRoot:
    """An image with busybox, the host's processes, and a state of two pools."""
    program = debian_packages.containers().busybox
    (empty.root / "bin").mkdir()
    shutil.copy(program, empty.root / "bin/busybox")
    state = tmp_path / "state"
    words = ["init", f"--conf-dir={state}", "--num-exclusive-cores=1", "--num-shared-cores=0"]
    subprocess.run([BIN / "cmk", *words], capture_output=True, check=True)
    for path in (state, *state.rglob("*")):
        os.chown(path, ALIEN, ALIEN)
    empty.mount(Path("/proc"), "proc")
    empty.mount(state, "state")
    return empty


ISOLATE = ("/opt/bin/cmk", "isolate", "--pool=exclusive", "--conf-dir=/state", "--proc-fs=/proc")


def test_a_command_of_a_busybox_image_runs_on_its_cpus(busybox: ReadOnlyRoot) -> None:
    completed = busybox.run(*ISOLATE, "/bin/busybox", "--", "grep", "Cpus_allowed_list", "/proc/self/status")
    assert (completed.returncode, completed.stderr) == (0, "")
    description = busybox.run("/opt/bin/cmk", "describe", "--conf-dir=/state")
    assert f'"{completed.stdout.split()[1]}"' in description.stdout.replace("-", ",")
    assert '"tasks": []' in description.stdout


@pytest.mark.parametrize("environment", [{}, {"LD_LIBRARY_PATH": "/usr/lib/theirs"}])
def test_a_command_finds_its_own_libraries(busybox: ReadOnlyRoot, environment: dict[str, str]) -> None:
    completed = busybox.run(*ISOLATE, "/bin/busybox", "env", **environment)
    assert (completed.returncode, completed.stderr) == (0, "")
    seen = dict(line.split("=", 1) for line in completed.stdout.splitlines())
    assert {name: value for name, value in seen.items() if name.startswith("LD_")} == environment
    assert not [name for name in seen if name.startswith(("_PYI", "_MEI", "PYTHON"))]
    assert seen["CMK_CPUS_ASSIGNED"]


def test_its_exit_code_is_the_commands(busybox: ReadOnlyRoot) -> None:
    assert busybox.run(*ISOLATE, "/bin/busybox", "--", "sh", "-c", "exit 7").returncode == 7
    assert busybox.run(*ISOLATE, "/bin/none").returncode == 127


def other(program: Path, folder: Path) -> Path:
    """The same program as another version."""
    shutil.copytree(program, folder, symlinks=True)
    (folder / "lib" / "another").write_text("version")
    return folder


def test_a_start_during_the_replacement_runs_either_version(
    empty: ReadOnlyRoot, program: Path, tmp_path: Path
) -> None:
    second = other(program, tmp_path / "second")
    codes: list[int] = []
    done = threading.Event()

    def start() -> None:
        while not done.is_set():
            codes.append(empty.run("/opt/bin/cmk", "isolate", "--version").returncode)

    starting = threading.Thread(target=start)
    starting.start()
    try:
        for folder in (second, program, second, program):
            installation.install(folder, tmp_path / "host", host_program_installation.MOUNT, Path("/proc"))
    finally:
        done.set()
        starting.join()
    assert codes
    assert set(codes) == {0}
    assert len(list((tmp_path / "host").glob(".cmk-*"))) <= 2


FULL = """
mount -t tmpfs -o mode=755,size={size_bytes} none {host}
{cmk} install --from {ready} --install-dir {host} --mount-path {host}
{host}/cmk --version
{cmk} install --from {second} --install-dir {host} --mount-path {host} && exit 9
{host}/cmk --version
ls -A {host}
"""


def test_a_full_disk_leaves_the_program_that_is_there(program: Path, tmp_path: Path) -> None:
    second, host = other(program, tmp_path / "second"), tmp_path / "disk"
    host.mkdir()
    size_bytes = 3 * sum(path.stat().st_size for path in program.rglob("*") if path.is_file()) // 2
    script = FULL.format(size_bytes=size_bytes, host=host, cmk=BIN / "cmk", ready=program, second=second)
    command = ["unshare", "--mount", "--propagation=private", "sh", "-e", "-c", script]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert completed.returncode == 0, completed.stderr
    assert "No space left on device (what was there is untouched)" in completed.stderr
    first, version, again, *names = completed.stdout.splitlines()
    assert first.startswith(f"{host}/cmk: installed")
    assert version == again
    assert len(names) == 3, "the lock, the version, the link"
