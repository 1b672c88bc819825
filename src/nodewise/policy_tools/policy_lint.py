"""The checks of `policy lint`: everything in a policy that the API server refuses or that would have no effect.

The parser of placement policies is as strict as the API server. That of TASPolicy is not: `taspolicies.yaml` beside
this module is a copy of the CRD (made by `make chart`), so there is one source. The rules in CEL about the names of
strategies and fields are those of `taspolicy_parser.py`. `tests/cluster/test_policy_lint.py` and
`test_placement_policy_parser.py` compare the verdicts with a real API server's.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib import resources
from typing import Any, Final

import msgspec

from nodewise.base import safe_yaml_loader
from nodewise.base.errors import Problem, did_you_mean, shown
from nodewise.policies import placement_policy_parser, policy_notes
from nodewise.policies import taspolicy_parser as policies
from nodewise.policies.placement_policy import PolicyKind
from nodewise.policies.policy_objects import RESOURCES, PolicyObject, is_valid_label_part
from nodewise.policies.policy_selection import SYSTEM_NAMESPACE
from nodewise.policy_tools import query_lint

KEYWORDS: Final = frozenset(
    {"type", "properties", "additionalProperties", "required", "items", "enum", "pattern", "description"}
    | {"maxLength", "maxItems", "maxProperties"}
    | {"x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-validations"}
)
"""The keywords in the schema of `spec` that this module knows; a test compares them with the definition."""
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_MAX_SUBDOMAIN: Final = 253
_NAME_FIELDS: Final = ("name", "generateName", "namespace")
_MAX_BASE: Final = 58
"""The most characters of `generateName` that are part of a generated name."""
_MAX_LABEL: Final = 63
_INT64_LIMIT: Final = 2**63
_MAX_EXACT: Final = 2**53
"""Up to here the API server accepts whole numbers in floating point, such as 1e3, as integers."""
_TYPES: Final[Mapping[str, type]] = {"object": dict, "array": list, "string": str}
_TYPE_NAMES: Final = {"object": "an object", "array": "a list", "string": "a string"}
_INTEGER_OR_STRING: Final = "an integer of 64 bits, or a string"


@cache
def spec() -> Mapping[str, Any]:
    """The schema of `spec` in the shipped definition."""
    text = resources.files(__package__).joinpath("taspolicies.yaml").read_bytes()
    [version] = safe_yaml_loader.load(text, "taspolicies.yaml")["spec"]["versions"]
    schema: Mapping[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def lint(policy: bytes, kind: PolicyKind) -> list[Problem]:
    """Every problem of a policy in JSON."""
    whole = msgspec.json.decode(policy)
    policy_object = msgspec.json.decode(policy, type=PolicyObject)
    if kind != "TASPolicy":
        parsed = placement_policy_parser.parse_policy(policy_object, kind)
        return [*_head_problems(whole, kind), *parsed.problems, *_query_problems(whole)]
    refused = problems(whole)
    known = {problem.field for problem in refused}
    read = policies.parse_policy(policy_object).problems
    others = [
        problem
        for problem in (*read, *_rules_without_effect(whole), *_query_problems(whole))
        if problem.field not in known
    ]
    return [*refused, *others]


def notes(policy: bytes, kind: PolicyKind, sync_period_s: float) -> list[Problem]:
    """The notes about the queries of a policy in JSON and, if it is a valid placement policy, those of
    `effect_notes`.
    """
    query_notes = query_lint.check_queries(msgspec.json.decode(policy).get("spec")).notes
    if kind == "TASPolicy":
        return query_notes
    policy_object = msgspec.json.decode(policy, type=PolicyObject)
    parsed = placement_policy_parser.parse_policy(policy_object, kind)
    return query_notes if parsed.problems else [*query_notes, *policy_notes.effect_notes(parsed, sync_period_s)]


def _query_problems(policy: Mapping[str, Any]) -> list[Problem]:
    return query_lint.check_queries(policy.get("spec")).problems


def _rules_without_effect(policy: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems of rules that the API server accepts and that have no effect."""
    for name in ("dontschedule", "deschedule", "labeling"):
        for number, rule in enumerate(_rules_of_strategy(policy, name)):
            path = f"spec.strategies.{name}.rules[{number}]"
            if rule.get("target") in (None, ""):
                wanted = "a target; without one the value is compared with 0"
                yield Problem(f"{path}.target", "none", wanted)
            if name == "labeling" and not rule.get("labels"):
                wanted = "at least one label name=value; without one the rule has no effect"
                yield Problem(f"{path}.labels", "none", wanted)


