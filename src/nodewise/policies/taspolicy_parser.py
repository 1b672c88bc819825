"""Parses a TASPolicy into the model of a policy: `telemetry.intel.com/v1alpha1` with the old fields and the new ones.

Old fields are parsed as laxly as in the older system; their problems are in `Policy.problems`, which become a
condition, a log line and the output of `policy lint`. Policies fail closed: a rule that cannot be evaluated is
`unusable` and rejects every node. An unknown strategy or field makes the whole policy reject every node, because it may
be the misspelt name of a rule that excludes nodes. The CRD is `deploy/crds/taspolicies.yaml`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from nodewise.base import clock, quantity
from nodewise.base.errors import did_you_mean, quoting_hint, shown
from nodewise.policies.placement_policy import AvoidRule, Comparison, LabelRule, Policy, PolicyKey, Preference
from nodewise.policies.placement_policy_fields import AGGREGATE_TYPE, QUERY_TYPE, VIOLATING, choice
from nodewise.policies.policy_objects import (
    MAX_METRIC_NAME,
    MAX_POLICY_LABELS,
    METRIC_NAME,
    PolicyObject,
    ProblemCollector,
    is_valid_label_part,
)
from nodewise.policies.rule_operators import TASPOLICY_OPERATORS, sort_direction

STRATEGIES: Final = ("dontschedule", "scheduleonmetric", "deschedule", "labeling")
PREFIX: Final = "telemetry.aware.scheduling."
"""Of the label keys of `labeling` (Telemetry Aware Scheduling 0.7, `pkg/strategies/labeling`)."""
_MAX_PREFIX: Final = 253
"""Characters of a label key before its `/` (apimachinery v0.36 `pkg/util/validation`)."""
_MAX_LABELING_NAME: Final = _MAX_PREFIX - len(PREFIX)
"""Characters of a policy's name, which is part of its label keys."""
MAX_RULES: Final = 100
"""Rules of one strategy. Each rule has arrays over all nodes: an object of 1.5 MiB of rules would need gigabytes."""
_MAX_AGE_S: Final = 366 * 86400.0


