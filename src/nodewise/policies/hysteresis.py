"""The states of nodes under a rule with `for`, `release` or `keepFor`: transitions, flaps, and records in the status.
 Pure functions of states, sample and time.

Every use of a policy (extender, native mode, `decide`, replay, tests and backtests) computes the states of a rule by
`advance`, from the states before, one sample and its time:

    states = initial_states(size)
    states = advance(states, levels(parts), times, now)
    rejected = rejects(states)

The states of a node, with the conditions of the transitions:

| from | to | condition |
|---|---|---|
| PASSING | PENDING | the node meets the rule |
| PENDING | REJECTED | the node meets the rule, and since the start of PENDING at least `for` has passed |
| PENDING | PASSING | the node does not meet the rule |
| REJECTED | KEPT | released |
| KEPT | REJECTED | the node meets the rule |
| KEPT | PASSING | released, and since the start of KEPT at least `keepFor` has passed |

Without `for` or `keepFor`, a node passes through PENDING or KEPT in one step. A node meets a rule where each part meets
its target. The rule is released where a part no longer meets its `release`, which replaces the target while a node
is rejected; without `release` that is the target itself. Between target and `release`, a rejected node stays rejected
and a pending one passes.

A missing value means what `whenMissing` says. With `Allow`, it releases the rule. With `Reject`, the node is rejected
because of the missing value, and the state stays as it is. While a rule is suspended, missing values change no state,
and neither do they in a gap: until `maxAge` after the last value of the node (`rule_evaluation.find_gaps`). The time
counts on in a gap, but only the next value ends it. So a node that breaks the rule before and after a gap has broken it
for the whole time, and no node is rejected only because time passes.

Times are whole seconds, rounded to the disadvantage of a change, so that stored states equal those in memory. A change
happens at a sample: a node is never rejected before `for` or passes before `keepFor`, and both may take up to one
interval of samples longer.

The leader writes the records, every replica uses them, and a new leader continues with them. A status lists a limited
number of nodes: the states of all nodes of a large cluster under all policies would not fit into etcd.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import NodeIndex
from nodewise.base import clock
from nodewise.policies.placement_policy import HoldTimes

Mask = NDArray[np.bool_]
Phases = NDArray[np.uint8]
Levels = NDArray[np.uint8]

PASSING: Final = np.uint8(0)
PENDING: Final = np.uint8(1)
REJECTED: Final = np.uint8(2)
KEPT: Final = np.uint8(3)

BROKEN: Final = np.uint8(0)
RELEASED: Final = np.uint8(1)
BETWEEN: Final = np.uint8(2)
UNKNOWN: Final = np.uint8(3)

_NEXT: Final = np.array(
    [
        # BROKEN, RELEASED, BETWEEN, UNKNOWN
        [PENDING, PASSING, PASSING, PASSING],
        [PENDING, PASSING, PASSING, PENDING],
        [REJECTED, KEPT, REJECTED, REJECTED],
        [REJECTED, KEPT, KEPT, KEPT],
    ]
)
"""The next phase by phase and level, before times count."""


class RulePart(NamedTuple):
    """One sample of a comparison of a rule, by node."""

    known: Mask
    """Where there is a fresh value, or none is needed (`emptyMeans`)."""
    broken: Mask
    """Where the value meets the target."""
    held: Mask
    """Where the value meets `release`; equal to `broken` without it."""
    missing_releases: Mask
    """Where a missing value releases the rule; of one element for all nodes. Elsewhere it changes no state."""


class NodeStates(NamedTuple):
    """The state of each node under one rule."""

    phases: Phases
    since: NDArray[np.uint32]
    """When the phase began, whole seconds since 1970, until 2106; 0 for PASSING."""


def initial_states(size: int) -> NodeStates:
    """States in which every node passes, in the memory of one."""
    return NodeStates(np.broadcast_to(PASSING, size), np.broadcast_to(np.uint32(0), size))


def levels(parts: Sequence[RulePart]) -> Levels:
    """How one sample relates to the rule, by node: BROKEN, RELEASED, BETWEEN or UNKNOWN."""
    broken = np.logical_and.reduce([part.known & part.broken for part in parts])
    released = np.logical_or.reduce(
        [np.where(part.known, ~part.held, part.missing_releases) for part in parts]
    )
    is_between = np.logical_or.reduce([part.known & ~part.broken for part in parts])
    level = np.where(is_between, BETWEEN, UNKNOWN)
    level[released] = RELEASED
    level[broken] = BROKEN
    return level


def advance(states: NodeStates, sample: Levels, times: HoldTimes, now: float) -> NodeStates:
    """The states after one more sample. Returns the same object if nothing changes.

    `now` is the time of the sample, seconds since 1970. If a clock was set back, a start in the future counts as now.
    """
    is_broken, is_released = sample == BROKEN, sample == RELEASED
    if not (states.phases.any() or is_broken.any()):
        return states
    start = np.uint32(math.ceil(now))
    since = np.minimum(states.since, start)
    phases = _NEXT[states.phases, sample]
    since[phases != states.phases] = start

    # without a time, the node passes through PENDING or KEPT at once, although starts are rounded up
    is_due = (phases == PENDING) & is_broken
    if times.for_s:
        is_due &= now - since >= times.for_s
    phases[is_due] = REJECTED
    since[is_due] = start
    is_due = (phases == KEPT) & is_released
    if times.keep_for_s:
        is_due &= now - since >= times.keep_for_s
    phases[is_due] = PASSING
    since[phases == PASSING] = 0
    if np.array_equal(phases, states.phases) and np.array_equal(since, states.since):
        return states
    return NodeStates(phases, since)


def rejects(states: NodeStates) -> Mask:
    """Which nodes the rule rejects by their states."""
    return states.phases >= REJECTED


PERIOD_S: Final = 3600.0
FLAPPING: Final = 10
"""Flaps of one rule within `PERIOD_S` from which the condition `Flapping` is true."""
_MAX_NODES: Final = 64
"""Nodes whose last change is remembered, and that count in one evaluation: an outage of all nodes is not flapping."""
_MAX_FLAPS: Final = 100
"""The newest flaps that count. With `_MAX_NODES` they take 19 KB of a rule, of which a namespace may have 128."""


class _Change(NamedTuple):
    """The last change of a node's verdict."""

    at: float
    rejected_s: float
    """How long the node was rejected before; NaN if it is rejected now, or if that is unknown."""


