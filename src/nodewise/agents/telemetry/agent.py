"""Answers requests of the telemetry agent by look-up in the evaluated policy that the pod names."""

from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
import numpy as np

from nodewise.agent import FilterPlugin, Names, ReadKeys, Reason, ScorePlugin, Scores, Snapshot, Verdict
from nodewise.agents.telemetry import policy_rejection_reasons, rank_scores
from nodewise.agents.telemetry.state import PolicyState, TelemetryState
from nodewise.errors import truncate

POLICY_LABEL: Final = "telemetry-policy"
"""The pod label that names a TASPolicy of the pod's own namespace."""

SCHEDULING_RESOURCE: Final = "telemetry/scheduling"
"""The resource that pods with a policy request, so that kube-scheduler calls nodewise."""

_MAX_LENGTH: Final = 63
"""Characters of a label value, and of a namespace."""


def find_misspelt_policy_label(keys: Iterable[str]) -> str:
    """The first label key that is nearly POLICY_LABEL; empty if there is none, or if the label itself is there.

    The rule is that of `deploy/pod-admission.yaml`: without prefix, case and the characters -, _ and ., the key differs
    from the label in at most two neighbouring characters, or by one extra or missing character.
    """
    listed = list(keys)
    if POLICY_LABEL in listed:
        return ""
    return next(
        (
            key
            for key in sorted(listed)
            if _is_nearly_policy_label(_without_case_and_separators(key.rpartition("/")[2]))
        ),
        "",
    )


def _without_case_and_separators(name: str) -> str:
    return "".join(character for character in name.lower() if character not in "-_.")


def _is_nearly_policy_label(plain: str) -> bool:
    label = _without_case_and_separators(POLICY_LABEL)
    return plain.startswith("telemetrypolicies") or (
        abs(len(plain) - len(label)) <= 1
        and any(
            plain.startswith(label[:at]) and plain.endswith(label[at + 2 :]) for at in range(len(label) - 1)
        )
    )


class PodMetadata(msgspec.Struct, frozen=True):
    namespace: str = ""
    labels: Annotated[dict[str, str] | None, ReadKeys((POLICY_LABEL,))] = None


class PodFields(msgspec.Struct, frozen=True):
    """The fields of a pod that are read."""

    metadata: PodMetadata = PodMetadata()


class TelemetryAgent(FilterPlugin[PodFields, TelemetryState], ScorePlugin[PodFields, TelemetryState]):
    """The agent `telemetry`. Its verdicts do not depend on other pods, so victims make no difference."""

    name = "telemetry"

    def equivalence_key(self, pod: PodFields, snapshot: Snapshot) -> tuple[str, str] | None:  # noqa: ARG002
        """The namespace and name of the policy that the pod names; None if it names none."""
        name = (pod.metadata.labels or {}).get(POLICY_LABEL)
        return None if name is None else (pod.metadata.namespace, name)

    def filter(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Verdict | None:
        policy = self._evaluated_policy_of_pod(pod, snapshot)
        if policy is None:
            return None
        if not isinstance(policy, PolicyState):
            return _reject_all_candidates(candidates, policy)
        if policy.verdict is None:
            return None
        codes, texts, joined = policy.verdict
        evidence = tuple(rule.evidence(candidates, policy.policy.key.kind) for rule in policy.filter_rules)
        return Verdict(codes[candidates.numbers], texts, evidence, joined)

    def score(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Scores | None:
        policy = self._evaluated_policy_of_pod(pod, snapshot)
        if not isinstance(policy, PolicyState) or policy.ranks is None or policy.preferred_rule is None:
            return None
        evidence = policy.preferred_rule.evidence(candidates, policy.policy.key.kind, ranks_only=True)
        return Scores(rank_scores.scores_from_ranks(policy.ranks[candidates.numbers]), (evidence,))

    def _evaluated_policy_of_pod(self, pod: PodFields, snapshot: Snapshot) -> PolicyState | Reason | None:
        """The evaluated policy that the pod names, the reason why there is none, or None if the pod names none."""
        key = self.equivalence_key(pod, snapshot)
        if key is None:
            return None
        namespace, name = key
        if not name:
            return policy_rejection_reasons.LabelEmpty(POLICY_LABEL)
        agent_state = self.state(snapshot)
        if agent_state is None:
            return policy_rejection_reasons.PoliciesNotReady()
        policy: PolicyState | None = agent_state.get((namespace, name))
        return (
            policy_rejection_reasons.PolicyMissing(
                f"{truncate(namespace, _MAX_LENGTH)}/{truncate(name, _MAX_LENGTH)}"
            )
            if policy is None
            else policy
        )


def _reject_all_candidates(candidates: Names, reason: Reason) -> Verdict:
    return Verdict(np.ones(len(candidates), np.int16), (reason,))
