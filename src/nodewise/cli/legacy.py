"""Flags and environment variables of older programs in our own words: one table a program.

Flags are translated before the command line is parsed. Go's flag package takes `-name`, `--name`, `-name value` and
`-name=value`, and stops at the first other argument. A variable counts where neither a flag nor our own variable says
something; one whose value the older program did not take leaves the default, as there, but is told.
Sources: Telemetry Aware Scheduling 0.7 and GPU Aware Scheduling 0.5.6 `cmd/main.go`; klog v2 `klog.go`;
kube-safe-scheduler `agents/*`, `main.go`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from nodewise.observe import logs


class Flag(NamedTuple):
    """What an old flag becomes; an empty name means that it is accepted and has no meaning here."""

    name: str = ""
    boolean: bool = False
    zero: str = ""
    """What 0 means, where it does not mean 0."""
    most: int | None = None
    """A larger number is this one, with a warning."""


KLOG: Final[Mapping[str, Flag]] = {
    "v": Flag("--log-level"),
    "vmodule": Flag(),
    "logtostderr": Flag(boolean=True),
    "alsologtostderr": Flag(boolean=True),
    "stderrthreshold": Flag(),
    "log_dir": Flag(),
    "log_file": Flag(),
    "log_file_max_size": Flag(),
    "log_backtrace_at": Flag(),
    "one_output": Flag(boolean=True),
    "add_dir_header": Flag(boolean=True),
    "skip_headers": Flag(boolean=True),
    "skip_log_headers": Flag(boolean=True),
}

TAS: Final[Mapping[str, Flag]] = {
    "kubeConfig": Flag("--kubeconfig"),
    "port": Flag("--port"),
    "cert": Flag("--cert"),
    "key": Flag("--key"),
    "cacert": Flag("--client-ca"),
    "syncPeriod": Flag("--sync-period"),
    **KLOG,
}


GAS: Final[Mapping[str, Flag]] = {
    "enableAllowlist": Flag("--enable-allowlist", boolean=True),
    "enableDenylist": Flag("--enable-denylist", boolean=True),
    "balancedResource": Flag("--balanced-resource"),
    "qps": Flag("--kube-qps", zero="5", most=1000),
    "burst": Flag("--kube-burst", zero="10", most=1000),
}
"""What GPU Aware Scheduling has besides; of 0, client-go makes its own defaults."""

EXTENDER: Final[Mapping[str, Flag]] = {**TAS, **GAS}

_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})
"""Go's words (strconv.ParseBool)."""


def translate(arguments: Sequence[str], table: Mapping[str, Flag]) -> list[str]:
    """The same command line in our own flags. Arguments that the table does not know stay as they are.

    A boolean may be followed by its value as an argument of its own. Go's flag package would stop there and leave out
    all flags after it, in silence; the older system's own examples are written like this.
    """
    return list(_translated(list(arguments), table))


def _translated(left: list[str], table: Mapping[str, Flag]) -> Iterator[str]:
    while left:
        argument = left.pop(0)
        name, equals, value = argument.lstrip("-").partition("=")
        flag = table.get(name)
        if flag is None or not argument.startswith("-"):
            yield argument
            continue
        if not equals and left and (not flag.boolean or left[0] in _TRUE | _FALSE):
            value = left.pop(0)
        if not flag.name:
            logs.later("option_ignored", option=argument)
        elif flag.name == "--log-level":
            yield from ("--log-level", "debug" if value.isdecimal() and int(value) >= _DEBUG else "info")
        elif flag.boolean:
            yield from _switched(flag, value or "true")
        else:
            yield from (flag.name, _bounded(flag, argument, value))


def _switched(flag: Flag, value: str) -> Iterator[str]:
    """Ours have no value; what is neither true nor false is the parser's to complain about."""
    if value not in _FALSE:
        yield flag.name if value in _TRUE else f"{flag.name}={value}"


def _bounded(flag: Flag, argument: str, value: str) -> str:
    if not value.isdecimal():
        return value
    if flag.most is not None and int(value) > flag.most:
        logs.later("option_limited", option=argument, value=value, limit=flag.most)
        return str(flag.most)
    return flag.zero if flag.zero and not int(value) else value


_DEBUG: Final = 4
"""klog's level from which on the older programs told every step."""


class Variable(NamedTuple):
    """An environment variable of an older program."""

    name: str
    read: Callable[[str], str | None]
    """The value in our own words; None for one that the older program did not take."""
    wanted: str


def _whole(least: int, most: int) -> Callable[[str], str | None]:
    """A whole number as Go's strconv.Atoi takes it."""

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
_PERCENT: Final = (_whole(0, 100), "a whole number from 0 to 100")

SAFE: Final[Mapping[str, Variable]] = {
    "port": Variable("HTTP_PORT", _whole(0, 65535), "a whole number from 0 to 65535"),
    "log_level": Variable(
        "LOG_LEVEL", lambda text: _LEVELS.get(text.upper()), "one of " + ", ".join(_LEVELS)
    ),
    "safe_utilization": Variable("SAFEUTILIZATION", *_PERCENT),
    "safe_percentile": Variable("SAFEPERCENTILE", *_PERCENT),
    "safe_forecast_weight": Variable("SAFEFORECASTWEIGHT", *_PERCENT),
    "safe_print_table": Variable("SAFEPRINTTABLE", {"true": "true", "false": "false"}.get, "true or false"),
    "congestion_factor_max": Variable("CONGESTION_FACTOR_MAX", _whole(1, 2**31), "a whole number above 0"),
    "num_resources": Variable("NUM_RESOURCES", _whole(1, 5), "a whole number from 1 to 5"),
    "policy_objective": Variable("POLICY_OBJECTIVE", _OBJECTIVES.get, "one of " + ", ".join(_OBJECTIVES)),
}
"""What kube-safe-scheduler reads, by our own setting."""


def of_variable(field: str, environment: Mapping[str, str]) -> str | None:
    """What the older variable for a setting says, in our own words; None without one, or without a use for it."""
    variable = SAFE.get(field)
    text = environment.get(variable.name) if variable else None
    if variable is None or not text:
        return None
    found = variable.read(text)
    if found is None:
        logs.later("variable_ignored", variable=variable.name, seen=text[:80], wanted=variable.wanted)
    elif field == "log_level":
        logs.later("log_level_set", whatever_level=True, value=text)
    return found
