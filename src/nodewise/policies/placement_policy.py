"""The model of a policy. TASPolicy, PlacementPolicy and ClusterPlacementPolicy are parsed into it. No I/O.

A policy selects pods, rejects nodes (`avoid`), prefers nodes (`prefer`), labels nodes (`node_labels`) and taints
devices (`device_taints`). Its rules are comparisons of one metric with a number. Equal comparisons of several policies
and kinds are evaluated once.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from nodewise.base.errors import Problem
from nodewise.metrics.metrics_source import MetricRequest

PolicyKind = Literal["TASPolicy", "PlacementPolicy", "ClusterPlacementPolicy"]

Enforcement = Literal["Required", "Preferred"]
"""What `avoid` does to the nodes that it rejects: they take no selected pods, or they come after all other nodes."""
Mode = Literal["Enforce", "Canary", "Shadow"]
"""For which of its pods a policy has an effect: for all, for those of `Policy.canary`, or for none. It is evaluated in
each mode."""

_KIND_TEXTS: Final[Mapping[PolicyKind, str]] = {
    "TASPolicy": "telemetry policy",
    "PlacementPolicy": "placement policy",
    "ClusterPlacementPolicy": "cluster placement policy",
}
REASON_MARKS: Final = tuple(f" {text} " for text in _KIND_TEXTS.values())
"""Texts that mark reasons of policies in kube-scheduler's message about a pod, where a count precedes each reason."""
_REASON: Final = re.compile(
    rf"(?:{'|'.join(text for kind, text in _KIND_TEXTS.items() if kind != 'TASPolicy')}) [a-z0-9./-]+(?=: )"
)
"""The beginning of a reason of a PlacementPolicy or ClusterPlacementPolicy, as `PolicyKey.reason` writes it."""


class PolicyKey(NamedTuple):
    """What identifies a policy."""

    kind: PolicyKind
    namespace: str
    """Empty for a ClusterPlacementPolicy."""
    name: str

    @property
    def path(self) -> str:
        """`web/cool`, or `cool` without a namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def text(self) -> str:
        """The policy as reasons and messages name it: `placement policy web/cool`."""
        return f"{_KIND_TEXTS[self.kind]} {self.path}"

    def reason(self, why: str) -> str:
        """The text of a rejection by the policy, which pod events contain."""
        return f"{self.text()}: {why}"


def find_rejecting_policies(message: str) -> frozenset[str]:
    """The policies whose `PolicyKey.reason` kube-scheduler's message contains, as in `PolicyKey.text`.

    TASPolicies are left out: they have no guard, which is what the policies are counted for.
    """
    return frozenset(_REASON.findall(message))


class Comparison(msgspec.Struct, frozen=True):
    """A comparison of one metric with a number. A node meets it where `metric operator target` is true.

    Evaluations and their histories are shared by equal comparisons, so this contains nothing about the policy.
    """

    metric: str
    operator: str
    """One of `rule_operators.OPERATORS`; another one is true nowhere."""
    target: int = 0
    """Nano-units."""
    release: int | None = None
    """What takes the place of the target while a node is rejected, nano-units (`hysteresis`); None for the target."""
    when_missing: Literal["", "pass", "reject"] = ""
    """Empty: the agent's option applies, which is only for TASPolicy."""
    max_age_s: float | None = None
    """None: the agent's option applies."""
    query: str = ""
    """The expression that Prometheus evaluates instead of the metric's name."""
    aggregate: str = ""
    """One of `AGGREGATIONS`: how several series of one node become one value. Empty: they must be equal."""
    empty_means: Literal["", "healthy"] = ""
    """`healthy`: a node without a series does not meet the comparison, also if the query returns no series at all."""
    unusable: str = ""
    """Why the comparison cannot be evaluated; empty if it can."""
    refusal: str = ""
    """Why it needs a trusted namespace, if it is unusable without (`policy_namespace_trust`)."""
    remedy: str = ""
    """How to make it usable without a change of the policy; empty if there is no such way."""
    device_label: str = ""
    """The label of the series that identifies a device, for a comparison of devices; empty for one of nodes."""

    def metric_request(self, max_age_s: float = 0.0) -> MetricRequest:
        """The request to the sources; `max_age_s` is the agent's and applies if the comparison has none."""
        age_s = max_age_s if self.max_age_s is None else self.max_age_s
        empty_is_healthy = self.empty_means == "healthy"
        return MetricRequest(
            self.metric,
            self.query,
            age_s,
            self.aggregate,
            empty_is_healthy,
            device_label=self.device_label,
        )


