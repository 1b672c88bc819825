"""What all reference pages are made with."""

from collections.abc import Iterable, Sequence
from typing import Final

MADE: Final = "<!-- made by `make docs`; do not edit -->\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def code(word: str) -> str:
    """A word as code, or nothing."""
    return f"`{word}`" if word else ""
