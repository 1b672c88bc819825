"""A TASPolicy read into values: `telemetry.intel.com/v1alpha1`, its old fields and our optional new ones.

Old fields are read as laxly as the older system did; what is wrong with them is kept in `Policy.problems`, which
become a condition, a log line and the output of `policy lint`. A rule that cannot be evaluated at all is
`unusable` and rejects, because no answer must never mean yes. An unknown strategy or field makes the whole policy
reject: it may be the misspelt name of a rule that excludes nodes. The CRD is `deploy/crds/taspolicies.yaml`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from nodewise import clock, quantity
from nodewise.agents.telemetry.operators import OPERATORS
from nodewise.errors import UNREADABLE, Problem, shown, suggestion
from nodewise.metrics.aggregation import AGGREGATIONS
from nodewise.metrics.source import MetricRequest

STRATEGIES: Final = ("dontschedule", "scheduleonmetric", "deschedule", "labeling")
_MOST_LABELING: Final = 226
"""Characters of a name in `telemetry.aware.scheduling.<name>`, which may have 253."""
_METRIC_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")
"""Nothing that has a meaning in PromQL or in the path of a URL."""
_LONGEST_METRIC: Final = 253
_LONGEST_QUERY: Final = 4096
"""Characters, as in the CRD. A longer name or query would only be refused by those who are asked."""
_MOST_AGE_S: Final = 366 * 86400.0
MOST_RULES: Final = 100
"""Of one strategy. A rule costs every node its arrays, so an object of 1.5 MiB of rules would cost gigabytes."""
_MOST_LABELS: Final = 64
"""Of one rule."""
_MOST_NAMED: Final = 30
"""Problems of one policy; further ones are only counted."""
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


class PolicyMetadata(msgspec.Struct, frozen=True):
    """The metadata that is read of a TASPolicy."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    creationTimestamp: str | None = None  # noqa: N815 - the API's name


class PolicyObject(msgspec.Struct, frozen=True):
    """A TASPolicy as the API server gives it. Spec and status are read later, so that no policy stops the others."""

    metadata: PolicyMetadata = PolicyMetadata()
    spec: msgspec.Raw = msgspec.Raw(b"null")
    status: msgspec.Raw = msgspec.Raw(b"null")


class Rule(msgspec.Struct, frozen=True):
    """One rule: broken where `metric operator target` is true."""

    metric: str
    operator: str
    target: int = 0
    """Nano-units."""
    labels: tuple[str, ...] = ()
    when_missing: Literal["", "pass", "reject"] = ""
    """Empty: as the agent's options say."""
    max_age_s: float | None = None
    """None: as the agent's options say."""
    query: str = ""
    """Asked of Prometheus instead of the metric's name."""
    aggregate: str = ""
    """One of `aggregation.AGGREGATIONS`: how several series of one node become one value. Empty: they must be equal."""
    empty_means: Literal["", "healthy"] = ""
    """`healthy`: a node for which the query gives no series keeps the rule, also where it gives none at all."""
    unusable: str = ""
    """Why the rule cannot be evaluated; empty if it can."""
    refusal: str = ""
    """What of the rule needs a trusted namespace, where it is unusable for that (`namespace_trust`)."""
    remedy: str = ""
    """What makes the rule usable, where that is not a change of the policy."""

    def metric_request(self, max_age_s: float = 0.0) -> MetricRequest:
        """What is asked of the sources; `max_age_s` is the agent's."""
        age_s = max_age_s if self.max_age_s is None else self.max_age_s
        return MetricRequest(self.metric, self.query, age_s, self.aggregate, self.empty_means == "healthy")


class Strategy(msgspec.Struct, frozen=True):
    """The rules of one purpose."""

    rules: tuple[Rule, ...] = ()
    all_of: bool = False
    """Whether a node must break every rule, not just one."""


class Policy(msgspec.Struct, frozen=True):
    """A whole policy. Unknown strategies are in `problems`, and make `dontschedule` reject every node."""

    namespace: str
    name: str
    created: str = ""
    """RFC 3339, which sorts by time; of two policies of one name the older one labels."""
    strategies: Mapping[str, Strategy] = {}
    problems: tuple[Problem, ...] = ()
    not_trusted: str = ""
    """What of the policy has no effect because its namespace is not trusted (`namespace_trust`); empty for nothing."""

    def rules(self, strategy: str) -> tuple[Rule, ...]:
        """The rules of a strategy, empty if the policy does not have it."""
        entry = self.strategies.get(strategy)
        return entry.rules if entry else ()


def read(policy: PolicyObject) -> Policy:
    """Read a policy object. Never fails: what is wrong is in the result."""
    reader = _Reader()
    try:
        strategies = reader.strategies(msgspec.json.decode(policy.spec))
    except UNREADABLE as error:
        strategies = _unusable(reader.problem("spec", str(error), "a JSON object"))
    reader.names(policy.metadata.name, strategies)
    metadata = policy.metadata
    created = metadata.creationTimestamp or ""
    return Policy(metadata.namespace, metadata.name, created, strategies, reader.named())


