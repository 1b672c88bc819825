"""`nodewise simulate`: replays recordings, and places GPU traces and bursty pods."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, TypeVar, cast

import click
import msgspec
from click.core import ParameterSource
from msgspec import Meta
from rich.console import Console
from rich.progress import Progress

from nodewise.agent import AgentKind, ObjectKey, Watched
from nodewise.base import distributions
from nodewise.base.errors import BadInput, Problem
from nodewise.base.option import Argument, Option
from nodewise.cli import agent_selection, exit_codes, object_and_metric_sources, options_from_settings
from nodewise.cli.options_from_settings import CommandLine
from nodewise.cli.setting_declarations import CommandOptions, list_settings
from nodewise.cli.simulate import replay_report, trace
from nodewise.cli.simulate.replay_report import Replayed
from nodewise.engine import recording_file
from nodewise.engine.recording_file import Header, Record
from nodewise.engine.score_weights import ChainOptions
from nodewise.kube import object_files
from nodewise.observe import logs
from nodewise.scheduling_model.recording_replay import Player, ReplayAgents
from nodewise.scheduling_model.response_differences import Difference

T = TypeVar("T", bound=msgspec.Struct)


@click.group()
def command() -> None:
    """Replay recordings, and place GPU traces and bursty pods.

    \b
    Examples:
      nodewise simulate replay recording.gz
      nodewise simulate bursts --agents none --agents safe
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
    logs.configure("error")
    own = command_line.settings(ReplayOptions)
    result = _replay_recording(Path(own.file), own.policies, _values_of_given_flags(command_line), own.limit)
    replay_report.FORMATS[own.output](result)
    if not result.tally.compared:
        problem = Problem(own.file, _what_is_missing(result), "at least one request with its snapshot")
        raise BadInput("recording", [problem])
    if result.tally.different:
        click.get_current_context().exit(exit_codes.NO)


def _what_is_missing(replayed: Replayed) -> str:
    """Why a recording has no response that can be compared."""
    tally = replayed.tally
    if tally.requests:
        return f"{tally.requests} requests, none of them with its snapshot and a path that the agents answer"
    before = f"{tally.cluster_states} snapshots" if tally.cluster_states else "no snapshot"
    return f"{before} and no request" + (
        " before the place where the file is cut off" if tally.is_cut_off else ""
    )


def _values_of_given_flags(command_line: CommandLine) -> dict[str, Any]:
    """Values of the flags on the command line, by field."""
    source = click.get_current_context().get_parameter_source
    return {
        field: value
        for field, value in command_line.values.items()
        if source(field) is ParameterSource.COMMANDLINE
    }


def _replay_recording(path: Path, policy: Sequence[str], chosen: Mapping[str, Any], limit: int) -> Replayed:
    try:
        with path.open("rb") as file:
            records = recording_file.read(file)
            header = cast("Header", next(records).entry)
            kinds = agent_selection.load_agents_by_name(
                (agent.name for agent in header.agents), RecordedOptions
            )
            agent_options, own, changed = _replay_settings(header, kinds, chosen)
            objects = _read_replacing_objects(
                policy, object_and_metric_sources.watched_objects(kinds, agent_options)
            )
            chain = ChainOptions(weights=own.weights)
            player = Player(ReplayAgents(kinds, agent_options, own.sync_period_s, objects, chain))
            differences = _play_all_records(
                player, _with_progress_bar(records, file, path.stat().st_size), limit
            )
    except OSError as error:
        raise BadInput("recording", [Problem(str(path), error.strerror or str(error), "a file")]) from error
    return Replayed(header, changed, player.tally, player.unrecorded(), differences)


class RecordedOptions(ChainOptions, frozen=True, kw_only=True):
    """Settings besides those of agents that affect responses."""

    sync_period_s: Annotated[float, msgspec.Meta(gt=0)] = 0.0
    """Interval of metric fetches; the maximum age of metrics follows from it."""


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


def _play_all_records(player: Player, records: Iterator[Record], limit: int) -> list[Difference]:
    """Replay all records; return the first `limit` differences."""
    differences: list[Difference] = []
    for record in records:
        difference = player.replay_record(record)
        if difference is not None and len(differences) < limit:
            differences.append(difference)
    return differences


def _with_progress_bar(records: Iterator[Record], file: BinaryIO, size_bytes: int) -> Iterator[Record]:
    """Yield the records; on a terminal, with a progress bar of the file."""
    hidden = not sys.stderr.isatty()
    with Progress(console=Console(stderr=True), transient=True, disable=hidden) as progress:
        bar = progress.add_task("replaying", total=size_bytes)
        for record in records:
            yield record
            progress.update(bar, completed=file.tell())


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


command.add_command(trace.command)
for entry in distributions.own_entry_points(distributions.COMMANDS):
    if entry.name.startswith("simulate "):
        command.add_command(entry.load())
command.add_command(
    options_from_settings.create_click_command(
        "replay",
        replay,
        [*options_from_settings.click_parameters(ReplayOptions), *_replay_parameters()],
        short_help="Answer a recording's requests again.",
    )
)
