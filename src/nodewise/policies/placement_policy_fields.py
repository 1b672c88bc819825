"""The description of PlacementPolicy and ClusterPlacementPolicy: their fields with texts, types and limits.

The parser reads these tables. `make chart` generates the definitions in `deploy/crds` and the lists of fields in
`deploy/policy-fields.yaml` from them (`tools/policy_definitions.py`), and `make docs` the reference.
"""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final, NamedTuple

from nodewise.base import quantity
from nodewise.base.errors import did_you_mean
from nodewise.metrics.metrics_source import AGGREGATIONS
from nodewise.policies.policy_objects import MAX_METRIC_NAME
from nodewise.policies.rule_operators import OPERATORS, ORDERED_TEXT, RANGE_OPERATORS

API_VERSION: Final = "nodewise.io/v1alpha1"
MAX_RULES: Final = 100
"""Rules of `avoid`, and of `nodeLabels`, counting those in `all`."""
MAX_DEVICE_RULES: Final = 16
"""Rules of `deviceTaints`."""
MAX_LABEL_VALUE: Final = 63
MAX_QUERY: Final = 4096
MAX_QUANTITY: Final = 64
_MAX_VALUES: Final = 50
_MAX_DURATION: Final = 32

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
_DRIVER: Final = f"{_DOMAIN_PART}([.]{_DOMAIN_PART})*"
_MAX_DRIVER: Final = 63
_ATTRIBUTE: Final = f"({_DRIVER}/)?[a-zA-Z_][a-zA-Z0-9_]{{0,31}}"

_DURATION_PART: Final = re.compile(r"([0-9.]+)(ms|s|m|h)")
_UNIT_NS: Final = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_MAX_DURATION_NS: Final = 8784 * 3600 * 10**9
_INT64_LIMIT: Final = 2**63
_MAX_EXACT: Final = 2**53
"""Up to here the API server accepts whole numbers in floating point, such as 1e3, as integers."""


class ValueType(NamedTuple):
    """The type of fields with a single value."""

    parse: Callable[[Any], Any]
    """Raises a ValueError whose text is the expected value."""
    schema: Mapping[str, Any]
    """The OpenAPI schema."""


class LabelsType(NamedTuple):
    """Keys and values of labels."""

    least: int
    most: int


class ObjectType(NamedTuple):
    """Fields, in the order in which messages list them."""

    fields: "Mapping[str, Field]"
    required: tuple[str, ...] = ()
    """`metric` and `podSelector` only in a PlacementPolicy: a ClusterPlacementPolicy may have `query` or no pods."""


class ListType(NamedTuple):
    """A list of objects."""

    least: int
    most: int
    entry_text: str
    entry: ObjectType


class Field(NamedTuple):
    """The description of a field."""

    text: str
    type: ValueType | LabelsType | ObjectType | ListType
    only_cluster: bool = False
    """Whether only ClusterPlacementPolicy has it."""


def is_integer(value: Any) -> bool:
    """Whether the API server accepts a number of a JSON document as an integer."""
    if isinstance(value, bool):
        return False
    if isinstance(value, float):
        return value.is_integer() and abs(value) < _MAX_EXACT
    return isinstance(value, int) and -_INT64_LIMIT <= value < _INT64_LIMIT


def choice(*valid: str) -> ValueType:
    """One of several texts."""

    def parse(value: Any) -> str:
        if value not in valid:
            hint = did_you_mean(value, valid) if isinstance(value, str) else ""
            raise ValueError(" or ".join(valid) + hint)
        return str(value)

    return ValueType(parse, {"type": "string", "enum": [*valid]})


def _integer(least: int, most: int) -> ValueType:
    def parse(value: Any) -> int:
        if not is_integer(value) or not least <= value <= most:
            raise ValueError(f"an integer from {least} to {most}")
        return int(value)

    return ValueType(parse, {"type": "integer", "minimum": least, "maximum": most})


def _text(expected: str, most: int, pattern: str = "", convert: Callable[[str], Any] = str) -> ValueType:
    def parse(value: Any) -> Any:
        is_text = isinstance(value, str) and 0 < len(value) <= most
        if not is_text or (pattern and not re.fullmatch(pattern, value)):
            raise ValueError(expected)
        return convert(value)

    limit = {"pattern": f"^{pattern}$"} if pattern else {"minLength": 1}
    return ValueType(parse, {"type": "string", "maxLength": most, **limit})


def _parse_quantity(value: Any) -> int:
    """Nano-units. The API server rejects numbers with a point or an exponent beside integers and texts."""
    if is_integer(value) and not isinstance(value, float):
        return int(value) * quantity.NANO
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f'an integer of 64 bits, or a text such as "{value}"')  # noqa: TRY004 - see ValueType
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


