"""Flags of older programs, translated before the command line is parsed: one table a program.

Go's flag package takes `-name`, `--name`, `-name value` and `-name=value`, and stops at the first other argument.
Sources: Telemetry Aware Scheduling 0.7 and GPU Aware Scheduling 0.5.6 `cmd/main.go`; klog v2 `klog.go`.
"""

from collections.abc import Iterator, Mapping, Sequence
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
            logs.emit("option_ignored", option=argument)
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
        logs.emit("option_limited", option=argument, value=value, limit=flag.most)
        return str(flag.most)
    return flag.zero if flag.zero and not int(value) else value


_DEBUG: Final = 4
"""klog's level from which on the older programs told every step."""
