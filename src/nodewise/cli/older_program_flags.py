"""Translates flags and environment variables of older programs to those of nodewise, with one table per program.

Flags are translated before the command line is parsed. Go's flag package accepts `-name`, `--name`, `-name value` and
`-name=value`, and stops at the first other argument. A variable has an effect only if neither a flag nor nodewise's own
variable is set. An invalid value keeps the default, like in the older program, and is logged. Sources: Telemetry Aware
Scheduling 0.7 and GPU Aware Scheduling 0.5.6 `cmd/main.go`; their configurator 0.1.1 `internal/cmd/main.go`; klog v2
`klog.go`; kube-safe-scheduler `agents/*`, `main.go`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from nodewise.observe import logs


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
    left, translated = list(arguments), []
    while left:
        argument = left.pop(0)
        name, equals, value = argument.lstrip("-").partition("=")
        flag = table.get(name)
        if flag is None or not argument.startswith("-"):
            translated.append(argument)
            continue
        if not equals and left and (not flag.boolean or left[0] in _TRUE | _FALSE):
            value = left.pop(0)
        translated += _translate_flag(flag, argument, value)
    return translated


def find_flag_implying_any_client(arguments: Sequence[str]) -> str:
    """The first flag that only TAS or GAS has; empty without one. Both programs accept any certificate of their CA."""
    flags = (argument.lstrip("-").partition("=")[0] for argument in arguments if argument.startswith("-"))
    return next((flag for flag in flags if flag in OLDER_ONLY), "")


def _translate_flag(  # complexity: one branch per kind of flag
    flag: FlagTranslation, argument: str, value: str
) -> Sequence[str]:
    if not flag.name:
        logs.emit_later("option_ignored", option=argument)
        return ()
    if flag.name == "--log-level":
        return flag.name, "debug" if value.isdecimal() and int(value) >= _DEBUG_LEVEL else "info"
    if (
        flag.boolean
    ):  # nodewise's switches have no value; the parser rejects values that are neither true nor false
        if value in _FALSE:
            return ()
        return (flag.name if not value or value in _TRUE else f"{flag.name}={value}",)
    if value.isdecimal() and flag.most is not None and int(value) > flag.most:
        logs.emit_later("option_limited", option=argument, value=value, limit=flag.most)
        return flag.name, str(flag.most)
    return flag.name, flag.zero if flag.zero and value.isdecimal() and not int(value) else value


_DEBUG_LEVEL: Final = 4  # the klog level from which on the older programs logged every step


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
        logs.emit_later("variable_ignored", variable=variable.name, seen=text[:80], wanted=variable.expected)
    elif field == "log_level":
        logs.emit_later("log_level_set", whatever_level=True, value=text)
    return value