def _parse_duration(value: Any) -> float:
    """Seconds. As in Go, each part of the duration is cut to whole nanoseconds."""
    ns = 0
    if isinstance(value, str) and len(value) <= _MAX_DURATION and re.fullmatch(DURATION, value):
        ns = sum(int(Fraction(number) * _UNIT_NS[unit]) for number, unit in _DURATION_PART.findall(value))
    if not 0 < ns <= _MAX_DURATION_NS:
        raise ValueError("a duration such as 30s or 5m, of at most a year")
    return ns / 10**9


def _parse_values(value: Any) -> frozenset[str]:
    if not isinstance(value, list) or len(value) > _MAX_VALUES:
        raise ValueError(f"a list of at most {_MAX_VALUES} texts")
    if not all(isinstance(text, str) and len(text) <= MAX_LABEL_VALUE for text in value):
        raise ValueError(f"texts of at most {MAX_LABEL_VALUE} characters")
    return frozenset(value)


METRIC_TYPE: Final = _text(
    f"letters, digits, _, :, . and -, not beginning with ., at most {MAX_METRIC_NAME}",
    MAX_METRIC_NAME,
    METRIC,
)._replace(schema={"type": "string", "minLength": 1, "maxLength": MAX_METRIC_NAME})
"""The definitions check the pattern by a rule with a message of its own."""
DURATION_TYPE: Final = ValueType(_parse_duration, {"type": "string", "maxLength": _MAX_DURATION})
AGGREGATE_TYPE: Final = choice(*AGGREGATIONS)
QUERY_TYPE: Final = _text(f"an expression of at most {MAX_QUERY} characters", MAX_QUERY)
_QUANTITY_SCHEMA: Final = {
    "x-kubernetes-int-or-string": True,
    "maxLength": MAX_QUANTITY,
    "pattern": f"^{QUANTITY}$",
}
_QUANTITY_TYPE: Final = ValueType(_parse_quantity, _QUANTITY_SCHEMA)
RANGE_TYPE: Final = ValueType(
    _parse_range,
    {
        "type": "array",
        "minItems": 2,
        "maxItems": 2,
        "items": {"description": "The lower value, then the higher one.", **_QUANTITY_SCHEMA},
    },
)
_SHARE_TYPE: Final = _text(
    'a text with a number above 0 and below 1, such as "0.5"', 20, "0?[.][0-9]{0,8}[1-9][0-9]{0,8}"
)
"""Other numbers could always, or never, be exceeded."""
_GUARD_DURATION_TYPE: Final = _text(
    "a duration such as 30s, 5m or 12h",
    5,
    "[1-9][0-9]{0,3}[smh]",
    lambda text: int(text[:-1]) * _UNIT_NS[text[-1]] / 10**9,
)

_LABEL_VALUE_SCHEMA: Final = {"type": "string", "maxLength": MAX_LABEL_VALUE}
REQUIREMENT: Final = ObjectType(
    {
        "key": Field("The key of the label.", _text("the key of a label", 317)),
        "operator": Field(
            "In or NotIn compare the label with values; Exists and DoesNotExist do not.",
            choice("In", "NotIn", "Exists", "DoesNotExist"),
        ),
        "values": Field(
            "Values of the label, for In and NotIn.",
            ValueType(
                _parse_values, {"type": "array", "maxItems": _MAX_VALUES, "items": _LABEL_VALUE_SCHEMA}
            ),
        ),
    },
    ("key", "operator"),
)
MATCH_LABELS: Final = LabelsType(0, 20)
MATCH_EXPRESSIONS: Final = ListType(0, 20, "A requirement for one label.", REQUIREMENT)
SELECTOR: Final = ObjectType(
    {
        "matchLabels": Field("Labels that the object must have, with these values.", MATCH_LABELS),
        "matchExpressions": Field("Requirements for labels; all of them must be met.", MATCH_EXPRESSIONS),
    }
)
CANARY: Final = ObjectType(
    {
        "podSelector": Field("Pods with these labels, among those that the policy selects.", SELECTOR),
        "percent": Field(
            "The share of workloads, and of the nodes whose devices deviceTaints taint. All pods of a workload are "
            "part of it, or none. For pods, native mode needs podSelector.",
            _integer(1, 99),
        ),
    }
)
GUARD: Final = ObjectType(
    {
        "maxRejectedShare": Field(
            'The share of all nodes that the policy may reject, such as "0.5". Between 0 and 1.',
            _SHARE_TYPE,
        ),
        "maxWaitingPods": Field(
            "The number of pods that may wait because of the policy. For a ClusterPlacementPolicy, without those of "
            "the namespace in which most wait.",
            _integer(0, 100000),
        ),
        "within": Field(
            "How long a limit may be exceeded before the policy steps back; 30s by default.",
            _GUARD_DURATION_TYPE,
        ),
        "resumeAfter": Field(
            "The time after which the policy has an effect again. By default, only an edit of the spec does that.",
            _GUARD_DURATION_TYPE,
        ),
    }
)

