"""What a suite of tests for policies detects: the branches of rules that it reaches, and mutants of a policy.

Mutants are copies of a policy with one small change. Good tests detect each of them. They change what a rule does, not
its text: its operator, its target by a tenth, what a missing value means, the order of a preference; or they lack one
rule, or a field that delays verdicts. They also change what the whole policy does: `enforcement`, and the mode Canary.
There are none of the mode Shadow, which tests treat like Enforce, and of `guard`, which depends on a cluster.

A rule has a branch for nodes that meet it, one for nodes that do not, and one for nodes without a value; a preference
has one for nodes that it ranks differently, and one for nodes without a value. With `for`, a rule also has one for
nodes that meet it and are not rejected yet, and with `release` or `keepFor` one for nodes that are still rejected. A
canary has one for its pods and one for all others. A branch counts as reached only at an expectation that shows its
effect: `rejected` for `avoid`, `ranks` for `prefer`, and `labels` for `nodeLabels`.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from nodewise.agent import ObjectKey
from nodewise.base import quantity
from nodewise.policies import hysteresis, policy_selection, rule_operators
from nodewise.policies.node_labels import LabelColumn
from nodewise.policies.placement_policy import PolicyKey, PolicyKind
from nodewise.policies.placement_policy_fields import HOLD_TIMES
from nodewise.policies.rule_operators import OPERATORS, TASPOLICY_OPERATORS, expand_ranges
from nodewise.policies.state import EvaluatedPreference, PolicyState
from nodewise.policy_tools.policy_suite import Expectation, PolicyTest, SuiteObject
from nodewise.policy_tools.policy_timeline import Moment

Section = Literal["avoid", "prefer", "nodeLabels"]
"""The sections of a PlacementPolicy; the strategies of a TASPolicy belong to one of them."""


class RulePlace(NamedTuple):
    """One comparison, or one preference."""

    section: Section
    path: tuple[str | int, ...]
    """Below `spec`, for example `("avoid", 0, "all", 1)`."""
    rule: Mapping[str, Any]
    """Its fields."""

    def text(self) -> str:
        """The path as messages write it: `spec.avoid[0].all[1]`."""
        return "spec" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)


def rule_places(kind: PolicyKind, spec: Mapping[str, Any]) -> Iterator[RulePlace]:
    """All rules of a valid spec that have an effect."""
    if kind == "TASPolicy":
        yield from _places_of_strategies(spec)
        return
    for section in ("avoid", "nodeLabels"):
        for number, rule in enumerate(spec.get(section) or ()):
            parts = rule.get("all")
            if parts is None:
                yield RulePlace(section, (section, number), rule)
            else:
                for position, part in enumerate(parts):
                    yield RulePlace(section, (section, number, "all", position), part)
    for number, rule in enumerate(spec.get("prefer") or ()):
        yield RulePlace("prefer", ("prefer", number), rule)


def _places_of_strategies(spec: Mapping[str, Any]) -> Iterator[RulePlace]:
    """The rules of a TASPolicy. Of `scheduleonmetric` only the first one has an effect."""
    sections: dict[str, Section] = {
        "dontschedule": "avoid",
        "scheduleonmetric": "prefer",
        "deschedule": "nodeLabels",
        "labeling": "nodeLabels",
    }
    strategies = spec.get("strategies") or {}
    for name, section in sections.items():
        rules = (strategies.get(name) or {}).get("rules") or []
        for number, rule in enumerate(rules[:1] if section == "prefer" else rules):
            yield RulePlace(section, ("strategies", name, "rules", number), rule)


def places_by_section(kind: PolicyKind, spec: Mapping[str, Any]) -> dict[Section, list[RulePlace]]:
    """The rules of each section, in order."""
    places: dict[Section, list[RulePlace]] = {"avoid": [], "prefer": [], "nodeLabels": []}
    for place in rule_places(kind, spec):
        places[place.section].append(place)
    return places


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
    if kind != "TASPolicy":
        spec = expand_ranges(spec)
    for place in rule_places(kind, spec):
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
        for field in HOLD_TIMES:
            if field in rule:
                changed = {name: value for name, value in rule.items() if name != field}
                place = RulePlace("avoid", ("avoid", number), rule)
                yield PolicyMutant(f"{place.text()}.{field}", "removed", _replaced(spec, place, changed))


def _placement_policy_changes(spec: Mapping[str, Any], place: RulePlace) -> Iterator[PolicyMutant]:
    operator = next(name for name in OPERATORS if name in place.rule)
    target = place.rule[operator]
    for other in OPERATORS[operator].alternatives:
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
    operator = place.rule.get("operator")
    for other in (name for name in TASPOLICY_OPERATORS if name != operator):
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


MET: Final = "no node meets it"
NOT_MET: Final = "every node meets it"
NO_VALUE: Final = "no node is without a value"
PENDING: Final = "no node meets it for less than for"
KEPT: Final = "no node is still rejected that no longer meets it"
CANARY_POD: Final = "no pod is part of the canary"
OTHER_POD: Final = "every pod is part of the canary"
_CANARY: Final = "spec.canary"
RANKED: Final = "all nodes have the same rank"
_BRANCHES: Final[Mapping[Section, tuple[str, ...]]] = {
    "avoid": (MET, NOT_MET, NO_VALUE),
    "prefer": (RANKED, NO_VALUE),
    "nodeLabels": (MET, NOT_MET, NO_VALUE),
}
"""By section, the texts about branches that no test reaches."""


class Branch(NamedTuple):
    """A branch of a rule."""

    policy: PolicyKey
    path: str
    """The place of the rule."""
    missing: str
    """What the tests lack if none of them reaches the branch."""


class RuleCoverage:
    """Collects the branches that the tests of one suite reach."""

    def __init__(self, policies: Mapping[PolicyKey, SuiteObject]) -> None:
        self._specs = {
            key: item.spec() if key.kind == "TASPolicy" else expand_ranges(item.spec())
            for key, item in policies.items()
        }
        self._places = {key: places_by_section(key.kind, spec) for key, spec in self._specs.items()}
        self.reached: set[Branch] = set()

    def branches(self) -> Iterator[Branch]:
        """All branches, in the order of the policies and their rules."""
        for key, sections in self._places.items():
            for section, places in sections.items():
                for place in places:
                    is_never_missing = "emptyMeans" in place.rule or "empty_means" in place.rule
                    for branch in _BRANCHES[section]:
                        if branch != NO_VALUE or not is_never_missing:
                            yield Branch(key, place.text(), branch)
            yield from (Branch(key, *branch) for branch in _branches_of_states(self._specs[key]))
            if self._specs[key].get("mode") == "Canary":
                yield from (Branch(key, _CANARY, branch) for branch in (CANARY_POD, OTHER_POD))

    def observe(self, test: PolicyTest, moment: Moment, expectation: Expectation) -> None:
        """Record what an expectation reaches."""
        selected = _selected_policies(test, moment, expectation.pod)
        for key, state in moment.state.policies.items():
            if key not in self._places:
                continue
            if key in selected:
                self._observe_pod(test, state, expectation)
            if expectation.labels is not None:
                self._add(key, _label_branches(state, self._places[key]["nodeLabels"]))

    def _observe_pod(self, test: PolicyTest, state: PolicyState, expectation: Expectation) -> None:
        """Record what an expectation about a pod that the policy selects reaches."""
        key, places = state.policy.key, self._places[state.policy.key]
        if (expectation.ranks if state.policy.only_prefers else expectation.rejected) is not None:
            self._add(key, _avoid_branches(state, places["avoid"]))
            self._add_states(state)
        if expectation.ranks is not None:
            self._add(key, _preference_branches(state.preferences, places["prefer"]))
        if expectation.pod is not None and not (expectation.ranks is None and expectation.rejected is None):
            is_canary_pod = policy_selection.is_enforced_for(state.policy, test.pods[expectation.pod])
            self.reached.add(Branch(key, _CANARY, CANARY_POD if is_canary_pod else OTHER_POD))

    def _add_states(self, state: PolicyState) -> None:
        """Record what the states of nodes reach (`hysteresis`)."""
        position = 0
        for number, (rule, verdict) in enumerate(zip(state.policy.avoid, state.rule_verdicts, strict=False)):
            evaluations = state.filter_rules[position : position + len(rule.parts)]
            position += len(rule.parts)
            if verdict.states is None:
                continue
            meets = np.logical_and.reduce([each.inputs.known & each.broken for each in evaluations])
            path = f"spec.avoid[{number}]"
            if (verdict.states.phases[:-1] == hysteresis.PENDING).any():
                self.reached.add(Branch(state.policy.key, path, PENDING))
            if (verdict.rejected & ~meets)[:-1].any():
                self.reached.add(Branch(state.policy.key, path, KEPT))

    def _add(self, key: PolicyKey, reached: Iterator[tuple[RulePlace, str]]) -> None:
        self.reached.update(Branch(key, place.text(), branch) for place, branch in reached)


def _branches_of_states(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The path and the branch of each rule of `avoid` whose verdict depends on earlier values."""
    for number, rule in enumerate(spec.get("avoid") or ()):
        path = f"spec.avoid[{number}]"
        if "for" in rule:
            yield path, PENDING
        if "keepFor" in rule or any("release" in part for part in (rule, *rule.get("all", ()))):
            yield path, KEPT


