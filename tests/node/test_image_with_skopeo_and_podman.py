"""The archive with skopeo and podman: commands of users, as in the how-to where possible.

The tools run in namespaces of their own, in which they are installed by overlays of /usr.
"""

import hashlib
import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.image import image_constants, oci

import nodewise
from tests import docs_page_code_blocks
from tests.cluster import debian_packages, image_archive
from tests.cluster.conftest import get_or_skip
from tests.cluster.debian_packages import ContainerPrograms
from tests.conformance.configure import control_plane_hosts
from tests.node import containerd_runtime, temporary_cgroups
from tests.node.containerd_runtime import Containerd

pytestmark = pytest.mark.cluster

PAGE = docs_page_code_blocks.HOW_TO / "image.md"
IN_DIST = f"dist/nodewise-{nodewise.__version__}.oci.tar"
KUBERNETES = "/etc/kubernetes"

SETTINGS = {
    "policy.json": '{"default": [{"type": "insecureAcceptAnything"}]}',
    "storage.conf": """
[storage]
driver = "overlay"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
""",
    "containers.conf": """
[containers]
netns = "none"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
runtime = "runc"
[engine.runtimes]
runc = [{runc}]
""",
}
"""The settings use nothing of the machine: no network, no shared memory, and no raised limits, which root may not be
allowed to raise. All data is in memory."""


@pytest.fixture(scope="module")
def archive(request: pytest.FixtureRequest) -> Path:
    return get_or_skip(request, image_archive.archive)


