"""Flags and environment variables of older programs in our own words: one table a program.

Flags are translated before the command line is parsed. Go's flag package takes `-name`, `--name`, `-name value` and
`-name=value`, and stops at the first other argument. A variable counts where neither a flag nor our own variable says
something; one whose value the older program did not take leaves the default, as there, but is told. docopt, which
CMK used, takes `--name=value`, `--name value` and any beginning of a name that only one option has.
The standard library is enough until something has to be logged: `cmk isolate` starts in workloads' containers.
Sources: Telemetry Aware Scheduling 0.7 and GPU Aware Scheduling 0.5.6 `cmd/main.go`; their configurator 0.1.1
`internal/cmd/main.go`; klog v2 `klog.go`;
kube-safe-scheduler `agents/*`, `main.go`; CPU Manager for Kubernetes 1.5.2 `cmk.py`, 1.4.1 for `--conf-dir`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from nodewise.errors import BadSettings, Problem


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

OLDER_ONLY: Final = EXTENDER.keys() - KLOG.keys() - {"port", "cert", "key"}
"""Flags that TAS and GAS have and nodewise has not. klog's say nothing about who configured the rest."""

CONFIGURATOR: Final[Mapping[str, Flag]] = {
    "b": Flag("--backup-dir"),
    "cert": Flag("--cert"),
    "cert-dir": Flag("--cert-dir"),
    "d": Flag("--config-dir"),
    "dry-run": Flag("--dry-run", boolean=True),
    "f": Flag("--template"),
    "gas-depl": Flag("--gas-depl"),
    "key": Flag("--key"),
    "m": Flag("--manifest"),
    "tas-depl": Flag("--tas-depl"),
}
"""The configurator of both."""

_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})
"""Go's words (strconv.ParseBool)."""


def translate(arguments: Sequence[str], table: Mapping[str, Flag]) -> list[str]:
    """The same command line in our own flags. Arguments that the table does not know stay as they are.

    A boolean may be followed by its value as an argument of its own. Go's flag package would stop there and leave out
    all flags after it, in silence; the older system's own examples are written like this.
    """
    return list(_translated(list(arguments), table))


def implies_any_client(arguments: Sequence[str]) -> str:
    """The first flag that only TAS or GAS has; empty without one. Both programs accept any certificate of their CA."""
    flags = (argument.lstrip("-").partition("=")[0] for argument in arguments if argument.startswith("-"))
    return next((flag for flag in flags if flag in OLDER_ONLY), "")


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
        yield from _converted(flag, argument, value)


def _converted(flag: Flag, argument: str, value: str) -> Iterator[str]:
    if not flag.name:
        _later("option_ignored", option=argument)
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
        _later("option_limited", option=argument, value=value, limit=flag.most)
        return str(flag.most)
    return flag.zero if flag.zero and not int(value) else value


def _later(event: str, **fields: Any) -> None:
    from nodewise.observe import logs

    logs.later(event, **fields)


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
    value = variable.read(text)
    if value is None:
        _later("variable_ignored", variable=variable.name, seen=text[:80], wanted=variable.wanted)
    elif field == "log_level":
        _later("log_level_set", whatever_level=True, value=text)
    return value


def _same(*names: str, boolean: bool = False) -> Mapping[str, Flag]:
    """Flags that are called the same here."""
    return {name: Flag(f"--{name}", boolean=boolean) for name in names}


_POOLS: Final = _same(
    "num-exclusive-cores", "num-shared-cores", "exclusive-mode", "shared-mode", "excl-non-isolcpus"
)
_IMAGE: Final = _same("cmk-img", "cmk-img-pol", "install-dir", "saname")
_STATE: Final = _same("namespace", "conf-dir")
_LOOP: Final = {**_same("interval"), **_same("publish", boolean=True)}
_IGNORED: Final = {"conf-dir": Flag()}
"""Manifests of old give it to commands that never had a directory, or whose state is a ConfigMap."""

