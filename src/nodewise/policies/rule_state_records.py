"""The states of nodes under a rule (`hysteresis`) as the status of a policy has them. No I/O.

The leader writes them, every replica uses them, and whoever starts continues with them. A status lists a limited number
of nodes: the states of all nodes of a large cluster under all policies would not fit into etcd.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np

from nodewise.agent import NodeIndex
from nodewise.base import clock
from nodewise.policies import hysteresis
from nodewise.policies.hysteresis import NodeStates

MAX_NODES: Final = 500
"""Nodes that the status of one policy lists."""

_Phase = Literal["Pending", "Rejected", "Kept"]
_NAMES: Final[dict[int, _Phase]] = {
    int(hysteresis.REJECTED): "Rejected",
    int(hysteresis.KEPT): "Kept",
    int(hysteresis.PENDING): "Pending",
}
"""The names of phases. If not all nodes can be listed, those with the first ones are."""
_PHASES: Final = {name: phase for phase, name in _NAMES.items()}
_RANKS: Final = np.array([len(_NAMES), *(list(_NAMES).index(phase) for phase in sorted(_NAMES))])
"""The place of each phase in `_NAMES`."""


class NodeStateGroup(msgspec.Struct, frozen=True):
    """Nodes with the same state since the same time."""

    state: _Phase
    since: str
    """RFC 3339."""
    nodes: tuple[str, ...]


class RecordedStates(NamedTuple):
    """States that were read from a status."""

    states: NodeStates
    unlisted: int
    """Rejected nodes that were not listed."""


def encode(states: NodeStates, nodes: NodeIndex, most: int) -> tuple[tuple[NodeStateGroup, ...], int]:
    """The states of at most `most` nodes, and the number of rejected nodes that are not listed."""
    numbers = np.flatnonzero(states.phases[:-1])
    ranks = _RANKS[states.phases[numbers]]
    numbers = numbers[np.lexsort((numbers, states.since[numbers], ranks))]
    listed = numbers[:most].tolist()
    groups = groupby(listed, key=lambda number: (int(states.phases[number]), int(states.since[number])))
    unlisted = int(hysteresis.rejects(states)[numbers[most:]].sum())
    return tuple(
        NodeStateGroup(
            _NAMES[phase], clock.format_rfc3339(since), tuple(str(nodes.names[number]) for number in members)
        )
        for (phase, since), members in groups
    ), unlisted


def decode(groups: Sequence[NodeStateGroup], unlisted: int, nodes: NodeIndex) -> RecordedStates:
    """The states in a status, by node number. ValueError if a time cannot be read, or is not one of `NodeStates`."""
    size = len(nodes) + 1
    phases, since = np.full(size, hysteresis.PASSING), np.zeros(size, np.uint32)
    for group in groups:
        numbers = nodes.numbers(group.nodes)
        begun_at = int(clock.parse_input_time(group.since))
        phases[numbers], since[numbers] = _PHASES[group.state], begun_at
    # nodes that no longer exist have the number of the unknown node
    phases[-1], since[-1] = hysteresis.PASSING, 0
    return RecordedStates(NodeStates(phases, since), unlisted)
