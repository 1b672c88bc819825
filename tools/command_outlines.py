"""Writes the outlines of all commands, for completion and `--help`: `python -m tools.command_outlines`, in `make docs`.

The commands are described twice, with and without nodewise-scorers, whose agents have options in commands of nodewise.
"""

import contextlib
import inspect
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import click

from nodewise.base import distributions
from nodewise.cli import command_outlines, main
from nodewise.cli.command_help import SectionedCommand

_SOURCES: Final = {
    "nodewise": Path("src/nodewise"),
    **{
        package: Path("packages", name, "src", package)
        for name, package in zip(distributions.EXTRAS, distributions.packages(), strict=True)
    },
}
_WITHOUT: Final = "--without"


def outlines() -> dict[Path, str]:
    """The files by path, as text."""
    everything, alone = _described_commands(()), _described_commands(distributions.EXTRAS)
    changed = [name for name in alone if everything[name] != alone[name]]
    owners = {name: main.COMMANDS[name][0].replace("-", "_") for name in everything if name not in alone}
    documents: dict[str, dict[str, Any]] = {
        "nodewise": {"depends_on_agents": changed, "commands": alone},
        **{package: {"commands": {}} for package in distributions.packages()},
    }
    for name in [*owners, *changed]:
        documents[owners.get(name, "nodewise_scorers")]["commands"][name] = everything[name]
    return {
        _SOURCES[package] / command_outlines.FILE: _lines(document) for package, document in documents.items()
    }


def _described_commands(excluded: Iterable[str]) -> dict[str, Any]:
    """All commands by name, if these distributions are not installed. They are imported in a new process."""
    run = [sys.executable, "-m", "tools.command_outlines", _WITHOUT, *excluded]
    described: dict[str, Any] = json.loads(subprocess.run(run, check=True, capture_output=True).stdout)
    return described


def _describe_without(excluded: Iterable[str]) -> Mapping[str, Any]:
    from nodewise import agents  # imports no agent

    if excluded:
        distributions.own_entry_points = lambda _: ()  # type: ignore[assignment]
    agents._read_entry_points = lambda: agents._EntryPoints((), ())  # noqa: SLF001 - only nodewise's own agents
    names = [name for name, (module, _) in main.COMMANDS.items() if module not in excluded]
    commands = {name: main.command.get_command(None, name) for name in names}  # type: ignore[arg-type]
    return {name: _describe(command) for name, command in commands.items() if command}


def _describe(command: click.Command) -> command_outlines.Description:
    """The outline of a command and of those below it, as JSON. Empty values are left out."""
    parses_plainly = type(command).parse_args is click.Command.parse_args
    description: command_outlines.Description = {
        "help": inspect.cleandoc(command.help or ""),
        "short_help": command.short_help,
        "epilog": command.epilog,
        "hidden": command.hidden,
        "is_sectioned": isinstance(command, SectionedCommand),
        "parses_itself": not parses_plainly and not isinstance(command, click.Group | SectionedCommand),
        "params": [_describe_parameter(parameter) for parameter in command.params],
    }
    if isinstance(command, click.Group):
        context = click.Context(command)
        description["runs_without_command"] = command.invoke_without_command
        description["commands"] = commands = {}
        for name in command.list_commands(context):
            with contextlib.suppress(click.ClickException):  # of a distribution that is not installed
                if below := command.get_command(context, name):
                    commands[name] = _describe(below)
        description["texts"] = getattr(command, "texts", None)
    return {key: value for key, value in description.items() if value}


def _describe_parameter(parameter: click.Parameter) -> command_outlines.Description:
    description: command_outlines.Description = {"names": [*parameter.opts, parameter.name]}
    if parameter.secondary_opts:
        description["off"] = parameter.secondary_opts
    if isinstance(parameter, click.Argument):
        description = {"names": [parameter.name], "is_argument": True}
    for attribute in command_outlines.OPTION_ATTRIBUTES:
        value = getattr(parameter, attribute, None)
        has_effect = attribute in ("default", "flag_value") or (
            attribute == "is_flag" and "flag_value" in description
        )
        if (
            (value or has_effect)
            and isinstance(value, str | int | float | list | tuple)
            and (attribute, value) != ("nargs", 1)
        ):
            description[attribute] = value
    return {**description, **_describe_type(parameter)}


def _describe_type(parameter: click.Parameter) -> command_outlines.Description:
    kind: Any = parameter.type
    if getattr(parameter, "is_flag", False):
        return {}
    if isinstance(kind, click.Choice):
        return {"choices": kind.choices}
    if isinstance(kind, click.IntRange | click.FloatRange):
        bounds = {name: getattr(kind, name) for name in ("min", "max", "min_open", "max_open")}
        set_bounds = {key: value for key, value in bounds.items() if value is not None and value is not False}
        return {"range": kind.name.partition(" ")[0], **set_bounds}
    if isinstance(kind, click.Path):
        return {"type": "path" if kind.file_okay else "folder"}
    return {
        "type": type(kind).__name__ if type(kind).__name__ in command_outlines.COMPLETING_TYPES else kind.name
    }


def _lines(document: Any, depth: int = 0) -> str:
    """JSON with a line for each parameter, so that a change of an option changes one line."""
    one_line = json.dumps(document, ensure_ascii=False)
    if not isinstance(document, dict | list) or not document or "names" in document:
        return one_line
    pairs = (
        [f"{json.dumps(key)}: {_lines(value, depth + 1)}" for key, value in document.items()]
        if isinstance(document, dict)
        else [_lines(value, depth + 1) for value in document]
    )
    opening, closing = "{}" if isinstance(document, dict) else "[]"
    indent = "\n" + " " * (depth + 1)
    ending = "\n" if depth == 0 else ""
    return f"{opening}{indent}{f',{indent}'.join(pairs)}\n{' ' * depth}{closing}{ending}"


if __name__ == "__main__":
    if sys.argv[1:2] == [_WITHOUT]:
        json.dump(_describe_without(sys.argv[2:]), sys.stdout)
    else:
        for file, text in outlines().items():
            file.write_text(text)
