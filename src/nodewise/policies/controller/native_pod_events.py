"""Events on pods of native mode that kube-scheduler finds no node for, because of policies or of deleted ones."""

from collections.abc import Iterable, Mapping
from typing import Final

from nodewise.agent.controller_interface import Handle
from nodewise.base import cooperative_scheduling
from nodewise.kube.event_recorder import NO_NODE_PASSES, ObjectReference
from nodewise.kube.rate_limit import TokenBucket
from nodewise.kube.resource_kinds import PODS
from nodewise.policies import native_mode_pods
from nodewise.policies.native_mode_pods import NoteSchedule
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.state import PolicyState
from nodewise.policies.native_mode_pods import UnscheduledPod

_EVENTS_PER_S: Final = 5.0
_BURST: Final = 50
"""The limit of events. They share the limit of writes to the API server with labels, which are more important."""


class NativePodEvents:
    """Records an event for each waiting pod of native mode whose policies reject nodes."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._schedule = NoteSchedule()
        self._limit = TokenBucket(_EVENTS_PER_S, _BURST)

    async def step(
        self,
        pods: Iterable[UnscheduledPod],
        states: Mapping[PolicyKey, PolicyState],
        deleted: frozenset[str],
        node_count: int,
    ) -> None:
        """Record the events that are due, within the limit; the next step continues.

        `deleted` are the label keys of policies that do not exist any more.
        """
        now_s = self._handle.clock.monotonic()
        by_key = native_mode_pods.states_by_label_key(states.values())
        due = await cooperative_scheduling.run(self._schedule.due(pods, by_key, deleted, node_count, now_s))
        for pod, note in due:
            if self._limit.take(now_s, 0.0) is None:
                return
            metadata = pod.metadata
            about = ObjectReference(PODS, metadata.namespace, metadata.name, metadata.uid)
            text = native_mode_pods.event_text(pod, note)
            self._handle.recorder.record(about, "Warning", NO_NODE_PASSES, text, "Filtering")
            self._schedule.record(pod, note, now_s)
