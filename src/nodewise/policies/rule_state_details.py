"""What `explain` says about nodes under rules with `for`, `release` or `keepFor`. Texts are made when they are read."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import Names
from nodewise.base import clock
from nodewise.policies import hysteresis, policy_rejection_reasons
from nodewise.policies.hysteresis import NodeStates
from nodewise.policies.placement_policy import AvoidRule, PolicyKind
from nodewise.policies.state import PolicyState


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
        return "; ".join(self._texts(candidate))

    def _texts(self, candidate: int) -> Iterator[str]:
        for kind, rule, states in self.rules:
            phase = states.phases[candidate]
            if phase == hysteresis.PASSING:
                continue
            since = clock.format_duration(math.floor(max(self.now - states.since[candidate], 0.0)))
            text = " and ".join(policy_rejection_reasons.comparison_text(part, kind) for part in rule.parts)
            if phase == hysteresis.PENDING:
                yield f"{text}: broken for {since} of {clock.format_duration(rule.times.for_s)}"
            elif phase == hysteresis.KEPT:
                yield f"{text}: no longer broken for {since} of {clock.format_duration(rule.times.keep_for_s)}"
            else:
                yield f"{text}: rejected for {since}"

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
    for policy, verdicts in ((state.policy, state.rule_verdicts) for state in policies):
        for rule, verdict in zip(policy.avoid, verdicts, strict=False):
            if verdict.states is None:
                continue
            phases = verdict.states.phases[candidates.numbers]
            if phases.any():
                since = verdict.states.since[candidates.numbers]
                listed.append(_RuleStates(policy.key.kind, rule, NodeStates(phases, since)))
    return RuleStateDetails(tuple(listed), now, len(candidates)) if listed else None
