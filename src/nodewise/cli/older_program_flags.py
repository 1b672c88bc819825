"""Translates flags and environment variables of older programs to those of nodewise, with one table per program.

Flags are translated before the command line is parsed. Go's flag package accepts `-name`, `--name`, `-name value` and
`-name=value`, and stops at the first other argument. A variable has an effect only if neither a flag nor nodewise's own
variable is set. An invalid value keeps the default, like in the older program, and is logged. docopt, which CMK used,
accepts `--name=value`, `--name value` and any unambiguous prefix of a name. This module imports only the standard
library until it logs something, because `cmk isolate` starts in workloads' containers. Sources: Telemetry Aware
Scheduling 0.7 and GPU Aware Scheduling 0.5.6 `cmd/main.go`; their configurator 0.1.1 `internal/cmd/main.go`; klog v2
`klog.go`; kube-safe-scheduler `agents/*`, `main.go`; CPU Manager for Kubernetes 1.5.2 `cmk.py`, 1.4.1 for `--conf-dir`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from nodewise.base.errors import BadSettings, Problem


class FlagTranslation(NamedTuple):
    """The translation of an old flag; with an empty name the flag is accepted and ignored."""

    name: str = ""
    boolean: bool = False
    zero: str = ""
    """The value that replaces 0; empty: 0 stays."""
    most: int | None = None
    """Larger numbers become this one, with a warning."""


KLOG: Final[Mapping[str, FlagTranslation]] = {
    "v": FlagTranslation("--log-level"),
    "vmodule": FlagTranslation(),
    "logtostderr": FlagTranslation(boolean=True),
    "alsologtostderr": FlagTranslation(boolean=True),
    "stderrthreshold": FlagTranslation(),
    "log_dir": FlagTranslation(),
    "log_file": FlagTranslation(),
    "log_file_max_size": FlagTranslation(),
    "log_backtrace_at": FlagTranslation(),
    "one_output": FlagTranslation(boolean=True),
    "add_dir_header": FlagTranslation(boolean=True),
    "skip_headers": FlagTranslation(boolean=True),
    "skip_log_headers": FlagTranslation(boolean=True),
}

TAS: Final[Mapping[str, FlagTranslation]] = {
    "kubeConfig": FlagTranslation("--kubeconfig"),
    "port": FlagTranslation("--port"),
    "cert": FlagTranslation("--cert"),
    "key": FlagTranslation("--key"),
    "cacert": FlagTranslation("--client-ca"),
    "syncPeriod": FlagTranslation("--sync-period"),
    **KLOG,
}


GAS: Final[Mapping[str, FlagTranslation]] = {
    "enableAllowlist": FlagTranslation("--enable-allowlist", boolean=True),
    "enableDenylist": FlagTranslation("--enable-denylist", boolean=True),
    "balancedResource": FlagTranslation("--balanced-resource"),
    "qps": FlagTranslation("--kube-qps", zero="5", most=1000),
    "burst": FlagTranslation("--kube-burst", zero="10", most=1000),
}
"""The additional flags of GPU Aware Scheduling; client-go replaces 0 by its own defaults."""

EXTENDER: Final[Mapping[str, FlagTranslation]] = {**TAS, **GAS}

OLDER_ONLY: Final = EXTENDER.keys() - KLOG.keys() - {"port", "cert", "key"}
"""Flags that TAS and GAS have and nodewise does not have. klog's flags do not show which program is meant."""

CONFIGURATOR: Final[Mapping[str, FlagTranslation]] = {
    "b": FlagTranslation("--backup-dir"),
    "cert": FlagTranslation("--cert"),
    "cert-dir": FlagTranslation("--cert-dir"),
    "d": FlagTranslation("--config-dir"),
    "dry-run": FlagTranslation("--dry-run", boolean=True),
    "f": FlagTranslation("--template"),
    "gas-depl": FlagTranslation("--gas-depl"),
    "key": FlagTranslation("--key"),
    "m": FlagTranslation("--manifest"),
    "tas-depl": FlagTranslation("--tas-depl"),
}
"""The flags of the configurator of TAS and GAS."""

