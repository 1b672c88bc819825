"""`nodewise policy test`: runs suites of tests for policies."""

import os.path
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

import click

from nodewise.agents.telemetry import KIND
from nodewise.base import clock
from nodewise.base.errors import BadInput, BadSettings, Problem, counted, did_you_mean, shown, visible
from nodewise.base.option import Argument, Option
from nodewise.cli import terminal_output
from nodewise.cli.options_from_settings import CommandLine, settings_command
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.kube.object_files import ObjectLineFinder
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policy_tools import policy_suite_adequacy, policy_suite_parser
from nodewise.policy_tools.policy_suite import PolicyTest, Suite, SuiteObject
from nodewise.policy_tools.policy_suite_adequacy import RuleCoverage
from nodewise.policy_tools.policy_suite_run import Mismatch, SuiteRunner
from nodewise.policy_tools.policy_timeline import TimelineSettings

_SUITE_FILES: Final = "*suite.yaml"
"""The files of a folder, at any depth, that are suites; hidden files and folders are left out."""


class PolicyTestOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise policy test`."""

    paths: Annotated[tuple[str, ...], Argument(metavar="FILE...", is_required=True)] = ()

    run: Annotated[str, Option(metavar="PATTERN")] = ""
    """Run only tests whose name matches this regular expression."""

    coverage: bool = False
    """List the branches of rules that no test reaches."""

    mutate: bool = False
    """List small changes of the policies that no test detects."""

    output: Annotated[Literal["text", "junit"], Option("-o --output")] = "text"
    """Output format."""


class PolicyTestResult(NamedTuple):
    suite: Suite
    test: PolicyTest
    mismatches: tuple[Mismatch, ...]
    duration_s: float


@settings_command("test", PolicyTestOptions, kinds=[KIND], short_help="Run tests of policies.")
def command(command_line: CommandLine) -> None:
    """Run the tests of policies in suites.

    FILE is a suite, or a folder, of which all files named *suite.yaml count that are not hidden. A suite has
    policies, and tests with nodes, pods, series of metrics in the notation of `promtool test rules`, and
    expectations: which nodes are rejected and why, tainted devices, ranks, node labels, suspended rules and events.
    Policies are evaluated by the code that serves requests. --coverage and --mutate show what the tests leave open:
    branches of rules that no test reaches, and mutants that no test detects. A mutant is a copy of a policy with
    another operator, target, order or treatment of missing values, or without one rule. Reasons are not compared for
    mutants, because they contain the rule itself.

    \b
    Examples:
      nodewise policy test examples
      nodewise policy test suite.yaml --run "hot nodes" --coverage
      nodewise policy test suite.yaml -o junit >results.xml

    \b
    Exit codes:
      0  every test passes
      1  a test fails, or a suite cannot be read
      2  the command line or a setting is invalid
    """
    own = command_line.settings(PolicyTestOptions)
    if own.output == "junit" and (own.coverage or own.mutate):
        raise BadSettings("settings", [Problem("-o", "junit", "text together with --coverage and --mutate")])
    suites = _read_suites(own.paths)
    telemetry = command_line.agent_options(KIND)
    assert isinstance(telemetry, TelemetryOptions)
    report = PolicyTestReport(_select_tests(suites, own.run), TimelineSettings(telemetry))
    report.run_tests()
    if own.output == "junit":
        click.echo(report.junit())
    else:
        report.print_results()
    if own.coverage:
        report.print_coverage()
    if own.mutate:
        report.print_mutants()
    if report.has_failed:
        click.get_current_context().exit(terminal_output.FAILED)


def _read_suites(paths: Sequence[str]) -> list[Suite]:
    """All suites. `BadInput` has the problems of all of them."""
    suites: list[Suite] = []
    problems: list[Problem] = []
    for path in paths:
        files = [path]
        if os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises OSError if a name is too long
            files = _find_suites(Path(path))
            if not files:
                problems.append(Problem(path, "a folder without suites", f"files named {_SUITE_FILES}"))
        for file in files:
            if file != path and (reason := policy_suite_parser.find_file_problem(file)):
                problems.append(Problem(file, reason, "a suite"))
                continue
            try:
                suites.append(policy_suite_parser.read_suite(file))
            except BadInput as error:
                problems += error.problems
    if problems:
        for problem in problems:
            expected = f", expected {problem.expected}" if problem.expected else ""
            terminal_output.print_message(f"{problem.field}: found {problem.found}{expected}")
        click.get_current_context().exit(terminal_output.FAILED)
    return suites


def _find_suites(folder: Path) -> list[str]:
    """The suites below a folder. A hidden one, such as a virtual environment, has suites of others."""
    below = [file.relative_to(folder) for file in sorted(folder.rglob(_SUITE_FILES))]
    return [str(folder / file) for file in below if not any(part.startswith(".") for part in file.parts)]


def _select_tests(suites: Sequence[Suite], pattern: str) -> list[Suite]:
    """The suites with the tests whose names match."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        expected = f"a regular expression ({error})"
        raise BadSettings("settings", [Problem("--run", shown(pattern), expected)]) from error
    selected = [
        suite._replace(tests=tuple(test for test in suite.tests if expression.search(test.name)))
        for suite in suites
    ]
    if not any(suite.tests for suite in selected):
        names = [test.name for suite in suites for test in suite.tests]
        expected = f"the name of a test or a part of it{did_you_mean(pattern, names)}"
        raise BadInput("policy test", [Problem("--run", shown(pattern), expected)])
    return [suite for suite in selected if suite.tests]


class PolicyTestReport:
    """Runs tests, and prints what they show."""

    def __init__(self, suites: Sequence[Suite], settings: TimelineSettings) -> None:
        runners = [(suite, SuiteRunner(suite, settings)) for suite in suites]
        self._runners = [(suite, runner, RuleCoverage(runner.valid_policies())) for suite, runner in runners]
        self._lines = ObjectLineFinder()
        self.results: list[PolicyTestResult] = []

    @property
    def has_failed(self) -> bool:
        return any(result.mismatches for result in self.results)

    def run_tests(self) -> None:
        now = clock.SystemClock().monotonic
        for suite, runner, coverage in self._runners:
            objects = runner.objects()
            for test in suite.tests:
                begun_s = now()
                mismatches = tuple(runner.run(test, objects, partial(coverage.observe, test)))
                self.results.append(PolicyTestResult(suite, test, mismatches, now() - begun_s))

    def print_results(self) -> None:
        source = ""
        for result in self.results:
            if result.suite.source != source:
                source = result.suite.source
                terminal_output.print_line(source)
            terminal_output.print_line(f"  {'FAIL' if result.mismatches else 'ok  '}  {result.test.name}")
            for line in _mismatch_lines(result):
                terminal_output.print_line(f"        {line}")
        failed = sum(bool(result.mismatches) for result in self.results)
        click.echo(f"{counted(len(self.results), 'test')}, {failed or 'none'} failed")

    def junit(self) -> str:
        """The results as XML that continuous integration reads (the schema of Apache Ant's JUnit task)."""
        root = ET.Element("testsuites")
        for suite, *_ in self._runners:
            results = [result for result in self.results if result.suite is suite]
            source = visible(suite.source)
            element = ET.SubElement(root, "testsuite", name=source, tests=str(len(results)))
            element.set("failures", str(sum(bool(result.mismatches) for result in results)))
            element.set("time", f"{sum(result.duration_s for result in results):.3f}")
            for result in results:
                case = ET.SubElement(element, "testcase", name=visible(result.test.name), classname=source)
                case.set("time", f"{result.duration_s:.3f}")
                if result.mismatches:
                    message = f"line {result.mismatches[0].line}: {result.mismatches[0].about}"
                    failure = ET.SubElement(case, "failure", message=visible(message))
                    failure.text = "\n".join(map(visible, _mismatch_lines(result)))
        ET.indent(root)
        return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode")

    def print_coverage(self) -> None:
        """List the branches that no test of any suite reaches, with the lines of their rules."""
        branches: dict[str, bool] = {}
        for suite, _, coverage in self._runners:
            policies = suite.policies()
            for branch in coverage.branches():
                place = self._place(branch.policy, policies[branch.policy], branch.path)
                text = f"{place}: {branch.missing}"
                branches[text] = branches.get(text, False) or branch in coverage.reached
        for text, is_reached in branches.items():
            if not is_reached:
                terminal_output.print_line(text)
        click.echo(f"coverage: tests reach {sum(branches.values())} of {len(branches)} branches of rules")

    def print_mutants(self) -> None:
        """List the mutants that no test of any suite detects."""
        if self.has_failed:
            terminal_output.print_message("no mutants: first, every test has to pass")
            return
        mutants = self.detected_mutants()
        for text, is_detected in mutants.items():
            if not is_detected:
                terminal_output.print_line(f"{text}: no test detects it")
        share = f" ({100 * sum(mutants.values()) // len(mutants)} %)" if mutants else ""
        click.echo(f"mutants: tests detect {sum(mutants.values())} of {len(mutants)}{share}")

    def detected_mutants(self) -> dict[str, bool]:
        """Whether a test detects each mutant, by place and change. A policy may be in several suites."""
        detected: dict[str, bool] = {}
        for suite, runner, _ in self._runners:
            for key, item in runner.valid_policies().items():
                for mutant in policy_suite_adequacy.mutants(key.kind, item.spec()):
                    text = f"{self._place(key, item, mutant.place)}: {mutant.change}"
                    objects = runner.objects({key: mutant.spec})
                    detected[text] = detected.get(text, False) or any(
                        any(runner.run(test, objects, with_texts=False)) for test in suite.tests
                    )
        return detected

    def _place(self, key: PolicyKey, item: SuiteObject, path: str) -> str:
        """`policy.yaml:9: web/cool: spec.avoid[0]`."""
        source = item.entry.location.source
        line = self._lines.line(item.entry.location, f"{item.path}.{path}".lstrip("."))
        return f"{source}:{line}: {key.path}: {path}" if line else f"{source}: {key.path}: {path}"


def _mismatch_lines(result: PolicyTestResult) -> Iterator[str]:
    for mismatch in result.mismatches:
        yield f"{result.suite.source}:{mismatch.line}: at {mismatch.about}"
        yield from (f"  {line}" for line in mismatch.lines)
