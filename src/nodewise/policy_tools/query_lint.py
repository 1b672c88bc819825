"""Checks of the PromQL queries of rules: rules that no result of their query can meet, results without a label that
names a node, and unbalanced brackets. No I/O.

The parser knows the syntax of Prometheus 3.x (documentation, "Querying": "Operators" and "Functions"), not the types
of functions. It reports only what is certain: an expression in another syntax, such as MetricsQL or one of a later
version, may have any result. `policy lint --prometheus-url` adds the errors of Prometheus' own parser.
"""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations, pairwise
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from nodewise.base import distributions, quantity
from nodewise.base.errors import Problem, did_you_mean, shown, truncate
from nodewise.metrics import source_table
from nodewise.metrics.prometheus.options import NODE_LABELS
from nodewise.policies.rule_operators import OPERATORS, RANGE_OPERATORS, TASPOLICY_OPERATORS

_MAX_DEPTH: Final = 20
"""Nested objects of a spec, and nested brackets of a query. Results of deeper expressions are unknown."""
_MAX_SHOWN: Final = 200
MAX_LISTED: Final = 20

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
_LEVELS: Final = (("or",), ("and", "unless"), ("==", "!=", "<=", ">=", "<", ">"), ("+", "-"))
_LEVELS_OF_PRODUCTS: Final = (("*", "/", "%", "atan2"), ("^",))
_PRECEDENCES: Final = {
    operator: level
    for level, operators in enumerate((*_LEVELS, *_LEVELS_OF_PRODUCTS), 1)
    for operator in operators
}
_COMPARISONS: Final = {operator.promql: name for name, operator in OPERATORS.items()}
_SYMBOLS: Final = {name: operator.promql for name, operator in OPERATORS.items()}
_MIRRORED: Final = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}
_LOWER: Final = {name: not entry.includes_target for name, entry in OPERATORS.items() if entry.order < 0}
_UPPER: Final = {name: not entry.includes_target for name, entry in OPERATORS.items() if entry.order > 0}
"""The operators that bound values from below and from above, and whether the bound is excluded."""
_SELECTING: Final = frozenset({"topk", "bottomk", "limitk", "limit_ratio"})
"""Aggregations whose results are some of the series."""
_AGGREGATIONS: Final = _SELECTING | {
    *("sum", "avg", "min", "max", "count", "group", "stddev", "stdvar", "quantile", "count_values")
}
_SAME_VALUES: Final = _SELECTING | {
    *("max", "min", "sort", "sort_desc", "sort_by_label", "sort_by_label_desc", "vector", "label_replace"),
    *("label_join", "max_over_time", "min_over_time", "last_over_time", "first_over_time"),
}
"""Functions each of whose results is one of the values of their argument."""
_MEANS: Final = frozenset({"avg", "avg_over_time"})
_SUMS: Final = frozenset({"sum", "sum_over_time"})
_CLAMPS: Final = {
    "clamp": ("atLeast", "atMost"),
    "clamp_min": ("atLeast",),
    "clamp_max": ("atMost",),
}
_MAX_BOUNDS: Final = 30  # alternatives, and bounds of one; without the others less is known
_MAX_VALUE: Final = 10**100
_RANGES: Final[Mapping[str, tuple[str, int]]] = {
    **dict.fromkeys(("absent", "absent_over_time", "present_over_time", "group"), ("equals", 1)),
    **dict.fromkeys(("count", "count_values", "count_over_time"), ("atLeast", 1)),
    **dict.fromkeys(("rate", "irate", "increase", "changes", "resets", "abs", "sqrt", "exp"), ("atLeast", 0)),
    **dict.fromkeys(("stddev", "stdvar", "stddev_over_time", "stdvar_over_time"), ("atLeast", 0)),
}
"""What every result of a function meets, whatever its argument."""
_WITHOUT_LABELS: Final = frozenset({"scalar", "vector", "time", "pi"})
"""Functions whose results have no labels."""
_OF_TIME: Final = frozenset(
    {"hour", "minute", "month", "year", "day_of_month", "day_of_week", "day_of_year", "days_in_month"}
)
"""Functions that have the time of the evaluation as their default argument."""
_CLAUSES: Final = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
"""Keywords before names of labels."""
_NODE_WORDS: Final = ("node", "host", "instance")  # parts of names of labels that may name a node


