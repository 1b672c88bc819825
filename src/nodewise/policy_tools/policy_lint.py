"""The checks of `policy lint`: everything in a policy that the API server refuses, or that has no effect or another one
than it seems.

The parser of placement policies is as strict as the API server. That of TASPolicy is not: `taspolicies.yaml` beside
this module is a copy of the CRD (made by `make chart`), so there is one source. The rules in CEL about the names of
strategies and fields are those of `policies/taspolicy_parser.py`. `tests/cluster/test_policy_lint.py` and
`tests/cluster/test_placement_policy_parser.py` compare the verdicts with a real API server's.

The checks of queries are no parser of PromQL: they read the operators outside of brackets, and know nothing about the
rest. So they report only what is certain, and Prometheus reports the rest when it runs the query. Source of the
precedences and of the results of comparisons: Prometheus' documentation, "Operators".
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import chain, pairwise
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.base import clock, quantity, safe_yaml_loader
from nodewise.base.errors import Problem, did_you_mean, shown, truncate
from nodewise.policies import placement_policy_parser
from nodewise.policies import taspolicy_parser as policies
from nodewise.policies.placement_policy import LabelSelector, Policy, PolicyKind, Requirement
from nodewise.policies.placement_policy_fields import is_integer
from nodewise.policies.policy_objects import RESOURCES, PolicyObject, is_valid_label_part
from nodewise.policies.policy_selection import SYSTEM_NAMESPACE
from nodewise.policies.rule_operators import OPERATORS, TASPOLICY_OPERATORS


def effect_notes(  # complexity: one case for each note
    policy: Policy, sync_period_s: float
) -> Iterator[Problem]:
    """The notes about a policy without problems. `sync_period_s` is the time between two values of a metric."""
    for number, rule in enumerate(policy.avoid):
        for field, time_s in zip(("for", "keepFor"), rule.times, strict=True):
            if 0 < time_s < sync_period_s:
                period = clock.format_duration(sync_period_s)
                expected = (
                    f"at least {period}, the default refresh period: states change with new values only"
                )
                yield Problem(f"spec.avoid[{number}].{field}", clock.format_duration(time_s), expected)
    canary, guard = policy.canary, policy.guard
    if canary is not None and canary.pods is None:
        expected = "podSelector in native mode, which has no canary by percent; the extender has it"
        yield Problem("spec.canary.percent", str(canary.percent), expected)
    elif (
        canary and canary.pods and policy.selection and is_contradictory([policy.selection.pods, canary.pods])
    ):
        expected = "labels that pods of spec.podSelector can have"
        yield Problem("spec.canary.podSelector", "no pod of spec.podSelector", expected)
    if guard is None or guard.max_waiting_pods is None:
        return
    if policy.only_prefers:
        expected = "maxRejectedShare; no pod waits because of a policy with enforcement Preferred"
        yield Problem("spec.guard.maxWaitingPods", str(guard.max_waiting_pods), expected)
    elif policy.key.kind == "ClusterPlacementPolicy" and not guard.max_rejected_share:
        expected = "maxRejectedShare as well; pods of the namespace in which most of them wait do not count"
        yield Problem("spec.guard.maxWaitingPods", str(guard.max_waiting_pods), expected)


def is_contradictory(selectors: Iterable[LabelSelector]) -> bool:
    """Whether no labels can meet all of these selectors."""
    requirements: dict[str, list[Requirement]] = {}
    for requirement in (each for selector in selectors for each in selector.requirements):
        requirements.setdefault(requirement.key, []).append(requirement)
    for key, own in requirements.items():
        values = {value for each in own for value in each.values}
        # any value that none of them names stands for all others
        candidates = [{}, *({key: value} for value in (*values, "".join(values) + "x"))]
        if not any(all(each.is_met(labels) for each in own) for labels in candidates):
            return True
    return False


# possessive quantifiers: the text is untrusted, and reading it must take linear time
_TOKEN: Final = re.compile(
    r"""(?P<blank>\s++|\#[^\n]*+)
    |(?P<string>"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+'|`[^`]*+`)
    |(?P<number>(?:0[xX][0-9a-fA-F]++|(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][+-]?+[0-9]++)?+)(?![\w:]))
    |(?P<word>[\w:.]++)
    |(?P<comparison>==|!=|<=|>=|<|>)
    |(?P<other>=~|!~|.)""",
    re.VERBOSE | re.DOTALL,
)
_PAIRS: Final = {"(": ")", "[": "]", "{": "}"}
_COMPARISONS: Final = {operator.promql: name for name, operator in OPERATORS.items()}
_MIRRORED: Final = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}
_LOWER: Final = {name: not entry.includes_target for name, entry in OPERATORS.items() if entry.order < 0}
_UPPER: Final = {name: not entry.includes_target for name, entry in OPERATORS.items() if entry.order > 0}
"""The operators that bound values from below and from above, and whether the bound is excluded."""
_ARITHMETIC: Final = frozenset({"+", "-", "*", "/", "%", "^", "atan2"})
_SETS: Final = frozenset({"and", "unless"})
_MATCHING: Final = frozenset({"on", "ignoring", "group_left", "group_right"})
_SAME_RANGE: Final = frozenset({"max", "min", "topk", "bottomk", "sort", "sort_desc"})
"""Functions each of whose results is one of the values of their last argument."""
_AGGREGATIONS: Final = frozenset(
    {"sum", "avg", "min", "max", "count", "group", "stddev", "stdvar", "quantile", "count_values"}
)
"""Aggregations whose results have only the labels of `by`."""
_NODE_WORDS: Final = ("node", "host", "instance")
"""Parts of names of labels that may name a node."""
_MAX_DEPTH: Final = 20
_MAX_SHOWN: Final = 200


class _Token(NamedTuple):
    kind: str
    """A group of the pattern, or an opening bracket."""
    text: str
    inner: "tuple[_Token, ...]" = ()
    """What is between brackets."""

    @property
    def word(self) -> str:
        """The text of a keyword or a function, which have no case; empty for other tokens."""
        return self.text.lower() if self.kind == "word" else ""


_Tokens = Sequence[_Token]


class _Bound(NamedTuple):
    """A comparison that all results meet."""

    operator: str
    """One of `OPERATORS`."""
    value: int
    """Nano-units."""
    text: str


_Bounds = tuple[_Bound, ...]


class QueryFindings(NamedTuple):
    """The problems and the notes about the queries of a policy."""

    problems: list[Problem]
    notes: list[Problem]


class _UnbalancedError(ValueError):
    """A bracket or a quote without its counterpart. The text says what was found."""

    def __init__(self, actual: str, expected: str) -> None:
        super().__init__(actual)
        self.expected = expected


def check_queries(spec: Any) -> QueryFindings:
    """The findings about every object with a query in the spec of a policy of any kind."""
    findings = QueryFindings([], [])
    for path, rule in _rules_with_query("spec", spec, 0):
        try:
            tokens = _parse(rule["query"])
        except _UnbalancedError as error:
            findings.problems.append(Problem(f"{path}.query", str(error), error.expected))
            continue
        findings.problems.extend(_impossible_rule(path, rule, tokens))
        if aggregation := _aggregation_without_node(tokens, 0):
            actual = f"{aggregation} without a label that names a node"
            expected = f"{aggregation} by (node) (…) or another label that names the node of each result"
            findings.notes.append(Problem(f"{path}.query", actual, expected))
    return findings


def _rules_with_query(path: str, value: Any, depth: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, Mapping):
        if isinstance(value.get("query"), str):
            yield path, value
        for key, entry in value.items():
            yield from _rules_with_query(f"{path}.{key}", entry, depth + 1)
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            yield from _rules_with_query(f"{path}[{number}]", entry, depth + 1)


def _impossible_rule(path: str, rule: Mapping[str, Any], tokens: _Tokens) -> Iterator[Problem]:
    """The problem of a rule that no result of its query can meet."""
    target = _target(rule)
    if target is None or rule.get("aggregate") not in (None, "", "max", "min"):
        return
    alternatives = _result_bounds(tokens, 0)
    excluding = [
        next((bound for bound in bounds if _excludes(bound, target)), None) for bounds in alternatives
    ]
    if all(excluding):
        texts = dict.fromkeys(bound.text for bound in excluding if bound is not None)
        actual = f"only results {' or '.join(texts)}, none of which is {target.text}"
        expected = "results that can meet the rule: remove the comparison from the query, or correct the rule"
        yield Problem(f"{path}.query", truncate(actual, _MAX_SHOWN), expected)


def _target(rule: Mapping[str, Any]) -> _Bound | None:
    """What a value must be to meet the rule; None if it has no valid comparison."""
    named = [(name, rule[name]) for name in OPERATORS if name in rule]
    if rule.get("operator") in TASPOLICY_OPERATORS:
        named = [(TASPOLICY_OPERATORS[rule["operator"]], rule.get("target"))]
    try:
        [(operator, value)] = named
        return _Bound(operator, quantity.parse(str(value)), f"{operator} {value}")
    except ValueError:
        return None


def _excludes(bound: _Bound, target: _Bound) -> bool:
    """Whether no value meets both comparisons."""
    if bound.operator == "equals":
        return not _is_met(target, bound.value)
    if target.operator == "equals":
        return not _is_met(bound, target.value)
    for low, high in ((bound, target), (target, bound)):
        if low.operator in _LOWER and high.operator in _UPPER:
            is_open = _LOWER[low.operator] or _UPPER[high.operator]
            return low.value >= high.value if is_open else low.value > high.value
    return False


def _is_met(bound: _Bound, value: int) -> bool:
    return bool(OPERATORS[bound.operator].compare(value, bound.value))


def _parse(query: str) -> _Tokens:
    """The tokens of a query; brackets contain those between them. `_UnbalancedError` for unbalanced ones."""
    stack: list[tuple[str, list[_Token]]] = [("", [])]
    for match in _TOKEN.finditer(query):
        kind, text = str(match.lastgroup), match[0]
        if text in _PAIRS:
            stack.append((text, []))
        elif text in _PAIRS.values():
            opening, inner = stack.pop()
            if _PAIRS.get(opening) != text:
                expected = f'"{_PAIRS[opening]}"' if opening else "no closing bracket"
                raise _UnbalancedError(f'"{text}" at character {match.start() + 1}', expected)
            stack[-1][1].append(_Token(opening, opening, tuple(inner)))
        elif kind == "other" and text in "\"'`":
            raise _UnbalancedError(
                f"{text} at character {match.start() + 1} without its end", "a closing quote"
            )
        elif kind != "blank":
            stack[-1][1].append(_Token(kind, text))
    if len(stack) > 1:
        opening = stack[-1][0]
        raise _UnbalancedError(f'"{opening}" without "{_PAIRS[opening]}"', "balanced brackets")
    return stack[0][1]


def _split(tokens: _Tokens, separators: frozenset[str]) -> list[_Tokens]:
    """The parts between operators, without the labels by which vectors are matched."""
    parts: list[list[_Token]] = [[]]
    for position, token in enumerate(tokens):
        before = tokens[position - 1].word if position else ""
        if (token.word or token.text) in separators and token.kind in ("word", "other", "comparison"):
            parts.append([])
        elif token.word not in _MATCHING and not (token.kind == "(" and before in _MATCHING):
            parts[-1].append(token)
    return [part for part in parts if part]


def _without_brackets(tokens: _Tokens) -> _Tokens:
    while len(tokens) == 1 and tokens[0].kind == "(":
        tokens = tokens[0].inner
    return tokens


def _result_expressions(tokens: _Tokens) -> list[_Tokens]:
    """The expressions whose results a query has: both sides of `or`, and the left side of `and` and `unless`."""
    unions = _split(_without_brackets(tokens), frozenset({"or"}))
    return [_without_brackets(parts[0]) for union in unions if (parts := _split(union, _SETS))]


def _result_bounds(tokens: _Tokens, depth: int) -> list[_Bounds]:
    """Alternatives, one of which each result meets. Each is a number of bounds that it meets all; none are unknown."""
    expressions = _result_expressions(tokens)
    if depth > _MAX_DEPTH or not expressions:
        return [()]
    if expressions != [tokens]:
        return [bounds for part in expressions for bounds in _result_bounds(list(part), depth + 1)]
    if bounds := _comparison_bounds(tokens, depth):
        return bounds
    is_call = tokens[0].word in _SAME_RANGE and _split(tokens, _ARITHMETIC) == [list(tokens)]
    arguments = _arguments(tokens) if is_call else ()
    return _result_bounds(_split(arguments, frozenset({","}))[-1], depth + 1) if arguments else [()]


def _comparison_bounds(  # complexity: one case for each form of a comparison
    tokens: _Tokens, depth: int
) -> list[_Bounds]:
    """The alternatives of an expression with comparisons; empty for any other one."""
    comparisons = [token.text for token in tokens if token.kind == "comparison"]
    operands = _split(tokens, frozenset(_COMPARISONS))
    if not comparisons or len(operands) != len(comparisons) + 1:
        return []
    if any(operand[0].word == "bool" for operand in operands[1:]):
        return [(_Bound("equals", value * quantity.NANO, f"== {value}"),) for value in (0, 1)]
    # the results are values of the side that is no number
    sides = zip([_MIRRORED[comparisons[0]], *comparisons], operands, strict=True)
    bounds = [
        _Bound(_COMPARISONS[comparison], number, f"{comparison} {''.join(token.text for token in operand)}")
        for comparison, operand in sides
        if (number := _number(operand)) is not None
    ]
    vector = operands[0] if _number(operands[0]) is None else operands[1]
    return [(*inner, *bounds) for inner in _result_bounds(vector, depth + 1)]


def _arguments(tokens: _Tokens) -> _Tokens:
    """The arguments of a call, which may have `by` or `without` before or after them."""
    for position, token in enumerate(tokens):
        if token.kind == "(" and tokens[position - 1].word not in ("by", "without"):
            return token.inner
    return ()


def _number(tokens: _Tokens) -> int | None:
    """The nano-units of a literal with or without a sign; None for any other expression."""
    if not tokens or tokens[-1].kind != "number" or any(token.text not in "+-" for token in tokens[:-1]):
        return None
    text = tokens[-1].text
    sign = -1 if sum(token.text == "-" for token in tokens[:-1]) % 2 else 1
    try:
        value = float(int(text, 16)) if text.lower().startswith("0x") else float(text)
        return sign * quantity.parse(repr(value))
    except (ValueError, OverflowError):
        return None


def _aggregation_without_node(tokens: _Tokens, depth: int) -> str:
    """The aggregation because of which no result has a label of a node; empty if there may be one."""
    operators = frozenset({*_COMPARISONS, *_ARITHMETIC})
    parts = chain.from_iterable(_split(each, operators) for each in _result_expressions(tokens))
    operands = [list(part) for part in parts if _number(part) is None]
    if depth > _MAX_DEPTH or not operands:
        return ""
    if operands != [tokens]:
        return min(_aggregation_without_node(operand, depth + 1) for operand in operands)
    return "" if _may_have_node(tokens) else tokens[0].word


def _may_have_node(tokens: _Tokens) -> bool:
    """Whether a result may have a label of a node: unless it is that of an aggregation, by `by` or `without`."""
    if tokens[0].word not in _AGGREGATIONS or not _arguments(tokens):
        return True
    for clause, bracket in pairwise(tokens):
        if clause.word == "by" and bracket.kind == "(":
            labels = " ".join(token.text for token in bracket.inner).lower()
            return any(word in labels for word in _NODE_WORDS)
    return any(token.word == "without" for token in tokens)


KEYWORDS: Final = frozenset(
    {"type", "properties", "additionalProperties", "required", "items", "enum", "pattern", "description"}
    | {"maxLength", "maxItems", "maxProperties"}
    | {"x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-validations"}
)
"""The keywords in the schema of `spec` that this module knows; a test compares them with the definition."""
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_MAX_SUBDOMAIN: Final = 253
_MAX_BASE: Final = 58
"""The most characters of `generateName` that are part of a generated name."""
_MAX_LABEL: Final = 63
_TYPES: Final[Mapping[str, type]] = {"object": dict, "array": list, "string": str}
_TYPE_NAMES: Final = {"object": "an object", "array": "a list", "string": "a string"}


@cache
def spec() -> Mapping[str, Any]:
    """The schema of `spec` in the shipped definition."""
    text = resources.files(__package__).joinpath("taspolicies.yaml").read_bytes()
    [version] = safe_yaml_loader.load(text, "taspolicies.yaml")["spec"]["versions"]
    schema: Mapping[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def lint(policy: bytes, kind: PolicyKind) -> list[Problem]:
    """Every problem of a policy in JSON."""
    whole = msgspec.json.decode(policy)
    policy_object = msgspec.json.decode(policy, type=PolicyObject)
    query_problems = check_queries(whole.get("spec")).problems
    if kind != "TASPolicy":
        parsed = placement_policy_parser.parse_policy(policy_object, kind)
        return [*_head_problems(whole, kind), *parsed.problems, *query_problems]
    refused = problems(whole)
    known = {problem.field for problem in refused}
    others = (*policies.parse_policy(policy_object).problems, *_rules_without_effect(whole), *query_problems)
    return [*refused, *(problem for problem in others if problem.field not in known)]


def notes(policy: bytes, kind: PolicyKind, sync_period_s: float) -> list[Problem]:
    """The notes about the queries of a policy in JSON and, if it is a valid placement policy, those of
    `effect_notes`.
    """
    query_notes = check_queries(msgspec.json.decode(policy).get("spec")).notes
    if kind == "TASPolicy":
        return query_notes
    policy_object = msgspec.json.decode(policy, type=PolicyObject)
    parsed = placement_policy_parser.parse_policy(policy_object, kind)
    return query_notes if parsed.problems else [*query_notes, *effect_notes(parsed, sync_period_s)]


def _rules_without_effect(policy: Any) -> Iterator[Problem]:
    """Problems of rules that the API server accepts and that have no effect."""
    for name in ("dontschedule", "deschedule", "labeling"):
        rules = policy
        for key in ("spec", "strategies", name, "rules"):
            rules = rules.get(key) if isinstance(rules, Mapping) else None
        for number, rule in enumerate(rules if isinstance(rules, list) else ()):
            if not isinstance(rule, Mapping):
                continue
            path = f"spec.strategies.{name}.rules[{number}]"
            if rule.get("target") in (None, ""):
                wanted = "a target; without one the value is compared with 0"
                yield Problem(f"{path}.target", "no target", wanted)
            if name == "labeling" and not rule.get("labels"):
                wanted = "at least one label name=value; without one the rule has no effect"
                yield Problem(f"{path}.labels", "no labels", wanted)


def problems(policy: Mapping[str, Any]) -> list[Problem]:
    """Everything in the API version, the metadata and the spec of a TASPolicy that the API server refuses."""
    refused = list(_head_problems(policy, "TASPolicy"))
    if policy.get("spec") is not None:
        refused += _value_problems("spec", policy["spec"], spec())
    return refused


def _head_problems(policy: Mapping[str, Any], kind: PolicyKind) -> Iterator[Problem]:
    """The problems of the API version and the metadata."""
    resource = RESOURCES[kind]
    yield from _metadata_problems(policy.get("metadata"))
    if policy.get("apiVersion") != (version := f"{resource.group}/{resource.version}"):
        yield Problem("apiVersion", shown(policy.get("apiVersion")), version)
    namespace = policy["metadata"].get("namespace") if isinstance(policy.get("metadata"), Mapping) else None
    if namespace and not resource.namespaced:
        expected = f"none; a {kind} is not in a namespace, and namespaceSelector selects those of its pods"
        yield Problem("metadata.namespace", shown(namespace), expected)
    elif kind == "PlacementPolicy" and namespace == SYSTEM_NAMESPACE:
        expected = "another namespace; a PlacementPolicy selects no pods of this one"
        yield Problem("metadata.namespace", shown(namespace), expected)


def _metadata_problems(metadata: Any) -> Iterator[Problem]:
    if not isinstance(metadata, Mapping):
        yield Problem("metadata", shown(metadata), "an object with a name")
        return
    texts = {field: metadata.get(field) or "" for field in ("name", "generateName", "namespace")}
    wrong = [field for field in texts if not isinstance(metadata.get(field), str | None)]
    yield from (Problem(f"metadata.{field}", shown(metadata[field]), "a string") for field in wrong)
    if not wrong:
        yield from _name_problems(**texts)
    for field in ("labels", "annotations"):
        yield from _label_key_problems(f"metadata.{field}", metadata.get(field), are_labels=field == "labels")


def _name_problems(name: str, generateName: str, namespace: str) -> Iterator[Problem]:  # noqa: N803 - the API's name
    if not name and not generateName:
        yield Problem("metadata.name", "no name", "the name of the policy")
    if name and not _is_dns_subdomain(name):
        expected = "at most 253 lower-case letters, digits, - and ."
        yield Problem("metadata.name", shown(name), expected)
    if generateName and not _is_name_prefix(generateName, is_name_generated=not name):
        yield Problem("metadata.generateName", shown(generateName), "lower-case letters, digits, - and .")
    if namespace and not (
        _is_dns_subdomain(namespace) and "." not in namespace and len(namespace) <= _MAX_LABEL
    ):
        yield Problem("metadata.namespace", shown(namespace), "at most 63 lower-case letters, digits and -")


def _label_key_problems(path: str, pairs: Any, *, are_labels: bool) -> Iterator[Problem]:
    """The problems of labels or annotations."""
    if pairs is None:
        return
    if not isinstance(pairs, Mapping):
        yield Problem(path, shown(pairs), "an object")
        return
    for key, value in pairs.items():
        prefix, slash, name = key.rpartition("/")
        if not is_valid_label_part(name) or (slash and not _is_dns_subdomain(prefix)):
            yield Problem(f"{path}.{key[:80]}", shown(key), "a key such as example.com/name")
        if value is None:
            continue
        if not isinstance(value, str):
            yield Problem(f"{path}.{key[:80]}", shown(value), f'a string, such as "{shown(value)}"')
        elif are_labels and value and not is_valid_label_part(value):
            yield Problem(f"{path}.{key[:80]}", shown(value), "at most 63 letters, digits, -, _ and .")


def _is_name_prefix(prefix: str, *, is_name_generated: bool) -> bool:
    """Whether the API server accepts this `generateName` (apimachinery `NameIsDNSSubdomain` and apiserver
    `SimpleNameGenerator`, 1.36): it validates the prefix with `a` in place of the last two characters of one that ends
    with `-`, and, unless there is a name, the name that it generates from the first 58 characters.
    """
    masked = f"{prefix[:-2]}a" if len(prefix) > 1 and prefix.endswith("-") else prefix
    return _is_dns_subdomain(masked) and (
        not is_name_generated or _is_dns_subdomain(f"{prefix[:_MAX_BASE]}a")
    )


def _is_dns_subdomain(text: Any) -> bool:
    return isinstance(text, str) and len(text) <= _MAX_SUBDOMAIN and bool(_SUBDOMAIN.fullmatch(text))


def _value_problems(  # complexity: one case for each type of a schema
    path: str, value: Any, schema: Mapping[str, Any]
) -> Iterator[Problem]:
    """The problems of a value, by the keywords of structural schemas (`KEYWORDS`)."""
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, str) and not is_integer(value):
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            hint = f' such as "{value}"' if is_number else ""
            yield Problem(path, shown(value), f"an integer of 64 bits, or a string{hint}")
            return
    elif not isinstance(value, _TYPES[schema["type"]]):
        yield Problem(path, shown(value), _TYPE_NAMES[schema["type"]])
        return
    if isinstance(value, str):
        yield from _text_problems(path, value, schema)
    elif isinstance(value, list) and len(value) > schema.get("maxItems", len(value)):
        yield Problem(path, f"{len(value)} entries", f"at most {schema['maxItems']}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _value_problems(f"{path}[{number}]", item, schema["items"])
    elif isinstance(value, dict):
        yield from _object_problems(path, value, schema)


def _text_problems(path: str, text: str, schema: Mapping[str, Any]) -> Iterator[Problem]:
    if "enum" in schema and text not in schema["enum"]:
        yield Problem(path, shown(text), " or ".join(schema["enum"]) + did_you_mean(text, schema["enum"]))
    if len(text) > schema.get("maxLength", len(text)):
        yield Problem(path, f"{len(text)} characters", f"at most {schema['maxLength']}")
    pattern = schema.get("pattern", "")
    # `$` matches only at the very end in Go, but also before a final line break in Python
    if not re.search(re.sub(r"\$$", r"\\Z", pattern), text):
        yield Problem(path, shown(text), f"a text that matches {pattern}")


def _object_problems(path: str, value: dict[str, Any], schema: Mapping[str, Any]) -> Iterator[Problem]:
    # the API server drops null fields that are not nullable before it validates
    fields = {name: field for name, field in value.items() if field is not None}
    if len(fields) > schema.get("maxProperties", len(fields)):
        yield Problem(path, f"{len(fields)} fields", f"at most {schema['maxProperties']}")
        return
    for name in schema.get("required", ()):
        if name not in fields:
            yield Problem(f"{path}.{name}", "no value", "a value, which is required")
    known = schema.get("properties", {})
    for name, field in fields.items():
        inner = known.get(name) or schema.get("additionalProperties")
        if inner:
            yield from _value_problems(f"{path}.{name}", field, inner)
