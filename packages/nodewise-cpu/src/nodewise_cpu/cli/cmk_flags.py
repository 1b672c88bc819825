"""Translates command lines of CPU Manager for Kubernetes (CMK) to those of `nodewise cpu`.

docopt, which CMK used, accepts `--name=value`, `--name value` and any unambiguous prefix of a name. Source: CMK 1.5.2
`cmk.py`, 1.4.1 for `--conf-dir`.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from nodewise.base.errors import BadSettings, Problem
from nodewise.cli.older_program_flags import FlagTranslation
from nodewise.observe import logs


def _same(*names: str, boolean: bool = False) -> Mapping[str, FlagTranslation]:
    """Flags with the same name in nodewise."""
    return {name: FlagTranslation(f"--{name}", boolean=boolean) for name in names}


_POOLS: Final = _same(
    "num-exclusive-cores", "num-shared-cores", "exclusive-mode", "shared-mode", "excl-non-isolcpus"
)
_IMAGE: Final = _same("cmk-img", "cmk-img-pol", "install-dir", "saname")
_STATE: Final = _same("namespace", "conf-dir")
_LOOP: Final = {
    **_same("interval"),
    **_same("publish", boolean=True),
}
_IGNORED: Final = {"conf-dir": FlagTranslation()}
"""Old manifests set it for commands without a directory, or with their state in a ConfigMap."""

CMK: Final[Mapping[str, Mapping[str, FlagTranslation]]] = {
    "cluster-init": {
        **_same("host-list", "cmk-cmd-list", "pull-secret", "cafile", "insecure", "namespace"),
        **_same("all-hosts", "no-taint", boolean=True),
        **_POOLS,
        **_IMAGE,
        **_IGNORED,
    },
    "init": {**_POOLS, **_STATE, "socket-id": FlagTranslation()},
    "discover": {**_STATE, **_same("no-taint", boolean=True)},
    "describe": _STATE,
    "reconcile": {**_STATE, **_LOOP},
    "isolate": {
        **_STATE,
        **_same("pool", "socket-id"),
        **_same("no-affinity", boolean=True),
    },
    "install": {**_same("install-dir"), **_IGNORED},
    "node-report": {**_STATE, **_LOOP},
    "uninstall": {**_STATE, **_same("install-dir")},
    "webhook": {**_same("conf-file", "cafile", "insecure"), **_IGNORED},
    "reconfigure": {**_POOLS, **_STATE, **_same("install-dir", "node-name")},
    "reconfigure_setup": {**_POOLS, **_IMAGE, **_same("namespace"), **_IGNORED},
    "reaffinitize": {**_STATE, **_same("node-name")},
}
"""The subcommands of CMK with their options. nodewise's newer options cannot be abbreviated."""


_HELP_FLAGS: Final = _same("help", "version", boolean=True)


def translate_command_line(arguments: Sequence[str]) -> list[str]:
    """The command line of `nodewise cpu` for one of `cmk`. That of `isolate` stays, `cpu.workload` reads its options.

    Options may precede the subcommand, and --version may be anywhere before `--`. `BadSettings` for what docopt would
    have rejected, too.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    words, verbatim = list(arguments[:end]), arguments[end:]
    at = _find_subcommand(words)
    if at is not None and words[at] == "isolate":
        return [*arguments[at : at + 1], *arguments[:at], *arguments[at + 1 :]]
    command = [] if at is None else [words.pop(at)]
    translated = _expand_options(words, {**CMK.get("".join(command), {}), **_HELP_FLAGS})
    return ["--version"] if "--version" in translated else [*command, *translated, *verbatim]


def _find_subcommand(words: Sequence[str]) -> int | None:
    """The position of the first word that is neither an option nor an option's value; None if there is none."""
    every = {name: flag for table in (*CMK.values(), _HELP_FLAGS) for name, flag in table.items()}
    is_value = False
    for at, word in enumerate(words):
        if not is_value and not word.startswith("-"):
            return at
        name, equals, _ = word.partition("=")
        flags = [every[option] for option in _options_matching_prefix(name, every)]
        is_value = not is_value and not equals and bool(flags) and not any(flag.boolean for flag in flags)
    return None


def _expand_options(words: Sequence[str], table: Mapping[str, FlagTranslation]) -> list[str]:
    """Options with their full names and `=` before the value. Words that are not in the table stay as they are.

    `BadSettings` for an ambiguous prefix, a missing value, and a value of a switch.
    """
    left, expanded = list(words), []
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        options = [f"--{option}" for option in _options_matching_prefix(name, table)]
        if not options:
            expanded.append(word)
            continue
        if len(options) > 1:
            raise _usage_error(name, "the beginning of several options", f"one of {', '.join(options)}")
        [option] = options
        flag = table[option.removeprefix("--")]
        if flag.boolean and equals:
            raise _usage_error(option, f"the value {value!r}", "none")
        if not flag.boolean and not equals:
            if not left:
                raise _usage_error(option, "no value", "one")
            value = left.pop(0)
        if not flag.name:
            logs.emit_later("option_ignored", option=option)
        else:
            expanded.append(flag.name if flag.boolean else f"{flag.name}={value}")
    return expanded


def _options_matching_prefix(option: str, table: Mapping[str, FlagTranslation]) -> list[str]:
    """The names that an option may mean: its own, or those that it is a prefix of."""
    name = option.removeprefix("--")
    if name == option or not name:
        return []
    return [name] if name in table else [candidate for candidate in table if candidate.startswith(name)]


def _usage_error(option: str, actual: str, expected: str) -> BadSettings:
    return BadSettings("cannot read the command line", [Problem(option, actual, expected)])
