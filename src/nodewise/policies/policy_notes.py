"""The notes of `policy lint`: parts of a valid policy that have no effect, or another one than it seems. No I/O."""

from collections.abc import Iterable, Iterator

from nodewise.base import clock
from nodewise.base.errors import Problem
from nodewise.policies.placement_policy import Canary, Guard, LabelSelector, Policy, Requirement


def effect_notes(policy: Policy, sync_period_s: float) -> Iterator[Problem]:
    """The notes about a policy without problems. `sync_period_s` is the time between two values of a metric."""
    for number, rule in enumerate(policy.avoid):
        for field, time_s in zip(("for", "keepFor"), rule.times, strict=True):
            if 0 < time_s < sync_period_s:
                period = clock.format_duration(sync_period_s)
                expected = (
                    f"at least {period}, the default refresh period: states change with new values only"
                )
                yield Problem(f"spec.avoid[{number}].{field}", clock.format_duration(time_s), expected)
    if policy.canary is not None:
        yield from _canary_notes(policy, policy.canary)
    if policy.guard is not None:
        yield from _guard_notes(policy, policy.guard)


def _canary_notes(policy: Policy, canary: Canary) -> Iterator[Problem]:
    if canary.pods is None:
        expected = "podSelector in native mode, which has no canary by percent; the extender has it"
        yield Problem("spec.canary.percent", str(canary.percent), expected)
    elif policy.selection is not None and is_contradictory([policy.selection.pods, canary.pods]):
        expected = "labels that pods of spec.podSelector can have"
        yield Problem("spec.canary.podSelector", "no pod of spec.podSelector", expected)


def _guard_notes(policy: Policy, guard: Guard) -> Iterator[Problem]:
    if guard.max_waiting_pods is None:
        return
    if policy.only_prefers:
        expected = "maxRejectedShare; no pod waits because of a policy with enforcement Preferred"
        yield Problem("spec.guard.maxWaitingPods", str(guard.max_waiting_pods), expected)
    elif policy.key.kind == "ClusterPlacementPolicy" and not guard.max_rejected_share:
        expected = "maxRejectedShare as well; pods of the namespace in which most of them wait do not count"
        yield Problem("spec.guard.maxWaitingPods", str(guard.max_waiting_pods), expected)


def is_contradictory(selectors: Iterable[LabelSelector]) -> bool:
    """Whether no labels can meet all of these selectors."""
    requirements = [each for selector in selectors for each in selector.requirements]
    keys = dict.fromkeys(each.key for each in requirements)
    return any(_contradicts([each for each in requirements if each.key == key]) for key in keys)


def _contradicts(requirements: list[Requirement]) -> bool:
    """Whether no value of one label, nor its absence, meets all requirements for it."""
    key = requirements[0].key
    values = {value for each in requirements for value in each.values}
    # any value that none of them names stands for all others
    other = "".join(values) + "x"
    candidates = [{}, *({key: value} for value in (*values, other))]
    return not any(all(each.is_met(labels) for each in requirements) for labels in candidates)