class HoldTimes(NamedTuple):
    """The times of a rule, in seconds."""

    for_s: float = 0.0
    """How long a node must break the rule before it is rejected."""
    keep_for_s: float = 0.0
    """How long a node stays rejected after it no longer breaks the rule."""


class AvoidRule(msgspec.Struct, frozen=True):
    """A node that meets all parts takes no selected pods. Usually there is one part."""

    parts: tuple[Comparison, ...]
    times: HoldTimes = HoldTimes()
    """`for` and `keepFor`."""

    @property
    def has_states(self) -> bool:
        """Whether its verdict depends on earlier values (`hysteresis`)."""
        return any(self.times) or any(part.release is not None for part in self.parts)


class Preference(msgspec.Struct, frozen=True):
    """An order of nodes by one metric."""

    source: Comparison
    """`below` prefers small values and `above` large ones; another operator defines no order. The target is unused."""
    weight: int = 1
    """The share of the preference in the weighted mean of all preferences of a pod."""


class LabelRule(msgspec.Struct, frozen=True):
    """A node that meets all parts gets labels."""

    parts: tuple[Comparison, ...]
    labels: tuple[tuple[tuple[str, str], ...], ...]
    """For each part, keys and values. Of several values of a key, that of the part with the most extreme metric value
    applies. Usually only the first part has labels."""


class DeviceRule(msgspec.Struct, frozen=True):
    """A device that meets all parts is tainted."""

    parts: tuple[Comparison, ...]
    """One, or two for a range operator; all with the same `device_label`."""
    driver: str
    attribute: str = ""
    """The attribute of devices that has the value of the label; empty for the name of the device."""
    times: HoldTimes = HoldTimes()
    effect: Literal["NoSchedule", "NoExecute"] = "NoSchedule"
    max_share: str = "0.25"
    """The share of the driver's devices that it may taint, as written: a decimal number between 0 and 1."""


class Requirement(NamedTuple):
    """A requirement for one label of a pod or a namespace."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: frozenset[str] = frozenset()

    def is_met(self, labels: Mapping[str, str]) -> bool:
        """Whether labels meet the requirement. An absent label meets `NotIn` and `DoesNotExist`.

        Source: apimachinery v0.36 `pkg/labels/selector.go`, `Requirement.Matches`.
        """
        value = labels.get(self.key)
        if self.operator == "In":
            return value is not None and value in self.values
        if self.operator == "NotIn":
            return value is None or value not in self.values
        return (value is not None) == (self.operator == "Exists")


class LabelSelector(msgspec.Struct, frozen=True):
    """A label selector. Without requirements it selects everything."""

    requirements: tuple[Requirement, ...] = ()
    """`matchLabels` and `matchExpressions`; all of them must be met."""

    def selects(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.is_met(labels) for requirement in self.requirements)


class PodSelection(msgspec.Struct, frozen=True):
    """Which pods a policy selects by labels."""

    pods: LabelSelector = LabelSelector()
    namespaces: LabelSelector = LabelSelector()
    """The namespaces of a ClusterPlacementPolicy's pods. Unused in a PlacementPolicy: the pods are in its namespace."""


class Canary(msgspec.Struct, frozen=True):
    """The pods for which a policy in the mode Canary has an effect, among those that it selects."""

    pods: LabelSelector | None = None
    percent: int = 0
    """Without `pods`: of a hundred workloads, how many are part of it."""


class Guard(msgspec.Struct, frozen=True):
    """Limits of what a policy may do. While one is exceeded, the policy steps back: it only observes."""

    max_rejected_share: str = ""
    """As written, a decimal number between 0 and 1; empty for no limit."""
    max_waiting_pods: int | None = None
    within_s: float = 30.0
    """How long a limit may be exceeded."""
    resume_after_s: float | None = None
    """The time after which it is enforced again; None if only an edit of the spec does that."""


