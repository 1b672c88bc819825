"""The states of nodes under a rule with `for`, `release` or `keepFor`. Pure functions of states, sample and time.

Every use of a policy (extender, native mode, `decide`, replay, tests and backtests) computes the states of a rule by
`advance`, from the states before, one sample and its time:

    states = initial_states(size)
    states = advance(states, levels(parts), times, now)
    rejected = rejects(states)

The states of a node, with the conditions of the transitions:

| from | to | condition |
|---|---|---|
| PASSING | PENDING | the rule is broken |
| PENDING | REJECTED | broken, and since the start of PENDING at least `for` has passed |
| PENDING | PASSING | not broken |
| REJECTED | KEPT | released |
| KEPT | REJECTED | broken |
| KEPT | PASSING | released, and since the start of KEPT at least `keepFor` has passed |

Without `for` or `keepFor`, a node passes through PENDING or KEPT in one step. A rule is broken where each part meets
its target. It is released where a part no longer meets its `release`, which takes the place of the target while a node
is rejected; without `release` that is the target itself. Between target and `release`, a rejected node stays rejected
and a pending one passes.

A missing value means what `whenMissing` says. With `Allow`, it releases the rule. With `Reject`, the node is rejected
because of the missing value, and the state stays as it is. While a rule is suspended, missing values change no state,
and neither do they in a gap: until `maxAge` after the last value of the node (`rule_suspension.find_gaps`). The time
counts on in a gap, but only the next value ends it. So a node that breaks the rule before and after a gap has broken it
for the whole time, and no node is rejected only because time passes.

Times are whole seconds, rounded to the disadvantage of a change, so that stored states equal those in memory. A change
happens at a sample: a node is never rejected before `for` or passes before `keepFor`, and both may take up to one
interval of samples longer.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

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


class HoldTimes(NamedTuple):
    """The times of a rule, in seconds."""

    for_s: float = 0.0
    """How long a node must break the rule before it is rejected."""
    keep_for_s: float = 0.0
    """How long a node stays rejected after it no longer breaks the rule."""


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
