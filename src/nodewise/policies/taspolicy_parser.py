"""Parses a TASPolicy: `telemetry.intel.com/v1alpha1` with the old fields and the optional new ones.

Old fields are parsed as laxly as in the older system; their problems are in `Policy.problems`, which become a
condition, a log line and the output of `policy lint`. Policies fail closed: a rule that cannot be evaluated is
`unusable` and rejects every node. An unknown strategy or field makes the whole policy reject every node, because it may
be the misspelt name of a rule that excludes nodes. The CRD is `deploy/crds/taspolicies.yaml`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from nodewise.base import clock, quantity
from nodewise.base.errors import shown
from nodewise.metrics.aggregation import AGGREGATIONS
from nodewise.policies.placement_policy import AvoidRule, Comparison, LabelRule, Policy, PolicyKey, Preference
from nodewise.policies.placement_policy_fields import choice
from nodewise.policies.policy_objects import (
    MAX_METRIC_NAME,
    MAX_POLICY_LABELS,
    METRIC_NAME,
    PolicyObject,
    ProblemCollector,
    is_valid_label_part,
)
from nodewise.policies.rule_operators import TASPOLICY_OPERATORS, sort_direction

_MAX_QUERY: Final = 4096
"""Characters, as in the CRD. Sources of metrics would reject a longer name or query."""
_MAX_AGE_S: Final = 366 * 86400.0


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


def parse_query(value: Any) -> str:
    """The expression; ValueError if it is not a text or is too long."""
    if not isinstance(value, str) or len(value) > _MAX_QUERY:
        raise ValueError(f"an expression of at most {_MAX_QUERY} characters")
    return value


OPTIONAL_FIELDS: Final[Mapping[str, tuple[Callable[[Any], Any], Any]]] = {
    "target": (_parse_target, 0),
    "max_age": (_parse_duration, None),
    "when_missing": (choice(("pass", "reject")), ""),
    "query": (parse_query, ""),
    "aggregate": (choice(tuple(AGGREGATIONS)), ""),
    "empty_means": (choice(("healthy",)), ""),
}
"""The parser of each optional field of a rule, and its default."""


STRATEGIES: Final = ("dontschedule", "scheduleonmetric", "deschedule", "labeling")
PREFIX: Final = "telemetry.aware.scheduling."
"""Of the label keys of `labeling` (Telemetry Aware Scheduling 0.7, `pkg/strategies/labeling`)."""
VIOLATING: Final = "violating"
"""The value of the label of `deschedule` (`pkg/strategies/deschedule`)."""
_MAX_PREFIX: Final = 253
"""Characters of a label key before its `/` (apimachinery v0.36 `pkg/util/validation`)."""
_MAX_LABELING_NAME: Final = _MAX_PREFIX - len(PREFIX)
"""Characters of a policy's name, which is part of its label keys."""
MAX_RULES: Final = 100
"""Rules of one strategy. Each rule has arrays over all nodes: an object of 1.5 MiB of rules would need gigabytes."""
_STRATEGY_FIELDS: Final = ("policyName", "logicalOperator", "rules")
_RULE_FIELDS: Final = (
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
    labels: tuple[tuple[tuple[str, str], ...], ...] = ()
    """For each rule, the names and values of its labels."""
    all_of: bool = False


_NO_STRATEGY: Final = _Strategy()


def parse_policy(policy: PolicyObject) -> Policy:
    """Parse a policy object. This never fails: problems are part of the result."""
    parser = _PolicyParser()
    strategies: Mapping[str, _Strategy] = parser.parse_strategies(parser.decode_spec(policy))
    metadata = policy.metadata
    parser.check_label_names(metadata.name, strategies)
    strategies = parser.limit_labels(strategies)
    avoided = strategies.get("dontschedule", _NO_STRATEGY)
    groups = [avoided.rules] if avoided.all_of and avoided.rules else [(rule,) for rule in avoided.rules]
    return Policy(
        PolicyKey("TASPolicy", metadata.namespace, metadata.name),
        metadata.creationTimestamp or "",
        avoid=tuple(map(AvoidRule, groups)),
        prefer=tuple(map(Preference, strategies.get("scheduleonmetric", _NO_STRATEGY).rules)),
        node_labels=(
            *_descheduling_rules(metadata.name, strategies.get("deschedule", _NO_STRATEGY)),
            *_labeling_rules(metadata.name, strategies.get("labeling", _NO_STRATEGY)),
        ),
        sections=tuple(strategies),
        problems=parser.limited_problems(),
        uid=metadata.uid,
    )


def _descheduling_rules(policy: str, strategy: _Strategy) -> Iterator[LabelRule]:
    """The label `<policy>=violating`. A key that the API server refuses would take the node's other labels with it."""
    labels = ((policy, VIOLATING),) if is_valid_label_part(policy) else ()
    if strategy.all_of and strategy.rules:
        yield LabelRule(strategy.rules, (labels, *[()] * (len(strategy.rules) - 1)))
    else:
        yield from (LabelRule((rule,), (labels,)) for rule in strategy.rules)


def _labeling_rules(policy: str, strategy: _Strategy) -> Iterator[LabelRule]:
    """The labels `telemetry.aware.scheduling.<policy>/<name>`."""
    prefix = f"{PREFIX}{policy}"
    is_valid = len(prefix) <= _MAX_PREFIX
    labels = tuple(
        tuple((f"{prefix}/{name}", value) for name, value in listed) if is_valid else ()
        for listed in strategy.labels
    )
    if strategy.all_of and strategy.rules:
        yield LabelRule(strategy.rules, labels)
    else:
        yield from (
            LabelRule((rule,), (listed,)) for rule, listed in zip(strategy.rules, labels, strict=True)
        )


def _unusable_policy_strategies(why: str) -> dict[str, _Strategy]:
    """The strategies of a policy that cannot be understood: every node is rejected."""
    return {"dontschedule": _unusable_strategy(why)}


def _unusable_strategy(why: str) -> _Strategy:
    return _Strategy((Comparison("", "", unusable=why),), ((),))


class _PolicyParser(ProblemCollector):
    """Parses one policy and collects its problems."""

    def __init__(self) -> None:
        super().__init__()
        self.unknown = ""
        """The message for the first unknown strategy or field; empty if there is none."""

    def check_label_names(self, name: str, strategies: Mapping[str, _Strategy]) -> None:
        """Check the policy's name, which is also a label value, and the label key of `deschedule`."""
        if len(name) > 63:  # noqa: PLR2004 - the length of a label value
            self.add_problem(
                "metadata.name",
                f"{len(name)} characters",
                "at most 63, because it is the value of a pod label",
            )
        if "labeling" in strategies and len(name) > _MAX_LABELING_NAME:
            wanted = f"at most {_MAX_LABELING_NAME}, because it is part of label keys; no label is set"
            self.add_problem("metadata.name", f"{len(name)} characters", wanted)
        if "deschedule" in strategies and not is_valid_label_part(name):
            self.add_problem("metadata.name", shown(name), "letters, digits, - and . for a label's key")
        for strategy in strategies.values():
            if not strategy.rules:
                self.add_problem("spec.strategies", "a strategy without rules", "at least one rule")

    def limit_labels(self, strategies: Mapping[str, _Strategy]) -> Mapping[str, _Strategy]:
        """The strategies with the first `MAX_POLICY_LABELS` different labels; that of `deschedule` comes first."""
        labeling = strategies.get("labeling")
        if labeling is None:
            return strategies
        names = dict.fromkeys(name for labels in labeling.labels for name, _ in labels)
        count = len(names) + ("deschedule" in strategies)
        if count <= MAX_POLICY_LABELS:
            return strategies
        wanted = f"at most {MAX_POLICY_LABELS} per policy; the others are left out"
        self.add_problem("spec.strategies", f"{count} different node labels", wanted)
        kept = frozenset([*names][: len(names) - (count - MAX_POLICY_LABELS)])
        limited = tuple(tuple(label for label in labels if label[0] in kept) for labels in labeling.labels)
        return {**strategies, "labeling": labeling._replace(labels=limited)}

    def parse_strategies(self, spec: Any) -> dict[str, _Strategy]:
        """The strategies of a spec that has been decoded."""
        mapping = self.parse_mapping("spec", {} if spec is None else spec)
        value = mapping.get("strategies")
        listed = self.parse_mapping("spec.strategies", {} if value is None else value)
        if self.problems:
            return _unusable_policy_strategies(str(self.problems[0]))
        if not listed:
            self.add_problem("spec.strategies", "none", " or ".join(STRATEGIES))
        self._report_unknown_keys("spec", mapping, ("strategies",))
        # the API server drops a strategy that is null
        named = {name: strategy for name, strategy in listed.items() if strategy is not None}
        self._report_unknown_keys("spec.strategies", named, STRATEGIES, "an unknown strategy")
        read = {name: self._parse_strategy(name, listed[name]) for name in STRATEGIES if name in listed}
        return read | _unusable_policy_strategies(self.unknown) if self.unknown else read

    def _parse_strategy(self, name: str, value: Any) -> _Strategy:
        path = f"spec.strategies.{name}"
        strategy = self.parse_mapping(path, value)
        logical = strategy.get("logicalOperator", "")
        if logical not in ("", "anyOf", "allOf", None):
            self.add_problem(f"{path}.logicalOperator", shown(logical), "allOf or anyOf (taken as anyOf)")
        if why := self._report_unknown_keys(path, strategy, _STRATEGY_FIELDS):
            return _unusable_strategy(why)
        rules = strategy.get("rules")
        if not isinstance(rules, Sequence) or isinstance(rules, str):
            why = self.add_problem(f"{path}.rules", shown(rules), "a list of rules")
            return _unusable_strategy(why)
        if len(rules) > MAX_RULES:
            why = self.add_problem(f"{path}.rules", f"{len(rules)} rules", f"at most {MAX_RULES}")
            return _unusable_strategy(why)
        read = [self._parse_rule(f"{path}.rules[{number}]", rule, name) for number, rule in enumerate(rules)]
        return _Strategy(
            tuple(rule for rule, _ in read), tuple(labels for _, labels in read), all_of=logical == "allOf"
        )

    def _parse_rule(self, path: str, value: Any, strategy: str) -> tuple[Comparison, _Labels]:
        before = len(self.problems)
        rule = self.parse_mapping(path, value)
        broken = len(self.problems) > before
        metric, is_metric = self._parse_metric_name(f"{path}.metricname", rule.get("metricname"))
        broken = broken or not is_metric
        operator = self._parse_operator(f"{path}.operator", rule.get("operator"), strategy)
        broken = broken or (not operator and strategy != "scheduleonmetric")
        values, invalid = self._optional_fields(path, rule)
        broken = bool(self._report_unknown_keys(path, rule, _RULE_FIELDS)) or broken or bool(invalid)
        is_healthy = values["empty_means"] == "healthy"
        if is_healthy and not values["query"] and "query" not in invalid:
            self.add_problem(
                f"{path}.empty_means", shown("healthy"), "only together with query; it is ignored"
            )
        labels = self._parse_rule_labels(f"{path}.labels", rule.get("labels"))
        comparison = Comparison(
            metric=metric,
            operator=operator,
            target=values["target"],
            when_missing=values["when_missing"],
            max_age_s=values["max_age"],
            query=values["query"],
            aggregate=values["aggregate"],
            empty_means="healthy" if is_healthy and values["query"] else "",
            unusable=str(self.problems[before]) if broken else "",
        )
        return comparison, labels

    def _parse_rule_labels(self, path: str, value: Any) -> _Labels:
        """The valid labels; the others are problems and do not affect them."""
        listed = [] if value is None else value
        if not isinstance(listed, Sequence) or isinstance(listed, str):
            self.add_problem(path, shown(value), "a list of texts name=value")
            return ()
        if len(listed) > MAX_POLICY_LABELS:
            self.add_problem(
                path, f"{len(listed)} labels", f"at most {MAX_POLICY_LABELS}; the others are left out"
            )
            listed = listed[:MAX_POLICY_LABELS]
        valid: list[tuple[str, str]] = []
        for number, text in enumerate(listed):
            name, separator, value = text.partition("=") if isinstance(text, str) else ("", "", "")
            if separator and is_valid_label_part(name) and (not value or is_valid_label_part(value)):
                valid.append((name, value))
            else:
                self.add_problem(f"{path}[{number}]", shown(text), "name=value, both valid for a label")
        return tuple(valid)

    def _report_unknown_keys(
        self, path: str, value: Mapping[str, Any], valid: Sequence[str], what: str = "an unknown field"
    ) -> str:
        first = self.report_unknown_keys(path, value, valid, what)
        self.unknown = self.unknown or first
        return first

    def _parse_operator(self, path: str, value: Any, strategy: str) -> str:
        operator = TASPOLICY_OPERATORS.get(value, "") if isinstance(value, str) else ""
        if not operator:
            self.add_problem(path, shown(value), " or ".join(TASPOLICY_OPERATORS))
        elif strategy == "scheduleonmetric" and sort_direction(operator) == 0:
            self.add_problem(path, shown(value), "LessThan or GreaterThan, which define an order")
        return operator

    def _parse_text(self, path: str, value: Any) -> str:
        if isinstance(value, str) and 0 < len(value) <= MAX_METRIC_NAME:
            return value
        self.add_problem(path, shown(value), f"a name of at most {MAX_METRIC_NAME} characters")
        return ""

    def _optional_fields(self, path: str, rule: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The values, with defaults for absent and invalid ones, and the names of the invalid fields."""
        values = {
            field: self._parse_optional_field(f"{path}.{field}", rule.get(field), parse, default)
            for field, (parse, default) in OPTIONAL_FIELDS.items()
        }
        invalid = [field for field, value in values.items() if value is _INVALID]
        return values | {field: OPTIONAL_FIELDS[field][1] for field in invalid}, invalid

    def _parse_metric_name(self, path: str, value: Any) -> tuple[str, bool]:
        """The name of the metric, and whether it is valid."""
        metric = self._parse_text(path, value)
        is_valid = METRIC_NAME.fullmatch(metric) is not None
        if metric and not is_valid:
            self.add_problem(path, shown(metric), "letters, digits, _ and -")
        return metric, is_valid

    def _parse_optional_field(self, path: str, value: Any, parse: Callable[[Any], Any], default: Any) -> Any:
        """The parsed field, the default if it is absent, or `_INVALID`."""
        if value is None or value == "":
            return default
        try:
            return parse(value)
        except ValueError as error:
            # problems are shown in events of pods, which must not reveal the query
            seen = f"{len(str(value))} characters" if parse is parse_query else shown(value)
            self.add_problem(path, seen, str(error))
            return _INVALID


_INVALID: Final = object()
