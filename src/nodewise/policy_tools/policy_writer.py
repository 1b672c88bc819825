"""Writes policies and suites as YAML with comments: converted ones, and a new one with a threshold of a metric."""

import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from nodewise.base import clock, quantity
from nodewise.base.errors import visible
from nodewise.kube import yaml_writer
from nodewise.kube.object_files import DEFAULT_NAMESPACE

if TYPE_CHECKING:  # a conversion needs no values of metrics, and so no arrays
    from nodewise.metrics.aggregation import Direction, ValueDistribution
    from nodewise.metrics.metrics_source import MetricRequest
    from nodewise.metrics.series import Series

_WIDTH: Final = 100  # of the text of a comment


def format_policy(document: Mapping[str, Any], comments: Sequence[str] = ()) -> str:
    """One YAML document, with its comments at the top and without `---`."""
    return "".join(f"{line}\n" for line in _comment_lines(comments)) + yaml_writer.dump(document)


POLICY_FILE: Final = "policy.yaml"
SUITE_FILE: Final = "tests/suite.yaml"
_POD: Final = "example"
_MINUTE_S: Final = 60.0  # between two values and two evaluations, the default of a suite
_LAST_VALUES: Final = 4  # values after the last change, so that tests that are added have some
_PLAIN_METRIC: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_COMMENTS: Final[Sequence[str]] = (
    "Tests of the policy: nodewise policy test FOLDER.",
    "Values are one per minute: 80+1x10 are 80 to 90, _ is a missing value, and stale ends a series.",
)
_AT_THRESHOLD, _BEYOND, _NO_VALUE = "at-the-threshold", "beyond-it", "without-a-value"
"""The nodes of a suite."""
_MOST_NODES: Final = 5  # nodes that are named in a comment
_MAX_NAME: Final = 63
_ENFORCEMENT_LINES: Final = {
    "Required": ["  # A node that meets any of these rules takes no such pods."],
    "Preferred": [
        "  # Such pods are placed on other nodes, if there are any.",
        "  enforcement: Preferred",
        "  # A node that meets any of these rules comes after all others.",
    ],
}

_MODE_LINES: Final[Mapping[str, Sequence[str]]] = {
    "Enforce": [],
    "Shadow": [
        "  # Evaluated and reported, without any effect; with Enforce, the policy has one.",
        "  mode: Shadow",
    ],
}


class NewRule(NamedTuple):
    """A rule of a new policy, which avoids nodes."""

    request: "MetricRequest"
    direction: "Direction"
    threshold: str
    """A quantity as it was typed or proposed."""
    release: str = ""
    """The second threshold; empty for none."""
    for_s: float | None = None
    keep_for_s: float | None = None
    title: str = ""
    """What the values of a query are; empty for a metric."""
    comments: Sequence[str] = ()

    @property
    def name(self) -> str:
        return self.title or self.request.name


class NewPolicy(NamedTuple):
    """A policy that avoids nodes."""

    rules: Sequence[NewRule]
    labels: Mapping[str, str]
    """Of the pods that it affects; empty: all pods."""
    name: str
    namespace: str
    """Empty: the one that kubectl uses. A cluster policy with a namespace selects the pods of this namespace only."""
    is_cluster_wide: bool
    enforcement: Literal["Required", "Preferred"]
    mode: Literal["Enforce", "Shadow"]
    guard: Mapping[str, str] = {}
    comments: Sequence[str] = ()
    """Paragraphs at the top."""


class CurrentValues(NamedTuple):
    """The values of all nodes for a rule."""

    distribution: "ValueDistribution"
    series: "Series"


def namespaces_text(is_cluster_wide: bool) -> str:
    """Where the pods are that a policy can affect."""
    return "the selected namespaces" if is_cluster_wide else "the namespace"


def default_name(metric: str) -> str:
    """The name of a policy without one."""
    plain = re.sub(r"[^a-z0-9]+", "-", metric.lower()).strip("-")
    return f"avoid-{plain}"[:_MAX_NAME].rstrip("-")


def policy_lines(
    policy: NewPolicy, values: Sequence[CurrentValues | None], command: str = "policy new"
) -> Iterator[str]:
    """The YAML, with comments that say what each field means, and the values of each rule unless they are None."""
    yield from _comment_lines(policy.comments)
    yield f"# Printed by `nodewise {command}` on {clock.format_rfc3339(clock.SystemClock().now())[:10]}."
    for rule, current in zip(policy.rules, values, strict=True):
        if current is not None:
            lines = distribution_lines(current.distribution, current.series, rule.title)
            yield from (f"# {line}" for line in lines)
    yield "apiVersion: nodewise.io/v1alpha1"
    yield f"kind: {'Cluster' if policy.is_cluster_wide else ''}PlacementPolicy"
    yield "metadata:"
    yield f"  name: {yaml_writer.scalar(policy.name)}"
    if policy.namespace and not policy.is_cluster_wide:
        yield f"  namespace: {yaml_writer.scalar(policy.namespace)}"
    yield "spec:"
    yield from _spec_lines(policy)
    yield "  avoid:"
    explained: set[str] = set()
    for rule, current in zip(policy.rules, values, strict=True):
        for line in _rule_lines(rule, current):
            # a comment about a field is the same in each rule
            if not line.startswith("    #") or line not in explained:
                yield line
            explained.add(line)