CMK: Final[Mapping[str, Mapping[str, Flag]]] = {
    "cluster-init": {
        **_same("host-list", "cmk-cmd-list", "pull-secret", "cafile", "insecure", "namespace"),
        **_same("all-hosts", "no-taint", boolean=True),
        **_POOLS,
        **_IMAGE,
        **_IGNORED,
    },
    "init": {**_POOLS, **_STATE, "socket-id": Flag()},
    "discover": {**_STATE, **_same("no-taint", boolean=True)},
    "describe": _STATE,
    "reconcile": {**_STATE, **_LOOP},
    "isolate": {**_STATE, **_same("pool", "socket-id"), **_same("no-affinity", boolean=True)},
    "install": {**_same("install-dir"), **_IGNORED},
    "node-report": {**_STATE, **_LOOP},
    "uninstall": {**_STATE, **_same("install-dir")},
    "webhook": {**_same("conf-file", "cafile", "insecure"), **_IGNORED},
    "reconfigure": {**_POOLS, **_STATE, **_same("install-dir", "node-name")},
    "reconfigure_setup": {**_POOLS, **_IMAGE, **_same("namespace"), **_IGNORED},
    "reaffinitize": {**_STATE, **_same("node-name")},
}
"""The subcommands of CMK with their options. Of the newer options of our own only whole names are taken."""


_ASKING: Final = _same("help", "version", boolean=True)


def cmk(arguments: Sequence[str]) -> list[str]:
    """A command line of `cmk` as one of `nodewise cpu`; of `isolate` nothing is changed, `cpu.node` reads its options.

    Options may stand before the subcommand as well, and the version may be asked for anywhere before `--`.
    BadSettings for what docopt would not have understood either.
    """
    words, verbatim = until(arguments, "--")
    at = _subcommand(words)
    if at is not None and words[at] == "isolate":
        return [*arguments[at : at + 1], *arguments[:at], *arguments[at + 1 :]]
    command = words[at : at + 1] if at is not None else []
    table = CMK.get("".join(command), {})
    translated = docopt(words if at is None else words[:at] + words[at + 1 :], table)
    return ["--version"] if "--version" in translated else [*command, *translated, *verbatim]


def until(words: Sequence[str], end: str) -> tuple[list[str], list[str]]:
    """The words before `end`, and the others."""
    at = words.index(end) if end in words else len(words)
    return list(words[:at]), list(words[at:])


def _subcommand(words: Sequence[str]) -> int | None:
    """Where it stands: the first word that is neither an option nor an option's value."""
    every = {name: flag for table in (*CMK.values(), _ASKING) for name, flag in table.items()}
    value_of_option = False
    for at, word in enumerate(words):
        name, equals, _ = word.partition("=")
        if not value_of_option and not word.startswith("-"):
            return at
        flags = [every[candidate] for candidate in _candidates(name, every)]
        value_of_option = (
            not value_of_option and not equals and bool(flags) and not any(flag.boolean for flag in flags)
        )
    return None


def docopt(words: Sequence[str], table: Mapping[str, Flag]) -> list[str]:
    """Options with their whole names and `=` before the value. What the table does not know stays as it is.

    BadSettings for the beginning of several names, for a value that is missing, and for one where none belongs.
    """
    return list(_whole_options(list(words), dict(table) | dict(_ASKING)))


def _whole_options(left: list[str], table: Mapping[str, Flag]) -> Iterator[str]:
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        candidates = _candidates(name, table)
        if not candidates:
            yield word
            continue
        if len(candidates) > 1:
            raise _misused(name, "the beginning of several options", _listed(candidates))
        flag = table[candidates[0]]
        if flag.boolean and equals:
            raise _misused(f"--{candidates[0]}", f"the value {value!r}", "none")
        if not flag.boolean and not equals:
            if not left:
                raise _misused(f"--{candidates[0]}", "no value", "one")
            value = left.pop(0)
        if not flag.name:
            _later("option_ignored", option=f"--{candidates[0]}")
        else:
            yield flag.name if flag.boolean else f"{flag.name}={value}"


def _candidates(option: str, table: Mapping[str, Flag]) -> list[str]:
    """The names that an option may stand for: its own, or those that it is the beginning of."""
    name = option.removeprefix("--")
    if name == option or not name:
        return []
    return [name] if name in table else [candidate for candidate in table if candidate.startswith(name)]


def _listed(names: Sequence[str]) -> str:
    return "one of " + ", ".join(f"--{name}" for name in names)


def _misused(option: str, seen: str, wanted: str) -> BadSettings:
    return BadSettings("cannot read the command line", [Problem(option, seen, wanted)])
