"""Outlines of commands: their names, help and parameters, from a file instead of their modules.

Completion and `--help` need no more of a command than its outline. Importing a command takes up to a second, with
numpy, the HTTP client and the agents. `make docs` (`tools/command_outlines.py`) describes all commands in
`command_outlines.json`, one file for each distribution, and a test compares the files with the commands.

The options of some commands depend on the installed agents. The file of nodewise-scorers describes these commands
again, with its agents, and an agent of another package makes them be imported.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import click

from nodewise.base import distributions
from nodewise.cli import parameter_types
from nodewise.cli.command_help import SectionedCommand, SettingOption

FILE: Final = Path("cli", "command_outlines.json")
"""The path inside the package of a distribution."""
COMPLETING_TYPES: Final = {
    kind.__name__: kind
    for kind in (
        parameter_types.FilePath,
        parameter_types.NamespaceName,
        parameter_types.PodName,
        parameter_types.AgentNames,
        parameter_types.PresetName,
        parameter_types.PartName,
    )
}
OPTION_ATTRIBUTES: Final = (
    "nargs", "required", "flag_value", "is_flag", "default", "multiple", "metavar", "envvar", "help", "hidden",
    "show_default", "show_envvar", "section", "is_shared", "owners",
)  # fmt: skip

Description = dict[str, Any]


def find_outline(path: Sequence[str]) -> click.Command | None:
    """The outline of a command of nodewise, such as `("cpu", "init")`; None if the command has to be imported."""
    name, *below = path
    description: Description | None = None
    for package in (*distributions.packages(), "nodewise"):
        file = _read_file(package)
        if name in file.get("commands", {}):
            description = description or file["commands"][name]
        if name in file.get("depends_on_agents", ()) and distributions.has_third_party_agents():
            return None
    for name_below in below:
        description = (description or {}).get("commands", {}).get(name_below)
    return _build(path[-1], description) if description else None


@cache
def _read_file(package: str) -> Mapping[str, Any]:
    """The file of a package, which is not imported; empty if it is not installed, or comes without its files."""
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        try:
            document: Mapping[str, Any] = json.loads(Path(folder, FILE).read_bytes())
        except OSError:
            continue
        return document
    return {}


class _OutlinedGroup(click.Group, SectionedCommand):
    """A group whose commands are outlines."""

    def __init__(
        self, name: str, *, texts: Mapping[str, str], below: Mapping[str, Description], **more: Any
    ) -> None:
        super().__init__(name, **more)
        self._texts, self._below = texts, below

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's interface
        return list(self._below)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        return _build(cmd_name, self._below[cmd_name]) if cmd_name in self._below else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not self._texts:
            super().format_commands(ctx, formatter)
            return
        with formatter.section("Commands"):
            formatter.write_dl(list(self._texts.items()))


class _SelfParsingCommand(click.Command):
    """A command of which only the command itself knows whether `--help` is meant for it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            raise click.UsageError("the command parses its arguments itself", ctx)
        return super().parse_args(ctx, args)


class _NamedType(click.ParamType[str]):
    """A type of which the help shows the name and a shell completes nothing."""

    def __init__(self, name: str) -> None:
        self.name = name


def _build(name: str, description: Description) -> click.Command:
    attributes: dict[str, Any] = {
        "help": description.get("help"),
        "short_help": description.get("short_help"),
        "epilog": description.get("epilog"),
        "hidden": description.get("hidden", False),
        "params": [_build_parameter(parameter) for parameter in description.get("params", ())],
    }
    if "commands" in description:
        return _OutlinedGroup(
            name,
            texts=description.get("texts", {}),
            below=description["commands"],
            invoke_without_command=description.get("runs_without_command", False),
            **attributes,
        )
    if "parses_itself" in description:
        return _SelfParsingCommand(name, **attributes)
    return (SectionedCommand if "is_sectioned" in description else click.Command)(name, **attributes)


def _build_parameter(description: Description) -> click.Parameter:
    attributes: dict[str, Any] = {key: description[key] for key in OPTION_ATTRIBUTES if key in description}
    attributes["type"] = _build_type(description)
    names: list[str] = description["names"]
    if description.get("is_argument"):
        return click.Argument(names, **attributes)
    if off := description.get("off"):
        names = [*names[:-2], f"{names[-2]}/{off[0]}", names[-1]]
    return SettingOption(names, **attributes)


def _build_type(description: Description) -> Any:
    if "choices" in description:
        return click.Choice(description["choices"])
    if "range" in description:
        ranges = {"integer": click.IntRange, "float": click.FloatRange}
        bounds = {
            name: description[name] for name in ("min", "max", "min_open", "max_open") if name in description
        }
        return ranges[description["range"]](**bounds)
    name = description.get("type")
    if name in ("path", "folder"):
        return click.Path(file_okay=name == "path")
    if name in COMPLETING_TYPES:
        return COMPLETING_TYPES[name]()
    return _NamedType(name) if name else None
