"""The parts of the image, without downloads and builds."""

import gzip
import hashlib
import io
import json
import os
import platform
import re
import shlex
import shutil
import sys
import tarfile
from pathlib import Path

import pytest
import trustme
import yaml
from click.testing import CliRunner
from tools.image import (
    debian_packages,
    digests,
    foreign_program,
    image_assembly,
    image_constants,
    layers,
    oci,
    python_wheels,
    sbom,
    scheduler_templates,
    shared_library_check,
)
from tools.image.command_execution_and_errors import ImageError
from tools.image.image_assembly import BuiltLayer
from tools.image.layers import Layer
from tools.image.oci import ImageIdentity
from tools.image.python_wheels import PythonTarget

from nodewise.cli.configure import command
from nodewise_cpu.cluster import node_setup_objects

IDENTITY = ImageIdentity("1.2.3", 1_000_000_000, "amd64", "abc")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files in an order other than that of their names, with several modes and times."""
    root = tmp_path / "root"
    for number, name in enumerate(["usr/bin/z", "usr/bin/a", "etc/b.txt"]):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name * 1000)
        path.chmod(0o4711 if "bin" in name else 0o600)
        os.utime(path, (number, number))
    (root / "bin").symlink_to("usr/bin")
    (root / "tmp").mkdir(mode=0o700)
    return root


def made(folder: Path, file: Path, time_s: int = 5) -> Layer:
    return layers.make("a layer", folder, file, time_s)


def entries(file: Path) -> list[tarfile.TarInfo]:
    with tarfile.open(file) as archive:
        return archive.getmembers()


def test_a_layer_is_the_same_bytes_whenever_and_by_whomever_it_is_made(folder: Path, tmp_path: Path) -> None:
    first = made(folder, tmp_path / "first")
    for path in folder.rglob("*"):
        os.utime(path, (99, 99), follow_symlinks=False)
        if path.is_file() and not path.is_symlink():
            path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o664)
    umask = os.umask(0o077)
    second = made(folder, tmp_path / "second")
    os.umask(umask)
    assert first == second._replace(file=first.file)
    assert first.file.read_bytes() == second.file.read_bytes()
    assert made(folder, tmp_path / "third", 6).digest != first.digest


def test_a_layer_has_the_digests_of_its_bytes_and_of_its_content(folder: Path, tmp_path: Path) -> None:
    layer = made(folder, tmp_path / "layer")
    data = layer.file.read_bytes()
    assert layer.digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert layer.diff_id == f"sha256:{hashlib.sha256(gzip.decompress(data)).hexdigest()}"
    assert layer.size_bytes == len(data)


def test_a_layer_has_roots_files_in_order_without_other_users_rights(folder: Path, tmp_path: Path) -> None:
    members = entries(made(folder, tmp_path / "layer").file)
    assert [member.name for member in members] == [
        "bin", "etc", "etc/b.txt", "tmp", "usr", "usr/bin", "usr/bin/a", "usr/bin/z",
    ]  # fmt: skip
    assert {(member.uid, member.gid, member.uname, member.gname, member.mtime) for member in members} == {
        (0, 0, "", "", 5)
    }
    modes = {member.name: member.mode for member in members}
    expected = (0o644, 0o755, 0o1777, 0o755)
    assert (modes["etc/b.txt"], modes["usr/bin/a"], modes["tmp"], modes["usr"]) == expected


def test_a_folder_for_another_builder_has_the_same_modes(folder: Path, tmp_path: Path) -> None:
    layers.set_modes(folder)
    members = entries(made(folder, tmp_path / "layer").file)
    on_disk = {
        member.name: (folder / member.name).lstat().st_mode & 0o7777
        for member in members
        if not member.issym()
    }
    assert on_disk == {member.name: member.mode for member in members if not member.issym()}


@pytest.fixture
def archive(folder: Path, tmp_path: Path) -> Path:
    file = tmp_path / "image.tar"
    oci.write(file, [made(folder, tmp_path / "layer")], IDENTITY)
    return file


def member(archive: Path, name: str) -> bytes:
    with tarfile.open(archive) as layer:
        content = layer.extractfile(name)
        assert content is not None
        return content.read()


def blob(archive: Path, descriptor: dict) -> bytes:
    data = member(archive, f"blobs/{descriptor['digest'].replace(':', '/')}")
    assert len(data) == descriptor["size"]
    assert descriptor["digest"] == f"sha256:{hashlib.sha256(data).hexdigest()}"
    return data


def test_every_descriptor_of_an_archive_leads_to_its_blob(archive: Path) -> None:
    assert json.loads(member(archive, "oci-layout")) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(member(archive, "index.json"))["manifests"]
    assert entry["platform"] == {"architecture": "amd64", "os": "linux"}
    assert entry["annotations"]["io.containerd.image.name"] == "docker.io/library/nodewise:1.2.3"
    manifest = json.loads(blob(archive, entry))
    config = json.loads(blob(archive, manifest["config"]))
    plain = [gzip.decompress(blob(archive, layer)) for layer in manifest["layers"]]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(data).hexdigest()}" for data in plain]
    assert len(config["history"]) == len(plain)
    with tarfile.open(fileobj=io.BytesIO(plain[0])) as layer:
        assert "usr/bin/a" in layer.getnames()
    (older,) = json.loads(member(archive, "manifest.json"))
    assert member(archive, older["Config"]) == blob(archive, manifest["config"])
    assert older["RepoTags"] == ["nodewise:1.2.3"]


def test_an_image_has_its_annotations(archive: Path) -> None:
    (entry,) = json.loads(member(archive, "index.json"))["manifests"]
    config = json.loads(blob(archive, json.loads(blob(archive, entry))["config"]))
    expected = ("amd64", "linux", "2001-09-09T01:46:40Z")
    assert (config["architecture"], config["os"], config["created"]) == expected
    assert config["config"]["User"] == "10001:10001"
    assert config["config"]["Entrypoint"] == ["/usr/local/bin/nodewise"]
    assert config["config"]["Labels"] == {
        "org.opencontainers.image.title": "nodewise",
        "org.opencontainers.image.description": "Platform-aware scheduling for Kubernetes",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.version": "1.2.3",
        "org.opencontainers.image.created": "2001-09-09T01:46:40Z",
        "org.opencontainers.image.revision": "abc",
    }


def test_the_same_parts_make_the_same_archive(archive: Path, folder: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.tar"
    oci.write(again, [made(folder, tmp_path / "other")], IDENTITY)
    assert again.read_bytes() == archive.read_bytes()


def test_an_archive_for_all_architectures_has_an_index_of_their_images(
    archive: Path, folder: Path, tmp_path: Path
) -> None:
    """A layer that several images have is in it once; tools for docker archives find the first image."""
    other, combined = tmp_path / "other.tar", tmp_path / "combined.tar"
    oci.write(other, [made(folder, tmp_path / "layer")], IDENTITY._replace(architecture="arm64"))
    digest = oci.combine(combined, [archive, other], IDENTITY)
    (entry,) = json.loads(member(combined, "index.json"))["manifests"]
    (single,) = json.loads(member(archive, "index.json"))["manifests"]
    assert (entry["digest"], entry["annotations"]) == (digest, single["annotations"])
    images = json.loads(blob(combined, entry))["manifests"]
    assert [image["platform"]["architecture"] for image in images] == ["amd64", "arm64"]
    manifests = [json.loads(blob(combined, image)) for image in images]
    configs = [json.loads(blob(combined, manifest["config"])) for manifest in manifests]
    assert [config["architecture"] for config in configs] == ["amd64", "arm64"]
    assert manifests[0]["layers"] == manifests[1]["layers"]
    assert gzip.decompress(blob(combined, manifests[0]["layers"][0]))
    names = [entry.name for entry in entries(combined)]
    assert len(names) == len(set(names))
    assert member(combined, "manifest.json") == member(archive, "manifest.json")


def test_an_image_that_has_become_too_large_is_none(folder: Path, tmp_path: Path) -> None:
    layer = made(folder, tmp_path / "layer")
    image_assembly._check_size([layer._replace(size_bytes=90_000_000)] * 2)
    with pytest.raises(ImageError, match=r"180\.0 MB in all, more than 180 MB"):
        image_assembly._check_size(
            [layer._replace(size_bytes=90_000_000), layer._replace(size_bytes=90_000_001)]
        )


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    program = tmp_path / "usr/bin/python3"
    program.parent.mkdir(parents=True)
    shutil.copy(sys.executable, program)
    with pytest.raises(ImageError, match=r"libc\.so\.6 of usr/bin/python3"):
        shared_library_check.check([tmp_path])


def test_a_layer_of_the_same_input_is_not_built_again(tmp_path: Path) -> None:
    calls: list[Path] = []

    def fill(root: Path) -> None:
        calls.append(root)
        root.mkdir()
        (root / "a").write_text("a")

    def part(*parts: str) -> BuiltLayer:
        return image_assembly.LayerCache(tmp_path, 5).part("a layer", [debian_packages], parts, fill)

    first = part("1")
    assert (part("1"), len(calls)) == (first, 1)
    assert (part("2").layer.digest, len(calls)) == (first.layer.digest, 2)
    assert (first.folder / "a").read_text() == "a"


def test_own_layers_are_built_again_only_if_sources_lock_or_machine_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, machine = tmp_path / "clone", tmp_path / "status"
    monkeypatch.setattr(image_constants, "ROOT", root)
    monkeypatch.setattr(digests, "_MACHINE_PACKAGES", machine)

    def key_after_change_of(file: Path) -> str:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as text:
            text.write("changed")
        return digests.of_sources()

    cpu = root / "packages/nodewise-cpu"
    keys = [key_after_change_of(root / "uv.lock")]
    for file in (root / "docs/a.md", root / "src/__pycache__/a.pyc", cpu / "cpu_tests/a.py"):
        assert key_after_change_of(file) == keys[0], file
    names = ("src/a.py", "examples/a.yaml", "deploy/a.yaml", "tools/image/a.py", "README.md", "uv.lock")
    changes = [*(root / name for name in names), cpu / "src/a.py", cpu / "pyproject.toml", machine]
    keys += map(key_after_change_of, changes)
    assert len(set(keys)) == 1 + len(changes)


def cached(cache: Path) -> list[debian_packages.Package]:
    """A cache with one package in the form that an earlier run writes."""
    (cache / "packages").mkdir(parents=True)
    file = cache / "packages/bash_5_amd64.deb"
    file.write_bytes(b"a package")
    package = debian_packages.Package(
        "bash", "5", "amd64", "bash", file.name, hashlib.sha256(b"a package").hexdigest()
    )
    (cache / "packages.json").write_text(json.dumps([package]))
    return [package]


def test_packages_in_the_cache_are_verified(tmp_path: Path) -> None:
    packages = cached(tmp_path)
    assert debian_packages.cached_packages(tmp_path) == packages
    file = tmp_path / "packages/bash_5_amd64.deb"
    file.write_bytes(b"A package")
    actual = hashlib.sha256(b"A package").hexdigest()
    message = f"{file}: found SHA-256 digest {actual}, expected {packages[0].digest}"
    with pytest.raises(ImageError, match=re.escape(message)):
        debian_packages.cached_packages(tmp_path)
    file.unlink()
    assert debian_packages.cached_packages(tmp_path) is None


@pytest.mark.parametrize("path", ["layer.tar.gz", "root/a"])
def test_layers_in_the_cache_are_verified(path: str, tmp_path: Path) -> None:
    def fill(root: Path) -> None:
        root.mkdir()
        (root / "a").write_text("a")

    part = image_assembly.LayerCache(tmp_path, 5).part("a layer", [debian_packages], ["1"], fill)
    file = part.folder.parent / path
    file.write_bytes(b"another program")
    changed = part.folder if path.startswith("root") else file
    expected = part.layer.diff_id if path.startswith("root") else part.layer.digest
    with pytest.raises(ImageError, match=rf"{changed}: found SHA-256 digest sha256:\w+, expected {expected}"):
        image_assembly.LayerCache(tmp_path, 5).part("a layer", [debian_packages], ["1"], fill)


def test_digests_of_downloaded_packages_are_those_of_the_signed_lists() -> None:
    digest = "3eb1ea6d85488f488cc2a163b98ad640ef88cee4c79287cf14e361aaf6206f47"
    name = "base-files_12.4+deb12u15_amd64.deb"
    printed = f"'mirror/{name}' {name} 70936 SHA256:{digest}\n"
    assert debian_packages.signed_digests(printed) == {name: digest}


def test_pods_of_the_cpu_manager_name_the_image_that_is_made() -> None:
    expected = f"docker.io/library/{node_setup_objects.IMAGE}"
    assert oci.reference(node_setup_objects.IMAGE.partition(":")[2]) == expected


SAID = """\
NOTE: This is only a simulation!
Inst libc6 (2.36-9+deb12u14 Debian:12.15/oldstable [amd64])
Inst dpkg (1.21.23 Debian:12.15/oldstable [amd64])
Inst libkrb5-3 (1.20.1-2+deb12u5 Debian:12.15/oldstable, Debian-Security:12/oldstable-security [amd64])
Inst libssl3:amd64 (3.0.22-1~deb12u2 Debian-Security:12/oldstable-security [amd64]) [libssl3:amd64 ]
Conf libc6 (2.36-9+deb12u14 Debian:12.15/oldstable [amd64])
"""


def test_packages_that_only_serve_to_install_others_are_left_out() -> None:
    expected = ["libc6=2.36-9+deb12u14", "libssl3=3.0.22-1~deb12u2"]
    assert debian_packages.select_packages(SAID, "debian") == expected


@pytest.mark.parametrize(
    ("simulation", "seen"),
    [
        (SAID + "Inst python3 (3.11 Cloud SDK:cloud-sdk [amd64])\n", "python3 would come from elsewhere"),
        ("", "apt-get named no package"),
    ],
)
def test_packages_of_another_origin_make_no_image(simulation: str, seen: str) -> None:
    with pytest.raises(ImageError, match=seen):
        debian_packages.select_packages(simulation, "debian")


@pytest.mark.parametrize(
    ("packaged", "placed"),
    [
        ("./", ""),
        ("./bin/bash", "usr/bin/bash"),
        ("./lib64/ld-linux-x86-64.so.2", "usr/lib64/ld-linux-x86-64.so.2"),
        ("./usr/lib/os-release", "usr/lib/os-release"),
        ("./library/x", "library/x"),
        ("bin", "bin"),
    ],
)
def test_older_folders_lead_into_usr(packaged: str, placed: str) -> None:
    assert debian_packages.merged_path(packaged) == placed


@pytest.mark.parametrize(
    ("path", "dropped"),
    [
        ("usr/share/doc/bash/README.gz", True),
        ("usr/share/doc/bash/copyright", False),
        ("usr/share/doc/bash", False),
        ("usr/share/man/man1/bash.1.gz", True),
        ("usr/share/locale/de/LC_MESSAGES/bash.mo", True),
        ("usr/lib/python3.11/test/support.py", True),
        ("usr/lib/python3.11/unittest/case.py", False),
        ("usr/bin/bash", False),
        ("usr/bin/python3.11", False),
        ("etc/mime.types", False),
    ],
)
def test_documentation_goes_and_licences_stay(path: str, dropped: bool) -> None:
    assert debian_packages.is_excluded(path) is dropped


LOCK = """\
# This file was made
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via nodewise
numpy==2.5.5 ; python_full_version >= '3.12' \\
    --hash=sha256:cc
