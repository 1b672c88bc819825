"""The image in a real containerd: as its own user on a read-only root, and as root with a host's folders."""

import hashlib
import io
import itertools
import json
import platform
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tools.image import debian_packages, image_assembly, image_constants, python_wheels, scheduler_templates
from tools.image.__main__ import identity
from tools.image.image_assembly import ImageInputs

import nodewise
from nodewise.cli.main import COMMANDS
from nodewise_cpu.cli import COMMANDS as CPU_COMMANDS
from nodewise_cpu.cluster import api_server, node_setup_objects
from nodewise_cpu.cluster.node_setup_objects import SetupOptions
from tests.cluster import image_archive
from tests.cluster.conftest import get_or_skip
from tests.cluster.debian_packages import ContainerPrograms
from tests.cluster.extender_process import NODEWISE
from tests.conformance.configure import control_plane_hosts
from tests.node import containerd_runtime, host_program_installation
from tests.node.containerd_runtime import Containerd

pytestmark = pytest.mark.cluster

KUBERNETES = "/etc/kubernetes"
OF_ROOT = "docker.io/library/nodewise:of-root"
UNCHECKED_HASH = (1).to_bytes(4, "little")
"""Flags of a compiled module, PEP 552: it bears its source's hash and no time, and is not compared with it."""
NO_MOUNTS: Mapping[str, str] = {}
Run = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def archive(request: pytest.FixtureRequest) -> Path:
    return get_or_skip(request, image_archive.archive)


@pytest.fixture(scope="module")
def containerd(
    container_programs: ContainerPrograms, archive: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Containerd]:
    with containerd_runtime.running(container_programs, tmp_path_factory.mktemp("containerd")) as running:
        running.load(archive)
        of_root = tmp_path_factory.mktemp("root") / "image.tar"
        with_roots_user(archive, of_root)
        running.load(of_root)
        yield running


