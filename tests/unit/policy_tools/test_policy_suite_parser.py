"""The parser of suites, and the notation of series and their values."""

from pathlib import Path

import pytest

from nodewise.base.errors import BadInput
from nodewise.policy_tools import policy_suite
from nodewise.policy_tools.policy_suite import NotationError
from tests.unit.policy_tools.policy_suite_texts import POLICY, TEST, read

_EXPECT = "  - {eval_time: 1m, pod: web/web-1, rejected: [a]}\n"
_METRICS = "a metric that a policy names: power, temp"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("nodes: [a, b, c]", "node: [a, b, c]", ":21: tests[0].node: an unknown field; expected name,"),
        (
            "nodes: [a, b, c]",
            "nodes: [a, b, a]",
            ":21: tests[0].nodes[2]: 'a'; expected a name that no other node of the test has; tests[0].nodes[0] in",
        ),
        (
            "  pods: [{name: web-1, namespace: web}]",
            "  pods:\n  - {name: web-1, namespace: web}\n  - {name: web-1}\n  - {name: web-1, namespace: web}",
            "[2].name: 'web/web-1'; expected a name that no other pod of its namespace has; tests[0].pods[0].name in",
        ),
        ("tests:", "test:", ":19: test: an unknown field"),
        (
            "'temp{node=\"a\"}'",
            "'tmp{node=\"a\"}'",
            f":24: tests[0].input_series[0].series: 'tmp'; expected {_METRICS}",
        ),
        ("'temp{node=\"b\"}'", "'temp{node=\"d\"}'", "series: 'd'; expected a node of the test: a, b, c"),
        ("'temp{node=\"b\"}'", "temp", "no such label; expected a label that names the node: node,"),
        (
            "80+10x2 _x5",
            "80+10x2 gap",
            ":24:48: tests[0].input_series[0].values: 'gap' at character 9; expected a number",
        ),
        (
            "'temp{node=\"a\"}'",
            "'temp{node=a}'",
            ":24:20: tests[0].input_series[0].series: 'node=a' at character 6",
        ),
        ("web/web-1", "web/web-2", ".pod: 'web/web-2'; expected a pod of the test: web/web-1; did you mean"),
        ("[a]}", "[x]}", ":30: tests[0].expect[0].rejected: 'x'; expected a node of the test: a, b, c"),
        (
            "rejected: [a]",
            "suspended: [web/col]",
            'a policy of the suite: drain, web/cool; did you mean "web/cool"?',
        ),
        ("rejected: [a]", "ranks: {a: first}", "ranks.a: 'first'; expected a rank from 1, the best"),
        ("rejected: [a]", "labels: {a: {x: true}}", "labels.a: {'x': True}; expected an object of texts"),
        (
            ", rejected: [a]",
            "",
            "no expectation; expected at least one of rejected, ranks, labels, tainted, suspended, events",
        ),
        (
            "rejected: [a]",
            "tainted: {}",
            "tainted: no ResourceSlice with devices; expected policy_files or policies with the ResourceSlices",
        ),
        (
            "rejected: [a]",
            "tainted: {d/p/x: NoShedule}",
            'an effect of taints: NoExecute, NoSchedule; did you mean "NoSchedule"?',
        ),
        (", pod: web/web-1", "", "no pod; expected pod together with rejected and ranks"),
        (
            "eval_time: 1m",
            "eval_time: 1",
            "eval_time: 1; expected a duration such as 30s or 5m, at most 3650d",
        ),
        ("eval_time: 1m", "eval_time: 90d", "129600 evaluations; expected at most 20000 evaluations"),
        ("rejected: [a]", "events: [{reason: x}]", "neither; expected one of pod and policy"),
        (
            "kind: PlacementPolicy",
            "kind: PlacementPolicies",
            'ResourceSlice; did you mean "PlacementPolicy"?',
        ),
        ("policies:", "policy_files: [nothing.yaml]\npolicies:", "policy_files[0]: "),
        (
            "input_series:",
            "input_series: 5\n  other:",
            "input_series: 5; expected a list with at least one entry",
        ),
        ("metadata: {name: cool, namespace: web}", "metadata: 5", "metadata: `int`; expected `object`"),
        ("name: heat", "interval: 0s", "interval: '0s'; expected at least 1s"),
        (
            'node="a"}\', values',
            'node="a"}\', query: up, values',
            "query: 'up'; expected the query of a rule: none",
        ),
    ],
)
def test_problems(tmp_path: Path, old: str, new: str, problem: str) -> None:
    text = (POLICY + TEST + _EXPECT).replace(old, new, 1)
    with pytest.raises(BadInput) as raised:
        read(tmp_path, "", text, "")
    assert problem in "\n".join(map(str, raised.value.problems))


def test_pods_of_several_namespaces_may_have_the_same_name(tmp_path: Path) -> None:
    pods = "pods: [{name: web-1, namespace: web}, {name: web-1}, {name: web-1, namespace: db}]"
    suite = read(tmp_path, _EXPECT, test=TEST.replace("pods: [{name: web-1, namespace: web}]", pods))
    assert [*suite.tests[0].pods] == [("web", "web-1"), ("default", "web-1"), ("db", "web-1")]


