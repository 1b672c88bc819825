"""For which pods a policy has an effect, by its mode (`spec.mode`). No I/O.

A policy is evaluated in each mode. For a pod on which it has no effect, decisions contain what it would reject, and
responses are those without the policy.
"""

import hashlib
from typing import Final

from nodewise.policies.placement_policy import Policy, PolicyKey
from nodewise.policies.policy_selection import PodFields

_TEMPLATE_HASH_LABEL: Final = "pod-template-hash"
"""The label of a Deployment's pods with the end of the name of their ReplicaSet."""


def is_enforced_for(policy: Policy, pod: PodFields) -> bool:
    """Whether a policy has an effect on a pod that it selects."""
    if policy.stepped_back:
        return False
    if policy.mode != "Canary":
        return policy.mode == "Enforce"
    canary = policy.canary
    if canary is None:  # the policy is invalid, and fails closed
        return True
    if canary.pods is not None:
        return canary.pods.selects(pod.metadata.labels or {})
    return workload_place(policy.key, pod) < canary.percent


def has_labels(policy: Policy) -> bool:
    """Whether pods can require labels with the verdicts of the policy, in native mode.

    The mutation has no hash function, so that a canary by percent is not possible there.
    """
    if policy.mode == "Canary":
        return not policy.stepped_back and (policy.canary is None or policy.canary.pods is not None)
    return not policy.only_observes


def workload_place(key: PolicyKey, pod: PodFields) -> int:
    """The place of a pod's workload, from 0 to 99: part of a canary if it is below its percent.

    It follows from the names of the policy and of the workload, so that all pods of a workload are in the canary or
    none, also after a roll-out or a restart, and a larger percent keeps the workloads of a smaller one.
    """
    metadata = pod.metadata
    owner = next((owner for owner in metadata.ownerReferences or () if owner.controller), None)
    kind, name = (owner.kind, owner.name) if owner else ("Pod", metadata.name)
    template_hash = (metadata.labels or {}).get(_TEMPLATE_HASH_LABEL)
    if kind == "ReplicaSet" and template_hash:
        kind, name = "Deployment", name.removesuffix(f"-{template_hash}")
    text = "\0".join((*key, metadata.namespace, kind, name))
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 100