_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})
"""The words that Go's strconv.ParseBool accepts."""


def translate_older_flags(arguments: Sequence[str], table: Mapping[str, FlagTranslation]) -> list[str]:
    """The command line with nodewise's flags. Arguments that are not in the table stay as they are.

    A boolean flag may be followed by its value as a separate argument, as in the examples of the older system. Go's
    flag package would stop there and silently ignore all further flags.
    """
    return list(_translate_arguments(list(arguments), table))


def find_flag_implying_any_client(arguments: Sequence[str]) -> str:
    """The first flag that only TAS or GAS has; empty without one. Both programs accept any certificate of their CA."""
    flags = (argument.lstrip("-").partition("=")[0] for argument in arguments if argument.startswith("-"))
    return next((flag for flag in flags if flag in OLDER_ONLY), "")


def _translate_arguments(left: list[str], table: Mapping[str, FlagTranslation]) -> Iterator[str]:
    while left:
        argument = left.pop(0)
        name, equals, value = argument.lstrip("-").partition("=")
        flag = table.get(name)
        if flag is None or not argument.startswith("-"):
            yield argument
            continue
        if not equals and left and (not flag.boolean or left[0] in _TRUE | _FALSE):
            value = left.pop(0)
        yield from _translate_flag(flag, argument, value)


def _translate_flag(flag: FlagTranslation, argument: str, value: str) -> Iterator[str]:
    if not flag.name:
        _queue_log_event("option_ignored", option=argument)
    elif flag.name == "--log-level":
        yield from ("--log-level", "debug" if value.isdecimal() and int(value) >= _DEBUG_LEVEL else "info")
    elif flag.boolean:
        yield from _translate_switch(flag, value or "true")
    else:
        yield from (flag.name, _clamp_number_flag(flag, argument, value))


def _translate_switch(flag: FlagTranslation, value: str) -> Iterator[str]:
    """nodewise's switches have no value; the parser rejects values that are neither true nor false."""
    if value not in _FALSE:
        yield flag.name if value in _TRUE else f"{flag.name}={value}"


def _clamp_number_flag(flag: FlagTranslation, argument: str, value: str) -> str:
    if not value.isdecimal():
        return value
    if flag.most is not None and int(value) > flag.most:
        _queue_log_event("option_limited", option=argument, value=value, limit=flag.most)
        return str(flag.most)
    return flag.zero if flag.zero and not int(value) else value


def _queue_log_event(event: str, **fields: Any) -> None:
    from nodewise.observe import logs

    logs.emit_later(event, **fields)


_DEBUG_LEVEL: Final = 4
"""The klog level from which on the older programs logged every step."""


class VariableTranslation(NamedTuple):
    """An environment variable of an older program."""

    name: str
    read: Callable[[str], str | None]
    """Returns nodewise's value; None if the older program rejected the value."""
    expected: str


def _integer_parser(least: int, most: int) -> Callable[[str], str | None]:
    """Returns a parser of integers that accepts what Go's strconv.Atoi accepts."""

    def read(text: str) -> str | None:
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text) or not least <= int(text) <= most:
            return None
        return str(int(text))

    return read


_LEVELS: Final = {
    "TRACE": "debug",
    "DEBUG": "debug",
    "INFO": "info",
    "WARNING": "warning",
    "ERROR": "error",
    "ALERT": "error",
}
_OBJECTIVES: Final = {name: name for name in ("A_BINPACK", "LOAD_BALANCE", "CONSOLIDATE")}
_PERCENT: Final = (_integer_parser(0, 100), "a whole number from 0 to 100")

