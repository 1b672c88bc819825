"""Terminals show external text and do not interpret it as control sequences."""

import pytest

from nodewise.base.errors import short, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param(
            "nodes of ö, 漢 and 🐳\there", "nodes of ö, 漢 and 🐳\there", id="plain words and tabs stay"
        ),
        pytest.param("a\x1b[2J\x07\x7f\x9b", r"a\x1b[2J\x07\x7f\x9b", id="controls, of both sets"),
        pytest.param("a\r\nb\u2028c", r"a\r\nb\u2028c", id="no line is begun"),
        pytest.param(
            "no\u202eyes\u2066\u200b\ufeff", r"no\u202eyes\u2066\u200b\ufeff", id="nothing turns or hides"
        ),
        pytest.param("\udcff\ue000", r"\udcff\ue000", id="what is no character"),
        pytest.param("", "", id="nothing"),
    ],
)
def test_characters_that_are_not_printable_are_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible(shown) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param(" one\r\n two\t three ", "one two three", id="one line"),
        pytest.param("a\x1bb", r"a\x1bb", id="visible"),
        pytest.param("x" * 1_000_000, "x" * 19 + "…", id="an endless text is cut"),
        pytest.param("\x1b" * 9, r"\x1b" * 4 + r"\x1…", id="escapes count as what they show"),
    ],
)
def test_a_short_text_is_one_line(text: str, shown: str) -> None:
    assert short(text, 20) == shown
