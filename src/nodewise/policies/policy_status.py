"""The status of a policy of any kind, its conditions, and the events of these conditions. No I/O.

The admission policies of `deploy/extender-pods.yaml` read `mode`.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

import numpy as np
from msgspec.structs import replace

from nodewise.base import clock
from nodewise.base.errors import list_first, truncate
from nodewise.policies import hysteresis, policy_rejection_reasons, policy_status_fields, shard_reports
from nodewise.policies.device_taints import DeviceReport
from nodewise.policies.hysteresis import FLAPPING
from nodewise.policies.placement_policy import (
    AvoidRule,
    Comparison,
    DeviceRule,
    LabelRule,
    Policy,
    PolicyKey,
    PolicyKind,
)
from nodewise.policies.policy_objects import PolicyObject, StepBack, decode_status
from nodewise.policies.policy_status_fields import (
    NO_NODE_PASSES,
    RULES_REJECT,
    PlacementPolicyStatus,
    PolicyCondition,
    PolicyStatus,
    RuleCounts,
)
from nodewise.policies.rule_evaluation import RuleEvaluation
from nodewise.policies.shard_reports import PolicyShardReport
from nodewise.policies.state import PolicyState

AS_EXPECTED: Final = "AsExpected"
"""The reason of a condition with a good status, and of the event when it becomes good again."""
Status = PolicyStatus | PlacementPolicyStatus

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
    gated_pods: str = ""
    """Why new pods get a scheduling gate that nothing removes; empty if they do not."""
    unknown: frozenset[str] = frozenset()
    """The types of conditions about which a new leader knows nothing yet. They stay as they are."""
    others: tuple[PolicyShardReport, ...] = ()
    """The policy on the nodes of other replicas, with shards."""
    devices: DeviceReport | None = None
    """None for a policy without device rules, and while they have not been evaluated."""


class ConditionKind(NamedTuple):
    """A type of condition."""

    type: str
    good: Literal["True", "False"]
    """Its status in a healthy policy."""
    reason: str
    """The reason of the other status; empty if it depends on the cause."""
    good_message: str
    is_always_set: bool = False
    """Whether every policy has it. Others are omitted until they were bad once."""


_SUSPENDED: Final = ConditionKind("Suspended", "False", "LostNodes", "no rule is suspended")
_CONFLICT: Final = ConditionKind(
    "LabelConflict", "False", "OwnedElsewhere", "no other manager owns the labels"
)
_NOT_ENFORCED: Final = ConditionKind("NotEnforced", "False", "NotEnforced", "the policy is enforced")
_WITHOUT_VALUES: Final = ConditionKind(
    "NodesWithoutValues", "False", "NoValueOnNodes", "no node passes a rule for lack of a value"
)
_INCOMPLETE: Final = ConditionKind(
    "IncompleteAnswers", "False", "IncompleteAnswer", "every response is complete"
)
_SPARSE_SAMPLES: Final = ConditionKind(
    "SamplesTooSparse",
    "False",
    "DistanceNearMaxAge",
    "values count for longer than the distance of samples",
)
_LABEL_REFUSED: Final = ConditionKind(
    "LabelRefused", "False", "NodeRefusesLabel", "no node refuses the node label"
)
_DEVICES_REFUSED: Final = ConditionKind(
    "DeviceTaintsRefused", "False", "CannotWrite", "the DeviceTaintRules of the policy can be written"
)
_PODS_GATED: Final = ConditionKind(
    "PodsGated", "False", "NativeModeOff", "native mode is on, or its admission policies are not installed"
)
CONDITIONS: Final = (
    ConditionKind("Ready", "True", "", "every rule applies", is_always_set=True),
    ConditionKind("MetricsAvailable", "True", "", "every metric is available", is_always_set=True),
    _SUSPENDED,
    _CONFLICT,
    _NOT_ENFORCED,
    ConditionKind("NoPodsSelected", "False", "NoPods", "the policy selects pods"),
    ConditionKind("NoCanaryPods", "False", "NoCanaryPods", "the canary has pods"),
    ConditionKind("SteppedBack", "False", "GuardExceeded", "no limit of the guard is exceeded"),
    ConditionKind("AllNodesRejected", "False", "NoNodeLeft", "some node is left for every selected pod"),
    ConditionKind(
        "PodsNotCovered",
        "False",
        "NoRequirement",
        "the selected pods that were last seen without a node require the node label",
    ),
    ConditionKind("Flapping", "False", "NodesFlap", "no rule rejects nodes again and again"),
    _WITHOUT_VALUES,
    _INCOMPLETE,
    _SPARSE_SAMPLES,
    _LABEL_REFUSED,
    _PODS_GATED,
    ConditionKind(
        "DevicesUnmatched", "False", "NoSuchDevice", "every series of a device is that of a device"
    ),
    ConditionKind(
        "DeviceLimitReached", "False", "MaxTaintedShare", "no rule meets more devices than it may taint"
    ),
    _DEVICES_REFUSED,
)
"""The conditions of a PlacementPolicy or ClusterPlacementPolicy."""
TASPOLICY_CONDITIONS: Final = (
    ConditionKind("Valid", "True", "FieldProblem", "every field can be used", is_always_set=True),
    ConditionKind("MetricsFetched", "True", "", "every metric is available", is_always_set=True),
    _SUSPENDED,
    _WITHOUT_VALUES,
    _INCOMPLETE,
    _SPARSE_SAMPLES,
    _CONFLICT,
    ConditionKind(
        "NotTrusted",
        "False",
        "NamespaceNotTrusted",
        "the policy needs no trust that its namespace lacks",
    ),
    ConditionKind(
        "BudgetExceeded",
        "False",
        "NamespaceBudget",
        "the policy is within the budgets of its namespace",
    ),
    _NOT_ENFORCED,
    _LABEL_REFUSED,
    _PODS_GATED,
)
NOT_READY: Final = {
    "Invalid": "Valid",
    "NotEnforced": "NotEnforced",
    "BudgetExceeded": "BudgetExceeded",
    "NotTrusted": "NotTrusted",
    "SteppedBack": "SteppedBack",
    "MetricsUnavailable": "MetricsAvailable",
    "LabelRefused": "LabelRefused",
    "PodsGated": "PodsGated",
    "DeviceTaintsRefused": "DeviceTaintsRefused",
    "NoSuchDevice": "NoSuchDevice",
}
"""The reasons of the condition Ready, most important first, each with the condition whose message it has."""
GOOD_STATUSES: Final[Mapping[str, str]] = {kind.type: kind.good for kind in CONDITIONS}
"""The status of each condition in a healthy PlacementPolicy or ClusterPlacementPolicy."""


_BY_NODES: Final = (
    "MetricsAvailable",
    "MetricsFetched",
    "Suspended",
    "LabelConflict",
    "Flapping",
    "NodesWithoutValues",
    "IncompleteAnswers",
    "SamplesTooSparse",
)
"""The types of conditions that a replica with shards finds out for its nodes."""


def create_report(state: PolicyState, facts: StatusFacts, now: str) -> PolicyShardReport:
    """The policy on the nodes of this replica, for the leader; `now` is RFC 3339."""
    now_s = clock.parse_rfc3339(now)
    messages = _condition_messages(state, facts, "", now_s)
    return PolicyShardReport(
        generation=facts.generation,
        awaits_metrics=state.awaits_metrics,
        messages={kind: messages[kind] for kind in _BY_NODES if messages[kind]},
        unavailability=_unavailability_reason(state),
        missing_metrics=tuple(sorted(state.unfetched)),
        violating_nodes=count_violating_nodes(state),
        rejected_nodes=_count_rejected_nodes(state),
        rules=tuple(replace(counts, expression="") for counts in _rule_counts(state, now_s)),
    )


def status_of(kind: PolicyKind, policy_object: PolicyObject) -> Status:
    """The status that a policy has; an empty one if it has none."""
    if kind == "TASPolicy":
        return decode_status(policy_object, PolicyStatus)
    return decode_status(policy_object, PlacementPolicyStatus)


def rules_of_status(policy_object: PolicyObject) -> tuple[RuleCounts, ...]:
    """The rules in the status of a PlacementPolicy or ClusterPlacementPolicy."""
    return decode_status(policy_object, PlacementPolicyStatus).rules


def desired_status(  # complexity: one result of several parts
    state: PolicyState, facts: StatusFacts, before: Status, now: str
) -> Status:
    """The complete status after the one before; `now` is RFC 3339."""
    policy = state.policy
    not_enforced = policy.not_enforced or facts.no_node_label
    messages = _condition_messages(state, facts, not_enforced, clock.parse_rfc3339(now))
    _add_messages(messages, facts, before)
    if isinstance(before, PolicyStatus):
        reason = policy_status_fields.missing_metrics_reason(state.unfetched)
        reasons = {"MetricsFetched": reason or _unavailability_elsewhere(facts)}
        missing = chain(state.unfetched, *(other.missing_metrics for other in facts.others))
        return PolicyStatus(
            _conditions(TASPOLICY_CONDITIONS, messages, reasons, before, facts.generation, now),
            facts.generation,
            shard_reports.add(count_violating_nodes(state), facts.others, "violating_nodes"),
            tuple(sorted(set(missing))),
            "NotEnforced" if messages["NotEnforced"] else "Enforce",
        )
    not_ready = next((reason for reason, kind in NOT_READY.items() if messages[kind]), "")
    messages["Ready"] = _not_ready_message(not_ready, state, messages)
    unavailability = _unavailability_reason(state) or _unavailability_elsewhere(facts)
    reasons = {"Ready": not_ready, "MetricsAvailable": unavailability}
    notes = _notes_when_ready(policy, messages)
    rules = list(_rule_counts(state, clock.parse_rfc3339(now)))
    tainted, would_taint, device_rules = _device_fields(policy, facts, before)
    return PlacementPolicyStatus(
        _conditions(CONDITIONS, messages, reasons, before, facts.generation, now, notes),
        facts.generation,
        "NotEnforced" if policy.not_enforced else "Shadow" if facts.step_back else policy.mode,
        _selected_pods(state, facts),
        _rejected_nodes_of_all(state, facts),
        tainted,
        would_taint,
        (*shard_reports.add_rule_counts(rules, facts.others), *device_rules),
        stepped_back=facts.step_back,
    )


def _device_fields(
    policy: Policy, facts: StatusFacts, before: PlacementPolicyStatus
) -> tuple[int | None, int | None, tuple[RuleCounts, ...]]:
    """How many devices are and would be tainted, and the device rules; those of before until they are evaluated."""
    if facts.devices is not None and facts.devices.tainted is not None:
        # of a policy without device rules, the number tells a new leader that it must look for DeviceTaintRules
        return (
            facts.devices.tainted if policy.device_taints else facts.devices.tainted or None,
            facts.devices.would_taint,
            facts.devices.rules,
        )
    rules = (rule for rule in before.rules if policy.device_taints and rule.devices is not None)
    would_taint = before.would_taint_devices if policy.device_taints else None
    return before.tainted_devices, would_taint, tuple(rules)


def _add_messages(messages: dict[str, str], facts: StatusFacts, before: Status) -> None:
    """Add the messages of other replicas, and those of conditions about which nothing is known yet."""
    for other in facts.others:
        messages |= {kind: messages[kind] or message for kind, message in other.messages.items()}
    messages |= {
        condition.type: messages[condition.type] or condition.message
        for condition in before.conditions
        if condition.type in facts.unknown and condition.status != "False"
    }
    ready = before.conditions_by_type().get("Ready")
    if ready is not None and ready.reason == "NoSuchDevice" and "DevicesUnmatched" in facts.unknown:
        messages["NoSuchDevice"] = ready.message


def _unavailability_reason(state: PolicyState) -> str:
    """The reason of the condition MetricsAvailable if it is False."""
    unfetched = policy_status_fields.missing_metrics_reason(state.unfetched)
    lost = _SUSPENDED.reason if state.suspended else ""
    return unfetched or lost or policy_status_fields.missing_metrics_reason(state.failing)


def _unavailability_elsewhere(facts: StatusFacts) -> str:
    """The reason of the condition MetricsAvailable on the nodes of another replica."""
    return next((other.unavailability for other in facts.others if other.unavailability), "")


def _notes_when_ready(policy: Policy, messages: Mapping[str, str]) -> Mapping[str, str]:
    """The message of the condition Ready of a policy that is ready, if it differs from the usual one: what else the
    conditions say.
    """
    notes = "; ".join(messages[kind.type] for kind in CONDITIONS if messages[kind.type])
    observes = "the policy only observes" if policy.is_shadow else ""
    return {"Ready": notes or observes} if notes or observes else {}


def _not_ready_message(reason: str, state: PolicyState, messages: Mapping[str, str]) -> str:
    """The message of the condition Ready with this reason; empty without one. It names what does not apply."""
    if not reason:
        return ""
    message = messages[NOT_READY[reason]]
    if reason == "SteppedBack":
        return f"the guard is exceeded: {message}"
    if reason != "MetricsUnavailable":
        return message
    places = [
        f"{place} ({text})"
        for place, part, text in _described_comparisons(state.policy)
        if part in state.suspended
        or (not part.unusable and part.metric_request().key in (*state.unfetched, *state.failing))
    ]
    more = f" and {len(places) - _MAX_NAMED} more rules" if len(places) > _MAX_NAMED else ""
    # without a place, the nodes of another replica lack values
    return f"{', '.join(places[:_MAX_NAMED])}{more}: {message}" if places else message


def _described_comparisons(policy: Policy) -> Iterator[tuple[str, Comparison, str]]:
    """Each comparison with the place of its rule in the spec, and its text."""
    sections: dict[str, Sequence[AvoidRule | LabelRule | DeviceRule]] = {
        "avoid": policy.avoid,
        "nodeLabels": policy.node_labels,
        "deviceTaints": policy.device_taints,
    }
    for section, rules in sections.items():
        for number, rule in enumerate(rules):
            for part in rule.parts:
                text = policy_status_fields.comparison_expression(part, policy.key.kind)
                yield f"{section}[{number}]", part, text
    for number, preference in enumerate(policy.prefer):
        source = preference.source
        yield f"prefer[{number}]", source, policy_status_fields.preference_expression(source)


def _conditions(
    kinds: Iterable[ConditionKind],
    messages: Mapping[str, str],
    reasons: Mapping[str, str],
    before: Status,
    generation: int,
    now: str,
    good_messages: Mapping[str, str] = MappingProxyType({}),
) -> list[PolicyCondition]:
    """The conditions to write, with messages and reasons of bad statuses by type; no message means a good status.
    `good_messages` are those of good statuses, by type, that differ from the usual ones.

    A condition whose status did not change keeps its time.
    """
    known = before.conditions_by_type()
    conditions = []
    for kind in kinds:
        message, old = messages[kind.type], known.get(kind.type)
        if not (message or old or kind.is_always_set):
            continue
        status = kind.good
        reason, text = AS_EXPECTED, good_messages.get(kind.type, kind.good_message)
        if message:
            status = "False" if kind.good == "True" else "True"
            reason = kind.reason or reasons[kind.type]
            text = message
        text = truncate(text, policy_status_fields.MAX_LENGTH)
        since = old.last_transition_time if old and old.status == status else now
        conditions.append(PolicyCondition(kind.type, status, reason, text, since or now, generation))
    return conditions


def _condition_messages(  # complexity: one entry for each condition
    state: PolicyState, facts: StatusFacts, not_enforced: str, now_s: float
) -> dict[str, str]:
    """The message of each condition of all kinds of policies, by type; empty for a good status."""
    policy, kind = state.policy, state.policy.key.kind
    is_taspolicy, devices = kind == "TASPolicy", facts.devices or DeviceReport()
    rejecting = RULES_REJECT * bool(policy.avoid)
    consequence = NO_NODE_PASSES if is_taspolicy else rejecting
    unfetched = policy_status_fields.missing_metrics_text(state.unfetched, consequence)
    held = ", ".join(policy_rejection_reasons.comparison_text(rule, kind) for rule in state.suspended)
    suspended = policy_status_fields.suspension_text(held, state.lost) if held else ""
    failing = policy_status_fields.failing_metrics_text(state.failing)
    problems = "; ".join(map(str, policy.problems))
    selects_none = _selected_pods(state, facts) == 0
    where = f" of namespace {policy.namespace}" if policy.namespace else ""
    no_pods = f"the selectors match no pod{where}; pods of DaemonSets and of kube-system are never selected"
    has_canary = policy.mode == "Canary" and policy.canary is not None and policy.canary.pods is not None
    no_canary_pods = "canary.podSelector matches none of the selected pods, so the policy has no effect"
    not_covered = (
        f"native mode does not apply the policy to pods such as {facts.uncovered_pod}, which do not require its node"
        " label: create them again, and run nodewise doctor if new pods lack it, too"
    )
    return {
        "Valid": problems,
        "MetricsAvailable": next(filter(None, (unfetched, suspended, failing)), ""),
        "MetricsFetched": unfetched,
        "Suspended": suspended,
        "LabelConflict": facts.label_conflict,
        "NotEnforced": not_enforced,
        "NotTrusted": policy.not_trusted,
        "BudgetExceeded": policy.over_budget,
        "NoPodsSelected": no_pods if selects_none else "",
        "NoCanaryPods": no_canary_pods if has_canary and facts.canary_pods == 0 and not selects_none else "",
        "SteppedBack": _step_back_text(policy, facts.step_back),
        "AllNodesRejected": _rejecting_policies_text(facts.rejecting_policies),
        "PodsNotCovered": not_covered if facts.uncovered_pod else "",
        "Flapping": "; ".join(filter(None, (_flapping_text(state, now_s), devices.flapping))),
        "NodesWithoutValues": policy_status_fields.nodes_without_values_text(
            state.without_values, "when_missing is reject" if is_taspolicy else "whenMissing is Reject"
        ),
        "IncompleteAnswers": policy_status_fields.incomplete_answers_text(state.incomplete),
        "SamplesTooSparse": policy_status_fields.sparse_samples_text(
            state.sparse_samples, "max_age" if is_taspolicy else "maxAge"
        ),
        "LabelRefused": facts.label_refusal,
        "PodsGated": facts.gated_pods,
        "DevicesUnmatched": devices.unmatched,
        "NoSuchDevice": devices.inapplicable,
        "DeviceLimitReached": devices.limited,
        "DeviceTaintsRefused": devices.refused,
    }


def _step_back_text(policy: Policy, step_back: StepBack | None) -> str:
    """The limit that was exceeded and what ends the step back; empty for none."""
    if step_back is None:
        return ""
    resumes = " or guard.resumeAfter has passed" if policy.guard and policy.guard.resume_after_s else ""
    return f"{step_back.message}; it only observes now, until its spec is edited{resumes}"


def _selected_pods(state: PolicyState, facts: StatusFacts) -> int | None:
    """The number of pods; None for a policy that selects none, is not enforced, or while pods are not counted."""
    policy = state.policy
    return None if policy.selection is None or policy.not_enforced else facts.selected_pods


def _count_rejected_nodes(state: PolicyState) -> int:
    return 0 if state.verdict is None else int(np.count_nonzero(state.verdict.codes[:-1]))


def _rejected_nodes_of_all(state: PolicyState, facts: StatusFacts) -> int | None:
    """How many nodes the policy rejects, also of other replicas; None if it rejects none by its rules."""
    if state.verdict is None:
        return None
    return shard_reports.add(_count_rejected_nodes(state), facts.others, "rejected_nodes")


def _rejecting_policies_text(keys: tuple[PolicyKey, ...]) -> str:
    """Which policies together reject every node; empty for none."""
    if len(keys) < 2:  # noqa: PLR2004 - a policy alone
        return REJECTS_EVERY_NODE if keys else ""
    names = list_first([key.text() for key in keys], _MAX_NAMED)
    return f"no node is left for some selected pods: together, {names} reject every node"


def _flapping_text(state: PolicyState, now_s: float) -> str:
    """Which rules flap, with a remedy; empty if none does."""
    texts = []
    for number, (rule, verdict) in enumerate(zip(state.policy.avoid, state.rule_verdicts, strict=False)):
        flaps = verdict.flaps.recent(now_s)
        if len(flaps) < FLAPPING:
            continue
        nodes = list_first(sorted({flap.node for flap in flaps}), _MAX_NAMED)
        lasting = [flap.rejected_s for flap in flaps if not math.isnan(flap.rejected_s)]
        # with this `for`, none of these rejections would have happened
        for_s = rule.times.for_s + 60.0 * (math.floor(max(lasting, default=0.0) / 60) + 1)
        remedy = (
            f"for: {clock.format_duration(for_s)}" if for_s <= _MAX_SUGGESTED_FOR_S else "release or keepFor"
        )
        texts.append(
            f"avoid[{number}] rejected nodes again at least {FLAPPING} times in the last hour"
            f" ({nodes}); consider {remedy}"
        )
    return "; ".join(texts)


def _rule_counts(state: PolicyState, now_s: float) -> Iterator[RuleCounts]:
    """The counts of each usable rule, and of each of its parts."""
    preferences = {preference.evaluation.rule: preference.evaluation for preference in state.preferences}
    evaluations = (*state.filter_rules, *state.label_rules)
    evaluated = {evaluation.rule: evaluation for evaluation in evaluations}
    yield from _avoid_counts(state, evaluated, now_s)
    for number, preference in enumerate(state.policy.prefer):
        source = preference.source
        if source in preferences:
            text = policy_status_fields.preference_expression(source)
            yield replace(_part_counts(f"prefer[{number}]", preferences[source], text, state), nodes=None)
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


def count_violating_nodes(state: PolicyState) -> int:
    """The number of nodes that the policy rejects or labels."""
    masks = [] if state.verdict is None else [state.verdict.codes[:-1] > 0]
    masks += [column.codes[:-1] > 0 for column in state.labels]
    return int(np.any(masks, axis=0).sum()) if masks else 0


class ConditionEvent(NamedTuple):
    """An event of a policy: a condition that became bad or good."""

    kind: Literal["Warning", "Normal"]
    reason: str
    condition: PolicyCondition


def condition_events(before: Status, wanted: Status) -> Iterator[ConditionEvent]:
    """An event for each condition that became bad, or good again, or is bad for another reason."""
    known = before.conditions_by_type()
    good_statuses = {kind.type: kind.good for kind in (*CONDITIONS, *TASPOLICY_CONDITIONS)}
    for condition in wanted.conditions:
        old, good = known.get(condition.type), good_statuses[condition.type]
        if condition.status != good and (
            old is None or old.status == good or old.message != condition.message
        ):
            yield ConditionEvent("Warning", condition.reason, condition)
        elif condition.status == good and old is not None and old.status != good:
            yield ConditionEvent("Normal", AS_EXPECTED, condition)
