"""The pages of commands: the contents of `--help`."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Final

import click

from nodewise import agents
from nodewise.cli import main, terminal_output
from nodewise.cli.command_help import SectionedCommand, parameter_help_heading
from nodewise.cli.extender_options import setting_groups
from nodewise.cli.older_program_flags import FlagTranslation
from nodewise.cli.setting_declarations import list_settings
from nodewise_cpu import cli
from nodewise_cpu.cli import cmk_flags
from tools.reference.markdown_formatting import MADE, code, entry, table

_DEFAULT: Final = re.compile(r"\s*\[default: ([^\]]*)\]$|\s*Default: ((?:`[^`]*`|[^.`])+)\.$")
_OF_AGENT: Final = re.compile(r"\[\w+\] ")
_PROGRAM: Final = "nodewise"


def walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield a command and all its subcommands, with their names."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            if (below := command.get_command(context, name)) is not None:
                yield from walk(below, f"{path} {name}")


def every() -> dict[str, click.Command]:
    """All commands of `nodewise` by name."""
    return dict(walk(main.command, _PROGRAM))


def _one(name: str) -> str:
    """The page of a command of `nodewise`, including subcommands."""
    path = f"{_PROGRAM} {name}"
    commands = {typed: command for typed, command in every().items() if f"{typed} ".startswith(f"{path} ")}
    seen: dict[str, str] = {}
    parts = [
        _section(command, typed, "#" if typed == path else "##", seen) for typed, command in commands.items()
    ]
    return MADE + "\n".join(parts)


def _section(command: click.Command, typed: str, mark: str, seen: dict[str, str]) -> str:
    """The section of a command. `seen` has the command that describes an option first, by the option's entry."""
    context = click.Context(command, info_name=typed)
    pieces = command.collect_usage_pieces(context)
    usage = f"```\n{' '.join([typed, *pieces])}\n```\n" if pieces != ["[OPTIONS]"] else ""
    first, _, rest = inspect.cleandoc(command.help or "").partition("\n\n")
    parts = list(filter(None, (f"{mark} {typed}\n", _prose(first), usage, _prose(rest))))
    options = [
        parameter
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
    ]
    if options:
        shared = [option for option in options if is_described_setting(option, context)]
        entries = {option.name: _option(option, context) for option in options}
        repeated = [option for option in options if option not in shared and entries[option.name] in seen]
        seen |= {entries[option.name]: typed for option in options if entries[option.name] not in seen}
        sections = _by_section(
            command, [option for option in options if option not in shared and option not in repeated]
        )
        for title, of_it in sections.items():
            heading = f"**{title}**" if len(sections) == 1 else f"{mark}# {title}"
            parts.append(f"{heading}\n\n" + "\n".join(entries[option.name] for option in of_it))
        for other in dict.fromkeys(seen[entries[option.name]] for option in repeated):
            names = ", ".join(
                code(option.opts[-1]) for option in repeated if seen[entries[option.name]] == other
            )
            parts.append(f"Options as of [`{other}`](#{other.replace(' ', '-')}): {names}.\n")
        if shared:
            heading = "**Settings**" if len(sections) == 1 else f"{mark}# Settings"
            lead = "As the [settings](../settings.md) describe them"
            settings = [_setting_name(option, context) for option in shared]
            if len(defaults := {setting.partition(" ")[2] for setting in settings}) == 1:  # named once
                lead = f"{lead} {defaults.pop()}".strip()
                settings = [setting.partition(" ")[0] for setting in settings]
            parts.append(f"{heading}\n\n{lead}: {', '.join(_abbreviate(settings))}.\n")
    if isinstance(command, click.Group):
        parts.append(f"Commands: {', '.join(_below(command, context, typed))}.\n")
    return "\n".join(parts)


@cache
def _settings() -> Mapping[str, Mapping[str, str]]:
    """By variable, the defaults by help of the settings that the page of settings describes."""
    defaults: dict[str, dict[str, str]] = {}
    for group in [*setting_groups(), *(kind.options for kind in agents.built_in_agent_kinds())]:
        for setting in list_settings(group):
            defaults.setdefault(setting.variable, {})[setting.help] = setting.default_as_text()
    return defaults


