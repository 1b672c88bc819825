"""Counts how often a rule rejects a node again soon after the node passed. No I/O."""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import NodeIndex

Mask = NDArray[np.bool_]

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
