"""The manifest of the kubectl plugin, by the rules of krew (`internal/index/validation`) and of its index."""

import re
from pathlib import Path

import pytest
import yaml
from tools import kubectl_plugin

import nodewise

URL = "https://example.org/team/nodewise"


@pytest.fixture
def archives(tmp_path: Path) -> list[Path]:
    for platform in ("linux-arm64", "linux-amd64"):
        (tmp_path / f"kubectl-nodewise-{nodewise.__version__}-{platform}.tar.gz").write_text(platform)
    (tmp_path / "kubectl-nodewise-0.0.1-linux-amd64.tar.gz").write_text("another version")
    return kubectl_plugin.find_archives(tmp_path)


def test_the_manifest_has_a_platform_for_each_archive_of_the_version(archives: list[Path]) -> None:
    manifest = yaml.load(kubectl_plugin.manifest(archives, URL), yaml.CSafeLoader)
    spec = manifest["spec"]
    assert (spec["version"], spec["homepage"]) == (f"v{nodewise.__version__}", URL)
    expected = [{"os": "linux", "arch": "amd64"}, {"os": "linux", "arch": "arm64"}]
    assert [platform["selector"]["matchLabels"] for platform in spec["platforms"]] == expected
    for platform, archive in zip(spec["platforms"], archives, strict=True):
        assert platform["uri"] == f"{URL}/releases/download/v{nodewise.__version__}/{archive.name}"
        assert re.fullmatch(r"[a-f0-9]{64}", platform["sha256"])
        assert platform["bin"] == "kubectl-nodewise"


def test_the_template_follows_the_rules_of_the_index() -> None:
    template = yaml.load(kubectl_plugin.TEMPLATE.read_text(), yaml.CSafeLoader)
    assert template["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert (template["kind"], template["metadata"]) == ("Plugin", {"name": kubectl_plugin.TEMPLATE.stem})
    short = template["spec"]["shortDescription"]
    assert "\n" not in short
    assert "kubectl" not in short.lower()
    assert len(short) <= 50
    for name in ("description", "caveats"):
        assert max(map(len, template["spec"][name].splitlines())) <= 100
