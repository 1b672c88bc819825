"""Common functions of the reference pages."""

from collections.abc import Iterable, Sequence
from typing import Final

MADE: Final = "<!-- made by `make docs`; do not edit -->\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def code(word: str) -> str:
    """Format text as code; empty text stays empty."""
    return f"`{word}`" if word else ""


def entry(names: Sequence[str], default: str, variable: str, text: str) -> str:
    """Format an option as a list item: its name, default and help."""
    notes = [default, f"environment {code(variable)}" if variable else ""]
    return f"- {' · '.join([', '.join(map(code, names)), *filter(None, notes)])}\n\n  {text}\n"
