"""The status of a policy of any kind, its conditions, and the events of these conditions. No I/O.

The admission policies of `deploy/extender-pods.yaml` read `mode`.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Final, Literal, NamedTuple

import numpy as np
from msgspec.structs import replace

from nodewise.base import clock
from nodewise.base.errors import truncate
from nodewise.policies import hysteresis, policy_rejection_reasons, policy_status_fields
from nodewise.policies.hysteresis import FLAPPING
from nodewise.policies.placement_policy import AvoidRule, Comparison, PolicyKey, PolicyKind
from nodewise.policies.policy_objects import PolicyObject, StepBack, decode_status
from nodewise.policies.policy_status_fields import (
    ConditionKind,
    PlacementPolicyStatus,
    PolicyCondition,
    RuleCounts,
    StatusWithConditions,
)
from nodewise.policies.rule_evaluation import RuleEvaluation
from nodewise.policies.state import PolicyState

REJECTS_EVERY_NODE: Final = "no node is left for the selected pods: the policy rejects every node"
"""The message of the condition AllNodesRejected of a policy that rejects every node without others."""
_MAX_NAMED: Final = 5
"""Policies or nodes that a message names."""
_MAX_SUGGESTED_FOR_S: Final = 1800.0
"""A longer `for` would let pods start on a bad node for too long."""


class StatusFacts(NamedTuple):
    """What a status contains in addition to the evaluated policy."""

    generation: int = 0
    label_conflict: str = ""
    """Which node labels belong to another owner; empty for none."""
    selected_pods: int | None = None
    """None if pods have not been counted."""
    canary_pods: int | None = None
    """The selected pods that are part of a canary by labels. None if pods have not been counted."""
    rejecting_policies: tuple[PolicyKey, ...] = ()
    """The policies that together reject every node for some pods of this policy, if there are such pods."""
    no_node_label: str = ""
    """Why native mode does not enforce the policy; empty if it does, or is not used."""
    step_back: StepBack | None = None
    """Set while the policy has stepped back by its guard."""
    label_refusal: str = ""
    """Which nodes refuse the label of native mode, and why; empty for none."""
    uncovered_pod: str = ""
    """A pod to which native mode does not apply the policy, which selects it; empty if none is known."""


def desired_placement_policy_status(
    state: PolicyState, facts: StatusFacts, before: PlacementPolicyStatus, now: str
) -> PlacementPolicyStatus:
    """The complete status; `now` is RFC 3339."""
    policy, now_s = state.policy, clock.parse_rfc3339(now)
    conditions = policy_status_fields.update_conditions(
        _policy_conditions(state, facts, now_s), _KINDS, before.conditions_by_type(), facts.generation, now
    )
    return PlacementPolicyStatus(
        conditions,
        facts.generation,
        "NotEnforced" if policy.not_enforced else "Shadow" if facts.step_back else policy.mode,
        _selected_pods(state, facts),
        None if state.verdict is None else int(np.count_nonzero(state.verdict.codes[:-1])),
        tuple(_rule_counts(state, now_s)),
        stepped_back=facts.step_back,
    )


_READY: Final = ConditionKind("Ready", "True", is_always_set=True)
_METRICS: Final = ConditionKind("MetricsAvailable", "True", is_always_set=True)
_SUSPENDED: Final = ConditionKind("Suspended", "False")
_CONFLICT: Final = ConditionKind("LabelConflict", "False")
_NOT_ENFORCED: Final = ConditionKind("NotEnforced", "False")
_NO_PODS: Final = ConditionKind("NoPodsSelected", "False")
_NO_CANARY_PODS: Final = ConditionKind("NoCanaryPods", "False")
_STEPPED_BACK: Final = ConditionKind("SteppedBack", "False")
_ALL_REJECTED: Final = ConditionKind("AllNodesRejected", "False")
_NOT_COVERED: Final = ConditionKind("PodsNotCovered", "False")
_FLAPPING: Final = ConditionKind("Flapping", "False")
_LABEL_REFUSED: Final = ConditionKind("LabelRefused", "False")
_WITHOUT_VALUES: Final = ConditionKind("NodesWithoutValues", "False")
_INCOMPLETE: Final = ConditionKind("IncompleteAnswers", "False")
_SPARSE_SAMPLES: Final = ConditionKind("SamplesTooSparse", "False")
_KINDS: Final = (
    _READY,
    _METRICS,
    _SUSPENDED,
    _CONFLICT,
    _NOT_ENFORCED,
    _NO_PODS,
    _NO_CANARY_PODS,
    _STEPPED_BACK,
    _ALL_REJECTED,
    _NOT_COVERED,
    _FLAPPING,
    _LABEL_REFUSED,
    _WITHOUT_VALUES,
    _INCOMPLETE,
    _SPARSE_SAMPLES,
)
GOOD_STATUSES: Final[Mapping[str, str]] = policy_status_fields.good_statuses(_KINDS)
"""The status of each condition in a healthy policy."""


def _policy_conditions(state: PolicyState, facts: StatusFacts, now_s: float) -> Iterator[PolicyCondition]:
    policy = state.policy
    not_enforced = policy.not_enforced or facts.no_node_label
    reason, message = _not_ready(state, not_enforced, facts.label_refusal)
    yield _READY.create(not reason, reason, message, "every rule applies")
    unfetched = _unfetched_text(state)
    missing_reason = policy_status_fields.missing_metrics_reason(state.unfetched)
    yield _METRICS.create(not unfetched, missing_reason, unfetched, "every metric is available")
    held = ", ".join(
        policy_rejection_reasons.comparison_text(rule, policy.key.kind) for rule in state.suspended
    )
    text = policy_status_fields.suspension_text(held, state.lost)
    yield _SUSPENDED.create(bool(held), "LostNodes", text, "no rule is suspended")
    conflict = facts.label_conflict
    yield _CONFLICT.create(bool(conflict), "OwnedElsewhere", conflict, "no other manager owns the labels")
    yield _NOT_ENFORCED.create(bool(not_enforced), "NotEnforced", not_enforced, "the policy is enforced")
    selects_none = _selected_pods(state, facts) == 0
    where = f" of namespace {policy.namespace}" if policy.namespace else ""
    text = f"the selectors match no pod{where}; pods of DaemonSets and of kube-system are never selected"
    yield _NO_PODS.create(selects_none, "NoPods", text, "the policy selects pods")
    has_canary = policy.mode == "Canary" and policy.canary is not None and policy.canary.pods is not None
    is_empty = has_canary and facts.canary_pods == 0 and not selects_none
    text = "canary.podSelector matches none of the selected pods, so the policy has no effect"
    yield _NO_CANARY_PODS.create(is_empty, "NoCanaryPods", text, "the canary has pods")
    text = f"{facts.step_back.message}; it only observes now" if facts.step_back else ""
    yield _STEPPED_BACK.create(bool(text), "GuardExceeded", text, "no limit of the guard is exceeded")
    rejecting = facts.rejecting_policies
    text = _rejecting_policies_text(rejecting)
    yield _ALL_REJECTED.create(
        bool(rejecting), "NoNodeLeft", text, "some node is left for every selected pod"
    )
    text = (
        f"native mode does not apply the policy to pods such as {facts.uncovered_pod}, which do not require its node"
        " label: create them again, and run nodewise doctor if new pods lack it, too"
    )
    covered = "the selected pods that were last seen without a node require the node label"
    yield _NOT_COVERED.create(bool(facts.uncovered_pod), "NoRequirement", text, covered)
    flapping = _flapping_text(state, now_s)
    yield _FLAPPING.create(bool(flapping), "NodesFlap", flapping, "no rule rejects nodes again and again")
    text = policy_status_fields.nodes_without_values_text(state.without_values)
    yield _WITHOUT_VALUES.create(
        bool(text), "NoValueOnNodes", text, "no node passes a rule for lack of a value"
    )
    text = policy_status_fields.incomplete_answers_text(state.incomplete)
    yield _INCOMPLETE.create(bool(text), "IncompleteAnswer", text, "every response is complete")
    text = policy_status_fields.sparse_samples_text(state.sparse_samples)
    good = "values count for longer than the distance of samples"
    yield _SPARSE_SAMPLES.create(bool(text), "DistanceNearMaxAge", text, good)
    refusal = facts.label_refusal
    yield _LABEL_REFUSED.create(bool(refusal), "NodeRefusesLabel", refusal, "no node refuses the node label")


def _selected_pods(state: PolicyState, facts: StatusFacts) -> int | None:
    """The number of pods; None for a policy that selects none, is not enforced, or while pods are not counted."""
    policy = state.policy
    return None if policy.selection is None or policy.not_enforced else facts.selected_pods


def _not_ready(state: PolicyState, not_enforced: str, label_refusal: str) -> tuple[str, str]:
    """Why the policy is not ready, as one word and as a message; empty if it is."""
    policy = state.policy
    candidates = (
        ("Invalid", "; ".join(map(str, policy.problems))),
        ("NotEnforced", not_enforced),
        ("BudgetExceeded", policy.over_budget),
        ("NotTrusted", policy.not_trusted),
        ("MetricsUnavailable", _unfetched_text(state)),
        ("LabelRefused", label_refusal),
    )
    return next(((reason, message) for reason, message in candidates if message), ("", ""))


def _rejecting_policies_text(keys: tuple[PolicyKey, ...]) -> str:
    if len(keys) == 1:
        return REJECTS_EVERY_NODE
    names = ", ".join(key.text() for key in keys[:_MAX_NAMED])
    more = f" and {len(keys) - _MAX_NAMED} more" if len(keys) > _MAX_NAMED else ""
    return f"no node is left for some selected pods: together, {names}{more} reject every node"


def _unfetched_text(state: PolicyState) -> str:
    """Which metrics are not available; empty if all are."""
    return policy_status_fields.missing_metrics_text(state.unfetched, policy_status_fields.RULES_REJECT)


def _flapping_text(state: PolicyState, now_s: float) -> str:
    """Which rules flap, with a remedy; empty if none does."""
    texts = []
    for number, (rule, verdict) in enumerate(zip(state.policy.avoid, state.rule_verdicts, strict=False)):
        flaps = verdict.flaps.recent(now_s)
        if len(flaps) < FLAPPING:
            continue
        nodes = sorted({flap.node for flap in flaps})
        more = f" and {len(nodes) - _MAX_NAMED} more" if len(nodes) > _MAX_NAMED else ""
        lasting = [flap.rejected_s for flap in flaps if not math.isnan(flap.rejected_s)]
        # with this `for`, none of these rejections would have happened
        for_s = rule.times.for_s + 60.0 * (math.floor(max(lasting, default=0.0) / 60) + 1)
        remedy = (
            f"for: {clock.format_duration(for_s)}" if for_s <= _MAX_SUGGESTED_FOR_S else "release or keepFor"
        )
        texts.append(
            f"avoid[{number}] rejected nodes again {len(flaps)} times in the last hour"
            f" ({', '.join(nodes[:_MAX_NAMED])}{more}); consider {remedy}"
        )
    return "; ".join(texts)


def _rule_counts(state: PolicyState, now_s: float) -> Iterator[RuleCounts]:
    """The counts of each usable rule, and of each of its parts."""
    evaluations = (*state.filter_rules, *state.label_rules)
    evaluated = {evaluation.rule: evaluation for evaluation in evaluations}
    yield from _avoid_counts(state, evaluated, now_s)
    preferences = {preference.evaluation.rule: preference for preference in state.preferences}
    for number, preference in enumerate(state.policy.prefer):
        if preference.source in preferences:
            evaluation = preferences[preference.source].evaluation
            order = "Ascending" if preference.source.operator == "below" else "Descending"
            name = preference.source.query or preference.source.metric_request().name
            text = truncate(f"{name} {order}", policy_status_fields.MAX_EXPRESSION)
            counts = _part_counts(f"prefer[{number}]", evaluation, text, state)
            yield replace(counts, nodes=None)
    for number, label_rule in enumerate(state.policy.node_labels):
        yield from _counts_of_parts(f"nodeLabels[{number}]", label_rule.parts, evaluated, state)


def _avoid_counts(
    state: PolicyState, evaluated: Mapping[Comparison, RuleEvaluation], now_s: float
) -> Iterator[RuleCounts]:
    """The counts of `avoid`, with the states of nodes, as many as fit."""
    space = hysteresis.MAX_NODES
    for number, rule in enumerate(state.policy.avoid):
        counts_of_rule = list(_counts_of_parts(f"avoid[{number}]", rule.parts, evaluated, state))
        if counts_of_rule and number < len(state.rule_verdicts):
            verdict = state.rule_verdicts[number]
            expression = policy_status_fields.rule_expression(rule, state.policy.key.kind)
            flaps = len(verdict.flaps.recent(now_s))
            whole = replace(counts_of_rule[0], expression=expression, flaps_per_hour=flaps)
            if verdict.states is not None:
                groups, unlisted = hysteresis.encode(verdict.states, verdict.nodes, space)
                space -= sum(len(group.nodes) for group in groups)
                whole = replace(whole, node_states=groups, unlisted_nodes=unlisted + verdict.unlisted)
            counts_of_rule[0] = whole
        yield from counts_of_rule


def _counts_of_parts(
    place: str,
    rule: tuple[Comparison, ...],
    evaluated: Mapping[Comparison, RuleEvaluation],
    state: PolicyState,
) -> Iterator[RuleCounts]:
    """The counts of a rule with these parts; none if a part cannot be evaluated."""
    kind = state.policy.key.kind
    parts = [evaluated[part] for part in rule if part in evaluated]
    if len(parts) < len(rule):
        return
    if len(parts) > 1:
        broken = np.logical_and.reduce([part.broken[:-1] for part in parts])
        expression = policy_status_fields.rule_expression(AvoidRule(rule), kind)
        yield RuleCounts(place, expression, int(np.count_nonzero(broken)))
    places = [place] if len(parts) == 1 else [f"{place}.all[{part}]" for part in range(len(parts))]
    for part_place, part in zip(places, parts, strict=True):
        text = policy_status_fields.comparison_expression(part.rule, kind)
        yield _part_counts(part_place, part, text, state)


def _part_counts(place: str, evaluation: RuleEvaluation, text: str, state: PolicyState) -> RuleCounts:
    return RuleCounts(
        place,
        text,
        int(np.count_nonzero(evaluation.broken[:-1])),
        int(np.count_nonzero(evaluation.inputs.unknown[:-1])),
        evaluation.rule in state.suspended,
    )


class PolicyStatus(StatusWithConditions, frozen=True):
    """The fields of a status that are written, and read back."""

    violating_nodes: int = 0
    missing_metrics: tuple[str, ...] = ()
    mode: str = ""
    """`Enforce` or `NotEnforced`; empty in the status of an earlier version."""


def desired_taspolicy_status(
    state: PolicyState,
    generation: int,
    conflict: str,
    before: PolicyStatus,
    now: str,
    *,
    no_node_label: str = "",
    label_refusal: str = "",
) -> PolicyStatus:
    """The complete status. `conflict` describes which labels belong to another owner; empty for none.

    `no_node_label` says why native mode does not enforce the policy; empty if it does, or is not used. `label_refusal`
    describes which nodes refuse its label.
    """
    conditions = policy_status_fields.update_conditions(
        _taspolicy_conditions(state, conflict, no_node_label, label_refusal),
        _TASPOLICY_KINDS,
        before.conditions_by_type(),
        generation,
        now,
    )
    not_enforced = bool(state.policy.not_enforced or no_node_label)
    return PolicyStatus(
        conditions,
        generation,
        count_violating_nodes(state),
        tuple(sorted(state.unfetched)),
        "NotEnforced" if not_enforced else "Enforce",
    )


_VALID: Final = ConditionKind("Valid", "True", is_always_set=True)
_FETCHED: Final = ConditionKind("MetricsFetched", "True", is_always_set=True)


_NOT_TRUSTED: Final = ConditionKind("NotTrusted", "False")
_OVER_BUDGET: Final = ConditionKind("BudgetExceeded", "False")


_TASPOLICY_KINDS: Final = (
    _VALID,
    _FETCHED,
    _SUSPENDED,
    _CONFLICT,
    _NOT_TRUSTED,
    _OVER_BUDGET,
    _NOT_ENFORCED,
    _LABEL_REFUSED,
    _WITHOUT_VALUES,
    _INCOMPLETE,
    _SPARSE_SAMPLES,
)
GOOD_TASPOLICY_STATUSES: Final[Mapping[str, str]] = policy_status_fields.good_statuses(_TASPOLICY_KINDS)
"""The status of each condition in a healthy policy."""


def _taspolicy_conditions(
    state: PolicyState, conflict: str, no_node_label: str, label_refusal: str
) -> Iterator[PolicyCondition]:
    problems = "; ".join(map(str, state.policy.problems))
    yield _VALID.create(not problems, "FieldProblem", problems, "every field can be used")
    text = policy_status_fields.missing_metrics_text(state.unfetched, policy_status_fields.NO_NODE_PASSES)
    reason = policy_status_fields.missing_metrics_reason(state.unfetched)
    yield _FETCHED.create(not text, reason, text, "every metric is available")
    held = ", ".join(
        policy_rejection_reasons.comparison_text(rule, state.policy.key.kind) for rule in state.suspended
    )
    text = policy_status_fields.suspension_text(held, state.lost)
    yield _SUSPENDED.create(bool(held), "LostNodes", text, "no rule is suspended")
    text = policy_status_fields.nodes_without_values_text(state.without_values, "when_missing is reject")
    yield _WITHOUT_VALUES.create(
        bool(text), "NoValueOnNodes", text, "no node passes a rule for lack of a value"
    )
    text = policy_status_fields.incomplete_answers_text(state.incomplete)
    yield _INCOMPLETE.create(bool(text), "IncompleteAnswer", text, "every response is complete")
    text = policy_status_fields.sparse_samples_text(state.sparse_samples, "max_age")
    good = "values count for longer than the distance of samples"
    yield _SPARSE_SAMPLES.create(bool(text), "DistanceNearMaxAge", text, good)
    yield _CONFLICT.create(bool(conflict), "OwnedElsewhere", conflict, "no other manager owns the labels")
    not_trusted = state.policy.not_trusted
    text = "the policy needs no trust that its namespace lacks"
    yield _NOT_TRUSTED.create(bool(not_trusted), "NamespaceNotTrusted", not_trusted, text)
    over_budget = state.policy.over_budget
    text = "the policy is within the budgets of its namespace"
    yield _OVER_BUDGET.create(bool(over_budget), "NamespaceBudget", over_budget, text)
    text = "the policy is enforced"
    yield _NOT_ENFORCED.create(bool(no_node_label), "NotEnforced", no_node_label, text)
    text = "no node refuses the node label"
    yield _LABEL_REFUSED.create(bool(label_refusal), "NodeRefusesLabel", label_refusal, text)


def count_violating_nodes(state: PolicyState) -> int:
    """The number of nodes that the policy rejects or labels."""
    masks = [] if state.verdict is None else [state.verdict.codes[:-1] > 0]
    masks += [column.codes[:-1] > 0 for column in state.labels]
    return int(np.any(masks, axis=0).sum()) if masks else 0


Status = PolicyStatus | PlacementPolicyStatus


class ConditionEvent(NamedTuple):
    """An event of a policy: a condition that became bad or good."""

    kind: Literal["Warning", "Normal"]
    reason: str
    condition: PolicyCondition


def status_of(kind: PolicyKind, policy_object: PolicyObject) -> Status:
    """The status that a policy has; an empty one if it has none."""
    if kind == "TASPolicy":
        return decode_status(policy_object, PolicyStatus)
    return decode_status(policy_object, PlacementPolicyStatus)


def desired_status(state: PolicyState, facts: StatusFacts, before: Status, now: str) -> Status:
    """The complete status, given the one before."""
    if isinstance(before, PolicyStatus):
        return desired_taspolicy_status(
            state,
            facts.generation,
            facts.label_conflict,
            before,
            now,
            no_node_label=facts.no_node_label,
            label_refusal=facts.label_refusal,
        )
    return desired_placement_policy_status(state, facts, before, now)


def condition_events(before: Status, wanted: Status) -> Iterator[ConditionEvent]:
    """An event for each condition that became bad, or good again, or is bad for another reason."""
    known = before.conditions_by_type()
    is_taspolicy = isinstance(wanted, PolicyStatus)
    good_statuses = GOOD_TASPOLICY_STATUSES if is_taspolicy else GOOD_STATUSES
    for condition in wanted.conditions:
        old = known.get(condition.type)
        good = good_statuses[condition.type]
        if condition.status != good and (
            old is None or old.status == good or old.message != condition.message
        ):
            yield ConditionEvent("Warning", condition.reason, condition)
        elif condition.status == good and old is not None and old.status != good:
            yield ConditionEvent("Normal", "AllWell", condition)