_METRIC: Final = Field("The name of a metric of nodes in its source.", METRIC_TYPE)
_AGGREGATE: Final = Field(
    "How several series of one node become one value. Without it series of one node that differ are invalid.",
    AGGREGATE_TYPE,
)
_MAX_AGE: Final = Field(
    "The age at which a value counts as missing, such as 90s. By default the largest of 60 s, five refresh periods, "
    "and 2.5 times the distance of the metric's samples, at most 10 minutes.",
    DURATION_TYPE,
)
_QUERY: Final = Field(
    "A PromQL expression, which a Prometheus source evaluates in place of a metric. Each series of its result has "
    "the label that names the node.",
    QUERY_TYPE,
    only_cluster=True,
)
COMPARISON: Final = ObjectType(
    {
        "metric": _METRIC,
        "aggregate": _AGGREGATE,
        **{name: Field(operator.text, _QUANTITY_TYPE) for name, operator in OPERATORS.items()},
        **{name: Field(operator.text, RANGE_TYPE) for name, operator in RANGE_OPERATORS.items()},
        "maxAge": _MAX_AGE,
        "query": _QUERY,
        "emptyMeans": Field(
            "Only with query. With Healthy a node without a series does not meet the rule, and an empty result is a "
            "result. Without it an empty result rejects every node.",
            choice("Healthy"),
            only_cluster=True,
        ),
    },
    ("metric",),
)
AVOID_PART: Final = ObjectType(
    {
        **COMPARISON.fields,
        "whenMissing": Field(
            "The treatment of a node without a value that is new enough. Allow, the default, does not reject it; "
            "Reject does.",
            choice("Allow", "Reject"),
        ),
        "release": Field(
            f"What takes the place of the value of {ORDERED_TEXT} while a node is rejected, so that a value near it "
            "does not reject and accept the node in turn.",
            _QUANTITY_TYPE,
        ),
    },
    ("metric",),
)
HOLD_TIMES: Final = {
    "for": Field(
        "How long a node must meet the rule before it is rejected, such as 2m. Without it the first value that "
        "meets the rule rejects the node.",
        DURATION_TYPE,
    ),
    "keepFor": Field(
        "How long a node stays rejected after it no longer meets the rule, such as 10m. Not together with release.",
        DURATION_TYPE,
    ),
}
_PART_TEXT: Final = "A comparison of one metric with a number."
PART_LISTS: Final = {
    "avoid": ListType(1, 16, _PART_TEXT, AVOID_PART),
    "nodeLabels": ListType(1, 16, _PART_TEXT, COMPARISON),
}
"""`all` in a rule of each section."""
AVOID_RULE: Final = ObjectType(
    {
        **AVOID_PART.fields,
        **HOLD_TIMES,
        "all": Field("Rules. The node is avoided if it meets all of them.", PART_LISTS["avoid"]),
    }
)
NODE_LABELS: Final = LabelsType(1, 16)
LABEL_RULE: Final = ObjectType(
    {
        **COMPARISON.fields,
        "all": Field("Rules. The node gets the labels if it meets all of them.", PART_LISTS["nodeLabels"]),
        "labels": Field(
            "The labels. The domain of a key ends in .nodewise.io, such as gpu.nodewise.io/suspect.",
            NODE_LABELS,
        ),
    },
    ("labels",),
)
DEVICE_FIELDS: Final = {
    "driver": Field(
        "The DRA driver of the devices, such as gpu.nvidia.com.",
        _text("the name of a DRA driver, such as gpu.nvidia.com", _MAX_DRIVER, _DRIVER),
    ),
    "deviceLabel": Field(
        "The label of the series that identifies the device, such as UUID.",
        _text("the name of a label of series, such as UUID", 128),
    ),
    "deviceAttribute": Field(
        "The attribute of devices in ResourceSlices that has the value of deviceLabel, such as uuid or "
        "resource.kubernetes.io/pciBusID. Without it, deviceLabel has the name of the device.",
        _text("an attribute of devices, such as uuid", _MAX_DRIVER + 33, _ATTRIBUTE),
    ),
    "effect": Field(
        "NoSchedule, the default, keeps new pods from the device. NoExecute also evicts pods that use it, and "
        "requires maxTaintedShare.",
        choice("NoSchedule", "NoExecute"),
    ),
    "maxTaintedShare": Field(
        'The share of the devices of the driver that the rule may taint, such as "0.1", and at least one device. '
        'Between 0 and 1; "0.25" by default.',
        _SHARE_TYPE,
    ),
}
"""The fields of a rule of `deviceTaints` that no other rule has."""
DEVICE_RULE: Final = ObjectType(
    {
        **COMPARISON.fields,
        "release": Field(
            f"What takes the place of the value of {ORDERED_TEXT} while a device is tainted, so that a value near it "
            "does not add and remove the taint in turn.",
            _QUANTITY_TYPE,
        ),
        "for": Field("How long a device must meet the rule before it is tainted, such as 2m.", DURATION_TYPE),
        "keepFor": Field(
            "How long a device stays tainted after it no longer meets the rule, such as 10m. Not together with "
            "release.",
            DURATION_TYPE,
        ),
        **DEVICE_FIELDS,
    },
    ("driver", "deviceLabel"),
)
PREFERENCE: Final = ObjectType(
    {
        "metric": _METRIC,
        "aggregate": _AGGREGATE,
        "order": Field(
            "Ascending prefers small values, Descending large ones.", choice("Ascending", "Descending")
        ),
        "weight": Field("The weight of this rank in the mean; 1 by default.", _integer(1, 100)),
        "maxAge": _MAX_AGE,
        "query": _QUERY,
    },
    ("metric", "order"),
)
PREFER: Final = ListType(1, 16, "A metric and the order in which it ranks nodes.", PREFERENCE)
_RULE_TEXT: Final = "A comparison of one metric with a number, or several of them in all"
RULE_LISTS: Final = {
    "avoid": ListType(1, MAX_RULES, f"{_RULE_TEXT}.", AVOID_RULE),
    "nodeLabels": ListType(
        1, MAX_RULES, f"{_RULE_TEXT}, and the labels of the nodes that meet it.", LABEL_RULE
    ),
    "deviceTaints": ListType(
        1, MAX_DEVICE_RULES, "A comparison of one metric of devices with a number.", DEVICE_RULE
    ),
}
CLUSTER_FIELDS: Final = ("namespaceSelector", "nodeLabels", "deviceTaints", "query", "emptyMeans")
"""The fields that only a ClusterPlacementPolicy has."""
SPEC: Final = ObjectType(
    {
        "podSelector": Field(
            "Selects the pods by their labels; {} selects all pods of the namespace, or of the selected namespaces. "
            "The labels of a pod are read when it is created. Required with avoid and prefer.",
            SELECTOR,
        ),
        "mode": Field(
            "Enforce is the default. In the mode Shadow the policy is evaluated and reported, and has no effect on "
            "pods and nodes. In the mode Canary it has an effect on the selected pods that are part of canary.",
            choice("Enforce", "Canary", "Shadow"),
        ),
        "canary": Field(
            "The pods for which the policy has an effect in the mode Canary. Unused in other modes.", CANARY
        ),
        "avoid": Field(
            "Rules. A node that meets any of them takes no selected pods. The rules of several policies that select "
            "a pod are added together.",
            RULE_LISTS["avoid"],
        ),
        "enforcement": Field(
            "Required, the default, keeps selected pods away from the nodes that avoid rejects. With Preferred, "
            "other nodes come first; pods are placed on these nodes if there are no others.",
            choice("Required", "Preferred"),
        ),
        "prefer": Field(
            "Metrics that rank the nodes that are not avoided. Their ranks are combined as a weighted mean, also "
            "across all policies that select a pod.",
            PREFER,
        ),
        "guard": Field(
            "Limits of what avoid may do. If one of them is exceeded, the policy steps back, as in the mode Shadow, "
            "until the spec is edited or resumeAfter has passed.",
            GUARD,
        ),
        "namespaceSelector": Field(
            "Selects the namespaces of the pods by their labels; {} selects all namespaces. Required with avoid and "
            "prefer.",
            SELECTOR,
            only_cluster=True,
        ),
        "nodeLabels": Field(
            "Rules, and the labels of the nodes that meet them. Labels change only because of values that are new "
            "enough; a node without one keeps its labels.",
            RULE_LISTS["nodeLabels"],
            only_cluster=True,
        ),
        "deviceTaints": Field(
            "Rules about devices of DRA drivers. A device that meets any of them gets a taint, by a DeviceTaintRule. "
            "A device without a value that is new enough keeps its taint. In the mode Canary, devices of "
            "canary.percent of the nodes are tainted; in the mode Shadow none are.",
            RULE_LISTS["deviceTaints"],
            only_cluster=True,
        ),
    },
    ("podSelector",),
)


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
