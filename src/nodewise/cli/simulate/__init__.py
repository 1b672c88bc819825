"""`nodewise simulate`: answers recordings again, and places traces and bursty pods."""

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
from nodewise.cli import agent_kinds, data_sources, exit_codes, options
from nodewise.cli.options import CommandLine
from nodewise.cli.settings import CommandOptions, list_settings
from nodewise.cli.simulate import bursts, replay_report, trace
from nodewise.cli.simulate.replay_report import Replayed
from nodewise.errors import BadInput, Problem
from nodewise.extender import recording_file
from nodewise.extender.recording_file import Header, Record
from nodewise.extender.score_weights import ChainOptions
from nodewise.kube import object_files
from nodewise.observe import logs
from nodewise.option import Argument, Option
from nodewise.simulate.replay import Cast, Player
from nodewise.simulate.response_differences import Difference

T = TypeVar("T", bound=msgspec.Struct)


@click.group()
def command() -> None:
    """What would have been: recordings answered once more, traces and bursty pods placed.

    \b
    Examples:
      nodewise simulate replay recording.gz
      nodewise simulate bursts --agents none --agents safe
    """


class ReplayOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise simulate replay`."""

    file: Annotated[str, Argument()]

    policies: Annotated[tuple[str, ...], Option("--policy", metavar="FILE")] = ()
    """Policies in place of the recorded ones."""

    limit: Annotated[int, Meta(ge=0)] = 20
    """Differences that are shown one by one."""

    output: Annotated[Literal["text", "json"], Option("-o --output")] = "text"
    """Form of what is printed."""


def replay(command_line: CommandLine) -> None:
    """Answer the requests of a recording once more, and show what is answered otherwise than it was.

    FILE was written by `nodewise extender --record FILE`; of one that was cut off, all that was flushed is read.
    Worlds, metrics and times are the recorded ones, and so are the settings, except those that are given here. With
    --policy, its policies take the place of those of the same name and namespace, or stand beside the others; a
    metric that the recording does not have was never fetched.

    \b
    Examples:
      nodewise simulate replay recording.gz
      nodewise simulate replay recording.gz --policy stricter.yaml

    \b
    Exit codes:
      0  every answer is the one that was given
      1  the recording cannot be read
      2  the command line or a setting is wrong
      3  some answer differs
    """
    logs.configure("error")
    own = command_line.settings(ReplayOptions)
    result = _replayed(Path(own.file), own.policies, _explicit(command_line), own.limit)
    replay_report.FORMS[own.output](result)
    if result.tally.different:
        click.get_current_context().exit(exit_codes.NO)


def _explicit(command_line: CommandLine) -> dict[str, Any]:
    """The values of the flags on the command line, by field."""
    source = click.get_current_context().get_parameter_source
    return {
        field: value
        for field, value in command_line.values.items()
        if source(field) is ParameterSource.COMMANDLINE
    }


def _replayed(path: Path, policy: Sequence[str], chosen: Mapping[str, Any], limit: int) -> Replayed:
    try:
        with path.open("rb") as file:
            records = recording_file.read(file)
            header = cast("Header", next(records).entry)
            kinds = agent_kinds.load_kinds((agent.name for agent in header.agents), RecordedOptions)
            agent_options, own, changed = _settings(header, kinds, chosen)
            objects = _objects(policy, data_sources.watched_objects(kinds, agent_options))
            chain = ChainOptions(weights=own.weights)
            player = Player(Cast(kinds, agent_options, own.sync_period_s, objects, chain))
            differences = _played(player, _shown(records, file, path.stat().st_size), limit)
    except OSError as error:
        raise BadInput("recording", [Problem(str(path), error.strerror or str(error), "a file")]) from error
    return Replayed(header, changed, player.tally, player.unrecorded(), differences)


class RecordedOptions(ChainOptions, frozen=True, kw_only=True):
    """What an answer depends on besides the agents' own settings."""

    sync_period_s: Annotated[float, msgspec.Meta(gt=0)] = 0.0
    """How often metrics were asked for; an agent's max age follows from it."""


def _settings(
    header: Header, kinds: Sequence[AgentKind], chosen: Mapping[str, Any]
) -> tuple[dict[str, Any], RecordedOptions, list[str]]:
    """The options of each agent, the general ones, and what of both is not as recorded."""
    recorded = {agent.name: agent.options for agent in header.agents}
    agent_options = {kind.name: _built(kind.options, recorded[kind.name], chosen) for kind in kinds}
    general = {"sync_period_s": header.sync_period_s, "weights": header.weights}
    own = _built(RecordedOptions, general, chosen)
    changed = _changed(RecordedOptions, general, own)
    for kind in kinds:
        changed += _changed(kind.options, recorded[kind.name], agent_options[kind.name])
    return agent_options, own, changed


def _built(group: type[T], recorded: Mapping[str, Any], chosen: Mapping[str, Any]) -> T:
    """The recorded settings but for the chosen ones; a setting that is newer than the recording has its default."""
    defaults = {setting.field: setting.default for setting in list_settings(group)}
    return options.build_group(group, {**defaults, **recorded, **chosen})


def _changed(group: type[msgspec.Struct], recorded: Mapping[str, Any], built: msgspec.Struct) -> list[str]:
    after = msgspec.json.decode(msgspec.json.encode(built))
    return [
        f"{setting.flag}: {recorded[setting.field]} -> {after[setting.field]}"
        for setting in list_settings(group)
        if setting.field in recorded and recorded[setting.field] != after[setting.field]
    ]


def _objects(paths: Sequence[str], watched: Sequence[Watched]) -> dict[str, dict[ObjectKey, Any]]:
    """The objects that take the place of recorded ones, by the name in `Watched`. `BadInput` if there are none."""
    if not paths:
        return {}
    read = object_files.read(paths)
    objects: dict[str, dict[ObjectKey, Any]] = {}
    for watch in watched:
        items: list[Any] = read.of(watch.resource, cast("type[Any]", watch.type))
        objects[watch.name] = {(item.metadata.namespace, item.metadata.name): item for item in items}
    if not any(objects.values()):
        wanted = " or ".join(sorted({watch.resource.kind for watch in watched}))
        raise BadInput("--policy", [Problem(" ".join(paths), "none of what the agents read", wanted)])
    return objects


def _played(player: Player, records: Iterator[Record], limit: int) -> list[Difference]:
    """Play everything; the first differences."""
    differences: list[Difference] = []
    for record in records:
        difference = player.play(record)
        if difference is not None and len(differences) < limit:
            differences.append(difference)
    return differences


def _shown(records: Iterator[Record], file: BinaryIO, size_bytes: int) -> Iterator[Record]:
    """The records; on a terminal, with a bar of how much of the file is read."""
    hidden = not sys.stderr.isatty()
    with Progress(console=Console(stderr=True), transient=True, disable=hidden) as progress:
        bar = progress.add_task("replaying", total=size_bytes)
        for record in records:
            yield record
            progress.update(bar, completed=file.tell())


def _parameters() -> list[click.Parameter]:
    """Settings that nobody gives on the command line are the recorded ones, so neither variables nor files count."""
    recorded = options.parameters(
        RecordedOptions, kinds=agent_kinds.usable_kinds(RecordedOptions), has_file=False
    )
    for option in recorded:
        assert isinstance(option, click.Option)
        option.envvar = None
        option.help = f"{(option.help or '').partition(' [default: ')[0]} [default: as recorded]"
    return recorded


command.add_command(trace.command)
command.add_command(bursts.command)
command.add_command(
    options.make_command(
        "replay",
        replay,
        [*options.parameters(ReplayOptions), *_parameters()],
        short_help="Answer a recording's requests once more.",
    )
)
