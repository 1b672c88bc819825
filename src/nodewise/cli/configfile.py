"""The file of `--config`: settings by key, and sections of settings that are for one agent alone."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import msgspec
from click.core import ParameterSource

from nodewise import yaml_loader
from nodewise.agent import AgentKind
from nodewise.cli import declared
from nodewise.cli.declared import Setting
from nodewise.errors import BadInput, BadSettings, Problem, shown

SECTIONS: Final = "sections"
"""Where a command finds `Sections` among its parameters; nowhere without a file."""
_OVER: Final = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


class File(NamedTuple):
    """What a file says. Settings are by field."""

    values: Mapping[str, Any]
    sections: Mapping[str, Mapping[str, Any]]
    """By agent."""


class Sections(NamedTuple):
    """The sections, and the command line that wins over them."""

    path: str
    by_agent: Mapping[str, Mapping[str, Any]]
    context: click.Context

    def of(self, agent: str) -> dict[str, Any]:
        """What is said for this agent alone, and by no flag or variable."""
        found = self.by_agent.get(agent, {})
        return {
            field: value
            for field, value in found.items()
            if self.context.get_parameter_source(field) not in _OVER
        }


def option(groups: Sequence[type[msgspec.Struct]], kinds: Sequence[AgentKind]) -> click.Option:
    """`--config`, for a command that takes these groups and the options of these agents."""

    def take(ctx: click.Context, _: click.Parameter, path: str | None) -> None:
        if path:
            found = read(path, groups, kinds)
            ctx.default_map = dict(found.values)
            ctx.params[SECTIONS] = Sections(path, found.sections, ctx)

    return click.Option(
        ["--config"],
        envvar="NODEWISE_CONFIG",
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=take,
        help="YAML file of settings; keys are the options without dashes, such as `sync_period: 5s`. Below an "
        "agent's name, as in `telemetry: {max_age: 2m}`, they are for that agent alone.",
    )


def read(path: str, groups: Sequence[type[msgspec.Struct]], kinds: Sequence[AgentKind]) -> File:
    """The settings of a file. `BadSettings` for all that is wrong with it, with the nearest key for an unknown one."""
    known = {one.field: one for one in declared.together(groups, kinds)}
    agents = {kind.name: kind for kind in kinds}
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    sections: dict[str, dict[str, Any]] = {}
    keys = {one.key: one for one in known.values()}
    for key, value in _mapping(path).items():
        if key in agents and isinstance(value, dict):
            place = _Place(f"{path}: {key}", _keys(agents[key], known), problems)
            sections[key] = place.settings(value)
        else:
            values |= _Place(path, keys, problems, agents).settings({key: value})
    if problems:
        raise BadSettings("settings", problems)
    return File(values, sections)


def _mapping(path: str) -> dict[Any, Any]:
    try:
        given = yaml_loader.load(Path(path).read_bytes(), path) or {}
    except (OSError, BadInput) as error:
        raise BadSettings("settings", [Problem("--config", str(error), "a readable YAML file")]) from error
    if not isinstance(given, dict):
        raise BadSettings("settings", [Problem(path, shown(given), "a mapping of settings")])
    return given


def _keys(kind: AgentKind, known: Mapping[str, Setting]) -> dict[str, Setting]:
    """The keys of an agent's section: without the agent's name before them, and with it."""
    own = [known[one.field] for one in declared.settings(kind.options)]
    prefix = kind.name.replace("-", "_") + "_"
    return {one.key.removeprefix(prefix): one for one in own} | {one.key: one for one in own}


class _Place(NamedTuple):
    """A mapping of settings in the file, and what is found to be wrong with it."""

    name: str
    keys: Mapping[str, Setting]
    problems: list[Problem]
    sections: Iterable[str] = ()

    def settings(self, given: Mapping[Any, Any]) -> dict[str, Any]:
        """By field, of what can be used."""
        found: dict[str, Any] = {}
        for key, value in given.items():
            setting = self.keys.get(key)
            if setting is None:
                self._complain(key, "an unknown setting", _nearest(str(key), [*self.keys, *self.sections]))
            elif setting.field in found:
                self._complain(key, "the setting is here already, under its other name", "it once")
            elif value is not None:
                found |= self._converted(key, setting, value)
        return found

    def _converted(self, key: str, setting: Setting, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict) or (isinstance(value, list) and not setting.is_list):
            self._complain(key, shown(value), "one value")
            return
        try:
            yield setting.field, _value(setting, value)
        except click.BadParameter as error:
            self._complain(key, error.message.rstrip("."), "")

    def _complain(self, key: Any, seen: str, wanted: str) -> None:
        self.problems.append(Problem(f"{self.name}: {key}", seen, wanted))


def _value(setting: Setting, given: Any) -> Any:
    kind = declared.parameter_type(setting)
    if setting.is_list:
        return tuple(kind(_plain(setting, one)) for one in (given if isinstance(given, list) else [given]))
    return kind(_plain(setting, given))


def _plain(setting: Setting, given: Any) -> Any:
    """As text, so that a number with a fraction is not cut where a whole one is wanted; amounts stay numbers."""
    is_amount = setting.field.endswith(("_s", "_bytes")) and not isinstance(given, bool)
    return given if is_amount and isinstance(given, int | float) else str(given)


def _nearest(key: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return close[0] if close else "one of " + ", ".join(sorted(known))
