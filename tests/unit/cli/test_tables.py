"""Tables in a pipe and on a terminal."""

import sys

import pytest

from nodewise.cli import tables

ROWS = [("a", "word " * 10), ("bb", "x")]


def printed_table(capsys: pytest.CaptureFixture[str]) -> list[str]:
    tables.print_table(("NAME", "WHY"), ROWS)
    return capsys.readouterr().out.splitlines()


def test_row_is_one_line_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed_table(capsys) == ["NAME  WHY", "a     " + ("word " * 10).strip(), "bb    x"]


def test_a_terminal_folds_the_last_column_and_cuts_nothing_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    lines = printed_table(capsys)
    assert " ".join(lines).split().count("word") == 10
    assert len(lines) > 3


def test_markup_in_tables_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    tables.print_table(("A", "B"), [("[bold]", "{x} [/]")])
    assert capsys.readouterr().out.splitlines()[1] == "[bold]  {x} [/]"
