"""The lines about policies in an explanation: what each rejects, and what would have let more nodes pass."""

from collections.abc import Iterator
from typing import Final

from nodewise.base import quantity
from nodewise.engine.counterfactuals import PolicyRemoval
from nodewise.engine.scheduling_attempt_explanation import Explanation

_MAX_LISTED: Final = 3
_TASPOLICY_OPERATORS: Final = frozenset({"LessThan", "GreaterThan", "Equals"})
"""They tell the rules of a TASPolicy, whose fields have other names, from those of other kinds."""


def policy_lines(explanation: Explanation) -> Iterator[str]:
    """What each policy rejects, and whether only all of them together leave no node."""
    total = len(explanation.findings)
    yield from (_format_policy(policy, total) for policy in explanation.policies)
    yield from (f"{policy} ranks the nodes and rejects none" for policy in explanation.ranking_only)
    is_one_enough = any(policy.rejected == total for policy in explanation.policies)
    passes_none = not any(not node.reasons for node in explanation.findings)
    if explanation.is_rejected_by_several_policies and passes_none and not is_one_enough:
        yield "no policy alone rejects every node"


def _format_policy(policy: PolicyRemoval, total: int) -> str:
    """How many of `total` nodes a policy rejects, or why it rejects none."""
    if policy.not_enforced:
        return f"{policy.policy} selects the pod and is not enforced: {policy.not_enforced}"
    if policy.would_reject is not None:
        count = format_count(len(policy.would_reject), "node")
        names = ", ".join(policy.would_reject[:_MAX_LISTED]) + (
            ", …" if len(policy.would_reject) > _MAX_LISTED else ""
        )
        return f"{policy.policy} only observes the pod (its mode or guard): would have rejected {count}" + (
            f": {names}" if names else ""
        )
    if total == 1:
        return f"{policy.policy} {'rejects' if policy.rejected else 'does not reject'} it"
    many = "all" if policy.rejected == total else f"{policy.rejected:,}" if policy.rejected else "none"
    return f"{policy.policy} rejects {many} of the {total:,} nodes"


def change_lines(explanation: Explanation) -> Iterator[str]:
    """What would have let more nodes pass, and remedies, without duplicates."""
    lines = (
        *_needed_change_lines(explanation),
        *_removable_policy_lines(explanation),
        *_remedy_lines(explanation),
    )
    yield from dict.fromkeys(lines)


def _needed_change_lines(explanation: Explanation) -> Iterator[str]:
    for change in explanation.changes:
        rule = change.rule
        target = quantity.nano_to_text(rule.target or 0)
        where = f" in {rule.policy}" if explanation.is_rejected_by_several_policies and rule.policy else ""
        if change.relaxed:
            first, *rest = change.relaxed
            more = "".join(
                f", {relaxed.more:,} at {quantity.nano_to_text(relaxed.target)}" for relaxed in rest
            )
            yield (
                f"{rule.metric} {rule.operator}{where}: {_format_passing(first.more)} at "
                f"{quantity.nano_to_text(first.target)} instead of {target}{more}"
            )
        elif change.alone:
            yield f"without the rule {rule.metric} {rule.operator} {target}{where}: {_format_passing(change.alone)}"
        if change.unmeasured:
            setting = "when_missing: pass" if rule.operator in _TASPOLICY_OPERATORS else "whenMissing: Allow"
            yield f"{rule.metric}: {_format_passing(change.unmeasured)} with {setting} in the rule{where}"


def _removable_policy_lines(explanation: Explanation) -> Iterator[str]:
    """What would pass without one of several policies. Without the only one, all that it rejects would."""
    for policy in explanation.policies if explanation.is_rejected_by_several_policies else ():
        if policy.more:
            yield f"without {policy.policy}: {_format_passing(policy.more)}"


def _format_passing(more: int) -> str:
    return f"{format_count(more, 'more node')} {'passes' if more == 1 else 'pass'}"


def _remedy_lines(explanation: Explanation) -> Iterator[str]:
    for group in explanation.groups:
        if remedy := group.reason.remedy():
            yield f"{remedy} ({format_count(len(group.nodes), 'node')})"
    if explanation.held:
        yield "a rule lost most of its values at once, and its last verdicts stay in effect: restore its metric"
    if explanation.stuck:
        yield f"{format_count(explanation.stuck, 'node')} would need more than one of these changes"


def format_count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