def _unusable(why: str) -> dict[str, Strategy]:
    """Of a policy of which nobody can say what it wants: no node passes."""
    return {"dontschedule": Strategy((Rule("", "", unusable=why),))}


class _Reader:
    """Reads one policy and collects every problem on the way."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.unknown = ""
        """The first unknown strategy or field, in words; empty if there is none."""

    def problem(self, field: str, seen: str, wanted: str) -> str:
        self.problems.append(Problem(field, seen, wanted))
        return str(self.problems[-1])

    def named(self) -> tuple[Problem, ...]:
        """The problems, as many as anybody reads."""
        more = len(self.problems) - _MOST_NAMED
        rest = (Problem("spec", f"{more} more problems", ""),) if more > 0 else ()
        return (*self.problems[:_MOST_NAMED], *rest)

    def names(self, name: str, strategies: Mapping[str, Strategy]) -> None:
        """The policy's name is also a label value, and a label key where it deschedules."""
        if len(name) > 63:  # noqa: PLR2004 - the length of a label value
            self.problem(
                "metadata.name", f"{len(name)} characters", "at most 63, for it is a pod label's value"
            )
        if "labeling" in strategies and len(name) > _MOST_LABELING:
            wanted = f"at most {_MOST_LABELING}, for it is part of label keys; it labels nothing"
            self.problem("metadata.name", f"{len(name)} characters", wanted)
        if "deschedule" in strategies and not is_label_part(name):
            self.problem("metadata.name", shown(name), "letters, digits, - and . for a label's key")
        for strategy in strategies.values():
            if not strategy.rules:
                self.problem("spec.strategies", "a strategy without rules", "at least one rule")

    def strategies(self, spec: Any) -> dict[str, Strategy]:
        mapping = self._mapping("spec", {} if spec is None else spec)
        value = mapping.get("strategies")
        listed = self._mapping("spec.strategies", {} if value is None else value)
        if self.problems:
            return _unusable(str(self.problems[0]))
        if not listed:
            self.problem("spec.strategies", "none", " or ".join(STRATEGIES))
        self._unknown("spec", mapping, ("strategies",))
        self._unknown("spec.strategies", listed, STRATEGIES, "an unknown strategy")
        read = {name: self._strategy(name, listed[name]) for name in STRATEGIES if name in listed}
        return read | _unusable(self.unknown) if self.unknown else read

    def _strategy(self, name: str, value: Any) -> Strategy:
        path = f"spec.strategies.{name}"
        strategy = self._mapping(path, value)
        logical = strategy.get("logicalOperator", "")
        if logical not in ("", "anyOf", "allOf", None):
            self.problem(f"{path}.logicalOperator", shown(logical), "allOf or anyOf (taken as anyOf)")
        if why := self._unknown(path, strategy, _STRATEGY_FIELDS):
            return Strategy((Rule("", "", unusable=why),))
        rules = strategy.get("rules")
        if not isinstance(rules, Sequence) or isinstance(rules, str):
            why = self.problem(f"{path}.rules", shown(rules), "a list of rules")
            return Strategy((Rule("", "", unusable=why),))
        if len(rules) > MOST_RULES:
            why = self.problem(f"{path}.rules", f"{len(rules)} rules", f"at most {MOST_RULES}")
            return Strategy((Rule("", "", unusable=why),))
        read = tuple(self._rule(f"{path}.rules[{number}]", rule, name) for number, rule in enumerate(rules))
        return Strategy(read, all_of=logical == "allOf")

    def _rule(self, path: str, value: Any, strategy: str) -> Rule:
        before = len(self.problems)
        rule = self._mapping(path, value)
        broken = len(self.problems) > before
        metric, is_metric = self._metric(f"{path}.metricname", rule.get("metricname"))
        broken = broken or not is_metric
        operator = self._operator(f"{path}.operator", rule.get("operator"), strategy)
        broken = broken or (operator not in OPERATORS and strategy != "scheduleonmetric")
        values, bad = self._optional_fields(path, rule)
        broken = bool(self._unknown(path, rule, _RULE_FIELDS)) or broken or bool(bad)
        is_healthy = values["empty_means"] == "healthy"
        if is_healthy and not values["query"] and "query" not in bad:
            self.problem(f"{path}.empty_means", shown("healthy"), "only together with query; it is ignored")
        return Rule(
            metric=metric,
            operator=operator,
            target=values["target"],
            labels=self._labels(f"{path}.labels", rule.get("labels")),
            when_missing=values["when_missing"],
            max_age_s=values["max_age"],
            query=values["query"],
            aggregate=values["aggregate"],
            empty_means="healthy" if is_healthy and values["query"] else "",
            unusable=str(self.problems[before]) if broken else "",
        )

    def _labels(self, path: str, value: Any) -> tuple[str, ...]:
        """The labels that can be labels; the others are problems and change nothing for the rest."""
        listed = [] if value is None else value
        if not isinstance(listed, Sequence) or isinstance(listed, str):
            self.problem(path, shown(value), "a list of texts name=value")
            return ()
        if len(listed) > _MOST_LABELS:
            self.problem(path, f"{len(listed)} labels", f"at most {_MOST_LABELS}; the others are left out")
            listed = listed[:_MOST_LABELS]
        good: list[str] = []
        for number, text in enumerate(listed):
            name, separator, value = text.partition("=") if isinstance(text, str) else ("", "", "")
            if separator and is_label_part(name) and (not value or is_label_part(value)):
                good.append(text)
            else:
                self.problem(f"{path}[{number}]", shown(text), "name=value, both as a label takes them")
        return tuple(good)

    def _unknown(
        self, path: str, value: Mapping[str, Any], valid: Sequence[str], what: str = "an unknown field"
    ) -> str:
        """Name each key that is not valid; the first one in words, empty if there is none."""
        first = ""
        for name in sorted(value.keys() - set(valid)):
            # suggestions cost time, and only the first problems are shown
            hint = suggestion(name, valid) if len(self.problems) < _MOST_NAMED else ""
            field = name if _LABEL_PART.fullmatch(name) else shown(name)
            text = self.problem(f"{path}.{field}", what, ", ".join(valid) + hint)
            first = first or text
        self.unknown = self.unknown or first
        return first

    def _operator(self, path: str, value: Any, strategy: str) -> str:
        operator = value if isinstance(value, str) else ""
        if operator not in OPERATORS:
            self.problem(path, shown(value), " or ".join(OPERATORS))
        elif strategy == "scheduleonmetric" and OPERATORS[operator].order == 0:
            self.problem(path, shown(value), "LessThan or GreaterThan, for this one gives no order")
        return operator

    def _mapping(self, path: str, value: Any) -> Mapping[str, Any]:
        if isinstance(value, Mapping):
            return value
        self.problem(path, shown(value), "an object")
        return {}

    def _text(self, path: str, value: Any) -> str:
        if isinstance(value, str) and 0 < len(value) <= _LONGEST_METRIC:
            return value
        self.problem(path, shown(value), f"a name of at most {_LONGEST_METRIC} characters")
        return ""

    def _optional_fields(self, path: str, rule: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The values, with defaults where they are absent or wrong, and the names of the wrong ones."""
        values = {
            field: self._optional(f"{path}.{field}", rule.get(field), parse, default)
            for field, (parse, default) in _OPTIONAL_FIELDS.items()
        }
        bad = [field for field, value in values.items() if value is _BAD]
        return values | {field: _OPTIONAL_FIELDS[field][1] for field in bad}, bad

    def _metric(self, path: str, value: Any) -> tuple[str, bool]:
        """The name of the metric, and whether it is valid."""
        metric = self._text(path, value)
        is_valid = _METRIC_NAME.fullmatch(metric) is not None
        if metric and not is_valid:
            self.problem(path, shown(metric), "letters, digits, _ and -")
        return metric, is_valid

    def _optional(self, path: str, value: Any, parse: Callable[[Any], Any], default: Any) -> Any:
        """The parsed field, the default if it is absent, or `_BAD`."""
        if value is None or value == "":
            return default
        try:
            return parse(value)
        except ValueError as error:
            # problems stand in events of pods, where the text of a query has no place
            seen = f"{len(str(value))} characters" if parse is _query else shown(value)
            self.problem(path, seen, str(error))
            return _BAD


_LABEL_PART: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def is_label_part(text: str) -> bool:
    """Whether a text can be a label's name or value (apimachinery v0.36 `pkg/util/validation`)."""
    return _LABEL_PART.fullmatch(text) is not None


_BAD: Final = object()


def _target(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(quantity.WANTED)  # noqa: TRY004 - one kind for the caller
    try:
        return quantity.parse(str(value))
    except ValueError:
        raise ValueError(quantity.WANTED) from None


def _duration(value: Any) -> float:
    try:
        seconds = clock.parse_duration(str(value))
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= _MOST_AGE_S:
        raise ValueError("a duration such as 30s or 5m, of at most a year")
    return seconds


def _when_missing(value: Any) -> str:
    if value not in ("pass", "reject"):
        raise ValueError("pass or reject")
    return str(value)


def _aggregate(value: Any) -> str:
    if value not in AGGREGATIONS:
        raise ValueError(" or ".join(AGGREGATIONS))
    return str(value)


def _empty_means(value: Any) -> str:
    if value != "healthy":
        raise ValueError("healthy")
    return "healthy"


def _query(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_QUERY:
        raise ValueError(f"an expression of at most {_LONGEST_QUERY} characters")
    return value


_OPTIONAL_FIELDS: Final[Mapping[str, tuple[Callable[[Any], Any], Any]]] = {
    "target": (_target, 0),
    "max_age": (_duration, None),
    "when_missing": (_when_missing, ""),
    "query": (_query, ""),
    "aggregate": (_aggregate, ""),
    "empty_means": (_empty_means, ""),
}
"""The parser of each optional field of a rule, and its default."""
