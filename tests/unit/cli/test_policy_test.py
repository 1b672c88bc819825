"""`nodewise policy test`: results, exit codes, coverage and mutants."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nodewise.cli import policy_test
from tests.unit.policy_tools.policy_suite_texts import POLICY, TEST

_PASSES = "  - {eval_time: 1m, pod: web/web-1, rejected: [a], ranks: {c: 1, b: 2}}\n"
_FAILS = "  - {eval_time: 1m, pod: web/web-1, rejected: [b]}\n"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "tests" / "suite.yaml"
    path.parent.mkdir()
    path.write_text(POLICY + TEST + _PASSES)
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(policy_test.command, [*map(str, arguments)])


def test_tests_that_pass(suite: Path) -> None:
    result = run(suite.parent.parent)
    assert result.stdout == f"{suite}\n  ok    heat\n1 test, none failed\n"
    assert result.exit_code == 0


def test_hidden_folders_have_no_suites(suite: Path) -> None:
    hidden = suite.parent / ".venv/broken-suite.yaml"
    hidden.parent.mkdir()
    hidden.write_text("tests: []\n")
    assert run(suite.parent.parent).exit_code == 0
    assert run(hidden).exit_code == 1


def test_a_test_that_fails(suite: Path) -> None:
    suite.write_text(
        POLICY + TEST + _FAILS + TEST.replace("\ntests:\n", "").replace("heat", "cold") + _PASSES
    )
    result = run(suite)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        str(suite),
        "  FAIL  heat",
        f"        {suite}:30: at 1m, pod web/web-1, rejected",
        "          + a: placement policy web/cool: temp above 80",
        "          - b: rejected",
        "  ok    cold",
        "2 tests, 1 failed",
    ]
    assert run(suite, "--run", "^co").exit_code == 0


def test_junit(suite: Path) -> None:
    suite.write_text(POLICY + TEST + _FAILS)
    result = run(suite, "-o", "junit")
    assert result.exit_code == 1
    [element] = ET.fromstring(result.stdout)
    assert (element.get("name"), element.get("tests"), element.get("failures")) == (str(suite), "1", "1")
    [case] = element
    failure = case.find("failure")
    assert case.get("name") == "heat"
    assert failure is not None
    assert failure.get("message") == "line 30: 1m, pod web/web-1, rejected"
    assert "- b: rejected" in (failure.text or "")


def test_coverage_lists_unreached_branches(suite: Path) -> None:
    lines = run(suite, "--coverage").stdout.splitlines()
    assert f"{suite}:9: web/cool: policies[0].spec.avoid[0]: no node is without a value" not in lines
    assert lines[3:] == [
        f"{suite}:9: web/cool: spec.avoid[0]: no node is without a value",
        f"{suite}:17: drain: spec.nodeLabels[0]: no node meets it",
        f"{suite}:17: drain: spec.nodeLabels[0]: every node meets it",
        f"{suite}:17: drain: spec.nodeLabels[0]: no node is without a value",
        "coverage: tests reach 4 of 8 branches of rules",
    ]


def test_mutants_that_no_test_detects(suite: Path) -> None:
    lines = run(suite, "--mutate").stdout.splitlines()
    assert f"{suite}:9: web/cool: spec.avoid[0].above: above → atLeast: no test detects it" in lines
    assert f"{suite}:9: web/cool: spec.avoid[0].above: 80 → 72: no test detects it" in lines
    assert f"{suite}:17: drain: spec.nodeLabels[0]: removed: no test detects it" in lines
    assert not any("removed" in line for line in lines if "avoid" in line)
    assert lines[-1].startswith("mutants: tests detect ")
    suite.write_text(POLICY + TEST + _FAILS)
    assert "no mutants: first, every test has to pass" in run(suite, "--mutate").stderr


def test_states_and_canaries_have_branches_and_mutants(suite: Path) -> None:
    policy = """
policies:
- apiVersion: nodewise.io/v1alpha1
  kind: PlacementPolicy
  metadata: {name: cool, namespace: web}
  spec:
    podSelector: {}
    mode: Canary
    canary: {podSelector: {matchLabels: {track: canary}}}
    avoid:
    - {metric: temp, above: 80, for: 2m, release: 70}
