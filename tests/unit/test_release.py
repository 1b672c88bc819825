"""The files of a release."""

import hashlib
import io
import json
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from tools import kubectl_plugin, release

import nodewise
from nodewise.cli import configure

ROOT = Path(__file__).parents[2]
CHANGES = (
    "# Changelog\n\n## Unreleased\n\n- new\n\n## 0.2.0\n\n### Changes\n\n- more\n\n## 0.1.0\n\n- first\n"
)


@pytest.mark.parametrize(
    ("version", "notes"),
    [("0.3.0", "- new"), ("0.2.0", "### Changes\n\n- more"), ("0.1.0", "- first")],
    ids=["not released yet", "the latest", "the first"],
)
def test_release_notes_are_the_section_of_the_version(version: str, notes: str) -> None:
    assert release.release_notes(CHANGES, version) == f"# nodewise {version}\n\n{notes}\n"


def test_a_version_without_changes_is_an_error() -> None:
    with pytest.raises(release.ReleaseError, match=r"found no section 0\.9\.0"):
        release.release_notes("# Changelog\n\n## Unreleased\n\n## 0.1.0\n\n- first\n", "0.9.0")


@pytest.mark.parametrize(
    ("version", "tag", "message"),
    [
        ("0.2.0", "v0.3.0", "--tag: found v0.3.0, expected v0.2.0"),
        ("0.2.0", "0.2.0", "--tag: found 0.2.0, expected v0.2.0"),
        ("0.3.0", "v0.3.0", "found no section 0.3.0"),
    ],
    ids=["another version", "no v", "changes without a version"],
)
def test_a_tag_is_that_of_the_version_which_has_a_section(version: str, tag: str, message: str) -> None:
    with pytest.raises(release.ReleaseError, match=re.escape(message)):
        release.release_notes(CHANGES, version, tag)
    assert "- more" in release.release_notes(CHANGES, "0.2.0", "v0.2.0")


def test_the_chart_gets_the_addresses_of_the_repository() -> None:
    before = {"name": "nodewise", "annotations": {"artifacthub.io/license": "Apache-2.0"}}
    metadata = release.chart_metadata(before, "https://example.org/x/nodewise")
    assert metadata["home"] == "https://example.org/x/nodewise"
    assert metadata["sources"] == ["https://example.org/x/nodewise"]
    assert (ROOT / metadata["icon"].partition("/raw/HEAD/")[2]).is_file()
    assert metadata["annotations"]["artifacthub.io/license"] == "Apache-2.0"
    links = yaml.load(metadata["annotations"]["artifacthub.io/links"], yaml.CSafeLoader)
    assert [link["name"] for link in links] == ["Documentation", "Changelog"]
    assert all((ROOT / link["url"].partition("/blob/HEAD/")[2]).is_file() for link in links)
    assert release.chart_metadata(before, "") == before


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("https://forge.test/x/nodewise", "https://forge.test/x/nodewise"),
        ("https://git.example.org/team/nodewise", ""),
    ],
    ids=["a real address", "the placeholder"],
)
def test_the_address_of_the_repository_is_that_of_the_project_file(address: str, url: str) -> None:
    assert release.repository_url(f'[project.urls]\nRepository = "{address}"') == url


