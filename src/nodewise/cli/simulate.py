"""`nodewise simulate`: replays recordings, and compares load-aware placements (`nodewise-scorers`)."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, cast

import click
import msgspec
from click.core import ParameterSource
from msgspec import Meta

import nodewise
from nodewise.agent import AgentKind, ObjectKey, Watched
from nodewise.base import clock
from nodewise.base.errors import BadInput, Problem, list_first
from nodewise.base.option import Argument, Option
from nodewise.cli import agent_selection, options_from_settings, terminal_output
from nodewise.cli.main import CommandTable
from nodewise.cli.options_from_settings import CommandLine, settings_command
from nodewise.cli.setting_declarations import CommandOptions, list_settings
from nodewise.engine import object_feed, recording_file
from nodewise.engine.agent_chain import ChainOptions
from nodewise.engine.recording_file import Header
from nodewise.kube import object_files
from nodewise.observe import logs
from nodewise.scheduling_model.recording_replay import Difference, NodeResult, Player, ReplayAgents, Tally

_MAX_NAMED_NODES: Final = 3  # maximum number of nodes that are named for the same change


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
        "differences": [
            {**msgspec.structs.asdict(difference), "nodes": [change._asdict() for change in difference.nodes]}
            for difference in replayed.differences
        ],
    }
    click.echo(msgspec.json.encode(document))


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
    terminal_output.print_table(["POD", "RESPONSES", "NOW KEPT", "NOW REJECTED", "OTHER SCORE"], rows)
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
        change = f"{_format_node_result(before)} -> {_format_node_result(after)}"
        yield f"  {list_first(nodes, _MAX_NAMED_NODES)}: {change}"


def _format_node_result(result: NodeResult) -> str:
    if result is None:
        return "not named"
    return f"score {result}" if isinstance(result, int) else result


FORMATS: Final = {"text": _print_text, "json": _print_json}


T = TypeVar("T", bound=msgspec.Struct)


@click.group(
    cls=CommandTable,
    commands_of={
        "load": ("nodewise-scorers:simulate load", "Compare load-aware placements on recorded usage."),
        "replay": ("nodewise.cli.simulate:replay", "Answer a recording's requests again."),
    },
)
def command() -> None:
    """Replay recordings, and compare load-aware placements.

    \b
    Examples:
      nodewise simulate replay recording.gz
      nodewise simulate load herd
    """


class ReplayOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise simulate replay`."""

    file: Annotated[str, Argument()]

    policies: Annotated[tuple[str, ...], Option("--policy", metavar="FILE")] = ()
    """Policies that replace recorded ones."""

    limit: Annotated[int, Meta(ge=0)] = 20
    """Maximum number of differences to show."""

    output: Annotated[Literal["text", "json"], Option("-o --output")] = "text"
    """Output format."""


class RecordedOptions(ChainOptions, frozen=True, kw_only=True):
    """Settings besides those of agents that affect responses."""

    sync_period_s: Annotated[float, msgspec.Meta(gt=0)] = 0.0
    """Interval of metric fetches; the maximum age of metrics follows from it."""


def _replay_parameters() -> list[click.Parameter]:
    """Settings default to the recorded values, so environment variables and configuration files do not apply."""
    recorded = options_from_settings.click_parameters(
        RecordedOptions, kinds=agent_selection.agents_without_conflicts(RecordedOptions), has_file=False
    )
    for option in recorded:
        assert isinstance(option, click.Option)
        option.envvar = None
        option.help = f"{(option.help or '').partition(' [default: ')[0]} [default: as recorded]"
    return recorded


@settings_command(
    "replay", ReplayOptions, more=_replay_parameters(), short_help="Answer a recording's requests again."
)
def replay(command_line: CommandLine) -> None:
    """Answer the requests of a recording again, and show the responses that differ.

    FILE was written by `nodewise extender --record FILE`; an incomplete file is read up to its last flush. Objects,
    metrics, times and settings are the recorded ones, except for the settings on this command line. With --policy, its
    policies replace those of the same name and namespace, or are added; a metric that is not in the recording counts
    as never fetched.

    \b
    Examples:
      nodewise simulate replay recording.gz
      nodewise simulate replay recording.gz --policy stricter.yaml

    \b
    Exit codes:
      0  all responses are equal to the recorded ones
      1  the recording cannot be read, or has no response that can be compared
      2  the command line or a setting is invalid
      3  a response differs
    """
    logs.configure("error", "messages")
    own = command_line.settings(ReplayOptions)
    source = click.get_current_context().get_parameter_source
    chosen = {
        field: value
        for field, value in command_line.values.items()
        if source(field) is ParameterSource.COMMANDLINE
    }
    result = _replay_recording(Path(own.file), own.policies, chosen, own.limit)
    FORMATS[own.output](result)
    if not result.tally.compared:
        problem = Problem(own.file, _what_is_missing(result), "at least one request with its snapshot")
        raise BadInput("recording", [problem])
    if result.tally.different:
        click.get_current_context().exit(terminal_output.NO)


