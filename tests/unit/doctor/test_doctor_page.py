"""docs/how-to/doctor.md describes each finding, and docs/rights.md lists the rights of deploy/doctor.yaml."""

import re
from pathlib import Path

import pytest
import yaml

from nodewise.doctor.findings import CATALOGUE, finding
from tests.cluster import rbac_rights_comparison

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/how-to/doctor.md"
RIGHTS = ROOT / "docs/rights.md"
MANIFEST = ROOT / "deploy/doctor.yaml"


def escape_markdown(text: str) -> str:
    """The text with escaped stars and brackets outside of code."""
    parts = re.split(r"(`[^`]*`|\*\*)", text)
    return "".join(part if at % 2 else re.sub(r"([*<])", r"\\\1", part) for at, part in enumerate(parts))


def parse_sections() -> dict[str, str]:
    """The page's sections by heading, each as one line."""
    parts = re.split(r"^### (.+)\n", PAGE.read_text(), flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def test_the_page_has_a_section_for_each_finding_in_their_order() -> None:
    assert list(parse_sections()) == list(CATALOGUE)


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_section_has_the_title_and_severity_of_the_program(name: str) -> None:
    kind = CATALOGUE[name]
    heading = escape_markdown(f"**{kind.title}** ({kind.severity}). ")
    assert parse_sections()[name].startswith(heading), f"it should begin with:\n{heading}"


def test_findings_name_their_section() -> None:
    page, _, anchor = finding("unknown-ca", "entry", "found", "expected").doc.partition("#")
    assert ROOT / page == PAGE
    assert anchor in parse_sections()


def test_the_table_of_rights_has_a_row_for_each() -> None:
    shipped = [manifest for manifest in yaml.load_all(MANIFEST.read_text(), yaml.CSafeLoader) if manifest]
    assert {
        (right.verb, right.resource, right.group) for right in rbac_rights_comparison.granted(shipped)
    } == parse_rights_table()


def parse_rights_table() -> set[tuple[str, str, str]]:
    """Verb, resource and group of each row of the page's table."""
    own = RIGHTS.read_text().partition("`deploy/doctor.yaml`\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[a-z]+`) \| (`.+?`) \| (\S+) \| ", own, re.MULTILINE)
    return {
        (verb.strip("`"), resource, "" if group == "core" else group.strip("`"))
        for verb, resources, group in rows
        for resource in re.findall(r"`(.+?)`", resources)
    }
