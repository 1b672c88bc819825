"""The output of `nodewise simulate replay`."""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import click
import msgspec

import nodewise
from nodewise import clock
from nodewise.cli import tables, terminal
from nodewise.extender.recording_file import Header
from nodewise.simulate.replay import Tally
from nodewise.simulate.response_differences import Difference, Told

_NAMED: Final = 3
"""Nodes that are named of those that changed in the same way."""


class Replayed(NamedTuple):
    """All there is to tell."""

    header: Header
    changed: Sequence[str]
    """Settings that are not the recorded ones, in words."""
    tally: Tally
    unrecorded: Sequence[str]
    """Metrics that policies name and the recording does not have."""
    differences: Sequence[Difference]
    """The first ones."""


def _notes(given: Replayed) -> list[str]:
    """What a reader must know to trust the outcome."""
    tally, by = given.tally, given.header.nodewise
    lost = tally.lost
    notes = {
        f"recorded by nodewise {by}, replayed by {nodewise.__version__}": by != nodewise.__version__,
        "the recording was cut off; what came after its last flush is not in it": tally.end == "cut off",
        "the recording ended at its size limit": tally.end == "full",
        f"{lost.requests} requests came faster than they could be recorded": lost.requests,
        f"{lost.worlds} worlds came faster than they could be recorded: an agent that remembers earlier worlds may"
        " answer otherwise for want of them": lost.worlds,
        f"{tally.unanswered} requests were not replayed: their view or their path is not known": tally.unanswered,
    }
    found = [text for text, is_so in notes.items() if is_so]
    found += [f"an agent failed on a world: {error}" for error in tally.failed]
    return found + [f"metric {name} is not in the recording: never fetched" for name in given.unrecorded]


def _json(given: Replayed) -> None:
    tally = given.tally
    document = {
        "recording": given.header,
        "changed": given.changed,
        "notes": _notes(given),
        "worlds": tally.worlds,
        "requests": tally.requests,
        "same": tally.same,
        "different": tally.different,
        "unanswered": tally.unanswered,
        "lost": {"requests": tally.lost.requests, "worlds": tally.lost.worlds},
        "end": tally.end,
        "pods": tally.pods,
        "differences": [_document(one) for one in given.differences],
    }
    click.echo(msgspec.json.encode(document))


def _document(one: Difference) -> dict[str, Any]:
    nodes = [change._asdict() for change in one.nodes]
    return {**msgspec.structs.asdict(one), "nodes": nodes}


def _text(given: Replayed) -> None:
    header, tally = given.header, given.tally
    names = ", ".join(one.name for one in header.agents)
    click.echo(
        f"recorded {clock.format_rfc3339(header.at)} by nodewise {header.nodewise}, agents {names}:"
        f" {tally.worlds} worlds, {tally.requests} requests"
    )
    for line in (*(f"changed: {one}" for one in given.changed), *(f"note: {one}" for one in _notes(given))):
        terminal.say(line)
    if not tally.different:
        click.echo(f"all {tally.same} answers are the same, byte for byte")
        return
    click.echo(f"{tally.same} answers are the same, {tally.different} differ\n")
    rows = [[pod, *map(str, msgspec.structs.astuple(one))] for pod, one in tally.pods.items()]
    tables.show(["POD", "ANSWERS", "NOW KEPT", "NOW REJECTED", "OTHER SCORE"], rows)
    for one in given.differences:
        click.echo()
        for line in _lines(one):
            terminal.say(line)
    if len(given.differences) < tally.different:
        click.echo(f"\n{tally.different - len(given.differences)} more: --limit")


def _lines(one: Difference) -> Iterator[str]:
    """A difference in words; nodes that changed in the same way share a line."""
    yield f"{clock.format_rfc3339(one.at)} {one.path} {one.pod or 'an unreadable pod'}, view {one.snapshot}"
    if one.text:
        yield f"  {one.text}"
    alike: dict[tuple[Told, Told], list[str]] = {}
    for node, before, after in one.nodes:
        alike.setdefault((before, after), []).append(node)
    for (before, after), nodes in alike.items():
        more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
        yield f"  {', '.join(nodes[:_NAMED])}{more}: {_word(before)} -> {_word(after)}"


def _word(told: Told) -> str:
    if told is None:
        return "not named"
    return f"score {told}" if isinstance(told, int) else told


FORMS: Final = {"text": _text, "json": _json}
