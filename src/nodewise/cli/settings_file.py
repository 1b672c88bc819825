"""Reads the file of `--config`: settings by key, and sections with the settings of one agent."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
from click.core import ParameterSource

from nodewise.base import safe_yaml_loader
from nodewise.base.errors import BadInput, BadSettings, Problem
from nodewise.cli import terminal_output
from nodewise.cli.click_parameter_types import click_type_of_setting
from nodewise.cli.setting_declarations import Group, Setting, list_settings, merge_settings
from nodewise.observe import logs

if TYPE_CHECKING:
    from nodewise.agent import AgentKind  # numpy is not part of the program that is installed on hosts

SECTIONS: Final = "sections"
"""The name of `AgentSections` among a command's parameters; without a file there is no such parameter."""
_STRONGER_SOURCES: Final = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


class ConfigFile(NamedTuple):
    """The content of a file; settings are keyed by field."""

    values: Mapping[str, Any]
    sections: Mapping[str, Mapping[str, Any]]
    """By agent."""
    ignored: tuple[str, ...] = ()
    """Agents that cannot be used, whose settings are in the file."""


class KnownSettings(NamedTuple):
    """Settings that a file may contain in addition to those of the command: of servers, and of installed agents."""

    groups: Sequence[Group] = ()
    kinds: "Sequence[AgentKind]" = ()
    unusable: Mapping[str, str] = MappingProxyType({})
    """Names of agents that cannot be used, with their package and the reason."""

    def unusable_owner(self, key: Any) -> str | None:
        """The unusable agent that a key of a file belongs to: its name, or the name of one of its settings."""
        names = (
            name for name in self.unusable if key == name or str(key).startswith(name.replace("-", "_") + "_")
        )
        return max(names, key=len, default=None)


class AgentSections(NamedTuple):
    """The sections of a file, and the command line, which overrides them."""

    path: str
    by_agent: Mapping[str, Mapping[str, Any]]
    context: click.Context

    def of(self, agent: str) -> dict[str, Any]:
        """The settings in an agent's section that neither a flag nor a variable overrides."""
        return {
            field: value
            for field, value in self.by_agent.get(agent, {}).items()
            if self.context.get_parameter_source(field) not in _STRONGER_SOURCES
        }


def config_option(
    groups: Sequence[Group], kinds: "Sequence[AgentKind]", known_settings: Callable[[], KnownSettings]
) -> click.Option:
    """The option `--config` of a command with these groups and the options of these agents. The file may also contain
    `known_settings`, which is called only if there is a file. Where the command has a subclass of a known group, only
    the subclass counts.
    """

    def apply(ctx: click.Context, _: click.Parameter, path: str | None) -> None:
        if path:
            known = known_settings()
            known_groups = [
                group for group in known.groups if not any(issubclass(own, group) for own in groups)
            ]
            known_kinds = {kind.name: kind for kind in [*kinds, *known.kinds]}
            file = read_config_file(path, [*groups, *known_groups], [*known_kinds.values()], known)
            for agent in file.ignored:
                _warn_of_ignored_settings(ctx, path, agent, known.unusable[agent])
            ctx.default_map = dict(file.values)
            ctx.params[SECTIONS] = AgentSections(path, file.sections, ctx)

    return click.Option(
        ["--config"],
        envvar="NODEWISE_CONFIG",
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=apply,
        help="YAML file of settings; keys are the options without dashes, such as `sync_period: 5s`. Settings below "
        "an agent's name, as in `telemetry: {max_age: 2m}`, apply to that agent only.",
    )


def _warn_of_ignored_settings(ctx: click.Context, path: str, agent: str, why: str) -> None:
    """Warn in the log of a server, on stderr of other commands."""
    if any(parameter.name == "log_format" for parameter in ctx.command.params):
        logs.emit_later("agent_settings_ignored", file=path, agent=agent, why=why)
    else:
        terminal_output.print_message(
            f"Warning: {path}: the settings of the agent {agent} are ignored: it cannot be used ({why})"
        )


