"""Help of commands: the common options first, the others by topic."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import click
from click.core import ParameterSource

from nodewise.base.errors import counted, did_you_mean

_MAX_OPTIONS: Final = 30  # the most options of a command whose help shows all of them
_COMMON: Final = frozenset(
    {
        "agents",
        "cert",
        "client_ca",
        "config",
        "context",
        "health_address",
        "health_port",
        "key",
        "kubeconfig",
        "log_level",
        "metrics",
        "objects_from",
        "period_s",
        "port",
        "prometheus_url",
        "sync_period_s",
        "unsafe",
        "usage_from",
        "what",
    }
)
"""Settings that `--help` shows, in addition to the options of the command itself."""
_TOPIC: Final = "nodewise.help_topic"
"""The key in the context's `meta`: the topic of the help; `_ALL` for all options."""
_ALL: Final = ""
_SERVICE_URL: Final = re.compile(r"(tcp|udp|sctp)://")
"""The value that the kubelet gives `NODEWISE_PORT` in pods beside a Service called nodewise."""


class SettingOption(click.Option):
    """An option with a heading in the help. If its own variable is not set, that of an older program has effect."""

    def __init__(
        self,
        *arguments: Any,
        section: str = "",
        is_shared: bool = False,
        owners: Sequence[str] = (),
        **attributes: Any,
    ) -> None:
        """`section`: the heading, empty for an option of the command itself. `is_shared`: whether the option is a
        setting, which several commands have. `owners`: the agents that have the setting, empty for one of nodewise.
        """
        super().__init__(*arguments, **attributes)
        self.section, self.is_shared, self.owners = section, is_shared, owners

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        value = super().resolve_envvar_value(ctx)
        if value is not None:
            return None if _SERVICE_URL.match(value) else value
        if self.envvar is None or self.name is None:
            return None
        from nodewise.cli import older_program_flags  # start-up time

        return older_program_flags.translate_variable(self.name, os.environ)

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """The variable instead of the flag, if the value comes from it."""
        is_variable = ctx and self.name and ctx.get_parameter_source(self.name) is ParameterSource.ENVIRONMENT
        if is_variable and isinstance(self.envvar, str) and self.envvar in os.environ:
            return f"'{self.envvar}'"
        return super().get_error_hint(ctx)


class SectionedCommand(click.Command):
    """A command whose help groups options by heading, after those without one.

    With more than 30 options, `--help` shows the common ones and the other headings; `--help-topic` shows the options
    of a heading or an agent, and `--help-all` all of them.
    """

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        *parameters, help_option = super().get_params(ctx)
        more = _help_options(self) if self._has_topics() else []
        return [*parameters, *more, help_option]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        topic = ctx.meta.get(_TOPIC)
        options = [parameter for parameter in self.get_params(ctx) if isinstance(parameter, click.Option)]
        if self._has_topics() and topic is None:
            _write_common_options(ctx, formatter, options)
        else:
            shown = options if not topic else _options_of_topic(options, topic)
            _write_sections(ctx, formatter, _by_heading(shown))

    def _has_topics(self) -> bool:
        options = [option for option in self.params if isinstance(option, click.Option) and not option.hidden]
        return len(options) > _MAX_OPTIONS and not all(map(_is_common, options))


def parameter_help_heading(parameter: click.Parameter) -> str:
    """The heading of a parameter in the help; empty for a parameter without one."""
    return parameter.section if isinstance(parameter, SettingOption) else ""


def _is_shared(option: click.Option) -> bool:
    return isinstance(option, SettingOption) and option.is_shared


def _is_common(option: click.Option) -> bool:
    return not _is_shared(option) or option.name in _COMMON


def _by_heading(options: Iterable[click.Option]) -> dict[str, list[click.Option]]:
    sections: dict[str, list[click.Option]] = {}
    for option in options:
        if not option.hidden:
            sections.setdefault(parameter_help_heading(option) or "Options", []).append(option)
    return sections


def _write_sections(
    ctx: click.Context, formatter: click.HelpFormatter, sections: Mapping[str, Sequence[click.Option]]
) -> None:
    for heading, options in sections.items():
        records = [record for option in options if (record := option.get_help_record(ctx)) is not None]
        with formatter.section(heading):
            formatter.write_dl(records)


def _write_common_options(
    ctx: click.Context, formatter: click.HelpFormatter, options: Sequence[click.Option]
) -> None:
    sections = _by_heading(option for option in options if not _is_shared(option))
    common = [option for option in options if _is_shared(option) and _is_common(option)]
    sections["Options"] = [*common, *sections.get("Options", [])]
    _write_sections(ctx, formatter, sections)
    topics = _by_heading(option for option in options if not _is_common(option))
    counts = [(heading, counted(len(of_topic), "option")) for heading, of_topic in topics.items()]
    with formatter.section("More options, by topic"):
        formatter.write_dl(counts, col_max=60)


def _options_of_topic(options: Sequence[click.Option], topic: str) -> list[click.Option]:
    """The options of the agent of this name; else those whose heading contains the topic; else whose name does.

    `UsageError` if there is none.
    """
    word = topic.lower()
    selections = (
        [option for option in options if word in getattr(option, "owners", ())],
        [option for option in options if word in parameter_help_heading(option).lower()],
        [option for option in options if any(word in name for name in option.opts)],
    )
    selected = next(filter(None, selections), None)
    if selected is None:
        headings = " ".join(map(parameter_help_heading, options))
        words = list(dict.fromkeys(heading.strip(",").lower() for heading in headings.split()))
        raise click.UsageError(f"there is no help about {topic!r}{did_you_mean(topic, words)}")
    return selected


def _help_options(command: click.Command) -> list[click.Option]:
    def show(ctx: click.Context, _: click.Parameter, topic: Any) -> None:
        if topic is not None and not ctx.resilient_parsing:
            ctx.meta[_TOPIC] = topic
            click.echo(command.get_help(ctx), color=ctx.color)
            ctx.exit()

    attributes: dict[str, Any] = {"is_eager": True, "expose_value": False, "callback": show}
    return [
        click.Option(
            ["--help-topic"],
            metavar="WORD",
            help="Show the options of an agent, or those whose heading or name contains the word, and exit.",
            **attributes,
        ),
        click.Option(
            ["--help-all"],
            flag_value=_ALL,
            is_flag=True,
            default=None,
            help="Show all options and exit.",
            **attributes,
        ),
    ]
