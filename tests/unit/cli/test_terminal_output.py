"""Output on a terminal and in a pipe: tables, progress, errors, `--watch`, and control characters of external text."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from nodewise.base.errors import Refused, Unavailable
from nodewise.cli import agents, explain, main, policy, terminal_output
from nodewise.cli.configure import host
from nodewise.cli.explain import rendering
from nodewise.cli.explain.explanation import PodExplanation
from nodewise.cli.explain.pod_state import PodReadResult
from nodewise.cli.explain.replica_queries import ReplicaResponse
from nodewise.cli.terminal_output import Progress
from nodewise.engine.decision_json import DecisionPage
from nodewise_cpu import configmap_store
from nodewise_cpu.workload import isolate
from tests.manual_clock import ManualClock

EVIL = "no\x1b[2J\u202e\x9b31m\rKIND all is well"
SHOWN = r"no\x1b[2J\u202e\x9b31m\rKIND all is well"
HERE = ReplicaResponse(
    "https://here",
    DecisionPage(decisions=[], found=0, tries=0, since=None, kept=0, kept_since=None),
)


def failed_response(why: str) -> ReplicaResponse:
    return ReplicaResponse("https://gone", None, error=why)


def print_messages(lookup: PodReadResult, *responses: ReplicaResponse) -> None:
    for message in explain._messages(PodExplanation("web/shop", lookup, responses, None, 0.0)):
        terminal_output.print_message(message)


OUTPUTS: dict[str, Callable[[str], object]] = {
    "a line": terminal_output.print_line,
    "a line on standard error": terminal_output.print_message,
    "a cell": lambda text: terminal_output.print_table(("A", "B"), [("x", text)]),
    "a story": lambda text: rendering._print_lines(iter([text])),
    "a replica that is left out": lambda text: print_messages(
        PodReadResult(None), HERE, failed_response(text)
    ),
    "why a pod's state is not known": lambda text: print_messages(PodReadResult(None, error=text), HERE),
    "configure": host.print_message,
    "what changes in a file": lambda text: click.echo(host.unified_diff("x", b"", text.encode()), nl=False),
    "who held a node's book": configmap_store._warn,
    "isolate": lambda text: isolate.print_log_line("error", text),
    "another package's agent": lambda text: click.echo(agents._escape_markup(text)),
}


@pytest.mark.parametrize("show", OUTPUTS.values(), ids=OUTPUTS)
def test_control_characters_are_escaped(
    capsys: pytest.CaptureFixture[str], show: Callable[[str], object]
) -> None:
    show(EVIL)
    printed = "".join(capsys.readouterr())
    assert SHOWN in printed
    assert all(line.isprintable() for line in printed.split("\n"))


def test_control_characters_in_fields_of_policies_are_escaped(tmp_path: Path) -> None:
    rule = {"metricname": "m", "operator": "LessThan", "target": 1, EVIL: 1}
    (tmp_path / "policy.yaml").write_text(
        yaml.safe_dump(
            {
                "apiVersion": "telemetry.intel.com/v1alpha1",
                "kind": "TASPolicy",
                "metadata": {"name": "p", "namespace": "default"},
                "spec": {"strategies": {"dontschedule": {"rules": [rule]}}},
            }
        )
    )
    done = CliRunner().invoke(policy.command, ["lint", str(tmp_path)])
    assert SHOWN in done.output
    assert all(line.isprintable() for line in done.output.split("\n"))


ERRORS = {
    "plain words stay": ("it is forbidden: ö, 漢", "it is forbidden: ö, 漢"),
    "control characters are shown": ("no\x1b[2J\x07", r"no\x1b[2J\x07"),
    "a second line is not forged": ("no\r\n  yes\n", "no yes"),
    "the writing direction stays": ("no\u202eyes\x9b", r"no\u202eyes\x9b"),
    "a long error is cut": ("x" * 1_000_000, "x" * 9_999 + "…"),
}


@pytest.mark.parametrize(("message", "line"), ERRORS.values(), ids=ERRORS)
def test_error_is_one_printable_line(capsys: pytest.CaptureFixture[str], message: str, line: str) -> None:
    main.print_error(Refused(message), 1)
    assert capsys.readouterr().err == f"nodewise: {line}\n"


def test_row_is_one_line_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    terminal_output.print_table(("NAME", "WHY"), [("a", "word " * 10), ("[bold]", "{x} [/]")])
    actual = capsys.readouterr().out.splitlines()
    assert actual == ["NAME    WHY", "a       " + ("word " * 10).strip(), "[bold]  {x} [/]"]


def test_a_terminal_folds_the_last_column_and_cuts_nothing_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    terminal_output.print_table(("NAME", "WHY"), [("a", "word " * 10)])
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(lines).split().count("word") == 10
    assert len(lines) > 2


@pytest.mark.parametrize(
    ("is_terminal", "late_s", "is_shown"), [(False, 0.0, False), (True, 60.0, False), (True, 0.0, True)]
)
def test_progress_of_a_slow_step_is_shown_on_a_terminal(
    is_terminal: bool,
    late_s: float,
    is_shown: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    monkeypatch.setattr(terminal_output, "LATE_S", late_s)
    with Progress() as running:
        running.say("asking https://[fe80::1]/[/x]\x1b[2J")
        if is_shown:
            running._timer.join()
    output = capsys.readouterr()
    assert (r"asking https://[fe80::1]/[/x]\x1b[2J" in output.err) == is_shown
    assert output.out == ""
    assert is_terminal or output.err == ""


PERIOD_S = 2.0


class EndOfScriptError(Exception):
    """The script has no further answer."""


class AutomaticClock(ManualClock):
    """A sleep ends at once."""

    async def sleep(self, seconds: float) -> None:
        assert seconds == PERIOD_S
        await asyncio.sleep(0)


def shown_answers(*script: str | Exception) -> list[str]:
    """What `show_changes` shows for a sequence of answers; what follows a colon does not count."""
    answers: Iterator[str | Exception] = iter([*script, EndOfScriptError()])
    shown: list[str] = []

    async def compute() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    watching = terminal_output.show_changes(
        compute, lambda answer: answer.partition(":")[0], shown.append, PERIOD_S, AutomaticClock()
    )
    with pytest.raises(EndOfScriptError):
        asyncio.run(watching)
    return shown


def test_an_answer_that_changes_is_shown_again() -> None:
    assert shown_answers("a:1", "a:2", "b:3", "b:4", "a:5") == ["a:1", "b:3", "a:5"]


def test_a_failure_after_the_first_answer_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    away = Unavailable("no answer")
    assert shown_answers("a:1", away, away, "a:2", away, "b:3") == ["a:1", "b:3"]
    assert capsys.readouterr().err == "nodewise: no answer\nnodewise: no answer\n"


@pytest.mark.parametrize("script", [[Unavailable("no answer")], ["a:1", Refused("forbidden")]])
def test_a_failure_at_first_and_a_refusal_at_any_time_are_errors(script: list[str | Exception]) -> None:
    with pytest.raises((Unavailable, Refused)):
        shown_answers(*script)
