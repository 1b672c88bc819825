"""`--watch` shows an answer again when it changes."""

import asyncio
from collections.abc import Iterator

import pytest

from nodewise.base.clock import ManualClock
from nodewise.base.errors import Refused, Unavailable
from nodewise.cli import terminal_output

PERIOD_S = 2.0


class EndOfScriptError(Exception):
    """The script has no further answer."""


def shown_answers(*script: str | Exception) -> list[str]:
    """What `show_changes` shows for a sequence of answers; what follows a colon does not count."""
    answers: Iterator[str | Exception] = iter([*script, EndOfScriptError()])
    shown: list[str] = []

    async def compute() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def watch() -> None:
        clock = AutomaticClock()
        await terminal_output.show_changes(
            compute, lambda answer: answer.partition(":")[0], shown.append, PERIOD_S, clock
        )

    with pytest.raises(EndOfScriptError):
        asyncio.run(watch())
    return shown


class AutomaticClock(ManualClock):
    """Time passes as soon as somebody waits for it."""

    async def sleep(self, seconds: float) -> None:
        assert seconds == PERIOD_S
        await asyncio.sleep(0)


def test_an_answer_that_changes_is_shown_again() -> None:
    assert shown_answers("a:1", "a:2", "b:3", "b:4", "a:5") == ["a:1", "b:3", "a:5"]


def test_a_failure_after_the_first_answer_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    away = Unavailable("no answer")
    assert shown_answers("a:1", away, away, "a:2", away, "b:3") == ["a:1", "b:3"]
    assert capsys.readouterr().err == "nodewise: no answer\nnodewise: no answer\n"


def test_a_failure_before_the_first_answer_is_an_error() -> None:
    with pytest.raises(Unavailable):
        shown_answers(Unavailable("no answer"))


def test_a_right_that_is_taken_away_is_an_error() -> None:
    with pytest.raises(Refused):
        shown_answers("a:1", Refused("forbidden"))
