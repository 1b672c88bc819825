"""The command line of `isolate`.

Standard library only.

Options may appear anywhere before `--`, also after the command's name, as in CMK. Everything after `--` belongs to the
command, and so do `--help` and `--version` after its name, which CMK answered itself. A long option may be abbreviated
if that is unambiguous; options of CMK take precedence over newer ones.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from nodewise.base import clock
from nodewise.base.errors import BadSettings, Problem, shown
from nodewise_cpu import cmk_names


class IsolateOption(NamedTuple):
    """An option: `metavar` is empty for a flag, `in_cmk` is set if CMK had it."""

    name: str
    metavar: str
    help: str
    in_cmk: bool = False


OPTIONS: Final = (
    IsolateOption("--pool", "POOL", "The pool of the CPUs.", in_cmk=True),
    IsolateOption(
        "--socket-id", "N", "CPUs of this socket; -1 for any. Ignored for the pool infra.", in_cmk=True
    ),
    IsolateOption(
        "--no-affinity", "", "Allocate the CPUs and set no affinity: the command does it itself.", in_cmk=True
    ),
    IsolateOption(
        "--wait", "DURATION", "How long to retry if too few CPU lists are free, such as 30s or 5m."
    ),
    IsolateOption("--agent-socket", "PATH", f"The node agent's socket. Default: {cmk_names.DEFAULT_SOCKET}."),
    IsolateOption(
        "--conf-dir", "DIR", "Without a node agent: the directory of the node's state.", in_cmk=True
    ),
    IsolateOption("--direct", "", "Do not use the node agent; without --conf-dir use a ConfigMap."),
    IsolateOption("--namespace", "NAMESPACE", "Namespace of the ConfigMap. Default: default.", in_cmk=True),
    IsolateOption(
        "--node-name",
        "NAME",
        f"The node, without a node agent. Default: {cmk_names.NODE_NAME}, else this pod's.",
    ),
    IsolateOption("--kubeconfig", "FILE", "A kubeconfig file. Default: the pod's service account."),
    IsolateOption(
        "--proc-fs", "DIR", f"The host's /proc, without a node agent. Default: {cmk_names.PROC_FS}."
    ),
    IsolateOption("--help", "", "Show this message and exit.", in_cmk=True),
    IsolateOption("--version", "", "Show the version and exit.", in_cmk=True),
)
_INFORMATION: Final = {"--help", "--version"}
_SHORT: Final = {"-h": "--help"}
_KNOWN: Final = {option.name: option for option in OPTIONS}

SUMMARY: Final = "Run a command on CPUs of a pool, and release them when it ends."
DETAILS: Final = "The variable CMK_NUM_CORES has the number of CPU lists of an exclusive pool."
EXIT_CODES: Final = {
    "125": "the command was not started; see stderr",
    "126": "it cannot be executed",
    "127": "there is no such command",
    "128+N": "it ended by signal N",
    "else": "its own",
}
EXAMPLES: Final = (
    "isolate --pool=exclusive -- spin --forever",
    "isolate --pool=shared --wait=30s sleep -- 100",
)


class IsolateArguments(NamedTuple):
    """The parsed arguments; an empty text is the default."""

    command: tuple[str, ...]
    pool: str = ""
    socket: int | None = None
    affinity: bool = True
    wait_s: float = 0.0
    agent_socket: str = ""
    conf_dir: str = ""
    is_direct: bool = False
    namespace: str = ""
    node_name: str = ""
    kubeconfig: str = ""
    proc_fs: str = ""


def find_help_or_version_flag(words: Sequence[str]) -> str:
    """`--help` or `--version`, if it is before the command, else empty. Behind it, it belongs to the command."""
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--" or not word.startswith("-"):
            break
        options: dict[str, str] = {}
        with suppress(BadSettings):  # help is shown even if other options are invalid
            _take_option(_SHORT.get(word, word), left, options)
        if requested := options.keys() & _INFORMATION:
            return requested.pop()
    return ""


def parse_isolate_arguments(words: Sequence[str]) -> IsolateArguments:
    """The arguments in these words. BadSettings names all that are invalid."""
    options, command = _split_command_line(words)
    problems = [] if "--pool" in options else [Problem("--pool", "not given", "a pool, such as exclusive")]
    if not command:
        problems.append(Problem("command", "not given", "a command, such as `-- sleep 10`"))
    if problems:
        raise _bad_arguments_error(problems)
    return IsolateArguments(
        tuple(command),
        options["--pool"],
        _parse_socket_number(options.get("--socket-id", "-1")),
        "--no-affinity" not in options,
        parse_duration("--wait", options.get("--wait", "0")),
        options.get("--agent-socket", ""),
        options.get("--conf-dir", ""),
        "--direct" in options,
        options.get("--namespace", ""),
        options.get("--node-name", ""),
        options.get("--kubeconfig", ""),
        options.get("--proc-fs", ""),
    )


def _split_command_line(words: Sequence[str]) -> tuple[Mapping[str, str], Sequence[str]]:
    options: dict[str, str] = {}
    command: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            return options, command + left
        is_information = _SHORT.get(word, word) in _INFORMATION
        if not word.startswith("-") or word == "-" or (command and is_information):
            command.append(word)
        else:
            _take_option(word, left, options)
    return options, command


def _take_option(word: str, left: list[str], options: dict[str, str]) -> None:
    """Add one option to `options`, with its value from the word or from those that are left."""
    prefix, equals, value = word.partition("=")
    option = _find_option(prefix)
    if not option.metavar and equals:
        raise _bad_arguments_error([Problem(option.name, shown(value), "no value")])
    if option.metavar and not equals:
        if not left:
            raise _bad_arguments_error([Problem(option.name, "nothing after it", option.metavar)])
        value = left.pop(0)
    options[option.name] = value


def _find_option(prefix: str) -> IsolateOption:
    """The option of this name, or the only one whose name begins with it."""
    if prefix in _KNOWN:
        return _KNOWN[prefix]
    matches = (
        [option for option in OPTIONS if option.name.startswith(prefix)] if prefix.startswith("--") else []
    )
    matches = [option for option in matches if option.in_cmk] or matches
    if len(matches) != 1:
        wanted = " or ".join(option.name for option in matches)
        wanted = wanted or "an option of isolate (the command's own ones stand after --)"
        raise _bad_arguments_error(
            [Problem(prefix, "not one option" if matches else "no such option", wanted)]
        )
    return matches[0]


def _parse_socket_number(text: str) -> int | None:
    if text.strip() == "-1":
        return None
    if not re.fullmatch(r"\s*\d{1,9}\s*", text, re.ASCII):
        raise _bad_arguments_error([Problem("--socket-id", shown(text), "a number, or -1 for any socket")])
    return int(text)


def parse_duration(field: str, text: str) -> float:
    """Seconds of `1.5`, `30s`, `5m`. BadSettings names `field`."""
    try:
        seconds = clock.parse_option_duration(text, has_default_unit=True)
    except ValueError as error:
        raise _bad_arguments_error([Problem(field, shown(text), "a duration, such as 30s or 5m")]) from error
    if seconds < 0:
        raise _bad_arguments_error([Problem(field, shown(text), "0 or more")])
    return seconds


def _bad_arguments_error(problems: Sequence[Problem]) -> BadSettings:
    return BadSettings("cannot read the command line", problems, remedy="see isolate --help")


def format_help(program: str) -> str:
    """The text of `--help`."""
    import textwrap

    width = max(len(option.name) + len(option.metavar) for option in OPTIONS) + 3
    lines = [
        f"Usage: {program} isolate --pool=POOL [OPTIONS] COMMAND [-- ARGUMENTS...]",
        "",
        f"  {SUMMARY}",
        "",
    ]
    lines += [*textwrap.wrap(DETAILS, 78, initial_indent="  ", subsequent_indent="  "), "", "Options:"]
    for option in OPTIONS:
        first = f"  {f'{option.name} {option.metavar}'.rstrip():<{width}} "
        lines += textwrap.wrap(option.help, 78, initial_indent=first, subsequent_indent=" " * len(first))
    lines += ["", "Examples:", *(f"  {program} {example}" for example in EXAMPLES)]
    lines += ["", "Exit codes:", *(f"  {code:<5}  {meaning}" for code, meaning in EXIT_CODES.items())]
    return "\n".join(lines)
