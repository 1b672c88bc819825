"""Guards of policies: which pods wait because of a policy, when it steps back, and when it is enforced again.

The leader decides, and writes the decision into the status of the policy, from which every replica takes it
(`policy_objects.step_back_in_effect`). Without that status, the policy is enforced.

The message of an unschedulable pod contains the reasons of an extender, which begin with the policy. In native mode it
says that nodes did not match the node affinity or node selector, which names the policies by the keys of their labels.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from fractions import Fraction
from typing import Final, NamedTuple

import msgspec
import numpy as np

from nodewise.agent.controller_interface import Handle
from nodewise.base import clock, cooperative_scheduling
from nodewise.kube.reflector import Reflector, ReflectorTarget
from nodewise.kube.resource_kinds import PODS
from nodewise.policies import placement_policy, policy_objects, policy_selection, verdict_labels
from nodewise.policies.controller.object_patcher import find_policy_object
from nodewise.policies.placement_policy import Guard, PolicyKey
from nodewise.policies.policy_objects import StepBack
from nodewise.policies.policy_selection import PodFields, PodMetadata
from nodewise.policies.state import PolicyState, TelemetryState
from nodewise.policies.verdict_labels import NodeConstraints, PodConditions


class GuardFacts(NamedTuple):
    """What the guard of one policy needs in addition to its evaluation."""

    generation: int
    step_back: StepBack | None
    """In effect by the status of the policy."""
    waiting_pods: int | None
    """Pods that wait because of the policy (`count_by_policy`); None if they have not been counted."""


class _Watched(NamedTuple):
    """What is remembered about one policy."""

    uid: str
    generation: int
    exceeded_since_s: float | None
    """Monotonic; None while no limit is exceeded."""
    step_back: StepBack | None


class PolicyGuards:
    """The guards of all policies, in the leader."""

    def __init__(self) -> None:
        self._watched: dict[PolicyKey, _Watched] = {}

    def update(
        self,
        states: Mapping[PolicyKey, PolicyState],
        facts: Mapping[PolicyKey, GuardFacts],
        now_s: float,
        now: float,
    ) -> dict[PolicyKey, StepBack]:
        """The step-backs of policies with a guard. `now_s` is monotonic, `now` in seconds since 1970."""
        self._watched = {
            key: self._watch(key, states[key], facts[key], now_s, now)
            for key in facts
            if key in states and states[key].policy.guard is not None
        }
        return {key: watched.step_back for key, watched in self._watched.items() if watched.step_back}

    def _watch(
        self, key: PolicyKey, state: PolicyState, facts: GuardFacts, now_s: float, now: float
    ) -> _Watched:
        guard, uid = state.policy.guard, state.policy.uid
        assert guard is not None
        before = self._watched.get(key)
        if before is None or (before.uid, before.generation) != (uid, facts.generation):
            before = _Watched(uid, facts.generation, None, facts.step_back)
        if before.step_back is not None:
            return before._replace(step_back=None) if _is_over(before.step_back, guard, now) else before
        excess = "" if state.policy.is_shadow else excess_text(state, guard, facts.waiting_pods)
        if not excess:
            return before._replace(exceeded_since_s=None)
        since_s = now_s if before.exceeded_since_s is None else before.exceeded_since_s
        if now_s - since_s < guard.within_s:
            return before._replace(exceeded_since_s=since_s)
        message = f"{excess} for {clock.format_duration(round(now_s - since_s))}"
        step_back = StepBack(facts.generation, clock.format_rfc3339(now), message)
        return before._replace(exceeded_since_s=None, step_back=step_back)


def _is_over(step_back: StepBack, guard: Guard, now: float) -> bool:
    """Whether `resumeAfter` has passed. A time that cannot be read has not."""
    try:
        return (
            guard.resume_after_s is not None
            and now - clock.parse_rfc3339(step_back.time) >= guard.resume_after_s
        )
    except ValueError:
        return False


def excess_text(state: PolicyState, guard: Guard, waiting_pods: int | None) -> str:
    """The limit that a policy exceeds, and the measured value; empty if it exceeds none."""
    if state.verdict is not None and guard.max_rejected_share and not state.awaits_metrics:
        codes = state.verdict.codes[:-1]  # without the unknown node
        rejected, total = int(np.count_nonzero(codes)), len(codes)
        if rejected > Fraction(guard.max_rejected_share) * total:
            return f"it rejected {rejected} of {total} nodes, more than the share {guard.max_rejected_share}"
    if (
        guard.max_waiting_pods is not None
        and waiting_pods is not None
        and waiting_pods > guard.max_waiting_pods
    ):
        where = "" if state.policy.namespace else " in all namespaces but one"
        return f"{waiting_pods} pods waited because of it{where}, more than {guard.max_waiting_pods}"
    return ""


_AFFINITY: Final = "node affinity"
"""Part of the message of kube-scheduler's plugin NodeAffinity (1.36: `didn't match Pod's node affinity/selector`)."""
_MAX_BYTES: Final = 8 * 1024
"""JSON of a pod that is stored. A pod can have a megabyte of labels."""
_NOTHING: Final = frozenset[str]()


