"""The suite of tests that `nodewise policy new --folder` writes beside a policy."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from nodewise.base import clock, quantity
from nodewise.cli.policy_yaml import format_policy
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.value_distribution import Direction
from nodewise.policies.hysteresis import HoldTimes

POLICY_FILE: Final = "policy.yaml"
SUITE_FILE: Final = "tests/suite.yaml"
_POD: Final = "example"
_MINUTE_S: Final = 60.0
"""Between two values and two evaluations, the default of a suite."""
_LAST_VALUES: Final = 4
"""Values after the last change, so that tests that are added have some."""
_PLAIN_METRIC: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


class NewPolicy(NamedTuple):
    """What the suite of a new policy depends on."""

    request: MetricRequest
    direction: Direction
    threshold: int
    """Nano-units."""
    release: int | None
    """Nano-units."""
    times: HoldTimes
    namespace: str
    """Of the example pod."""
    labels: Mapping[str, str]
    """Of the example pod."""
    is_preferred: bool
    """Whether pods are placed on avoided nodes if there are no others."""


def format_suite(policy: NewPolicy) -> str:
    """The suite as YAML. Its values are close to the threshold, so that it detects every change of the rule."""
    metric = policy.request.metric
    # a name that PromQL cannot read without quotes is a label
    name = f"{metric}{{" if _PLAIN_METRIC.fullmatch(metric) else f'{{__name__="{metric}", '
    values, expectations = _values_and_expectations(policy)
    test = {
        "name": f"nodes with {_comparison(policy)} {'come last' if policy.is_preferred else 'take no pods'}",
        "nodes": [*values, "without-a-value"],
        "pods": [_pod(policy)],
        "input_series": [
            {"series": f'{name}node="{node}"}}', "values": text} for node, text in values.items()
        ],
        "expect": expectations,
    }
    return format_policy({"policy_files": [f"../{POLICY_FILE}"], "tests": [test]}, _COMMENTS)


def _comparison(policy: NewPolicy) -> str:
    return f"{policy.request.name} {policy.direction} {quantity.nano_to_text(policy.threshold)}"


def _values_and_expectations(policy: NewPolicy) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The values of each node, one per minute, and what is expected before and after each effect of the rule."""
    threshold, (for_s, keep_for_s) = policy.threshold, policy.times
    distance = abs(threshold) // 20 or quantity.NANO // 2
    beyond = threshold + (distance if policy.direction == "above" else -distance)
    expectations = [_expectation(policy, 0, is_avoided=False)] if for_s else []
    expectations.append(_expectation(policy, for_s or _MINUTE_S, is_avoided=True))
    minutes = int((for_s or _MINUTE_S) // _MINUTE_S) + 1
    phases = [(beyond, minutes)]
    if policy.release is not None:
        phases += [((threshold + policy.release) // 2, 1), (policy.release, _LAST_VALUES)]
        expectations.append(_expectation(policy, minutes * _MINUTE_S, is_avoided=True))
        expectations.append(_expectation(policy, (minutes + 1) * _MINUTE_S, is_avoided=False))
    elif keep_for_s:
        end_s = minutes * _MINUTE_S + keep_for_s
        phases.append((threshold, math.ceil(keep_for_s / _MINUTE_S) + 1))
        expectations.append(_expectation(policy, minutes * _MINUTE_S, is_avoided=True))
        expectations.append(_expectation(policy, end_s, is_avoided=False))
    else:
        phases = [(beyond, minutes + _LAST_VALUES)]
    count = sum(count for _, count in phases)
    values = {
        "at-the-threshold": _notation(threshold, count),
        "beyond-it": " ".join(_notation(value, count) for value, count in phases),
    }
    return values, expectations


def _notation(value: int, count: int) -> str:
    """So many equal values."""
    return f"{quantity.nano_to_text(value)}x{count - 1}" if count > 1 else quantity.nano_to_text(value)


def _expectation(policy: NewPolicy, at_s: float, *, is_avoided: bool) -> dict[str, Any]:
    """What is expected at a time, in the order of the fields of a suite."""
    at = {"eval_time": clock.format_duration(at_s) if at_s else "0s", "pod": f"{policy.namespace}/{_POD}"}
    if policy.is_preferred:
        ranks = {"at-the-threshold": 1, "without-a-value": 1, "beyond-it": 3 if is_avoided else 1}
        return {**at, "ranks": ranks}
    if not is_avoided:
        return {**at, "rejected": []}
    # with states, the reason depends on the time since the last change
    has_states = policy.release is not None or any(policy.times)
    return {**at, "rejected": ["beyond-it"] if has_states else {"beyond-it": _comparison(policy)}}


_COMMENTS: Final[Sequence[str]] = (
    "Tests of the policy: nodewise policy test FOLDER.",
    "Values are one per minute: 80+1x10 are 80 to 90, _ is a missing value, and stale ends a series.",
)


def _pod(policy: NewPolicy) -> dict[str, Any]:
    labels = {"labels": dict(policy.labels)} if policy.labels else {}
    return {"name": _POD, "namespace": policy.namespace, **labels}
