"""The terminal in README shows what the commands print."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from tools import terminal_picture
from tools.terminal_picture import Step

SVG = "{http://www.w3.org/2000/svg}"


def rows(picture: str) -> list[str]:
    """The lines of a picture."""
    groups = ET.fromstring(picture).iter(f"{SVG}g")
    return [" ".join(text.text or "" for text in group.iter(f"{SVG}text")) for group in groups]


@pytest.fixture(scope="module")
def committed() -> str:
    return terminal_picture.PICTURE.read_text()


def test_it_has_the_output_of_the_commands_that_read_files(committed: str, tmp_path: Path) -> None:
    shown = "\n".join(rows(committed))
    for step in terminal_picture.offline_steps(tmp_path):
        assert "\n".join(rows(terminal_picture.draw([step]))) in shown, "run `make pictures`"


def test_it_shows_explain_with_values_and_a_counterfactual(committed: str) -> None:
    shown = "\n".join(rows(committed))
    assert "$ nodewise explain health-metric-demo/demo-app-5" in shown
    assert "What would have changed it:" in shown


def test_it_is_small_and_refers_to_nothing(committed: str) -> None:
    assert len(committed) < 20_000
    assert re.findall(r"url\(|href|@import|<image|<script", committed) == []


def test_lines_are_wrapped_and_keep_their_colors() -> None:
    width = terminal_picture.COLUMNS
    output = f"\x1b[31mred\x1b[0m <plain>\n\n{'x' * (width + 1)}\n"
    picture = terminal_picture.draw([Step("command", output)])
    assert rows(picture) == ["$ command", "red <plain>", "x" * width, "x"]
    assert 'class="red">red<' in picture
