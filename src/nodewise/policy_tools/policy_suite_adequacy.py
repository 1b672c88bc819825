"""What a suite of tests for policies detects: the branches of rules that it reaches, and mutants of a policy.

Mutants are copies of a policy with one small change. Good tests detect each of them. They change what a rule does, not
its text: its operator, its target by a tenth, what a missing value means, the order of a preference; or they lack one
rule, or a field that delays verdicts; a device rule also has another effect, or another limit. They also change what
the whole policy does: `enforcement`, and the mode Canary. There are none of the mode Shadow, which tests treat like
Enforce, and of `guard`, which depends on a cluster.

A rule has a branch for nodes that meet it, one for nodes that do not, and one for nodes without a value; a preference
has one for nodes that it ranks differently, and one for nodes without a value. With `for`, a rule also has one for
nodes that meet it and are not rejected yet, and with `release` or `keepFor` one for nodes that are still rejected. A
canary has one for its pods and one for all others. A branch counts as reached only at an expectation that shows its
effect: `rejected` for `avoid`, `ranks` for `prefer`, `labels` for `nodeLabels`, and `tainted` for `deviceTaints`. The
branches of a device rule are the same, of devices, and with `maxTaintedShare` one for devices beyond it.
"""

import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from nodewise.base import quantity
from nodewise.policies import hysteresis, policy_selection, rule_operators
from nodewise.policies.device_taints import DeviceReport
from nodewise.policies.placement_policy import DeviceRule, Policy, PolicyKey, PolicyKind
from nodewise.policies.placement_policy_fields import HOLD_TIMES
from nodewise.policies.rule_operators import OPERATORS, RANGE_OPERATORS, TASPOLICY_OPERATORS, expand_ranges
from nodewise.policies.state import PolicyState
from nodewise.policy_tools.device_timeline import DeviceTimeline
from nodewise.policy_tools.policy_suite import Expectation, PolicyTest, SuiteObject
from nodewise.policy_tools.policy_timeline import Moment

Section = Literal["avoid", "prefer", "nodeLabels", "deviceTaints"]
"""The sections of a PlacementPolicy; the strategies of a TASPolicy belong to one of them."""
_SECTIONS: Final[tuple[Section, ...]] = ("avoid", "nodeLabels", "prefer", "deviceTaints")
_STRATEGIES: Final[Mapping[str, Section]] = {
    "dontschedule": "avoid",
    "scheduleonmetric": "prefer",
    "deschedule": "nodeLabels",
    "labeling": "nodeLabels",
}
Rule = Mapping[str, Any]
"""The fields of a rule, as written."""


class RulePlace(NamedTuple):
    """One comparison, or one preference."""

    section: Section
    path: tuple[str | int, ...]
    """Below `spec`, for example `("avoid", 0, "all", 1)`."""
    rule: Rule

    def text(self) -> str:
        """The path as messages write it: `spec.avoid[0].all[1]`."""
        return "spec" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)


def rule_places(  # complexity: two kinds of policies
    kind: PolicyKind, spec: Mapping[str, Any]
) -> Iterator[RulePlace]:
    """All rules of a valid spec that have an effect. Of `scheduleonmetric` only the first one has."""
    if kind == "TASPolicy":
        strategies = spec.get("strategies") or {}
        for name, section in _STRATEGIES.items():
            rules = (strategies.get(name) or {}).get("rules") or []
            for number, rule in enumerate(rules[:1] if section == "prefer" else rules):
                yield RulePlace(section, ("strategies", name, "rules", number), rule)
        return
    for section in _SECTIONS:
        for number, rule in enumerate(spec.get(section) or ()):
            if rule.get("all") is None:
                yield RulePlace(section, (section, number), rule)
            for position, part in enumerate(rule.get("all") or ()):
                yield RulePlace(section, (section, number, "all", position), part)


class PolicyMutant(NamedTuple):
    """A changed copy of a policy."""

    place: str
    """The path of the changed field or rule."""
    change: str
    """`80 → 88`."""
    spec: Any


