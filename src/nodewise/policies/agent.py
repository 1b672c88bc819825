"""Answers requests of the telemetry agent by look-up in the evaluated policies that select the pod."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple, cast

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from nodewise.agent import (
    Evidence,
    FilterPlugin,
    Names,
    PolicyRejections,
    Reason,
    ScorePlugin,
    Scores,
    Snapshot,
    Verdict,
)
from nodewise.agent.verdicts import DeferredEvidence
from nodewise.base import clock
from nodewise.base.errors import truncate
from nodewise.policies import (
    hysteresis,
    placement_policy,
    policy_rejection_reasons,
    policy_selection,
    rule_evaluation,
    verdict_labels,
)
from nodewise.policies.hysteresis import NodeStates
from nodewise.policies.placement_policy import AvoidRule, Policy, PolicyKey, PolicyKind
from nodewise.policies.policy_selection import POLICY_LABEL, PodFields
from nodewise.policies.rule_evaluation import CandidateValues
from nodewise.policies.state import PolicyState, TelemetryState
from nodewise.policies.verdict_labels import NodeConstraints


class _RuleStates(NamedTuple):
    kind: PolicyKind
    rule: AvoidRule
    states: NodeStates
    """By candidate."""


class RuleStateDetails(NamedTuple):
    """Details of one response (`agent.Details`)."""

    rules: tuple[_RuleStates, ...]
    now: float
    size: int

    @property
    def nbytes(self) -> int:
        return sum(states.phases.nbytes + states.since.nbytes for _, _, states in self.rules)

    def text(self, candidate: int) -> str:
        """`heat above 80: broken for 40s of 2m`, for each rule under which the candidate has a state."""
        texts = []
        for kind, rule, states in self.rules:
            phase = states.phases[candidate]
            if phase == hysteresis.PASSING:
                continue
            since = clock.format_duration(math.floor(max(self.now - states.since[candidate], 0.0)))
            text = " and ".join(policy_rejection_reasons.comparison_text(part, kind) for part in rule.parts)
            if phase == hysteresis.PENDING:
                progress = f"broken for {since} of {clock.format_duration(rule.times.for_s)}"
            elif phase == hysteresis.KEPT:
                progress = f"no longer broken for {since} of {clock.format_duration(rule.times.keep_for_s)}"
            else:
                progress = f"rejected for {since}"
            texts.append(f"{text}: {progress}")
        return "; ".join(texts)

    def distances(self) -> NDArray[np.float64]:
        """Zeros: values decide how far a candidate is from passing."""
        return np.zeros(self.size)

    def numbers(self, candidate: int) -> Mapping[str, Any]:  # noqa: ARG002 - the contract of details
        return {}


def rule_state_details(
    policies: Iterable[PolicyState], candidates: Names, now: float
) -> RuleStateDetails | None:
    """The states of the candidates under all rules of a pod's policies; None if all of them pass."""
    listed = []
    for state in policies:
        for rule, verdict in zip(state.policy.avoid, state.rule_verdicts, strict=False):
            if verdict.states is None:
                continue
            phases = verdict.states.phases[candidates.numbers]
            if phases.any():
                since = verdict.states.since[candidates.numbers]
                listed.append(_RuleStates(state.policy.key.kind, rule, NodeStates(phases, since)))
    return RuleStateDetails(tuple(listed), now, len(candidates)) if listed else None


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
    label = POLICY_LABEL.replace("-", "")
    for key in sorted(listed):
        plain = key.rpartition("/")[2].lower().translate(dict.fromkeys(map(ord, "-_.")))
        is_near = any(
            plain.startswith(label[:at]) and plain.endswith(label[at + 2 :]) for at in range(len(label) - 1)
        )
        if plain.startswith("telemetrypolicies") or (is_near and abs(len(plain) - len(label)) <= 1):
            return key
    return ""


