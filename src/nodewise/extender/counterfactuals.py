"""A decision made again with another rule, to tell what would have changed it. Rests on its evidence alone.

That is possible where a verdict follows from its evidence (`Verdict.joined`), and said of no other.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from nodewise.agent import COMPARISONS, Evidence, ValueState, Verdict
from nodewise.extender import counterfactual_targets
from nodewise.extender.decision import Decision

Mask = NDArray[np.bool_]
"""By candidate of a decision."""


class RelaxedTarget(NamedTuple):
    """With another target, so many more nodes pass, all else as it was."""

    target: int
    more: int


class RuleChange(NamedTuple):
    """What another rule would have changed, all else as it was."""

    agent: str
    number: int
    """Of the rule, among the agent's evidence."""
    rule: Evidence
    enough: bool
    """Whether a node has to break other rules too to be rejected, so that this one alone lets it pass."""
    relaxed: tuple[RelaxedTarget, ...]
    """From the nearest target to the one with which nobody is rejected for his value by this rule alone."""
    alone: int
    """Nodes that would pass if this rule rejected nobody for his value."""
    unmeasured: int
    """Nodes that would pass if this rule let those pass that have no fresh value."""


def rejects(rule: Evidence) -> Mask:
    """Which candidates this rule rejects by itself."""
    fresh = rule.states == ValueState.FRESH
    compare = COMPARISONS.get(rule.operator)
    if compare is None or rule.target is None:
        return np.zeros(len(fresh), bool)
    broken = np.asarray(compare(rule.values, rule.target), bool)
    rejected: Mask = (fresh & broken) | (~fresh & rule.rejects_missing)
    return rejected


def joined(verdict: Verdict) -> Mask:
    """Which candidates the evidence rejects, by the verdict's own word on how rules join."""
    masks = [rejects(rule) for rule in verdict.evidence]
    if not masks:
        return np.zeros(len(verdict.codes), bool)
    join = np.logical_and if verdict.joined == "all" else np.logical_or
    together: Mask = join.reduce(masks)
    return together


def follows(verdict: Verdict) -> bool:
    """Whether the verdict is what its evidence says. If not, nothing can be told from other targets."""
    return verdict.joined is not None and bool(np.array_equal(joined(verdict), verdict.codes != 0))


def passing_with(decision: Decision, agent: str, number: int, rule: Evidence) -> Mask:
    """Which candidates pass when one rule of an agent is another one: decided again, all else as it was."""
    kept = np.ones(len(decision.names), bool)
    for name, verdict in decision.verdicts:
        if name == agent:
            changed = (*verdict.evidence[:number], rule, *verdict.evidence[number + 1 :])
            kept &= ~joined(replace(verdict, evidence=changed))
        else:
            kept &= verdict.codes == 0
    return kept


def changes(decision: Decision) -> Iterator[RuleChange]:
    """For each rule that rejects, what it would take to let more nodes pass; only those that would change any."""
    for agent, verdict in decision.verdicts:
        if not follows(verdict):
            continue
        for number, rule in enumerate(verdict.evidence):
            change = _change(decision, agent, verdict, number)
            if rule.target is not None and (change.alone or change.unmeasured):
                yield change


def _change(decision: Decision, agent: str, verdict: Verdict, number: int) -> RuleChange:
    rule = verdict.evidence[number]
    out = ~decision.kept()

    def gained(changed: Evidence) -> Mask:
        return out & passing_with(decision, agent, number, changed)

    alone = gained(counterfactual_targets.without_effect(rule))
    values = rule.values[alone].tolist()
    target_by_gain: dict[int, int] = {}
    for target in counterfactual_targets.proposed(rule, values):
        more = int(gained(replace(rule, target=target)).sum())
        target_by_gain.setdefault(more, target)
    relaxed = tuple(RelaxedTarget(target, more) for more, target in sorted(target_by_gain.items()) if more)
    lenient = gained(replace(rule, rejects_missing=False))
    enough = verdict.joined == "all" and len(verdict.evidence) > 1
    return RuleChange(agent, number, rule, enough, relaxed, int(alone.sum()), int(lenient.sum()))


def stuck(decision: Decision) -> Mask:
    """Rejected candidates that no change of a single rule lets pass, as far as evidence tells."""
    rejected = ~decision.kept()
    for agent, verdict in decision.verdicts:
        if not follows(verdict):
            rejected &= verdict.codes == 0
            continue
        for number, rule in enumerate(verdict.evidence):
            harmless = replace(counterfactual_targets.without_effect(rule), rejects_missing=False)
            rejected &= ~passing_with(decision, agent, number, harmless)
    return rejected


def closeness(decision: Decision) -> NDArray[np.float64]:
    """How far each candidate is from passing: how many rules stand against it, and then how far its values are
    from their targets. 0 for one that passes.
    """
    far = np.zeros(len(decision.names))
    for _, verdict in decision.verdicts:
        far += np.where(verdict.codes != 0, _distance(verdict), 0.0)
    return far


def _distance(verdict: Verdict) -> NDArray[np.float64]:
    """Each rule counts from 1, for a value at its target, to 2, and so do details; without either it is 2."""
    if verdict.details is not None:
        nearly: NDArray[np.float64] = 1.0 + verdict.details.distances()
        return nearly
    if not verdict.evidence or not follows(verdict):
        return np.full(len(verdict.codes), 2.0)
    each = [np.where(rejects(rule), 1.0 + _excess(rule), 0.0) for rule in verdict.evidence]
    if verdict.joined == "all":
        nearest: NDArray[np.float64] = np.minimum.reduce(each)
        return nearest
    total: NDArray[np.float64] = np.add.reduce(each)
    return total


def _excess(rule: Evidence) -> NDArray[np.float64]:
    """How far each value is from the target, as a share of the target, pressed into 0 to 1; 1 without a value."""
    target = float(rule.target or 0)
    share = np.abs(rule.values.astype(np.float64) - target) / (abs(target) or 1e9)
    pressed: NDArray[np.float64] = np.where(rule.states == ValueState.FRESH, share / (1.0 + share), 1.0)
    return pressed