uvloop==0.23.0 ; sys_platform != 'win32' \\
    --hash=sha256:dd
jsfetch==1.0 ; sys_platform == 'emscripten' \\
    --hash=sha256:ee
"""


@pytest.mark.parametrize(
    ("full", "numpy"),
    [
        ("3.11.2", "numpy==2.4.6 --hash=sha256:aa --hash=sha256:bb"),
        ("3.13.5", "numpy==2.5.5 --hash=sha256:cc"),
    ],
)
def test_the_lock_is_evaluated_for_the_python_of_the_image(full: str, numpy: str) -> None:
    target = PythonTarget(Path("/none"), full.rpartition(".")[0], full, "2.36", "x86_64")
    assert python_wheels.requirements(LOCK, target) == [numpy, "uvloop==0.23.0 --hash=sha256:dd"]


def test_wheels_may_be_of_any_machine_that_is_as_old() -> None:
    target = PythonTarget(Path("/none"), "3.11", "3.11.2", "2.36", "aarch64")
    assert target.platforms[0] == "manylinux_2_36_aarch64"
    assert "manylinux_2_17_aarch64" in target.platforms


def test_byte_code_for_another_architecture_needs_a_python_of_the_same_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(python_wheels, "_MACHINE_PYTHON", (sys.executable,))
    version = platform.python_version()
    target = python_wheels.foreign_target(Path("/none"), "2.36", "aarch64", version)
    assert (target.full_version, target.interpreter) == (version, (sys.executable,))
    message = f"found Python {version}, expected 3.1.2 as in the packages of aarch64"
    with pytest.raises(ImageError, match=re.escape(message)):
        python_wheels.foreign_target(Path("/none"), "2.36", "aarch64", "3.1.2")


OWN = f"{platform.machine()}-linux-gnu"
OTHER = "other-linux-gnu"


@pytest.fixture
def frozen(tmp_path: Path) -> Path:
    """A frozen program of this machine with an extension module, a library and a file of data."""
    libraries = tmp_path / "cmk/lib"
    (libraries / "yaml").mkdir(parents=True)
    for name in (f"yaml/_yaml.{OWN}.so", "libyaml.so.0"):
        shutil.copy(sys.executable, libraries / name)
    (libraries / "base_library.zip").write_text("byte code")
    return tmp_path / "cmk"


def test_libraries_of_a_program_are_replaced_by_those_of_another_architecture(
    frozen: Path, tmp_path: Path
) -> None:
    """A library that only this machine's program needs is removed, what the new files need is added."""
    wheels, system = tmp_path / "wheels", tmp_path / "system"
    (wheels / "yaml").mkdir(parents=True)
    shutil.copy(sys.executable, wheels / f"yaml/_yaml.{OTHER}.so")
    system.mkdir()
    needed = shared_library_check.find_missing([wheels])
    assert "libc.so.6" in needed
    for name in needed:
        (system / name).write_text(name)
    foreign_program.replace_libraries(frozen, frozen / "lib", OTHER, [wheels, system])
    files = {path.relative_to(frozen).as_posix() for path in frozen.rglob("*") if path.is_file()}
    expected = {"lib/base_library.zip", f"lib/yaml/_yaml.{OTHER}.so", *(f"lib/{name}" for name in needed)}
    assert files == expected


