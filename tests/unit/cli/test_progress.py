"""Progress appears after a delay, only on a terminal, and disappears at the end."""

import sys

import pytest

from nodewise.cli import terminal_output
from nodewise.cli.terminal_output import Progress


def test_progress_is_not_written_to_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as running:
        running.say("reading")
    assert capsys.readouterr() == ("", "")


def test_progress_of_a_quick_step_is_not_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Progress() as running:
        running.say("reading")
    assert "reading" not in capsys.readouterr().err


def test_progress_of_a_slow_step_is_shown_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(terminal_output, "LATE_S", 0.0)
    with Progress() as running:
        running.say("reading 12,000 pods")
        running._timer.join()
    output = capsys.readouterr()
    assert "reading 12,000 pods" in output.err
    assert output.out == ""


def test_progress_shows_markup_and_control_characters_as_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(terminal_output, "LATE_S", 0.0)
    with Progress() as running:
        running.say("asking https://[fe80::1]/[/x]\x1b[2J")
        running._timer.join()
    assert r"asking https://[fe80::1]/[/x]\x1b[2J" in capsys.readouterr().err