_OPPOSITES: Final = {
    "Ascending": "Descending",
    "LessThan": "GreaterThan",
    "Allow": "Reject",
    "pass": "reject",
    "Required": "Preferred",
    "NoSchedule": "NoExecute",
}
_DEFAULT_SHARE: Final = DeviceRule((), "").max_share
_NO_LIMIT: Final = "0.99999999"
_OTHER: Final = _OPPOSITES | {other: value for value, other in _OPPOSITES.items()}
_Change = tuple[str, str, Rule]  # the name of a changed field, the text of the change, and the changed rule


def mutants(kind: PolicyKind, spec: Mapping[str, Any]) -> Iterator[PolicyMutant]:
    """All mutants of a valid spec."""
    if kind != "TASPolicy":
        spec = expand_ranges(spec)
    for place in rule_places(kind, spec):
        for field, change, rule in _rule_changes(kind, place):
            yield PolicyMutant(f"{place.text()}.{field}", change, _replaced(spec, place.path, rule))
        yield PolicyMutant(place.text(), "removed", _without_rule(spec, place.path))
    if kind == "TASPolicy":
        return
    if spec.get("avoid"):
        before = spec.get("enforcement") or "Required"
        after = _OTHER[before]
        yield PolicyMutant("spec.enforcement", f"{before} → {after}", {**spec, "enforcement": after})
    if spec.get("mode") == "Canary":
        yield PolicyMutant("spec.mode", "Canary → Enforce", {**spec, "mode": "Enforce"})
    for section, field in itertools.product(("avoid", "deviceTaints"), HOLD_TIMES):
        for number, rule in enumerate(spec.get(section) or ()):
            for _, change, changed in _removed(rule, field):
                text = f"spec.{section}[{number}].{field}"
                yield PolicyMutant(text, change, _replaced(spec, (section, number), changed))


def _rule_changes(  # complexity: one case for each section
    kind: PolicyKind, place: RulePlace
) -> Iterator[_Change]:
    is_taspolicy, rule = kind == "TASPolicy", place.rule
    if place.section == "prefer":
        yield from _changed_choice(rule, "operator" if is_taspolicy else "order", "")
        return
    if is_taspolicy:
        yield from (
            _changed(rule, "operator", other)
            for other in TASPOLICY_OPERATORS
            if other != rule.get("operator")
        )
        yield from (_changed(rule, "target", text) for text in _other_targets(rule.get("target", 0)))
    else:
        yield from _comparison_changes(rule)
    if place.section == "avoid":
        empty = "empty_means" if is_taspolicy else "emptyMeans"
        missing = ("when_missing", "pass") if is_taspolicy else ("whenMissing", "Allow")
        # with `emptyMeans` no value is missing
        yield from _removed(rule, empty) if empty in rule else _changed_choice(rule, *missing)
    elif place.section == "deviceTaints":
        yield from _removed(rule, "emptyMeans")
        with_limit = {"maxTaintedShare": _DEFAULT_SHARE, **rule}
        yield from _changed_choice(with_limit, "effect", "NoSchedule")
        if share := rule.get("maxTaintedShare"):
            # of few devices, nearly all are as many as with a large share
            is_large = float(share) > 2 * float(_DEFAULT_SHARE)
            yield _changed(rule, "maxTaintedShare", _DEFAULT_SHARE if is_large else _NO_LIMIT)


def _comparison_changes(rule: Rule) -> Iterator[_Change]:
    if "between" in rule:
        yield from _range_changes(rule)
        return
    operator = next(name for name in OPERATORS if name in rule)
    target = rule[operator]
    changes = [(f"{operator} → {other}", other, target) for other in OPERATORS[operator].alternatives]
    changes += [(f"{target} → {text}", operator, text) for text in _other_targets(target)]
    for change, other, value in changes:
        changed = {other if name == operator else name: field for name, field in rule.items()}
        changed[other] = value
        if "release" in rule:
            # as far beyond the target as before: on the other side, the rule would be invalid
            distance = abs(quantity.parse(str(rule["release"])) - quantity.parse(str(target)))
            release = quantity.parse(str(value)) + rule_operators.sort_direction(other) * distance
            changed["release"] = quantity.nano_to_text(release)
        yield operator, change, changed
    yield from _removed(rule, "release")