class TelemetryAgent(FilterPlugin[PodFields, TelemetryState], ScorePlugin[PodFields, TelemetryState]):
    """The agent `telemetry`. Its verdicts do not depend on other pods, so victims make no difference."""

    name = "telemetry"
    reason_marks = placement_policy.REASON_MARKS

    def equivalence_key(self, pod: PodFields, snapshot: Snapshot) -> tuple[PolicyKey, ...] | None:
        """The policies that decide about the pod, also a TASPolicy that does not exist; None if it has none."""
        agent_state = self.state(snapshot)
        if agent_state is None:
            return policy_selection.named_by_label(pod) or None
        states = agent_state.policies
        selected = agent_state.selection.select(pod)
        return (
            tuple(
                key
                for key in selected
                if key not in states or policy_selection.is_enforced_for(states[key].policy, pod)
            )
            or None
        )

    def equivalence_version(self, snapshot: Snapshot) -> object:
        agent_state = self.state(snapshot)
        return None if agent_state is None else agent_state.selection

    def namespace_equivalence_version(self, snapshot: Snapshot, namespace: str) -> object:
        agent_state = self.state(snapshot)
        return None if agent_state is None else agent_state.selection.version(namespace)

    def filter(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Verdict | None:
        """Rejects a node that any policy of the pod rejects, with the reason of the first one."""
        agent_state = self.state(snapshot)
        if agent_state is None:
            if not policy_selection.may_be_selected(pod):
                return None
            return _reject_all_candidates(candidates, policy_rejection_reasons.PoliciesNotReady())
        values = CandidateValues(candidates)
        keys = agent_state.selection.select(pod)
        verdicts = [self._filter_verdict(key, agent_state.policies.get(key), pod, values) for key in keys]
        combined = _combine_verdicts([verdict for verdict in verdicts if verdict is not None])
        if combined is None:
            return None
        details = rule_state_details(
            self._states_with_effect(agent_state, keys, pod), candidates, snapshot.at
        )
        return combined if details is None else replace(combined, details=details)

    def score(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Scores | None:
        """Scores by the weighted mean of the ranks of all preferences of all policies of the pod.

        Nodes that policies with `enforcement: Preferred` reject come last.
        """
        agent_state = self.state(snapshot)
        if agent_state is None:
            return None
        states = self._states_with_effect(agent_state, agent_state.selection.select(pod), pod)
        values = CandidateValues(candidates)
        preferring = (_policy_verdict(state, values) for state in states if state.policy.only_prefers)
        rejecting = [verdict for verdict in preferring if verdict is not None]
        ranks, preferred = _combined_ranks(states, values)
        evidence = (
            preferred if not rejecting else _join_evidence([preferred, *(v.evidence for v in rejecting)])
        )
        if rejecting:
            rejections = [verdict.codes != 0 for verdict in rejecting]
            return Scores(rule_evaluation.scores_of_avoided(ranks, rejections), evidence)
        return None if ranks is None else Scores(rule_evaluation.scores_from_ranks(ranks), evidence)

    def why_not_enforced(self, policy: Policy, pod: PodFields) -> str:  # noqa: ARG002 - other agents depend on the pod
        """Why a policy that selects the pod has no effect, whatever its mode; empty if it may have one."""
        return policy.not_enforced

    def _states_with_effect(
        self, agent_state: TelemetryState, keys: Iterable[PolicyKey], pod: PodFields
    ) -> list[PolicyState]:
        """The policies that have an effect on a pod, in the order of `keys`, which select it."""
        known = (agent_state.policies[key] for key in keys if key in agent_state.policies)
        return [
            state
            for state in known
            if policy_selection.is_enforced_for(state.policy, pod)
            and not self.why_not_enforced(state.policy, pod)
        ]

    def _filter_verdict(
        self, key: PolicyKey, state: PolicyState | None, pod: PodFields, values: CandidateValues
    ) -> Verdict | None:
        """What one policy rejects; None if it filters nothing. A policy without effect on the pod rejects nothing, and
        decisions contain what it would reject.
        """
        if state is None:
            name = f"{truncate(key.namespace, _MAX_LENGTH)}/{truncate(key.name, _MAX_LENGTH)}"
            reason: Reason = policy_rejection_reasons.LabelEmpty(POLICY_LABEL)
            if key.name:
                reason = policy_rejection_reasons.PolicyMissing(name)
            return _reject_all_candidates(values.candidates, reason, key)
        nothing = np.zeros(len(values.candidates), bool)
        if why := self.why_not_enforced(state.policy, pod):
            observed = PolicyRejections(key.text(), nothing, not_enforced=why)
        elif policy_selection.is_enforced_for(state.policy, pod):
            return None if state.policy.only_prefers else _policy_verdict(state, values)
        elif state.verdict is None:
            return None
        else:
            would_reject = state.verdict.codes[values.candidates.numbers] != 0
            observed = PolicyRejections(key.text(), nothing, would_reject=would_reject)
        return Verdict(nothing.astype(np.int16), (), policies=(observed,))


class NativePodFields(msgspec.Struct, frozen=True):
    """The fields of a pod that `NativeModeAgent` reads in addition to `PodFields`."""

    spec: NodeConstraints = NodeConstraints()


class NativeModeAgent(TelemetryAgent):
    """Explains pods of native mode: policies whose node labels a pod neither requires nor prefers reject no node."""

    _required: frozenset[str] = frozenset()
    """The keys of the labels that the pod of the current call requires or prefers. They are read once for all policies,
    because the affinity of a pod may have tens of thousands of expressions."""

    def filter(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Verdict | None:
        self._required = _required_labels(pod)
        return super().filter(pod, candidates, snapshot)

    def score(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Scores | None:
        self._required = _required_labels(pod)
        return super().score(pod, candidates, snapshot)

    def why_not_enforced(self, policy: Policy, pod: PodFields) -> str:
        if policy.not_enforced or not policy.avoid or not policy_selection.is_enforced_for(policy, pod):
            return policy.not_enforced
        has_label = verdict_labels.label_key(policy.uid) in self._required
        return "" if has_label else "the pod does not require its node label"


def _required_labels(pod: PodFields) -> frozenset[str]:
    requirements = verdict_labels.verdict_requirements(cast("NativePodFields", pod).spec)
    return frozenset(requirement.key for requirement in requirements)


def _join_evidence(parts: Sequence[Sequence[Evidence]]) -> Sequence[Evidence]:
    return DeferredEvidence(lambda: tuple(chain.from_iterable(parts)))


def _combined_ranks(
    states: Iterable[PolicyState], values: CandidateValues
) -> tuple[rule_evaluation.Ranks | None, Sequence[Evidence]]:
    """The ranks of the candidates by all preferences, and the evidence; no ranks without preferences."""
    preferences = [(state.policy.key, preference) for state in states for preference in state.preferences]
    if not preferences:
        return None, ()
    ranks = rule_evaluation.combine_ranks(
        [preference.ranks.take(values.candidates.numbers) for _, preference in preferences],
        [preference.weight for _, preference in preferences],
    )
    evidence = DeferredEvidence(
        lambda: [
            preference.evaluation.evidence(values, key, weight=float(preference.weight))
            for key, preference in preferences
        ]
    )
    return ranks, evidence


def _policy_verdict(state: PolicyState, values: CandidateValues) -> Verdict | None:
    """The verdict of `avoid` about the candidates; None without such rules."""
    if state.verdict is None:
        return None
    key = state.policy.key
    codes, reasons, joined = state.verdict
    codes = codes.take(values.candidates.numbers)
    evidence = DeferredEvidence(
        lambda: [
            evaluation.evidence(values, key, group)
            for evaluation, group in zip(state.filter_rules, state.policy.groups(), strict=True)
        ]
    )
    return Verdict(
        codes, reasons, evidence, joined, policies=(PolicyRejections(key.text(), codes != 0, joined),)
    )


def _combine_verdicts(verdicts: Sequence[Verdict]) -> Verdict | None:
    """The union of the verdicts of several policies. A node has one reason: texts of events must be few."""
    if len(verdicts) < 2:  # noqa: PLR2004
        return verdicts[0] if verdicts else None
    codes = np.zeros(len(verdicts[0].codes), np.int16)
    reasons: list[Reason] = []
    for verdict in verdicts:
        is_first = (codes == 0) & (verdict.codes != 0)
        codes[is_first] = verdict.codes[is_first] + len(reasons)
        reasons += verdict.reasons
    return Verdict(
        codes,
        tuple(reasons),
        _join_evidence([verdict.evidence for verdict in verdicts]),
        policies=tuple(chain.from_iterable(verdict.policies for verdict in verdicts)),
    )


def _reject_all_candidates(candidates: Names, reason: Reason, key: PolicyKey | None = None) -> Verdict:
    codes = np.ones(len(candidates), np.int16)
    policies = () if key is None else (PolicyRejections(key.text(), codes != 0),)
    return Verdict(codes, (reason,), policies=policies)