def with_roots_user(archive: Path, file: Path) -> None:
    """What `--user 0` of docker and others makes of the image, for `ctr` has no such flag everywhere: another image, of
    the layers that were loaded before.
    """
    with tarfile.open(archive) as outer:
        read = lambda name: json.load(outer.extractfile(name))  # noqa: E731
        index = read("index.json")
        manifest = read(blob(index["manifests"][0]["digest"]))
        config = read(blob(manifest["config"]["digest"]))
    files = {"oci-layout": json.dumps({"imageLayoutVersion": "1.0.0"}).encode()}

    def put(descriptor: dict, value: dict) -> None:
        data = json.dumps(value).encode()
        descriptor |= {"digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}
        files[blob(descriptor["digest"])] = data

    config["config"]["User"] = "0:0"
    put(manifest["config"], config)
    put(index["manifests"][0], manifest)
    index["manifests"][0]["annotations"] = {"io.containerd.image.name": OF_ROOT}
    files["index.json"] = json.dumps(index).encode()
    with tarfile.open(file, "w") as outer:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            outer.addfile(entry, io.BytesIO(data))


def blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


class ImageUnderTest:
    """The image; each command runs in a new container."""

    def __init__(self, containerd: Containerd) -> None:
        self._containerd = containerd
        self._numbers = itertools.count()

    def run(self, *command: str, is_root: bool = False, mounts: Mapping[str, str] = NO_MOUNTS) -> Run:
        """Run a command on a read-only root. `mounts` are folders of the host, by path in the container."""
        options = ["--rm", "--read-only"]
        for inside, outside in mounts.items():
            options += ["--mount", f"type=bind,src={outside},dst={inside},options=rbind:rw"]
        name = f"image-{next(self._numbers)}"
        reference = OF_ROOT if is_root else image_archive.REFERENCE
        return self._containerd.ctr("run", *options, reference, name, *command)


@pytest.fixture(scope="module")
def image(containerd: Containerd) -> ImageUnderTest:
    return ImageUnderTest(containerd)


def output(done: Run) -> str:
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


# What is in it


def layers(archive: Path) -> Iterator[tarfile.TarInfo]:
    with tarfile.open(archive) as outer:
        (about,) = json.load(outer.extractfile("manifest.json"))
        for name in about["Layers"]:
            with tarfile.open(fileobj=outer.extractfile(name)) as layer:
                yield from layer.getmembers()


def contents_of(archive: Path) -> Iterator[tuple[str, bytes]]:
    """The names and contents of its files."""
    with tarfile.open(archive) as outer:
        (about,) = json.load(outer.extractfile("manifest.json"))
        for name in about["Layers"]:
            with tarfile.open(fileobj=outer.extractfile(name)) as layer:
                for member in layer:
                    if member.isreg():
                        yield member.name, layer.extractfile(member).read()


def test_the_image_contains_no_build_tools(archive: Path) -> None:
    members = list(layers(archive))
    names = {member.name for member in members}
    left = (
        "var/lib/apt",
        "var/cache/apt",
        "root/.bash_history",
        "usr/bin/apt",
        "usr/bin/dpkg",
        "usr/share/man",
    )
    assert names.isdisjoint({*left, "usr/share/locale", "usr/share/info"})
    documents = [name for name in names if name.startswith("usr/share/doc/") and name.count("/") > 3]
    assert [name for name in documents if not name.endswith("/copyright")] == []
    assert [name for name in names if "direct_url.json" in name] == []
    of_others = [
        name for name in names if "/dist-packages/" in name and "/dist-packages/nodewise/" not in name
    ]
    assert [name for name in of_others if "/tests/" in name] == []
    assert {(member.uid, member.gid, member.mtime) for member in members} == {(0, 0, image_constants.EPOCH_S)}
    assert [member.name for member in members if member.mode & 0o6000] == []


def test_the_image_is_small_enough(archive: Path) -> None:
    assert archive.stat().st_size < image_constants.LARGEST_BYTES


def test_the_same_inputs_make_the_same_image(archive: Path, tmp_path: Path) -> None:
    """But for Debian's and the wheels' layers, which are taken from the cache: see the test of layers."""
    image_cache, cache = archive.parents[1], tmp_path / "cache"
    (cache / "layers").mkdir(parents=True)
    home = image_assembly.debian_home(image_cache, image_constants.architecture())
    (cache / home.name).symlink_to(home)
    with tarfile.open(archive) as outer:
        (about,) = json.load(outer.extractfile("manifest.json"))
    cached = {f"sha256:{Path(name).name}" for name in about["Layers"][:2]}
    for entry in (image_cache / "layers").glob("*/layer.json"):
        if json.loads(entry.read_text())[0] in cached:
            (cache / "layers" / entry.parent.name).symlink_to(entry.parent)
    assert len(list((cache / "layers").iterdir())) == len(cached)
    inputs = ImageInputs(cache, host_program_installation.ready(), fresh=False)
    again = tmp_path / "again.oci.tar"
    image_assembly.make(again, inputs, identity())
    assert again.read_bytes() == archive.read_bytes()
    assert image_assembly.sbom_path(again).read_bytes() == image_assembly.sbom_path(archive).read_bytes()


def test_start_of_its_python_leaves_no_path_or_time(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that was compiled so would stay, for it is newer than its source."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    home = image_assembly.debian_home(archive.parents[1], image_constants.architecture())
    packages = debian_packages.cached_packages(home)
    assert packages
    debian_packages.unpack(packages, home, tmp_path / "root")
    assert python_wheels.target(tmp_path / "root", "2.36", platform.machine()).version.startswith("3.")
    assert list((tmp_path / "root").rglob("*.pyc")) == []


def test_its_modules_are_compiled_without_times(archive: Path) -> None:
    heads = {content[4:8] for name, content in contents_of(archive) if name.endswith(".pyc")}
    assert heads == {UNCHECKED_HASH}


def test_the_sbom_is_in_the_image_and_beside_it(image: ImageUnderTest, archive: Path) -> None:
    inside = output(image.run("python3", "-c", f"print(open({image_constants.SBOM!r}).read(), end='')"))
    assert inside == image_assembly.sbom_path(archive).read_text()
    components = {component["name"]: component for component in json.loads(inside)["components"]}
    assert components["libssl3" if "libssl3" in components else "libssl3t64"]["purl"].startswith(
        "pkg:deb/debian/"
    )
    assert components["numpy"]["purl"].startswith("pkg:pypi/numpy@")
    assert components["cmk"]["version"] == nodewise.__version__
    assert [
        name for name, component in components.items() if not component.get("licenses") and name != "cmk"
    ] == []
    script = "import os; print(*os.listdir('/var/lib/dpkg/status.d'))"
    packaged = output(image.run("python3", "-c", script)).split()
    assert set(packaged) == {
        name for name, component in components.items() if "pkg:deb/" in component.get("purl", "")
    }


def test_containerd_starts_the_image_of_its_architecture_in_an_archive_for_all(
    image: ImageUnderTest, containerd: Containerd, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    file = tmp_path / "image.oci.tar"
    get_or_skip(request, lambda: image_archive.combined(file))
    containerd.load(file)
    assert output(image.run("nodewise", "--version")).strip() == f"nodewise {nodewise.__version__}"


# As its own user, on a read-only root


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("nodewise", "--version"),
        ("cmk", "--help"),
        ("/bin/bash", "-c", "/cmk/cmk.py --version"),
        ("/bin/sh", "-c", "nodewise cpu topology"),
        ("nodewise", "agents", "list"),
    ],
    ids=" ".join,
)
def test_its_commands_run(image: ImageUnderTest, command: tuple[str, ...]) -> None:
    done = image.run(*command)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_its_user_does_not_exist_on_the_host_and_cannot_write(image: ImageUnderTest) -> None:
    script = "import os; print(os.getuid(), os.getgid(), os.path.expanduser('~')); open('/tmp/a', 'w')"
    done = image.run("python3", "-c", script)
    assert done.stdout.split() == ["10001", "10001", "/home/nodewise"]
    assert "Read-only file system" in done.stderr


IMPORTS = """
import importlib, os, pkgutil, ssl, sys, sysconfig, zoneinfo
import nodewise, numpy, scipy.special, grpc, google.protobuf, cryptography, uvloop, httptools, yaml
import bz2, ctypes, lzma, readline, sqlite3, zlib
for found in pkgutil.walk_packages(nodewise.__path__, "nodewise."):
    if found.name.rpartition(".")[2] != "__main__":
        importlib.import_module(found.name)
uncompiled = [name for name, module in sys.modules.items()
              if (getattr(module, "__cached__", None) and not os.path.exists(module.__cached__))]
print(sys.prefix, ssl.create_default_context().cert_store_stats()["x509_ca"] > 100, uncompiled)
"""


def test_all_its_modules_are_there_and_compiled(image: ImageUnderTest) -> None:
    assert output(image.run("python3", "-W", "ignore", "-c", IMPORTS)).strip() == "/usr True []"


HELP = """
import subprocess, sys
for command in sys.argv[1].split(","):
    done = subprocess.run([*command.split(), "--help"], capture_output=True, text=True)
    if done.returncode or "Usage:" not in done.stdout or done.stderr:
        print(command, done.returncode, done.stderr)
"""


def test_every_command_has_its_help(image: ImageUnderTest) -> None:
    commands = [f"nodewise {name}" for name in COMMANDS] + [f"cmk {name}" for name in CPU_COMMANDS]
    assert output(image.run("python3", "-c", HELP, ",".join(commands))) == ""


# As root, with a host's folders


@pytest.fixture
def host(containerd: Containerd, tmp_path: Path) -> Iterator[Path]:
    """A host's /etc/kubernetes as kubeadm makes it, with a client certificate, in one of the runtime's namespaces."""
    made = control_plane_hosts.ControlPlaneHost(tmp_path)
    inside = containerd.inside(KUBERNETES)
    shutil.copytree(made.k, inside)
    yield inside
    shutil.rmtree(inside)


BASE = (
    *("-m", f"{KUBERNETES}/manifests/kube-scheduler.yaml"),
    *("-cert", f"{KUBERNETES}/pki/scheduler-client.crt", "-key", f"{KUBERNETES}/pki/scheduler-client.key"),
    *("-d", KUBERNETES, "-b", KUBERNETES, "-cert-dir", f"{KUBERNETES}/schedulercerts"),
)
"""The older documentation's flags, with one dash."""
BOTH = "scheduler-config-tas+gas.yaml"
TEMPLATES = "/telemetry-aware-scheduling/deploy/extender-configuration"


def configure(image: ImageUnderTest, *words: str) -> Run:
    command = ("nodewise", "configure", *words)
    return image.run(*command, is_root=True, mounts={KUBERNETES: KUBERNETES})


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Modes and contents of all files except backups."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {
        name: (path.stat().st_mode, path.read_bytes())
        for name, path in files.items()
        if not name.startswith("backup")
    }


