"""Which pods wait because of a policy, by what kube-scheduler says about them. No I/O.

The message of an unschedulable pod contains the reasons of an extender, which begin with the policy. In native mode it
says that nodes did not match the node affinity or node selector, which names the policies by the keys of their labels.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from typing import Final

import msgspec

from nodewise.policies import placement_policy, policy_selection, verdict_labels
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.policy_selection import PodFields, PodMetadata
from nodewise.policies.state import TelemetryState
from nodewise.policies.verdict_labels import NodeConstraints

_AFFINITY: Final = "node affinity"
"""Part of the message of kube-scheduler's plugin NodeAffinity (1.36: `didn't match Pod's node affinity/selector`)."""
_MAX_BYTES: Final = 8 * 1024
"""JSON of a pod that is stored. A pod can have a megabyte of labels."""
_NOTHING: Final = frozenset[str]()


class _Condition(msgspec.Struct, frozen=True):
    type: str = ""
    status: str = ""
    message: str = ""


class _Status(msgspec.Struct, frozen=True):
    conditions: tuple[_Condition, ...] = ()


class WaitingPod(msgspec.Struct, frozen=True):
    """A pod without a node, for which kube-scheduler found none."""

    metadata: PodMetadata = PodMetadata()
    spec: NodeConstraints = NodeConstraints()
    status: _Status = _Status()
    causes: frozenset[str] = _NOTHING
    """The texts and label keys of policies that are a cause. Set for a stored pod; its spec and status are dropped."""


def keep_pod(pod: WaitingPod) -> WaitingPod | None:
    """The pod as it is stored; None if no policy is a cause, or if labels and causes have more than `_MAX_BYTES`."""
    message = next(
        (
            each.message
            for each in pod.status.conditions
            if (each.type, each.status) == ("PodScheduled", "False")
        ),
        "",
    )
    causes = placement_policy.find_rejecting_policies(message)
    if _AFFINITY in message:
        required = verdict_labels.verdict_requirements(pod.spec)
        causes |= {requirement.key for requirement in required if not requirement.is_preferred}
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
