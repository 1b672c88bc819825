"""Creates options of commands from settings structs, and settings from command lines.

A flag overrides the environment, which overrides the file of `--config`, which overrides the default. Settings of an
agent may also be in a section of the file; there they apply to that agent alone and override the rest of the file.
"""

import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar

import click
import msgspec
from click.core import ParameterSource

from nodewise.base.errors import BadSettings, Problem
from nodewise.base.option import Argument, Option
from nodewise.cli import older_program_flags, setting_declarations, settings_file
from nodewise.cli.click_parameter_types import click_type_of_setting, click_type_with_bounds
from nodewise.cli.command_help import SectionedCommand, SettingOption
from nodewise.cli.setting_declarations import CommandOptions, Group, Setting
from nodewise.cli.settings_file import AgentSections, KnownSettings
from nodewise.cli.unknown_variables import warn_of_unknown_variables
from nodewise.kube.options import KubeOptions

if TYPE_CHECKING:
    from nodewise.agent import AgentKind  # numpy is not part of the program that is installed on hosts

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
        declared = {setting.field for setting in setting_declarations.list_settings(kind.options)}
        running = {
            field: value
            for field, value in self.running_agents.get(kind.name, {}).items()
            if field in declared and not self.is_given(field)
        }
        sections: AgentSections | None = self.values.get(settings_file.SECTIONS)
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


def create_click_command(
    name: str,
    run: Callable[[CommandLine], None],
    parameters: Sequence[click.Parameter],
    short_help: str,
    kind: type[click.Command] = SectionedCommand,
    **attributes: Any,
) -> click.Command:
    """A command that calls `run`, whose docstring is the help."""

    def callback(**values: Any) -> None:
        warn_of_unknown_variables(click.get_current_context())
        run(CommandLine(values))

    return kind(
        name,
        callback=callback,
        params=list(parameters),
        help=run.__doc__,
        short_help=short_help,
        **attributes,
    )


def click_parameters(
    *groups: Group,
    kinds: "Sequence[AgentKind]" = (),
    known_settings: Callable[[], KnownSettings] | None = None,
    has_file: bool = True,
) -> list[click.Parameter]:
    """The parameters of a command that takes these groups and these agents' settings.

    The fields of `CommandOptions` come first, then `--config` if the command takes settings or knows some, then the
    settings. A setting that several groups have is one option. The file may also contain `known_settings`, which is
    called only if there is a file; settings for which the command has no option have no effect.
    """
    own = [group for group in groups if issubclass(group, CommandOptions)]
    shared = [group for group in groups if group not in own]
    own_settings = itertools.chain.from_iterable(map(setting_declarations.list_settings, own))
    file = (
        [settings_file.config_option(shared, kinds, known_settings or KnownSettings)]
        if has_file and (shared or known_settings)
        else []
    )
    shared_options = map(_create_shared_option, setting_declarations.merge_settings(shared, kinds))
    return [*map(_create_click_parameter, own_settings), *file, *shared_options]


def build_group(group: type[T], values: Mapping[str, Any], places: Mapping[str, str] | None = None) -> T:
    """The struct of a command's parameters. `BadSettings` if a value is out of its bounds.

    `places` names the origin of a field's value in error messages; other fields are named by their flag.
    """
    declarations = {setting.field: setting for setting in setting_declarations.list_settings(group)}
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


_ENVIRONMENT: Final = click.core.ParameterSource.ENVIRONMENT
_SERVICE_URL: Final = re.compile(r"(tcp|udp|sctp)://")
"""The value that the kubelet gives `NODEWISE_PORT` in pods beside a Service called nodewise."""


class _Option(SettingOption):
    """If its own variable is not set, the variable of an older program has effect."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        value = super().resolve_envvar_value(ctx)
        if value is not None and _SERVICE_URL.match(value):
            return None
        if value is not None or self.envvar is None or self.name is None:
            return value
        return older_program_flags.translate_variable(self.name, os.environ)

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """The variable instead of the flag, if the value comes from it."""
        is_variable = ctx is not None and self.name and ctx.get_parameter_source(self.name) is _ENVIRONMENT
        if is_variable and isinstance(self.envvar, str) and self.envvar in os.environ:
            return f"'{self.envvar}'"
        return super().get_error_hint(ctx)


def _create_shared_option(setting: Setting) -> click.Option:
    default = setting.default_as_text()
    option = _Option(
        [setting.flag, setting.field],
        type=click_type_of_setting(setting),
        metavar=setting.option.metavar,
        is_flag=setting.inner is bool,
        multiple=setting.is_list,
        default=setting.default,
        envvar=setting.variable,
        help=f"{setting.help} [default: {default}]" if default else setting.help,
    )
    option.section, option.owners, option.is_shared = setting.section, setting.owners, True
    return option


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
    option = _Option(
        [*setting.flags, setting.field],
        type=declaration.type or click_type_with_bounds(setting),
        metavar=declaration.metavar,
        multiple=setting.is_list,
        required=setting.is_required,
        envvar=declaration.environment or None,
        show_envvar=declaration.shows_environment,
        show_default=declaration.shows_default and bool(setting.default_as_text()),
        help=setting.help,
        **attributes,
    )
    option.section = declaration.section
    return option
