"""Watches the pods that wait because of policies with a guard, and decides which policies step back."""

import asyncio
import random
from collections.abc import Mapping
from typing import Final

from nodewise.agent.controller_interface import Handle
from nodewise.base import cooperative_scheduling
from nodewise.kube.reflector import Reflector, ReflectorTarget
from nodewise.kube.resource_kinds import PODS
from nodewise.policies import policy_objects, policy_guard
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.policy_guard import GuardFacts, PolicyGuards
from nodewise.policies.policy_objects import RESOURCES, PolicyObject, StepBack
from nodewise.policies.state import TelemetryState
from nodewise.policies.policy_guard import WaitingPod

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
