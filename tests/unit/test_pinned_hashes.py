"""All installed packages are pinned by hash: pip's requirements, and the base image of the Containerfile."""

import re
import tomllib
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

from tests import docs_page_code_blocks

BOOTSTRAP: Final = docs_page_code_blocks.ROOT / "tools/bootstrap.txt"
GO: Final = docs_page_code_blocks.ROOT / "tests/cluster/go.txt"
HASH: Final = re.compile(r" --hash=sha256:[0-9a-f]{64}")


def pinned(file: Path) -> dict[str, int]:
    """The number of hashes of each `name==version`."""
    text = file.read_text().replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {line.partition(" ")[0]: len(HASH.findall(line)) for line in lines}


@pytest.mark.parametrize("file", [BOOTSTRAP, GO], ids=lambda file: file.name)
def test_each_requirement_has_a_version_and_hashes_and_no_address(file: Path) -> None:
    requirements = pinned(file)
    assert requirements
    assert all("==" in requirement and hashes for requirement, hashes in requirements.items())
    assert "://" not in file.read_text()


def test_packages_installed_before_the_lock_have_the_versions_of_the_lock() -> None:
    project = tomllib.loads((docs_page_code_blocks.ROOT / "pyproject.toml").read_text())
    packages = tomllib.loads((docs_page_code_blocks.ROOT / "uv.lock").read_text())["package"]
    locked = {package["name"]: package.get("version", "") for package in packages}
    versions = dict(requirement.split("==") for requirement in pinned(BOOTSTRAP))
    assert {
        "uv",
        *(Requirement(requirement).name for requirement in project["build-system"]["requires"]),
    } <= set(versions)
    assert [name for name in versions if locked.get(name, versions[name]) != versions[name]] == []
    assert pinned(BOOTSTRAP)[f"uv=={versions['uv']}"] > 5, "files for each platform"


def test_the_containerfile_starts_from_a_digest() -> None:
    text = (docs_page_code_blocks.ROOT / "Containerfile").read_text()
    (base,) = re.findall(r"^ARG BASE=(\S+)$", text, re.MULTILINE)
    assert re.fullmatch(r"docker\.io/library/debian:13-slim@sha256:[0-9a-f]{64}", base)
    expected = {"${BASE}", "scratch"}
    assert {line.split()[1] for line in text.splitlines() if line.startswith("FROM ")} == expected


def test_every_installation_of_this_tree_is_by_hash() -> None:
    files = [
        docs_page_code_blocks.ROOT / "Makefile",
        docs_page_code_blocks.ROOT / "Containerfile",
        *(docs_page_code_blocks.ROOT / ".ci").iterdir(),
        *(docs_page_code_blocks.ROOT / ".github/workflows").iterdir(),
    ]
    lines = [
        line.strip() for file in files for line in file.read_text().splitlines() if "pip install" in line
    ]
    assert len(lines) >= 4
    for line in lines:
        # the project itself has no hash, because nothing is downloaded for it
        assert "--require-hashes" in line or "--no-deps --no-build-isolation --editable ." in line, line