@pytest.mark.parametrize(
    "repeated",
    [
        """temp{node="b", zone="x"}""",
        """temp{zone="x",node="b"}""",
        """{zone="x",__name__="temp",node="b",rack=""}""",
    ],
)
def test_two_series_with_the_same_labels_are_a_problem(tmp_path: Path, repeated: str) -> None:
    first = '  - {series: \'temp{node="b",zone="x"}\', values: 70x20}\n'
    second = f"  - {{series: '{repeated}', values: 90x20}}\n"
    with pytest.raises(BadInput) as raised:
        read(tmp_path, _EXPECT, test=TEST.replace("  expect:", f"{first}{second}  expect:"))
    [problem] = raised.value.problems
    assert problem.field.endswith("suite.yaml:30: tests[0].input_series[6].series")
    assert problem.found == """'temp{node="b",zone="x"}'"""
    expected = (
        "labels that no other series of the test has; tests[0].input_series[5].series in line 29 is the same"
    )
    assert problem.expected == expected


def test_results_of_different_queries_may_have_the_same_labels(tmp_path: Path) -> None:
    rule = '    - {metric: temp, above: 95, labels: {heat.nodewise.io/drain: "true"}}\n'
    policy = POLICY + "".join(rule.replace("metric: temp", f"query: q * {factor}") for factor in (1, 2))
    listed = [f"  - {{series: '{{node=\"b\"}}', query: q * {factor}, values: 70x20}}\n" for factor in (1, 2)]
    suite = read(tmp_path, _EXPECT, policy, TEST.replace("  expect:", f"{''.join(listed)}  expect:"))
    assert len(suite.tests[0].series) == 7


def test_a_second_test_of_the_same_name_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as raised:
        read(tmp_path, _EXPECT, test=TEST + _EXPECT + TEST.removeprefix("\ntests:\n"))
    assert [problem.expected for problem in raised.value.problems] == [
        "a name that no other test has; tests[0].name in line 20 is the same"
    ]


def test_all_problems_are_found_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as raised:
        read(tmp_path, "  - {eval_time: x, pod: y, rejected: [z]}\n")
    assert len(raised.value.problems) == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "0 documents; expected one with a suite"),
        ("[]", "an object with policy_files"),
        ("tests: [}", "suite.yaml, document 1, line 1, column 9: "),
        ("tests: []\n", ":1: tests: []; expected a list with at least one entry"),
        ("---\na: 1\n---\nb: 2", "2 documents"),
        ("{apiVersion: v1, kind: Namespace}\n---\nb: 2", "an object of kind 'Namespace'; expected a suite"),
    ],
)
def test_other_files(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(BadInput) as raised:
        read(tmp_path, "", text, "")
    assert problem in "\n".join(map(str, raised.value.problems))


@pytest.mark.parametrize(
    ("written", "values"), [("0x3", ("0",) * 4), ("80", ("80",)), ("'1e1 _'", ("10", None))]
)
def test_values_are_read_as_they_are_written(
    tmp_path: Path, written: str, values: tuple[str | None, ...]
) -> None:
    suite = read(tmp_path, _EXPECT, test=TEST.replace("80+10x2 _x5", written))
    assert suite.tests[0].series[0].values == values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("80", ("80",)),
        ("80+1x3 _ stale", ("80", "81", "82", "83", None, "stale")),
        ("1-0.5x2", ("1.0", "0.5", "0.0")),
        ("0.1+0.1x3", ("0.1", "0.2", "0.3", "0.4")),
        ("7x2", ("7", "7", "7")),
        ("_x3 -4", (None, None, None, "-4")),
        ("-2+-1x1", ()),
        ("1e3 .5 NaN -Inf", ("1000", "0.5", "NaN", "-Inf")),
        ("64x0", ("64",)),
    ],
)
def test_values(text: str, values: tuple[str | None, ...]) -> None:
    if values:
        assert policy_suite.parse_values(text) == values
    else:
        with pytest.raises(NotationError):
            policy_suite.parse_values(text)


@pytest.mark.parametrize(
    ("text", "position", "actual"),
    [
        ("", 0, "no value"),
        ("80 8..1", 3, "'8..1'"),
        ("80+1x10 gap", 8, "'gap'"),
        ("stalex3", 0, "'stalex3'"),
        ("80+1", 0, "'80+1'"),
        ("_+1x3", 0, "'_+1x3'"),
        ("1x9999999", 0, "more values"),
        ("{{schema:1}}", 0, "'{{schema:1}}'"),
    ],
)
def test_unreadable_values_have_a_position(text: str, position: int, actual: str) -> None:
    with pytest.raises(NotationError) as raised:
        policy_suite.parse_values(text)
    assert (raised.value.position, str(raised.value)) == (position, actual)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("temp", {"__name__": "temp"}),
        ("temp{}", {"__name__": "temp"}),
        ("""temp{node="a", sensor='x"y',}""", {"__name__": "temp", "node": "a", "sensor": 'x"y'}),
        (r'{node="a\"b"}', {"node": 'a"b'}),
        ("rule:temp { instance = '10.0.0.1:9100' } ", {"__name__": "rule:temp", "instance": "10.0.0.1:9100"}),
    ],
)
def test_series(text: str, labels: dict[str, str]) -> None:
    assert policy_suite.parse_series(text) == labels


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("temp{node=a}", 5),
        ('temp{node="a"', 4),
        ('t{a="1",a="2"}', 8),
        ('t{a="1" b="2"}', 8),
        ("1t", 0),
    ],
)
def test_unreadable_series_have_a_position(text: str, position: int) -> None:
    with pytest.raises(NotationError) as raised:
        policy_suite.parse_series(text)
    assert raised.value.position == position
