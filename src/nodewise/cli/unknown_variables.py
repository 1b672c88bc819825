"""Warnings about environment variables `NODEWISE_…` that are no settings, such as misspelled ones."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Final

import click

from nodewise.base.errors import closest_name
from nodewise.cli import terminal_output
from nodewise.observe import logs

_PREFIX: Final = "NODEWISE_"
_OF_A_SERVICE: Final = re.compile(
    r"NODEWISE(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
"""The variables that the kubelet sets in pods beside a Service whose name begins with nodewise."""
_INTERNAL: Final = frozenset({"NODEWISE_CPU_TASK", "NODEWISE_IMAGE"})


def warn_of_unknown_variables(ctx: click.Context) -> None:
    """Warn of each variable that no command knows: in the log of a server, on stderr of other commands."""
    unknown = find_unknown_variables(ctx, os.environ)
    for name, closest in unknown.items():
        if "log_format" in ctx.params:
            logs.emit_later("variable_unknown", variable=name, closest=closest)
        else:
            suggestion = f'; did you mean "{closest}"?' if closest else ""
            terminal_output.print_message(f"Warning: {name}: an unknown variable{suggestion}")


def find_unknown_variables(ctx: click.Context, environment: Mapping[str, str]) -> dict[str, str]:
    """The unknown variables, each with the closest known one; empty if none is similar."""
    known = _INTERNAL | set(_variables(ctx.command))
    unknown = sorted(
        name
        for name in environment
        if name.startswith(_PREFIX) and name not in known and not _OF_A_SERVICE.fullmatch(name)
    )
    if not unknown:
        return {}
    known |= set(_variables_of_all_commands())
    keys = [name.removeprefix(_PREFIX) for name in sorted(known)]
    closest = {name: closest_name(name.removeprefix(_PREFIX), keys) for name in unknown if name not in known}
    return {name: f"{_PREFIX}{key}" if key else "" for name, key in closest.items()}


def _variables(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        if isinstance(parameter.envvar, str):
            yield parameter.envvar


def _variables_of_all_commands() -> Iterator[str]:
    """The variables of all commands, which are imported; in the program on hosts, of those that it contains."""
    from nodewise.cli import main

    groups: list[click.Group] = [main.command]
    while groups:
        group = groups.pop()
        ctx = click.Context(group)
        for name in group.list_commands(ctx):
            try:
                command = group.get_command(ctx, name)
            except click.ClickException:
                continue
            if isinstance(command, click.Group):
                groups.append(command)
            if command is not None:
                yield from _variables(command)