def _rules_of_strategy(policy: Mapping[str, Any], strategy: str) -> list[Mapping[str, Any]]:
    """The rules of a strategy that are objects."""
    value: Any = policy
    for key in ("spec", "strategies", strategy, "rules"):
        value = value.get(key) if isinstance(value, Mapping) else None
    return [rule for rule in value if isinstance(rule, Mapping)] if isinstance(value, list) else []


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
    yield from _name_problems(metadata)
    for field in ("labels", "annotations"):
        yield from _label_key_problems(f"metadata.{field}", metadata.get(field), are_labels=field == "labels")


def _name_problems(metadata: Mapping[str, Any]) -> Iterator[Problem]:
    texts = {field: metadata.get(field) or "" for field in _NAME_FIELDS}
    no_strings = [field for field in _NAME_FIELDS if not isinstance(metadata.get(field), str | None)]
    if no_strings:
        yield from (Problem(f"metadata.{field}", shown(metadata[field]), "a string") for field in no_strings)
        return
    if not texts["name"] and not texts["generateName"]:
        yield Problem("metadata.name", "none", "the name of the policy")
    checks: dict[str, tuple[Callable[[str], bool], str]] = {
        "name": (_is_dns_subdomain, "at most 253 lower-case letters, digits, - and ."),
        "generateName": (
            partial(_is_name_prefix, is_name_generated=not texts["name"]),
            "lower-case letters, digits, - and .",
        ),
        "namespace": (_is_namespace, "at most 63 lower-case letters, digits and -"),
    }
    for field, (is_valid, expected) in checks.items():
        if texts[field] and not is_valid(texts[field]):
            yield Problem(f"metadata.{field}", shown(texts[field]), expected)


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


def _is_namespace(text: str) -> bool:
    return _is_dns_subdomain(text) and "." not in text and len(text) <= _MAX_LABEL


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


def _value_problems(path: str, value: Any, schema: Mapping[str, Any]) -> Iterator[Problem]:
    """The problems of a value, by the keywords of structural schemas (`KEYWORDS`)."""
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, str) and not _is_integer(value):
            yield Problem(path, shown(value), f"{_INTEGER_OR_STRING}{_quoted_fraction_hint(value)}")
            return
    elif not isinstance(value, _TYPES[schema["type"]]):
        yield Problem(path, shown(value), _TYPE_NAMES[schema["type"]])
        return
    if isinstance(value, str):
        yield from _text_problems(path, value, schema)
    elif isinstance(value, list):
        yield from _list_problems(path, value, schema)
    elif isinstance(value, dict):
        yield from _object_problems(path, value, schema)


def _quoted_fraction_hint(value: Any) -> str:
    """How to write a fraction so that the API server accepts it."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f' such as "{value}"' if is_number else ""


def _is_integer(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, float):
        return value.is_integer() and abs(value) < _MAX_EXACT
    return isinstance(value, int) and -_INT64_LIMIT <= value < _INT64_LIMIT


def _text_problems(path: str, text: str, schema: Mapping[str, Any]) -> Iterator[Problem]:
    if "enum" in schema and text not in schema["enum"]:
        yield Problem(path, shown(text), " or ".join(schema["enum"]) + did_you_mean(text, schema["enum"]))
    if len(text) > schema.get("maxLength", len(text)):
        yield Problem(path, f"{len(text)} characters", f"at most {schema['maxLength']}")
    pattern = schema.get("pattern", "")
    # `$` matches only at the very end in Go, but also before a final line break in Python
    if not re.search(re.sub(r"\$$", r"\\Z", pattern), text):
        yield Problem(path, shown(text), f"a text that matches {pattern}")


def _list_problems(path: str, items: list[Any], schema: Mapping[str, Any]) -> Iterator[Problem]:
    if len(items) > schema.get("maxItems", len(items)):
        yield Problem(path, f"{len(items)} entries", f"at most {schema['maxItems']}")
        return
    for number, item in enumerate(items):
        yield from _value_problems(f"{path}[{number}]", item, schema["items"])


def _object_problems(path: str, value: dict[str, Any], schema: Mapping[str, Any]) -> Iterator[Problem]:
    # the API server drops null fields that are not nullable before it validates
    fields = {name: field for name, field in value.items() if field is not None}
    if len(fields) > schema.get("maxProperties", len(fields)):
        yield Problem(path, f"{len(fields)} fields", f"at most {schema['maxProperties']}")
        return
    for name in schema.get("required", ()):
        if name not in fields:
            yield Problem(f"{path}.{name}", "none", "a value, which is required")
    known = schema.get("properties", {})
    for name, field in fields.items():
        inner = known.get(name) or schema.get("additionalProperties")
        if inner:
            yield from _value_problems(f"{path}.{name}", field, inner)