SAFE: Final[Mapping[str, VariableTranslation]] = {
    "port": VariableTranslation("HTTP_PORT", _integer_parser(0, 65535), "a whole number from 0 to 65535"),
    "log_level": VariableTranslation(
        "LOG_LEVEL", lambda text: _LEVELS.get(text.upper()), "one of " + ", ".join(_LEVELS)
    ),
    "safe_utilization": VariableTranslation("SAFEUTILIZATION", *_PERCENT),
    "safe_percentile": VariableTranslation("SAFEPERCENTILE", *_PERCENT),
    "safe_forecast_weight": VariableTranslation("SAFEFORECASTWEIGHT", *_PERCENT),
    "safe_print_table": VariableTranslation(
        "SAFEPRINTTABLE", {"true": "true", "false": "false"}.get, "true or false"
    ),
    "congestion_factor_max": VariableTranslation(
        "CONGESTION_FACTOR_MAX", _integer_parser(1, 2**31), "a whole number above 0"
    ),
    "num_resources": VariableTranslation(
        "NUM_RESOURCES", _integer_parser(1, 5), "a whole number from 1 to 5"
    ),
    "policy_objective": VariableTranslation(
        "POLICY_OBJECTIVE", _OBJECTIVES.get, "one of " + ", ".join(_OBJECTIVES)
    ),
}
"""The variables of kube-safe-scheduler, by nodewise's setting."""


def translate_variable(field: str, environment: Mapping[str, str]) -> str | None:
    """nodewise's value of the older variable for a setting; None if it is not set or invalid."""
    variable = SAFE.get(field)
    text = environment.get(variable.name) if variable else None
    if variable is None or not text:
        return None
    value = variable.read(text)
    if value is None:
        _queue_log_event("variable_ignored", variable=variable.name, seen=text[:80], wanted=variable.expected)
    elif field == "log_level":
        _queue_log_event("log_level_set", whatever_level=True, value=text)
    return value


def _flags_with_unchanged_name(*names: str, boolean: bool = False) -> Mapping[str, FlagTranslation]:
    """Flags with the same name in nodewise."""
    return {name: FlagTranslation(f"--{name}", boolean=boolean) for name in names}


_POOLS: Final = _flags_with_unchanged_name(
    "num-exclusive-cores", "num-shared-cores", "exclusive-mode", "shared-mode", "excl-non-isolcpus"
)
_IMAGE: Final = _flags_with_unchanged_name("cmk-img", "cmk-img-pol", "install-dir", "saname")
_STATE: Final = _flags_with_unchanged_name("namespace", "conf-dir")
_LOOP: Final = {
    **_flags_with_unchanged_name("interval"),
    **_flags_with_unchanged_name("publish", boolean=True),
}
_IGNORED: Final = {"conf-dir": FlagTranslation()}
"""Old manifests set it for commands without a directory, or with their state in a ConfigMap."""

CMK: Final[Mapping[str, Mapping[str, FlagTranslation]]] = {
    "cluster-init": {
        **_flags_with_unchanged_name(
            "host-list", "cmk-cmd-list", "pull-secret", "cafile", "insecure", "namespace"
        ),
        **_flags_with_unchanged_name("all-hosts", "no-taint", boolean=True),
        **_POOLS,
        **_IMAGE,
        **_IGNORED,
    },
    "init": {**_POOLS, **_STATE, "socket-id": FlagTranslation()},
    "discover": {**_STATE, **_flags_with_unchanged_name("no-taint", boolean=True)},
    "describe": _STATE,
    "reconcile": {**_STATE, **_LOOP},
    "isolate": {
        **_STATE,
        **_flags_with_unchanged_name("pool", "socket-id"),
        **_flags_with_unchanged_name("no-affinity", boolean=True),
    },
    "install": {**_flags_with_unchanged_name("install-dir"), **_IGNORED},
    "node-report": {**_STATE, **_LOOP},
    "uninstall": {**_STATE, **_flags_with_unchanged_name("install-dir")},
    "webhook": {**_flags_with_unchanged_name("conf-file", "cafile", "insecure"), **_IGNORED},
    "reconfigure": {**_POOLS, **_STATE, **_flags_with_unchanged_name("install-dir", "node-name")},
    "reconfigure_setup": {**_POOLS, **_IMAGE, **_flags_with_unchanged_name("namespace"), **_IGNORED},
    "reaffinitize": {**_STATE, **_flags_with_unchanged_name("node-name")},
}
"""The subcommands of CMK with their options. nodewise's newer options cannot be abbreviated."""


