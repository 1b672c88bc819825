"""Keeps the newest snapshot: changes rebuild the states of the agents that read them, and one swap publishes them.

No agent state is computed while kube-scheduler waits. nodewise's own writes take effect immediately: `apply_response`
puts the server's response into a store, and `amend` changes an agent state accordingly, once more when a publish that
is under way ends.
"""

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from nodewise.agent import ClusterState, MetricRequest, NodeIndex, ObjectKey, Snapshot, StateBuilder
from nodewise.agent.state import NODES
from nodewise.base import cooperative_scheduling
from nodewise.base.clock import Clock
from nodewise.engine.cluster_state_changes import AgentStates, ClusterStateReports, Override, Subscriber
from nodewise.kube.store import ChangeLog, Changes, Store
from nodewise.metrics.refresher import MetricsRefresher
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

_SETTLE_S = 0.02
"""Changes come in bursts; the cache waits this long for the rest of one before it computes."""
_BUSY_SETTLE_S = 0.06
"""The same if the change follows the previous snapshot within this time, as while pods are bound: a snapshot for each
two pods takes an eighth of the processor time of a bind. Reservations of this process are in the snapshot before."""

ApplyResponse = Callable[[bytes], Any]
"""Puts the server's response to a write into a store. Returns the object that the store has then, or None."""

Amend = Callable[[Any], Any]
"""An agent state in, the amended one out; the given one stays as it was. The same one if nothing has to change."""


class _Amendment(NamedTuple):
    agent: str
    amend: Amend
    override: Override | None


class Stores(NamedTuple):
    """Where objects come from."""

    nodes: Store[Any]
    objects: Mapping[str, Store[Any]]
    """By the name in `Watched`, as everything here."""
    apply_response: Mapping[str, ApplyResponse] = {}

    @property
    def by_name(self) -> dict[str, Store[Any]]:
        """All stores, that of nodes by `NODES`."""
        return {NODES: self.nodes, **self.objects}

    def waiting_for(self) -> list[str]:
        """The stores that have not received a complete list."""
        return [f"the list of {name}" for name, store in self.by_name.items() if not store.synced]


