"""Keeps the View: whatever changes, the agents' slots are computed anew and published by one swap.

A request takes `keeper.view` once and keeps it. Nothing is computed while the scheduler waits.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nodewise import clock as clocks
from nodewise.agent import AgentState, NodeIndex, View, Want, World
from nodewise.clock import Clock
from nodewise.kube.store import Store
from nodewise.metrics.refresher import Refresher
from nodewise.observe import logs
from nodewise.observe.meters import Meters

_SETTLE_S = 0.02
"""Changes come in bursts; this long is waited for the rest of one before the slots are computed."""


class WorldKeeper:
    """Holds the newest View and makes the next one."""

    def __init__(
        self,
        states: Mapping[str, AgentState],
        nodes: Store[Any],
        objects: Mapping[str, Store[Any]],
        refresher: Refresher,
        clock: Clock,
        meters: Meters,
    ) -> None:
        self.view = View(NodeIndex(), {}, clock.now())
        self._states = states
        self._nodes = nodes
        self._objects = objects
        self._refresher = refresher
        self._clock = clock
        self._meters = meters
        self._indexed = (-1, self.view.nodes)
        """The index of the nodes, and their version when that was seen to be so."""
        self._changed = asyncio.Event()
        self._waiting: tuple[str, ...] = ()
        self._ready = False
        self._problems: dict[str, tuple[str, ...]] = {}
        self._told: list[Callable[[World, int], None]] = []

    def subscribe(self, told: Callable[[World, int], None]) -> None:
        """Have every world told, before slots are computed of it for the View of that number."""
        self._told.append(told)

    def touch(self) -> None:
        """Something changed; the next View follows soon."""
        self._changed.set()

    def waiting_for(self) -> Sequence[str]:
        """What is still missing before requests can be answered; empty when ready.

        Once ready, always ready: a policy that somebody adds later, with a metric that nobody has, concerns its own
        pods and must not take the extender away from all others.
        """
        if self._ready:
            return ()
        stores = {"nodes": self._nodes, **self._objects}
        waiting = [f"the list of {name}" for name, store in stores.items() if not store.synced]
        if not waiting and not self.view.generation:
            waiting = ["the first view of the world"]
        return waiting + [f"a first answer about metric {name}" for name in self._waiting]

    async def run(self, period_s: float) -> None:
        """Publish a View after every change, and at least once a period: values grow old by themselves."""
        while True:
            try:
                async with asyncio.timeout(period_s):
                    await self._changed.wait()
                await self._clock.sleep(_SETTLE_S)
            except TimeoutError:
                pass
            self._changed.clear()
            await self.publish()
            self._report_readiness()

    async def publish(self) -> None:
        """Compute all slots from the world as it is now, and swap the View. Nothing before the stores are full."""
        if not (self._nodes.synced and all(store.synced for store in self._objects.values())):
            return
        nodes = await self._index()
        objects = {name: store.snapshot() for name, store in self._objects.items()}
        wants = frozenset[Want]().union(*(state.wants(objects) for state in self._states.values()))
        self._refresher.want(wants)
        world = World(nodes, objects, self._refresher.snapshot, self._clock.now())
        for told in self._told:
            told(world, self.view.generation + 1)
        slots: dict[str, Any] = {}
        for name, state in self._states.items():
            began = self._clock.monotonic()
            slots[name] = await clocks.paced_result(state.slot(world))
            self._meters.observe("view_seconds", self._clock.monotonic() - began, agent=name)
        self.view = View(world.nodes, slots, world.now, self.view.generation + 1)
        self._waiting = tuple(sorted({w.key for w in wants if not world.metrics.was_asked(w.key)}))
        self._meters.set("view_generation", self.view.generation)
        self._tell_problems(world)

    async def _index(self) -> NodeIndex:
        """The same index while the set of nodes is the same, so that nothing is laid out again."""
        version, index = self._indexed
        if self._nodes.version != version:
            version = self._nodes.version
            names = tuple(name for _, name in self._nodes.snapshot())
            if names != index.known:
                index = NodeIndex(names)
                await asyncio.sleep(0)
                index.prepare()
            self._indexed = (version, index)
        return index

    def _tell_problems(self, world: World) -> None:
        """What is wrong with objects, each once, and again when it changes."""
        found = {
            name: problems
            for state in self._states.values()
            for name, problems in state.problems(world.objects).items()
        }
        for name, problems in found.items():
            if problems != self._problems.get(name):
                logs.emit("policy_problem", policy=name, problems=list(problems))
        self._problems = found
        self._meters.set("policies_with_problems", len(found))

    def _report_readiness(self) -> None:
        if not self._ready and not self.waiting_for():
            self._ready = True
            self._meters.set("ready", 1.0)
            logs.emit("ready", nodes=len(self.view.nodes))
