"""Parsers of the optional fields of a rule. Each raises a ValueError whose text is the expected value."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from nodewise.base import clock, quantity
from nodewise.metrics.aggregation import AGGREGATIONS

_MAX_QUERY: Final = 4096
"""Characters, as in the CRD. Sources of metrics would reject a longer name or query."""
_MAX_AGE_S: Final = 366 * 86400.0


def _parse_target(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(quantity.EXPECTED)  # noqa: TRY004 - the caller catches ValueError only
    try:
        return quantity.parse(str(value))
    except ValueError:
        raise ValueError(quantity.EXPECTED) from None


def _parse_duration(value: Any) -> float:
    try:
        seconds = clock.parse_duration(str(value))
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= _MAX_AGE_S:
        raise ValueError("a duration such as 30s or 5m, of at most a year")
    return seconds


def _parse_when_missing(value: Any) -> str:
    if value not in ("pass", "reject"):
        raise ValueError("pass or reject")
    return str(value)


def _parse_aggregate(value: Any) -> str:
    if value not in AGGREGATIONS:
        raise ValueError(" or ".join(AGGREGATIONS))
    return str(value)


def _parse_empty_means(value: Any) -> str:
    if value != "healthy":
        raise ValueError("healthy")
    return "healthy"


def parse_query(value: Any) -> str:
    """The expression; ValueError if it is not a text or is too long."""
    if not isinstance(value, str) or len(value) > _MAX_QUERY:
        raise ValueError(f"an expression of at most {_MAX_QUERY} characters")
    return value


OPTIONAL_FIELDS: Final[Mapping[str, tuple[Callable[[Any], Any], Any]]] = {
    "target": (_parse_target, 0),
    "max_age": (_parse_duration, None),
    "when_missing": (_parse_when_missing, ""),
    "query": (parse_query, ""),
    "aggregate": (_parse_aggregate, ""),
    "empty_means": (_parse_empty_means, ""),
}
"""The parser of each optional field of a rule, and its default."""