def test_templates_of_the_older_configurator_keep_their_paths(image: ImageUnderTest) -> None:
    script = "import json, sys; print(json.dumps([open(path).read() for path in sys.argv[1:]]))"
    read = json.loads(output(image.run("python3", "-c", script, *image_constants.TEMPLATES)))
    assert read == [scheduler_templates.template(agents) for agents in image_constants.TEMPLATES.values()]


@pytest.mark.parametrize("template", [f"{TEMPLATES}/scheduler-config.yaml", f"{TEMPLATES}/{BOTH}", ""])
def test_the_image_configures_a_host_as_the_installed_command_does(
    containerd: Containerd, image: ImageUnderTest, host: Path, template: str, tmp_path: Path
) -> None:
    before = everything(host)
    options = ["-f", template] if template else []
    dry = configure(image, *BASE, *options, "-dry-run")
    assert (dry.returncode, dry.stderr.splitlines()[-1]) == (0, "Done."), dry.stderr
    assert "+    - --config=/etc/kubernetes/" in dry.stdout
    assert everything(host) == before

    done = configure(image, *BASE, *options)
    assert done.returncode == 0, done.stderr
    by_image = everything(host)
    assert by_image != before
    assert configure(image, *BASE, *options, "--check").returncode == 0

    assert configure(image, *BASE[:2], "-b", KUBERNETES, "-d", KUBERNETES, "--restore").returncode == 0
    assert everything(host) == before
    if template:
        file = tmp_path / Path(template).name
        file.write_text(scheduler_templates.template(image_constants.TEMPLATES[template]))
        options = ["-f", str(file)]
    own = containerd.enter([NODEWISE, "configure", *BASE, *options])
    output(subprocess.run(own, capture_output=True, text=True, check=False, cwd=tmp_path))
    assert everything(host) == by_image


