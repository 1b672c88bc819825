"""The status of a PlacementPolicy or ClusterPlacementPolicy. No I/O.

The admission policies of `deploy/extender-pods.yaml` read `mode`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from nodewise.agents.telemetry import policy_conditions, policy_rejection_reasons
from nodewise.agents.telemetry.placement_policy import Comparison, PolicyKey, PolicyKind
from nodewise.agents.telemetry.policy_conditions import ConditionKind, PolicyCondition, StatusWithConditions
from nodewise.agents.telemetry.rule_evaluation import RuleEvaluation
from nodewise.agents.telemetry.state import PolicyState
from nodewise.errors import truncate

_MAX_EXPRESSION: Final = 256
"""Characters of the text of a rule, which may be a whole query."""
_MAX_NAMED: Final = 5
"""Policies that a message names."""


class RuleCounts(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The counts of one rule."""

    rule: str
    """Its place in the spec: `avoid[1]`, or `avoid[1].all[0]` for a part of it."""
    expression: str = ""
    nodes: int | None = None
    """How many nodes meet it."""
    missing: int | None = None
    """How many nodes have no fresh value; None for a rule with several parts."""
    suspended: bool = False


class PlacementPolicyStatus(StatusWithConditions, frozen=True, omit_defaults=True):
    """The fields of a status that are written, and read back."""

    mode: str = ""
    selected_pods: int | None = None
    """None: not counted yet, not enforced, or a policy that only labels nodes."""
    rejected_nodes: int | None = None
    """None: the policy rejects no nodes."""
    rules: tuple[RuleCounts, ...] = ()

    def has_same_conditions(self, other: Any) -> bool:
        """Whether at most counts differ. A first count is more than that."""
        is_first_count = (self.selected_pods is None) != (other.selected_pods is None)
        return super().has_same_conditions(other) and self.mode == other.mode and not is_first_count


class StatusFacts(NamedTuple):
    """What a status contains in addition to the evaluated policy."""

    generation: int = 0
    label_conflict: str = ""
    """Which node labels belong to another owner; empty for none."""
    selected_pods: int | None = None
    """None if pods have not been counted."""
    rejecting_policies: tuple[PolicyKey, ...] = ()
    """The policies that together reject every node for some pods of this policy, if there are such pods."""
    no_node_label: str = ""
    """Why native mode does not enforce the policy; empty if it does, or is not used."""


def desired_status(
    state: PolicyState, facts: StatusFacts, before: PlacementPolicyStatus, now: str
) -> PlacementPolicyStatus:
    """The complete status."""
    policy = state.policy
    conditions = policy_conditions.update_conditions(
        _policy_conditions(state, facts), _KINDS, before.conditions_by_type(), facts.generation, now
    )
    return PlacementPolicyStatus(
        conditions,
        facts.generation,
        "NotEnforced" if policy.not_enforced else "Enforce",
        _selected_pods(state, facts),
        None if state.verdict is None else int(np.count_nonzero(state.verdict.codes[:-1])),
        tuple(_rule_counts(state)),
    )


_READY: Final = ConditionKind("Ready", "True", is_always_set=True)
_METRICS: Final = ConditionKind("MetricsAvailable", "True", is_always_set=True)
_SUSPENDED: Final = ConditionKind("Suspended", "False")
_CONFLICT: Final = ConditionKind("LabelConflict", "False")
_NOT_ENFORCED: Final = ConditionKind("NotEnforced", "False")
_NO_PODS: Final = ConditionKind("NoPodsSelected", "False")
_ALL_REJECTED: Final = ConditionKind("AllNodesRejected", "False")
_KINDS: Final = (_READY, _METRICS, _SUSPENDED, _CONFLICT, _NOT_ENFORCED, _NO_PODS, _ALL_REJECTED)
GOOD: Final[Mapping[str, str]] = policy_conditions.good_statuses(_KINDS)
"""The status of each condition in a healthy policy."""