class PrometheusFacts(NamedTuple):
    """What is known about the Prometheus that evaluates the queries."""

    node_labels: Collection[str] = NODE_LABELS
    """The labels that name nodes."""
    parse_errors: Mapping[str, str] | None = None
    """Its error for each query that it cannot parse; None if it was not asked."""
    metric_names: Collection[str] = ()
    """The names of its metrics; empty if they are not known."""
    result_labels: Mapping[str, Collection[str]] = MappingProxyType({})
    """By query of `device_rules`, the labels of its results; omitted or empty if they are not known."""


class QueryFindings(NamedTuple):
    """The problems and the notes about the queries of a policy."""

    problems: list[Problem]
    notes: list[Problem]


class _RequiredLabels(NamedTuple):
    """Labels of which the results of a query have to have one."""

    names: frozenset[str]
    are_exact: bool = False
    """Whether no other label names a node."""


class UnbalancedError(ValueError):
    """A bracket or a quote without its counterpart. The text says what was found."""

    def __init__(self, actual: str, expected: str) -> None:
        super().__init__(actual)
        self.expected = expected


def check_queries(spec: Any, prometheus: PrometheusFacts = PrometheusFacts()) -> QueryFindings:  # noqa: B008
    """The findings about every object with a query in the spec of a policy of any kind."""
    findings = QueryFindings([], [])
    errors = prometheus.parse_errors
    for path, rule in rules_with_query("spec", spec):
        if errors and (error_text := errors.get(rule["query"])):
            expected = "a query that Prometheus can parse"
            findings.problems.append(Problem(f"{path}.query", truncate(error_text, _MAX_SHOWN), expected))
            continue
        try:
            expression = _parse(rule["query"])
            problems = list(_impossible_rule(path, rule, expression))
            label = rule.get("deviceLabel")
            labels = _RequiredLabels(frozenset(prometheus.node_labels))
            if isinstance(label, str):
                labels = _RequiredLabels(frozenset([label]), are_exact=True)
            culprit = _part_without_node(expression, labels)
        except UnbalancedError as error:
            if errors is not None:
                continue  # in a syntax that Prometheus knows, it is balanced
            findings.problems.append(Problem(f"{path}.query", str(error), error.expected))
            continue
        except RecursionError:
            continue  # thousands of operators
        findings.problems.extend(problems)
        if culprit:
            name = culprit.partition(" ")[0]
            kept, what = ("node", "that names the node") if label is None else (label, "of deviceLabel")
            expected = f"an expression whose results have a label {what}"
            if name in _AGGREGATIONS:
                expected = f"{name} by ({kept}) (…) or another label {what} of each result"
                if label is not None:
                    expected = f"{name} by (node, {kept}) (…), which keeps the label {what}"
            actual = truncate(f"{culprit} without a label {what.replace('the', 'a')}", _MAX_SHOWN)
            findings.notes.append(Problem(f"{path}.query", actual, expected))
    return findings


def has_known_syntax(query: str) -> bool:
    """Whether a query is an expression in a syntax that this module and each version of Prometheus know: with balanced
    brackets, and without names in quotes, which are new in version 3.
    """
    try:
        return not isinstance(_parse(query), _Unknown) and not _has_quoted_name(_bracket_tokens(query))
    except (UnbalancedError, RecursionError):
        return False


