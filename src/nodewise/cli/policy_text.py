"""The names, values and comments in the text of a new policy."""

import re
from collections.abc import Iterator
from typing import Final

from nodewise.base import quantity
from nodewise.metrics.series import Series
from nodewise.metrics.value_distribution import Direction, ValueDistribution

_MOST_NODES: Final = 5
"""Nodes that are named in a comment."""
_MAX_NAME: Final = 63


def distribution_lines(distribution: ValueDistribution, series: Series) -> Iterator[str]:
    """The number of nodes with values, and some percentiles."""
    count, without = len(distribution.ordered), len(distribution.without_value)
    yield (
        f"{series.metric}: {count} {'node' if count == 1 else 'nodes'} with a value from source {series.source},"
        f" {without} without"
    )
    if series.incomplete:
        yield f"Warning: the response is incomplete, so values may be missing: {series.incomplete}"
    figures = {
        "minimum": distribution.ordered[0],
        "median": distribution.percentile(50),
        "90th percentile": distribution.percentile(90),
        "maximum": distribution.ordered[-1],
    }
    yield ", ".join(f"{name} {quantity.nano_to_text(value)}" for name, value in figures.items())


def rejected_nodes(distribution: ValueDistribution, direction: Direction, threshold: int) -> str:
    """The number of nodes beyond a threshold in nano-units, and the first of their names."""
    nodes = distribution.beyond(direction, threshold)
    count = f"{len(nodes)} of {len(distribution.ordered) + len(distribution.without_value)} nodes now"
    if not nodes:
        return count
    names = ", ".join(nodes[:_MOST_NODES])
    return f"{count}: {names}{', …' if len(nodes) > _MOST_NODES else ''}"


def default_name(metric: str) -> str:
    """The name of a policy for a metric, which is a valid object name."""
    plain = re.sub(r"[^a-z0-9]+", "-", metric.lower()).strip("-")
    return f"avoid-{plain}"[:_MAX_NAME].rstrip("-")


def written_value(text: str) -> str:
    """A quantity in YAML: a number if it is whole, else a string, because the field accepts no fractions as numbers."""
    return text if re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", text) else f'"{text.strip()}"'
