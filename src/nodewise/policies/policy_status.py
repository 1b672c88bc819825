"""The status of a policy of any kind, and the events of its conditions. No I/O."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from nodewise.policies import placement_policy_status, taspolicy_status
from nodewise.policies.placement_policy import PolicyKind
from nodewise.policies.placement_policy_status import StatusFacts
from nodewise.policies.policy_objects import PolicyObject, decode_status
from nodewise.policies.policy_status_fields import PlacementPolicyStatus, PolicyCondition
from nodewise.policies.state import PolicyState
from nodewise.policies.taspolicy_status import PolicyStatus

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
        return taspolicy_status.desired_taspolicy_status(
            state,
            facts.generation,
            facts.label_conflict,
            before,
            now,
            no_node_label=facts.no_node_label,
            label_refusal=facts.label_refusal,
        )
    return placement_policy_status.desired_placement_policy_status(state, facts, before, now)


def condition_events(before: Status, wanted: Status) -> Iterator[ConditionEvent]:
    """An event for each condition that became bad, or good again, or is bad for another reason."""
    known = before.conditions_by_type()
    is_taspolicy = isinstance(wanted, PolicyStatus)
    good_statuses = (
        taspolicy_status.GOOD_TASPOLICY_STATUSES if is_taspolicy else placement_policy_status.GOOD_STATUSES
    )
    for condition in wanted.conditions:
        old = known.get(condition.type)
        good = good_statuses[condition.type]
        if condition.status != good and (
            old is None or old.status == good or old.message != condition.message
        ):
            yield ConditionEvent("Warning", condition.reason, condition)
        elif condition.status == good and old is not None and old.status != good:
            yield ConditionEvent("Normal", "AllWell", condition)
