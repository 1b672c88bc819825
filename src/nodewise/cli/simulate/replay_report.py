"""The output of `nodewise simulate replay`."""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import click
import msgspec

import nodewise
from nodewise.base import clock
from nodewise.cli import tables, terminal_output
from nodewise.engine.recording_file import Header
from nodewise.scheduling_model.recording_replay import Tally
from nodewise.scheduling_model.response_differences import Difference, NodeResult

_MAX_NAMED_NODES: Final = 3
"""Maximum number of nodes that are named for the same change."""


class Replayed(NamedTuple):
    """Result of a replay for the report."""

    header: Header
    changed: Sequence[str]
    """Descriptions of the settings that differ from the recorded ones."""
    tally: Tally
    unrecorded: Sequence[str]
    """Metrics that policies name and that are not in the recording."""
    differences: Sequence[Difference]
    """The first differences, up to the limit."""


def _replay_completeness_notes(replayed: Replayed) -> list[str]:
    """Notes about the completeness of the replay."""
    tally, by = replayed.tally, replayed.header.nodewise
    lost = tally.lost
    notes = {
        f"recorded by nodewise {by}, replayed by {nodewise.__version__}": by != nodewise.__version__,
        "the recording is incomplete; it ends at its last flush": tally.is_cut_off,
        "the recording ended at its size limit": tally.end == "full",
        f"{lost.requests} requests arrived faster than they could be recorded": lost.requests,
        f"{lost.snapshots} snapshots arrived faster than they could be recorded: responses of agents with memory may"
        " differ for this reason": lost.snapshots,
        f"{tally.unanswered} requests were not replayed: their snapshot or path is unknown": tally.unanswered,
    }
    messages = [text for text, is_so in notes.items() if is_so]
    messages += [f"an agent failed: {error}" for error in tally.failed]
    return messages + [
        f"metric {name} is not in the recording: it counts as never fetched" for name in replayed.unrecorded
    ]


def _print_json(replayed: Replayed) -> None:
    tally = replayed.tally
    document = {
        "recording": replayed.header,
        "changed": replayed.changed,
        "notes": _replay_completeness_notes(replayed),
        "worlds": tally.cluster_states,
        "requests": tally.requests,
        "same": tally.same,
        "different": tally.different,
        "unanswered": tally.unanswered,
        "lost": {"requests": tally.lost.requests, "worlds": tally.lost.snapshots},
        "end": tally.end,
        "pods": tally.pods,
        "differences": [_difference_document(difference) for difference in replayed.differences],
    }
    click.echo(msgspec.json.encode(document))


def _difference_document(difference: Difference) -> dict[str, Any]:
    nodes = [change._asdict() for change in difference.nodes]
    return {**msgspec.structs.asdict(difference), "nodes": nodes}


def _print_text(replayed: Replayed) -> None:
    header, tally = replayed.header, replayed.tally
    names = ", ".join(agent.name for agent in header.agents)
    click.echo(
        f"recorded {clock.format_rfc3339(header.at)} by nodewise {header.nodewise}, agents {names}:"
        f" {tally.cluster_states} snapshots, {tally.requests} requests"
    )
    for setting in replayed.changed:
        terminal_output.print_line(f"changed: {setting}")
    for note in _replay_completeness_notes(replayed):
        terminal_output.print_line(f"note: {note}")
    if not tally.compared:
        click.echo("no response was compared")
        return
    if not tally.different:
        quantity = f"{tally.same} of {tally.requests}" if tally.unanswered else f"all {tally.same}"
        click.echo(
            f"{quantity} responses are equal, byte for byte"
            + ("; the others were not compared" if tally.unanswered else "")
        )
        return
    click.echo(f"{tally.same} responses are equal, {tally.different} differ\n")
    rows = [[pod, *map(str, msgspec.structs.astuple(change))] for pod, change in tally.pods.items()]
    tables.print_table(["POD", "RESPONSES", "NOW KEPT", "NOW REJECTED", "OTHER SCORE"], rows)
    for difference in replayed.differences:
        click.echo()
        for line in _difference_lines(difference):
            terminal_output.print_line(line)
    if len(replayed.differences) < tally.different:
        click.echo(f"\n{tally.different - len(replayed.differences)} more: --limit")


def _difference_lines(difference: Difference) -> Iterator[str]:
    """Describe a difference; nodes with the same change share a line."""
    at, pod = clock.format_rfc3339(difference.at), difference.pod or "an unreadable pod"
    yield f"{at} {difference.path} {pod}, snapshot {difference.snapshot}"
    if difference.text:
        yield f"  {difference.text}"
    alike: dict[tuple[NodeResult, NodeResult], list[str]] = {}
    for node, before, after in difference.nodes:
        alike.setdefault((before, after), []).append(node)
    for (before, after), nodes in alike.items():
        more = f" and {len(nodes) - _MAX_NAMED_NODES} more" if len(nodes) > _MAX_NAMED_NODES else ""
        change = f"{_format_node_result(before)} -> {_format_node_result(after)}"
        yield f"  {', '.join(nodes[:_MAX_NAMED_NODES])}{more}: {change}"


def _format_node_result(result: NodeResult) -> str:
    if result is None:
        return "not named"
    return f"score {result}" if isinstance(result, int) else result


FORMATS: Final = {"text": _print_text, "json": _print_json}