def _range_changes(rule: Rule) -> Iterator[_Change]:
    """Those of a device rule with two ends, which has no `all`."""
    ends, rest = list(rule["between"]), {name: rule[name] for name in rule if name != "between"}
    for position, end in enumerate(ends):
        for text in _other_targets(end):
            changed = [*ends[:position], text, *ends[position + 1 :]]
            if quantity.parse(str(changed[0])) <= quantity.parse(str(changed[1])):
                yield "between", f"{end} → {text}", {**rest, "between": changed}
        kept = RANGE_OPERATORS["between"].parts[1 - position]
        yield "between", f"between → {kept}", {**rest, kept: ends[1 - position]}


def _other_targets(target: Any) -> Iterator[str]:
    """A target that is a tenth smaller, and one that is a tenth larger; those of 0 are -1 and 1."""
    nano = quantity.parse(str(target))
    distance = abs(nano) // 10 or quantity.NANO
    yield from (quantity.nano_to_text(nano + change) for change in (-distance, distance))


def _changed(rule: Rule, field: str, value: str) -> _Change:
    before = rule.get(field)
    return field, value if before is None else f"{before} → {value}", {**rule, field: value}


def _changed_choice(rule: Rule, field: str, default: str) -> Iterator[_Change]:
    """The opposite of a text, which has a default."""
    if value := _OTHER.get(rule.get(field, default)):
        yield _changed(rule, field, value)


def _removed(rule: Rule, field: str) -> Iterator[_Change]:
    if field in rule:
        yield field, "removed", {name: value for name, value in rule.items() if name != field}


def _replaced(spec: Mapping[str, Any], path: Sequence[str | int], rule: Rule) -> Any:
    """The spec with another rule at a place."""
    changed: Any = copy.deepcopy(spec)
    parent = changed
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = rule
    return changed


def _without_rule(spec: Mapping[str, Any], path: Sequence[str | int]) -> Any:
    """The spec without a rule. What becomes empty or useless by that is removed, too."""
    changed: Any = copy.deepcopy(spec)
    parents = [changed]
    for step in path[:-1]:
        parents.append(parents[-1][step])
    for parent, step in zip(reversed(parents), reversed(path), strict=True):
        del parent[step]
        # what is left of a rule or a strategy without its list, such as the labels of a rule, has no effect alone
        if parent and step not in ("all", "rules"):
            break
    useless: list[str] = []
    if "avoid" not in changed:
        useless += ["enforcement", "guard"]
        useless += [] if "prefer" in changed or "deviceTaints" in changed else ["mode", "canary"]
    return {name: value for name, value in changed.items() if name not in useless}


