"""The status of a TASPolicy, with conditions in the standard form of Kubernetes (KEP-1623). No I/O."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from nodewise.agents.telemetry import policy_rejection_reasons
from nodewise.agents.telemetry.state import PolicyState
from nodewise.errors import UNREADABLE

_MAX_LENGTH: Final = 1024
"""Characters of a condition's message; longer messages are cut."""


class PolicyCondition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One condition. `last_transition_time` is when `status` last changed, RFC 3339."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class PolicyStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a status that are written, and read back."""

    conditions: list[PolicyCondition] = []
    observed_generation: int = 0
    violating_nodes: int = 0
    missing_metrics: list[str] = []

    def conditions_by_type(self) -> dict[str, PolicyCondition]:
        return {condition.type: condition for condition in self.conditions}


def parse_status(status: msgspec.Raw) -> PolicyStatus:
    """The status of an object; an empty one if it cannot be read."""
    try:
        return msgspec.json.decode(status, type=PolicyStatus | None) or PolicyStatus()
    except UNREADABLE:
        return PolicyStatus()


def desired_status(
    state: PolicyState, generation: int, conflict: str, before: PolicyStatus, now: str
) -> PolicyStatus:
    """The complete status. `conflict` describes which labels belong to another owner; empty for none.

    A condition whose status did not change keeps its time. Conditions that are optional and were never bad are omitted.
    """
    known = before.conditions_by_type()
    conditions = [
        _with_transition_time(condition, known.get(condition.type), generation, now)
        for condition in _policy_conditions(state, conflict)
        if condition.type in _ALWAYS or condition.status == "True" or condition.type in known
    ]
    return PolicyStatus(conditions, generation, count_violating_nodes(state), sorted(state.unfetched))


_ALWAYS: Final = ("Valid", "MetricsFetched")
GOOD: Final[Mapping[str, str]] = {
    "Valid": "True",
    "MetricsFetched": "True",
    "Suspended": "False",
    "LabelConflict": "False",
    "NotTrusted": "False",
    "BudgetExceeded": "False",
}
"""The status of each condition in a healthy policy."""


def _policy_conditions(state: PolicyState, conflict: str) -> Iterator[PolicyCondition]:
    problems = "; ".join(map(str, state.policy.problems))
    yield _make_condition("Valid", not problems, "FieldProblem", problems, "every field can be used")
    waits = ", ".join(f"{key} ({cause})" if cause else key for key, cause in state.unfetched.items())
    text = f"never fetched: {waits}; no node passes dontschedule until each of its metrics has a value"
    yield _make_condition("MetricsFetched", not waits, "NeverFetched", text, "every metric is available")
    held = ", ".join(
        policy_rejection_reasons.comparison_text(rule, state.policy.key.kind) for rule in state.suspended
    )
    text = f"more than half of the nodes lost their value at once; the last verdicts hold for {held}"
    yield _make_condition("Suspended", bool(held), "LostNodes", text if held else "", "no rule is suspended")
    yield _make_condition(
        "LabelConflict", bool(conflict), "OwnedElsewhere", conflict, "no other manager owns the labels"
    )
    not_trusted = state.policy.not_trusted
    text = "the policy needs no trust that its namespace lacks"
    yield _make_condition("NotTrusted", bool(not_trusted), "NamespaceNotTrusted", not_trusted, text)
    over_budget = state.policy.over_budget
    text = "the policy is within the budgets of its namespace"
    yield _make_condition("BudgetExceeded", bool(over_budget), "NamespaceBudget", over_budget, text)


def _make_condition(kind: str, is_true: bool, bad_reason: str, bad: str, good: str) -> PolicyCondition:
    status = "True" if is_true else "False"
    if GOOD[kind] == status:
        return PolicyCondition(kind, status, "AllWell", good)
    return PolicyCondition(
        kind, status, bad_reason, bad if len(bad) <= _MAX_LENGTH else f"{bad[: _MAX_LENGTH - 1]}…"
    )


def _with_transition_time(
    condition: PolicyCondition, before: PolicyCondition | None, generation: int, now: str
) -> PolicyCondition:
    kept = before.last_transition_time if before and before.status == condition.status else now
    return msgspec.structs.replace(
        condition, last_transition_time=kept or now, observed_generation=generation
    )


def count_violating_nodes(state: PolicyState) -> int:
    """The number of nodes that the policy rejects or labels for the descheduler."""
    masks = [] if state.verdict is None else [state.verdict.codes[:-1] > 0]
    masks += [column.codes[:-1] > 0 for column in state.labels if column.key == state.policy.name]
    return int(np.any(masks, axis=0).sum()) if masks else 0


def status_apply_body(
    api_version: str, kind: str, metadata: Mapping[str, Any], status: PolicyStatus
) -> dict[str, Any]:
    """The body of a server-side apply to the status, which owns these fields only."""
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "status": status}
