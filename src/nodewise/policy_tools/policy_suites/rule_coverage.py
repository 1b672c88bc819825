"""The branches of rules that the expectations of tests reach.

A rule has a branch for nodes that meet it, one for nodes that do not, and one for nodes without a value; a preference
has one for nodes that it ranks differently, and one for nodes without a value. With `for`, a rule also has one for
nodes that meet it and are not rejected yet, and with `release` or `keepFor` one for nodes that are still rejected. A
canary has one for its pods and one for all others. A branch counts as reached only at an expectation that shows its
effect: `rejected` for `avoid`, `ranks` for `prefer`, and `labels` for `nodeLabels`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from nodewise.agent import ObjectKey
from nodewise.policies import hysteresis, policy_selection
from nodewise.policies.node_labels import LabelColumn
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.state import EvaluatedPreference, PolicyState
from nodewise.policy_tools.policy_suites import rule_places
from nodewise.policy_tools.policy_suites.rule_places import RulePlace
from nodewise.policy_tools.policy_suites.suite import Expectation, PolicyTest, SuiteObject
from nodewise.policy_tools.policy_timeline import Moment

MET: Final = "no node meets it"
NOT_MET: Final = "every node meets it"
NO_VALUE: Final = "no node is without a value"
PENDING: Final = "no node meets it for less than for"
KEPT: Final = "no node is still rejected that no longer meets it"
CANARY_POD: Final = "no pod is part of the canary"
OTHER_POD: Final = "every pod is part of the canary"
_CANARY: Final = "spec.canary"
RANKED: Final = "all nodes have the same rank"
_BRANCHES: Final[Mapping[rule_places.Section, tuple[str, ...]]] = {
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
        self._specs = {key: item.spec() for key, item in policies.items()}
        self._places = {
            key: rule_places.places_by_section(key.kind, spec) for key, spec in self._specs.items()
        }
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
