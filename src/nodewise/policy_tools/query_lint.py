"""Checks of the queries in rules: brackets, comparisons that no result can meet, and results without a node. No I/O.

This is no parser of PromQL: it reads the operators outside of brackets, and knows nothing about the rest. So it reports
only what is certain, and Prometheus reports the rest when it runs the query. Source of the precedences and of the
results of comparisons: Prometheus' documentation, "Operators".
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, Final, NamedTuple

from nodewise.base import quantity
from nodewise.base.errors import Problem, truncate
from nodewise.policies.rule_operators import OPERATORS, TASPOLICY_OPERATORS

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
_COMPARISONS: Final = {
    "<": "below",
    "<=": "atMost",
    ">": "above",
    ">=": "atLeast",
    "==": "equals",
    "!=": "notEquals",
}
_MIRRORED: Final = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}
_LOWER: Final = {"above": True, "atLeast": False}
_UPPER: Final = {"below": True, "atMost": False}
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
    return _comparison_bounds(tokens, depth) or _argument_bounds(tokens, depth)


def _comparison_bounds(tokens: _Tokens, depth: int) -> list[_Bounds]:
    """The alternatives of an expression with comparisons; empty for any other one."""
    comparisons = [token.text for token in tokens if token.kind == "comparison"]
    operands = _split(tokens, frozenset(_COMPARISONS))
    if not comparisons or len(operands) != len(comparisons) + 1:
        return []
    if any(operand[0].word == "bool" for operand in operands[1:]):
        return [(_Bound("equals", value * quantity.NANO, f"== {value}"),) for value in (0, 1)]
    bounds = tuple(_bounds_of_comparisons(comparisons, operands))
    vector = operands[0] if _number(operands[0]) is None else operands[1]
    return [(*inner, *bounds) for inner in _result_bounds(vector, depth + 1)]


def _bounds_of_comparisons(comparisons: Sequence[str], operands: Sequence[_Tokens]) -> Iterator[_Bound]:
    """The bounds of comparisons with numbers. The results are values of the other side."""
    if (number := _number(operands[0])) is not None:
        yield _bound(_MIRRORED[comparisons[0]], number, operands[0])
    for comparison, operand in zip(comparisons, operands[1:], strict=True):
        if (number := _number(operand)) is not None:
            yield _bound(comparison, number, operand)


def _bound(comparison: str, number: int, operand: _Tokens) -> _Bound:
    return _Bound(
        _COMPARISONS[comparison], number, f"{comparison} {''.join(token.text for token in operand)}"
    )


def _argument_bounds(tokens: _Tokens, depth: int) -> list[_Bounds]:
    """The bounds of a call of a function whose results are values of its last argument."""
    if not tokens or tokens[0].word not in _SAME_RANGE or _split(tokens, _ARITHMETIC) != [list(tokens)]:
        return [()]
    arguments = _arguments(tokens)
    return _result_bounds(_split(arguments, frozenset({","}))[-1], depth + 1) if arguments else [()]


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
        aggregations = [_aggregation_without_node(operand, depth + 1) for operand in operands]
        return min(aggregations)
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