def _spec_lines(policy: NewPolicy) -> Iterator[str]:
    """All fields but the rules."""
    if policy.is_cluster_wide:
        yield "  # The namespaces whose pods the policy affects; {} selects all."
        name = {"kubernetes.io/metadata.name": policy.namespace} if policy.namespace else {}
        yield from _selector_lines("namespaceSelector", name)
    inside = namespaces_text(policy.is_cluster_wide)
    yield f"  # The pods that the policy affects; {{}} selects all pods of {inside}."
    yield from _selector_lines("podSelector", policy.labels)
    yield from _MODE_LINES[policy.mode]
    if policy.guard:
        yield "  # The policy steps back to the mode Shadow while it rejects a larger share of all nodes."
        yield "  guard:"
        yield from (f"    {key}: {yaml_writer.scalar(value)}" for key, value in policy.guard.items())
    yield from _ENFORCEMENT_LINES[policy.enforcement]


def _comment_lines(paragraphs: Sequence[str], indent: str = "") -> Iterator[str]:
    for paragraph in paragraphs:
        for line in textwrap.wrap(visible(paragraph), _WIDTH, break_on_hyphens=False):
            yield f"{indent}# {line}"


def _selector_lines(field: str, labels: Mapping[str, str]) -> Iterator[str]:
    yield f"  {field}:{'' if labels else ' {}'}"
    if labels:
        yield "    matchLabels:"
        yield from (
            f"      {yaml_writer.scalar(key)}: {yaml_writer.scalar(value)}" for key, value in labels.items()
        )


def _rule_lines(rule: NewRule, current: CurrentValues | None) -> Iterator[str]:
    request = rule.request
    yield from _comment_lines(rule.comments, "  ")
    if current is not None:
        nodes = _rejected_nodes(current.distribution, rule.direction, quantity.parse(rule.threshold))
        yield f"  # {nodes}"
    yield (
        f"  - query: {yaml_writer.scalar(request.query)}"
        if request.query
        else f"  - metric: {yaml_writer.scalar(request.metric)}"
    )
    if request.aggregate:
        yield f"    aggregate: {request.aggregate}  # of several values of one node"
    yield f"    {rule.direction}: {_written_value(rule.threshold)}"
    yield from _hold_lines(rule)
    if request.empty_is_healthy:
        yield "    # A node without a series takes pods, also if no node has one."
        yield "    emptyMeans: Healthy"
    else:
        yield "    # Whether a node without a value takes pods: Allow or Reject."
        yield "    whenMissing: Allow"


def _hold_lines(rule: NewRule) -> Iterator[str]:
    """The fields that keep the verdict about a node whose value is near the threshold."""
    if rule.for_s is not None:
        yield f"    # How long the value of a node must be {rule.direction} the threshold before it is avoided."
        yield f"    for: {clock.format_duration(rule.for_s)}"
    if rule.release:
        bound = "at most" if rule.direction == "above" else "at least"
        yield f"    # An avoided node takes pods again when its value is {bound} this."
        yield f"    release: {_written_value(rule.release)}"
    if rule.keep_for_s is not None:
        yield f"    # How long a node is still avoided when its value is no longer {rule.direction} the threshold."
        yield f"    keepFor: {clock.format_duration(rule.keep_for_s)}"


def _written_value(text: str) -> str:
    """A quantity in YAML: a number if it is whole, else a string, because the field accepts no fractions as numbers."""
    return text if re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", text) else f'"{text.strip()}"'


def distribution_lines(distribution: "ValueDistribution", series: "Series", title: str = "") -> Iterator[str]:
    """The number of nodes with values, and some percentiles. The values of a query have a title."""
    count, without = len(distribution.ordered), len(distribution.without_value)
    nodes = "1 node" if count == 1 else f"{count} nodes"
    yield f"{title or series.metric}: {nodes} with a value from source {series.source}, {without} without"
    if series.incomplete:
        yield f"Warning: the response is incomplete, so values may be missing: {series.incomplete}"
    figures = {
        "minimum": distribution.ordered[0],
        "median": distribution.percentile(50),
        "90th percentile": distribution.percentile(90),
        "maximum": distribution.ordered[-1],
    }
    yield ", ".join(f"{name} {quantity.nano_to_text(value)}" for name, value in figures.items())


def _rejected_nodes(distribution: "ValueDistribution", direction: "Direction", threshold: int) -> str:
    """The number of nodes beyond a threshold in nano-units, and the first of their names."""
    nodes = distribution.beyond(direction, threshold)
    count = f"{len(nodes)} of {len(distribution.ordered) + len(distribution.without_value)} nodes now"
    if not nodes:
        return count
    names = ", ".join(nodes[:_MOST_NODES])
    return f"{count}: {names}{', …' if len(nodes) > _MOST_NODES else ''}"


