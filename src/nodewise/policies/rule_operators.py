"""The table of the operators of policies. A node meets a rule where `value operator target` is true.

Parser, evaluation, backtest, the checks of queries and the mutants of suites read this table. "Adding an operator" in
ARCHITECTURE.md names what else an operator needs. Comparisons are exact. Source of the names in a TASPolicy: Telemetry
Aware Scheduling 0.7, `core/operator.go`.
"""

from collections.abc import Callable, Iterator, Mapping
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final, NamedTuple

from nodewise.policies.placement_policy import PolicyKind


class Operator(NamedTuple):
    """The uses of an operator."""

    compare: Callable[[Any, Any], Any]
    """As the condition of a rule, for two numbers, or for an array and a number."""
    order: int
    """As a preference: 1 for small values first, -1 for large ones, 0 for no order. Of several values that meet the
    same operator, the most extreme one is the largest for -1 and the smallest for 1."""
    alternatives: tuple[str, ...]
    """What takes its place in mutants: one that differs at the target only, if there is one, and the opposite."""
    promql: str
    """The same comparison in PromQL."""
    text: str
    """Its description in the definitions of policies."""
    taspolicy: str = ""
    """Its name in a TASPolicy; empty if that does not have it."""

    @property
    def includes_target(self) -> bool:
        """Whether the target itself meets it."""
        return bool(self.compare(0, 0))


_TEXT: Final = "The rule is met by "
_ABOVE_TEXT: Final = (
    'a value above this one. A whole number, or a quantity as text, such as 80, "0.8", "250m" or "64Gi".'
)

OPERATORS: Final[Mapping[str, Operator]] = {
    "above": Operator(gt, -1, ("atLeast", "below"), ">", _TEXT + _ABOVE_TEXT, "GreaterThan"),
    "atLeast": Operator(ge, -1, ("above", "atMost"), ">=", _TEXT + "a value at or above this one."),
    "below": Operator(lt, 1, ("atMost", "above"), "<", _TEXT + "a value below this one.", "LessThan"),
    "atMost": Operator(le, 1, ("below", "atLeast"), "<=", _TEXT + "a value at or below this one."),
    "equals": Operator(
        eq,
        0,
        ("notEquals", "atLeast", "atMost"),
        "==",
        _TEXT + "exactly this value.",
        "Equals",
    ),
    "notEquals": Operator(ne, 0, ("equals",), "!=", _TEXT + "every other value."),
}


class RangeOperator(NamedTuple):
    """An operator with a list of two values, the lower one first, which stands for two rules in `all`."""

    parts: tuple[str, str]
    """The operator with the first value, and the one with the second value."""
    text: str


RANGE_OPERATORS: Final[Mapping[str, RangeOperator]] = {
    "between": RangeOperator(
        ("atLeast", "atMost"),
        _TEXT + "a value from the first to the second of these values, both included. It stands for two "
        "rules in all, with atLeast and with atMost.",
    )
}
_ORDERED: Final = [name for name, operator in OPERATORS.items() if operator.order]
ORDERED_TEXT: Final = f"{', '.join(_ORDERED[:-1])} or {_ORDERED[-1]}"
"""The operators with an order, as messages list them."""
OPERATOR_FIELDS: Final = (*OPERATORS, *RANGE_OPERATORS)
"""The fields of a rule that are operators. A rule has exactly one of them."""

TASPOLICY_OPERATORS: Final[Mapping[str, str]] = {
    OPERATORS[name].taspolicy: name for name in ("below", "above", "equals")
}
"""The operators of a TASPolicy, and their names in `OPERATORS`."""
_RULE_FIELDS: Final = ("labels", "for", "keepFor")
"""The fields of a rule that stay beside `all`."""


def written_operator(operator: str, kind: PolicyKind) -> str:
    """The operator as a policy of this kind writes it."""
    entry = OPERATORS.get(operator)
    return entry.taspolicy or operator if entry and kind == "TASPolicy" else operator


def expand_ranges(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The valid spec of a PlacementPolicy or ClusterPlacementPolicy with two rules in `all` for each range operator."""
    return {
        section: [_expand_rule(rule) for rule in rules]
        if section in ("avoid", "nodeLabels") and rules
        else rules
        for section, rules in spec.items()
    }


def _expand_rule(rule: Mapping[str, Any]) -> Mapping[str, Any]:
    parts = [part for written in rule.get("all") or [rule] for part in _parts_of(written)]
    if "all" not in rule and len(parts) == 1:
        return rule
    outer = {name: value for name, value in rule.items() if name in _RULE_FIELDS}
    return {**outer, "all": [{name: part[name] for name in part if name not in outer} for part in parts]}


def _parts_of(rule: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    name = next((name for name in RANGE_OPERATORS if rule.get(name) is not None), None)
    if name is None:
        yield rule
        return
    rest = {field: value for field, value in rule.items() if field != name}
    for operator, value in zip(RANGE_OPERATORS[name].parts, rule[name], strict=True):
        yield {**rest, operator: value}


def sort_direction(operator: str) -> int:
    """The `Operator.order` of an operator; 0 for one that does not exist."""
    entry = OPERATORS.get(operator)
    return entry.order if entry else 0
