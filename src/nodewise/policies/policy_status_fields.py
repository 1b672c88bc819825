"""The fields of a policy's status as they are stored, and conditions in the standard form of Kubernetes (KEP-1623).
No I/O.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.base import clock
from nodewise.base.errors import truncate
from nodewise.metrics import series
from nodewise.metrics.missing_values import REMEDY_SEPARATOR, Cause
from nodewise.metrics.source_table import INCOMPLETE_REMEDY
from nodewise.policies import policy_rejection_reasons
from nodewise.policies.hysteresis import NodeStateGroup, Phase
from nodewise.policies.placement_policy import AvoidRule, Comparison, PolicyKind
from nodewise.policies.policy_objects import StepBack

MAX_LENGTH: Final = 1024
"""Characters of a condition's message; longer messages are cut."""


class PolicyCondition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One condition. `last_transition_time` is when `status` last changed, RFC 3339."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class StatusWithConditions(msgspec.Struct, frozen=True, rename="camel"):
    """The fields that the status of every kind of policy has."""

    conditions: list[PolicyCondition] = []
    observed_generation: int = 0

    def conditions_by_type(self) -> dict[str, PolicyCondition]:
        return {condition.type: condition for condition in self.conditions}

    def has_same_conditions(self, other: Any) -> bool:
        """Whether at most counts differ, and the nodes that conditions name, which may change all the time."""
        if self.observed_generation != other.observed_generation:
            return False
        conditions, other_conditions = ([*map(_without_nodes, each.conditions)] for each in (self, other))
        return conditions == other_conditions


_NAMING_NODES: Final = ("Flapping", "NodesWithoutValues")
"""The types of conditions whose message names nodes with noisy or missing values."""


def _without_nodes(condition: PolicyCondition) -> PolicyCondition:
    # while a policy is ready, Ready has the message of another condition
    is_ready = (condition.type, condition.status) == ("Ready", "True")
    names_nodes = is_ready or condition.type in _NAMING_NODES
    return msgspec.structs.replace(condition, message="") if names_nodes else condition


def missing_metrics_reason(causes: Mapping[str, Cause]) -> str:
    """The reason of a condition about metrics without values: that of the first metric."""
    return next((cause.reason for cause in causes.values()), "")


class MissingMetrics(NamedTuple):
    """Metrics without values for one cause, in the text of a condition."""

    metrics: tuple[str, ...]
    text: str
    remedy: str
    """Empty if there is none, or if the message was cut before it."""


RULES_REJECT: Final = "Rules of avoid with these metrics reject every node"
NO_NODE_PASSES: Final = "No node passes dontschedule until each of its metrics has a value"
_NO_VALUE: Final = "no node has a value of "


def _names_by_cause(causes: Mapping[str, Cause]) -> dict[Cause, list[str]]:
    """The metrics of each cause; one that is a query alone, which has no name, as `query EXPRESSION`."""
    by_cause: dict[Cause, list[str]] = {}
    for key, cause in causes.items():
        name, by, query = key.partition(" by ")
        is_query_alone = by and name.removesuffix(" or nothing") == "query"
        by_cause.setdefault(cause, []).append(f"query {query}" if is_query_alone else key)
    return by_cause


def missing_metrics_text(causes: Mapping[str, Cause], consequence: str = "") -> str:
    """Which metrics have no value, why, and one of the consequences above; empty if all have values.

    `parse_missing_metrics` reads the text in a status.
    """
    by_cause = _names_by_cause(causes)
    text = "; ".join(f"{_NO_VALUE}{', '.join(keys)}: {cause}" for cause, keys in by_cause.items())
    return f"{text}. {consequence}" if text and consequence else text


def parse_missing_metrics(message: str) -> list[MissingMetrics]:
    """The parts of a message that `missing_metrics_text` wrote; none if it has another form."""
    if not message.startswith(_NO_VALUE):
        return []
    for consequence in (RULES_REJECT, NO_NODE_PASSES):
        message = message.removesuffix(f". {consequence}")
    entries = []
    for entry in message.removeprefix(_NO_VALUE).split(f"; {_NO_VALUE}"):
        keys, _, cause = entry.partition(": ")
        text, separator, remedy = cause.rpartition(REMEDY_SEPARATOR)  # the text may quote a query
        text, remedy = (text, remedy) if separator else (cause, "")
        entries.append(MissingMetrics(tuple(keys.split(", ")), text, remedy))
    return entries


def failing_metrics_text(causes: Mapping[str, Cause]) -> str:
    """Which metrics could not be fetched lately, and why, while their last values apply; empty for none."""
    by_cause = _names_by_cause(causes)
    return "; ".join(
        f"the last values of {', '.join(keys)} apply until they are too old: {cause}"
        for cause, keys in by_cause.items()
    )


def suspension_text(comparisons: str, causes: Mapping[str, Cause]) -> str:
    """That rules with these comparisons are suspended, and why their nodes lost their values."""
    why = "; ".join(dict.fromkeys(map(str, causes.values())))
    lost = f"more than half of the nodes lost their value at once ({why})"
    return f"{lost}; the last verdicts hold for {comparisons}"


def incomplete_answers_text(metrics: Sequence[str]) -> str:
    """Which metrics were answered without a part of their series, and what that means; empty for none."""
    if not metrics:
        return ""
    return (
        f"Prometheus gives incomplete responses for {', '.join(metrics)}: nodes that are absent keep their last"
        f" verdicts, and no result without series counts as healthy{REMEDY_SEPARATOR}{INCOMPLETE_REMEDY}"
    )