def _policy_conditions(state: PolicyState, facts: StatusFacts) -> Iterator[PolicyCondition]:
    policy = state.policy
    not_enforced = policy.not_enforced or facts.no_node_label
    reason, message = _not_ready(state, not_enforced)
    yield _READY.create(not reason, reason, message, "every rule applies")
    unfetched = _unfetched_text(state)
    yield _METRICS.create(not unfetched, "NeverFetched", unfetched, "every metric is available")
    held = ", ".join(_comparison_texts(state))
    text = f"more than half of the nodes lost their value at once; the last verdicts hold for {held}"
    yield _SUSPENDED.create(bool(held), "LostNodes", text, "no rule is suspended")
    conflict = facts.label_conflict
    yield _CONFLICT.create(bool(conflict), "OwnedElsewhere", conflict, "no other manager owns the labels")
    yield _NOT_ENFORCED.create(bool(not_enforced), "NotEnforced", not_enforced, "the policy is enforced")
    selects_none = _selected_pods(state, facts) == 0
    where = f" of namespace {policy.namespace}" if policy.namespace else ""
    text = f"the selectors match no pod{where}; pods of DaemonSets and of kube-system are never selected"
    yield _NO_PODS.create(selects_none, "NoPods", text, "the policy selects pods")
    rejecting = facts.rejecting_policies
    text = _rejecting_policies_text(rejecting)
    yield _ALL_REJECTED.create(
        bool(rejecting), "NoNodeLeft", text, "some node is left for every selected pod"
    )


def _selected_pods(state: PolicyState, facts: StatusFacts) -> int | None:
    """The number of pods; None for a policy that selects none, is not enforced, or while pods are not counted."""
    policy = state.policy
    return None if policy.selection is None or policy.not_enforced else facts.selected_pods


def _not_ready(state: PolicyState, not_enforced: str) -> tuple[str, str]:
    """Why the policy is not ready, as one word and as a message; empty if it is."""
    policy = state.policy
    candidates = (
        ("Invalid", "; ".join(map(str, policy.problems))),
        ("NotEnforced", not_enforced),
        ("BudgetExceeded", policy.over_budget),
        ("NotTrusted", policy.not_trusted),
        ("MetricsUnavailable", _unfetched_text(state)),
    )
    return next(((reason, message) for reason, message in candidates if message), ("", ""))


def _rejecting_policies_text(keys: tuple[PolicyKey, ...]) -> str:
    if len(keys) == 1:
        return "no node is left for the selected pods: the policy rejects every node"
    names = ", ".join(key.text() for key in keys[:_MAX_NAMED])
    more = f" and {len(keys) - _MAX_NAMED} more" if len(keys) > _MAX_NAMED else ""
    return f"no node is left for some selected pods: together, {names}{more} reject every node"


def _unfetched_text(state: PolicyState) -> str:
    """Which metrics are not available; empty if all are."""
    if not state.unfetched:
        return ""
    metrics = ", ".join(f"{key} ({cause})" if cause else key for key, cause in state.unfetched.items())
    return f"never fetched: {metrics}; rules of avoid with these metrics reject every node"


def _comparison_texts(state: PolicyState) -> Iterator[str]:
    kind = state.policy.key.kind
    return (policy_rejection_reasons.comparison_text(rule, kind) for rule in state.suspended)


def _rule_counts(state: PolicyState) -> Iterator[RuleCounts]:
    """The counts of each usable rule of `avoid`, and of each of its parts."""
    kind = state.policy.key.kind
    evaluated = {evaluation.rule: evaluation for evaluation in state.filter_rules}
    for number, rule in enumerate(state.policy.avoid):
        parts = [evaluated[part] for part in rule.parts if part in evaluated]
        if len(parts) < len(rule.parts):
            continue
        texts = [_comparison_text(part, kind) for part in rule.parts]
        place = f"avoid[{number}]"
        if len(parts) > 1:
            broken = np.logical_and.reduce([part.broken[:-1] for part in parts])
            expression = truncate(" and ".join(texts), _MAX_EXPRESSION)
            yield RuleCounts(place, expression, int(np.count_nonzero(broken)))
        places = [place] if len(parts) == 1 else [f"{place}.all[{part}]" for part in range(len(parts))]
        for part_place, part, text in zip(places, parts, texts, strict=True):
            yield _part_counts(part_place, part, text, state)


def _comparison_text(comparison: Comparison, kind: PolicyKind) -> str:
    """A comparison as its policy contains it, with its query: those who read the status can read the policy."""
    text = policy_rejection_reasons.comparison_text(comparison, kind)
    return text.replace(comparison.metric, comparison.query, 1) if comparison.query else text


def _part_counts(place: str, evaluation: RuleEvaluation, text: str, state: PolicyState) -> RuleCounts:
    return RuleCounts(
        place,
        truncate(text, _MAX_EXPRESSION),
        int(np.count_nonzero(evaluation.broken[:-1])),
        int(np.count_nonzero(evaluation.inputs.unknown[:-1])),
        evaluation.rule in state.suspended,
    )
