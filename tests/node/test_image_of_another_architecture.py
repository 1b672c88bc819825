"""The image of the architecture that this machine does not have, run by qemu's user emulation.

The processes run in a user namespace, where the kernel starts programs of the other architecture with qemu: binfmt_misc
has entries for each user namespace since Linux 6.7. The machine's own entries do not change.
"""

import json
import subprocess
import tarfile
from pathlib import Path

import pytest
from tools.image import image_assembly, image_constants, shared_library_check

import nodewise
from tests.cluster import debian_packages, image_archive, skip_conditions
from tests.cluster.conftest import get_or_skip

pytestmark = pytest.mark.cluster

ARCHITECTURE = next(name for name in image_constants.MACHINES if name != image_constants.architecture())
MACHINE = image_constants.machine(ARCHITECTURE)
ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
"""The field `e_machine` of ELF files."""
NAMESPACES = ("--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
REGISTER = "mount -t binfmt_misc none /proc/sys/fs/binfmt_misc && cat > /proc/sys/fs/binfmt_misc/register"
START = """\
cd "$1" && shift
mount -t proc none proc && mount --rbind /dev dev && mount -t tmpfs none tmp && exec chroot . "$@" < /dev/null
"""
EXAMPLE = "dist-packages/nodewise/examples/health-metric"
Run = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def archive(request: pytest.FixtureRequest) -> Path:
    return get_or_skip(request, lambda: image_archive.archive(ARCHITECTURE))


def read(archive: Path, name: str) -> dict:
    with tarfile.open(archive) as outer:
        return json.load(outer.extractfile(name))


@pytest.fixture(scope="module")
def root(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the image."""
    folder = tmp_path_factory.mktemp("root")
    with tarfile.open(archive) as outer:
        for name in json.load(outer.extractfile("manifest.json"))[0]["Layers"]:
            with tarfile.open(fileobj=outer.extractfile(name)) as layer:
                layer.extractall(folder, filter="tar")
    return folder


class Emulation:
    """Runs commands in a folder with the files of an image, as root of a user namespace."""

    def __init__(self, emulator: Path) -> None:
        self._emulator = emulator

    def run(self, root: Path, *command: str) -> Run:
        for name in ("proc", "dev", "tmp"):
            (root / name).mkdir(exist_ok=True)
        return subprocess.run(
            ["unshare", *NAMESPACES, "sh", "-c", f"{REGISTER} && {START}", "sh", root, *command],
            input=binfmt_entry(self._emulator),
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": image_constants.ENVIRONMENT["PATH"], "LANG": "C.UTF-8"},
        )


@pytest.fixture(scope="module")
def emulation(request: pytest.FixtureRequest, root: Path) -> Emulation:
    programs = get_or_skip(request, debian_packages.EMULATORS.get)
    emulation = Emulation(programs / f"qemu-{MACHINE}-static")
    if "binfmt_misc" in (reason := emulation.run(root, "/bin/bash", "-c", ":").stderr):
        skip_conditions.not_run(f"no emulation, which needs user namespaces of Linux 6.7: {reason.strip()}")
    return emulation


def binfmt_entry(emulator: Path) -> str:
    """The entry for executables of the other architecture; `F` opens the emulator now, outside of the image."""
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    magic = head + b"\x02\0" + bytes([ELF_MACHINES[MACHINE], 0])
    # the byte of the ABI may have any value, and the type may be 2 or 3: a program or one at any address
    mask = b"\xff" * 7 + b"\0" + b"\xff" * 8 + b"\xfe\xff\xff\xff"
    words = ["".join(f"\\x{byte:02x}" for byte in value) for value in (magic, mask)]
    return f":nodewise:M::{words[0]}:{words[1]}:{emulator}:F"


def output(done: Run) -> str:
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_the_archive_names_the_architecture(archive: Path) -> None:
    [entry] = read(archive, "index.json")["manifests"]
    assert entry["platform"] == {"architecture": ARCHITECTURE, "os": "linux"}
    [older] = read(archive, "manifest.json")
    assert read(archive, older["Config"])["architecture"] == ARCHITECTURE


def test_all_programs_and_libraries_have_the_architecture(root: Path) -> None:
    files = [path for path in root.rglob("*") if shared_library_check.is_elf(path)]
    machines = {int.from_bytes(path.read_bytes()[18:20], "little") for path in files}
    assert (machines, len(files) > 100) == ({ELF_MACHINES[MACHINE]}, True)
    own = image_constants.machine(image_constants.architecture())
    assert [path.name for path in root.rglob(f"*{own}*")] == []


def test_the_sbom_names_the_versions_of_the_architecture(archive: Path) -> None:
    components = json.loads(image_assembly.sbom_path(archive).read_text())["components"]
    packages = {component["name"]: component["version"] for component in components}
    assert {
        component["purl"].partition("arch=")[2].partition("&")[0]
        for component in components
        if component.get("purl", "").startswith("pkg:deb/")
    } == {ARCHITECTURE, "all"}
    [program] = [component for component in components if component["name"] == "cmk"]
    inside = {component["name"]: component.get("version") for component in program["components"]}
    assert inside["libssl.so.3"] == packages["libssl3" if "libssl3" in packages else "libssl3t64"]
    assert inside["python"] == packages["python3"].partition("-")[0]


IMPORTS = """
import importlib, os, pkgutil, platform, ssl, sys
import nodewise, numpy, scipy.special, grpc, google.protobuf, cryptography, uvloop, httptools, yaml
import bz2, ctypes, lzma, readline, sqlite3, zlib
for found in pkgutil.walk_packages(nodewise.__path__, "nodewise."):
    if found.name.rpartition(".")[2] != "__main__":
        importlib.import_module(found.name)
uncompiled = [name for name, module in sys.modules.items()
              if (getattr(module, "__cached__", None) and not os.path.exists(module.__cached__))]
print(platform.machine(), ssl.create_default_context().cert_store_stats()["x509_ca"] > 100, uncompiled)
"""


def test_all_its_modules_are_there_and_compiled(emulation: Emulation, root: Path) -> None:
    done = emulation.run(root, "/usr/bin/python3", "-W", "ignore", "-c", IMPORTS)
    assert output(done).strip() == f"{MACHINE} True []"


def test_its_commands_run(emulation: Emulation, root: Path) -> None:
    version = output(emulation.run(root, "/usr/local/bin/nodewise", "--version"))
    assert version.strip() == f"nodewise {nodewise.__version__}"
    line = f"nodewise policy lint /usr/local/lib/python3*/{EXAMPLE}"
    assert "no problem" in output(emulation.run(root, "/bin/bash", "-c", line))


@pytest.fixture
def host(emulation: Emulation, root: Path, tmp_path: Path) -> Path:
    """A folder with nothing but the program that the image installs."""
    install = ("/usr/local/bin/nodewise", "cpu", "install", "--install-dir=/opt/bin")
    assert "/opt/bin/cmk: installed" in output(emulation.run(root, *install))
    (tmp_path / "opt").mkdir()
    (root / "opt/bin").rename(tmp_path / "opt/bin")
    return tmp_path


def test_the_program_that_it_installs_on_hosts_runs(emulation: Emulation, host: Path) -> None:
    version = output(emulation.run(host, "/opt/bin/cmk", "--version"))
    assert version.strip().endswith(nodewise.__version__)
    for name in ("isolate", "node-report", "reconcile"):
        assert f"cmk {name}" in output(emulation.run(host, "/opt/bin/cmk", name, "--help"))


@pytest.mark.long
def test_the_demo_runs(emulation: Emulation, root: Path) -> None:
    assert "\nnodewise decide " in output(emulation.run(root, "/usr/local/bin/nodewise", "demo"))
