"""Small decisions in short notation: `decision(heat="81 70 -")` filters three nodes, the last without a value."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from nodewise.agent import COMPARISONS, Evidence, Joined, Names, PolicyRejections, Scores, ValueState, Verdict
from nodewise.base import clock, quantity
from nodewise.engine.decision import Decision, PodRef
from nodewise.engine.decision_json import StaticReason

AT = clock.parse_rfc3339("2026-11-21T10:00:00Z")
COUNT = 3000
_STATES = {"-": ValueState.MISSING, "!": ValueState.INVALID}


def evidence(
    metric: str, values: str, rule: str = "GreaterThan 80", *, rejects_missing: bool = False, group: int = -1
) -> Evidence:
    """The evidence of a rule with a value per node: `-` is missing, `!` invalid, `5~` stale. Values are 2.5 s old."""
    operator, target = rule.split()
    words = values.split()
    states = [ValueState.STALE if word[-1] == "~" else _STATES.get(word, ValueState.FRESH) for word in words]
    exact = [0 if word in _STATES else quantity.parse(word.rstrip("~")) for word in words]
    fits = all(abs(value) < 2**63 for value in exact)
    return Evidence(
        metric,
        operator,
        quantity.parse(target),
        np.array(exact, np.int64 if fits else object),
        np.array(states, np.uint8),
        np.array([np.nan if word in _STATES else 2.5 for word in words]),
        rejects_missing,
        group=group,
    )


def breaks(rule: Evidence) -> Any:
    """Which nodes a rule rejects. This is a second implementation of `counterfactuals.rejects`."""
    fresh = rule.states == ValueState.FRESH
    return (fresh & np.asarray(COMPARISONS[rule.operator](rule.values, rule.target), bool)) | (
        ~fresh & rule.rejects_missing
    )


def verdict(*rules: Evidence, joined: Joined | None = "any", advice: str = "") -> Verdict:
    """A verdict of these rules. The reason names the first violated rule, or all rules if `joined` is "all"."""
    masks = [breaks(rule) for rule in rules]
    texts = [
        f"policy d/pol: {rule.metric} {rule.operator} {quantity.nano_to_text(rule.target or 0)}"
        for rule in rules
    ]
    if joined == "all":
        codes = np.where(np.logical_and.reduce(masks), 1, 0)
        texts = [f"policy d/pol: {' and '.join(text.split(': ')[1] for text in texts)}"]
    else:
        codes = np.select(masks, range(1, len(masks) + 1), 0)
    reasons = tuple(StaticReason(text, advice=advice) for text in texts)
    return Verdict(codes.astype(np.int16), reasons, rules, joined)


def breaks_group(rules: Sequence[Evidence]) -> Any:
    """Which nodes rules of one policy reject: those that all rules of a group reject, or one rule without a group."""
    alone = [breaks(rule) for rule in rules if rule.group < 0]
    groups = {rule.group for rule in rules if rule.group >= 0}
    together = [
        np.logical_and.reduce([breaks(rule) for rule in rules if rule.group == group]) for group in groups
    ]
    return np.logical_or.reduce([*alone, *together])


def policies_verdict(
    *policies: tuple[str, Sequence[Evidence]],
    not_enforced: Mapping[str, str] = {},
    observing: Mapping[str, Sequence[bool]] = {},
) -> Verdict:
    """A verdict of several policies with their rules. The reason names the first policy that rejects the node.

    `not_enforced`: by policy, why it has no effect. `observing`: by policy, what it would reject.
    """
    evidence_ = tuple(replace(rule, policy=name) for name, rules in policies for rule in rules)
    parts = [PolicyRejections(name, breaks_group(rules), "any") for name, rules in policies]
    codes = np.select([part.rejected for part in parts], range(1, len(parts) + 1), 0)
    nothing = np.zeros(len(codes), bool)
    parts += [PolicyRejections(name, nothing, "any", why) for name, why in not_enforced.items()]
    parts += [
        PolicyRejections(name, nothing, would_reject=np.array(mask)) for name, mask in observing.items()
    ]
    reasons = tuple(StaticReason(f"{name} rejects it") for name, _ in policies)
    return Verdict(codes.astype(np.int16), reasons, evidence_, "any", policies=tuple(parts))


def of(*verdicts: tuple[str, Verdict], nodes: str = "", at: float = AT, verb: Any = "filter") -> Decision:
    """A decision with the verdicts of agents about the nodes n1, n2, …, unless `nodes` names others."""
    size = len(verdicts[0][1].codes) if verdicts else len(nodes.split())
    names = nodes.split() or [f"n{number}" for number in range(1, size + 1)]
    return Decision(verb, PodRef("d", "p", "u"), at, 7, Names.of(names), verdicts)


def decision(**values: str) -> Decision:
    """The decision of one agent that rejects nodes with a value above 80 of any metric."""
    return of(("telemetry", verdict(*(evidence(metric, value) for metric, value in values.items()))))


def large() -> Decision:
    """A decision about COUNT nodes, two thirds of which are rejected."""
    return decision(
        heat=" ".join(str(60 + 15 * (number % 3)) for number in range(COUNT)), dust="81 1 2 " * (COUNT // 3)
    )


class ShareDetails(NamedTuple):
    """Details with numbers; `share` differs by candidate."""

    shares: tuple[float, ...]

    nbytes = 0

    def text(self, candidate: int) -> str:
        return f"share {self.shares[candidate]}"

    def distances(self) -> Any:
        return np.zeros(len(self.shares))

    def numbers(self, candidate: int) -> Mapping[str, Any]:
        share = np.float64(self.shares[candidate])
        if share < 0:
            return {}
        return {
            "cpu": {"share": share, "limit": math.inf, "cores": np.arange(2)},
            "rank": np.int64(candidate),
        }


def prioritize_decision(*scores: tuple[str, Scores], nodes: str = "n1 n2", at: float = AT) -> Decision:
    """A prioritize decision."""
    return Decision("prioritize", PodRef("d", "p", "u"), at, 7, Names.of(nodes.split()), scores=scores)