def _selected_policies(test: PolicyTest, moment: Moment, pod: ObjectKey | None) -> tuple[PolicyKey, ...]:
    return () if pod is None else moment.state.selection.select(test.pods[pod])


def _avoid_branches(state: PolicyState, places: list[RulePlace]) -> Iterator[tuple[RulePlace, str]]:
    usable = [place for place, part in zip(places, state.policy.avoided(), strict=True) if not part.unusable]
    for place, evaluation in zip(usable, state.filter_rules, strict=True):
        known = evaluation.inputs.known[:-1]
        reached = {
            MET: (known & evaluation.broken[:-1]).any(),
            NOT_MET: (known & ~evaluation.broken[:-1]).any(),
            # a suspended rule does not do what it says about missing values
            NO_VALUE: (~known).any() and evaluation.rule not in state.suspended,
        }
        yield from ((place, branch) for branch, is_reached in reached.items() if is_reached)


def _preference_branches(
    preferences: tuple[EvaluatedPreference, ...], places: list[RulePlace]
) -> Iterator[tuple[RulePlace, str]]:
    for place, preference in zip(places, preferences, strict=False):
        ranks = preference.ranks[:-1]
        if len(np.unique(ranks[ranks >= 0])) > 1:
            yield place, RANKED
        if (ranks < 0).any():
            yield place, NO_VALUE


def _label_branches(state: PolicyState, places: list[RulePlace]) -> Iterator[tuple[RulePlace, str]]:
    """The branches of a rule with several parts are those of the whole rule."""
    position = 0
    values: dict[str, int] = {}
    columns = {column.key: column for column in state.labels}
    for rule in state.policy.node_labels:
        own = places[position : position + len(rule.parts)]
        position += len(rule.parts)
        for key, _ in (label for labels in rule.labels for label in labels):
            values[key] = values.get(key, 0) + 1
            if key in columns:
                yield from (
                    (place, branch) for place in own for branch in _reached(columns[key], values[key])
                )


def _reached(column: LabelColumn, code: int) -> Iterator[str]:
    codes, hold = column.codes[:-1], column.hold[:-1]
    if (codes == code).any():
        yield MET
    if ((codes != code) & ~hold).any():
        yield NOT_MET
    if hold.any():
        yield NO_VALUE