def format_suite(policy: NewPolicy) -> str:
    """The suite as YAML. Its values are close to the thresholds, so that it detects every change of a rule."""
    labels = {"labels": dict(policy.labels)} if policy.labels else {}
    pods = [{"name": _POD, "namespace": policy.namespace or DEFAULT_NAMESPACE, **labels}]
    effect = "come last" if policy.enforcement == "Preferred" else "take no pods"
    tests = []
    for rule in policy.rules:
        values, expectations = _values_and_expectations(policy, rule)
        count = values[_AT_THRESHOLD].rpartition("x")[2]
        others = [
            _input_series(other, node, f"{quantity.nano_to_text(quantity.parse(other.threshold))}x{count}")
            for other in policy.rules
            for node in values
            if other is not rule
        ]
        series = [_input_series(rule, node, text) for node, text in values.items()]
        tests.append(
            {
                "name": f"nodes with {_comparison(rule)} {effect}",
                "nodes": [*values, _NO_VALUE],
                "pods": pods,
                "input_series": [*series, *others],
                "expect": expectations,
            }
        )
        if rule.request.empty_is_healthy:
            at = {"eval_time": "1m", "pod": f"{pods[0]['namespace']}/{_POD}"}
            effect_of_none: dict[str, Any] = {"rejected": []}
            if policy.enforcement == "Preferred":
                effect_of_none = {"ranks": dict.fromkeys(values, 1)}
            tests.append(
                {
                    "name": f"nodes without {rule.name} take pods",
                    "nodes": [*values],
                    "pods": pods,
                    "input_series": others,
                    "expect": [{**at, **effect_of_none}],
                }
            )
    return format_policy({"policy_files": [f"../{POLICY_FILE}"], "tests": tests}, _COMMENTS)


def _input_series(rule: NewRule, node: str, values: str) -> dict[str, Any]:
    metric = rule.request.metric
    if rule.request.query:
        return {"query": rule.request.query, "series": f'{{node="{node}"}}', "values": values}
    # a name that PromQL cannot read without quotes is a label
    name = f"{metric}{{" if _PLAIN_METRIC.fullmatch(metric) else f'{{__name__="{metric}", '
    return {"series": f'{name}node="{node}"}}', "values": values}


def _comparison(rule: NewRule) -> str:
    threshold = quantity.nano_to_text(quantity.parse(rule.threshold))
    return f"{rule.name} {rule.direction} {threshold}"


def _values_and_expectations(policy: NewPolicy, rule: NewRule) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The values of each node, one per minute, and what is expected before and after each effect of the rule."""
    threshold, for_s, keep_for_s = quantity.parse(rule.threshold), rule.for_s, rule.keep_for_s
    distance = abs(threshold) // 20 or quantity.NANO // 2
    beyond = threshold + (distance if rule.direction == "above" else -distance)
    minutes = int((for_s or _MINUTE_S) // _MINUTE_S) + 1
    phases = [(beyond, minutes)]
    # whether the node is avoided, by time
    effects = {0.0: False} if for_s else {}
    effects[for_s or _MINUTE_S] = True
    if rule.release:
        release = quantity.parse(rule.release)
        phases += [((threshold + release) // 2, 1), (release, _LAST_VALUES)]
        effects |= {minutes * _MINUTE_S: True, (minutes + 1) * _MINUTE_S: False}
    elif keep_for_s:
        phases.append((threshold, math.ceil(keep_for_s / _MINUTE_S) + 1))
        effects |= {minutes * _MINUTE_S: True, minutes * _MINUTE_S + keep_for_s: False}
    else:
        phases = [(beyond, minutes + _LAST_VALUES)]
    values = {
        _AT_THRESHOLD: _notation(threshold, sum(count for _, count in phases)),
        _BEYOND: " ".join(_notation(value, count) for value, count in phases),
    }
    expectations = [
        _expectation(policy, rule, at_s, is_avoided=is_avoided) for at_s, is_avoided in effects.items()
    ]
    return values, expectations


def _notation(value: int, count: int) -> str:
    """So many equal values."""
    return f"{quantity.nano_to_text(value)}x{count - 1}" if count > 1 else quantity.nano_to_text(value)


def _expectation(policy: NewPolicy, rule: NewRule, at_s: float, *, is_avoided: bool) -> dict[str, Any]:
    """What is expected at a time, in the order of the fields of a suite."""
    pod = f"{policy.namespace or DEFAULT_NAMESPACE}/{_POD}"
    at = {"eval_time": clock.format_duration(at_s) if at_s else "0s", "pod": pod}
    if policy.enforcement == "Preferred":
        return {**at, "ranks": {_AT_THRESHOLD: 1, _NO_VALUE: 1, _BEYOND: 3 if is_avoided else 1}}
    if not is_avoided:
        return {**at, "rejected": []}
    # with states, the reason depends on the time since the last change; that of a query does not name it
    has_reason = not (rule.release or rule.for_s or rule.keep_for_s or rule.request.query)
    return {**at, "rejected": {_BEYOND: _comparison(rule)} if has_reason else [_BEYOND]}
