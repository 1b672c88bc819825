"""The environment variables of the older annotators, as flags of `nodewise annotate`: one table.

Sources: kube-safe-scheduler `node-annotator/usage/k8s_analytics.py` and `node-annotator/allocation`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from nodewise.annotator.options import MIN_PERIOD_S
from nodewise.observe import logs

Flags = Sequence[str]
_IP: Final = "127.0.0.1"
_PORT: Final = "9090"
KUBECONFIG: Final = "kubectl.conf"
"""The file that the older ones took out of the cluster, in the working folder."""


class Variable(NamedTuple):
    """What a variable becomes."""

    flag: str
    """It is left alone where this flag, or its own variable, is given."""
    read: Callable[[str], Flags | None]
    """The flags that a value is; None for one that cannot be used."""
    wanted: str


def _period(text: str) -> Flags | None:
    if not re.fullmatch(r"\+?[0-9]{1,9}", text.strip()) or int(text) < MIN_PERIOD_S:
        return None
    return ("--period", f"{int(text)}s")


def _true(flag: str) -> Callable[[str], Flags | None]:
    def read(text: str) -> Flags | None:
        return {"true": (flag,), "false": ()}.get(text.strip().lower())

    return read


def _cluster(text: str) -> Flags | None:
    if text == "out-of-cluster":
        return ("--kubeconfig", KUBECONFIG) if Path(KUBECONFIG).is_file() else ()
    return () if text == "in-cluster" else None


def _exporter(text: str) -> Flags | None:
    return ("--exporter-matchers", f'instance=~".*:{text}"') if re.fullmatch("[0-9]{1,5}", text) else None


TABLE: Final[Mapping[str, Variable]] = {
    "ANNOTATE_FREQ": Variable("--period", _period, f"whole seconds, {MIN_PERIOD_S:g} or more"),
    "USE_FORECAST": Variable("--annotate-forecast", _true("--annotate-forecast"), "true or false"),
    "USE_REQ": Variable("--annotate-use-requests", _true("--annotate-use-requests"), "true or false"),
    "CLUSTER_CONF": Variable("--kubeconfig", _cluster, "in-cluster or out-of-cluster"),
    "NODE_EXP_PORT": Variable("--exporter-matchers", _exporter, "a port"),
}


def flags(environment: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
    """What the variables that are set say, where no flag and no variable of our own says it already."""
    return [*_table(environment, arguments), *_prometheus(environment, arguments)]


def _table(environment: Mapping[str, str], arguments: Sequence[str]) -> Iterator[str]:
    for name, variable in TABLE.items():
        text = environment.get(name, "")
        if not text or _is_said(variable.flag, environment, arguments):
            continue
        value = variable.read(text)
        if value is None:
            logs.later("variable_ignored", variable=name, seen=text[:80], wanted=variable.wanted)
        else:
            yield from value


def _prometheus(environment: Mapping[str, str], arguments: Sequence[str]) -> Iterator[str]:
    """Address and port are two variables; each has its default where the other one is set."""
    flag = "--prometheus-url"
    host, port = environment.get("PROM_IP", ""), environment.get("PROM_PORT", "")
    if not (host or port) or _is_said(flag, environment, arguments):
        return
    host = host or _IP
    yield from (flag, f"http://{f'[{host}]' if ':' in host else host}:{port or _PORT}")


def _is_said(flag: str, environment: Mapping[str, str], arguments: Sequence[str]) -> bool:
    own = "NODEWISE_" + flag.removeprefix("--").replace("-", "_").upper()
    return own in environment or any(argument.partition("=")[0] == flag for argument in arguments)