def rules_with_query(path: str, value: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The path of each object with a query, and the object."""
    return ((at, entry) for at, entry in rule_objects(path, value) if isinstance(entry.get("query"), str))


def rule_objects(path: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The path of each object, and the object; not those of labels, whose keys may be those of rules."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, Mapping):
        yield path, value
        for key, entry in value.items():
            if key not in ("labels", "matchLabels"):
                yield from rule_objects(f"{path}.{key}", entry, depth + 1)
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            yield from rule_objects(f"{path}[{number}]", entry, depth + 1)


def own_metrics() -> list[str]:
    """The metrics that nodewise computes, or reads from metrics-server."""
    computed = distributions.own_entry_points(distributions.COMPUTED_METRICS)
    return sorted({*source_table.RESOURCE_METRICS, *(entry.name for entry in computed)})


def unknown_metrics(spec: Any, prometheus: PrometheusFacts) -> Iterator[Problem]:
    """A note for each metric in the spec of a policy of any kind that neither Prometheus nor nodewise has."""
    names = {*prometheus.metric_names, *own_metrics()} if prometheus.metric_names else ()
    for path, rule in rule_objects("spec", spec) if names else ():
        for field in ("metric", "metricname"):
            metric = rule.get(field)
            if isinstance(metric, str) and not rule.get("query") and metric not in names:
                similar = did_you_mean(metric, sorted(names))
                expected = f"a metric that Prometheus has, or another source{similar}"
                yield Problem(f"{path}.{field}", shown(metric), expected)


def device_rules(spec: Any) -> Iterator[tuple[str, str, str]]:
    """The path of each device rule in the spec of a policy of any kind, its label, and the query for its values."""
    # start-up time: these import an HTTP client
    from nodewise.metrics.metrics_source import MetricRequest
    from nodewise.metrics.prometheus.source import instant_query

    own = own_metrics()
    for path, rule in rule_objects("spec", spec):
        label, metric, query = (rule.get(field) for field in ("deviceLabel", "metric", "query"))
        if isinstance(label, str) and isinstance(query or metric, str) and (query or metric not in own):
            request = MetricRequest(metric=metric or "", query=query or "")
            yield path, label, instant_query(request)


def unknown_device_labels(spec: Any, prometheus: PrometheusFacts) -> Iterator[Problem]:
    """A note for each device rule whose label no series of Prometheus has."""
    for path, label, query in device_rules(spec) if prometheus.result_labels else ():
        names = sorted(prometheus.result_labels.get(query, ()))
        if names and label not in names:
            listed = ", ".join(names[:MAX_LISTED])
            expected = f"a label of the results in Prometheus, which are {listed}{did_you_mean(label, names)}"
            yield Problem(f"{path}.deviceLabel", shown(label), expected)


# Expressions


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


class _Literal(NamedTuple):
    number: Fraction | None
    """None for a number that is not finite, a duration, or a text."""
    text: str = ""


class _Selector(NamedTuple):
    required: frozenset[str]
    """The labels that every series has, because the selector compares them with `=`."""


class _Call(NamedTuple):
    """A function or an aggregation."""

    function: str
    arguments: tuple["_Expression", ...]
    clause: str = ""
    """Of an aggregation: `by`, `without`, or empty."""
    labels: frozenset[str] = frozenset()


class _Binary(NamedTuple):
    operator: str
    left: "_Expression"
    right: "_Expression"
    is_bool: bool = False
    matching: str = ""
    """`on`, `ignoring`, or empty."""
    labels: frozenset[str] = frozenset()
    group: str = ""
    """`group_left`, `group_right`, or empty."""
    included: frozenset[str] = frozenset()
    source: tuple[_Token, ...] = ()
    """Of comparisons with numbers: the vector whose values and labels the results have."""


def _source(expression: "_Expression") -> tuple[_Token, ...]:
    return expression.source if isinstance(expression, _Binary) else ()


class _Unknown(NamedTuple):
    """An expression in a syntax that this module does not know."""


_Expression = _Literal | _Selector | _Call | _Binary | _Unknown


class _UnknownSyntaxError(ValueError):
    """The tokens are no expression that this module knows."""


def _parse(query: str) -> _Expression:
    """The expression. `UnbalancedError` for unbalanced brackets."""
    tokens = _bracket_tokens(query)
    try:
        return _Parser(tokens, 0).parse_all()
    except _UnknownSyntaxError:
        return _Unknown()


def _bracket_tokens(query: str) -> tuple[_Token, ...]:
    """The tokens of a query; brackets contain those between them."""
    stack: list[tuple[str, list[_Token]]] = [("", [])]
    for match in _TOKEN.finditer(query):
        kind, text = str(match.lastgroup), match[0]
        if text in _PAIRS:
            stack.append((text, []))
        elif text in _PAIRS.values():
            opening, inner = stack.pop()
            if _PAIRS.get(opening) != text:
                expected = f'"{_PAIRS[opening]}"' if opening else "no closing bracket"
                raise UnbalancedError(f'"{text}" at character {match.start() + 1}', expected)
            stack[-1][1].append(_Token(opening, opening, tuple(inner)))
        elif kind == "other" and text in "\"'`":
            raise UnbalancedError(
                f"{text} at character {match.start() + 1} without its end", "a closing quote"
            )
        elif kind != "blank":
            stack[-1][1].append(_Token(kind, text))
    if len(stack) > 1:
        opening = stack[-1][0]
        raise UnbalancedError(f'"{opening}" without "{_PAIRS[opening]}"', "balanced brackets")
    return tuple(stack[0][1])


def _has_quoted_name(tokens: Sequence[_Token], opening: str = "") -> bool:
    """Whether one of the names in braces, or of the labels of a clause, is in quotes."""
    before = _Token("", "," if opening == "{" else "")
    for token in tokens:
        if token.kind == "string" and (opening == "by" or (opening == "{" and before.text == ",")):
            return True
        within = "by" if token.kind == "(" and before.word in _CLAUSES else token.kind
        if _has_quoted_name(token.inner, within):
            return True
        before = token
    return False


class _Parser:
    """Parses the tokens between two brackets, with precedence climbing."""

    def __init__(self, tokens: Sequence[_Token], depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise _UnknownSyntaxError
        self._tokens = [*tokens, _Token("end", "")]
        self._depth = depth
        self._at = 0

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def parse_all(self) -> _Expression:
        expression = self._parse_binary(0, 0)
        if self._next.kind != "end":
            raise _UnknownSyntaxError
        return expression

    def _take(self) -> _Token:
        if self._next.kind == "end":
            raise _UnknownSyntaxError
        self._at += 1
        return self._tokens[self._at - 1]

    def _take_word(self, *words: str) -> str:
        """The next token if it is one of these words, which is taken; otherwise empty."""
        word = self._next.word
        self._at += word in words
        return word if word in words else ""

    def _parse_binary(self, least: int, depth: int) -> _Expression:
        """An expression of operators of at least this precedence."""
        if depth > 10 * _MAX_DEPTH:
            raise _UnknownSyntaxError
        start = self._at
        if self._next.text in ("+", "-"):
            sign = self._take().text
            # a sign binds weaker than ^ and stronger than *
            operand = self._parse_binary(_PRECEDENCES["^"], depth + 1)
            left: _Expression = operand if sign == "+" else _Binary("*", _Literal(Fraction(-1)), operand)
        else:
            left = self._parse_postfix()
        while True:
            operator = self._next.word or self._next.text
            precedence = 0 if self._next.kind == "string" else _PRECEDENCES.get(operator, 0)
            if precedence == 0 or precedence < least:
                return left
            left = self._parse_operation(left, self._tokens[start : self._at], precedence, depth)

    def _parse_operation(
        self, left: _Expression, vector: Sequence[_Token], precedence: int, depth: int
    ) -> _Binary:
        """The operator after an expression with these tokens, and its right side."""
        taken = self._take()
        operator = taken.word or taken.text
        is_bool = bool(self._take_word("bool"))
        matching = self._take_word("on", "ignoring")
        labels = self._take_labels() if matching else frozenset[str]()
        group = self._take_word("group_left", "group_right")
        included = self._take_labels() if group and self._next.kind == "(" else frozenset[str]()
        while self._take_word("fill", "fill_left", "fill_right"):
            self._take()
        right = self._parse_binary(precedence + (operator != "^"), depth + 1)
        source: tuple[_Token, ...] = ()
        if operator in _COMPARISONS and not is_bool and _constant(right) is not None:
            source = _source(left) or tuple(vector)
        return _Binary(operator, left, right, is_bool, matching, labels, group, included, source)

    def _parse_postfix(self) -> _Expression:
        """A primary expression with ranges, `offset` and `@`, none of which changes what is known of values."""
        expression = self._parse_primary()
        while True:
            if self._next.kind == "[":
                self._take()
            elif self._take_word("offset") or (self._next.text == "@" and self._take()):
                if self._next.text in ("+", "-"):
                    self._take()
                if self._take().kind == "word" and self._next.kind == "(":
                    self._take()
            elif not self._take_word("anchored", "smoothed"):
                return expression

    def _parse_primary(self) -> _Expression:
        token = self._take()
        if token.kind == "(":
            return _Parser(token.inner, self._depth + 1).parse_all()
        if token.kind == "{":
            return _selector(token.inner)
        if token.kind == "string":
            return _Literal(None, token.text[1:-1])
        if token.kind == "number":
            return _Literal(_finite_number(token.text))
        if token.kind != "word":
            raise _UnknownSyntaxError
        if self._next.kind == "(" or (token.word in _AGGREGATIONS and self._next.word in ("by", "without")):
            return self._parse_call(token.word)
        if token.word in ("inf", "nan") or token.text[0].isdigit():
            return _Literal(None)
        return _selector(self._take().inner if self._next.kind == "{" else ())

    def _parse_call(self, function: str) -> _Expression:
        clause, labels = "", frozenset[str]()
        if function in _AGGREGATIONS and (clause := self._take_word("by", "without")):
            labels = self._take_labels()
        arguments = self._take_arguments()
        if function in _AGGREGATIONS:
            if not clause and (clause := self._take_word("by", "without")):
                labels = self._take_labels()
            if not arguments:
                raise _UnknownSyntaxError
        return _Call(function, arguments, clause, labels)

    def _take_labels(self) -> frozenset[str]:
        token = self._take()
        if token.kind != "(":
            raise _UnknownSyntaxError
        return frozenset(
            name.text.strip("\"'`") for name in token.inner if name.kind in ("word", "string", "number")
        )

    def _take_arguments(self) -> tuple[_Expression, ...]:
        token = self._take()
        if token.kind != "(":
            raise _UnknownSyntaxError
        parts: list[list[_Token]] = [[]]
        for inner in token.inner:
            if inner.kind == "other" and inner.text == ",":
                parts.append([])
            else:
                parts[-1].append(inner)
        return tuple(_Parser(part, self._depth + 1).parse_all() for part in parts if part)


def _selector(matchers: Sequence[_Token]) -> _Selector:
    names = pairwise(matchers)
    return _Selector(frozenset(name.text.strip("\"'`") for name, sign in names if sign.text == "="))


def _finite_number(text: str) -> Fraction | None:
    if re.match("0[0-9]", text):
        return None  # Prometheus reads some of them as octal
    try:
        value = float(int(text, 16)) if text.lower().startswith("0x") else float(text)
    except OverflowError:
        return None
    return Fraction(repr(value)) if math.isfinite(value) else None


# Values


class _Bound(NamedTuple):
    """A comparison that all results meet."""

    operator: str
    """One of `OPERATORS`."""
    value: Fraction

    @property
    def text(self) -> str:
        number = self.value.numerator if self.value.denominator == 1 else float(self.value)
        return f"{_SYMBOLS[self.operator]} {number}"


_Bounds = tuple[_Bound, ...]
_ANY: Final[list[_Bounds]] = [()]


def _impossible_rule(  # complexity: contradictions of the query itself, then those to the rule
    path: str, rule: Mapping[str, Any], expression: _Expression
) -> Iterator[Problem]:
    """The problem of a rule that no result of its query can meet."""
    expected = "results that can meet the rule: remove the comparison from the query, or correct the rule"
    alternatives: list[_Bounds] = []
    contradictions: list[_Bounds] = []
    aggregate = rule.get("aggregate")
    if aggregate in ("avg", "sum"):
        expression = _Call(aggregate, (expression,))
    for bounds in _result_bounds(expression):
        pairs = (pair for pair in combinations(bounds, 2) if _excludes(*pair))
        if pair := next(pairs, None):
            contradictions.append(pair)
        else:
            alternatives.append(bounds)
    if not alternatives:
        first, second = contradictions[0]
        actual = f"a query without results: no value is {first.text} and {second.text}"
        yield Problem(f"{path}.query", truncate(actual, _MAX_SHOWN), expected)
        return
    targets = _targets(rule)
    excluding = [
        next(((bound, target) for bound in bounds for target in targets if _excludes(bound, target)), None)
        for bounds in alternatives
    ]
    contrary = [pair for pair in excluding if pair is not None]
    if len(contrary) == len(alternatives):
        texts = dict.fromkeys(bound.text for bound, _ in contrary)
        target = f"{contrary[0][1].operator} {contrary[0][1].text.partition(' ')[2]}"
        actual = f"only results {' or '.join(texts)}, none of which is {target}"
        yield Problem(f"{path}.query", truncate(actual, _MAX_SHOWN), expected)


def _targets(rule: Mapping[str, Any]) -> _Bounds:
    """What a value must be to meet the rule; nothing if it has no valid comparison."""
    named = [(name, rule[name]) for name in OPERATORS if name in rule]
    for name, entry in RANGE_OPERATORS.items():
        values = rule.get(name)
        if isinstance(values, list):
            named += zip(entry.parts, values, strict=False)
    operator = rule.get("operator")
    if isinstance(operator, str) and operator in TASPOLICY_OPERATORS:
        named = [(TASPOLICY_OPERATORS[operator], rule.get("target"))]
    try:
        return tuple(
            _Bound(name, Fraction(quantity.parse(str(value)), quantity.NANO)) for name, value in named
        )
    except ValueError:
        return ()


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


def _is_met(bound: _Bound, value: Fraction) -> bool:
    difference = (value > bound.value) - (value < bound.value)
    return bool(OPERATORS[bound.operator].compare(difference, 0))


def _result_bounds(expression: _Expression) -> list[_Bounds]:
    """Alternatives, one of which each result meets. Each is a number of bounds that it meets all; none are unknown."""
    alternatives = _ANY
    if isinstance(expression, _Literal) and expression.number is not None:
        alternatives = [(_Bound("equals", expression.number),)]
    elif isinstance(expression, _Binary):
        alternatives = _binary_bounds(expression)
    elif isinstance(expression, _Call):
        alternatives = _call_bounds(expression)
    return alternatives if len(alternatives) <= _MAX_BOUNDS else _ANY


def _call_bounds(call: _Call) -> list[_Bounds]:
    function, arguments = call.function, call.arguments
    if function in _RANGES:
        operator, value = _RANGES[function]
        return [(_Bound(operator, Fraction(value)),)]
    if function in _CLAMPS:
        limits = zip(_CLAMPS[function], map(_constant, arguments[1:]), strict=False)
        return [tuple(_Bound(operator, limit) for operator, limit in limits if limit is not None)]
    if not arguments or function not in _SAME_VALUES | _MEANS | _SUMS:
        return _ANY
    alternatives = _result_bounds(arguments[0 if function.startswith("label_") else -1])
    if function in _SAME_VALUES:
        return alternatives
    limits_of_all = _common_bounds(alternatives)
    if function in _MEANS:
        return [limits_of_all]
    # a sum of numbers of one sign has this sign
    zeros = (_Bound("atLeast", Fraction(0)), _Bound("atMost", Fraction(0)))
    return [tuple(zero for zero in zeros if _implies(zero)(limits_of_all))]


def _implies(weaker: _Bound) -> Callable[[_Bounds], bool]:
    """Whether values within some bounds meet `atLeast` or `atMost` a value."""
    opposite = _Bound("below" if weaker.operator == "atLeast" else "above", weaker.value)
    return lambda bounds: any(_excludes(bound, opposite) for bound in bounds)


def _common_bounds(alternatives: Sequence[_Bounds]) -> _Bounds:
    """The limits of all values of all alternatives, and so of each mean of them."""
    values = [bound.value for bounds in alternatives for bound in bounds if bound.operator != "notEquals"]
    limits = [
        _Bound(operator, value) for operator in ("atLeast", "atMost") for value in dict.fromkeys(values)
    ]
    return tuple(limit for limit in limits if all(map(_implies(limit), alternatives)))


def _binary_bounds(  # complexity: one case for each kind of operator
    expression: _Binary,
) -> list[_Bounds]:
    operator, left, right = expression.operator, expression.left, expression.right
    if operator == "or":
        return [*_result_bounds(left), *_result_bounds(right)]
    if operator in ("and", "unless"):
        results = _result_bounds(left)
        if (
            operator == "unless"
            or expression.matching
            or not _source(left)
            or _source(left) != _source(right)
        ):
            return results
        # the same values on both sides
        return [(*bounds, *others)[-_MAX_BOUNDS:] for bounds in results for others in _result_bounds(right)]
    if expression.is_bool:
        return [(_Bound("equals", Fraction(value)),) for value in (0, 1)]
    numbers = _constant(left), _constant(right)
    if operator in _COMPARISONS:
        # the results are values of the left side, or of the right side if the left one is a scalar
        vector, symbol, number = left, operator, numbers[1]
        if _is_scalar(left):
            vector, symbol, number = right, _MIRRORED[operator], numbers[0]
        own = () if number is None else (_Bound(_COMPARISONS[symbol], number),)
        return [(*bounds, *own)[-_MAX_BOUNDS:] for bounds in _result_bounds(vector)]
    return _arithmetic_bounds(expression)


def _arithmetic_bounds(  # complexity: a number on either side
    expression: _Binary,
) -> list[_Bounds]:
    operator, left, right = expression.operator, expression.left, expression.right
    numbers = _constant(left), _constant(right)
    constant = _constant(expression)
    if constant is not None:
        return [(_Bound("equals", constant),)]
    if numbers[1] is not None and operator in ("+", "-", "*", "/"):
        vector, scale, shift = left, *_linear(operator, numbers[1])
    elif numbers[0] is not None and operator in ("+", "-", "*"):
        vector = right
        scale, shift = (Fraction(-1), numbers[0]) if operator == "-" else _linear(operator, numbers[0])
    else:
        return _ANY
    if not scale:
        return _ANY  # infinite values make it NaN
    alternatives = _result_bounds(vector)
    if any(abs(bound.value) > _MAX_VALUE for bounds in alternatives for bound in bounds):
        return _ANY
    return [tuple(_scaled(bound, scale, shift) for bound in bounds) for bounds in alternatives]


def _linear(operator: str, number: Fraction) -> tuple[Fraction, Fraction]:
    """By what a value is multiplied, and what is added to it; a division by 0 is multiplied by 0."""
    if operator in ("+", "-"):
        return Fraction(1), number if operator == "+" else -number
    if operator == "*":
        return number, Fraction(0)
    return (1 / number if number else Fraction(0)), Fraction(0)


def _scaled(bound: _Bound, scale: Fraction, shift: Fraction) -> _Bound:
    symbol = _SYMBOLS[bound.operator]
    operator = _COMPARISONS[symbol if scale > 0 else _MIRRORED[symbol]]
    return _Bound(operator, bound.value * scale + shift)


def _constant(expression: _Expression) -> Fraction | None:
    """The value of an expression of numbers; None for any other one."""
    if isinstance(expression, _Literal):
        return expression.number
    if not isinstance(expression, _Binary) or expression.operator not in ("+", "-", "*", "/"):
        return None
    left, right = _constant(expression.left), _constant(expression.right)
    if left is None or right is None or (expression.operator == "/" and not right):
        return None
    if expression.operator == "-":
        return left - right
    if expression.operator == "+":
        return left + right
    return left * right if expression.operator == "*" else left / right


# Labels


def _part_without_node(expression: _Expression, labels: _RequiredLabels) -> str:
    """The part because of which no result has a label of a node; empty if a result may have one."""
    if isinstance(expression, _Literal):
        return "a number"
    if isinstance(expression, _Binary):
        return _binary_without_node(expression, labels)
    if not isinstance(expression, _Call):
        return ""
    if expression.function in _AGGREGATIONS:
        return _aggregation_without_node(expression, labels)
    return _function_without_node(expression, labels)


def _aggregation_without_node(call: _Call, labels: _RequiredLabels) -> str:
    kept, first = call.labels, call.arguments[0]
    if call.function == "count_values" and isinstance(first, _Literal):
        kept |= {first.text}
    if call.function in _SELECTING or call.clause == "without" or _names_node(kept, labels):
        return _part_without_node(call.arguments[-1], labels)
    return f"{call.function} by ({', '.join(sorted(kept))})" if kept else call.function


def _function_without_node(  # complexity: one case for each kind of function
    call: _Call, labels: _RequiredLabels
) -> str:
    function, arguments = call.function, call.arguments
    if function in ("label_replace", "label_join") and len(arguments) > 1:
        target = arguments[1]
        is_other = isinstance(target, _Literal) and not _names_node([target.text], labels)
        return _part_without_node(arguments[0], labels) if is_other else ""
    if function.startswith(("label_", "info")):
        return ""  # these functions of other servers may set any label
    if function.startswith("absent"):
        selector = arguments[0] if arguments else None
        required = selector.required if isinstance(selector, _Selector) else ()
        return "" if _names_node(required, labels) else f"{function}()"
    if function in _WITHOUT_LABELS or (function in _OF_TIME and not arguments):
        return f"{function}()"
    parts = [_part_without_node(argument, labels) for argument in arguments if not _is_scalar(argument)]
    return min(parts, default="")


def _binary_without_node(  # complexity: one case for each kind of operator and matching
    expression: _Binary, labels: _RequiredLabels
) -> str:
    left, right = (_part_without_node(side, labels) for side in (expression.left, expression.right))
    if expression.operator in ("and", "unless"):
        return left
    if expression.operator == "or":
        return left and right
    if _is_scalar(expression.left) or _is_scalar(expression.right):
        return left if _is_scalar(expression.right) else right
    if expression.group:
        own = left if expression.group == "group_left" else right
        return "" if _names_node(expression.included, labels) else own
    if expression.matching == "on":
        names = ", ".join(sorted(expression.labels))
        return "" if _names_node(expression.labels, labels) else f"on ({names})"
    # without labels to match by, a result has the labels that both sides have
    return left or right


def _is_scalar(expression: _Expression) -> bool:
    if isinstance(expression, _Binary):
        return _is_scalar(expression.left) and _is_scalar(expression.right)
    return isinstance(expression, _Literal) or (
        isinstance(expression, _Call) and expression.function in ("scalar", "time", "pi")
    )


def _names_node(names: Collection[str], labels: _RequiredLabels) -> bool:
    """Whether one of these labels is required, or may name a node."""
    is_known = any(name in labels.names for name in names)
    return is_known or (
        not labels.are_exact and any(word in name.lower() for name in names for word in _NODE_WORDS)
    )
