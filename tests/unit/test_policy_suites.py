"""Every policy of the examples and of the documentation has tests, which pass and detect most mutants."""

import re
from pathlib import Path

import pytest
from bench import policy_mutants, results

from nodewise.cli.policy_test import PolicyTestReport
from nodewise.policies.policy_objects import RESOURCES
from tests import shipped_policy_suites
from tests.docs_page_code_blocks import HOW_TO, ROOT


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> PolicyTestReport:
    """The results of all suites."""
    return shipped_policy_suites.run(tmp_path_factory.mktemp("pages"))


def test_every_test_passes(report: PolicyTestReport) -> None:
    assert [result.mismatches for result in report.results if result.mismatches] == []


def test_every_policy_of_the_examples_has_a_suite() -> None:
    folders = {file.parent for file in (ROOT / "examples").rglob("*.yaml") if _is_policy_file(file)}
    assert {folder.name for folder in folders if not (folder / "tests/suite.yaml").exists()} == set()


def _is_policy_file(file: Path) -> bool:
    text = file.read_text()
    return any(re.search(rf"^kind: {kind}$", text, re.MULTILINE) for kind in RESOURCES)


def test_no_suite_is_left_over() -> None:
    names = {f"{name}-suite.yaml" for name, _ in shipped_policy_suites.policy_blocks()}
    assert {file.name for file in shipped_policy_suites.SUITES.iterdir()} == names


def test_the_suites_detect_the_published_share_of_mutants(report: PolicyTestReport) -> None:
    mutants = report.detected_mutants()
    missed = [text for text, is_detected in mutants.items() if not is_detected]
    figures = policy_mutants.figures(mutants)
    assert figures.items() <= results.read().items(), (figures, missed)
    share = figures["policy_mutants_detected_pct"]
    assert share >= (results.FIGURES["policy_mutants_detected_pct"].at_least or 0), missed
    page = (HOW_TO / "test-policies.md").read_text()
    assert f"detect {share:g} % of their mutants" in " ".join(page.split())