def _what_is_missing(replayed: Replayed) -> str:
    """Why a recording has no response that can be compared."""
    tally = replayed.tally
    if tally.requests:
        return f"{tally.requests} requests, none of them with its snapshot and a path that the agents answer"
    before = f"{tally.cluster_states} snapshots" if tally.cluster_states else "no snapshot"
    return f"{before} and no request" + (
        " before the place where the file is cut off" if tally.is_cut_off else ""
    )


def _replay_recording(path: Path, policy: Sequence[str], chosen: Mapping[str, Any], limit: int) -> Replayed:
    try:
        with path.open("rb") as file:
            records = recording_file.read(file)
            header = cast("Header", next(records).entry)
            kinds = agent_selection.load_agents_by_name(
                (agent.name for agent in header.agents), RecordedOptions
            )
            agent_options, own, changed = _replay_settings(header, kinds, chosen)
            objects = _read_replacing_objects(policy, object_feed.watched_objects(kinds, agent_options))
            chain = ChainOptions(weights=own.weights)
            player = Player(ReplayAgents(kinds, agent_options, own.sync_period_s, objects, chain))
            differences: list[Difference] = []
            with terminal_output.progress_bar("replaying") as progress:
                for record in records:
                    difference = player.replay_record(record)
                    if difference is not None and len(differences) < limit:
                        differences.append(difference)
                    progress(file.tell(), path.stat().st_size)
    except OSError as error:
        raise BadInput("recording", [Problem(str(path), error.strerror or str(error), "a file")]) from error
    return Replayed(header, changed, player.tally, player.unrecorded(), differences)


def _replay_settings(
    header: Header, kinds: Sequence[AgentKind], chosen: Mapping[str, Any]
) -> tuple[dict[str, Any], RecordedOptions, list[str]]:
    """The options of each agent, the general options, and descriptions of those that differ from the recorded ones."""
    recorded = {agent.name: agent.options for agent in header.agents}
    agent_options = {
        kind.name: _build_replay_settings(kind.options, recorded[kind.name], chosen) for kind in kinds
    }
    general = {"sync_period_s": header.sync_period_s, "weights": header.weights}
    own = _build_replay_settings(RecordedOptions, general, chosen)
    changed = _describe_changed_settings(RecordedOptions, general, own)
    for kind in kinds:
        changed += _describe_changed_settings(kind.options, recorded[kind.name], agent_options[kind.name])
    return agent_options, own, changed


def _build_replay_settings(group: type[T], recorded: Mapping[str, Any], chosen: Mapping[str, Any]) -> T:
    """Recorded settings, overridden by the chosen ones; a setting that is newer than the recording has its default."""
    defaults = {setting.field: setting.default for setting in list_settings(group)}
    return options_from_settings.build_group(group, {**defaults, **recorded, **chosen})


def _describe_changed_settings(
    group: type[msgspec.Struct], recorded: Mapping[str, Any], built: msgspec.Struct
) -> list[str]:
    after = msgspec.json.decode(msgspec.json.encode(built))
    return [
        f"{setting.flag}: {recorded[setting.field]} -> {after[setting.field]}"
        for setting in list_settings(group)
        if setting.field in recorded and recorded[setting.field] != after[setting.field]
    ]


def _read_replacing_objects(
    paths: Sequence[str], watched: Sequence[Watched]
) -> dict[str, dict[ObjectKey, Any]]:
    """Objects that replace recorded ones, by the name in `Watched`. BadInput if the files contain none."""
    if not paths:
        return {}
    read = object_files.read(paths)
    objects: dict[str, dict[ObjectKey, Any]] = {}
    for watch in watched:
        items: list[Any] = read.of(watch.resource, cast("type[Any]", watch.type))
        objects[watch.name] = {(item.metadata.namespace, item.metadata.name): item for item in items}
    if not any(objects.values()):
        wanted = " or ".join(sorted({watch.resource.kind for watch in watched}))
        raise BadInput("--policy", [Problem(" ".join(paths), "no objects that the agents read", wanted)])
    return objects
