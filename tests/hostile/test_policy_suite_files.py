"""Suites of `nodewise policy test` that a stranger wrote, as in a pull request: none crashes or hangs the command,
exhausts the memory, or forges output.
"""

import os
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from click.testing import CliRunner, Result

from nodewise.base.errors import BadInput
from nodewise.cli import policy_test
from nodewise.policy_tools import policy_suite_parser
from nodewise.policy_tools.policy_suite_run import SuiteRunner
from nodewise.policy_tools.policy_timeline import TimelineSettings
from tests.unit.policy_tools.policy_suite_texts import POLICY, TEST

PASSES: Final = "  - {eval_time: 1m, pod: web/web-1, rejected: [a], ranks: {c: 1, b: 2}}\n"
EVERYTHING: Final = (
    PASSES
    + '  - {eval_time: 2m, labels: {a: {heat.nodewise.io/drain: "true"}}, suspended: [], events: []}\n'
    + "  - {eval_time: 3m, events: [{pod: web/web-1, reason: NoNodePasses}, {policy: web/cool, reason: Lost}]}\n"
)
OTHER_VALUES: Final[list[Any]] = [
    *(None, True, 0, -1, float("inf"), float("nan"), 1e308, 10**400),
    *("", "x", "\x1b[31m\u202e", "99999999999999h", "100000h", "x" * 5_000),
    *([], [[]], [1], {}, {"a": 1}, {"a": {"b": []}}),
]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(policy_test.command, [*map(str, arguments)])


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inner:
        yield from _places(child, (*path, key))


def _replaced(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = deepcopy(document)
    parent = changed
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    return changed


@pytest.mark.parametrize("value", OTHER_VALUES, ids=lambda value: repr(value)[:20])
def test_any_value_in_any_place_is_a_problem_or_a_result(tmp_path: Path, value: Any) -> None:
    document = yaml.load(POLICY + TEST + EVERYTHING, yaml.CSafeLoader)
    file = tmp_path / "suite.yaml"
    for path in _places(document):
        file.write_text(yaml.dump(_replaced(document, path, value), Dumper=yaml.CSafeDumper))
        try:
            suite = policy_suite_parser.read_suite(str(file))
        except BadInput:
            continue
        runner = SuiteRunner(suite, TimelineSettings())
        runner.valid_policies()
        for test in suite.tests:
            list(runner.run(test, runner.objects()))


def test_few_lines_do_not_expand_to_many_values(tmp_path: Path) -> None:
    """100 series of 100,000 values took 690 MB."""
    series = "".join(f'  - {{series: \'temp{{node="a",x="{x}"}}\', values: 80x99998}}\n' for x in range(100))
    file = tmp_path / "suite.yaml"
    file.write_text(POLICY + TEST.replace("  expect:\n", f"{series}  expect:\n") + PASSES)
    result = run(file)
    assert result.exit_code == 1
    [line] = result.stderr.splitlines()
    assert line.endswith(
        "found more than 1000000 values in the suite, expected fewer values, or a second suite"
    )


def test_few_lines_do_not_expand_to_many_evaluations(tmp_path: Path) -> None:
    test = "- {name: t%d, nodes: [a], expect: [{eval_time: 19000m, suspended: []}]}\n"
    file = tmp_path / "suite.yaml"
    file.write_text(POLICY + "tests:\n" + "".join(test % number for number in range(100)))
    result = run(file)
    assert result.exit_code == 1
    [line] = result.stderr.splitlines()
    assert "tests[10]: found 209000 evaluations of the suite, expected at most 200000" in line


def test_aliases_do_not_expand_to_many_tests(tmp_path: Path) -> None:
    rows = "".join(f"- &a{n + 1} [{', '.join([f'*a{n}'] * 20)}]\n" for n in range(6))
    file = tmp_path / "suite.yaml"
    file.write_text(f"tests:\n- &a0 [x]\n{rows}")
    assert "aliases expand" in run(file).stderr


@pytest.mark.parametrize("named_by", ["folder", "suite"])
@pytest.mark.parametrize("kind", ["pipe", "device", "large file"])
def test_files_that_never_end_are_not_read(tmp_path: Path, kind: str, named_by: str) -> None:
    """The size and the kind are checked before the file is opened: to open a pipe would wait for its other end."""
    file = tmp_path / "other-suite.yaml"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        with file.open("wb") as sparse:
            sparse.truncate(2**40)
    if named_by == "suite":
        (tmp_path / "first").write_text(f"policy_files: [{file.name}]\n" + TEST + PASSES)
    result = run(tmp_path if named_by == "folder" else tmp_path / "first")
    assert result.exit_code == 1
    expected = (
        "bytes, expected at most 16777216" if kind == "large file" else "found a pipe, socket or device"
    )
    assert expected in result.stderr.replace(f"{file.name}: ", "found ")


def test_a_suite_does_not_read_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("suite.yaml").write_text("policy_files: ['-']\n" + TEST + PASSES)
    result = CliRunner().invoke(policy_test.command, ["suite.yaml"], input=POLICY)
    assert "policy_files[0]: found -: No such file or directory" in result.stderr


def test_a_name_does_not_forge_lines_or_colors(tmp_path: Path) -> None:
    folder = tmp_path / "a\x1b[31m"
    folder.mkdir()
    file = folder / "suite.yaml"
    file.write_text(
        POLICY + TEST.replace("name: heat", 'name: "heat\\e[2J\\u202e\\n  ok    fake"') + EVERYTHING
    )
    for output in run(file).stdout, run(file, "-o", "junit").stdout:
        assert "\x1b" not in output
        assert "\u202e" not in output
        assert "\n  ok    fake" not in output
    ET.fromstring(run(file, "-o", "junit").stdout)
