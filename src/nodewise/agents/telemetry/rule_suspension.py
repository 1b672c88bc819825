"""A rule that suddenly loses most of its nodes is suspended: its last verdicts hold until half of them are back.

One exporter that dies lets its node pass; a Prometheus that dies must not let every node pass in silence.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import NodeIndex
from nodewise.agents.telemetry.rule_evaluation import Measured


class Memory(NamedTuple):
    """What a rule last said of each node, by node number of `nodes`."""

    nodes: NodeIndex
    looked_at: float
    """When the rule was last applied, seconds since 1970."""
    fresh_at: NDArray[np.float64]
    """When the node was last seen with a fresh value; -inf for never."""
    broken: NDArray[np.bool_]
    """What that value said."""
    suspended: bool = False

    @property
    def has_fresh(self) -> bool:
        """Whether a node had a fresh value at the last look."""
        return bool((self.fresh_at == self.looked_at).any())


def remember(
    memory: Memory | None, measured: Measured, nodes: NodeIndex, now: float, max_age_s: float
) -> Memory:
    """The memory after one more look.

    A rule is suspended when of the nodes that had a fresh value within `max_age_s` before the last look more than
    half have none now, and for as long as that is so of those that it then holds.
    """
    before = _on(nodes, memory)
    fresh = measured.known
    since = -np.inf if before.suspended else before.looked_at - max_age_s
    had = (before.fresh_at >= since) & (before.fresh_at > -np.inf)
    suspended = int((had & ~fresh).sum()) * 2 > int(had.sum())
    fresh_at = np.where(fresh, now, before.fresh_at)
    return Memory(nodes, now, fresh_at, np.where(fresh, measured.broken, before.broken), suspended)


def held(measured: Measured, memory: Memory) -> Measured:
    """The rule with the verdicts of before where it is suspended and has no fresh value; else as it is."""
    if not memory.suspended:
        return measured
    stands = ~measured.known & (memory.fresh_at > -np.inf)
    return measured._replace(
        broken=np.where(stands, memory.broken, measured.broken), lacking=measured.lacking & ~stands
    )


def _on(nodes: NodeIndex, memory: Memory | None) -> Memory:
    """The memory by the numbers of another index: nodes that are new remember nothing, those that went are gone."""
    size = len(nodes) + 1
    if memory is None:
        return Memory(nodes, -np.inf, np.full(size, -np.inf), np.zeros(size, bool))
    if memory.nodes is nodes:
        return memory
    numbers = memory.nodes.numbers(nodes.known)
    fresh_at, broken = np.full(size, -np.inf), np.zeros(size, bool)
    fresh_at[:-1], broken[:-1] = memory.fresh_at[numbers], memory.broken[numbers]
    return memory._replace(nodes=nodes, fresh_at=fresh_at, broken=broken)