def nodes_without_values_text(texts: Iterable[str], exception: str = "whenMissing is Reject") -> str:
    """Which nodes pass rules because they have no value, unless `exception` applies; empty for none."""
    text = "; ".join(texts)
    return f"{text}; a node without a value passes these rules, unless {exception}" if text else ""


def sparse_samples_text(sparse: Iterable[tuple[str, float, float]], field: str = "maxAge") -> str:
    """Which metrics have samples too far apart, given the distance and the maximum age of each, in seconds; empty for
    none. `field` is that of a rule.
    """
    texts = (
        f"samples of {metric} are {clock.format_duration(distance_s)} apart, and a value counts for"
        f" {clock.format_duration(max_age_s)}: set {field} to at least"
        f" {clock.format_duration(series.sufficient_max_age_s(distance_s))}, or scrape the metric more often"
        for metric, distance_s, max_age_s in sparse
    )
    text = "; ".join(texts)
    return f"{text}. Nodes have no value between two samples, or after one failed scrape" if text else ""


MAX_EXPRESSION: Final = 256
"""Characters of the text of a rule, which may be a whole query."""


class DeviceStateGroup(msgspec.Struct, frozen=True):
    """Devices with the same state since the same time."""

    state: Phase
    since: str
    """RFC 3339."""
    devices: tuple[str, ...]
    """As `DRIVER/POOL/DEVICE`."""


class RuleCounts(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    rule: str
    """Its place in the spec: `avoid[1]`, or `avoid[1].all[0]` for a part of it."""
    expression: str = ""
    nodes: int | None = None
    """How many nodes meet it; None for a preference."""
    missing: int | None = None
    """How many nodes have no fresh value; None for a rule with several parts."""
    suspended: bool = False
    flaps_per_hour: int = 0
    """How often it rejected a node again soon after the node passed."""
    node_states: tuple[NodeStateGroup, ...] | None = None
    """None for a rule without `for`, `release` and `keepFor`."""
    unlisted_nodes: int = 0
    """Rejected nodes that are not in `node_states`."""
    devices: int | None = None
    """How many devices meet it, of a rule of `deviceTaints`; `missing` are then devices, too."""
    device_states: tuple[DeviceStateGroup, ...] | None = None

    def rejected_nodes(self) -> frozenset[str]:
        """The nodes in `node_states` that the rule rejects."""
        groups = (group for group in self.node_states or () if group.state != "Pending")
        return frozenset(node for group in groups for node in group.nodes)


class PolicyStatus(StatusWithConditions, frozen=True):
    """The fields of the status of a TASPolicy that are written, and read back."""

    violating_nodes: int = 0
    missing_metrics: tuple[str, ...] = ()
    mode: str = ""
    """`Enforce` or `NotEnforced`; empty in the status of an earlier version."""


class PlacementPolicyStatus(StatusWithConditions, frozen=True, omit_defaults=True):
    """The fields of the status of other policies that are written, and read back."""

    mode: str = ""
    selected_pods: int | None = None
    """None: not counted yet, not enforced, or a policy that only labels nodes."""
    rejected_nodes: int | None = None
    """None: the policy rejects no nodes."""
    tainted_devices: int | None = None
    """None: the policy has no device rules."""
    would_taint_devices: int | None = None
    """None: the policy has no device rules."""
    rules: tuple[RuleCounts, ...] = ()
    stepped_back: StepBack | None = None

    def has_same_conditions(self, other: Any) -> bool:
        """Whether at most counts differ. A first count is more than that, and so are verdicts that depend on states,
        and the number of tainted devices, which follows a change of the mode.
        """
        is_first_count = (self.selected_pods is None) != (other.selected_pods is None)
        return (
            super().has_same_conditions(other)
            and (self.mode, self.stepped_back) == (other.mode, other.stepped_back)
            and self.tainted_devices == other.tainted_devices
            and not is_first_count
            and _rejections(self.rules) == _rejections(other.rules)
        )


def _rejections(rules: Iterable[RuleCounts]) -> list[tuple[str, str, object]]:
    """What rules with states reject, which takes effect only when it is written; of devices, all states."""
    return [
        (
            rule.rule,
            rule.expression,
            rule.rejected_nodes() if rule.device_states is None else rule.device_states,
        )
        for rule in rules
        if rule.node_states is not None or rule.device_states is not None
    ]


def rule_expression(rule: AvoidRule, kind: PolicyKind) -> str:
    """The text of a rule of `avoid`."""
    text = " and ".join(_comparison_text(part, kind) for part in rule.parts)
    return short_expression(text + policy_rejection_reasons.times_text(rule.times))


def short_expression(text: str) -> str:
    """The text of a rule within `MAX_EXPRESSION`."""
    return truncate(text, MAX_EXPRESSION)


def comparison_expression(comparison: Comparison, kind: PolicyKind) -> str:
    """The text of a comparison."""
    return short_expression(_comparison_text(comparison, kind))


def preference_expression(source: Comparison) -> str:
    """The text of a preference by the values of a metric."""
    order = "Ascending" if source.operator == "below" else "Descending"
    return truncate(f"{source.query or source.metric_request().name} {order}", MAX_EXPRESSION)


def _comparison_text(comparison: Comparison, kind: PolicyKind) -> str:
    """A comparison as its policy contains it, with its query: those who read the status can read the policy."""
    text = policy_rejection_reasons.comparison_text(comparison, kind)
    return text.replace(comparison.metric, comparison.query, 1) if comparison.query else text
