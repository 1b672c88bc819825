"""Variants of a policy: each rule alone, and each rule with another threshold or missing-value behaviour. No I/O."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from nodewise.base import clock, quantity
from nodewise.metrics.prometheus.range_matrix import NodeMatrix
from nodewise.metrics.series import Values, ValueState
from nodewise.policies import rule_operators
from nodewise.policies.hysteresis import HoldTimes
from nodewise.policies.placement_policy import AvoidRule, Comparison, Policy

_SHARES: Final = (0.01, 0.05, 0.1)
"""The proposed thresholds are met by these shares of all values."""
_SIGNIFICANT_DIGITS: Final = 3
_TIMES_S: Final = (300.0, 900.0)
"""Proposed values of `for`; the last one also of `keepFor`."""
_CURVE_POINTS: Final = 101


class Variant(NamedTuple):
    """A policy with one rule changed, or with one rule only."""

    rule: int
    """The position of the rule in `avoid`."""
    change: str
    """Such as `above 85`; empty for the rule alone."""
    policy: Policy


class ThresholdCurve(NamedTuple):
    """The effect of a comparison's threshold on all values of the past."""

    comparison: Comparison
    thresholds: Sequence[float]
    """Ascending, in units."""
    shares: Sequence[float]
    """For each threshold, the share of all values that meet the comparison."""


def comparison_text(part: Comparison) -> str:
    """`temp above 80`, or `max of temp above 80`."""
    name = part.query or part.metric
    return f"{f'{part.aggregate} of ' if part.aggregate else ''}{name} {_condition(part)}"


def rule_text(rule: AvoidRule) -> str:
    """`temp above 80 and load above 4, for 5m`."""
    times = [
        f", {name} {clock.format_duration(seconds)}"
        for name, seconds in (("for", rule.times.for_s), ("keepFor", rule.times.keep_for_s))
        if seconds
    ]
    return " and ".join(map(comparison_text, rule.parts)) + "".join(times)


def _condition(part: Comparison) -> str:
    """`above 80`, or `above 80, release 75`."""
    release = "" if part.release is None else f", release {quantity.nano_to_text(part.release)}"
    return f"{part.operator} {quantity.nano_to_text(part.target)}{release}"


def single_rules(policy: Policy) -> list[Variant]:
    """Each rule alone."""
    return [
        Variant(position, "", msgspec.structs.replace(policy, avoid=(rule,)))
        for position, rule in enumerate(policy.avoid)
    ]


def alternatives(policy: Policy, samples: Mapping[str, NodeMatrix]) -> list[Variant]:
    """The policy with one part of a rule changed, without duplicates. `samples` are values of the past."""
    variants: list[Variant] = []
    if any(part.unusable for part in policy.avoided()):
        return variants  # it rejects every node, whatever else changes
    for position, rule in enumerate(policy.avoid):
        if len(policy.avoid) > 1:
            rest = policy.avoid[:position] + policy.avoid[position + 1 :]
            variants.append(Variant(position, "without it", msgspec.structs.replace(policy, avoid=rest)))
        has_releases = policy.key.kind != "TASPolicy" and not rule.times.keep_for_s
        for number, part in enumerate(rule.parts):
            for change, changed in _changed_parts(part, samples, has_releases=has_releases):
                parts = (*rule.parts[:number], changed, *rule.parts[number + 1 :])
                text = change if len(rule.parts) == 1 else f"{part.metric} {change}"
                variants.append(_variant(policy, position, text, msgspec.structs.replace(rule, parts=parts)))
        if policy.key.kind != "TASPolicy":
            for times in _other_times(rule):
                changed_rule = msgspec.structs.replace(rule, times=times)
                variants.append(_variant(policy, position, _times_text(rule.times, times), changed_rule))
    return variants


def _variant(policy: Policy, position: int, change: str, rule: AvoidRule) -> Variant:
    rules = (*policy.avoid[:position], rule, *policy.avoid[position + 1 :])
    return Variant(position, change, msgspec.structs.replace(policy, avoid=rules))