class SnapshotCache:
    """Holds the newest snapshot and makes the next one."""

    def __init__(
        self,
        builders: Mapping[str, StateBuilder[Any]],
        stores: Stores,
        refresher: MetricsRefresher,
        clock: Clock,
        metrics: MetricsRegistry,
        period_s: float,
    ) -> None:
        self.snapshot = Snapshot(NodeIndex(), {}, clock.now())
        self._builders = builders
        self._stores = stores
        self._refresher = refresher
        self._clock = clock
        self._metrics = metrics
        self._period_s = period_s
        self._agent_states = AgentStates(builders, period_s)
        self._reads_nodes = any(builder.inputs.node_objects for builder in builders.values())
        self._cluster_state = ClusterState(self.snapshot.nodes, {}, refresher.snapshot, self.snapshot.at)
        """What the snapshot was built from; `_overrides` are not in its objects."""
        self._overrides: list[Override] = []
        """Objects that the snapshot takes into account in addition, in order."""
        self._responses: list[Override] = []
        self._amendments: dict[Hashable, _Amendment] = {}
        """The last one of each key since the newest cluster state was taken, and the lasting ones of that moment."""
        self._lasting: dict[Hashable, _Amendment] = {}
        self._log = ChangeLog()
        self._reports = ClusterStateReports()
        self._metric_requests: dict[str, frozenset[MetricRequest]] = {}
        """By agent."""
        self._changed = asyncio.Event()
        self._on_publish: list[Callable[[], None]] = []
        self._waiting: tuple[str, ...] = ()
        self._ready = False
        self._problems: dict[str, Mapping[str, tuple[str, ...]]] = {}
        """By agent."""
        for name, store in stores.by_name.items():
            store.subscribe(partial(self._note_changes, name))

    def _note_changes(self, name: str, changes: Changes[Any] | None) -> None:
        self._log.add(name, changes)
        self._changed.set()

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call back with every cluster state and the generation of its snapshot, before its agent states are built.

        Its `changes` are those since the cluster state of the call before; None in the first call.
        """
        self._reports.subscribers.append(subscriber)

    def on_publish(self, callback: Callable[[], None]) -> None:
        """Call back whenever there is a new snapshot."""
        self._on_publish.append(callback)

    def touch(self) -> None:
        """Publish a new snapshot soon."""
        self._changed.set()

    def rebuild(self) -> None:
        """Build the agent states of the next snapshot from nothing."""
        self._agent_states.rebuild()

    def waiting_for(self) -> Sequence[str]:
        """What is still missing before requests can be answered; empty when ready.

        Once ready, always ready: a policy that a user adds later, with a metric that no source has, concerns its own
        pods and must not take the extender away from all others.
        """
        if self._ready:
            return ()
        waiting = self._stores.waiting_for()
        if not waiting and not self.snapshot.generation:
            waiting = ["the first snapshot"]
        return waiting + [f"a first answer about metric {name}" for name in self._waiting]

    def apply_response(self, name: str, response: bytes) -> Any:
        """Apply the server's response to nodewise's own write, as JSON, to the store of that name in `Watched`.

        The result is the object that the store has then, which may be newer; None if it was deleted or the response
        is unreadable. The next cluster state has it; `amend` is for the snapshots until then.
        """
        item = self._stores.apply_response[name](response)
        if item is not None:
            override = Override(name, (item.metadata.namespace, item.metadata.name), item)
            self._responses.append(override)
            self._overrides.append(override)
        return item

    def amend(self, key: Hashable, agent: str, amend: Amend, override: Override | None = None) -> None:
        """Amend the agent's state in a new snapshot now and in every later one, in place of an amendment of this key.

        A call that changes nothing makes no new snapshot.
        """
        amendment = self._lasting[key] = _Amendment(agent, amend, override)
        self._amendments.pop(key, None)  # the new one comes last
        self._amendments[key] = amendment
        current = self.snapshot.agent_states
        if agent in current and (amended := amend(current[agent])) is not current[agent]:
            self._overrides += [override] if override is not None else []
            generation = self._reports.report(self._cluster_state, self._overrides)
            self._swap_snapshot(self._cluster_state, {**current, agent: amended}, generation)

    def withdraw_amendment(self, key: Hashable) -> None:
        """Amend no later snapshot by the amendment of this key. The newest one stays as it is: to undo it, amend."""
        self._lasting.pop(key, None)

    async def run(self) -> None:
        """Publish a snapshot after every change, and at least once a period because values age."""
        published_s = float("-inf")
        while True:
            try:
                async with asyncio.timeout(self._period_s):
                    await self._changed.wait()
                is_busy = self._clock.monotonic() - published_s < _BUSY_SETTLE_S
                await self._clock.sleep(_BUSY_SETTLE_S if is_busy else _SETTLE_S)
            except TimeoutError:
                pass
            self._changed.clear()
            await self.publish()
            published_s = self._clock.monotonic()
            if not self._ready and not self.waiting_for():
                self._ready = True
                self._metrics.set("ready", 1.0)
                logs.emit("ready", nodes=len(self.snapshot.nodes))

    async def publish(self) -> None:
        """Build the agent states that changes concern, and swap the snapshot. Does nothing before stores are synced."""
        if self._stores.waiting_for():
            return
        try:
            await self._build_snapshot()
        except BaseException:
            # the changes that were taken are lost
            self._log = ChangeLog()
            self._reports.restart()
            raise

    async def _build_snapshot(self) -> None:
        cluster_state, metric_requests = self._take_cluster_state()
        generation = self._reports.report(cluster_state)
        for name in self._agent_states.agents_to_rebuild(cluster_state):
            began = self._clock.monotonic()
            try:
                problems = await cooperative_scheduling.run(self._agent_states.build(name, cluster_state))
            except Exception as error:  # noqa: BLE001 - a defect of one agent must not delay the others' states
                logs.emit("agent_failed", agent=name, exc_info=error)
            else:
                self._log_problems(name, problems)
            self._metrics.observe("view_seconds", self._clock.monotonic() - began, agent=name)
        series = cluster_state.metrics.series
        dropped = [
            old for key, old in self._cluster_state.metrics.series.items() if series.get(key) is not old
        ]
        self._publish_agent_states(cluster_state, generation)
        keys = {metric_request.key for metric_request in metric_requests}
        self._waiting = tuple(sorted(key for key in keys if not cluster_state.metrics.was_fetched(key)))
        self._metrics.set("view_generation", self.snapshot.generation)
        async for _ in cooperative_scheduling.iterate_with_pauses(range(len(dropped))):
            dropped.pop()  # to free 5,000 samples takes some tenths of a millisecond

    def _take_cluster_state(self) -> tuple[ClusterState, frozenset[MetricRequest]]:
        """The cluster state of now, all objects of one instant, and the metrics that its objects name."""
        self._responses, self._amendments = [], dict(self._lasting)
        changes = self._log.take()
        nodes = self._stores.nodes.snapshot()
        objects = {name: store.snapshot() for name, store in self._stores.objects.items()}
        versions = {name: store.resource_version for name, store in self._stores.objects.items()}
        for name, changed in (changes or {}).items():
            self._reports.note(name, changed)
        index = self._node_index(nodes, changes)
        self._read_metric_requests(objects, changes)
        metric_requests = frozenset[MetricRequest]().union(*self._metric_requests.values())
        self._refresher.set_requests(metric_requests)
        metrics, now = self._refresher.snapshot, self._clock.now()
        node_objects = nodes if self._reads_nodes else {}
        return ClusterState(index, objects, metrics, now, node_objects, versions, changes), metric_requests

    def _node_index(
        self, nodes: Mapping[ObjectKey, Any], changes: Mapping[str, Changes[Any]] | None
    ) -> NodeIndex:
        """The same index while the set of nodes is the same, so that columns keep their layout."""
        if changes is not None and not any(
            change.old is None or change.new is None for change in changes.get(NODES, {}).values()
        ):
            return self._cluster_state.nodes
        return NodeIndex(name for _, name in nodes)

    def _read_metric_requests(
        self, objects: Mapping[str, Mapping[ObjectKey, Any]], changes: Mapping[str, Changes[Any]] | None
    ) -> None:
        """Read the metrics that each agent's objects name, where these changed."""
        for name, builder in self._builders.items():
            if (
                name not in self._metric_requests
                or changes is None
                or any(map(changes.get, builder.inputs.objects))
            ):
                try:
                    self._metric_requests[name] = builder.metric_requests(objects)
                except Exception as error:  # noqa: BLE001 - the agent keeps the metrics that it named before
                    logs.emit("agent_failed", agent=name, exc_info=error)
                    self._metric_requests.setdefault(name, frozenset())

    def _publish_agent_states(self, cluster_state: ClusterState, generation: int) -> None:
        """Publish the agent states of a cluster state, with what was applied since that was taken."""
        current = self._agent_states.newest()
        for amendment in self._amendments.values():
            if amendment.agent in current:
                current[amendment.agent] = amendment.amend(current[amendment.agent])
        amended = [
            amendment.override for amendment in self._amendments.values() if amendment.override is not None
        ]
        self._cluster_state, self._overrides = cluster_state, [*self._responses, *amended]
        if self._responses or self._amendments:
            generation = self._reports.report(cluster_state, self._overrides)
        self._swap_snapshot(cluster_state, current, generation)
        self._reports.settle(self._overrides)

    def _swap_snapshot(
        self, cluster_state: ClusterState, current: Mapping[str, Any], generation: int
    ) -> None:
        self.snapshot = Snapshot(cluster_state.nodes, current, cluster_state.now, generation)
        self._metrics.set("view_timestamp_seconds", cluster_state.now)
        for callback in self._on_publish:
            callback()

    def _log_problems(self, agent: str, problems: Mapping[str, tuple[str, ...]]) -> None:
        """Log the problems of the agent's objects, each once and again when it changes."""
        before = self._problems.get(agent, {})
        for name, texts in problems.items():
            if texts != before.get(name):
                logs.emit("policy_problem", policy=name, problems=list(texts))
        self._problems[agent] = problems
        self._metrics.set("policies_with_problems", sum(map(len, self._problems.values())))
