"""The reader of pages handles output of background jobs, and does not wait forever."""

from pathlib import Path

import pytest

from tests import docs_page_runner


def test_a_line_that_somebody_else_began_ends_a_step_all_the_same(tmp_path: Path) -> None:
    with docs_page_runner.reading(tmp_path, docs_page_runner.plain_environment()) as typing:
        # from here on, every line of the shell begins like the output of a background job
        output = typing.types("echo() { printf 'a log line %s\\n' \"$*\"; }; echo a; echo b")
        assert output.startswith("a log line a\na log line b\n")
        assert typing.types("printf c").startswith("c")


def test_the_end_of_a_shell_is_reported(tmp_path: Path) -> None:
    with (
        docs_page_runner.reading(tmp_path, docs_page_runner.plain_environment()) as typing,
        pytest.raises(AssertionError, match="ended"),
    ):
        typing.types("echo a; exit")
