"""Watches pods in the leader. Those that policies select are counted. Those that wait because of a policy with a guard
decide whether it steps back.
"""

import asyncio
import random
from collections.abc import Mapping
from typing import Final

from nodewise.agent.controller_interface import Handle
from nodewise.base import cooperative_scheduling
from nodewise.kube.reflector import Reflector, ReflectorTarget
from nodewise.kube.resource_kinds import PODS
from nodewise.kube.store import Changes, Store
from nodewise.policies import policy_guard, policy_objects
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.policy_guard import GuardFacts, PolicyGuards, WaitingPod
from nodewise.policies.policy_objects import RESOURCES, PolicyObject, StepBack
from nodewise.policies.selected_pods import ListedPod, PodLabelGroups, SelectedPodCounter, SelectedPods
from nodewise.policies.state import TelemetryState

_UNSCHEDULED: Final = {"fieldSelector": "spec.nodeName=,status.phase=Pending"}


class GuardWatch:
    """Evaluates the guards of policies. Pods are watched from the first guard with `maxWaitingPods` on."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._requested = asyncio.Event()
        target = ReflectorTarget(
            PODS, WaitingPod, selectors=_UNSCHEDULED, keep=policy_guard.keep_pod, label="Pod (guards)"
        )
        self._pods = Reflector(handle.api, target, handle.clock, handle.metrics_registry, random.random)
        self._guards = PolicyGuards()

    def begin(self) -> None:
        """Start as the leader: step-backs are taken from the status of policies."""
        self._guards = PolicyGuards()

    async def run(self) -> None:
        """Watch pods once a guard needs them, until cancelled."""
        await self._requested.wait()
        await self._pods.run()

    async def step_backs(self, agent_state: TelemetryState) -> Mapping[PolicyKey, StepBack]:
        """The step-backs of policies, by their guards."""
        clock = self._handle.clock
        guarded = [state.policy for state in agent_state.policies.values() if state.policy.guard is not None]
        counts: Mapping[PolicyKey, int] | None = {}
        if any(policy.guard and policy.guard.max_waiting_pods is not None for policy in guarded):
            self._requested.set()
            counts = None
            if self._pods.synced:
                pods = list(self._pods.store.values())
                counts = await cooperative_scheduling.run(policy_guard.count_by_policy(pods, agent_state))
        facts = {}
        for policy in guarded:
            store = self._handle.objects[RESOURCES[policy.key.kind].plural]
            policy_object: PolicyObject | None = store.get(policy.namespace, policy.name)
            if policy_object is not None and policy_object.metadata.uid == policy.uid:
                facts[policy.key] = GuardFacts(
                    policy_object.metadata.generation,
                    policy_objects.step_back_in_effect(policy_object),
                    None if counts is None else counts.get(policy.key, 0),
                )
        step_backs = self._guards.update(agent_state.policies, facts, clock.monotonic(), clock.now())
        self._handle.metrics_registry.set("policies_stepped_back", len(step_backs))
        return step_backs


_UNUSED_S: Final = 60.0
"""The watch ends if no count is requested for this time: the replica no longer leads, or there is no policy."""
_CHECK_S: Final = 10.0
_NOT_FINISHED: Final = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}

_LABEL: Final = "Pod (selected)"
"""The kind in metrics, which the other watches of pods do not have."""


class SelectedPodWatch:
    """Counts the pods of policies. The watch runs only while counts are requested."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._requested = asyncio.Event()
        self._requested_s = float("-inf")
        self._reflector: Reflector[ListedPod] | None = None
        self._counter = SelectedPodCounter(PodLabelGroups())

    async def count(self, agent_state: TelemetryState) -> SelectedPods | None:
        """The pods that policies select; None while pods are not listed yet, or if no policy has selectors."""
        if not any(state.policy.selection for state in agent_state.policies.values()):
            return None
        self._requested_s = self._handle.clock.monotonic()
        self._requested.set()
        if self._reflector is None or not self._reflector.synced:
            return None
        return await cooperative_scheduling.run(self._counter.count(agent_state.selection))

    async def run(self) -> None:
        """Watch pods while counts are requested, until cancelled."""
        while True:
            await self._requested.wait()
            await self._watch_while_requested()
            self._requested.clear()

    async def _watch_while_requested(self) -> None:
        handle = self._handle
        groups = PodLabelGroups()
        target = ReflectorTarget(PODS, ListedPod, selectors=_NOT_FINISHED, keep=groups.keep, label=_LABEL)
        registry = handle.metrics_registry
        reflector = Reflector(handle.metadata_api, target, handle.clock, registry, random.random)
        follow_store(groups, reflector.store)
        self._reflector, self._counter = reflector, SelectedPodCounter(groups)
        watching = asyncio.ensure_future(reflector.run())
        try:
            while handle.clock.monotonic() - self._requested_s < _UNUSED_S and not watching.done():
                await handle.clock.sleep(_CHECK_S)
            if watching.done():
                watching.result()
        finally:
            self._reflector, self._counter = None, SelectedPodCounter(PodLabelGroups())
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            for metric in ("kube_connected", "kube_contact_timestamp_seconds", "kube_objects"):
                registry.forget(metric, kind=_LABEL)


def follow_store(groups: PodLabelGroups, store: Store[ListedPod]) -> None:
    """Count the pods of a store from now on."""

    def apply(changes: Changes[ListedPod] | None) -> None:
        if changes is None:
            groups.recount(store.values())
        else:
            groups.apply(changes.values())

    store.subscribe(apply)
