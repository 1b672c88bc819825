"""Cases of label selectors, which the admission policies and the telemetry agent must decide alike."""

from typing import Any, Final, NamedTuple


class SelectorCase(NamedTuple):
    """A selector as in a policy, and labels."""

    name: str
    selector: dict[str, Any]
    labels: dict[str, str] | None
    is_selected: bool


def _expression(operator: str, *values: str) -> dict[str, Any]:
    return {"key": "app", "operator": operator} | ({"values": list(values)} if values else {})


def _expressions(*expressions: dict[str, Any]) -> dict[str, Any]:
    return {"matchExpressions": list(expressions)}


_WEB: Final = {"matchLabels": {"app": "web"}}
_WEB_OR_DB: Final = _expressions(_expression("In", "web", "db"))
_NOT_WEB: Final = _expressions(_expression("NotIn", "web", "db"))
_EXISTS: Final = _expressions(_expression("Exists"))
_DOES_NOT_EXIST: Final = _expressions(_expression("DoesNotExist"))
_WEB_OF_TIER: Final = _WEB | _expressions({"key": "tier", "operator": "In", "values": ["a"]})
_NONE_OF_BOTH: Final = _expressions(_expression("NotIn", "web"), {"key": "tier", "operator": "Exists"})
_EMPTY_VALUE: Final = {"matchLabels": {"app": ""}}

SELECTOR_CASES: Final = (
    SelectorCase("empty, with labels", {}, {"app": "web"}, True),
    SelectorCase("empty, without labels", {}, None, True),
    SelectorCase("label, equal", _WEB, {"app": "web", "x": "y"}, True),
    SelectorCase("label, other value", _WEB, {"app": "db"}, False),
    SelectorCase("label, other case", _WEB, {"App": "web"}, False),
    SelectorCase("label, absent", _WEB, {"x": "web"}, False),
    SelectorCase("label, without labels", _WEB, None, False),
    SelectorCase("empty value, equal", _EMPTY_VALUE, {"app": ""}, True),
    SelectorCase("empty value, absent", _EMPTY_VALUE, {}, False),
    SelectorCase("In, one of them", _WEB_OR_DB, {"app": "db"}, True),
    SelectorCase("In, another", _WEB_OR_DB, {"app": "mail"}, False),
    SelectorCase("In, absent", _WEB_OR_DB, {}, False),
    SelectorCase("NotIn, one of them", _NOT_WEB, {"app": "db"}, False),
    SelectorCase("NotIn, another", _NOT_WEB, {"app": "mail"}, True),
    SelectorCase("NotIn, absent", _NOT_WEB, {"x": "y"}, True),
    SelectorCase("NotIn, without labels", _NOT_WEB, None, True),
    SelectorCase("Exists", _EXISTS, {"app": ""}, True),
    SelectorCase("Exists, absent", _EXISTS, {"x": "y"}, False),
    SelectorCase("DoesNotExist", _DOES_NOT_EXIST, {"app": "web"}, False),
    SelectorCase("DoesNotExist, absent", _DOES_NOT_EXIST, {"x": "y"}, True),
    SelectorCase("DoesNotExist, without labels", _DOES_NOT_EXIST, None, True),
    SelectorCase("labels and expressions, both", _WEB_OF_TIER, {"app": "web", "tier": "a"}, True),
    SelectorCase("labels and expressions, one", _WEB_OF_TIER, {"app": "web", "tier": "b"}, False),
    SelectorCase("two expressions, both", _NONE_OF_BOTH, {"tier": "a"}, True),
    SelectorCase("two expressions, one", _NONE_OF_BOTH, {"app": "web", "tier": "a"}, False),
)