class ImageToolsUser:
    """Runs command lines beside the tools, in a folder with the archive that `make image` writes."""

    def __init__(self, machine: Containerd, folder: Path, cgroup: str) -> None:
        self.machine, self._folder = machine, folder
        self._run = f"podman run --cgroup-parent={cgroup}"

    def types(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run a line. Containers of podman run in a cgroup of the test."""
        line = line.replace("podman run", self._run)
        command = self.machine.enter(["sh", "-c", f"cd {self._folder}\n{line}"])
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def sees(self, line: str) -> str:
        """The output of a line, which has to succeed without warnings."""
        done = self.types(line)
        assert (done.returncode, done.stderr) == (0, ""), f"{line}: {done.stderr}{done.stdout}"
        return done.stdout.removesuffix("\n")


@pytest.fixture(scope="module")
def operator(
    request: pytest.FixtureRequest,
    container_programs: ContainerPrograms,
    archive: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ImageToolsUser]:
    """Namespaces in which the tools are installed; containerd is only their first process."""
    tools = get_or_skip(request, debian_packages.IMAGE_TOOLS.get)
    work = tmp_path_factory.mktemp("work")
    (work / "dist").mkdir()
    (work / IN_DIST).symlink_to(archive)
    with (
        temporary_cgroups.created("podman") as cgroup,
        containerd_runtime.running(container_programs, work) as machine,
    ):
        made = ImageToolsUser(machine, work, cgroup)
        made.sees(f"mount -t overlay overlay -o lowerdir={tools}:/usr /usr")
        folder = machine.inside("/etc/containers")
        folder.mkdir(exist_ok=True)
        runc = json.dumps(str(container_programs.runc))
        for name, text in SETTINGS.items():
            (folder / name).write_text(text.replace("{runc}", runc))
        yield made


def member(archive: Path, name: str) -> bytes:
    with tarfile.open(archive) as outer:
        content = outer.extractfile(name)
        assert content
        return content.read()


def blob(archive: Path, digest: str) -> bytes:
    return member(archive, f"blobs/{digest.replace(':', '/')}")


@pytest.fixture(scope="module")
def digest(archive: Path) -> str:
    """The digest of the image's manifest, which `make image` prints."""
    [only] = json.loads(member(archive, "index.json"))["manifests"]
    assert only["digest"] == f"sha256:{hashlib.sha256(blob(archive, only['digest'])).hexdigest()}"
    return str(only["digest"])


# skopeo


def test_skopeo_shows_the_digest_by_the_line_of_the_how_to(operator: ImageToolsUser, digest: str) -> None:
    typed = [
        step.typed
        for block in docs_page_code_blocks.section(PAGE, "## Check it")
        for step in docs_page_code_blocks.steps(block)
    ]
    [inspect] = [line for line in typed if line.startswith("skopeo inspect")]
    assert operator.sees(inspect) == digest


@pytest.mark.parametrize(
    "form", ["dir:{}/folder", "docker-archive:{}/docker.tar:nodewise:1", "oci:{}/layout:1"]
)
def test_a_copy_in_another_form_has_the_same_configuration(
    operator: ImageToolsUser, archive: Path, digest: str, tmp_path: Path, form: str
) -> None:
    """The layers as well: their digests, unpacked, are in it."""
    copy = form.format(tmp_path)
    operator.sees(f"skopeo copy --quiet oci-archive:{IN_DIST} {copy}")
    ours = blob(archive, json.loads(blob(archive, digest))["config"]["digest"])
    assert operator.sees(f"skopeo inspect --config --raw {copy}") == ours.decode()


def test_copied_there_and_back_it_is_the_same_image(
    operator: ImageToolsUser, digest: str, tmp_path: Path
) -> None:
    operator.sees(f"skopeo copy --quiet oci-archive:{IN_DIST} dir:{tmp_path}/folder")
    operator.sees(f"skopeo copy --quiet dir:{tmp_path}/folder oci-archive:{tmp_path}/back.tar")
    assert (
        operator.sees(f"skopeo inspect --format '{{{{.Digest}}}}' oci-archive:{tmp_path}/back.tar") == digest
    )


# The archive for all architectures


@pytest.fixture(scope="module")
def combined(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The archive, and the digest of its index, which `make image` prints."""
    file = tmp_path_factory.mktemp("combined") / "image.oci.tar"
    return file, get_or_skip(request, lambda: image_archive.combined(file))


def test_skopeo_copies_the_images_of_all_architectures(
    operator: ImageToolsUser, combined: tuple[Path, str], tmp_path: Path
) -> None:
    file, digest = combined
    operator.sees(f"skopeo copy --quiet --all --preserve-digests oci-archive:{file} dir:{tmp_path}/folder")
    index = (tmp_path / "folder/manifest.json").read_bytes()
    assert f"sha256:{hashlib.sha256(index).hexdigest()}" == digest == oci.archive_digest(file)
    for architecture in image_constants.MACHINES:
        line = f"skopeo --override-arch {architecture} inspect --format '{{{{.Architecture}}}}'"
        assert operator.sees(f"{line} oci-archive:{file}") == architecture


def test_podman_loads_the_image_of_its_architecture(
    operator: ImageToolsUser, combined: tuple[Path, str]
) -> None:
    """It names the image by the digest of the index."""
    file, digest = combined
    loaded = operator.sees(f"podman load --quiet --input {file}")
    assert loaded == f"Loaded image: {image_archive.REFERENCE}"
    line = f"podman image inspect --format '{{{{.Architecture}}}} {{{{.Digest}}}}' {image_archive.NAME}"
    assert operator.sees(line) == f"{image_constants.architecture()} {digest}"
    operator.sees(f"podman rmi {image_archive.NAME}")


# podman


@pytest.fixture(scope="module")
def podman(operator: ImageToolsUser) -> ImageToolsUser:
    """The user, with the image loaded."""
    assert (
        operator.sees(f"podman load --quiet --input {IN_DIST}") == f"Loaded image: {image_archive.REFERENCE}"
    )
    return operator


def test_podman_names_the_image_by_the_digest_of_the_archive(podman: ImageToolsUser, digest: str) -> None:
    line = f"podman images --digests --format '{{{{.Digest}}}}' {image_archive.NAME}"
    assert podman.sees(line) == digest


def test_podman_runs_it_on_a_read_only_root(podman: ImageToolsUser) -> None:
    line = f"podman run --rm --read-only --network none {image_archive.NAME} --version"
    assert podman.sees(line) == f"nodewise {nodewise.__version__}"


def test_podman_runs_it_as_its_own_user_without_any_right(podman: ImageToolsUser) -> None:
    options = "--rm --read-only --read-only-tmpfs=false --cap-drop=all --security-opt=no-new-privileges"
    script = "import os; print(os.getuid(), os.getgid()); open('/tmp/a', 'w')"
    done = podman.types(f'podman run {options} --entrypoint python3 {image_archive.NAME} -c "{script}"')
    assert done.stdout.split() == ["10001", "10001"]
    assert "Read-only file system" in done.stderr


@pytest.fixture
def host(operator: ImageToolsUser, tmp_path: Path) -> Iterator[Path]:
    """A host's /etc/kubernetes as kubeadm makes it, with a client certificate."""
    inside = operator.machine.inside(KUBERNETES)
    shutil.copytree(control_plane_hosts.ControlPlaneHost(tmp_path).k, inside)
    yield inside
    shutil.rmtree(inside)


def test_podman_configures_a_host_by_the_lines_of_the_how_to(podman: ImageToolsUser, host: Path) -> None:
    """The restore accepts the backup as one of this host, although each container has another host name."""
    [block] = docs_page_code_blocks.section(PAGE, "### Configure a host with it")
    line = block.text.replace("nerdctl --namespace k8s.io run", "podman run")
    manifest = host / "manifests/kube-scheduler.yaml"
    before = manifest.read_bytes()
    for words, is_changed in ((line, False), (line.replace(" -dry-run", ""), True)):
        done = podman.types(words)
        assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "Done."), done.stderr
        assert (manifest.read_bytes() != before) == is_changed
    undone = podman.types(f"{line.partition(' configure ')[0]} configure --restore")
    assert undone.returncode == 0, undone.stderr
    assert "was made on the host" not in undone.stderr
    assert manifest.read_bytes() == before
