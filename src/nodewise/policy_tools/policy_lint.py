"""The checks of `policy lint`: everything in a policy that the API server refuses, or that has no effect or another one
than it seems.

The parser of placement policies is as strict as the API server. That of TASPolicy is not: `taspolicies.yaml` beside
this module is a copy of the CRD (made by `make chart`), so there is one source. The rules in CEL about the names of
strategies and fields are those of `policies/taspolicy_parser.py`. `tests/cluster/test_policy_lint.py` and
`tests/cluster/test_placement_policy_parser.py` compare the verdicts with a real API server's.

`query_lint.py` has the checks of queries.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, Final

import msgspec

from nodewise.base import clock, quantity, safe_yaml_loader
from nodewise.base.errors import Problem, closest_names, did_you_mean, quoting_hint, shown
from nodewise.devices.resource_slices import ResourceSliceObject
from nodewise.policies import placement_policy_parser
from nodewise.policies import taspolicy_parser as policies
from nodewise.policies.placement_policy import LabelSelector, Policy, PolicyKind, Requirement
from nodewise.policies.placement_policy_fields import is_integer
from nodewise.policies.policy_objects import RESOURCES, PolicyObject, is_valid_label_part
from nodewise.policies.policy_selection import SYSTEM_NAMESPACE
from nodewise.policies.rule_operators import OPERATOR_FIELDS
from nodewise.policy_tools.query_lint import (
    MAX_LISTED,
    PrometheusFacts,
    check_queries,
    own_metrics,
    rule_objects,
    unknown_device_labels,
    unknown_metrics,
)


def _time_notes(policy: Policy, sync_period_s: float) -> Iterator[Problem]:
    """The notes about times of rules, and about device rules."""
    timed = [(f"spec.avoid[{number}]", rule.times) for number, rule in enumerate(policy.avoid)]
    timed += [
        (f"spec.deviceTaints[{number}]", rule.times) for number, rule in enumerate(policy.device_taints)
    ]
    for place, times in timed:
        for field, time_s in zip(("for", "keepFor"), times, strict=True):
            if 0 < time_s < sync_period_s:
                period = clock.format_duration(sync_period_s)
                expected = (
                    f"at least {period}, the default refresh period: states change with new values only"
                )
                yield Problem(f"{place}.{field}", clock.format_duration(time_s), expected)
    if policy.device_taints and policy.mode == "Canary" and policy.canary and policy.canary.pods is not None:
        expected = "percent, a share of the nodes: a taint is for all pods, so this canary taints no device"
        yield Problem("spec.canary.podSelector", "deviceTaints with a canary of pods", expected)


def effect_notes(  # complexity: one case for each note
    policy: Policy, sync_period_s: float
) -> Iterator[Problem]:
    """The notes about a policy without problems. `sync_period_s` is the time between two values of a metric."""
    yield from _time_notes(policy, sync_period_s)
    canary, guard = policy.canary, policy.guard
    if canary is not None and canary.pods is None and policy.selection is not None:
        expected = "podSelector in native mode, which has no canary by percent; the extender has it"
        yield Problem("spec.canary.percent", str(canary.percent), expected)
    elif (
        canary and canary.pods and policy.selection and is_contradictory([policy.selection.pods, canary.pods])
    ):
        expected = "labels that pods of spec.podSelector can have"
        yield Problem("spec.canary.podSelector", "no pod of spec.podSelector", expected)
    if guard is None or guard.max_waiting_pods is None:
        return
    if policy.only_prefers:
        expected = "maxRejectedShare; no pod waits because of a policy with enforcement Preferred"
        yield Problem("spec.guard.maxWaitingPods", str(guard.max_waiting_pods), expected)
    elif policy.key.kind == "ClusterPlacementPolicy" and not guard.max_rejected_share:
        expected = "maxRejectedShare as well; pods of the namespace in which most of them wait do not count"
        yield Problem("spec.guard.maxWaitingPods", str(guard.max_waiting_pods), expected)


def is_contradictory(selectors: Iterable[LabelSelector]) -> bool:
    """Whether no labels can meet all of these selectors."""
    requirements: dict[str, list[Requirement]] = {}
    for requirement in (each for selector in selectors for each in selector.requirements):
        requirements.setdefault(requirement.key, []).append(requirement)
    for key, own in requirements.items():
        values = {value for each in own for value in each.values}
        # any value that none of them names stands for all others
        candidates = [{}, *({key: value} for value in (*values, "".join(values) + "x"))]
        if not any(all(each.is_met(labels) for each in own) for labels in candidates):
            return True
    return False


KEYWORDS: Final = frozenset(
    {"type", "properties", "additionalProperties", "required", "items", "enum", "pattern", "description"}
    | {"maxLength", "maxItems", "maxProperties"}
    | {"x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-validations"}
)
"""The keywords in the schema of `spec` that this module knows; a test compares them with the definition."""
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_MAX_SUBDOMAIN: Final = 253
_MAX_BASE: Final = 58  # the most characters of `generateName` that are part of a generated name
_MAX_LABEL: Final = 63
_MISSPELLED: Final = 0.9
"""How similar a name is to that of a metric of nodewise."""
_LEAST_PERCENTAGE: Final = 2
"""A share is hardly more than 1, and a threshold of 1 % is rare."""
_LEAST_PERCENTAGE_OF_RATIO: Final = 10
"""Ratios other than shares may be more than 1, such as that of limits to capacity."""
_PATTERN_TEXT: Final = "a text that matches"
_TYPES: Final[Mapping[str, type]] = {"object": dict, "array": list, "string": str}
_TYPE_NAMES: Final = {"object": "an object", "array": "a list", "string": "a string"}


@cache
def spec() -> Mapping[str, Any]:
    """The schema of `spec` in the shipped definition."""
    text = resources.files(__package__).joinpath("taspolicies.yaml").read_bytes()
    [version] = safe_yaml_loader.load(text, "taspolicies.yaml")["spec"]["versions"]
    schema: Mapping[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def lint(
    policy: bytes,
    kind: PolicyKind,
    prometheus: PrometheusFacts = PrometheusFacts(),  # noqa: B008 - it is immutable
) -> list[Problem]:
    """Every problem of a policy in JSON."""
    whole = msgspec.json.decode(policy)
    policy_object = msgspec.json.decode(policy, type=PolicyObject)
    query_problems = check_queries(whole.get("spec"), prometheus).problems
    if kind != "TASPolicy":
        parsed = placement_policy_parser.parse_policy(policy_object, kind)
        return [*_head_problems(whole, kind), *parsed.problems, *query_problems]
    parsed_problems = policies.parse_policy(policy_object).problems
    # the parser describes values that a pattern refuses
    described = {problem.field: problem for problem in parsed_problems}
    refused = [
        described.get(problem.field, problem) if problem.expected.startswith(_PATTERN_TEXT) else problem
        for problem in problems(whole)
    ]
    known = {problem.field for problem in refused}
    others = (*parsed_problems, *_rules_without_effect(whole), *query_problems)
    return [*refused, *(problem for problem in others if problem.field not in known)]


def notes(
    policy: bytes,
    kind: PolicyKind,
    sync_period_s: float,
    prometheus: PrometheusFacts = PrometheusFacts(),  # noqa: B008 - it is immutable
    slices: Sequence[ResourceSliceObject] = (),
) -> list[Problem]:
    """The notes about the queries and metrics of a policy in JSON and, if it is a valid placement policy, those of
    `effect_notes` and, with ResourceSlices, about the devices of its rules.
    """
    spec = msgspec.json.decode(policy).get("spec")
    query_notes = [*check_queries(spec, prometheus).notes, *unknown_metrics(spec, prometheus)]
    query_notes += [*_own_metric_notes(spec, prometheus), *unknown_device_labels(spec, prometheus)]
    if kind == "TASPolicy":
        return query_notes
    policy_object = msgspec.json.decode(policy, type=PolicyObject)
    parsed = placement_policy_parser.parse_policy(policy_object, kind)
    if parsed.problems:
        return query_notes
    return [
        *query_notes,
        *effect_notes(parsed, sync_period_s),
        *(_device_notes(parsed, slices) if slices else ()),
    ]


def _own_metric_notes(spec: Any, prometheus: PrometheusFacts) -> Iterator[Problem]:
    """The notes about misspelled metrics of nodewise, and about shares that are compared with a percentage."""
    own = own_metrics()
    for path, rule in rule_objects("spec", spec):
        field = "metricname" if "metricname" in rule else "metric"
        metric = rule.get(field)
        if not isinstance(metric, str) or rule.get("query"):
            continue
        if metric in own or metric.endswith("_ratio"):
            yield from _percentage_notes(path, rule, metric)
        # other names are known only with Prometheus, so one must be very similar
        similar = closest_names(metric, own, 1, _MISSPELLED)
        if similar and metric not in own and not prometheus.metric_names:
            yield Problem(
                f"{path}.{field}", shown(metric), f'a metric of a source; did you mean "{similar[0]}"?'
            )


def _percentage_notes(path: str, rule: Mapping[str, Any], metric: str) -> Iterator[Problem]:
    # a sum of shares, such as those of CPUs, may be any number
    if not metric.endswith(("_share", "_ratio")) or rule.get("aggregate") == "sum":
        return
    least = _LEAST_PERCENTAGE if metric.endswith("_share") else _LEAST_PERCENTAGE_OF_RATIO
    for field in (*OPERATOR_FIELDS, "release", "target"):
        values = rule.get(field, ())
        for value in values if isinstance(values, list | tuple) else [values]:
            with contextlib.suppress(ValueError):
                nano = quantity.parse(str(value).removesuffix("%"))
                if nano >= least * quantity.NANO or str(value).endswith("%"):
                    share = quantity.nano_to_text(nano // 100)
                    expected = f'a share such as "{share}": {metric} is 1 for 100 %'
                    yield Problem(f"{path}.{field}", shown(value), expected)


def _device_notes(policy: Policy, slices: Sequence[ResourceSliceObject]) -> Iterator[Problem]:
    """The drivers and attributes of device rules that no ResourceSlice has."""
    # start-up time: numpy
    from nodewise.policies import device_matching

    attributes: dict[str, set[str]] = {}
    for item in slices:
        own = device_matching.slice_devices(item, {item.spec.driver: ()})
        attributes.setdefault(own.driver, set()).update(own.attribute_names)
    for number, rule in enumerate(policy.device_taints):
        path, names = f"spec.deviceTaints[{number}]", sorted(attributes.get(rule.driver, ()))
        if rule.driver not in attributes:
            expected = f"a driver with a ResourceSlice{did_you_mean(rule.driver, sorted(attributes))}"
            yield Problem(f"{path}.driver", shown(rule.driver), expected)
        elif rule.attribute and rule.attribute.removeprefix(f"{rule.driver}/") not in names:
            listed = f", which are {', '.join(names[:MAX_LISTED])}" if names else ""
            expected = (
                f"an attribute of devices of {rule.driver}{listed}{did_you_mean(rule.attribute, names)}"
            )
            yield Problem(f"{path}.deviceAttribute", shown(rule.attribute), expected)


def _rules_without_effect(policy: Any) -> Iterator[Problem]:
    """Problems of rules that the API server accepts and that have no effect."""
    for name in ("dontschedule", "deschedule", "labeling"):
        rules = policy
        for key in ("spec", "strategies", name, "rules"):
            rules = rules.get(key) if isinstance(rules, Mapping) else None
        for number, rule in enumerate(rules if isinstance(rules, list) else ()):
            if not isinstance(rule, Mapping):
                continue
            path = f"spec.strategies.{name}.rules[{number}]"
            if rule.get("target") in (None, ""):
                wanted = "a target; without one the value is compared with 0"
                yield Problem(f"{path}.target", "no target", wanted)
            if name == "labeling" and not rule.get("labels"):
                wanted = "at least one label name=value; without one the rule has no effect"
                yield Problem(f"{path}.labels", "no labels", wanted)
            if name == "labeling":
                yield from _repeated_labels(f"{path}.labels", rule.get("labels"))


def _repeated_labels(path: str, labels: Any) -> Iterator[Problem]:
    """Labels of a rule with the name of an earlier one, which applies."""
    names = [str(label).partition("=")[0] for label in labels] if isinstance(labels, list) else []
    for place, name in enumerate(names):
        if name in names[:place]:
            expected = f"one value of {shown(name)}; the first one in a rule applies"
            yield Problem(f"{path}[{place}]", shown(labels[place]), expected)


def problems(policy: Mapping[str, Any]) -> list[Problem]:
    """Everything in the API version, the metadata and the spec of a TASPolicy that the API server refuses."""
    refused = list(_head_problems(policy, "TASPolicy"))
    if policy.get("spec") is not None:
        refused += _value_problems("spec", policy["spec"], spec())
    return refused


def _head_problems(policy: Mapping[str, Any], kind: PolicyKind) -> Iterator[Problem]:
    """The problems of the API version and the metadata."""
    resource = RESOURCES[kind]
    yield from _metadata_problems(policy.get("metadata"))
    if policy.get("apiVersion") != (version := f"{resource.group}/{resource.version}"):
        yield Problem("apiVersion", shown(policy.get("apiVersion")), version)
    namespace = policy["metadata"].get("namespace") if isinstance(policy.get("metadata"), Mapping) else None
    if namespace and not resource.namespaced:
        expected = f"none; a {kind} is not in a namespace, and namespaceSelector selects those of its pods"
        yield Problem("metadata.namespace", shown(namespace), expected)
    elif kind == "PlacementPolicy" and namespace == SYSTEM_NAMESPACE:
        expected = "another namespace; a PlacementPolicy selects no pods of this one"
        yield Problem("metadata.namespace", shown(namespace), expected)


def _metadata_problems(metadata: Any) -> Iterator[Problem]:
    if not isinstance(metadata, Mapping):
        yield Problem("metadata", shown(metadata), "an object with a name")
        return
    texts = {field: metadata.get(field) or "" for field in ("name", "generateName", "namespace")}
    wrong = [field for field in texts if not isinstance(metadata.get(field), str | None)]
    yield from (Problem(f"metadata.{field}", shown(metadata[field]), "a string") for field in wrong)
    if not wrong:
        yield from _name_problems(**texts)
    for field in ("labels", "annotations"):
        yield from _label_key_problems(f"metadata.{field}", metadata.get(field), are_labels=field == "labels")


def _name_problems(name: str, generateName: str, namespace: str) -> Iterator[Problem]:  # noqa: N803 - the API's name
    if not name and not generateName:
        yield Problem("metadata.name", "no name", "the name of the policy")
    if name and not _is_dns_subdomain(name):
        expected = "at most 253 lower-case letters, digits, - and ."
        yield Problem("metadata.name", shown(name), expected)
    if generateName and not _is_name_prefix(generateName, is_name_generated=not name):
        yield Problem("metadata.generateName", shown(generateName), "lower-case letters, digits, - and .")
    if namespace and not (
        _is_dns_subdomain(namespace) and "." not in namespace and len(namespace) <= _MAX_LABEL
    ):
        yield Problem("metadata.namespace", shown(namespace), "at most 63 lower-case letters, digits and -")


def _label_key_problems(path: str, pairs: Any, *, are_labels: bool) -> Iterator[Problem]:
    """The problems of labels or annotations."""
    if pairs is None:
        return
    if not isinstance(pairs, Mapping):
        yield Problem(path, shown(pairs), "an object")
        return
    for key, value in pairs.items():
        prefix, slash, name = key.rpartition("/")
        if not is_valid_label_part(name) or (slash and not _is_dns_subdomain(prefix)):
            yield Problem(f"{path}.{key[:80]}", shown(key), "a key such as example.com/name")
        if value is None:
            continue
        if not isinstance(value, str):
            yield Problem(f"{path}.{key[:80]}", shown(value), f'a string, such as "{shown(value)}"')
        elif are_labels and value and not is_valid_label_part(value):
            yield Problem(f"{path}.{key[:80]}", shown(value), "at most 63 letters, digits, -, _ and .")


def _is_name_prefix(prefix: str, *, is_name_generated: bool) -> bool:
    """Whether the API server accepts this `generateName` (apimachinery `NameIsDNSSubdomain` and apiserver
    `SimpleNameGenerator`, 1.36): it validates the prefix with `a` in place of the last two characters of one that ends
    with `-`, and, unless there is a name, the name that it generates from the first 58 characters.
    """
    masked = f"{prefix[:-2]}a" if len(prefix) > 1 and prefix.endswith("-") else prefix
    return _is_dns_subdomain(masked) and (
        not is_name_generated or _is_dns_subdomain(f"{prefix[:_MAX_BASE]}a")
    )


def _is_dns_subdomain(text: Any) -> bool:
    return isinstance(text, str) and len(text) <= _MAX_SUBDOMAIN and bool(_SUBDOMAIN.fullmatch(text))


def _value_problems(  # complexity: one case for each type of a schema
    path: str, value: Any, schema: Mapping[str, Any]
) -> Iterator[Problem]:
    """The problems of a value, by the keywords of structural schemas (`KEYWORDS`)."""
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, str) and not is_integer(value):
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            hint = f' such as "{value}"' if is_number else ""
            yield Problem(path, shown(value), f"an integer of 64 bits, or a string{hint}")
            return
    elif not isinstance(value, _TYPES[schema["type"]]):
        hint = quoting_hint(value) if schema["type"] == "string" else ""
        yield Problem(path, shown(value), _TYPE_NAMES[schema["type"]] + hint)
        return
    if isinstance(value, str):
        yield from _text_problems(path, value, schema)
    elif isinstance(value, list) and len(value) > schema.get("maxItems", len(value)):
        yield Problem(path, f"{len(value)} entries", f"at most {schema['maxItems']}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _value_problems(f"{path}[{number}]", item, schema["items"])
    elif isinstance(value, dict):
        yield from _object_problems(path, value, schema)


def _text_problems(path: str, text: str, schema: Mapping[str, Any]) -> Iterator[Problem]:
    if "enum" in schema and text not in schema["enum"]:
        yield Problem(path, shown(text), " or ".join(schema["enum"]) + did_you_mean(text, schema["enum"]))
    if len(text) > schema.get("maxLength", len(text)):
        yield Problem(path, f"{len(text)} characters", f"at most {schema['maxLength']}")
    pattern = schema.get("pattern", "")
    # `$` matches only at the very end in Go, but also before a final line break in Python
    if not re.search(re.sub(r"\$$", r"\\Z", pattern), text):
        yield Problem(path, shown(text), f"{_PATTERN_TEXT} {pattern}")


def _object_problems(path: str, value: dict[str, Any], schema: Mapping[str, Any]) -> Iterator[Problem]:
    # the API server drops null fields that are not nullable before it validates
    fields = {name: field for name, field in value.items() if field is not None}
    if len(fields) > schema.get("maxProperties", len(fields)):
        yield Problem(path, f"{len(fields)} fields", f"at most {schema['maxProperties']}")
        return
    for name in schema.get("required", ()):
        if name not in fields:
            yield Problem(f"{path}.{name}", "no value", "a value, which is required")
    known = schema.get("properties", {})
    for name, field in fields.items():
        inner = known.get(name) or schema.get("additionalProperties")
        if inner:
            yield from _value_problems(f"{path}.{name}", field, inner)