MET: Final = "no node meets it"
NOT_MET: Final = "every node meets it"
NO_VALUE: Final = "no node is without a value"
PENDING: Final = "no node meets it for less than for"
KEPT: Final = "no node is still rejected that no longer meets it"
DEVICE_MET: Final = "no device meets it"
DEVICE_NOT_MET: Final = "every device meets it"
DEVICE_NO_VALUE: Final = "no device is without a value"
DEVICE_PENDING: Final = "no device meets it for less than for"
DEVICE_KEPT: Final = "no device is still tainted that no longer meets it"
DEVICE_LIMITED: Final = "no device is beyond maxTaintedShare"
CANARY_DEVICE: Final = "no tainted device is part of the canary"
OTHER_DEVICE: Final = "every device that meets a rule is part of the canary"
CANARY_POD: Final = "no pod is part of the canary"
OTHER_POD: Final = "every pod is part of the canary"
RANKED: Final = "all nodes have the same rank"
_CANARY: Final = "spec.canary"


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
        self._places: dict[PolicyKey, dict[Section, list[RulePlace]]] = {}
        self._branches: list[Branch] = []
        self.reached: set[Branch] = set()
        for key, item in policies.items():
            spec = item.spec() if key.kind == "TASPolicy" else expand_ranges(item.spec())
            sections: dict[Section, list[RulePlace]] = {section: [] for section in _SECTIONS}
            for place in rule_places(key.kind, spec):
                sections[place.section].append(place)
            self._places[key] = sections
            self._branches += (Branch(key, *branch) for branch in _branches(spec, sections))

    def branches(self) -> Sequence[Branch]:
        """All branches, in the order of the policies and their rules."""
        return self._branches

    def observe(  # complexity: one case for each part of an expectation
        self, test: PolicyTest, moment: Moment, devices: DeviceTimeline, expectation: Expectation
    ) -> None:
        """Record what an expectation reaches."""
        pod: Any = test.pods[expectation.pod] if expectation.pod else None
        selected = moment.state.selection.select(pod) if expectation.pod else ()
        for key, state in moment.state.policies.items():
            if key not in self._places:
                continue
            places = self._places[key]
            reached: list[tuple[str, str]] = []
            if key in selected:
                needed = expectation.ranks if state.policy.only_prefers else expectation.rejected
                if needed is not None:
                    reached += [*_avoid_branches(state, places["avoid"]), *_state_branches(state)]
                if expectation.ranks is not None:
                    reached += _preference_branches(state, places["prefer"])
                if expectation.ranks is not None or expectation.rejected is not None:
                    is_canary_pod = policy_selection.is_enforced_for(state.policy, pod)
                    reached.append((_CANARY, CANARY_POD if is_canary_pod else OTHER_POD))
            if expectation.labels is not None:
                reached += _label_branches(state, places["nodeLabels"])
            if expectation.tainted is not None:
                reached += _device_branches(state.policy, places["deviceTaints"], devices)
            self.reached.update(Branch(key, path, branch) for path, branch in reached)


def _branches(  # complexity: one case for each kind of branch
    spec: Mapping[str, Any], sections: Mapping[Section, list[RulePlace]]
) -> Iterator[tuple[str, str]]:
    """The path and the text of each branch of a policy."""
    for section, places in sections.items():
        for place in places:
            if section == "deviceTaints":
                branches: Iterable[str] = _device_rule_branches(place.rule, spec)
            else:
                has_values = "emptyMeans" in place.rule or "empty_means" in place.rule
                met = (RANKED,) if section == "prefer" else (MET, NOT_MET)
                branches = met if has_values else (*met, NO_VALUE)
            yield from ((place.text(), branch) for branch in branches)
    for number, rule in enumerate(spec.get("avoid") or ()):
        path = f"spec.avoid[{number}]"
        if "for" in rule:
            yield path, PENDING
        if "keepFor" in rule or any("release" in part for part in (rule, *rule.get("all", ()))):
            yield path, KEPT
    yield from ((_CANARY, branch) for branch in _canary_branches(spec, sections))


def _canary_branches(spec: Mapping[str, Any], sections: Mapping[Section, list[RulePlace]]) -> Iterator[str]:
    if spec.get("mode") == "Canary":
        if sections["avoid"] or sections["prefer"]:
            yield from (CANARY_POD, OTHER_POD)
        if sections["deviceTaints"] and "percent" in spec.get("canary", {}):
            yield from (CANARY_DEVICE, OTHER_DEVICE)


def _device_rule_branches(rule: Rule, spec: Mapping[str, Any]) -> Iterator[str]:
    yield from (DEVICE_MET, DEVICE_NOT_MET)
    if "emptyMeans" not in rule:
        yield DEVICE_NO_VALUE
    if "for" in rule:
        yield DEVICE_PENDING
    if "keepFor" in rule or "release" in rule:
        yield DEVICE_KEPT
    # outside of a canary, other devices are not tainted as well
    if "maxTaintedShare" in rule and spec.get("mode") != "Canary":
        yield DEVICE_LIMITED