class Flap(NamedTuple):
    """A node was rejected again within `PERIOD_S` after it passed."""

    at: float
    rejected_s: float
    """How long it was rejected before it passed; NaN if unknown."""
    node: str


class FlapHistory(NamedTuple):
    """The changes of the verdicts of one rule in the last hour."""

    changes: Mapping[str, _Change] = {}
    """By node."""
    flaps: tuple[Flap, ...] = ()

    def update(self, before: Mask, rejected: Mask, nodes: NodeIndex, now: float) -> "FlapHistory":
        """The history after one more evaluation; the masks are by node number."""
        if before is rejected:
            return self
        changed = np.flatnonzero(before != rejected)[:_MAX_NODES].tolist()
        if not changed:
            return self
        changes = {node: change for node, change in self.changes.items() if now - change.at <= PERIOD_S}
        flaps = [flap for flap in self.flaps if now - flap.at <= PERIOD_S]
        for number, node in zip(changed, nodes.names[changed].tolist(), strict=True):
            last = changes.pop(node, None)
            if len(changes) >= _MAX_NODES:
                continue
            if not rejected[number]:
                changes[node] = _Change(now, now - last.at if last else math.nan)
                continue
            changes[node] = _Change(now, math.nan)
            if last is not None:
                flaps.append(Flap(now, last.rejected_s, node))
        return FlapHistory(changes, tuple(flaps[-_MAX_FLAPS:]))

    def recent(self, now: float) -> tuple[Flap, ...]:
        """The flaps of the last hour."""
        if not self.flaps or now - self.flaps[0].at <= PERIOD_S:
            return self.flaps
        return tuple(flap for flap in self.flaps if now - flap.at <= PERIOD_S)


MAX_NODES: Final = 500
"""Nodes that the status of one policy lists."""

Phase = Literal["Pending", "Rejected", "Kept"]
_NAMES: Final[dict[int, Phase]] = {
    int(REJECTED): "Rejected",
    int(KEPT): "Kept",
    int(PENDING): "Pending",
}
"""The names of phases. If not all nodes can be listed, those with the first ones are."""
_PHASES: Final = {name: phase for phase, name in _NAMES.items()}
_RANKS: Final = np.array([len(_NAMES), *(list(_NAMES).index(phase) for phase in sorted(_NAMES))])
"""The place of each phase in `_NAMES`."""


class NodeStateGroup(msgspec.Struct, frozen=True):
    """Nodes with the same state since the same time."""

    state: Phase
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
    unlisted = int(rejects(states)[numbers[most:]].sum())
    return tuple(
        NodeStateGroup(
            _NAMES[phase], clock.format_rfc3339(since), tuple(str(nodes.names[number]) for number in members)
        )
        for (phase, since), members in groups
    ), unlisted


def decode(groups: Sequence[NodeStateGroup], unlisted: int, nodes: NodeIndex) -> RecordedStates:
    """The states in a status, by node number. ValueError if a time cannot be read, or is not one of `NodeStates`."""
    size = len(nodes) + 1
    phases, since = np.full(size, PASSING), np.zeros(size, np.uint32)
    for group in groups:
        numbers = nodes.numbers(group.nodes)
        begun_at = int(clock.parse_input_time(group.since))
        phases[numbers], since[numbers] = _PHASES[group.state], begun_at
    # nodes that no longer exist have the number of the unknown node
    phases[-1], since[-1] = PASSING, 0
    return RecordedStates(NodeStates(phases, since), unlisted)