def test_the_project_file_has_the_address_of_the_repository() -> None:
    release.repository_url((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize(
    ("registry", "has_image", "image"),
    [
        ("", True, f"nodewise:{nodewise.__version__}"),
        (
            "registry.example.org/team",
            True,
            f"registry.example.org/team/nodewise:{nodewise.__version__}@sha256:12",
        ),
        ("registry.example.org/team", False, f"registry.example.org/team/nodewise:{nodewise.__version__}"),
    ],
    ids=["imported on nodes", "pinned by its digest", "built elsewhere"],
)
def test_the_installation_manifest_is_native_mode_with_the_image_of_the_registry(
    tmp_path: Path, registry: str, has_image: bool, image: str
) -> None:
    if has_image:
        with tarfile.open(tmp_path / f"nodewise-{nodewise.__version__}.oci.tar", "w") as archive:
            index = b'{"manifests": [{"digest": "sha256:12"}]}'
            entry = tarfile.TarInfo("index.json")
            entry.size = len(index)
            archive.addfile(entry, io.BytesIO(index))
    release.write_installation(tmp_path, release.image_repository(registry))
    text = (tmp_path / "install.yaml").read_text()
    assert ("ctr --namespace k8s.io images import" in text) is (registry == "")
    objects = [manifest for manifest in yaml.load_all(text, yaml.CSafeLoader) if manifest]
    kinds = [manifest["kind"] for manifest in objects]
    assert kinds[:4] == ["CustomResourceDefinition"] * 3 + ["Namespace"]
    assert kinds.count("MutatingAdmissionPolicy") == 4
    (deployment,) = [manifest for manifest in objects if manifest["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == image
    arguments = ["--mode=native", "--kubernetes-version=1.36", f"--image={image}"]
    printed = CliRunner().invoke(configure.command, arguments, catch_exceptions=False).stdout
    assert text.endswith(printed), "nodewise configure prints the same objects"


@pytest.mark.parametrize(
    ("registry", "is_valid"),
    [
        ("ghcr.io/team", True),
        ("registry.example.org:5000", True),
        ("localhost:5000/a/b-c", True),
        ("https://ghcr.io/team", False),
        ("ghcr.io/Team", False),
        ("ghcr.io/team:1", False),
        ("ghcr.io//team", False),
        ("a b", False),
    ],
)
def test_a_registry_makes_a_name_that_container_runtimes_accept(registry: str, is_valid: bool) -> None:
    if is_valid:
        assert release.image_repository(registry) == f"{registry}/nodewise"
        return
    with pytest.raises(
        release.ReleaseError, match=r"--registry: found .*, expected a host and a path in lower"
    ):
        release.image_repository(registry)


def test_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"2")
    (tmp_path / "a").write_bytes(b"1")
    release.write_checksums(tmp_path)
    release.write_checksums(tmp_path)
    of_a, of_b = (hashlib.sha256(content).hexdigest() for content in (b"1", b"2"))
    assert (tmp_path / "SHA256SUMS").read_text() == f"{of_a}  a\n{of_b}  b\n"


def test_the_provenance_names_the_files_and_the_commit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    for _ in range(2):
        release.write_provenance(tmp_path, "https://example.org/x", "c0ffee", {"image": False})
        release.write_checksums(tmp_path)
    statement = json.loads((tmp_path / "provenance.intoto.json").read_text())
    assert statement["subject"] == [{"name": "a", "digest": {"sha256": hashlib.sha256(b"1").hexdigest()}}]
    definition = statement["predicate"]["buildDefinition"]
    assert definition["externalParameters"] == {"image": False}
    assert definition["resolvedDependencies"] == [
        {"uri": "git+https://example.org/x", "digest": {"gitCommit": "c0ffee"}}
    ]
    assert "provenance.intoto.json" in (tmp_path / "SHA256SUMS").read_text()


def test_a_release_is_of_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org"]
    (tmp_path / "a").write_text("1")
    for command in (["init", "-q"], ["add", "a"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *command], check=True)
    assert len(release.source_revision()) == 40
    (tmp_path / "a").write_text("2")
    with pytest.raises(release.ReleaseError, match="found changed files, expected those of a commit"):
        release.source_revision()


def test_each_file_is_signed_into_a_bundle_of_its_own(tmp_path: Path) -> None:
    cosign = tmp_path / "cosign"
    cosign.write_text('#!/bin/sh\n[ "$1 $2 $3" = "sign-blob --yes --bundle" ] && echo signed "$5" > "$4"\n')
    cosign.chmod(0o755)
    file = tmp_path / "nodewise.whl"
    file.write_text("x")
    release.sign(str(cosign), [file])
    assert (tmp_path / "nodewise.whl.sigstore.json").read_text() == f"signed {file}\n"


def test_the_release_has_the_plugins_of_all_platforms_and_one_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(folder: Path) -> Path:
        file = folder / f"kubectl-nodewise-{nodewise.__version__}-linux-amd64.tar.gz"
        file.write_text("amd64")
        return file

    monkeypatch.setattr(kubectl_plugin, "build", build)
    monkeypatch.setattr(kubectl_plugin, "check", lambda _: None)
    others, folder, unpublished = tmp_path / "others", tmp_path / "release", tmp_path / "unpublished"
    for path in (others, folder, unpublished):
        path.mkdir()
    arm64 = f"kubectl-nodewise-{nodewise.__version__}-linux-arm64.tar.gz"
    (others / arm64).write_text("arm64")
    release.package_plugin(folder, "https://example.org/x", others)
    platforms = yaml.load((folder / "nodewise.yaml").read_text(), yaml.CSafeLoader)["spec"]["platforms"]
    assert [platform["selector"]["matchLabels"]["arch"] for platform in platforms] == ["amd64", "arm64"]
    assert (folder / arm64).read_text() == "arm64"
    release.package_plugin(unpublished, "", None)
    assert not (unpublished / "nodewise.yaml").exists(), "its addresses are unknown"
