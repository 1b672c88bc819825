"""The state of an agent of another package: a thread computes its slots, and no snapshot waits long for them."""

import contextlib
from collections.abc import Generator, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from nodewise import turns
from nodewise.errors import BadInput, Problem
from nodewise.extender import shapes
from nodewise.extender.deadlines import Failed, Outcome
from nodewise.extender.warden import NoSlot, Warden
from nodewise.metrics.source import Want
from nodewise.state import ClusterState, Inputs
from nodewise.turns import Wait


class _UnderWay(NamedTuple):
    """A slot that is being computed."""

    outcome: Future[Outcome]
    cluster_state: ClusterState
    since: float


class _Kept(NamedTuple):
    """The newest slot that came, and of what."""

    cluster_state: ClusterState
    agent_state: Any


class ContainedState:
    """Its slots are computed in a thread; a snapshot does not wait for one that takes its time (`agent.AgentState`)."""

    def __init__(self, inner: Any, warden: Warden) -> None:
        self.inputs: Inputs = inner.inputs
        self._inner = inner
        self._warden = warden
        self._wanted: frozenset[Want] = frozenset()
        self._under_way: _UnderWay | None = None
        self._kept: _Kept | None = None
        self._failed: Failed | None = None

    def wants(self, objects: Mapping[str, Any]) -> frozenset[Want]:
        """Those of the last time where it cannot say."""
        with contextlib.suppress(Failed):
            self._wanted = self._warden.told("wants", lambda: shapes.wants(self._inner.wants(objects)))
        return self._wanted

    def problems(self, objects: Mapping[str, Any]) -> Mapping[str, tuple[str, ...]]:
        """None where it cannot say."""
        try:
            return self._warden.told("problems", lambda: shapes.problems(self._inner.problems(objects)))
        except Failed:
            return {}

    def build(self, cluster_state: ClusterState) -> Generator[Wait | None, None, Any]:
        """The slot of this world, or of the same nodes a little before; else a `NoSlot`."""
        self._collect()
        if self._under_way is None and (begun := self._begin(cluster_state)):
            yield Wait(begun, self._warden.limits.patience_s)
            self._collect()
        return self._shown(cluster_state)

    def _begin(self, cluster_state: ClusterState) -> Future[Outcome] | None:
        try:
            begun = self._warden.agent_states.begin(lambda: turns.result(self._inner.build(cluster_state)))
        except Failed as failed:
            self._failed = failed
            return None
        self._failed, self._under_way = None, _UnderWay(begun, cluster_state, self._warden.clock.monotonic())
        return begun

    def _collect(self) -> None:
        """Take what came."""
        if self._under_way is None:
            return
        done, cluster_state, since = self._under_way
        if done.done():
            self._under_way = None
            try:
                self._kept, self._failed = _Kept(cluster_state, done.result().got()), None
            except Failed as failed:
                self._kept, self._failed = None, failed
                self._warden.tell(failed, "slot")
        elif self._warden.clock.monotonic() - since >= (most_s := self._warden.limits.slot_s):
            self._kept, self._failed = None, Failed("deadline", f"no slot within {most_s:g} s")
            self._warden.tell(self._failed, "slot")

    def _shown(self, cluster_state: ClusterState) -> Any:
        if self._failed is not None:
            return NoSlot(self._failed.why)
        if self._kept is not None and self._kept.cluster_state.nodes is cluster_state.nodes:
            return self._kept.agent_state
        return NoSlot("its slot is not computed yet")


class CountingState(ContainedState):
    def asked(self, pod: Any) -> None:
        """As `agent.Counting`."""
        try:
            self._warden.asked("asked", lambda: self._inner.asked(pod))
        except Failed:
            return


class RememberingState(ContainedState):
    def __init__(self, inner: Any, warden: Warden) -> None:
        super().__init__(inner, warden)
        self.each_replica_learns = bool(inner.each_replica_learns)
        self._to_recall: bytes | None = None
        """What it is to be told as soon as no slot is being computed."""

    def recall(self, kept: bytes) -> None:
        """As `agent.Remembering`; what it cannot read is begun anew."""
        self._to_recall = kept
        try:
            self._told_at_last()
        except Failed as failed:
            raise BadInput("memory", [Problem(self._warden.origin.agent, failed.why, "")]) from failed

    def keep(self, kept: bytes | None) -> bytes | None:
        """As `agent.Remembering`; nothing new where it fails."""
        with contextlib.suppress(Failed):
            self._told_at_last()
            if self._to_recall is None:
                return self._warden.told("keep", lambda: shapes.memory(self._inner.keep(kept)))
        return None

    def _told_at_last(self) -> None:
        """Have it recall what it has not been told yet, unless its thread is busy."""
        kept = self._to_recall
        if kept is None:
            return
        try:
            self._warden.told("recall", lambda: self._inner.recall(kept))
        except Failed as failed:
            if failed.failure == "busy":
                return
            self._to_recall = None
            raise
        self._to_recall = None
