"""Generates the definitions of both kinds of placement policies, and the lists of fields in their admission policy.

The fields are those of `nodewise.policies.placement_policy_fields`. The status, the columns and the frame of the
definitions are in `placement_policy_definition.yaml`. The rest of `deploy/policy-fields.yaml` is written by hand.
"""

import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import yaml

from nodewise.policies import placement_policy_fields as fields
from nodewise.policies import taspolicy_parser
from nodewise.policies.placement_policy_fields import Field, LabelsType, ListType, ObjectType, ValueType
from nodewise.policies.rule_operators import OPERATOR_FIELDS, OPERATORS, ORDERED_TEXT

DEPLOY: Final = Path(__file__).parents[1] / "deploy"
_FRAME: Final = Path(__file__).with_name("placement_policy_definition.yaml")
_HEAD: Final = """\
# Made by `make chart` of src/nodewise/policies/placement_policy_fields.py; do not edit. Unknown fields are kept, so
# that deploy/policy-fields.yaml can refuse them by name; nodewise rejects the pods of a policy that has one.
"""
_CLUSTER: Final = "ClusterPlacementPolicy"
_AVOIDS: Final = "away from nodes, or prefers nodes for them, by live metrics of the nodes"
_LABELS: Final = "It can also label the nodes, and taint devices of DRA drivers."
_SELECTS: Final = "Which pods the policy selects, which nodes they avoid"
_TEXTS: Final = {
    "PlacementPolicy": (
        f"PlacementPolicy keeps selected pods of its namespace {_AVOIDS}.",
        f"{_SELECTS}, and which nodes they prefer.",
    ),
    _CLUSTER: (
        f"ClusterPlacementPolicy keeps selected pods of any namespace {_AVOIDS}. {_LABELS}",
        f"{_SELECTS}, which nodes they prefer, which labels nodes get, and which devices are tainted.",
    ),
}


def generated_files() -> dict[Path, str]:
    """The content of each generated file."""
    files = {DEPLOY / f"crds/{kind.lower()[:-1]}ies.yaml": _definition(kind) for kind in _TEXTS}
    path = DEPLOY / "policy-fields.yaml"
    return files | {path: _with_lists(path.read_text())}


