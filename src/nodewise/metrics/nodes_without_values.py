"""Which nodes lack values of a metric that other nodes have, in a message with a few names. No I/O.

Such nodes pass a rule by default. Often their series exist, under another name: then the message has the closest name.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from nodewise.base.errors import closest_name, truncate
from nodewise.metrics.node_attributes import first_label
from nodewise.metrics.node_index import NodeIndex
from nodewise.metrics.series import Series, ValueState
from nodewise.metrics.series_arrays import Column

MAX_NAMED: Final = 3
"""Nodes that a message names."""
_MAX_NODES: Final = 200
_MAX_HOSTS: Final = 8
"""Nodes, and names of hosts in series of no node, that are compared."""
_MAX_COMPARED: Final = 50
"""Nodes that are compared thoroughly with one name."""
_MAX_REASON: Final = 250


class NodesWithoutValues(NamedTuple):
    """The nodes that lack values of one metric; equal if the message is the same."""

    missing: tuple[str, ...] = ()
    """Some of the nodes without a series."""
    missing_count: int = 0
    invalid: tuple[str, ...] = ()
    """Some of the nodes whose value is invalid."""
    invalid_count: int = 0
    reason: str = ""
    """Why the value of one of them is invalid."""
    hosts: tuple[str, ...] = ()
    """Some names of hosts in series of no node."""


NONE: Final = NodesWithoutValues()


def nodes_without_values(
    series: Series, nodes: NodeIndex, column: Column, *, empty_is_healthy: bool = False
) -> NodesWithoutValues:
    """The nodes that lack values while others have some. With `empty_is_healthy`, nodes without a series are healthy,
    unless there are series of no node.
    """
    states = column.initial_states[:-1]
    if not (states == ValueState.FRESH).any():
        return NONE
    missing, invalid = (np.flatnonzero(states == state) for state in (ValueState.MISSING, ValueState.INVALID))
    hosts: Sequence[str] = series.unmatched
    if len(missing) and not hosts:
        hosts = [node for node in series.samples if node not in nodes]
    if empty_is_healthy and not hosts:
        missing = missing[:0]
    names = nodes.names
    return NodesWithoutValues(
        tuple(names[missing[:_MAX_NODES]].tolist()),
        len(missing),
        tuple(names[invalid[:MAX_NAMED]].tolist()),
        len(invalid),
        min((why for node, why in series.invalid.items() if node in nodes), default=""),
        tuple(sorted(hosts)[:_MAX_HOSTS]) if len(missing) else (),
    )


def describe(metric: str, without: NodesWithoutValues) -> Generator[None, None, str]:
    """The message about a metric; empty if no node lacks a value. Yields between parts of the work."""
    parts = []
    if without.missing:
        text = f"no series of {metric} on {_name_nodes(without.missing, without.missing_count)}"
        similar = yield from closest_nodes(without.hosts, without.missing)
        parts.append(f"{text}; {name_hosts(similar)}" if similar else text)
    if without.invalid:
        reason = truncate(without.reason, _MAX_REASON)
        nodes = _name_nodes(without.invalid, without.invalid_count)
        parts.append(f"no valid value of {metric} on {nodes}: {reason}")
    return "; ".join(parts)


def closest_nodes(hosts: Iterable[str], nodes: Sequence[str]) -> Generator[None, None, dict[str, str]]:
    """The names of hosts that are the closest ones of some of these nodes, by node; yields between names."""
    similar: dict[str, str] = {}
    for host in islice(hosts, _MAX_HOSTS):
        label = first_label(host) or host
        same_label = (node for node in nodes[:_MAX_NODES] if (first_label(node) or node) == label)
        node = next(same_label, "") or closest_name(host, nodes[:_MAX_COMPARED])
        if node:
            similar.setdefault(node, host)
        yield
    return similar


def name_hosts(similar: Mapping[str, str]) -> str:
    """The closest names in a message."""
    pairs = [f'"{host}" for {node}' for node, host in islice(similar.items(), MAX_NAMED)]
    return f"closest names in series of no node: {', '.join(pairs)}"


def _name_nodes(names: Sequence[str], count: int) -> str:
    more = f" and {count - MAX_NAMED} more" if count > MAX_NAMED else ""
    return f"{count} node{'s' if count > 1 else ''}: {', '.join(names[:MAX_NAMED])}{more}"
