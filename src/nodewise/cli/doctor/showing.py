"""A report for people, grouped by severity, and as JSON for programs."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.text import Text

from nodewise.configure.doctor.findings import PAGE, Finding, Report, Severity

_HEADS: Final[dict[Severity, tuple[str, str]]] = {
    "error": ("Wrong", "bold red"),
    "warning": ("Doubtful", "bold yellow"),
    "note": ("Good to know", "bold cyan"),
}
_WIDEST: Final = 110
_NARROWEST: Final = 20
_INDENT: Final = 4
_LABEL: Final = 10
"""Columns of a label."""


def table(report: Report, *, color: bool) -> None:
    """Findings by severity, each id once with all the objects that it is about."""
    console = Console(highlight=False, no_color=not color)
    console.width = min(console.width, _WIDEST)
    for severity, (head, style) in _HEADS.items():
        found = [one for one in report.findings if one.severity == severity]
        if found:
            _say(console, Text(head, style), 0)
            for id_, same in groupby(found, key=lambda one: one.id):
                _kind(console, id_, list(same))
            console.print()
    _say(console, Text(_ending(report)), 0)
    if report.findings:
        _say(console, Text(f"More of each: {PAGE}, by its id."), 0)


def _kind(console: Console, id_: str, found: Sequence[Finding]) -> None:
    _say(console, Text.assemble((id_, "bold"), "  ", found[0].title), 2)
    for at, one in enumerate(found):
        _say(console, Text(one.object), _INDENT)
        _say(console, Text(one.seen), _INDENT, "seen")
        if one.wanted not in one.remedy:
            _say(console, Text(one.wanted), _INDENT, "wanted")
        following = found[at + 1].remedy if at + 1 < len(found) else ""
        if one.remedy != following:  # said once for several in a row
            _say(console, Text(one.remedy), _INDENT, "remedy")


def _say(console: Console, text: Text, indent: int, label: str = "") -> None:
    """A text folded to the width, beside its label where it has one."""
    before = indent + (_LABEL if label else 0)
    for at, line in enumerate(text.wrap(console, max(console.width - before, _NARROWEST))):
        line.rstrip()
        head = f"{label}:".rjust(_LABEL - 1) if label and not at else ""
        console.print(
            Text.assemble(" " * indent, (f"{head:<{before - indent}}", "dim"), line), soft_wrap=True
        )


def _ending(report: Report) -> str:
    """What was looked for, in a sentence."""
    counts = [
        f"{number} {name}{'' if number == 1 else 's'}"
        for name in _HEADS
        if (number := sum(one.severity == name for one in report.findings))
    ]
    looked = f"{len(report.checked)} of {len(report.checked) + len(report.not_checked)} checks were made"
    told = f"{', '.join(counts)}." if counts else "Nothing is wrong."
    return f"{told} Looked at: {', '.join(report.looked) or 'nothing'}. {looked}."


def _json(report: Report, *, color: bool) -> None:  # noqa: ARG001 - the same call for every form
    document = {
        "sound": report.is_sound,
        "findings": [one.document() for one in report.findings],
        "checked": list(report.checked),
        "not_checked": [{"id": id_, "why": why} for id_, why in report.not_checked],
    }
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=1))


FORMS: Final[dict[str, Callable[..., None]]] = {"table": table, "json": _json}
