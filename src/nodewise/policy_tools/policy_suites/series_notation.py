"""Parses the notation of series in Prometheus' unit tests: `temp{node="a"}` with the values `80+1x10 _ stale`.

Source: Prometheus 3 `promql/parser` (`series_description`), and the documentation of `promtool test rules`. Histograms
are not supported. Numbers are decimal, so that `0.1+0.1x3` ends with exactly 0.4.
"""

import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Final

from nodewise.base.errors import shown

STALE: Final = "stale"
"""The series has ended."""
Value = str | None
"""A number as Prometheus writes it, `STALE`, or None for a time without a sample."""

MAX_VALUES: Final = 100_000
"""Of one series: 69 days with a value per minute."""

_NUMBER: Final = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
_SPECIAL: Final = r"[+-]?(?:[Ii]nf|[Nn]a[Nn])"
_ITEM: Final = re.compile(
    rf"(?:(?P<stale>stale)|(?P<gap>_)|(?P<special>{_SPECIAL})|(?P<number>{_NUMBER}))"
    rf"(?:(?P<step>[+-](?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{{1,3}})?)?x(?P<times>[0-9]{{1,7}}))?"
)
_EXPECTED: Final = "a number, a+bxn, a-bxn, axn, _, _xn or stale"
_METRIC: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(
    r"""\s*(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*(?P<value>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')\s*"""
)
_ESCAPE: Final = re.compile(r"\\(.)")


class NotationError(ValueError):
    """An unreadable part of a notation. The text says what was found, and `position` is its place, from 0."""

    def __init__(self, position: int, actual: str, expected: str) -> None:
        super().__init__(actual)
        self.position = position
        self.expected = expected


def parse_values(text: str) -> tuple[Value, ...]:
    """The values of a series, one for each interval. `NotationError` for anything else."""
    values: list[Value] = []
    for match in re.finditer(r"\S+", text):
        item = _ITEM.fullmatch(match[0])
        if item is None or ((item["stale"] or item["special"]) and item["times"]):
            raise NotationError(match.start(), shown(match[0]), _EXPECTED)
        if item["step"] and item["number"] is None:
            raise NotationError(match.start(), shown(match[0]), _EXPECTED)
        if len(values) + int(item["times"] or 0) >= MAX_VALUES:
            raise NotationError(match.start(), "more values", f"at most {MAX_VALUES} values")
        values += _expand(item)
    if not values:
        raise NotationError(0, "no value", _EXPECTED)
    return tuple(values)


def _expand(item: re.Match[str]) -> Iterator[Value]:
    """The values of one item. As in Prometheus, `axn` are n+1 values, and `_xn` are n gaps."""
    times = int(item["times"] or 0)
    if item["gap"]:
        yield from [None] * (times if item["times"] else 1)
    elif item["stale"]:
        yield STALE
    elif item["special"]:
        yield item["special"]
    else:
        number, step = Decimal(item["number"]), Decimal(item["step"] or 0)
        yield from (_number_text(number + step * count) for count in range(times + 1))


def _number_text(number: Decimal) -> str:
    """Without an exponent where that is short."""
    return f"{number:f}" if -20 < number.adjusted() < 20 else str(number)  # noqa: PLR2004 - digits


def parse_series(text: str) -> dict[str, str]:
    """The labels of a series, with its name as `__name__` if it has one. `NotationError` for anything else."""
    name = _METRIC.match(text)
    begin = name.end() if name else 0
    labels = {"__name__": name[0]} if name else {}
    rest = text[begin:].strip()
    if not rest and not name:
        raise NotationError(0, "nothing", 'a series such as temp{node="a"}')
    if rest:
        at = text.find(rest, begin)
        if not re.fullmatch(r"\{.*\}", rest, re.DOTALL):
            raise NotationError(at, shown(rest), 'labels such as {node="a"}')
        _parse_labels(text, at + 1, at + len(rest) - 1, labels)
    return labels


def format_series(labels: Mapping[str, str]) -> str:
    """The series with these labels, sorted; without empty labels, which Prometheus regards as absent."""
    rest = sorted((name, value) for name, value in labels.items() if name != "__name__" and value)
    texts = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in rest]
    return f"{labels.get('__name__', '')}{{{','.join(texts)}}}"


def _parse_labels(text: str, at: int, end: int, labels: dict[str, str]) -> None:
    """Add the labels in a part of a text."""
    while text[at:end].strip():
        match = _LABEL.match(text, at, end)
        if match is None:
            raise NotationError(at, shown(text[at:end]), 'a label such as node="a"')
        if match["name"] in labels:
            raise NotationError(match.start("name"), f"{match['name']} twice", "each label once")
        labels[match["name"]] = _ESCAPE.sub(r"\1", match["value"][1:-1])
        at = match.end()
        if at < end and text[at] != ",":
            raise NotationError(at, shown(text[at:end]), "a comma or }")
        at += 1
