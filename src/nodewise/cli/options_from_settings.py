"""Creates options of commands from settings structs, and settings from command lines, variables and the file.

A flag overrides the environment, which overrides the file of `--config`, which overrides the default. Settings of an
agent may also be in a section of the file; there they apply to that agent alone and override the rest of the file.
Variables `NODEWISE_…` that are no settings, such as misspelled ones, cause a warning.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

import click
import msgspec
from click.core import ParameterSource

from nodewise.base import safe_yaml_loader
from nodewise.base.errors import BadInput, BadSettings, Problem, closest_name, shown
from nodewise.base.option import Argument, Option
from nodewise.cli import parameter_types, terminal_output
from nodewise.cli.command_help import SectionedCommand, SettingOption
from nodewise.cli.setting_declarations import (
    CommandOptions,
    Group,
    Setting,
    click_type_of_setting,
    click_type_with_bounds,
    list_settings,
    merge_settings,
)
from nodewise.kube.kubeconfig import KubeOptions
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


def _config_option(groups: Sequence[Group], kinds: "Sequence[AgentKind]") -> click.Option:
    """The option `--config` of a command with these groups and the options of these agents. Where the command has a
    subclass of a known group, only the subclass counts.
    """

    def apply(ctx: click.Context, _: click.Parameter, path: str | None) -> None:
        if not path:
            return
        from nodewise.cli import agent_selection  # start-up time: only a settings file needs all agents

        known = agent_selection.known_settings()
        more = [group for group in known.groups if not any(issubclass(own, group) for own in groups)]
        known_kinds = {kind.name: kind for kind in [*kinds, *known.kinds]}
        file = read_config_file(path, [*groups, *more], [*known_kinds.values()], known)
        for agent in file.ignored:
            if _logs(ctx):
                logs.emit_later("agent_settings_ignored", file=path, agent=agent, why=known.unusable[agent])
            else:
                terminal_output.print_message(
                    f"Warning: {path}: the settings of the agent {agent} are ignored: it cannot be used"
                    f" ({known.unusable[agent]})"
                )
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


def _logs(ctx: click.Context) -> bool:
    """Whether the command is a server, whose warnings are log events."""
    return any(parameter.name == "log_format" for parameter in ctx.command.params)


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
            place = f"{path}: {key}"
            sections[key] = _read_values(place, value, _section_keys(agents[key], settings), (), problems)
        elif key not in keys and (owner := known.unusable_owner(key)):
            ignored[owner] = None
        else:
            values |= _read_values(path, {key: value}, keys, agents, problems)
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


def _read_values(
    place: str,
    mapping: Mapping[Any, Any],
    keys: Mapping[str, Setting],
    sections: Iterable[str],
    problems: list[Problem],
) -> dict[str, Any]:
    """The valid values of a mapping of the file, by field. Problems of the others are appended."""
    values: dict[str, Any] = {}
    for key, value in mapping.items():
        setting, actual, expected = keys.get(key), "", ""
        if setting is None:
            names = sorted([*keys, *sections])
            expected = closest_name(str(key), names) or "one of " + ", ".join(names)
            actual = "an unknown setting"
        elif setting.field in values:
            actual, expected = "the setting is here already, under its other name", "it once"
        elif isinstance(value, dict) or (isinstance(value, list) and not setting.is_list):
            actual, expected = setting.show(value), "a list of values" if setting.is_list else "one value"
        elif value is not None:
            try:
                values[setting.field] = _convert_setting_value(setting, value)
            except click.BadParameter as error:
                actual = error.message.rstrip(".")
        if actual:
            problems.append(Problem(f"{place}: {key}", actual, expected))
    return values


def _convert_setting_value(setting: Setting, value: Any) -> Any:
    """The value of its type. As text: click would truncate a fraction of an integer. Amounts stay numbers."""
    convert = click_type_of_setting(setting)
    is_amount = setting.field.endswith(("_s", "_bytes"))
    listed = [
        convert(
            each if is_amount and isinstance(each, int | float) and not isinstance(each, bool) else str(each)
        )
        for each in (value if isinstance(value, list) else [value])
    ]
    return tuple(listed) if setting.is_list else listed[0]


_PREFIX: Final = "NODEWISE_"
_OF_A_SERVICE: Final = re.compile(
    r"NODEWISE(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
"""The variables that the kubelet sets in pods beside a Service whose name begins with nodewise."""
_INTERNAL: Final = frozenset({"NODEWISE_CPU_TASK", "NODEWISE_IMAGE"})


def warn_of_unknown_variables(ctx: click.Context) -> None:
    """Warn of each variable that no command knows: in the log of a server, on stderr of other commands."""
    for name, closest in find_unknown_variables(ctx, os.environ).items():
        if _logs(ctx):
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
    from nodewise.cli import main

    known |= set(_variables(main.command, of_all=True))
    keys = [name.removeprefix(_PREFIX) for name in sorted(known)]
    closest = {name: closest_name(name.removeprefix(_PREFIX), keys) for name in unknown if name not in known}
    return {name: f"{_PREFIX}{key}" if key else "" for name, key in closest.items()}


def _variables(command: click.Command, *, of_all: bool = False) -> Iterator[str]:
    """The variables of a command, and `of_all` below it; in the program on hosts, of those that it contains."""
    yield from (parameter.envvar for parameter in command.params if isinstance(parameter.envvar, str))
    if of_all and isinstance(command, click.Group):
        ctx = click.Context(command, resilient_parsing=True)  # outlines have the variables, too
        for name in command.list_commands(ctx):
            with contextlib.suppress(click.ClickException):
                if (below := command.get_command(ctx, name)) is not None:
                    yield from _variables(below, of_all=True)


T = TypeVar("T", bound=msgspec.Struct)


class CommandLine(NamedTuple):
    """The values of a command's parameters, by field."""

    values: Mapping[str, Any]
    running_agents: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    """Options by agent of a running nodewise; what the user gives overrides them."""

    def is_given(self, field: str) -> bool:
        """Whether the command line, a variable or the settings file gives this parameter."""
        source = click.get_current_context().get_parameter_source(field)
        return source not in {None, ParameterSource.DEFAULT}

    def with_running_settings(
        self, values: Mapping[str, Any], running_agents: Mapping[str, Mapping[str, Any]]
    ) -> "CommandLine":
        """The same with the settings of a running nodewise, by field, where the user gives none."""
        known = {
            field: value
            for field, value in values.items()
            if field in self.values and not self.is_given(field)
        }
        return CommandLine({**self.values, **known}, running_agents)

    def settings(self, group: type[T]) -> T:
        """A group of settings. `BadSettings` if a value is out of its bounds."""
        return build_group(group, self.values)

    def agent_options(self, kind: "AgentKind") -> Any:
        """An agent's options. `BadSettings` if a value is out of its bounds."""
        declared = {setting.field for setting in list_settings(kind.options)}
        running = {
            field: value
            for field, value in self.running_agents.get(kind.name, {}).items()
            if field in declared and not self.is_given(field)
        }
        sections: AgentSections | None = self.values.get(SECTIONS)
        if sections is None:
            return build_group(kind.options, {**self.values, **running})
        section = sections.of(kind.name)
        places = {field: f"{sections.path}: {kind.name}: {field.removesuffix('_s')}" for field in section}
        return build_group(kind.options, {**self.values, **running, **section}, places)


class ClusterOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of a command that only reads a cluster, as kubectl has them."""

    kubeconfig: Annotated[str, Option(metavar="FILE", environment="NODEWISE_KUBECONFIG")] = ""
    """Kubeconfig file; default: as for kubectl."""

    context: Annotated[str, Option(metavar="NAME", environment="NODEWISE_CONTEXT")] = ""
    """Context of the kubeconfig."""

    @property
    def kube(self) -> KubeOptions:
        return KubeOptions(kubeconfig=self.kubeconfig, context=self.context)


class ReplicaOptions(CommandOptions, frozen=True, kw_only=True):
    """Where the running nodewise is. `--namespace` of the same commands is that of pods."""

    nodewise_namespaces: Annotated[
        tuple[str, ...],
        Option("--nodewise-namespace", metavar="NAMESPACE", type=parameter_types.NamespaceName()),
    ] = ("nodewise",)
    """Namespace of the running nodewise; repeat it for several."""

    servers: Annotated[tuple[str, ...], Option("--server", metavar="URL")] = ()
    """Admin port of a replica that is no pod, such as http://127.0.0.1:9002; repeat it for several."""

    def __post_init__(self) -> None:
        problems = [
            Problem("--server", shown(server), "a URL such as http://127.0.0.1:9002")
            for server in self.servers
            if not _is_http_url(server)
        ]
        if problems:
            raise BadSettings("settings", problems)


def _is_http_url(text: str) -> bool:
    """Whether a URL has the scheme http, a host, and a valid port or none."""
    try:
        parts = urlsplit(text)
        return parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def output_option(formats: Iterable[str]) -> click.Option:
    """The option `-o`, `--output` with these formats; the first one is the default."""
    choices = list(formats)
    return click.Option(
        ["-o", "--output"],
        type=click.Choice(choices),
        default=choices[0],
        show_default=True,
        help="Output format.",
    )