def _definition(kind: str) -> str:
    singular = kind.lower()
    plural = f"{singular[:-1]}ies"
    is_cluster = kind == _CLUSTER
    definition = yaml.load(_FRAME.read_text(), yaml.CSafeLoader)
    definition["metadata"]["name"] = f"{plural}.nodewise.io"
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": singular}
    definition["spec"] |= {
        "scope": "Cluster" if is_cluster else "Namespaced",
        "names": names | {"shortNames": ["cplp" if is_cluster else "plp"], "categories": ["nodewise"]},
    }
    version = definition["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    if not is_cluster:
        columns, status = version["additionalPrinterColumns"], schema["properties"]["status"]["properties"]
        columns[:] = [
            column for column in columns if column["name"] not in ("Devices tainted", "Would taint")
        ]
        for name in ("taintedDevices", "wouldTaintDevices"):
            del status[name]
        for name in ("devices", "deviceStates"):
            del status["rules"]["items"]["properties"][name]
    schema["description"], text = _TEXTS[kind]
    schema["properties"]["spec"] = _object(fields.SPEC, text, is_cluster=is_cluster)
    return _HEAD + yaml.dump(definition, Dumper=_PlainDumper, sort_keys=False, width=120, allow_unicode=True)


class _PlainDumper(yaml.SafeDumper):
    """Writes values that occur several times as often as they occur."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the library's parameter
        return True


def _object(described: ObjectType, text: str, *, is_cluster: bool) -> dict[str, Any]:
    required = [
        name for name in described.required if not is_cluster or name not in ("metric", "podSelector")
    ]
    rules = [*_rules(described, is_cluster=is_cluster)]
    return {
        "type": "object",
        "description": text,
        **({"required": required} if required else {}),
        "x-kubernetes-preserve-unknown-fields": True,
        **({"x-kubernetes-validations": rules} if rules else {}),
        "properties": {
            name: _field(field, is_cluster=is_cluster)
            for name, field in described.fields.items()
            if is_cluster or not field.only_cluster
        },
    }


def _field(field: Field, *, is_cluster: bool) -> dict[str, Any]:
    text = {"description": field.text}
    match field.type:
        case ObjectType():
            return _object(field.type, field.text, is_cluster=is_cluster)
        case ListType(least, most, entry_text, entry):
            bounds = ({"minItems": least} if least else {}) | {"maxItems": most}
            return {
                "type": "array",
                **text,
                **bounds,
                "items": _object(entry, entry_text, is_cluster=is_cluster),
            }
        case LabelsType(least, most):
            bounds = ({"minProperties": least} if least else {}) | {"maxProperties": most}
            values = {"type": "string", "maxLength": fields.MAX_LABEL_VALUE}
            return {"type": "object", **text, **bounds, "additionalProperties": values}
        case ValueType(_, schema):
            rules = _VALUE_RULES.get(id(field.type))
            return text | {**schema} | ({"x-kubernetes-validations": rules} if rules else {})


def _rule(rule: str, message: str, expression: str = "") -> dict[str, str]:
    return {"rule": rule, "message": message, **({"messageExpression": expression} if expression else {})}


def _any(names: Iterable[str]) -> str:
    return " || ".join(f"has(self.{name})" for name in names)


def _exactly_one(names: Iterable[str]) -> str:
    return f"[{', '.join(f'has(self.{name})' for name in names)}].filter(is, is).size() == 1"


def _found_together(names: Iterable[str], otherwise: str) -> str:
    parts = " + ".join(f"(has(self.{name}) ? '{name} ' : '')" for name in names)
    return f"'found ' + {parts} + ({_any(names)} ? 'together' : '{otherwise}')"


_CHARACTERS: Final = "letters, digits, _, :, . and -, not beginning with ."
_TIMES: Final = "a duration such as 30s or 5m, of at most a year"
_VALUE_RULES: Final = {
    id(fields.METRIC_TYPE): [
        _rule(
            f"self.matches('^{fields.METRIC}$')",
            f"found another character, expected {_CHARACTERS}",
            f"'found \"' + self + '\", expected {_CHARACTERS}'",
        )
    ],
    id(fields.DURATION_TYPE): [
        _rule(
            f"self.matches('^{fields.DURATION}$') && duration(self) > duration('0s') && duration(self) <= "
            "duration('8784h')",
            f"expected {_TIMES}",
            f"'found \"' + self + '\", expected {_TIMES}'",
        )
    ],
    id(fields.RANGE_TYPE): [
        _rule(
            "!quantity(string(self[1])).isLessThan(quantity(string(self[0])))",
            "found the higher value first, expected a list of two values, the lower one first",
        )
    ],
}
"""The rules of values that a schema cannot express, by the identity of their type."""


def _rules(described: ObjectType, *, is_cluster: bool) -> Iterable[dict[str, str]]:
    """The rules about several fields of an object."""
    if described is fields.SPEC:
        return _spec_rules(is_cluster=is_cluster)
    if described is fields.PREFERENCE and is_cluster:
        return [_one_source(("metric", "query"))]
    if described.fields.keys() & OPERATORS.keys():
        return _comparison_rules(described, is_cluster=is_cluster)
    return _OBJECT_RULES.get(id(described), ())


_OBJECT_RULES: Final = {
    id(fields.REQUIREMENT): [
        _rule(
            "!(self.operator in ['In', 'NotIn']) || (has(self.values) && size(self.values) > 0)",
            "found no values, expected at least one value with the operators In and NotIn",
        ),
        _rule(
            "!(self.operator in ['Exists', 'DoesNotExist']) || !has(self.values) || size(self.values) == 0",
            "found values, expected no values with the operators Exists and DoesNotExist",
        ),
    ],
    id(fields.CANARY): [
        _rule(
            "has(self.podSelector) != has(self.percent)",
            "found both podSelector and percent, or neither, expected exactly one of podSelector, percent",
        )
    ],
    id(fields.GUARD): [
        _rule(
            "has(self.maxRejectedShare) || has(self.maxWaitingPods)",
            "found no limit, expected maxRejectedShare, maxWaitingPods or both",
        )
    ],
}


def _spec_rules(*, is_cluster: bool) -> Iterable[dict[str, str]]:
    sections = ["avoid", "prefer", *["nodeLabels", "deviceTaints"] * is_cluster]
    yield _rule(_any(sections), f"found no rules, expected at least one of {', '.join(sections)}")
    if is_cluster:
        yield _rule(
            "!(has(self.avoid) || has(self.prefer)) || (has(self.namespaceSelector) && has(self.podSelector))",
            "found avoid or prefer without both selectors, expected namespaceSelector and podSelector; {} selects all",
        )
    with_mode = ["avoid", "prefer", *["deviceTaints"] * is_cluster]
    yield _rule(
        f"!has(self.mode) || {_any(with_mode)}",
        f"found mode with node labels only, expected mode only together with {' or '.join(with_mode)}",
    )
    yield _rule(
        "!has(self.mode) || self.mode != 'Canary' || has(self.canary)",
        "found the mode Canary without canary, expected podSelector or percent in canary",
    )
    for name in ("guard", "enforcement"):
        yield _rule(
            f"!has(self.{name}) || has(self.avoid)",
            f"found {name} without avoid, expected {name} only together with avoid",
        )
    most = fields.MAX_RULES
    for name in ("avoid", *["nodeLabels"] * is_cluster):
        yield _rule(
            f"!has(self.{name}) || self.{name}.map(rule, has(rule.all) ? size(rule.all) : 1).sum() <= {most}",
            f"found more than {most} rules in {name}, expected at most {most}, counting those in all",
        )


def _one_source(names: tuple[str, ...]) -> dict[str, str]:
    """Exactly one of the fields that say what is compared."""
    expected = f"expected exactly one of {', '.join(names)}"
    if len(names) > 2:  # noqa: PLR2004 - both or neither
        return _rule(
            _exactly_one(names),
            f"found no field or several, {expected}",
            f"{_found_together(names, f'no {names[0]}')} + ', {expected}'",
        )
    first, second = names
    return _rule(
        f"has(self.{first}) != has(self.{second})",
        f"found both {first} and {second}, or neither, {expected}",
        f"'found ' + (has(self.{first}) ? 'both {first} and {second}' : 'neither {first} nor {second}') "
        f"+ ', {expected}'",
    )


def _comparison_rules(described: ObjectType, *, is_cluster: bool) -> Iterable[dict[str, str]]:
    has_parts = "all" in described.fields
    sources = ("metric", *["query"] * is_cluster, *["all"] * has_parts)
    if len(sources) > 1:
        yield _one_source(sources)
    expected = f"expected exactly one of {', '.join(OPERATOR_FIELDS)}"
    yield _rule(
        ("has(self.all) || " if has_parts else "") + _exactly_one(OPERATOR_FIELDS),
        f"found no operator or several, {expected}",
        f"{_found_together(OPERATOR_FIELDS, 'no operator')} + ', {expected}'",
    )
    if is_cluster:
        yield _rule(
            "!has(self.emptyMeans) || has(self.query)",
            "found emptyMeans without query, expected emptyMeans only together with query",
        )
    if "release" in described.fields:
        yield from _release_rules()
    if "keepFor" in described.fields:
        of_parts = " || (has(self.all) && self.all.exists(rule, has(rule.release)))" if has_parts else ""
        yield _rule(
            f"!has(self.keepFor) || !(has(self.release){of_parts})",
            "found release and keepFor together, expected either release or keepFor",
        )
    if "effect" in described.fields:
        yield _rule(
            "!has(self.effect) || self.effect != 'NoExecute' || has(self.maxTaintedShare)",
            "found the effect NoExecute without maxTaintedShare, expected a limit of the share of devices",
        )
    if has_parts:
        kept = ("metric", "query", "all", "labels", *fields.HOLD_TIMES)
        others = [
            name
            for name, field in described.fields.items()
            if name not in kept and (is_cluster or not field.only_cluster)
        ]
        yield _rule(
            f"!has(self.all) || !({_any(others)})",
            "found other fields of a rule together with all, expected these fields in the rules of all",
        )


def _release_rules() -> Iterable[dict[str, str]]:
    large = [name for name, operator in OPERATORS.items() if operator.order < 0]
    small = [name for name, operator in OPERATORS.items() if operator.order > 0]
    yield _rule(
        f"!has(self.release) || {_any([*large, *small])}",
        f"found release without {ORDERED_TEXT}, expected release only together with an operator of these",
    )
    release = "quantity(string(self.release))"
    yield _rule(
        f"!has(self.release) || (({_any(large)}) ? {release}.isLessThan({_present(large)}) : "
        f"!({_any(small)}) || {release}.isGreaterThan({_present(small)}))",
        f"found release on the wrong side, expected a value below that of {' and '.join(large)}, or above that of "
        f"{' and '.join(small)}",
    )


def _present(names: list[str]) -> str:
    """The value of the field that is present."""
    *others, last = names
    choices = "".join(f"has(self.{name}) ? self.{name} : " for name in others)
    return f"quantity(string({choices}self.{last}))"


def _expressions() -> dict[str, str]:
    """The variables of both admission policies that list fields."""
    described = {
        "spec": fields.SPEC,
        "comparison": fields.COMPARISON,
        "prefer": fields.PREFERENCE,
        "selector": fields.SELECTOR,
        "guard": fields.GUARD,
        "canary": fields.CANARY,
        "requirement": fields.REQUIREMENT,
    }
    expressions, only_cluster = {}, {}
    for name, entry in described.items():
        own = [field for field, item in entry.fields.items() if not item.only_cluster]
        cluster = [field for field in entry.fields if field not in own]
        only_cluster |= dict.fromkeys(cluster)
        expressions[f"{name}Fields"] = f"{own}" + (
            f" + (variables.isCluster ? {cluster} : [])" if cluster else ""
        )
    return expressions | {
        "clusterFields": str([*only_cluster]),
        "strategyFields": str([*taspolicy_parser.STRATEGY_FIELDS]),
        "ruleFields": str([*taspolicy_parser.RULE_FIELDS]),
        "indexes": str([*range(fields.MAX_RULES)]),
        "ruleLists": "["
        f"{{'name': dyn('avoid'), 'fields': dyn({_more(fields.AVOID_RULE)}), "
        f"'partFields': dyn({_more(fields.AVOID_PART)})}}, "
        "{'name': dyn('prefer'), 'fields': dyn(variables.preferFields), 'partFields': dyn([])}, "
        f"{{'name': dyn('nodeLabels'), 'fields': dyn({_more(fields.LABEL_RULE)}), "
        "'partFields': dyn(variables.comparisonFields)}, "
        f"{{'name': dyn('deviceTaints'), 'fields': dyn({_more(fields.DEVICE_RULE)}), 'partFields': dyn([])}}]"
        ".filter(list, list.name in variables.spec)",
    }


def _more(described: ObjectType) -> str:
    """The fields of an object that has those of a comparison and others."""
    others = [name for name in described.fields if name not in fields.COMPARISON.fields]
    return f"variables.comparisonFields + {others}"


def _with_lists(text: str) -> str:
    """The manifest of the admission policies with the lists of fields."""
    for name, expression in _expressions().items():
        head = f"  - name: {name}\n    expression: >-\n"
        lines = textwrap.wrap(
            expression, 120, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False
        )
        written = head + "\n".join(lines) + "\n"
        text, count = re.subn(rf"{re.escape(head)}(?: {{6}}.*\n)+", lambda _, new=written: new, text)
        if count != 1:
            raise ValueError(f"found {count} variables {name} in the admission policies, expected one")
    return text