"""
    test = """
tests:
- name: heat
  nodes: [a, b, c]
  pods:
  - {name: web-1, namespace: web}
  - {name: canary, namespace: web, labels: {track: canary}}
  input_series:
  - {series: 'temp{node="a"}', values: 85x3 75x9}
  - {series: 'temp{node="b"}', values: 80x9}
  expect:
  - {eval_time: 2m, pod: web/canary, rejected: [a]}
"""
    suite.write_text(policy + test)
    lines = run(suite, "--coverage", "--mutate").stdout.splitlines()
    assert [line.partition(": web/cool: ")[2] or line for line in lines[3:] if "→ 8" not in line] == [
        "spec.avoid[0]: no node meets it for less than for",
        "spec.avoid[0]: no node is still rejected that no longer meets it",
        "spec.canary: every pod is part of the canary",
        "coverage: tests reach 4 of 7 branches of rules",
        "spec.avoid[0].release: removed: no test detects it",
        "spec.mode: Canary → Enforce: no test detects it",
        "spec.avoid[0].for: removed: no test detects it",
        "mutants: tests detect 7 of 10 (70 %)",
    ]
    others = """
  - {eval_time: 1m, pod: web/canary, rejected: []}
  - {eval_time: 2m, pod: web/web-1, rejected: []}
  - {eval_time: 4m, pod: web/canary, rejected: [a]}
"""
    suite.write_text(policy + test + others)
    lines = run(suite, "--coverage", "--mutate").stdout.splitlines()
    expected = ["coverage: tests reach 7 of 7 branches of rules", "mutants: tests detect 10 of 10 (100 %)"]
    assert lines[3:] == expected
    # a policy of the mode Shadow is tested as if it were enforced
    suite.write_text(policy.replace("Canary", "Shadow") + test)
    assert "1 test, none failed" in run(suite).stdout


@pytest.mark.parametrize("rule", ["5", "{metric: temp, above: hot}"])
def test_a_policy_with_problems_has_neither_branches_nor_mutants(suite: Path, rule: str) -> None:
    invalid = POLICY.replace("{metric: temp, above: 80}", rule)
    test = "".join(line for line in TEST.splitlines(keepends=True) if "power" not in line)
    suite.write_text(invalid + test + "  - {eval_time: 1m, pod: web/web-1, rejected: [a, b, c]}\n")
    result = run(suite, "--coverage", "--mutate")
    assert result.exit_code == 0, result.output
    assert "drain" in result.stdout
    assert "web/cool" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--run", "["], "--run: '['; expected a regular expression"),
        (
            ["--run", "haet"],
            "--run: 'haet'; expected the name of a test or a part of it; did you mean \"heat\"?",
        ),
        (["-o", "junit", "--mutate"], "-o: junit; expected text together with --coverage and --mutate"),
    ],
)
def test_wrong_options(suite: Path, arguments: list[str], message: str) -> None:
    assert message in str(run(suite, *arguments).exception)


def test_a_policy_is_no_suite(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("{apiVersion: nodewise.io/v1alpha1, kind: PlacementPolicy}")
    result = run(file)
    assert result.exit_code == 1
    expected = "expected a suite with the tests of policies; nodewise policy lint checks a policy"
    assert result.stderr == f"nodewise: {file}: found an object of kind 'PlacementPolicy', {expected}\n"


def test_problems_of_all_suites_are_printed_by_line(suite: Path, tmp_path: Path) -> None:
    suite.write_text(POLICY + "test: []\n")
    other = tmp_path / "other-suite.yaml"
    other.write_text("tests: 3\n")
    result = run(tmp_path)
    assert result.exit_code == 1
    assert f"nodewise: {suite}:18: test: found an unknown field, expected policy_files" in result.stderr
    assert f"nodewise: {other}:1: found no policy, expected policy_files or policies" in result.stderr
    suite.unlink()
    assert "a folder without suites" in run(suite.parent).stderr