def settings_command(
    name: str,
    *groups: Group,
    kinds: "Sequence[AgentKind]" = (),
    more: Sequence[click.Parameter] = (),
    kind: type[click.Command] = SectionedCommand,
    **attributes: Any,
) -> Callable[[Callable[[CommandLine], None]], click.Command]:
    """A decorator that makes a command of a function, whose docstring is the help.

    The command has the parameters of `click_parameters`, and then `more`.
    """

    def decorate(run: Callable[[CommandLine], None]) -> click.Command:
        def callback(**values: Any) -> None:
            warn_of_unknown_variables(click.get_current_context())
            run(CommandLine(values))

        parameters = [*click_parameters(*groups, kinds=kinds), *more]
        return kind(name, callback=callback, params=parameters, help=run.__doc__, **attributes)

    return decorate


def click_parameters(
    *groups: Group, kinds: "Sequence[AgentKind]" = (), has_file: bool = True
) -> list[click.Parameter]:
    """The parameters of a command that takes these groups and these agents' settings.

    The fields of `CommandOptions` come first, then `--config` if the command takes settings, then the settings. A
    setting that several groups have is one option. The file may contain the settings of all commands and agents; those
    for which the command has no option have no effect.
    """
    own = [group for group in groups if issubclass(group, CommandOptions)]
    shared = [group for group in groups if group not in own]
    file = [_config_option(shared, kinds)] if has_file and (shared or kinds) else []
    return [
        *(_create_click_parameter(setting) for group in own for setting in list_settings(group)),
        *file,
        *map(_create_shared_option, merge_settings(shared, kinds)),
    ]


def build_group(group: type[T], values: Mapping[str, Any], places: Mapping[str, str] | None = None) -> T:
    """The struct of a command's parameters. `BadSettings` if a value is out of its bounds.

    `places` names the origin of a field's value in error messages; other fields are named by their flag.
    """
    declarations = {setting.field: setting for setting in list_settings(group)}
    if issubclass(group, CommandOptions):
        return group(**{field: values[field] for field in declarations})
    fields = {field: setting.synonym(values[field]) for field, setting in declarations.items()}
    try:
        return msgspec.convert(fields, group, strict=False)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$.")
        field = path.rstrip("`")
        setting = declarations.get(field)
        place = (places or {}).get(field) or (setting.flag if setting else field)
        actual = setting.show(fields[field]) if setting else "an invalid value"
        expected = text.removeprefix("Expected ").replace("`", "")
        raise BadSettings("settings", [Problem(place, actual, expected)]) from error


def _create_shared_option(setting: Setting) -> click.Option:
    default = setting.default_as_text()
    return SettingOption(
        [setting.flag_with_opposite, setting.field],
        type=setting.option.type or click_type_of_setting(setting),
        metavar=setting.option.metavar,
        is_flag=setting.inner is bool,
        multiple=setting.is_list,
        default=setting.default,
        envvar=setting.variable,
        help=f"{setting.help} [default: {default}]" if default else setting.help,
        section=setting.section,
        owners=setting.owners,
        is_shared=True,
    )


def _create_click_parameter(setting: Setting) -> click.Parameter:
    declaration = setting.option
    if isinstance(declaration, Argument):
        return click.Argument(
            [setting.field],
            type=declaration.type or click_type_of_setting(setting),
            metavar=declaration.metavar,
            nargs=-1 if setting.is_list else 1,
            required=declaration.is_required,
        )
    attributes: dict[str, Any] = {} if setting.is_required else {"default": setting.default}
    if setting.field.endswith("_s") and setting.default:
        attributes["default"] = setting.default_as_text()
    if declaration.value_of_bare_flag is not None:
        attributes |= {"is_flag": False, "flag_value": declaration.value_of_bare_flag}
    elif setting.inner is bool:
        attributes["is_flag"] = True
    return SettingOption(
        [*setting.flags, setting.field],
        type=declaration.type or click_type_with_bounds(setting),
        metavar=declaration.metavar,
        multiple=setting.is_list,
        required=setting.is_required,
        envvar=declaration.environment or None,
        show_envvar=declaration.shows_environment,
        show_default=declaration.shows_default and bool(setting.default_as_text()),
        help=setting.help,
        section=declaration.section,
        hidden=declaration.is_hidden,
        **attributes,
    )
