"""Log events: each one is a single line, whatever external text it contains."""

import json
import re
import subprocess
import sys
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


@pytest.mark.parametrize(
    ("event", "fields", "expected"),
    [
        ("cpu_huge_pages", {}, "Warning: No huge page is free; workloads that need some will not start"),
        (
            "metric_failed",
            {"metric": "node_load1", "error": EVIL},
            (
                "Warning: A metric could not be fetched; its last values stay in use and age (metric: node_load1):"
                r" no\x1b[2J\u202e\nKIND all is well"
            ),
        ),
        (
            "metric_in_two_sources",
            {"metric": "load", "used": "custom", "unused": "prometheus"},
            (
                "A metric is available from custom and prometheus; the order of `--metrics` decides. Logged once per"
                " metric (metric: load)"
            ),
        ),
        ("cpu_pool", {"pool": "shared", "lists": ""}, "The pool shared of the node gets the CPU lists none"),
        ("certificate_expired", {}, "Error: A certificate in use has expired. Renew it. Logged once a day"),
    ],
)
def test_a_command_prints_an_event_as_a_sentence(
    event: str, fields: dict[str, str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("info", "messages")
    logs.emit(event, **fields)
    assert capsys.readouterr().err == f"nodewise: {expected} [{event}]\n"


def test_every_event_is_a_sentence_with_the_values_of_its_fields() -> None:
    for event, (_, meaning) in logs.EVENTS.items():
        names = set(re.findall(r"`([a-z_]+)`", meaning))
        text = logs.sentence(event, {name: f"<{name}>" for name in names} | {"other": "<other>"})
        assert re.match(r"\S.*[^.;: ]$", text), event
        assert [name for name in {*names, "other"} if text.count(f"<{name}>") != 1] == [], event


def test_a_server_on_a_terminal_shows_the_meaning_of_warnings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    meaning = logs.EVENTS["metric_failed"].meaning
    assert meaning not in logged(capsys, "text", error="x")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert f"metric_failed: {meaning}" in logged(capsys, "text", error="x")
    logs.emit("metric_back", metric="load")
    assert logs.EVENTS["metric_back"].meaning not in capsys.readouterr().err


def test_a_command_that_logs_nothing_does_not_import_structlog() -> None:
    program = (
        "import sys; from nodewise.observe import logs; logs.configure('warning', 'messages');"
        " logs.emit('metric_back', metric='x') if sys.argv[1:] else None; print('structlog' in sys.modules)"
    )
    for words, imported in (([], "False\n"), (["log"], "True\n")):
        done = subprocess.run(
            [sys.executable, "-c", program, *words], check=True, capture_output=True, text=True
        )
        assert (done.stdout, done.stderr) == (imported, "")
