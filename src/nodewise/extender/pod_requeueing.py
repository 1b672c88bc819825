"""Requeueing: kube-scheduler tries a pending pod again soon after a node passes it.

kube-scheduler tries a pod that an extender rejected again at the next cluster event, or after five minutes. A metric
that recovers is no event. The leader therefore filters the pending pods again after each new snapshot. When a node
passes a pod that no node passed before, it writes an annotation of that node, which is an event. Without pending pods
it writes nothing.
"""

from collections.abc import Generator, Hashable
from typing import Any, Final

import msgspec
import numpy as np

from nodewise import cooperative_scheduling
from nodewise.agent import FilterPlugin, Plugin, Snapshot
from nodewise.agent_controller_interface import Controller, Handle
from nodewise.clock import format_rfc3339
from nodewise.extender.agent_chain import AgentChain
from nodewise.kube.api_server_interface import NotFound
from nodewise.kube.resource_kinds import NODES
from nodewise.kube.store import Store
from nodewise.observe import logs

ANNOTATION: Final = "nodewise.io/woken"
MAX_PODS: Final = 1000
"""Pods that are filtered again after one snapshot."""
PAUSE_S: Final = 1.0
"""The shortest time between two events."""
TRIES: Final = 3
"""Events per recovery. kube-scheduler may call another replica, whose metrics are a period older."""


class PodCondition(msgspec.Struct, frozen=True, gc=False):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class PodStatus(msgspec.Struct, frozen=True, gc=False):
    conditions: tuple[PodCondition, ...] = ()


class PodSpec(msgspec.Struct, frozen=True, gc=False):
    nodeName: str = ""  # noqa: N815 - the API's name


class PendingPodFields(msgspec.Struct, frozen=True):
    """The fields of a pod that requeueing reads, in addition to those of agents."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class _PendingPod(msgspec.Struct, gc=False):
    """A pending pod, as it was filtered last."""

    fits: bool
    tries: int = 0
    due_s: float = float("inf")


class Requeuer(Controller):
    """Writes the annotation of a Node when a pending pod fits that did not fit before."""

    def __init__(self, chain: AgentChain, pods: Store[Any], handle: Handle, period_s: float) -> None:
        self._chain = chain
        self._pods = pods
        self._handle = handle
        self._period_s = period_s
        self._reason_marks = (
            "nodewise: ",
            *(mark for agent in chain.agents for mark in _reason_marks(agent)),
        )
        self._pending: dict[str, _PendingPod] = {}
        self._last_event_s = float("-inf")
        self._writes = 0

    def begin(self) -> None:
        self._pending = {}

    async def step(self, snapshot: Snapshot) -> None:
        """Filter every pending pod again; make an event if one of them fits now."""
        now_s = self._handle.clock.monotonic()
        self._writes = self._handle.node_writes.count
        event_node = await cooperative_scheduling.run(self._filter_pending(snapshot, now_s))
        self._handle.metrics_registry.set("pods_waiting", len(self._pending))
        if event_node is not None:
            await self._make_requeue_event(event_node, len(self._pending))

    def _filter_pending(self, snapshot: Snapshot, now_s: float) -> Generator[None, None, str | None]:
        """A node that passes one of the pods to be requeued; None if there is no such pod."""
        pending: dict[str, _PendingPod] = {}
        event_node: str | None = None
        nodes_by_key: dict[Hashable, str | None] = {}
        for pod in self._pods.values():
            yield
            if pod.spec.nodeName or _rejection_message(pod) is None:
                continue
            equivalence_key = self._chain.equivalence_key(pod)
            if equivalence_key not in nodes_by_key:
                nodes_by_key[equivalence_key] = self._find_accepting_node(pod, snapshot)
            node = nodes_by_key[equivalence_key]
            pod_state = self._next_pod_state(pod, fits=node is not None, now_s=now_s)
            pending[pod.metadata.uid] = pod_state
            if node is not None and pod_state.due_s <= now_s:
                pod_state.tries += 1
                pod_state.due_s = now_s + self._period_s if pod_state.tries < TRIES else float("inf")
                event_node = event_node or node
            if len(pending) == MAX_PODS:
                break
        self._pending = pending
        return event_node

    def _find_accepting_node(self, pod: Any, snapshot: Snapshot) -> str | None:
        """A node that no agent rejects for the pod; None if all are rejected."""
        candidates = snapshot.nodes.every
        kept = self._chain.feasible(pod, candidates, snapshot)
        return candidates[int(np.argmax(kept))] if kept.any() else None

    def _next_pod_state(self, pod: Any, *, fits: bool, now_s: float) -> _PendingPod:
        """The pod's new state. A pod seen for the first time counts as recovered only if nodewise rejected it."""
        before = self._pending.get(pod.metadata.uid)
        if before is None:
            before = _PendingPod(fits=not self._is_own_rejection(_rejection_message(pod) or ""))
        if fits and not before.fits:
            return _PendingPod(fits=True, due_s=now_s)
        return _PendingPod(fits, before.tries, before.due_s) if fits else _PendingPod(fits=False)

    def _is_own_rejection(self, message: str) -> bool:
        """Whether the message of a rejection is nodewise's."""
        return any(mark in message for mark in self._reason_marks)

    async def _make_requeue_event(self, node: str, waiting: int) -> None:
        clock = self._handle.clock
        await clock.sleep(max(0.0, self._last_event_s + PAUSE_S - clock.monotonic()))
        self._last_event_s = clock.monotonic()
        if self._handle.node_writes.count != self._writes:
            return  # a label that was just written is such an event
        body = {"metadata": {"annotations": {ANNOTATION: format_rfc3339(clock.now())}}}
        try:
            await self._handle.api.patch(
                NODES.path(name=node), body, "merge", {"fieldManager": "nodewise-wake"}
            )
        except NotFound:
            self._pending = {}  # the node is gone; try again with the next snapshot
            return
        self._handle.metrics_registry.count("wakes_total")
        logs.emit("woken", node=node, waiting=waiting)


def _reason_marks(agent: Plugin[Any, Any]) -> tuple[str, ...]:
    """Texts that mark the agent's reasons: its name, unless it uses the texts of an older system."""
    return (isinstance(agent, FilterPlugin) and agent.reason_marks) or (f" {agent.name} ",)


def _rejection_message(pod: Any) -> str | None:
    """kube-scheduler's message about a pod without a feasible node; None for any other pod."""
    for condition in pod.status.conditions:
        if (
            condition.type == "PodScheduled"
            and condition.status == "False"
            and condition.reason == "Unschedulable"
        ):
            return str(condition.message)
    return None
