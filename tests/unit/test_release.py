"""The files of a release."""

import hashlib
from pathlib import Path

import pytest
from tools import release

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


def test_the_chart_gets_the_addresses_of_the_repository() -> None:
    metadata = release.chart_metadata({"name": "nodewise"}, "https://example.org/x/nodewise")
    assert metadata["home"] == "https://example.org/x/nodewise"
    assert metadata["sources"] == ["https://example.org/x/nodewise"]
    assert (Path(__file__).parents[2] / metadata["icon"].partition("/raw/HEAD/")[2]).is_file()
    assert release.chart_metadata({"name": "nodewise"}, "") == {"name": "nodewise"}


def test_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"2")
    (tmp_path / "a").write_bytes(b"1")
    release.write_checksums(tmp_path)
    release.write_checksums(tmp_path)
    of_a, of_b = (hashlib.sha256(content).hexdigest() for content in (b"1", b"2"))
    assert (tmp_path / "SHA256SUMS").read_text() == f"{of_a}  a\n{of_b}  b\n"


def test_each_file_is_signed_into_a_bundle_of_its_own(tmp_path: Path) -> None:
    cosign = tmp_path / "cosign"
    cosign.write_text('#!/bin/sh\n[ "$1 $2 $3" = "sign-blob --yes --bundle" ] && echo signed "$5" > "$4"\n')
    cosign.chmod(0o755)
    file = tmp_path / "nodewise.whl"
    file.write_text("x")
    release.sign(str(cosign), [file])
    assert (tmp_path / "nodewise.whl.sigstore.json").read_text() == f"signed {file}\n"
