"""Options from settings structs: flag over environment over `--config` file over default, from one declaration.

The settings of an agent may besides stand in a section of the file; there they are for that agent alone, and win over
the rest of the file.
"""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import click
import msgspec

from nodewise.agent import AgentKind
from nodewise.cli import configfile, declared, legacy
from nodewise.cli.configfile import Sections
from nodewise.cli.declared import Duration, Setting, settings
from nodewise.errors import BadSettings, Problem, shown

__all__ = ["Duration", "Setting", "build", "of_agent", "options", "settings"]

T = TypeVar("T", bound=msgspec.Struct)


def options(
    *groups: type[msgspec.Struct],
    kinds: Sequence[AgentKind] = (),
    known: Sequence[type[msgspec.Struct]] = (),
) -> list[click.Parameter]:
    """The options of a command that takes these groups and these agents' settings, and `--config`.

    A setting that several have is one option. The file may hold settings of `known` groups as well, of which the
    command takes what it has options for.
    """
    every: list[click.Parameter] = [configfile.option([*groups, *known], kinds)]
    return every + [_option(setting) for setting in declared.together(groups, kinds)]


def build(group: type[T], given: Mapping[str, Any]) -> T:
    """The struct from a command's parameters. `BadSettings` if a value is out of its bounds."""
    return _built(group, given, {})


def of_agent(kind: AgentKind, given: Mapping[str, Any]) -> Any:
    """An agent's settings from a command's parameters. `BadSettings` if a value is out of its bounds."""
    sections: Sections | None = given.get(configfile.SECTIONS)
    if sections is None:
        return build(kind.options, given)
    own = sections.of(kind.name)
    places = {field: f"{sections.path}: {kind.name}: {field.removesuffix('_s')}" for field in own}
    return _built(kind.options, {**given, **own}, places)


def _built(group: type[T], given: Mapping[str, Any], places: Mapping[str, str]) -> T:
    """`places` says where a field's value stands; the others are named by their flag."""
    declarations = {one.field: one for one in settings(group)}
    values = {field: one.taken(given[field]) for field, one in declarations.items()}
    try:
        return msgspec.convert(values, group, strict=False)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$.")
        field = path.rstrip("`")
        place = places.get(field) or (declarations[field].flag if field in declarations else field)
        raise BadSettings("settings", [Problem(place, shown(values.get(field)), text)]) from error


_SERVICE: Final = re.compile(r"(tcp|udp|sctp)://")
"""What the kubelet puts into `NODEWISE_PORT` of pods beside a Service that is called nodewise."""


class _Option(click.Option):
    """One that an older program's variable may speak for, where our own does not."""

    section = ""
    """See `sections`."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        found = super().resolve_envvar_value(ctx)
        if found is not None and _SERVICE.match(found):
            return None
        if found is not None or self.envvar is None or self.name is None:
            return found
        return legacy.of_variable(self.name, os.environ)


def _option(setting: Setting) -> click.Option:
    default = setting.shown_default()
    option = _Option(
        [setting.flag, setting.field],
        type=declared.parameter_type(setting),
        metavar=declared.FORMS.get(setting.field),
        is_flag=setting.inner is bool,
        multiple=setting.is_list,
        default=setting.default,
        envvar=setting.variable,
        help=f"{setting.help} [default: {default}]" if default else setting.help,
    )
    option.section = setting.section
    return option
