"""The fields of a PlacementPolicy and a ClusterPlacementPolicy, and the parsers of their values.

The names, limits and patterns are those of the CRDs and of the admission policy `nodewise-placement-policy-fields`;
`tests/unit/policies/test_placement_policy_definitions.py` compares them. Each parser raises a ValueError whose
text is the expected value.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from nodewise.base import quantity
from nodewise.base.errors import did_you_mean
from nodewise.metrics.aggregation import AGGREGATIONS
from nodewise.policies.policy_objects import MAX_METRIC_NAME
from nodewise.policies.rule_operators import OPERATOR_FIELDS, OPERATORS, RANGE_OPERATORS

API_VERSION: Final = "nodewise.io/v1alpha1"

CLUSTER_FIELDS: Final = ("namespaceSelector", "nodeLabels", "query", "emptyMeans")
"""The fields that only a ClusterPlacementPolicy has."""
SPEC_FIELDS: Final = (
    "podSelector",
    "mode",
    "canary",
    "avoid",
    "enforcement",
    "prefer",
    "guard",
    "namespaceSelector",
    "nodeLabels",
)
COMPARISON_FIELDS: Final = ("metric", "aggregate", *OPERATOR_FIELDS, "maxAge", "query", "emptyMeans")
AVOID_PART_FIELDS: Final = (*COMPARISON_FIELDS, "whenMissing", "release")
HOLD_TIME_FIELDS: Final = ("for", "keepFor")
AVOID_FIELDS: Final = (*AVOID_PART_FIELDS, *HOLD_TIME_FIELDS, "all")
LABEL_RULE_FIELDS: Final = (*COMPARISON_FIELDS, "all", "labels")
PREFERENCE_FIELDS: Final = ("metric", "aggregate", "order", "weight", "maxAge", "query")
SELECTOR_FIELDS: Final = ("matchLabels", "matchExpressions")
REQUIREMENT_FIELDS: Final = ("key", "operator", "values")

MAX_RULES: Final = 100
"""Rules of `avoid`, and of `nodeLabels`, counting those in `all`."""
MAX_PARTS: Final = 16
"""Rules of one `all`."""
MAX_PREFERENCES: Final = 16
MAX_RULE_LABELS: Final = 16
MAX_SELECTOR_ENTRIES: Final = 20
"""Labels of `matchLabels`, and requirements of `matchExpressions`."""
MAX_VALUES: Final = 50
MAX_LABEL_VALUE: Final = 63
MAX_LABEL_KEY: Final = 317
MAX_QUERY: Final = 4096
MAX_QUANTITY: Final = 64
MAX_DURATION: Final = 32
MAX_WEIGHT: Final = 100

METRIC: Final = "[a-zA-Z0-9_:-][a-zA-Z0-9_:.-]*"
"""`:` is in names of recording rules, and `.` in those of OpenTelemetry. A name is a part of a path in the custom
metrics API, so that `..` is none."""
QUANTITY: Final = r"[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][+-]?[0-9]{1,2}|[numkMGTPE]|[KMGTPE]i)?"
DURATION: Final = r"([0-9]{1,8}([.][0-9]+)?m?s|[0-9]{1,5}([.][0-9]+)?[mh])+"
LABEL_NAME: Final = "[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_DOMAIN_PART: Final = "[a-z0-9]([a-z0-9-]*[a-z0-9])?"
LABEL_VALUE: Final = f"({LABEL_NAME})?"
POD_LABEL_KEY: Final = f"([a-z0-9.-]{{1,253}}/)?{LABEL_NAME}"
NODEWISE_LABEL_KEY: Final = f"({_DOMAIN_PART}[.])+nodewise[.]io/{LABEL_NAME}"
LABELING_KEY: Final = f"telemetry[.]aware[.]scheduling([.]{_DOMAIN_PART})+/{LABEL_NAME}"
"""The key of a node label of `labeling` in a TASPolicy."""
VIOLATING: Final = "violating"
"""The value of a node label whose key has no domain, such as that of `deschedule` in a TASPolicy."""
_MAX_DOMAIN: Final = 253

_DURATION_PART: Final = re.compile(r"([0-9.]+)(ms|s|m|h)")
_UNIT_NS: Final = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_MAX_DURATION_NS: Final = 8784 * 3600 * 10**9
_INT64_LIMIT: Final = 2**63
_MAX_EXACT: Final = 2**53
"""Up to here the API server accepts whole numbers in floating point, such as 1e3, as integers."""


def _parse_metric(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_METRIC_NAME or not re.fullmatch(METRIC, value):
        expected = f"letters, digits, _, :, . and -, not beginning with ., at most {MAX_METRIC_NAME}"
        raise ValueError(expected)
    return value


def _parse_query(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_QUERY:
        raise ValueError(f"an expression of at most {MAX_QUERY} characters")
    return value


def _parse_quantity(value: Any) -> int:
    """Nano-units. The API server rejects numbers with a point or an exponent beside integers and texts."""
    if is_integer(value) and not isinstance(value, float):
        return int(value) * quantity.NANO
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f'an integer of 64 bits, or a text such as "{value}"')  # noqa: TRY004 - see the module
    if not isinstance(value, str) or len(value) > MAX_QUANTITY or not re.fullmatch(QUANTITY, value):
        raise ValueError(quantity.EXPECTED)
    return quantity.parse(value)


def _parse_range(value: Any) -> tuple[int, int]:
    """The lower and the higher one of two quantities."""
    expected = "a list of two values, the lower one first"
    if not isinstance(value, list) or len(value) != 2:  # noqa: PLR2004 - two ends
        raise ValueError(expected)
    low, high = map(_parse_quantity, value)
    if low > high:
        raise ValueError(expected)
    return low, high


def is_integer(value: Any) -> bool:
    """Whether the API server accepts a number of a JSON document as an integer."""
    if isinstance(value, bool):
        return False
    if isinstance(value, float):
        return value.is_integer() and abs(value) < _MAX_EXACT
    return isinstance(value, int) and -_INT64_LIMIT <= value < _INT64_LIMIT


def _parse_duration(value: Any) -> float:
    """Seconds. As in Go, each part of the duration is cut to whole nanoseconds."""
    ns = 0
    if isinstance(value, str) and len(value) <= MAX_DURATION and re.fullmatch(DURATION, value):
        ns = sum(int(Fraction(number) * _UNIT_NS[unit]) for number, unit in _DURATION_PART.findall(value))
    if not 0 < ns <= _MAX_DURATION_NS:
        raise ValueError("a duration such as 30s or 5m, of at most a year")
    return ns / 10**9


def _parse_share(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(SHARE, value):
        raise ValueError('a text with a number between 0 and 1, such as "0.5"')
    return value


def _parse_guard_duration(value: Any) -> float:
    """Seconds."""
    if not isinstance(value, str) or not re.fullmatch(GUARD_DURATION, value):
        raise ValueError("a duration such as 30s, 5m or 12h")
    return int(value[:-1]) * _UNIT_NS[value[-1]] / 10**9


def _parse_key(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_LABEL_KEY:
        raise ValueError("the key of a label")
    return value


def _parse_values(value: Any) -> frozenset[str]:
    if not isinstance(value, list) or len(value) > MAX_VALUES:
        raise ValueError(f"a list of at most {MAX_VALUES} texts")
    if not all(isinstance(text, str) and len(text) <= MAX_LABEL_VALUE for text in value):
        raise ValueError(f"texts of at most {MAX_LABEL_VALUE} characters")
    return frozenset(value)


def whole_number(least: int, most: int) -> Callable[[Any], int]:
    """The parser of a field that has an integer within limits."""

    def parse(value: Any) -> int:
        if not is_integer(value) or not least <= value <= most:
            raise ValueError(f"an integer from {least} to {most}")
        return int(value)

    return parse


def choice(valid: Sequence[str]) -> Callable[[Any], str]:
    """The parser of a field that has one of several texts."""

    def parse(value: Any) -> str:
        if value not in valid:
            raise ValueError(
                " or ".join(valid) + (did_you_mean(value, valid) if isinstance(value, str) else "")
            )
        return str(value)

    return parse


AGGREGATES: Final = tuple(AGGREGATIONS)
WHEN_MISSING: Final = ("Allow", "Reject")
EMPTY_MEANS: Final = ("Healthy",)
ORDERS: Final = ("Ascending", "Descending")
ENFORCEMENTS: Final = ("Required", "Preferred")
MODES: Final = ("Enforce", "Canary", "Shadow")
CANARY_FIELDS: Final = ("podSelector", "percent")
MAX_PERCENT: Final = 99
GUARD_FIELDS: Final = ("maxRejectedShare", "maxWaitingPods", "within", "resumeAfter")
MAX_WAITING_PODS: Final = 100000
SHARE: Final = "0?[.][0-9]{0,8}[1-9][0-9]{0,8}"
"""A number between 0 and 1. Others could always, or never, be exceeded."""
GUARD_DURATION: Final = "[1-9][0-9]{0,3}[smh]"
SELECTOR_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")

PARSERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "metric": _parse_metric,
    "query": _parse_query,
    "aggregate": choice(AGGREGATES),
    **dict.fromkeys(OPERATORS, _parse_quantity),
    **dict.fromkeys(RANGE_OPERATORS, _parse_range),
    "maxAge": _parse_duration,
    "release": _parse_quantity,
    "whenMissing": choice(WHEN_MISSING),
    "emptyMeans": choice(EMPTY_MEANS),
    "order": choice(ORDERS),
    "weight": whole_number(1, MAX_WEIGHT),
}
"""The parsers of the values in rules and preferences."""
SPEC_PARSERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "enforcement": choice(ENFORCEMENTS),
    "mode": choice(MODES),
}
"""The parsers of the values that are fields of the spec."""
CANARY_PARSERS: Final[Mapping[str, Callable[[Any], Any]]] = {"percent": whole_number(1, MAX_PERCENT)}
"""The parsers of the values of `canary`."""
HOLD_TIME_PARSERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "for": _parse_duration,
    "keepFor": _parse_duration,
}
"""The parsers of the times of a rule."""
GUARD_PARSERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "maxRejectedShare": _parse_share,
    "maxWaitingPods": whole_number(0, MAX_WAITING_PODS),
    "within": _parse_guard_duration,
    "resumeAfter": _parse_guard_duration,
}
"""The parsers of the values of `guard`."""
REQUIREMENT_PARSERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "key": _parse_key,
    "operator": choice(SELECTOR_OPERATORS),
    "values": _parse_values,
}
"""The parsers of the values in a requirement of a label selector."""


def is_valid_pod_label(key: str, value: str) -> bool:
    """Whether `matchLabels` can have a label."""
    return bool(re.fullmatch(POD_LABEL_KEY, key) and re.fullmatch(LABEL_VALUE, value))


def is_valid_node_label(key: str, value: str) -> bool:
    """Whether a policy can set a label of nodes.

    A key that the API server refuses would take the other labels of the node with it.
    """
    domain, slash, _ = key.rpartition("/")
    if not re.fullmatch(LABEL_VALUE, value) or len(domain) > _MAX_DOMAIN:
        return False
    if not slash:
        return value == VIOLATING and bool(re.fullmatch(LABEL_NAME, key))
    return bool(re.fullmatch(f"{NODEWISE_LABEL_KEY}|{LABELING_KEY}", key))
