"""Which other targets of a rule are worth telling: few, in round numbers, from the nearest to the last that matters.

All in nano-units, as whole numbers, so that what is proposed can be written into a policy as it stands.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from nodewise.agent import Evidence, ValueState

_SHARES: Final = (0.0, 0.25, 0.5, 1.0)
"""Of the nodes that could pass: the first, a quarter, half, all."""


def without_effect(rule: Evidence) -> Evidence:
    """The rule with a target that no value breaks."""
    fresh = rule.values[rule.states == ValueState.FRESH]
    if not len(fresh) or rule.target is None:
        return rule
    low, high = int(np.min(fresh)), int(np.max(fresh))
    target = {"GreaterThan": max(high, rule.target), "LessThan": min(low, rule.target)}
    return replace(rule, target=target.get(rule.operator, high + 1))


def proposed(rule: Evidence, values: Sequence[int]) -> Iterator[int]:
    """Targets with which some, and with the last all, of these values no longer break the rule.

    None for Equals: another target would let some pass and reject others.
    """
    if rule.target is None or rule.operator not in {"GreaterThan", "LessThan"} or not values:
        return
    ordered = sorted(values, reverse=rule.operator == "LessThan")
    for share in _SHARES:
        yield rounded(rule.target, ordered[round(share * (len(ordered) - 1))])


def rounded(target: int, value: int) -> int:
    """The roundest number at the value or beyond it, seen from the target: 85 for 84.7, seen from 80.

    Beyond by at most a quarter of the way, so that no more is asked for than the nodes need.
    """
    slack = abs(value - target) // 4
    best = value
    for step in _steps(10 * abs(value)):
        candidate = -(-value // step) * step if value > target else value // step * step
        if abs(candidate - value) <= slack:
            best = candidate
    return best


def _steps(most: int) -> Iterator[int]:
    """1, 2, 5, 10, 20, 50, … up to `most`."""
    power = 1
    while power <= most:
        yield from (power, 2 * power, 5 * power)
        power *= 10
