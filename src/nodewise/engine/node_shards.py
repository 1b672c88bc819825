"""The nodes of the shards that this replica holds: it watches no others, and writes to them only while it holds them.

    held ──list of its nodes──▶ listed ──metrics of these nodes──▶ ready: its nodes are written

A shard that was acquired counts from a list that began afterwards, which contains all writes of the holder before. Its
nodes have no values until the metrics are fetched again, because values are assigned to known nodes only; without them
labels would change. Where the API server supports `shardSelector`, it sends only the nodes of these shards. Another one
ignores the parameter, and nodes of other shards are dropped when they are decoded.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from nodewise.agent.controller_interface import NodeOwnership
from nodewise.base.clock import Clock
from nodewise.kube import shard_election
from nodewise.kube.reflector import Reflector, ReflectorTarget
from nodewise.kube.shard_election import ShardElection, Tenure

_TICK_S: Final = 0.2
"""Time between two comparisons of the held shards with the watched ones."""
_RETRY_S: Final = 1.0
_PATIENCE_S: Final = 15.0
"""The time after which the nodes of a shard are written although a metric with earlier values could not be fetched.
They then have no value of it, as new nodes."""


class NodeShards(NodeOwnership):
    """Watches the nodes of the held shards, and decides which nodes may be written. Run it as a task."""

    def __init__(self, election: ShardElection, clock: Clock) -> None:
        self._election = election
        self._clock = clock
        self._selectors: dict[str, str] = {}
        self._watched: frozenset[tuple[int, int]] = frozenset()
        """As in `Tenure.shards`."""
        self._ready_at: dict[tuple[int, int], float] = {}
        """The time of readiness, in seconds since 1970."""
        self._settled_at: float | None = None
        """The time since when the nodes are exactly those of the watched shards, in seconds since 1970; None while they
        are listed."""
        self._numbers: dict[int, int] = {}
        """The acquisition of each watched shard."""
        self._select()

    def target(self, target: ReflectorTarget[Any]) -> ReflectorTarget[Any]:
        """The target of a reflector that reflects only the nodes of the held shards."""
        return target._replace(selectors=self._selectors, keep=self._keep)

    @property
    def shards(self) -> int:
        return self._election.shards

    def own_shards(self) -> frozenset[int]:
        return frozenset(shard for shard, _ in self.tenure().shards)

    def live_annotations(self) -> Mapping[int, Mapping[str, str]]:
        return self._election.live_annotations()

    def tenure(self) -> Tenure:
        tenure = self._election.tenure()
        if self._election.shards == 1:
            return tenure
        return tenure._replace(shards=tenure.shards & self._ready_at.keys())

    def is_whole(self, at: float) -> bool:
        settled_at = self._settled_at
        return settled_at is not None and settled_at <= at and self._election.tenure().shards == self._watched

    def write_timeout_s(self, uid: str, at: float) -> float:
        if self._election.shards == 1:
            return self._election.leader.left_s if self._election.leads else 0.0
        shard = shard_election.shard_of(uid, self._election.shards)
        held = shard, self._numbers.get(shard, -1)
        is_ready = held in self._ready_at and self._ready_at[held] <= at
        return self._election.left_s(*held) if is_ready else 0.0

    async def run(self, nodes: Reflector[Any], fetch_metrics: Callable[[], Any]) -> None:
        """Watch the nodes, until cancelled. `fetch_metrics` returns whether all metrics were fetched."""
        while True:
            self._watched = self._election.tenure().shards
            self._ready_at = {held: at for held, at in self._ready_at.items() if held in self._watched}
            self._settled_at = None
            self._select()
            nodes.request_relist()
            tasks = [
                asyncio.create_task(part)
                for part in (nodes.run(), self._prepare(nodes, fetch_metrics), self._wait_for_change())
            ]
            try:
                await asyncio.wait([tasks[0], tasks[2]], return_when=asyncio.FIRST_COMPLETED)
                if tasks[0].done():
                    tasks[0].result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_for_change(self) -> None:
        while self._election.tenure().shards == self._watched:
            now = self._clock.now()
            # later snapshots have earlier times if the clock of the machine was set back
            self._ready_at = {held: min(at, now) for held, at in self._ready_at.items()}
            self._settled_at = None if self._settled_at is None else min(self._settled_at, now)
            await self._clock.sleep(_TICK_S)

    async def _prepare(self, nodes: Reflector[Any], fetch_metrics: Callable[[], Any]) -> None:
        """Make the watched shards ready. A metric that cannot be fetched delays the labels of others only briefly."""
        await nodes.wait_until_listed()
        until_s = self._clock.monotonic() + _PATIENCE_S
        while not await fetch_metrics() and self._clock.monotonic() < until_s:
            await self._clock.sleep(_RETRY_S)
        now = self._clock.now()
        self._ready_at = {held: self._ready_at.get(held, now) for held in self._watched}
        self._settled_at = now

    def _select(self) -> None:
        self._numbers = dict(self._watched)
        selector = shard_election.shard_selector(frozenset(self._numbers), self._election.shards)
        self._selectors.clear()
        if selector:
            self._selectors["shardSelector"] = selector

    def _keep(self, node: Any) -> Any | None:
        shard = shard_election.shard_of(node.metadata.uid, self._election.shards)
        return node if shard in self._numbers else None
