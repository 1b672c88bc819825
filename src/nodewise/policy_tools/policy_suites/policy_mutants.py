"""Mutants of a policy: copies with one small change. Good tests detect each of them.

Mutants change what a rule does, not its text: its operator, its target by a tenth, what a missing value means, the
order of a preference; or they lack one rule, or a field that delays verdicts. They also change what the whole policy
does: `enforcement`, and the mode Canary. There are none of the mode Shadow, which tests treat like Enforce, and of
`guard`, which depends on a cluster.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from nodewise.base import quantity
from nodewise.policies import rule_operators
from nodewise.policies.placement_policy import PolicyKind
from nodewise.policies.placement_policy_fields import HOLD_TIME_FIELDS
from nodewise.policies.rule_operators import OPERATORS
from nodewise.policy_tools.policy_suites import rule_places
from nodewise.policy_tools.policy_suites.rule_places import RulePlace

_OTHER_OPERATORS: Final[Mapping[str, tuple[str, ...]]] = {
    "above": ("atLeast", "below"),
    "atLeast": ("above", "atMost"),
    "below": ("atMost", "above"),
    "atMost": ("below", "atLeast"),
    "equals": ("notEquals", "atLeast", "atMost"),
    "notEquals": ("equals",),
    "GreaterThan": ("LessThan", "Equals"),
    "LessThan": ("GreaterThan", "Equals"),
    "Equals": ("GreaterThan", "LessThan"),
}
"""For each operator, one that differs at the threshold only, if there is one, and the opposite."""
_OTHER_ORDER: Final = {"Ascending": "Descending", "LessThan": "GreaterThan"}
_ORDERS: Final = _OTHER_ORDER | {other: order for order, other in _OTHER_ORDER.items()}
_OTHER_MISSING: Final = {"Allow": "Reject", "Reject": "Allow", "pass": "reject", "reject": "pass"}


class PolicyMutant(NamedTuple):
    """A changed copy of a policy."""

    place: str
    """The path of the changed field or rule."""
    change: str
    """`80 → 88`."""
    spec: Any


def mutants(kind: PolicyKind, spec: Mapping[str, Any]) -> Iterator[PolicyMutant]:
    """All mutants of a valid spec."""
    for place in rule_places.rule_places(kind, spec):
        if place.section == "prefer":
            field = "operator" if kind == "TASPolicy" else "order"
            yield from _changed_field(spec, place, field, _ORDERS.get(place.rule.get(field, ""), ""))
        else:
            changes = _taspolicy_changes if kind == "TASPolicy" else _placement_policy_changes
            yield from changes(spec, place)
            if place.section == "avoid":
                yield from _missing_value_changes(kind, spec, place)
        yield PolicyMutant(place.text(), "removed", _without_rule(spec, place))
    if kind != "TASPolicy":
        yield from _policy_changes(spec)


def _policy_changes(spec: Mapping[str, Any]) -> Iterator[PolicyMutant]:
    """Changes of fields that apply to the whole policy, or to all parts of a rule."""
    if spec.get("avoid"):
        before = spec.get("enforcement", "Required")
        after = "Required" if before == "Preferred" else "Preferred"
        yield PolicyMutant("spec.enforcement", f"{before} → {after}", {**spec, "enforcement": after})
    if spec.get("mode") == "Canary":
        yield PolicyMutant("spec.mode", "Canary → Enforce", {**spec, "mode": "Enforce"})
    for number, rule in enumerate(spec.get("avoid") or ()):
        for field in HOLD_TIME_FIELDS:
            if field in rule:
                changed = {name: value for name, value in rule.items() if name != field}
                place = RulePlace("avoid", ("avoid", number), rule)
                yield PolicyMutant(f"{place.text()}.{field}", "removed", _replaced(spec, place, changed))


def _placement_policy_changes(spec: Mapping[str, Any], place: RulePlace) -> Iterator[PolicyMutant]:
    operator = next(name for name in OPERATORS if name in place.rule)
    target = place.rule[operator]
    for other in _OTHER_OPERATORS[operator]:
        changed = _with_comparison(place.rule, operator, other, target)
        yield PolicyMutant(
            f"{place.text()}.{operator}", f"{operator} → {other}", _replaced(spec, place, changed)
        )
    for text in _other_targets(target):
        changed = _with_comparison(place.rule, operator, operator, text)
        yield PolicyMutant(
            f"{place.text()}.{operator}", f"{target} → {text}", _replaced(spec, place, changed)
        )
    if "release" in place.rule:
        changed = {name: value for name, value in place.rule.items() if name != "release"}
        yield PolicyMutant(f"{place.text()}.release", "removed", _replaced(spec, place, changed))


def _with_comparison(rule: Mapping[str, Any], before: str, operator: str, target: Any) -> dict[str, Any]:
    """A rule with another operator or target. Its `release` stays as far beyond the target as it was: on the other
    side, the rule would be invalid.
    """
    changed = {operator if name == before else name: value for name, value in rule.items()} | {
        operator: target
    }
    if "release" in rule:
        distance = abs(quantity.parse(str(rule["release"])) - quantity.parse(str(rule[before])))
        release = quantity.parse(str(target)) + rule_operators.sort_direction(operator) * distance
        changed["release"] = quantity.nano_to_text(release)
    return changed


def _taspolicy_changes(spec: Mapping[str, Any], place: RulePlace) -> Iterator[PolicyMutant]:
    for other in _OTHER_OPERATORS.get(place.rule.get("operator", ""), ()):
        yield from _changed_field(spec, place, "operator", other)
    for text in _other_targets(place.rule.get("target", 0)):
        yield from _changed_field(spec, place, "target", text)


def _missing_value_changes(
    kind: PolicyKind, spec: Mapping[str, Any], place: RulePlace
) -> Iterator[PolicyMutant]:
    """With `emptyMeans` no value is missing, so that field is removed instead."""
    is_taspolicy = kind == "TASPolicy"
    empty = "empty_means" if is_taspolicy else "emptyMeans"
    if empty in place.rule:
        rule = {name: value for name, value in place.rule.items() if name != empty}
        yield PolicyMutant(f"{place.text()}.{empty}", "removed", _replaced(spec, place, rule))
        return
    field, default = ("when_missing", "pass") if is_taspolicy else ("whenMissing", "Allow")
    yield from _changed_field(spec, place, field, _OTHER_MISSING.get(place.rule.get(field, default), ""))


def _other_targets(target: Any) -> Iterator[str]:
    """A target that is a tenth smaller, and one that is a tenth larger; those of 0 are -1 and 1."""
    nano = quantity.parse(str(target))
    distance = abs(nano) // 10 or quantity.NANO
    yield from (quantity.nano_to_text(nano + change) for change in (-distance, distance))


def _changed_field(
    spec: Mapping[str, Any], place: RulePlace, field: str, value: str
) -> Iterator[PolicyMutant]:
    if value:
        before = place.rule.get(field)
        change = f"{value}" if before is None else f"{before} → {value}"
        yield PolicyMutant(
            f"{place.text()}.{field}", change, _replaced(spec, place, {**place.rule, field: value})
        )


def _replaced(spec: Mapping[str, Any], place: RulePlace, rule: Mapping[str, Any]) -> Any:
    """The spec with another rule at a place."""
    changed: Any = copy.deepcopy(spec)
    parent = changed
    for step in place.path[:-1]:
        parent = parent[step]
    parent[place.path[-1]] = rule
    return changed


def _without_rule(spec: Mapping[str, Any], place: RulePlace) -> Any:
    """The spec without a rule. A list or an object that becomes empty by that is removed, too."""
    changed: Any = copy.deepcopy(spec)
    parents = [changed]
    for step in place.path[:-1]:
        parents.append(parents[-1][step])
    for parent, step in zip(reversed(parents), reversed(place.path), strict=True):
        del parent[step]
        # what is left of a rule or a strategy without its list, such as the labels of a rule, has no effect alone
        if isinstance(parent, list) and parent:
            break
        if isinstance(parent, dict) and step not in ("all", "rules") and parent:
            break
    return _without_useless_fields(changed)


def _without_useless_fields(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec without fields about rules that it no longer has: they would make it invalid."""
    useless: list[str] = []
    if "avoid" not in spec:
        useless += ["enforcement", "guard"]
        useless += [] if "prefer" in spec else ["mode", "canary"]
    return {name: value for name, value in spec.items() if name not in useless}