def _other_times(rule: AvoidRule) -> list[HoldTimes]:
    """Other values of `for`, and of `keepFor` where there is no `release`."""
    others = [rule.times._replace(for_s=seconds) for seconds in (0.0, *_TIMES_S)]
    if all(part.release is None for part in rule.parts):
        others += [rule.times._replace(keep_for_s=seconds) for seconds in (0.0, _TIMES_S[-1])]
    return [times for times in dict.fromkeys(others) if times != rule.times]


def _times_text(before: HoldTimes, after: HoldTimes) -> str:
    name, old, new = (
        ("for", before.for_s, after.for_s)
        if before.for_s != after.for_s
        else ("keepFor", before.keep_for_s, after.keep_for_s)
    )
    return f"{name}: {clock.format_duration(new)}" if new else f"without {name} {clock.format_duration(old)}"


def _other_releases(part: Comparison) -> list[int | None]:
    """A twentieth of the target beyond it, on the side of the nodes that pass; and none."""
    order = rule_operators.sort_direction(part.operator)
    releases: list[int | None] = []
    if order and part.target:
        margin = abs(part.target) // 20
        releases.append(part.target + (margin if order > 0 else -margin))
    if part.release is not None:
        releases.append(None)
    return [release for release in releases if release != part.release]


def _changed_parts(
    part: Comparison, samples: Mapping[str, NodeMatrix], *, has_releases: bool
) -> Iterator[tuple[str, Comparison]]:
    replace: Any = msgspec.structs.replace
    ordered = ordered_values(samples[part.metric_request().key])
    for target in _other_targets(part, ordered):
        changed = replace(part, target=target, release=None)
        yield _condition(changed), changed
    if has_releases:
        for release in _other_releases(part):
            text = "without release" if release is None else f"release: {quantity.nano_to_text(release)}"
            yield text, replace(part, release=release)
    if not part.empty_means:
        missing, text = (
            ("pass", "whenMissing: Allow")
            if part.when_missing == "reject"
            else ("reject", "whenMissing: Reject")
        )
        yield text, replace(part, when_missing=missing)


def ordered_values(matrix: NodeMatrix) -> Values:
    """All values, ascending."""
    return np.sort(matrix.values[matrix.states == ValueState.FRESH])


def _other_targets(part: Comparison, ordered: Values) -> list[int]:
    """Thresholds a tenth away from the target, and those that 1, 5 and 10 % of the values meet; the mildest first."""
    order = rule_operators.OPERATORS[part.operator].order
    if order == 0 or not len(ordered):
        return []
    targets = {part.target * 9 // 10, part.target * 11 // 10} if part.target else set()
    for share in _SHARES:
        place = round(share * (len(ordered) - 1))
        targets.add(_rounded(int(ordered[-1 - place] if order < 0 else ordered[place])))
    return sorted(targets - {part.target}, reverse=order < 0)


def _rounded(nano: int) -> int:
    """The number with three significant digits."""
    unit: int = 10 ** max(len(str(abs(nano))) - _SIGNIFICANT_DIGITS, 0)
    return (nano + unit // 2) // unit * unit


def threshold_curves(policy: Policy, samples: Mapping[str, NodeMatrix]) -> list[ThresholdCurve]:
    """The curve of each comparison that has an order."""
    curves = []
    for part in dict.fromkeys(policy.avoided()):
        ordered = ordered_values(samples[part.metric_request().key]) if not part.unusable else np.zeros(0)
        if not len(ordered) or rule_operators.sort_direction(part.operator) == 0:
            continue
        floats = ordered.astype(float) / quantity.NANO
        target = part.target / quantity.NANO
        low, high = min(float(floats[0]), target), max(float(floats[-1]), target)
        margin = 0.05 * (high - low) or 1.0
        thresholds = np.linspace(low - margin, high + margin, _CURVE_POINTS)
        side = "left" if part.operator in ("atLeast", "below") else "right"
        below = np.searchsorted(floats, thresholds, side) / len(floats)  # type: ignore[call-overload]
        shares = below if part.operator in ("below", "atMost") else 1 - below
        curves.append(ThresholdCurve(part, thresholds.tolist(), shares.tolist()))
    return curves