def _parse_metric(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_METRIC_NAME:
        raise ValueError(f"a name of at most {MAX_METRIC_NAME} characters{quoting_hint(value)}")
    if not METRIC_NAME.fullmatch(value):
        raise ValueError("letters, digits, _ and - (a PlacementPolicy also accepts : and .)")
    return value


def _parse_operator(value: Any) -> str:
    if not isinstance(value, str) or value not in TASPOLICY_OPERATORS:
        similar = did_you_mean(value, [*TASPOLICY_OPERATORS]) if isinstance(value, str) else ""
        raise ValueError(" or ".join(TASPOLICY_OPERATORS) + similar)
    return TASPOLICY_OPERATORS[value]


def _parse_target(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(quantity.EXPECTED)  # noqa: TRY004 - the caller catches ValueError only
    try:
        return quantity.parse(str(value))
    except ValueError:
        raise ValueError(quantity.EXPECTED) from None


def _parse_duration(value: Any) -> float:
    try:
        seconds = clock.parse_duration(str(value))
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= _MAX_AGE_S:
        raise ValueError("a duration such as 30s or 5m, of at most a year")
    return seconds


STRATEGY_FIELDS: Final = ("policyName", "logicalOperator", "rules")
_OPTIONAL_FIELDS: Final[Mapping[str, tuple[Callable[[Any], Any], Any]]] = {
    "target": (_parse_target, 0),
    "max_age": (_parse_duration, None),
    "when_missing": (choice("pass", "reject").parse, ""),
    "query": (QUERY_TYPE.parse, ""),
    "aggregate": (AGGREGATE_TYPE.parse, ""),
    "empty_means": (choice("healthy").parse, ""),
}
"""The parser of each optional field of a rule, and its default."""
RULE_FIELDS: Final = (
    "metricname",
    "operator",
    "target",
    "labels",
    "when_missing",
    "max_age",
    "query",
    "aggregate",
    "empty_means",
)

_Labels = tuple[tuple[str, str], ...]


class _Strategy(NamedTuple):
    """The rules of one strategy, and whether a node must break every rule, instead of any."""

    rules: tuple[Comparison, ...] = ()
    labels: tuple[_Labels, ...] = ()
    """For each rule, the names and values of its labels."""
    all_of: bool = False

    def groups(self) -> Iterator[tuple[tuple[Comparison, ...], tuple[_Labels, ...]]]:
        """The rules that a node must break together, and the labels of each."""
        if self.all_of and self.rules:
            yield self.rules, self.labels
        else:
            for rule, labels in zip(self.rules, self.labels, strict=True):
                yield (rule,), (labels,)


_NO_STRATEGY: Final = _Strategy()


def parse_policy(policy: PolicyObject) -> Policy:
    """Parse a policy object. This never fails: problems are part of the result."""
    parser = _PolicyParser()
    metadata = policy.metadata
    name = metadata.name
    strategies = parser.parse_strategies(parser.decode_spec(policy))
    parser.check_names(name, strategies)
    avoided, preferred, descheduled, labeled = (strategies.get(each, _NO_STRATEGY) for each in STRATEGIES)
    # a key that the API server refuses would take the node's other labels with it
    violating = ((name, VIOLATING),) if is_valid_label_part(name) else ()
    parsed = Policy(
        PolicyKey("TASPolicy", metadata.namespace, name),
        metadata.creationTimestamp or "",
        avoid=tuple(AvoidRule(parts) for parts, _ in avoided.groups()),
        prefer=tuple(map(Preference, preferred.rules)),
        node_labels=(
            *(LabelRule(parts, (violating, *[()] * (len(parts) - 1))) for parts, _ in descheduled.groups()),
            *(
                LabelRule(parts, tuple(_labeling_labels(name, written) for written in labels))
                for parts, labels in labeled.groups()
            ),
        ),
        sections=tuple(strategies),
        uid=metadata.uid,
    )
    return parser.with_problems(parsed, "spec.strategies")


def _labeling_labels(policy: str, labels: _Labels) -> _Labels:
    """The labels `telemetry.aware.scheduling.<policy>/<name>`."""
    if len(policy) > _MAX_LABELING_NAME:
        return ()
    return tuple((f"{PREFIX}{policy}/{name}", value) for name, value in labels)


def _unusable_strategy(why: str) -> _Strategy:
    """A strategy that cannot be understood: every node breaks its rule."""
    return _Strategy((Comparison("", "", unusable=why),), ((),))


class _PolicyParser(ProblemCollector):
    """Parses one policy and collects its problems."""

    def __init__(self) -> None:
        super().__init__()
        self._unknown = ""
        """The message for the first unknown strategy or field; empty if there is none."""

    def check_names(self, name: str, strategies: Mapping[str, _Strategy]) -> None:
        """Check the policy's name, which is also a label value, and the label key of `deschedule`."""
        length = f"{len(name)} characters"
        if len(name) > 63:  # noqa: PLR2004 - the length of a label value
            self.add_problem("metadata.name", length, "at most 63, because it is the value of a pod label")
        if "labeling" in strategies and len(name) > _MAX_LABELING_NAME:
            wanted = f"at most {_MAX_LABELING_NAME}, because it is part of label keys; no label is set"
            self.add_problem("metadata.name", length, wanted)
        if "deschedule" in strategies and not is_valid_label_part(name):
            self.add_problem("metadata.name", shown(name), "letters, digits, - and . for a label's key")
        for strategy in strategies.values():
            if not strategy.rules:
                self.add_problem("spec.strategies", "a strategy without rules", "at least one rule")

    def parse_strategies(self, spec: Any) -> dict[str, _Strategy]:
        """The strategies of a spec that has been decoded."""
        mapping = self.parse_mapping("spec", {} if spec is None else spec)
        value = mapping.get("strategies")
        listed = self.parse_mapping("spec.strategies", {} if value is None else value)
        if self.problems:
            return {"dontschedule": _unusable_strategy(str(self.problems[0]))}
        if not listed:
            self.add_problem("spec.strategies", "no value", " or ".join(STRATEGIES))
        self._report_unknown("spec", mapping, ("strategies",))
        # the API server drops a strategy that is null
        present = {name: strategy for name, strategy in listed.items() if strategy is not None}
        self._report_unknown("spec.strategies", present, STRATEGIES, "an unknown strategy")
        strategies = {name: self._parse_strategy(name, listed[name]) for name in STRATEGIES if name in listed}
        if self._unknown:
            strategies["dontschedule"] = _unusable_strategy(self._unknown)
        return strategies

    def _report_unknown(
        self, path: str, value: Mapping[str, Any], valid: Sequence[str], what: str = "an unknown field"
    ) -> str:
        first = self.report_unknown_keys(path, value, valid, what)
        self._unknown = self._unknown or first
        return first

    def _parse_strategy(self, name: str, value: Any) -> _Strategy:
        path = f"spec.strategies.{name}"
        strategy = self.parse_mapping(path, value)
        logical = strategy.get("logicalOperator", "")
        if logical not in ("", "anyOf", "allOf", None):
            similar = did_you_mean(logical, ["allOf", "anyOf"]) if isinstance(logical, str) else ""
            expected = f"allOf or anyOf (taken as anyOf){similar}"
            self.add_problem(f"{path}.logicalOperator", shown(logical), expected)
        if why := self._report_unknown(path, strategy, STRATEGY_FIELDS):
            return _unusable_strategy(why)
        rules = strategy.get("rules")
        if not isinstance(rules, list):
            return _unusable_strategy(self.add_problem(f"{path}.rules", shown(rules), "a list of rules"))
        if len(rules) > MAX_RULES:
            why = self.add_problem(f"{path}.rules", f"{len(rules)} rules", f"at most {MAX_RULES}")
            return _unusable_strategy(why)
        parsed = [
            self._parse_rule(f"{path}.rules[{number}]", rule, name) for number, rule in enumerate(rules)
        ]
        return _Strategy(
            tuple(rule for rule, _ in parsed), tuple(labels for _, labels in parsed), logical == "allOf"
        )

    def _parse_rule(self, path: str, value: Any, strategy: str) -> tuple[Comparison, _Labels]:
        """The comparison of a rule, and its labels. It is unusable after most problems, but not all."""
        before = len(self.problems)
        rule = self.parse_mapping(path, value)
        metric = rule.get("metricname")
        self.parse_value(path, "metricname", metric, _parse_metric)
        is_preference = strategy == "scheduleonmetric"
        is_broken = len(self.problems) > before
        operator = self._parse_rule_operator(path, rule, has_order=is_preference)
        is_broken = is_broken or not (operator or is_preference)
        after_operator = len(self.problems)
        values = self._parse_optional_fields(path, rule)
        self._report_unknown(path, rule, RULE_FIELDS)
        is_broken = is_broken or len(self.problems) > after_operator
        if values["empty_means"] and rule.get("query") in (None, ""):
            self.add_problem(
                f"{path}.empty_means", shown("healthy"), "only together with query; it is ignored"
            )
        labels = self._parse_rule_labels(f"{path}.labels", rule.get("labels"))
        comparison = Comparison(
            metric=metric if isinstance(metric, str) and len(metric) <= MAX_METRIC_NAME else "",
            operator=operator,
            target=values["target"],
            when_missing=values["when_missing"],
            max_age_s=values["max_age"],
            query=values["query"],
            aggregate=values["aggregate"],
            empty_means=values["query"] and values["empty_means"],
            unusable=str(self.problems[before]) if is_broken else "",
        )
        return comparison, labels

    def _parse_rule_operator(self, path: str, rule: Mapping[str, Any], *, has_order: bool) -> str:
        """The operator; empty if it is invalid."""
        operator = self.parse_value(path, "operator", rule.get("operator"), _parse_operator) or ""
        if has_order and operator and sort_direction(operator) == 0:
            expected = "LessThan or GreaterThan, which define an order"
            self.add_problem(f"{path}.operator", shown(rule["operator"]), expected)
        return str(operator)

    def _parse_optional_fields(self, path: str, rule: Mapping[str, Any]) -> dict[str, Any]:
        """The values, with defaults for absent and invalid ones."""
        values = {}
        for name, (parse, default) in _OPTIONAL_FIELDS.items():
            is_present = rule.get(name) not in (None, "")
            value = self.parse_value(path, name, rule[name], parse) if is_present else None
            values[name] = default if value is None else value
        return values

    def _parse_rule_labels(self, path: str, value: Any) -> _Labels:
        """The valid labels; the others are problems and do not affect them."""
        if value is None:
            return ()
        if not isinstance(value, list):
            self.add_problem(path, shown(value), "a list of texts name=value")
            return ()
        if len(value) > MAX_POLICY_LABELS:
            expected = f"at most {MAX_POLICY_LABELS}; the others are left out"
            self.add_problem(path, f"{len(value)} labels", expected)
        valid: list[tuple[str, str]] = []
        for number, text in enumerate(value[:MAX_POLICY_LABELS]):
            name, separator, label = text.partition("=") if isinstance(text, str) else ("", "", "")
            if separator and is_valid_label_part(name) and (not label or is_valid_label_part(label)):
                valid.append((name, label))
            else:
                self.add_problem(f"{path}[{number}]", shown(text), "name=value, both valid for a label")
        return tuple(valid)
