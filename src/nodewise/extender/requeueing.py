"""Wake on heal: a pod that an extender rejected is tried again at any cluster event, else after five minutes, and a
metric that heals is no event. So the leader decides waiting pods again after each new snapshot, and makes one event
when one of them fits that did not. Nobody waits: nothing is written.
"""

from collections.abc import Generator, Hashable
from typing import Any, Final

import msgspec
import numpy as np

from nodewise import cooperative_scheduling
from nodewise.agent import FilterPlugin, Plugin, Snapshot
from nodewise.clock import format_rfc3339
from nodewise.controllers import Controller, Handle
from nodewise.extender.agent_chain import AgentChain
from nodewise.kube.api import NotFound
from nodewise.kube.resources import NODES
from nodewise.kube.store import Store
from nodewise.observe import logs

ANNOTATION: Final = "nodewise.io/woken"
MAX_PODS: Final = 1000
"""Decided again in one pass."""
PAUSE_S: Final = 1.0
"""Between two events."""
TRIES: Final = 3
"""Events for one heal. kube-scheduler may ask another replica, whose metrics are a period older than ours."""


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
    """What is read of a pod besides what agents read."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class _PendingPod(msgspec.Struct, gc=False):
    """A waiting pod as it was decided last."""

    fits: bool
    tries: int = 0
    due_s: float = float("inf")


class Requeuer(Controller):
    """A controller that writes one Node annotation when a waiting pod fits that did not."""

    def __init__(self, chain: AgentChain, pods: Store[Any], handle: Handle, period_s: float) -> None:
        self._chain = chain
        self._pods = pods
        self._handle = handle
        self._period_s = period_s
        self._signs = ("nodewise: ", *(sign for agent in chain.agents for sign in _reason_marks(agent)))
        self._hopes: dict[str, _PendingPod] = {}
        self._woke_s = float("-inf")
        self._writes = 0

    def begin(self) -> None:
        self._hopes = {}

    async def step(self, snapshot: Snapshot) -> None:
        """Decide every waiting pod again; wake them if one of them can go somewhere now."""
        now_s = self._handle.clock.monotonic()
        self._writes = self._handle.node_writes.count
        wake = await cooperative_scheduling.run(self._decided(snapshot, now_s))
        self._handle.metrics_registry.set("pods_waiting", len(self._hopes))
        if wake is not None:
            await self._wake(wake, len(self._hopes))

    def _decided(self, snapshot: Snapshot, now_s: float) -> Generator[None, None, str | None]:
        """A node for one of the pods that are to be woken; None where none is."""
        hopes: dict[str, _PendingPod] = {}
        wake: str | None = None
        answers: dict[Hashable, str | None] = {}
        for pod in self._pods.values():
            yield
            if pod.spec.nodeName or _rejection(pod) is None:
                continue
            equivalence_key = self._chain.equivalence_key(pod)
            if equivalence_key not in answers:
                answers[equivalence_key] = self._fits_on(pod, snapshot)
            node = answers[equivalence_key]
            hope = self._hoped(pod, fits=node is not None, now_s=now_s)
            hopes[pod.metadata.uid] = hope
            if node is not None and hope.due_s <= now_s:
                hope.tries += 1
                hope.due_s = now_s + self._period_s if hope.tries < TRIES else float("inf")
                wake = wake or node
            if len(hopes) == MAX_PODS:
                break
        self._hopes = hopes
        return wake

    def _fits_on(self, pod: Any, snapshot: Snapshot) -> str | None:
        """A node that no agent rejects."""
        candidates = snapshot.nodes.every
        kept = self._chain.kept(pod, candidates, snapshot)
        return candidates[int(np.argmax(kept))] if kept.any() else None

    def _hoped(self, pod: Any, *, fits: bool, now_s: float) -> _PendingPod:
        """What is known of the pod now. One that is new counts as healed only if it was us who rejected it."""
        before = self._hopes.get(pod.metadata.uid)
        if before is None:
            before = _PendingPod(fits=not self._was_us(_rejection(pod) or ""))
        if fits and not before.fits:
            return _PendingPod(fits=True, due_s=now_s)
        return _PendingPod(fits, before.tries, before.due_s) if fits else _PendingPod(fits=False)

    def _was_us(self, message: str) -> bool:
        """Whether the words of a rejection are ours."""
        return any(sign in message for sign in self._signs)

    async def _wake(self, node: str, waiting: int) -> None:
        clock = self._handle.clock
        await clock.sleep(max(0.0, self._woke_s + PAUSE_S - clock.monotonic()))
        self._woke_s = clock.monotonic()
        if self._handle.node_writes.count != self._writes:
            return  # a label that was written just now is the event
        body = {"metadata": {"annotations": {ANNOTATION: format_rfc3339(clock.now())}}}
        try:
            await self._handle.api.patch(
                NODES.path(name=node), body, "merge", {"fieldManager": "nodewise-wake"}
            )
        except NotFound:
            self._hopes = {}  # the node is gone; the next snapshot decides anew
            return
        self._handle.metrics_registry.count("wakes_total")
        logs.emit("woken", node=node, waiting=waiting)


def _reason_marks(agent: Plugin[Any, Any]) -> tuple[str, ...]:
    """How to recognize the agent's reasons: by its name, unless they have an older system's texts."""
    return (isinstance(agent, FilterPlugin) and agent.reason_marks) or (f" {agent.name} ",)


def _rejection(pod: Any) -> str | None:
    """What kube-scheduler says of a pod that it found no node for; None for any other pod."""
    for condition in pod.status.conditions:
        if (
            condition.type == "PodScheduled"
            and condition.status == "False"
            and condition.reason == "Unschedulable"
        ):
            return str(condition.message)
    return None