def _texts(option: click.Option, context: click.Context) -> list[str]:
    """The help of an option, or its parts for several agents."""
    text, _ = help_and_default(option, context)
    return [part.strip() for part in _OF_AGENT.split(text) if part]


def is_described_setting(option: click.Option, context: click.Context) -> bool:
    """Whether the page of settings describes the option in the same words."""
    texts = {text.split(" Default: ")[0] for text in _settings().get(_variable(option), ())}
    return bool(texts) and all(text.split(" Default: ")[0] in texts for text in _texts(option, context))


def _variable(option: click.Option) -> str:
    flag = next((name for name in option.opts if name.startswith("--")), "")
    return f"NODEWISE_{flag.removeprefix('--').replace('-', '_').upper()}"


def _setting_name(option: click.Option, context: click.Context) -> str:
    """The flag, with the default if it is another one than that of the setting."""
    flag = next(name for name in option.opts if name.startswith("--"))
    _, default = help_and_default(option, context)
    texts = _texts(option, context)
    if len(texts) > 1 or default == _settings()[_variable(option)].get(texts[0], default):
        return code(flag)
    return f"{code(flag)} (default {code(default) or 'none'})"


def _abbreviate(settings: Sequence[str]) -> list[str]:
    """Names of settings, with `--prometheus-*` in place of all settings whose names begin so."""
    every = {f"--{variable.removeprefix('NODEWISE_').replace('_', '-').lower()}" for variable in _settings()}
    if every <= {setting.strip("`").partition("`")[0] for setting in settings}:
        return ["all of them"]
    for prefix in ("--prometheus-", "--safe-", "--pigeon-", "--learned-", "--annotate-"):
        members = {code(flag) for flag in every if flag.startswith(prefix)}
        if members <= set(settings):
            first = next(at for at, name in enumerate(settings) if name in members)
            rest = [name for name in settings if name not in members]
            settings = [*rest[:first], code(f"{prefix}*"), *rest[first:]]
    return list(settings)


def _by_section(
    command: click.Command, options: Sequence[click.Option]
) -> Mapping[str, Sequence[click.Option]]:
    sections: dict[str, list[click.Option]] = {}
    for option in options:
        title = parameter_help_heading(option) if isinstance(command, SectionedCommand) else ""
        sections.setdefault(title or "Options", []).append(option)
    return sections


def _below(group: click.Group, context: click.Context, typed: str) -> Iterator[str]:
    for name in group.list_commands(context):
        if group.get_command(context, name) is not None:
            yield f"[`{name}`](#{f'{typed} {name}'.replace(' ', '-')})"


def _prose(text: str) -> str:
    r"""The help of a command: paragraphs, and preformatted text below `\b`."""
    parts = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        is_block = paragraph.startswith("\b\n")
        parts.append(
            _block(paragraph.removeprefix("\b\n")) if is_block else f"{' '.join(paragraph.split())}\n"
        )
    return "\n".join(filter(None, parts))


def _block(text: str) -> str:
    title, _, rest = text.partition(":")
    if "\n" in title:
        return f"```\n{text}\n```\n"
    lines = inspect.cleandoc(" " * (len(title) + 1) + rest)
    if title == "Exit codes" and re.fullmatch(
        r"0 .*\n1 .*\n2  the command line or a setting is invalid", lines
    ):
        return ""  # as of all commands
    lines = lines.replace("\n2  the command line or a setting is invalid", "")
    return f"{title}:\n\n```\n{lines}\n```\n"


def _option(option: click.Option, context: click.Context) -> str:
    form = "" if option.is_flag else f" {option.make_metavar(context).removeprefix('[').removesuffix(']')}"
    text, default = help_and_default(option, context)
    variable = option.envvar if isinstance(option.envvar, str) else ""
    names = [f"{name}{form}" for name in (*option.opts, *option.secondary_opts)]
    return entry(names, "needed" if option.required else default and f"default `{default}`", variable, text)


def help_and_default(option: click.Option, context: click.Context) -> tuple[str, str]:
    """An option's help without its default, and the default."""
    text = option.help or ""
    if match := _DEFAULT.search(text):
        return text[: match.start()] or "", (match[1] or match[2]).strip("`")
    shown = option.get_help_extra(context).get("default", "") if option.show_default else ""
    return text, shown