def read_config_file(
    path: str,
    groups: Sequence[Group],
    kinds: "Sequence[AgentKind]",
    known: KnownSettings = KnownSettings(),  # noqa: B008 - a tuple cannot change
) -> ConfigFile:
    """The settings of a file. `BadSettings` with all problems of the file, and the closest key for an unknown one.

    Settings of an installed agent that cannot be used have no declaration to check them against, and are ignored: an
    upgrade that breaks its package must not stop the commands that use other agents.
    """
    settings = {setting.field: setting for setting in merge_settings(groups, kinds)}
    agents = {kind.name: kind for kind in kinds}
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    sections: dict[str, dict[str, Any]] = {}
    ignored: dict[str, None] = {}
    keys = {setting.key: setting for setting in settings.values()}
    for key, value in _load_yaml_mapping(path).items():
        if key in agents and isinstance(value, dict):
            place = _SettingsReader(f"{path}: {key}", _section_keys(agents[key], settings), problems)
            sections[key] = place.values(value)
        elif key not in keys and (owner := known.unusable_owner(key)):
            ignored[owner] = None
        else:
            values |= _SettingsReader(path, keys, problems, agents).values({key: value})
    if problems:
        raise BadSettings("settings", problems)
    return ConfigFile(values, sections, tuple(ignored))


def _load_yaml_mapping(path: str) -> dict[Any, Any]:
    try:
        document = safe_yaml_loader.load(Path(path).read_bytes(), path) or {}
    except (OSError, BadInput) as error:
        raise BadSettings("settings", [Problem("--config", str(error), "a readable YAML file")]) from error
    if not isinstance(document, dict):
        # the content may be a secret
        actual = "a list" if isinstance(document, list) else "a single value"
        raise BadSettings("settings", [Problem(path, actual, "a mapping of settings")])
    return document


def _section_keys(kind: "AgentKind", settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """The settings of an agent's section by key; each has two keys, with and without the agent's name as prefix."""
    own = [settings[setting.field] for setting in list_settings(kind.options)]
    prefix = kind.name.replace("-", "_") + "_"
    return {setting.key.removeprefix(prefix): setting for setting in own} | {
        setting.key: setting for setting in own
    }


class _SettingsReader(NamedTuple):
    """Reads a mapping of the file. It appends to `problems`."""

    name: str
    keys: Mapping[str, Setting]
    problems: list[Problem]
    sections: Iterable[str] = ()

    def values(self, mapping: Mapping[Any, Any]) -> dict[str, Any]:
        """The valid values, by field."""
        values: dict[str, Any] = {}
        for key, value in mapping.items():
            setting = self.keys.get(key)
            if setting is None:
                self._add_problem(
                    key, "an unknown setting", _closest_key(str(key), [*self.keys, *self.sections])
                )
            elif setting.field in values:
                self._add_problem(key, "the setting is here already, under its other name", "it once")
            elif value is not None:
                values |= self._convert_or_add_problem(key, setting, value)
        return values

    def _convert_or_add_problem(self, key: str, setting: Setting, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict) or (isinstance(value, list) and not setting.is_list):
            self._add_problem(
                key, setting.show(value), "a list of values" if setting.is_list else "one value"
            )
            return
        try:
            yield setting.field, _convert_setting_value(setting, value)
        except click.BadParameter as error:
            self._add_problem(key, error.message.rstrip("."), "")

    def _add_problem(self, key: Any, actual: str, expected: str) -> None:
        self.problems.append(Problem(f"{self.name}: {key}", actual, expected))


def _convert_setting_value(setting: Setting, value: Any) -> Any:
    convert = click_type_of_setting(setting)
    if setting.is_list:
        elements = value if isinstance(value, list) else [value]
        return tuple(convert(_value_as_text(setting, element)) for element in elements)
    return convert(_value_as_text(setting, value))


def _value_as_text(setting: Setting, value: Any) -> Any:
    """As text: click would truncate a number with a fraction where an integer is expected. Amounts stay numbers."""
    is_amount = setting.field.endswith(("_s", "_bytes")) and not isinstance(value, bool)
    return value if is_amount and isinstance(value, int | float) else str(value)


def _closest_key(key: str, keys: Sequence[str]) -> str:
    matches = difflib.get_close_matches(key, keys, n=1)
    return matches[0] if matches else "one of " + ", ".join(sorted(keys))
