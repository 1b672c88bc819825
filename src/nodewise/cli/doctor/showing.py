"""A report for people, grouped by severity, and as JSON for programs."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from nodewise.configure.doctor.findings import Finding, Report, Severity

_HEADS: Final[dict[Severity, tuple[str, str]]] = {
    "error": ("Wrong", "bold red"),
    "warning": ("Doubtful", "bold yellow"),
    "note": ("Good to know", "bold cyan"),
}
_WIDEST: Final = 110
_INDENT: Final = 4
_LABELS: Final = ("seen", "wanted", "remedy")


def table(report: Report, *, color: bool) -> None:
    """Findings by severity, each once with all the objects that it is about."""
    console = Console(highlight=False, no_color=not color, soft_wrap=False)
    console.width = min(console.width, _WIDEST)
    for severity, (head, style) in _HEADS.items():
        found = [one for one in report.findings if one.severity == severity]
        if found:
            console.print(Text(head, style))
            for id_, same in groupby(found, key=lambda one: one.id):
                _kind(console, id_, list(same))
            console.print()
    console.print(Text(_ending(report)))


def _kind(console: Console, id_: str, found: Sequence[Finding]) -> None:
    console.print(Padding(Text.assemble((id_, "bold"), "  ", found[0].title), (0, 0, 0, 2)))
    for at, one in enumerate(found):
        console.print(Padding(Text(one.object), (0, 0, 0, _INDENT)))
        _line(console, "seen", one.seen)
        _line(console, "wanted", one.wanted)
        following = found[at + 1].remedy if at + 1 < len(found) else ""
        if one.remedy != following:  # said once for several in a row
            _line(console, "remedy", one.remedy)


def _line(console: Console, label: str, text: str) -> None:
    """A label, and its text folded beside it."""
    width = max(len(one) for one in _LABELS) + 2
    room = max(console.width - _INDENT - 2 - width, 20)
    lines = Text(text).wrap(console, room)
    for at, line in enumerate(lines):
        head = f"{label}:" if not at else ""
        console.print(Padding(Text.assemble((f"{head:<{width}}", "dim"), line), (0, 0, 0, _INDENT + 2)))


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
