"""Converts a TASPolicy to a PlacementPolicy and a ClusterPlacementPolicy with the same verdicts and ranks. No I/O.

Rules with metric names become a PlacementPolicy. Node labels and rules with a query reach beyond a namespace and become
a ClusterPlacementPolicy. Both select the pods by the label that names the TASPolicy, so that no pod has to be changed.
Where the meaning differs, the result has comments.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from nodewise.base import clock, quantity
from nodewise.base.errors import Problem, shown
from nodewise.policies import placement_policy_parser, rule_operators, taspolicy_parser
from nodewise.policies.placement_policy import Comparison, Policy
from nodewise.policies.placement_policy_fields import API_VERSION, MAX_LABEL_VALUE, MAX_QUANTITY
from nodewise.policies.policy_objects import PolicyMetadata, PolicyObject
from nodewise.policies.policy_selection import NAME_LABEL, POLICY_LABEL, SYSTEM_NAMESPACE

_MAX_NAME: Final = 253
_LEFT_OUT: Final = "Left out, because it has no effect: {}"
_INT64_LIMIT: Final = 2**63
_NS: Final = 10**9

Document = dict[str, Any]


class ConvertedPolicy(NamedTuple):
    """A policy of a new kind, and comments about differences."""

    document: Document
    comments: tuple[str, ...]


class Conversion(NamedTuple):
    """The policies that replace a TASPolicy, or the problems for which there are none."""

    policies: tuple[ConvertedPolicy, ...]
    problems: tuple[Problem, ...] = ()
    left_out: tuple[Problem, ...] = ()
    """The parts of a converted policy that have no effect, and so are in no new policy."""


def convert(  # complexity: what cannot be converted, then what is left out
    policy_object: PolicyObject, when_missing: Literal["pass", "reject"], metadata: Collection[str] = ()
) -> Conversion:
    """Convert a policy of a trusted namespace. `when_missing` is the agent's option of this name; `metadata` are the
    keys of the object's labels and annotations, which a comment names.
    """
    policy = taspolicy_parser.parse_policy(policy_object)
    if any(part.unusable for part in policy.avoided()):
        return Conversion((), policy.problems)
    if policy.namespace == SYSTEM_NAMESPACE:
        expected = "another namespace: only TASPolicies apply to its pods, so keep this one"
        return Conversion((), (Problem("metadata.namespace", shown(policy.namespace), expected),))
    try:
        policies = tuple(_convert_valid_policy(policy, when_missing))
    except ValueError as error:
        return Conversion((), (Problem("spec.strategies", str(error), f"at most {MAX_QUANTITY} characters"),))
    if not policies:
        expected = "a rule with an effect on the pods that name the policy, or on nodes"
        return Conversion((), policy.problems or (Problem("spec.strategies", "no rule", expected),))
    if problems := tuple(problem for document, _ in policies for problem in _problems(document)):
        return Conversion((), problems)
    dropped = tuple(_dropped_labels(policy_object, policies, policy.problems))
    head = [f"Replaces {'a part of ' if len(policies) > 1 else ''}TASPolicy {policy.key.path}."]
    if metadata:
        head.append(f"Labels and annotations of the TASPolicy itself are left out: {', '.join(metadata)}.")
    named = [converted._replace(comments=(*head, *converted.comments)) for converted in policies]
    # the last one has the node labels
    named[-1] = named[-1]._replace(comments=(*named[-1].comments, *map(_LEFT_OUT.format, dropped)))
    return Conversion(tuple(named), (), (*policy.problems, *dropped))


def _dropped_labels(  # complexity: the spec may have any form
    policy: PolicyObject, converted: Sequence[ConvertedPolicy], problems: Sequence[Problem]
) -> Iterator[Problem]:
    """Each label of `labeling` that no new policy has, without those that have one of these problems."""
    reported = {problem.field for problem in problems}
    kept = Counter(
        (key.rpartition("/")[2], value)
        for document, _ in converted
        for rule in document["spec"].get("nodeLabels", ())
        for key, value in rule["labels"].items()
        if key.startswith(taspolicy_parser.PREFIX)
    )
    strategy = msgspec.json.decode(policy.spec)["strategies"].get("labeling") or {}
    for number, rule in enumerate(strategy.get("rules") or ()):
        labels = rule.get("labels") if isinstance(rule, Mapping) else None
        for place, label in enumerate(labels if isinstance(labels, list) else ()):
            name, _, value = label.partition("=") if isinstance(label, str) else ("", "", "")
            field = f"spec.strategies.labeling.rules[{number}].labels[{place}]"
            kept[name, value] -= 1
            if kept[name, value] < 0 and field not in reported:
                yield Problem(field, shown(label), "a label with an effect")


def _convert_valid_policy(policy: Policy, when_missing: str) -> Iterator[ConvertedPolicy]:
    """The policies that replace one whose `dontschedule` can be evaluated."""
    comments: list[str] = []
    namespaced, cluster = _convert_rules_about_pods(policy, when_missing, comments)
    if node_labels := list(_convert_label_rules(policy, comments)):
        cluster["nodeLabels"] = node_labels
    # problems that no comment names yet, such as a label that is left out
    text = "\n".join(comments)
    comments += (
        _LEFT_OUT.format(problem)
        for problem in policy.problems
        if str(problem) not in text and f"{problem.field.rpartition('.')[0]} is left out" not in text
    )
    pods = {"podSelector": {"matchLabels": {POLICY_LABEL: policy.name}}}
    can_be_named = len(policy.name) <= MAX_LABEL_VALUE
    if namespaced:
        namespaced = pods | namespaced
    if can_be_named and cluster and (not namespaced or cluster.keys() != {"nodeLabels"}):
        cluster = {"namespaceSelector": {"matchLabels": {NAME_LABEL: policy.namespace}}, **pods, **cluster}
    for spec, is_cluster in ((namespaced, False), (cluster, True)):
        if spec:
            own = (*_kind_comments(policy, spec, is_cluster=is_cluster), *comments)
            yield ConvertedPolicy(_document(policy, spec, is_cluster=is_cluster), own)
            comments = []


def _convert_rules_about_pods(
    policy: Policy, when_missing: str, comments: list[str]
) -> tuple[Document, Document]:
    """`avoid` and `prefer` of the PlacementPolicy and of the ClusterPlacementPolicy."""
    namespaced: Document = {}
    cluster: Document = {}
    for rule in policy.avoid:
        parts = [_avoid_fields(part, when_missing) for part in rule.parts]
        rules = cluster if any(part.query for part in rule.parts) else namespaced
        rules.setdefault("avoid", []).append(parts[0] if len(parts) == 1 else {"all": parts})
    for preference in _convert_preference(policy, comments):
        (cluster if "query" in preference else namespaced)["prefer"] = [preference]
    if (namespaced or cluster) and len(policy.name) > MAX_LABEL_VALUE:
        comments.append("No pod can name the TASPolicy, so its rules about pods are left out.")
        return {}, {}
    return namespaced, cluster


def _document(policy: Policy, spec: Document, *, is_cluster: bool) -> Document:
    """The object. A namespace has no dot, so the names of all ClusterPlacementPolicies differ."""
    metadata = {"name": policy.name, "namespace": policy.namespace}
    if is_cluster:
        metadata = {"name": f"{policy.namespace}.{policy.name}"}
    kind = "ClusterPlacementPolicy" if is_cluster else "PlacementPolicy"
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def _kind_comments(policy: Policy, spec: Document, *, is_cluster: bool) -> Iterator[str]:
    """What differs by the kind of the new policy."""
    if "podSelector" in spec:
        if "avoid" in spec or "prefer" in spec:
            yield f"Selects the pods by their label {POLICY_LABEL}; any other labels can replace it."
        else:
            yield f"Selects pods so that they can keep their label {POLICY_LABEL}; remove the selectors with it."
        yield "Pods of a DaemonSet are not selected."
    if is_cluster:
        yield (
            "Needs no trusted namespace. The TASPolicy does: without nodewise.io/trusted=true on namespace "
            f"{policy.namespace} its node labels have no effect, and its rules with a query reject every node."
        )
        names = sorted({part.metric for part in policy.comparisons() if part.query and not part.unusable})
        if names:
            yield f"A query has no name: messages call it query instead of {', '.join(names)}."


def _convert_preference(policy: Policy, comments: list[str]) -> Iterator[Document]:
    """The preference of `scheduleonmetric`: that of its first rule."""
    place = "spec.strategies.scheduleonmetric.rules"
    for number, preference in enumerate(policy.prefer):
        order = rule_operators.sort_direction(preference.source.operator)
        if number > 0:
            comments.append(f"{place}[{number}] is left out: only the first rule has an effect.")
        elif preference.source.unusable:
            comments.append(f"{place}[0] is left out, it has no effect: {preference.source.unusable}")
        elif order == 0:
            comments.append(
                f"{place}[0] is left out: its operator defines no order. It preferred all nodes with a value alike."
            )
        else:
            yield _source_fields(preference.source, order="Ascending" if order > 0 else "Descending")


def _convert_label_rules(policy: Policy, comments: list[str]) -> Iterator[Document]:
    """The rules of `deschedule` and `labeling`.

    The first of several parts decides which of several values of a label applies, so each part with labels is the first
    one of a rule of its own.
    """
    for rule in policy.node_labels:
        unusable = next((part.unusable for part in rule.parts if part.unusable), "")
        if unusable or not any(rule.labels):
            why = unusable or "it has no labels"
            comments.append(f"A rule for node labels is left out, it has no effect: {why}")
            continue
        fields = [_rule_fields(part) for part in rule.parts]
        for number, labels in enumerate(rule.labels):
            if labels:
                parts = [fields[number], *fields[:number], *fields[number + 1 :]]
                # the first of several values of a label applies
                yield (parts[0] if len(parts) == 1 else {"all": parts}) | {"labels": dict(reversed(labels))}


def _source_fields(part: Comparison, **more: Any) -> Document:
    source = {"query": part.query} if part.query else {"metric": part.metric}
    aggregate = {"aggregate": part.aggregate} if part.aggregate else {}
    age = {} if part.max_age_s is None else {"maxAge": format_age(part.max_age_s)}
    return source | aggregate | more | age


def _rule_fields(part: Comparison) -> Document:
    """The fields of a comparison, without `whenMissing`."""
    fields = _source_fields(part, **{part.operator: format_target(part.target)})
    return fields | ({"emptyMeans": "Healthy"} if part.empty_means else {})


def _avoid_fields(part: Comparison, when_missing: str) -> Document:
    rejects = (part.when_missing or when_missing) == "reject"
    return _rule_fields(part) | ({"whenMissing": "Reject"} if rejects else {})


def format_target(nano: int) -> int | str:
    """The value as policies write it: an integer if it is one of 64 bits. ValueError if it has too many digits."""
    whole, rest = divmod(nano, quantity.NANO)
    if rest == 0 and -_INT64_LIMIT <= whole < _INT64_LIMIT:
        return whole
    text = quantity.nano_to_text(nano)
    digits = text.rstrip("0")
    if rest == 0 and len(text) > MAX_QUANTITY:
        zeros = len(text) - len(digits)
        more = max(zeros - 99, 0)  # an exponent has at most two digits
        text = f"{digits}{'0' * more}e{zeros - more}"
    if len(text) > MAX_QUANTITY:
        raise ValueError(f"a target with {len(digits)} digits")
    return text


def format_age(seconds: float) -> str:
    """The duration, in whole nanoseconds."""
    ns = max(round(seconds * _NS), 1)
    whole, rest = divmod(ns, _NS)
    return f"{whole}.{rest:09d}".rstrip("0") + "s" if rest else clock.format_duration(whole)


def _problems(document: Document) -> Sequence[Problem]:
    """The problems of a converted policy: what TASPolicy allows and the new kinds do not."""
    metadata: Mapping[str, str] = document["metadata"]
    spec = msgspec.Raw(msgspec.json.encode(document["spec"]))
    new = PolicyObject(PolicyMetadata(metadata["name"], metadata.get("namespace", "")), spec)
    problems = list(placement_policy_parser.parse_policy(new, document["kind"]).problems)
    if len(metadata["name"]) > _MAX_NAME:
        problems.append(
            Problem("metadata.name", f"{len(metadata['name'])} characters", f"at most {_MAX_NAME}")
        )
    return problems
