"""Compares the allocations with a fresh list (`allocation_cache_comparison` computes the differences)."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from nodewise.agent import ClusterState, NodeIndex
from nodewise.agent.controller_interface import Handle
from nodewise.agent.state import NODES
from nodewise.agents.gpu import allocation_cache_comparison
from nodewise.agents.gpu.allocation_cache_comparison import NodeDifference, ObservedChanges
from nodewise.agents.gpu.allocation_record import record_text
from nodewise.agents.gpu.options import GpuOptions
from nodewise.agents.gpu.state import (
    ALLOCATION_RECORDS,
    NAME,
    PODS,
    RECORD_PREFIX,
    GpuState,
    GpuStateBuilder,
)
from nodewise.agents.gpu.vendor_resource_names import ResourceProfile
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import NodewiseError
from nodewise.kube.store import Changes, Store
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.observe import logs

_REACH_S: Final = 150.0
"""The timeout for watches to catch up: a watch without events reports its version every minute."""
_LOOK_S: Final = 0.5
_MOST_LOGGED: Final = 10
"""The most differences that are logged individually."""


class ConsistencyChecker:
    """Compares the agent state with a fresh list periodically, and relists everything where they differ."""

    def __init__(self, options: GpuOptions, profile: ResourceProfile, handle: Handle) -> None:
        self._period_s = options.gpu_check_period_s
        self._profile = profile
        self._handle = handle

    async def run(self) -> None:
        """Check forever. A check that fails is logged, and the next one follows after the period."""
        while self._period_s:
            await self._handle.clock.sleep(self._period_s)
            try:
                await self.check()
            except NodewiseError as error:
                self._count_check_outcome("undecided")
                logs.emit("books_unchecked", error=str(error))

    async def check(self) -> None:
        """Check once. Raises NodewiseError if the list fails."""
        differences = await self._compare_with_fresh_list()
        if differences is None:
            self._count_check_outcome("undecided")
            return
        self._count_check_outcome("different" if differences else "same")
        if differences:
            for difference in differences[:_MOST_LOGGED]:
                logs.emit("books_differ", node=difference.node, what=difference.what, nodes=len(differences))
            self._handle.relister.begin()

    def _count_check_outcome(self, outcome: str) -> None:
        self._handle.metrics_registry.count("gpu_checks_total", outcome=outcome)

    async def _compare_with_fresh_list(self) -> list[NodeDifference] | None:
        """The differences; None if the watches do not report their versions."""
        stores: dict[str, Store[Any]] = {NODES: self._handle.nodes, **self._handle.objects}
        listener = _ChangeListener(stores)
        try:
            fresh = {
                name: await self._handle.relister.read(name) for name in (NODES, ALLOCATION_RECORDS, PODS)
            }
            if not await self._wait_for_versions(stores, fresh):
                return None
            ours = await self._agent_state_after(self._handle.clock.now())
            if ours is None:
                return None
            computed = await self._agent_state_of_list(fresh)
            return await cooperative_scheduling.run(
                allocation_cache_comparison.differences(
                    ours, computed, listener.changes, self._stored_record_text
                )
            )
        finally:
            listener.end()

    async def _wait_for_versions(
        self, stores: Mapping[str, Store[Any]], fresh: Mapping[str, Store[Any]]
    ) -> bool:
        """Wait until the watches reach the versions of the lists."""
        versions = {name: store.resource_version for name, store in fresh.items()}
        if not all(version.isdecimal() for version in versions.values()):
            return False

        def is_reached() -> bool:
            known = {name: stores[name].resource_version for name in versions}
            return all(
                known[name].isdecimal() and int(known[name]) >= int(version)
                for name, version in versions.items()
            )

        return await self._wait_until(is_reached)

    async def _agent_state_after(self, now: float) -> GpuState | None:
        """The agent state of a snapshot that includes everything known now."""
        await self._wait_until(lambda: self._handle.snapshot().at >= now)
        snapshot = self._handle.snapshot()
        agent_state: GpuState | None = snapshot.agent_states.get(NAME)
        return agent_state if snapshot.at >= now else None

    async def _wait_until(self, is_so: Callable[[], bool]) -> bool:
        clock = self._handle.clock
        until_s = clock.monotonic() + _REACH_S
        while not is_so() and clock.monotonic() < until_s:
            await clock.sleep(_LOOK_S)
        return is_so()

    async def _agent_state_of_list(self, fresh: Mapping[str, Store[Any]]) -> GpuState:
        """The agent state that follows from listed objects alone."""
        nodes = fresh[NODES].snapshot()
        objects = {name: fresh[name].snapshot() for name in (PODS, ALLOCATION_RECORDS)}
        versions = {name: fresh[name].resource_version for name in objects}
        index = NodeIndex(tuple(name for _, name in nodes))
        cluster_state = ClusterState(
            index, objects, MetricsSnapshot(), self._handle.clock.now(), nodes, versions
        )
        return await cooperative_scheduling.run(GpuStateBuilder(self._profile).build(cluster_state))

    def _stored_record_text(self, node: str) -> str:
        return record_text(
            self._handle.objects[ALLOCATION_RECORDS].get(self._handle.namespace, f"{RECORD_PREFIX}{node}")
        )


class _ChangeListener:
    """Notes the objects of watch events."""

    def __init__(self, stores: Mapping[str, Store[Any]]) -> None:
        self.changes = ObservedChanges(set(), set())
        notes = {NODES: self.changes.node, ALLOCATION_RECORDS: self.changes.record, PODS: self.changes.pod}
        self._ends = [stores[name].subscribe(self._make_change_handler(note)) for name, note in notes.items()]

    def end(self) -> None:
        for end in self._ends:
            end()

    def _make_change_handler(self, note: Callable[[Any], None]) -> Callable[[Changes[Any] | None], None]:
        def note_all(changes: Changes[Any] | None) -> None:
            for change in (changes or {}).values():
                for item in change:
                    if item is not None:
                        note(item)

        return note_all
