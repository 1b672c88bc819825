"""Queries of rules with what `policy lint` says about them. Unit tests compare the findings, and a test with a real
Prometheus checks which queries are valid, and that what is said about their results holds.
"""

from typing import Any, Final, NamedTuple

NEVER: Final = "only results "
NO_RESULT: Final = "a query without results"
NO_NODE: Final = " without a label that names a node"
UNBALANCED: Final = "unbalanced"
METRICS: Final = ("x", "y", "up", "limit_of")
"""The metrics of these queries."""


class QueryCase(NamedTuple):
    """A query, the comparison of its rule, and what is reported."""

    query: str
    rule: dict[str, Any]
    finding: str = ""
    """Empty: nothing."""
    is_promql: bool | None = True
    """Whether Prometheus accepts the query; None if that depends on its version."""


def _cases(
    finding: str, *pairs: tuple[str, dict[str, Any]], is_promql: bool | None = True
) -> list[QueryCase]:
    return [QueryCase(query, rule, finding, is_promql) for query, rule in pairs]


ABOVE: Final = {"above": 0}
CASES: Final[list[QueryCase]] = [
    *_cases(
        NEVER,
        ('up{job="node"} == 0', ABOVE),
        ("up == 0", {"equals": 1}),
        ("(x < 200)", {"above": 200}),
        ("((x <= 200))", {"above": 200}),
        ("x < 200", {"atLeast": 200}),
        ("x > 9e3", {"below": "9k"}),
        ("x > 20", {"between": [5, 10]}),
        ("x < 5", {"between": [5, 10]}),
        ("0.5 > x", {"above": "0.5"}),
        ("x < 0x10 and on (node) y == 1", {"above": 20}),
        ("x < 16 unless on (node) y > 1", {"above": 20}),
        ("predict_linear(x[1h], 24*3600) < 0 and ON (instance, device) y == 0", ABOVE),
        ("x < 3 or y < 2", {"above": 3}),
        ("max by (node) (x < 200)", {"above": 300}),
        ("max(x < 200) by (node)", {"above": 300}),
        ("avg by (node) (x < 200 or y < 250)", {"above": 300}),
        ("sum by (node) (up == 0)", ABOVE),
        ("topk(3, x < 200) # slow", {"above": 300}),
        ("sort_desc(x < 200)", {"above": 300}),
        ("x < bool 200", {"above": 1}),
        ("x == bool 0", {"below": 0}),
        ("x != 7", {"equals": 7}),
        ("x < -5", {"above": "-1"}),
        ("x * 2 < 10", {"above": 10}),
        ("(x < 10) * 2", {"above": 20}),
        ("1 - (up == 1)", ABOVE),
        ("-(x > 5)", {"above": "-5"}),
        ("(x > 5) / -2", {"above": 0}),
        ("x < 5 * 2 + 1", {"above": 11}),
        ("x < 10", {"aggregate": "max", "above": 10}),
        ('x{job="> 5 # ("} < 10', {"above": 10}),
        ("x offset 1m < 10", {"above": 10}),
        ("x @ 1609746000 < 10", {"above": 10}),
        ("x @ end() offset -5m < 10", {"above": 10}),
        ("max_over_time((x < 10)[30m:1m])", {"above": 10}),
        ("last_over_time((up == 0)[5m:])", ABOVE),
        ('absent(up{instance="a"})', {"above": 1}),
        ("count by (node) (x)", {"below": 1}),
        ("rate(x[5m])", {"below": 0}),
        ("clamp_max(x, 10)", {"above": 10}),
        ("clamp(x, 1, 10)", {"below": 1}),
        ("x < 10 < 20", {"above": 15}),
        ('label_replace(x < 10, "node", "$1", "instance", "(.*):.*")', {"above": 10}),
        ("x < 10 and (y > 5 or y < 3)", {"above": 10}),
    ),
    *_cases(
        NO_RESULT,
        ("count by (node) (x) == 0", {"equals": 0}),
        ("x > 100 < 10", {"above": 1}),
        ("(up == 0) > 0", ABOVE),
        ("up == 0 == 1", {"equals": 1}),
    ),
    *_cases(
        "",
        ("x", ABOVE),
        ("or", ABOVE),
        ("up == 0", {"equals": 0}),
        ("up == 0", {"below": 1}),
        ("up == bool 0", ABOVE),
        ("1 - up", ABOVE),
        ("count by (node) (up == 0)", ABOVE),
        ("x <= 200", {"atLeast": 200}),
        ("x > 200", {"above": 300}),
        ("x > 5", {"between": [1, 6]}),
        ("x < 200", {"aggregate": "sum", "above": 300}),
        ("x < 200 or y", {"above": 300}),
        ("sum by (node) (x < 200)", {"above": 300}),
        ("avg by (node) (x < 200) * 2", {"above": 300}),
        ("x < limit_of", {"above": 300}),
        ("x < on (node, cpu) group_left (job) limit_of", {"above": 300}),
        ("x < 10 * 20", {"above": 100}),
        ("2 ^ x < 10", {"above": 5}),
        ("-x ^ 2", {"above": 0}),
        ("x < bool 200", ABOVE),
        ("x unless y < 10", {"above": 300}),
        ("x and on (node) y < 10", {"above": 300}),
        ("(x > 10) % 7", {"below": 7}),
        ("x < Inf", {"above": 300}),
        ("x != NaN", ABOVE),
        ("x < 10", {"order": "Ascending"}),
        ("x < 10", {"above": "warm"}),
        ("rate(x[5m:])", {"above": 1}),
        ("irate(x[5m]) or x", {"above": 1}),
        ("sum without (job) (x)", ABOVE),
        ("sum by (instance) (x)", ABOVE),
        ("sum(x) by (node)", ABOVE),
        ("SUM BY (node) (rate(x[5m])) / 2", ABOVE),
        ("sum by (instance) (x) / on (instance) group_left (node) max by (instance, node) (y)", ABOVE),
        ("x / on () group_left sum(y)", ABOVE),
        ("x / on (node, cpu) y", ABOVE),
        ("x / ignoring (job) y", ABOVE),
        ("x / scalar(sum(y))", ABOVE),
        ("time() - x", ABOVE),
        ("sum by (node) (x) or vector(0)", ABOVE),
        ("topk(1, x)", ABOVE),
        ('count_values without (job) ("value", x)', ABOVE),
        ("histogram_quantile(0.9, sum by (le, node) (rate(x[5m])))", ABOVE),
        ('label_join(x, "node", "", "instance")', ABOVE),
        ('label_replace(sum(x), "node", "a", "", "")', ABOVE),
        ('absent(up{node="a"})', ABOVE),
        ('x{node=~"a|b", job!="(["} # a comment with ) and "', ABOVE),
        ("x[5m]", ABOVE),
        ("max_over_time(sum by (node) (x)[1h:1m] offset 5m)", ABOVE),
        ("quantile by (node) (0.9, x)", ABOVE),
        ("sum by (node,) (x)", ABOVE),
        ("timestamp(x) > 0", ABOVE),
        ("x > 1 or (y and x) unless up", ABOVE),
        ("avg_over_time(x[5m:1m]) > bool 3", ABOVE),
    ),
    *_cases(
        NO_NODE,
        ("sum(x)", ABOVE),
        ("SUM (rate(x[5m])) / 2", ABOVE),
        ("avg by (job) (x) > 5", {"above": 5}),
        ("(count(x) by (zone))", ABOVE),
        ("sum(x) / sum(y)", ABOVE),
        ("x / sum(y)", ABOVE),
        ("topk(1, sum(x))", ABOVE),
        ("sum by (node) (sum(x))", ABOVE),
        ("sum(x) or vector(0)", ABOVE),
        ("histogram_quantile(0.9, sum by (le) (rate(x[5m])))", ABOVE),
        ("max_over_time(sum(x)[1h:1m])", ABOVE),
        ("absent(not_there)", ABOVE),
        ('absent(not_there{job="node"})', ABOVE),
        ("max by (job) (x) > on (job) max by (job) (y)", {"above": 1}),
        ('x{node="n1"} > on (job, cpu) y{node="n2"}', ABOVE),
        ('label_replace(sum(x), "zone", "a", "", "")', ABOVE),
        ("vector(1)", ABOVE),
        ("scalar(x)", ABOVE),
        ("time()", ABOVE),
        ("group(x)", ABOVE),
        ('count_values("value", x)', ABOVE),
        ("quantile(0.9, x)", ABOVE),
        ("sum(x) by ()", ABOVE),
    ),
    *_cases(
        UNBALANCED,
        ("rate(x[5m)", ABOVE),
        ("max by (node (x)", ABOVE),
        ("x{", ABOVE),
        ("x)", ABOVE),
        ('x{node="a}', ABOVE),
        ("sum(x", ABOVE),
        ("(x > 5", ABOVE),
        is_promql=False,
    ),
    *_cases(
        "",
        ('{__name__="x", "node"="a"}', ABOVE),
        ("x > 5m", ABOVE),
        ("x offset (5m * 2) > 5", ABOVE),
        ("x + fill(0) y", ABOVE),
        ("rate(x[5m] smoothed)", ABOVE),
        ("limitk(2, x)", ABOVE),
        ("info(sum by (job) (x))", ABOVE),
        is_promql=None,
    ),
    QueryCase("(x < 5) @ 5 < 3 offset -1m", {"above": 3}, NEVER, is_promql=None),
    # what Prometheus does not know may mean anything
    *_cases(
        "",
        ("sum(x) by (node) limit 5", ABOVE),
        ("x default 0", ABOVE),
        ("sum(x) default x", ABOVE),
        ("(x < 5) keep_metric_names", {"above": 5}),
        ('label_set(sum(x), "node", "a")', ABOVE),
        ("WITH (a = x) a < 5", {"above": 5}),
        ("x <", ABOVE),
        ("x offset", ABOVE),
        ("sum by (node)", ABOVE),
        ("x < 1e999", {"above": 300}),
        ("< 5", {"above": 7}),
        ("", {"above": 7}),
        is_promql=False,
    ),
]