class WaitingPod(msgspec.Struct, frozen=True):
    """A pod without a node, for which kube-scheduler found none."""

    metadata: PodMetadata = PodMetadata()
    spec: NodeConstraints = NodeConstraints()
    status: PodConditions = PodConditions()
    causes: frozenset[str] = _NOTHING
    """The texts and label keys of policies that are a cause. Set for a stored pod; its spec and status are dropped."""


def keep_pod(pod: WaitingPod) -> WaitingPod | None:
    """The pod as it is stored; None if no policy is a cause, or if labels and causes have more than `_MAX_BYTES`."""
    message = pod.status.unscheduled_message()
    causes = placement_policy.find_rejecting_policies(message)
    if _AFFINITY in message:
        causes |= {requirement.key for requirement in verdict_labels.required_verdicts(pod.spec)}
    kept = WaitingPod(pod.metadata, causes=causes)
    return kept if causes and len(msgspec.json.encode(kept)) <= _MAX_BYTES else None


def count_by_policy(
    pods: Iterable[WaitingPod], agent_state: TelemetryState
) -> Generator[None, None, Mapping[PolicyKey, int]]:
    """How many pods wait because of each policy that has an effect on them. Yields between pods.

    Whoever may create pods in a namespace can let any number of them wait. Of a policy for several namespaces, the
    namespace with the most pods therefore does not count: for each namespace, the result is at most the number of pods
    that wait in all others.
    """
    counts: dict[PolicyKey, Counter[str]] = {}
    for pod in pods:
        fields = PodFields(pod.metadata)
        for key in agent_state.selection.select(fields):
            state = agent_state.policies.get(key)
            if state is None or not policy_selection.is_enforced_for(state.policy, fields):
                continue
            if key.text() in pod.causes or verdict_labels.label_key(state.policy.uid) in pod.causes:
                counts.setdefault(key, Counter())[pod.metadata.namespace] += 1
        yield
    return {key: own.total() - (0 if key.namespace else max(own.values())) for key, own in counts.items()}


_UNSCHEDULED: Final = {"fieldSelector": "spec.nodeName=,status.phase=Pending"}


class GuardWatch:
    """Evaluates the guards of policies. Pods are watched from the first guard with `maxWaitingPods` on."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._requested = asyncio.Event()
        target = ReflectorTarget(
            PODS, WaitingPod, selectors=_UNSCHEDULED, keep=keep_pod, label="Pod (guards)"
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

    async def step_backs(
        self, agent_state: TelemetryState, states: Mapping[PolicyKey, PolicyState]
    ) -> Mapping[PolicyKey, StepBack]:
        """The step-backs of policies, by their guards. `states` have the verdicts of all nodes."""
        clock = self._handle.clock
        guarded = [state.policy for state in agent_state.policies.values() if state.policy.guard is not None]
        counts: Mapping[PolicyKey, int] | None = {}
        if any(policy.guard and policy.guard.max_waiting_pods is not None for policy in guarded):
            self._requested.set()
            counts = None
            if self._pods.synced:
                pods = list(self._pods.store.values())
                counts = await cooperative_scheduling.run(count_by_policy(pods, agent_state))
        facts = {}
        for policy in guarded:
            policy_object = find_policy_object(self._handle, policy.key, policy.uid)
            if policy_object is not None:
                facts[policy.key] = GuardFacts(
                    policy_object.metadata.generation,
                    policy_objects.step_back_in_effect(policy_object),
                    None if counts is None else counts.get(policy.key, 0),
                )
        step_backs = self._guards.update(states, facts, clock.monotonic(), clock.now())
        self._handle.metrics_registry.set("policies_stepped_back", len(step_backs))
        return step_backs