def _avoid_branches(state: PolicyState, places: list[RulePlace]) -> Iterator[tuple[str, str]]:
    usable = [place for place, part in zip(places, state.policy.avoided(), strict=True) if not part.unusable]
    for place, evaluation in zip(usable, state.filter_rules, strict=True):
        known, broken = evaluation.inputs.known[:-1], evaluation.broken[:-1]
        if (known & broken).any():
            yield place.text(), MET
        if (known & ~broken).any():
            yield place.text(), NOT_MET
        # a suspended rule does not do what it says about missing values
        if (~known).any() and evaluation.rule not in state.suspended:
            yield place.text(), NO_VALUE


def _state_branches(state: PolicyState) -> Iterator[tuple[str, str]]:
    """What the states of nodes reach (`hysteresis`)."""
    position = 0
    for number, (rule, verdict) in enumerate(zip(state.policy.avoid, state.rule_verdicts, strict=False)):
        evaluations = state.filter_rules[position : position + len(rule.parts)]
        position += len(rule.parts)
        if verdict.states is None:
            continue
        meets = np.logical_and.reduce([each.inputs.known & each.broken for each in evaluations])
        if (verdict.states.phases[:-1] == hysteresis.PENDING).any():
            yield f"spec.avoid[{number}]", PENDING
        if (verdict.rejected & ~meets)[:-1].any():
            yield f"spec.avoid[{number}]", KEPT


def _preference_branches(state: PolicyState, places: list[RulePlace]) -> Iterator[tuple[str, str]]:
    for place, preference in zip(places, state.preferences, strict=False):
        ranks = preference.ranks[:-1]
        if len(np.unique(ranks[ranks >= 0])) > 1:
            yield place.text(), RANKED
        if (ranks < 0).any():
            yield place.text(), NO_VALUE


def _label_branches(state: PolicyState, places: list[RulePlace]) -> Iterator[tuple[str, str]]:
    """The branches of a rule with several parts are those of the whole rule."""
    left = iter(places)
    values: dict[str, int] = {}
    columns = {column.key: column for column in state.labels}
    for rule in state.policy.node_labels:
        paths = [place.text() for place in itertools.islice(left, len(rule.parts))]
        for key, _ in (label for labels in rule.labels for label in labels):
            values[key] = values.get(key, 0) + 1
            if key not in columns:
                continue
            is_met, hold = columns[key].codes[:-1] == values[key], columns[key].hold[:-1]
            for branch, reached in ((MET, is_met), (NOT_MET, ~is_met & ~hold), (NO_VALUE, hold)):
                if reached.any():
                    yield from ((path, branch) for path in paths)


def _device_branches(  # complexity: one case for each branch
    policy: Policy, places: list[RulePlace], devices: DeviceTimeline
) -> Iterator[tuple[str, str]]:
    report = devices.taints.reports.get(policy.key, DeviceReport())
    tainted = {str(taint.device) for taint in devices.taints.wanted.values() if taint.policy == policy.name}
    for place, rule, counts in zip(places, policy.device_taints, report.rules, strict=False):
        states: dict[str, set[str]] = {}
        for group in counts.device_states or ():
            states.setdefault(group.state, set()).update(group.devices)
        pending, rejected = states.pop("Pending", set()), set[str]().union(*states.values())
        meeting, missing = counts.devices or 0, counts.missing or 0
        total = len(devices.table.numbers(rule.driver))
        reached = {
            DEVICE_MET: meeting > 0,
            DEVICE_NOT_MET: total - missing > meeting,
            DEVICE_NO_VALUE: missing > 0,
            DEVICE_PENDING: bool(pending),
            # a device that meets it is pending or rejected
            DEVICE_KEPT: len(rejected) > meeting - len(pending),
            DEVICE_LIMITED: policy.mode == "Enforce" and not rejected <= tainted,
        }
        yield from ((place.text(), branch) for branch, is_reached in reached.items() if is_reached)
    if tainted:
        yield _CANARY, CANARY_DEVICE
    if report.would_taint:
        yield _CANARY, OTHER_DEVICE
