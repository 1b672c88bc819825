"""Flags of older programs, translated before the command line is parsed: one table a program.

Go's flag package takes `-name`, `--name`, `-name value` and `-name=value`, and stops at the first other argument.
Sources: Telemetry Aware Scheduling 0.7 `cmd/main.go`; klog v2 `klog.go`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from nodewise.observe import logs


class Flag(NamedTuple):
    """What an old flag becomes; an empty name means that it is accepted and has no meaning here."""

    name: str = ""
    boolean: bool = False


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


def translate(arguments: Sequence[str], table: Mapping[str, Flag]) -> list[str]:
    """The same command line in our own flags. Arguments that the table does not know stay as they are."""
    return list(_translated(iter(arguments), table))


def _translated(arguments: Iterator[str], table: Mapping[str, Flag]) -> Iterator[str]:
    for argument in arguments:
        name, equals, value = argument.lstrip("-").partition("=")
        flag = table.get(name)
        if flag is None or not argument.startswith("-"):
            yield argument
            continue
        if not equals and not flag.boolean:
            value = next(arguments, "")
        if not flag.name:
            logs.emit("option_ignored", option=argument)
        elif flag.name == "--log-level":
            yield from ("--log-level", "debug" if value.isdecimal() and int(value) >= _DEBUG else "info")
        else:
            yield from (flag.name, value)


_DEBUG: Final = 4
"""klog's level from which on the older programs told every step."""