def test_a_folder_of_the_container_alone_is_refused(image: ImageUnderTest, host: Path) -> None:
    before = everything(host)
    done = configure(image, *BASE[:-1], "/etc/certs/", "-f", f"{TEMPLATES}/scheduler-config.yaml", "-dry-run")
    assert done.returncode == 1
    assert "--cert-dir: /etc/certs is not the host's: it is in no mount of this container" in done.stderr
    assert everything(host) == before
    done = image.run("nodewise", "configure", *BASE, is_root=True)
    assert done.returncode == 1
    assert "-m: /etc/kubernetes/manifests is not the host's" in done.stderr


# The program that is installed on hosts


def test_a_container_installs_the_program_on_its_host(
    image: ImageUnderTest, containerd: Containerd, tmp_path: Path
) -> None:
    """As the pods of `cluster-init` do, in their words."""
    folder = containerd.inside("/opt/bin")
    folder.mkdir(parents=True, exist_ok=True)
    [made] = node_setup_objects.preparation_pod(["install"], "n1", SetupOptions(), api_server.TABLE[-1])[
        "spec"
    ]["containers"]
    words = [*made["command"], *made["args"]]
    assert made["securityContext"]["runAsUser"] == 0
    mounts = {"/opt/bin": "/opt/bin", "/host/proc": "/proc"}
    assert image.run(*words, mounts=mounts).returncode == 1, "the image's own user may not"
    first = output(image.run(*words, is_root=True, mounts=mounts))
    assert first.startswith("/opt/bin/cmk: installed")
    assert output(image.run(*words, is_root=True, mounts=mounts)).startswith("/opt/bin/cmk: already there")
    version = subprocess.run(
        containerd.enter(["/opt/bin/cmk", "--version"]), capture_output=True, text=True, check=False
    )
    assert output(version).strip().endswith(nodewise.__version__)
    host_program_installation.install(tmp_path / "own")
    names = [path.name for path in (tmp_path / "own").glob(".cmk-*")]
    assert [path.name for path in folder.glob(".cmk-*")] == names, "the same as from a source tree"


def test_pods_of_cluster_init_name_this_image() -> None:
    assert node_setup_objects.IMAGE == image_archive.NAME
