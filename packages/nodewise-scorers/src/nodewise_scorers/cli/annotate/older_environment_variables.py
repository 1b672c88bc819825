"""Translates the environment variables of the older annotators to flags of `nodewise annotate`.

Sources: kube-safe-scheduler `node-annotator/usage/k8s_analytics.py` and `node-annotator/allocation`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from nodewise.observe import logs
from nodewise_scorers.annotator.options import MIN_PERIOD_S

Flags = Sequence[str]
_IP: Final = "127.0.0.1"
_PORT: Final = "9090"
KUBECONFIG: Final = "kubectl.conf"
"""The file in the working folder that the older annotators used outside of a cluster."""


class AnnotatorVariable(NamedTuple):
    """The translation of a variable."""

    flag: str
    """If this flag or its own variable is set, the older variable has no effect."""
    read: Callable[[str], Flags | None]
    """Returns the flags for a value; None if the value is invalid."""
    expected: str


def _parse_period(text: str) -> Flags | None:
    if not re.fullmatch(r"\+?[0-9]{1,9}", text.strip()) or int(text) < MIN_PERIOD_S:
        return None
    return ("--period", f"{int(text)}s")


def _make_switch_parser(flag: str) -> Callable[[str], Flags | None]:
    def read(text: str) -> Flags | None:
        return {"true": (flag,), "false": ()}.get(text.strip().lower())

    return read


def _parse_cluster(text: str) -> Flags | None:
    if text == "out-of-cluster":
        return ("--kubeconfig", KUBECONFIG) if Path(KUBECONFIG).is_file() else ()
    return () if text == "in-cluster" else None


def _parse_exporter_port(text: str) -> Flags | None:
    return ("--exporter-matchers", f'instance=~".*:{text}"') if re.fullmatch("[0-9]{1,5}", text) else None


VARIABLES: Final[Mapping[str, AnnotatorVariable]] = {
    "ANNOTATE_FREQ": AnnotatorVariable("--period", _parse_period, f"whole seconds, {MIN_PERIOD_S:g} or more"),
    "USE_FORECAST": AnnotatorVariable(
        "--annotate-forecast", _make_switch_parser("--annotate-forecast"), "true or false"
    ),
    "USE_REQ": AnnotatorVariable(
        "--annotate-use-requests", _make_switch_parser("--annotate-use-requests"), "true or false"
    ),
    "CLUSTER_CONF": AnnotatorVariable("--kubeconfig", _parse_cluster, "in-cluster or out-of-cluster"),
    "NODE_EXP_PORT": AnnotatorVariable("--exporter-matchers", _parse_exporter_port, "a port"),
}


def translate_annotator_variables(environment: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
    """The flags for the variables that are set and that no flag or variable of nodewise overrides."""
    return [
        *_translate_variables_by_table(environment, arguments),
        *_translate_prometheus_address(environment, arguments),
    ]


def _translate_variables_by_table(environment: Mapping[str, str], arguments: Sequence[str]) -> Iterator[str]:
    for name, variable in VARIABLES.items():
        text = environment.get(name, "")
        if not text or _is_set(variable.flag, environment, arguments):
            continue
        value = variable.read(text)
        if value is None:
            logs.emit_later("variable_ignored", variable=name, seen=text[:80], wanted=variable.expected)
        else:
            yield from value


def _translate_prometheus_address(environment: Mapping[str, str], arguments: Sequence[str]) -> Iterator[str]:
    """Address and port are two variables. If only one is set, the other has its default."""
    flag = "--prometheus-url"
    host, port = environment.get("PROM_IP", ""), environment.get("PROM_PORT", "")
    if not (host or port) or _is_set(flag, environment, arguments):
        return
    host = host or _IP
    yield from (flag, f"http://{f'[{host}]' if ':' in host else host}:{port or _PORT}")


def _is_set(flag: str, environment: Mapping[str, str], arguments: Sequence[str]) -> bool:
    own = "NODEWISE_" + flag.removeprefix("--").replace("-", "_").upper()
    return own in environment or any(argument.partition("=")[0] == flag for argument in arguments)
