"""Errors are one line on stderr, also with control characters in messages of servers."""

import pytest

from nodewise.base.errors import Refused
from nodewise.cli import main


def printed_error(capsys: pytest.CaptureFixture[str], text: str) -> str:
    main.print_error(Refused(text), 1)
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("message", "line"),
    [
        pytest.param("it is forbidden: ö, 漢", "it is forbidden: ö, 漢", id="plain words stay"),
        pytest.param("no\x1b[2J\x07", r"no\x1b[2J\x07", id="what a terminal obeys is shown"),
        pytest.param("no\r\n  yes\n", "no yes", id="a second line is not forged"),
        pytest.param("no\u202eyes\x9b", r"no\u202eyes\x9b", id="nor is writing turned round"),
    ],
)
def test_error_is_one_printable_line(capsys: pytest.CaptureFixture[str], message: str, line: str) -> None:
    assert printed_error(capsys, message) == f"nodewise: {line}\n"


def test_long_error_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(printed_error(capsys, "x" * 1_000_000)) < 20_000