_HELP_FLAGS: Final = _flags_with_unchanged_name("help", "version", boolean=True)


def translate_cmk_command_line(arguments: Sequence[str]) -> list[str]:
    """The command line of `nodewise cpu` for one of `cmk`. That of `isolate` stays, `cpu.workload` reads its options.

    Options may precede the subcommand, and --version may be anywhere before `--`. `BadSettings` for what docopt would
    have rejected, too.
    """
    words, verbatim = split_words_at(arguments, "--")
    at = _find_subcommand(words)
    if at is not None and words[at] == "isolate":
        return [*arguments[at : at + 1], *arguments[:at], *arguments[at + 1 :]]
    command = words[at : at + 1] if at is not None else []
    table = CMK.get("".join(command), {})
    translated = expand_abbreviated_options(words if at is None else words[:at] + words[at + 1 :], table)
    return ["--version"] if "--version" in translated else [*command, *translated, *verbatim]


def split_words_at(words: Sequence[str], end: str) -> tuple[list[str], list[str]]:
    """The words before `end`, and the others."""
    at = words.index(end) if end in words else len(words)
    return list(words[:at]), list(words[at:])


def _find_subcommand(words: Sequence[str]) -> int | None:
    """The position of the first word that is neither an option nor an option's value; None if there is none."""
    every = {name: flag for table in (*CMK.values(), _HELP_FLAGS) for name, flag in table.items()}
    value_of_option = False
    for at, word in enumerate(words):
        name, equals, _ = word.partition("=")
        if not value_of_option and not word.startswith("-"):
            return at
        flags = [every[candidate] for candidate in _options_matching_prefix(name, every)]
        value_of_option = (
            not value_of_option and not equals and bool(flags) and not any(flag.boolean for flag in flags)
        )
    return None


def expand_abbreviated_options(words: Sequence[str], table: Mapping[str, FlagTranslation]) -> list[str]:
    """Options with their full names and `=` before the value. Words that are not in the table stay as they are.

    `BadSettings` for an ambiguous prefix, a missing value, and a value of a switch.
    """
    return list(_expand_next_option(list(words), dict(table) | dict(_HELP_FLAGS)))


def _expand_next_option(left: list[str], table: Mapping[str, FlagTranslation]) -> Iterator[str]:
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        candidates = _options_matching_prefix(name, table)
        if not candidates:
            yield word
            continue
        if len(candidates) > 1:
            raise _usage_error(
                name,
                "the beginning of several options",
                "one of " + ", ".join(f"--{candidate}" for candidate in candidates),
            )
        flag = table[candidates[0]]
        if flag.boolean and equals:
            raise _usage_error(f"--{candidates[0]}", f"the value {value!r}", "none")
        if not flag.boolean and not equals:
            if not left:
                raise _usage_error(f"--{candidates[0]}", "no value", "one")
            value = left.pop(0)
        if not flag.name:
            _queue_log_event("option_ignored", option=f"--{candidates[0]}")
        else:
            yield flag.name if flag.boolean else f"{flag.name}={value}"


def _options_matching_prefix(option: str, table: Mapping[str, FlagTranslation]) -> list[str]:
    """The names that an option may mean: its own, or those that it is a prefix of."""
    name = option.removeprefix("--")
    if name == option or not name:
        return []
    return [name] if name in table else [candidate for candidate in table if candidate.startswith(name)]


def _usage_error(option: str, actual: str, expected: str) -> BadSettings:
    return BadSettings("cannot read the command line", [Problem(option, actual, expected)])
