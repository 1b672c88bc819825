"""What a replica counts of itself: its /metrics, in Prometheus' text form."""

import re
from collections.abc import Iterator
from typing import Final

from nodewise.configure.doctor.facts import Numbers

_LINE: Final = re.compile(r"(?P<name>[a-z_]+)(?:\{(?P<labels>[^}]*)\})? (?P<value>[0-9.eE+-]+)")
_LABEL: Final = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
_CALLS: Final = re.compile(r"/(scheduler|agents/[^/]+)/")
_MOST_LINES: Final = 100_000


def read(pod: str, body: bytes, now_s: float) -> Numbers:
    """The numbers that somebody looks at; what is none is left out."""
    calls, started_s, ca_clients = 0, now_s, 0
    refused: dict[str, int] = {}
    nodes: dict[str, int] = {}
    unmatched: dict[str, int] = {}
    for name, labels, value in _samples(body.decode(errors="replace")):
        if name == "nodewise_requests_total" and _CALLS.match(labels.get("route", "")):
            calls += int(value)
        elif name == "process_start_time_seconds":
            started_s = value
        elif name == "nodewise_ca_clients_total":
            ca_clients = int(value)
        elif name == "nodewise_connections_ended_total":
            refused[labels.get("reason", "")] = int(value)
        elif name == "nodewise_metric_nodes":
            nodes[labels.get("metric", "")] = int(value)
        elif name == "nodewise_metric_series_unmatched":
            unmatched[labels.get("metric", "")] = int(value)
    return Numbers(pod, calls, max(now_s - started_s, 0.0), ca_clients, refused, nodes, unmatched)


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for line in text.splitlines()[:_MOST_LINES]:
        match = _LINE.match(line)
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if abs(value) < 2**63:  # neither infinite nor absurd
            yield match["name"], dict(_LABEL.findall(match["labels"] or "")), value
