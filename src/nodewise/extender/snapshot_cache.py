"""Keeps the snapshot: a change recomputes the states of the agents that read it and publishes them by one swap.

A request takes `cache.snapshot` once and keeps it. Nothing is computed while the scheduler waits.

What we write ourselves counts at once: `learn` puts the answer into its store, `amend` changes a slot accordingly. A
publish that is under way then began with a world that did not have it, so it is amended once more when it ends.
"""

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from nodewise import cooperative
from nodewise.agent import ClusterState, NodeIndex, ObjectKey, Snapshot, StateBuilder, Want
from nodewise.clock import Clock
from nodewise.extender.agent_states import AgentStates
from nodewise.kube.store import Store
from nodewise.metrics.refresher import Refresher
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

_SETTLE_S = 0.02
"""Changes come in bursts; this long is waited for the rest of one before the slots are computed."""


Learner = Callable[[bytes], Any]
"""Puts the server's answer to a write of ours into a store; what stands there now, None if nothing does."""

Change = Callable[[Any], Any]
"""A slot in, the amended slot out; the slot given stays as it was. One that knows the news already is not changed."""


class Shown(NamedTuple):
    """What a slot is amended by, as an object of the world that the snapshot shows."""

    name: str
    """In `Watched`."""
    key: ObjectKey
    item: Any | None
    """None: there is no such object."""


class _Amendment(NamedTuple):
    agent: str
    change: Change
    shown: Shown | None


class Stores(NamedTuple):
    """Where objects come from."""

    nodes: Store[Any]
    objects: Mapping[str, Store[Any]]
    """By the name in `Watched`, as everything here."""
    learners: Mapping[str, Learner] = {}

    def waiting_for(self) -> list[str]:
        """The stores that have not seen a whole list."""
        named = {"nodes": self.nodes, **self.objects}
        return [f"the list of {name}" for name, store in named.items() if not store.synced]


