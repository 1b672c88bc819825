"""Log events: each one is a single line, whatever external text it contains."""

import json
from typing import Any

import pytest

from nodewise.observe import logs

EVIL = "no\x1b[2J\u202e\nKIND all is well"


def logged(capsys: pytest.CaptureFixture[str], form: logs.Format, **fields: Any) -> str:
    logs.configure("info", form)
    logs.emit("metric_failed", **fields)
    return capsys.readouterr().err


def test_words_of_others_begin_no_line_and_move_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    line = logged(capsys, "text", error=EVIL, problems=[EVIL], node="\x9b2J", count=2)
    assert line.count("\n") == 1
    assert line.strip().isprintable()
    assert r"no\x1b[2J\u202e\nKIND all is well" in line
    assert r"node='\x9b2J'" in line
    assert "count=2" in line


def test_collectors_get_them_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    line = logged(capsys, "json", error=EVIL)
    assert json.loads(line)["error"] == EVIL
    assert line.strip().isprintable()


@pytest.mark.parametrize("form", ["text", "json"])
def test_traceback_is_logged(capsys: pytest.CaptureFixture[str], form: logs.Format) -> None:
    with pytest.raises(ValueError, match="no") as failed:
        raise ValueError(EVIL)
    output = logged(capsys, form, exc_info=failed.value)
    assert "Traceback (most recent call last)" in output
    assert r"no\x1b[2J\u202e" in output.replace(r"\u001b", r"\x1b")
    assert all(line.isprintable() for line in output.split("\n"))
    assert output.count("\n") > 3 if form == "text" else output.count("\n") == 1


@pytest.mark.parametrize(("no_color", "colored"), [("", True), ("1", False)])
def test_a_terminal_has_colors_unless_no_color_is_set(
    no_color: str, colored: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert ("\x1b[" in logged(capsys, "text", error="x")) == colored