class Policy(msgspec.Struct, frozen=True):
    """A whole policy.

    A policy that cannot be understood has one unusable part in `avoid`, which rejects every node.
    """

    key: PolicyKey
    created: str = ""
    """RFC 3339, which sorts by time: older policies come first."""
    selection: PodSelection | None = None
    """None for a TASPolicy, which a pod names by its label, and for a policy that selects no pods."""
    mode: Mode = "Enforce"
    canary: Canary | None = None
    guard: Guard | None = None
    stepped_back: bool = False
    """Whether the leader found that it exceeds a limit of its guard, by the policy's status."""
    avoid: tuple[AvoidRule, ...] = ()
    enforcement: Enforcement = "Required"
    prefer: tuple[Preference, ...] = ()
    """Of a TASPolicy only the first one counts, as in the older system; the metrics of all are fetched."""
    node_labels: tuple[LabelRule, ...] = ()
    device_taints: tuple[DeviceRule, ...] = ()
    sections: tuple[str, ...] = ()
    """The lists of rules that the spec has, by their names there: `dontschedule`, or `avoid`."""
    problems: tuple[Problem, ...] = ()
    not_trusted: str = ""
    """A message that lists what has no effect without trust in the namespace (`policy_namespace_trust`); empty
    for none."""
    over_budget: str = ""
    """A message about what is beyond a budget of the namespace (`policy_budgets`); empty for nothing."""
    no_verdict_label: str = ""
    """Why native mode has no space for its node label (`policy_budgets`); empty if it has, or does not need it."""
    no_preference_label: bool = False
    """Whether native mode has no space for the node label with the classes of its preferences (`policy_budgets`)."""
    not_enforced: str = ""
    """Why the whole policy has no effect; empty if it has."""
    uid: str = ""
    """Of the object, whose name may have belonged to another policy before. Empty in files without uids."""

    @property
    def namespace(self) -> str:
        return self.key.namespace

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def namespaces(self) -> frozenset[str]:
        """The namespace of the policy; none for a ClusterPlacementPolicy."""
        return frozenset(filter(None, [self.key.namespace]))

    @property
    def only_prefers(self) -> bool:
        """Whether pods may be on nodes that `avoid` rejects."""
        return self.enforcement == "Preferred"

    @property
    def is_shadow(self) -> bool:
        return self.mode == "Shadow"

    @property
    def only_observes(self) -> bool:
        """Whether it has no effect on any pod or node."""
        return self.is_shadow or self.stepped_back

    def avoided(self) -> Iterator[Comparison]:
        return (part for rule in self.avoid for part in rule.parts)

    def groups(self) -> Iterator[int]:
        """For each usable comparison of `avoid`, the position of its rule; -1 for a rule with one part."""
        for position, rule in enumerate(self.avoid):
            group = position if len(rule.parts) > 1 else -1
            yield from (group for part in rule.parts if not part.unusable)

    def comparisons(self) -> Iterator[Comparison]:
        """All comparisons of nodes, also unusable and equal ones."""
        yield from self.avoided()
        yield from (preference.source for preference in self.prefer)
        yield from (part for rule in self.node_labels for part in rule.parts)

    def device_comparisons(self) -> Iterator[Comparison]:
        """All comparisons of devices, which are not among `comparisons`."""
        return (part for rule in self.device_taints for part in rule.parts)

    def usable_comparisons(self) -> Iterator[Comparison]:
        """All comparisons that can be evaluated, also equal ones."""
        return (comparison for comparison in self.comparisons() if not comparison.unusable)

    def with_comparisons(self, change: Callable[[Comparison], Comparison]) -> "Policy":
        """The policy with every comparison changed."""
        replace = msgspec.structs.replace
        return replace(
            self,
            avoid=tuple(replace(rule, parts=tuple(map(change, rule.parts))) for rule in self.avoid),
            prefer=tuple(replace(preference, source=change(preference.source)) for preference in self.prefer),
            node_labels=tuple(
                replace(rule, parts=tuple(map(change, rule.parts))) for rule in self.node_labels
            ),
        )

    def with_label_keys(self, is_kept: Callable[[str], bool]) -> "Policy":
        """The policy with only the node labels of some keys, and without rules that lose all of their labels."""
        kept = []
        for rule in self.node_labels:
            labels = tuple(tuple(label for label in part if is_kept(label[0])) for part in rule.labels)
            if labels == rule.labels or any(labels):
                kept.append(LabelRule(rule.parts, labels))
        return msgspec.structs.replace(self, node_labels=tuple(kept))


def unusable_rule(why: str) -> AvoidRule:
    """A rule that rejects every node, in place of rules that cannot be understood."""
    return AvoidRule((Comparison("", "", unusable=why),))
