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


def entry(names: Sequence[str], default: str, variable: str, text: str) -> str:
    """An option in a list: what is typed, what holds where nothing is said, and what it means."""
    notes = [default, f"environment {code(variable)}" if variable else ""]
    return f"- {' · '.join([', '.join(map(code, names)), *filter(None, notes)])}\n\n  {text}\n"