def test_a_module_that_another_architecture_lacks_makes_no_program(frozen: Path, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=rf"no package or wheel of {OTHER} has yaml/_yaml\.{OTHER}\.so"):
        foreign_program.replace_libraries(frozen, frozen / "lib", OTHER, [tmp_path / "wheels"])


COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Files: *
License: GPL-2+
Files: b
License: MIT and Expat
License: Permission is hereby granted, free of charge, to any person
License: Expat
 text
"""


def test_licences_have_spdx_names() -> None:
    assert sbom.licenses(COPYRIGHT) == ["GPL-2.0-or-later", "MIT", "MIT and Expat"]
    assert sbom.licenses("This is prose.\nLicense: GPL-2\n") == []


@pytest.mark.parametrize(("path", "agents"), image_constants.TEMPLATES.items())
def test_a_template_equals_the_output_of_configure(path: str, agents: str, tmp_path: Path) -> None:
    """The comparison is for the release of the manifest."""
    manifest = tmp_path / "manifests/kube-scheduler.yaml"
    manifest.parent.mkdir()
    manifest.write_text(MANIFEST)
    (tmp_path / "given").mkdir()
    (tmp_path / "given/template.yaml").write_text(scheduler_templates.template(agents))
    several = ["--one-entry-per-agent"] if "," in agents else []
    own = configured(tmp_path, f"--agents={agents}", *several)
    rendered = configured(tmp_path, "-f", str(tmp_path / "given/template.yaml"))
    assert yaml.load(rendered, yaml.CSafeLoader) == yaml.load(own, yaml.CSafeLoader)


MANIFEST = """\
apiVersion: v1
kind: Pod
metadata: {name: kube-scheduler, namespace: kube-system}
spec:
  hostNetwork: true
  containers:
  - name: kube-scheduler
    image: registry.k8s.io/kube-scheduler:v1.30.1
    command: [kube-scheduler, --kubeconfig=/etc/kubernetes/scheduler.conf]
