"""The suites of all policies that ship: those of `examples` and of the documentation."""

from pathlib import Path
from typing import Final

import yaml

from nodewise.cli.policy_test import PolicyTestReport
from nodewise.policies.policy_objects import RESOURCES
from nodewise.policy_tools import policy_suite_parser
from nodewise.policy_tools.policy_timeline import TimelineSettings
from tests import docs_page_code_blocks
from tests.docs_page_code_blocks import ROOT, Block

SUITES: Final = ROOT / "tests/documentation_suites"


def policy_blocks() -> list[tuple[str, Block]]:
    """The blocks of pages with policies, by the name of their page and their number on it."""
    blocks: list[tuple[str, Block]] = []
    for page in docs_page_code_blocks.pages():
        own = [block for block in docs_page_code_blocks.blocks(page) if _has_policy(block)]
        blocks += [(f"{page.stem}-{number}", block) for number, block in enumerate(own, 1)]
    return blocks


def _has_policy(block: Block) -> bool:
    if block.language != "yaml":
        return False
    documents = [
        document for document in yaml.load_all(block.text, yaml.CSafeLoader) if isinstance(document, dict)
    ]
    return any(document.get("kind") in RESOURCES and "spec" in document for document in documents)


def run(folder: Path) -> PolicyTestReport:
    """The results of all suites. The policies of pages are written to an empty folder."""
    for name, block in policy_blocks():
        (folder / f"{name}.yaml").write_text(block.text)
        suite = SUITES / f"{name}-suite.yaml"
        assert suite.exists(), f"{block.where} has a policy without tests: write {suite.relative_to(ROOT)}"
        (folder / suite.name).write_text(suite.read_text())
    files = [*sorted(folder.glob("*-suite.yaml")), *sorted((ROOT / "examples").rglob("*suite.yaml"))]
    report = PolicyTestReport(
        [policy_suite_parser.read_suite(str(file)) for file in files], TimelineSettings()
    )
    report.run_tests()
    return report