class SnapshotCache:
    """Holds the newest snapshot and makes the next one."""

    def __init__(
        self,
        states: Mapping[str, StateBuilder[Any]],
        stores: Stores,
        refresher: Refresher,
        clock: Clock,
        meters: MetricsRegistry,
        period_s: float,
    ) -> None:
        self.snapshot = Snapshot(NodeIndex(), {}, clock.now())
        self._states = states
        self._stores = stores
        self._refresher = refresher
        self._clock = clock
        self._meters = meters
        self._period_s = period_s
        self._slots = AgentStates(states, period_s)
        self._reads_nodes = any(state.inputs.node_objects for state in states.values())
        self._cluster_state = ClusterState(self.snapshot.nodes, {}, refresher.snapshot, self.snapshot.at)
        """Of which the snapshot was made."""
        self._number = 0
        """The newest number that a snapshot has, or will have."""
        self._learned: list[Shown] = []
        self._amendments: list[_Amendment] = []
        """What came since the newest world was taken, after what stood then."""
        self._standing: dict[Hashable, _Amendment] = {}
        self._wants: dict[str, tuple[tuple[Any, ...], frozenset[Want]]] = {}
        """By agent, with the objects that they were read from."""
        self._indexed: tuple[Mapping[ObjectKey, Any], NodeIndex] = ({}, self.snapshot.nodes)
        """The index of the nodes, and the nodes of which that was seen to be so."""
        self._changed = asyncio.Event()
        self._waiting: tuple[str, ...] = ()
        self._ready = False
        self._problems: dict[str, Mapping[str, tuple[str, ...]]] = {}
        """By agent."""
        self._told: list[Callable[[ClusterState, int], None]] = []

    def subscribe(self, told: Callable[[ClusterState, int], None]) -> None:
        """Have every world told, before slots are computed of it for the snapshot of that number."""
        self._told.append(told)

    def touch(self) -> None:
        """Something changed; the next snapshot follows soon."""
        self._changed.set()

    def waiting_for(self) -> Sequence[str]:
        """What is still missing before requests can be answered; empty when ready.

        Once ready, always ready: a policy that somebody adds later, with a metric that nobody has, concerns its own
        pods and must not take the extender away from all others.
        """
        if self._ready:
            return ()
        waiting = self._stores.waiting_for()
        if not waiting and not self.snapshot.generation:
            waiting = ["the first view of the world"]
        return waiting + [f"a first answer about metric {name}" for name in self._waiting]

    def learn(self, name: str, answer: bytes) -> Any:
        """The server's answer to a write of ours, as JSON: the object that stands now, which may be newer.

        None: it went, or cannot be read. The next world has it; `amend` is for the snapshot until then.
        """
        item = self._stores.learners[name](answer)
        if item is not None:
            learned = Shown(name, (item.metadata.namespace, item.metadata.name), item)
            self._learned.append(learned)
            self._cluster_state = _with(self._cluster_state, [learned])
        return item

    def amend(self, agent: str, change: Change, shown: Shown | None = None) -> None:
        """Change the state of the agent at once, in a new snapshot if it differs, with the object shown."""
        self._amendments.append(_Amendment(agent, change, shown))
        agent_states = self.snapshot.agent_states
        if agent in agent_states and (agent_state := change(agent_states[agent])) is not agent_states[agent]:
            cluster_state = _with(self._cluster_state, [shown] if shown else [])
            self._show(cluster_state, {**agent_states, agent: agent_state}, self._tell(cluster_state))

    def stand(self, key: Hashable, agent: str, change: Change | None, shown: Shown | None = None) -> None:
        """Change the agent's slot at once and in every snapshot from now on, in the place of what stood by this key.

        None: not from now on. The snapshot stays as it is, so who takes a change back stands the undoing one first.
        """
        if change is None:
            self._standing.pop(key, None)
        else:
            self._standing[key] = _Amendment(agent, change, shown)
            self.amend(agent, change, shown)

    async def run(self) -> None:
        """Publish a snapshot after every change, and at least once a period: values grow old by themselves."""
        while True:
            try:
                async with asyncio.timeout(self._period_s):
                    await self._changed.wait()
                await self._clock.sleep(_SETTLE_S)
            except TimeoutError:
                pass
            self._changed.clear()
            await self.publish()
            self._report_readiness()

    async def publish(self) -> None:
        """Compute the slots that the world as it is now makes others, and swap the snapshot.

        Nothing before the stores are full.
        """
        if self._stores.waiting_for():
            return
        cluster_state, wants = await self._taken()
        number = self._tell(cluster_state)
        for name in self._slots.due(cluster_state):
            began = self._clock.monotonic()
            try:
                agent_state = await cooperative.run(self._states[name].build(cluster_state))
                self._problems_of(name, cluster_state)
            except Exception as error:  # noqa: BLE001 - a defect of one agent must not hold up the others' slots
                logs.emit("agent_failed", agent=name, exc_info=error)
                self._slots.lose(name, cluster_state)
            else:
                self._slots.put(name, cluster_state, agent_state)
            self._meters.observe("view_seconds", self._clock.monotonic() - began, agent=name)
        gone = [
            one
            for key, one in self._cluster_state.metrics.series.items()
            if cluster_state.metrics.series.get(key) is not one
        ]
        self._end(cluster_state, number)
        self._waiting = tuple(sorted({w.key for w in wants if not cluster_state.metrics.was_asked(w.key)}))
        self._meters.set("view_generation", self.snapshot.generation)
        async for _ in cooperative.iterate(range(len(gone))):
            gone.pop()  # to let go of 5,000 samples takes some tenths of a millisecond

    async def _taken(self) -> tuple[ClusterState, frozenset[Want]]:
        """The world as it is now, all objects at one instant, and the metrics that its objects name."""
        self._learned, self._amendments = [], list(self._standing.values())
        nodes = self._stores.nodes.snapshot()
        objects = {name: store.snapshot() for name, store in self._stores.objects.items()}
        versions = {name: store.resource_version for name, store in self._stores.objects.items()}
        index = await self._index(nodes)
        wants = frozenset[Want]().union(*(self._wanted(name, objects) for name in self._states))
        self._refresher.want(wants)
        metrics, now = self._refresher.snapshot, self._clock.now()
        return ClusterState(index, objects, metrics, now, nodes if self._reads_nodes else {}, versions), wants

    async def _index(self, nodes: Mapping[ObjectKey, Any]) -> NodeIndex:
        """The same index while the set of nodes is the same, so that nothing is laid out again."""
        known, index = self._indexed
        if nodes is not known:
            # of objects that changed the keys are the same, and compared at 10 ns each
            if list(nodes) != list(known):
                index = NodeIndex(name for _, name in nodes)
                await asyncio.sleep(0)
                index.prepare()
            self._indexed = (nodes, index)
        return index

    def _wanted(self, name: str, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> frozenset[Want]:
        """The metrics that an agent's objects name; these are read again when they changed."""
        state = self._states[name]
        read = tuple(objects[one] for one in sorted(state.inputs.objects) if one in objects)
        before, wants = self._wants.get(name, (None, frozenset()))
        if before is None or any(a is not b for a, b in zip(before, read, strict=True)):
            try:
                wants = state.wants(objects)
            except Exception as error:  # noqa: BLE001 - then it gets what it wanted before
                logs.emit("agent_failed", agent=name, exc_info=error)
            self._wants[name] = (read, wants)
        return wants

    def _end(self, cluster_state: ClusterState, number: int) -> None:
        """Publish the slots of a world, with what was learnt since it was taken."""
        agent_states = self._slots.newest()
        if self._learned or self._amendments:
            for one in (one for one in self._amendments if one.agent in agent_states):
                agent_states[one.agent] = one.change(agent_states[one.agent])
            amended = [one.shown for one in self._amendments if one.shown is not None]
            cluster_state = _with(cluster_state, [*self._learned, *amended])
            number = self._tell(cluster_state)
        self._show(cluster_state, agent_states, number)

    def _tell(self, cluster_state: ClusterState) -> int:
        """The number of the snapshot that is made of this world."""
        self._number += 1
        for told in self._told:
            told(cluster_state, self._number)
        return self._number

    def _show(self, cluster_state: ClusterState, agent_states: Mapping[str, Any], number: int) -> None:
        self._cluster_state = cluster_state
        self.snapshot = Snapshot(cluster_state.nodes, agent_states, cluster_state.now, number)

    def _problems_of(self, agent: str, cluster_state: ClusterState) -> None:
        """Log what is wrong with the agent's objects, each once, and again when it changes."""
        found, before = self._states[agent].problems(cluster_state.objects), self._problems.get(agent, {})
        for name, problems in found.items():
            if problems != before.get(name):
                logs.emit("policy_problem", policy=name, problems=list(problems))
        self._problems[agent] = found
        self._meters.set("policies_with_problems", sum(map(len, self._problems.values())))

    def _report_readiness(self) -> None:
        if not self._ready and not self.waiting_for():
            self._ready = True
            self._meters.set("ready", 1.0)
            logs.emit("ready", nodes=len(self.snapshot.nodes))


def _with(cluster_state: ClusterState, shown: Sequence[Shown]) -> ClusterState:
    """The world with other objects, the last of each."""
    objects = dict(cluster_state.objects)
    for name in {one.name for one in shown}:
        others = {one.key: one.item for one in shown if one.name == name}
        merged = {**objects.get(name, {}), **others}
        for key in [key for key, item in others.items() if item is None]:
            del merged[key]
        objects[name] = merged
    return msgspec.structs.replace(cluster_state, objects=objects) if shown else cluster_state