"""


def configured(folder: Path, *words: str) -> str:
    """The configuration that the command would write, taken from the diff that it prints."""
    flags = ["-m", str(folder / "manifests/kube-scheduler.yaml"), "-d", str(folder), "-b", "/dev/null"]
    flags += ["--cert-dir", str(folder / "certs"), "-dry-run", "-o", "json"]
    authority = trustme.CA()
    client = authority.issue_cert("nodewise-scheduler-client")
    certificates = {
        "ca": authority.cert_pem,
        "cert": client.cert_chain_pems[0],
        "key": client.private_key_pem,
    }
    for name, content in certificates.items():
        content.write_to_path(folder / name)
        flags += [f"--{name}", str(folder / name)]
    result = CliRunner().invoke(command, [*flags, *words])
    assert result.exit_code == 0, result.output
    files = json.loads(result.stdout)["files"]
    diff = next(file["diff"] for file in files if "kubescheduler.config" in file["diff"])
    return "\n".join(re.findall(r"^\+(?!\+\+)(.*)$", diff, re.MULTILINE))


def instructions() -> dict[str, list[str]]:
    """The arguments of each instruction of the Containerfile after its last FROM."""
    text = (image_constants.ROOT / "Containerfile").read_text().replace("\\\n", " ")
    last = re.split(r"^FROM ", text, flags=re.MULTILINE)[-1]
    values: dict[str, list[str]] = {}
    for line in last.splitlines()[1:]:
        name, _, rest = line.partition(" ")
        values.setdefault(name, []).append(rest.strip())
    return values


def test_the_containerfile_says_the_same_of_the_image() -> None:
    words = instructions()
    assert words["USER"] == [image_constants.USER]
    assert [json.loads(text) for text in words["ENTRYPOINT"]] == [list(image_constants.ENTRYPOINT)]
    assert [json.loads(text) for text in words["CMD"]] == [list(image_constants.COMMAND)]
    assert words["EXPOSE"] == [image_constants.PORT]
    assert words["WORKDIR"] == ["/"]
    pairs = {
        name: dict(word.split("=", 1) for word in shlex.split(words[name][0])) for name in ("ENV", "LABEL")
    }
    assert pairs == {"ENV": image_constants.ENVIRONMENT, "LABEL": image_constants.LABELS}
    assert words["COPY"] == [f"--from=build /out/{name}/ /" for name in image_constants.FOLDERS]


def test_no_file_of_the_image_names_an_address() -> None:
    files = [*(image_constants.ROOT / "tools/image").glob("*.py"), image_constants.ROOT / "Containerfile"]
    addresses = [line for file in files for line in file.read_text().splitlines() if "://" in line]
    assert [line for line in addresses if "nodewise.nodewise.svc" not in line] == []