def commands_page() -> str:
    """All commands in one table, and their common behaviour."""
    rows = ((f"[`{_PROGRAM} {name}`]({name}.md)", text) for name, (_, text) in main.COMMANDS.items())
    return "".join(
        [
            MADE,
            "# Commands\n\n",
            table(("command", "what it does"), rows),
            "\n## Options and output of all commands\n\n",
            "`--help`, or `-h`, shows the content of these pages; of a command with more than 30 options it shows\n",
            "the common ones. `--help-topic WORD` shows the options of an agent, or those whose heading or name\n",
            "contains the word, and `--help-all` shows all options. An option of a server that is in the\n",
            "[table of settings](../settings.md) can also be set as `NODEWISE_…` in the environment and in the file\n",
            "of `--config`. A flag overrides the environment, which overrides the file, which overrides the\n",
            "default.\n\n",
            "nodewise warns of variables that begin with `NODEWISE_` and are no settings. The variable `NO_COLOR`\n",
            "turns off colors.\n\n",
            "Examples of durations are `500ms`, `5s`, `1m30s`, `1h` and `90d`; an example of a size is `64Mi`.\n",
            "Files are in PEM, YAML or JSON, as the option describes. Results go to stdout, everything else to\n",
            "stderr.\n\n",
            "## Exit codes\n\n",
            table(
                ("code", "meaning"),
                ((f"`{number}`", text) for number, text in terminal_output.MEANING.items()),
            ),
            "\nThe pages of commands list other codes, or more precise meanings. `nodewise cpu isolate` ends with\n",
            "the exit code of the command that it runs.\n\n",
            "## Shell completion\n\n",
            "```sh\n",
            "source <(nodewise completion bash)            # in ~/.bashrc, bash 4.4 or later\n",
            "source <(nodewise completion zsh)             # in ~/.zshrc\n",
            "nodewise completion fish | source             # in ~/.config/fish/config.fish\n",
            "```\n\n",
            "It completes commands, options, values of options, files, agents, and namespaces and pods of the\n",
            'cluster. For `cmk`, use `eval "$(_CMK_COMPLETE=bash_source cmk)"`.\n\n',
            "## kubectl plugin\n\n",
            "`kubectl nodewise COMMAND` is `nodewise COMMAND`. The package installs `kubectl-nodewise` and\n",
            "`kubectl_complete-nodewise`, with which kubectl 1.26 or later completes it; both must be in the PATH.\n",
            "[Install the kubectl plugin](../../how-to/kubectl-plugin.md) describes the installation without Python.\n",
        ]
    )


def cmk_page() -> str:
    """The commands of the script `cmk`, and the older program's flags."""
    rows = []
    for name, flags in cmk_flags.CMK.items():
        old = ", ".join(_older(flag, replacement) for flag, replacement in flags.items())
        rows.append((f"`cmk {name}`", f"[`nodewise cpu {name}`](cpu.md#nodewise-cpu-{name})", old))
    return "".join(
        [
            MADE,
            "# cmk\n\n",
            "The script `cmk` is `nodewise cpu` under the name of the older program, with the same commands and\n",
            "options. It also accepts the flags of the older program as docopt parsed them: any unambiguous prefix\n",
            "of a name, and `--name VALUE` as well as `--name=VALUE`.\n\n",
            table(
                ("command", "is", "flags of the older program"), (row for row in rows if _is_command(row[0]))
            ),
            "\n`cmk isolate` ends with the exit code of the command that it runs. The other commands have the\n",
            "[exit codes](index.md#exit-codes) of all commands.\n",
        ]
    )


def _is_command(cell: str) -> bool:
    return cell.strip("`").removeprefix("cmk ") in cli.COMMANDS


def _older(name: str, flag: FlagTranslation) -> str:
    if flag.name == f"--{name}":
        return code(f"--{name}")
    return f"{code(f'--{name}')} ({code(flag.name) or 'no meaning here'})"


COMMAND_PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "commands/index.md": commands_page,
    **{f"commands/{name}.md": partial(_one, name) for name in main.COMMANDS},
    "commands/cmk.md": cmk_page,
}
