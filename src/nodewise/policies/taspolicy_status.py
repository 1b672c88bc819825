"""The status of a TASPolicy, with conditions in the standard form of Kubernetes (KEP-1623). No I/O."""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from nodewise.policies import policy_rejection_reasons, policy_status_fields
from nodewise.policies.policy_status_fields import ConditionKind, PolicyCondition, StatusWithConditions
from nodewise.policies.state import PolicyState


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
_SUSPENDED: Final = ConditionKind("Suspended", "False")
_CONFLICT: Final = ConditionKind("LabelConflict", "False")
_NOT_TRUSTED: Final = ConditionKind("NotTrusted", "False")
_OVER_BUDGET: Final = ConditionKind("BudgetExceeded", "False")
_NOT_ENFORCED: Final = ConditionKind("NotEnforced", "False")
_LABEL_REFUSED: Final = ConditionKind("LabelRefused", "False")
_WITHOUT_VALUES: Final = ConditionKind("NodesWithoutValues", "False")
_INCOMPLETE: Final = ConditionKind("IncompleteAnswers", "False")
_SPARSE_SAMPLES: Final = ConditionKind("SamplesTooSparse", "False")
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
