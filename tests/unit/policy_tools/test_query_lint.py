"""The checks of queries report what is certain, and nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from click.testing import CliRunner, Result

from nodewise.cli import main
from nodewise.metrics.prometheus import client
from nodewise.policy_tools import policy_lint, query_lint
from nodewise.policy_tools.query_lint import PrometheusFacts
from tests.unit.policy_tools.query_cases import CASES, NO_NODE, UNBALANCED, QueryCase


def problems(query: str, **fields: Any) -> list[str]:
    return [
        str(problem) for problem in query_lint.check_queries({"avoid": [{"query": query, **fields}]}).problems
    ]


def notes(query: str) -> list[str]:
    return [str(note) for note in query_lint.check_queries({"avoid": [{"query": query}]}).notes]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.query} {case.rule}"[:100])
def test_the_findings_about_a_query_are_those_of_the_table(case: QueryCase) -> None:
    findings = query_lint.check_queries({"avoid": [{"query": case.query, **case.rule}]})
    noted, reported = [note.found for note in findings.notes], [each.found for each in findings.problems]
    if case.finding == NO_NODE:
        assert [text[-len(NO_NODE) :] for text in noted] == [NO_NODE]
        assert reported == []
    elif case.finding and case.finding != UNBALANCED:
        [text] = reported
        assert text.startswith(case.finding)
    else:
        assert (noted, len(reported)) == ([], int(case.finding == UNBALANCED))


UNBALANCED_TEXTS = {
    "rate(fan_turns_total[5m)": '")" at character 24; expected "]"',
    "max by (node (fan_speed)": '"(" without ")"; expected balanced brackets',
    "fan_speed{": '"{" without "}"; expected balanced brackets',
    "fan_speed)": '")" at character 10; expected no closing bracket',
    'fan_speed{name="a}': '" at character 16 without its end; expected a closing quote',
}


@pytest.mark.parametrize(("query", "problem"), UNBALANCED_TEXTS.items(), ids=UNBALANCED_TEXTS)
def test_unbalanced_bracket_is_a_problem(query: str, problem: str) -> None:
    assert problems(query, above=1) == [f"spec.avoid[0].query: {problem}"]


@pytest.mark.parametrize(
    "query", ['a{b="("}', "a{b='\\'['}", "a{b=`\\`}", "a # (\n", '{"room.fan", b=~"]+"}']
)
def test_brackets_in_strings_and_comments_do_not_count(query: str) -> None:
    assert problems(query, above=1) == []


def test_messages_name_the_bounds_and_the_part_without_a_node() -> None:
    [never] = problems("(x < 10) * 2 or y == 3", above=20)
    assert never.startswith(
        "spec.avoid[0].query: only results < 20 or == 3, none of which is above 20; expected"
    )
    [nothing] = problems("count(x) == 0", below=1)
    assert nothing.startswith("spec.avoid[0].query: a query without results: no value is >= 1 and == 0; ")
    [aggregation] = notes("avg by (rack, zone) (x)")
    assert aggregation.startswith(
        "spec.avoid[0].query: avg by (rack, zone) without a label that names a node; expected avg by (node) (…) or"
    )
    [inner] = notes("clamp_max(round(sum(x), 5), 100)")
    assert inner.startswith("spec.avoid[0].query: sum without a label that names a node")
    [matching] = notes("x > on (job) y")
    assert "on (job) without a label that names a node; expected an expression whose results" in matching


def test_a_label_of_the_options_names_a_node() -> None:
    spec = {"avoid": [{"query": "sum by (machine) (x)", "above": 1}]}
    assert len(query_lint.check_queries(spec).notes) == 1
    assert query_lint.check_queries(spec, PrometheusFacts(["machine"])).notes == []


@pytest.mark.parametrize(
    "query",
    [
        "max(" * 900 + "x" + ")" * 900,
        "(" * 2000 + "x" + ")" * 2000,
        "-" * 4095 + "x",
        "x" + "+x" * 2000,
        "x" + "^x" * 2000,
        "x" + "<1" * 2000,
        "x" + "or x" * 800,
        "avg(" * 15 + "x<1" + " or x<1" * 500 + ")" * 15,
        "x<2" + "*1e99" * 600,
        "x<2" + "/1e99" * 600,
        "x < 0x" + "f" * 4000,
        "[" * 4000,
    ],
    ids=lambda query: query[:12],
)
def test_a_long_query_is_checked_in_bounded_time_and_memory(query: str) -> None:
    """Nothing is reported about it, except for brackets."""
    assert len(problems(query, above=300)) <= 1
    assert len(notes(query)) <= 1


@pytest.mark.parametrize("rule", [{"operator": []}, {"between": 3}, {"between": [None]}, {"aggregate": {}}])
def test_fields_of_another_type_are_no_problem_of_the_query(rule: Any) -> None:
    assert problems("x < 5", **rule) == []


def test_queries_of_all_sections_and_kinds_are_checked() -> None:
    rules = {"all": [{"query": "a < 1", "above": 1}]}
    listed = query_lint.check_queries({"avoid": [rules], "nodeLabels": [rules]}).problems
    expected = ["spec.avoid[0].all[0].query", "spec.nodeLabels[0].all[0].query"]
    assert [problem.field for problem in listed] == expected
    rule = {"metricname": "m", "operator": "GreaterThan", "target": 1, "query": "a < 1"}
    policy = {
        "apiVersion": "telemetry.intel.com/v1alpha1",
        "metadata": {"name": "fans", "namespace": "web"},
        "spec": {"strategies": {"dontschedule": {"rules": [rule]}}},
    }
    [problem] = policy_lint.lint(msgspec.json.encode(policy), "TASPolicy")
    assert problem.field == "spec.strategies.dontschedule.rules[0].query"


def test_notes_about_queries_are_shown_beside_problems() -> None:
    rules = [{"query": "sum(a)", "above": 1}, {"query": "b == 0", "above": 0}]
    policy = {
        "apiVersion": "nodewise.io/v1alpha1",
        "metadata": {"name": "fans"},
        "spec": {"namespaceSelector": {}, "podSelector": {}, "avoid": rules},
    }
    text = msgspec.json.encode(policy)
    assert [problem.field for problem in policy_lint.lint(text, "ClusterPlacementPolicy")] == [
        "spec.avoid[1].query"
    ]
    assert [note.field for note in policy_lint.notes(text, "ClusterPlacementPolicy", 5.0)] == [
        "spec.avoid[0].query"
    ]


Lint = Callable[..., Result]


@pytest.fixture
def lint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lint:
    """Runs `policy lint` for a ClusterPlacementPolicy with these servers of Prometheus."""

    def run(respond: Callable[[httpx2.Request], httpx2.Response], spec: str, *hosts: str) -> Result:
        monkeypatch.setattr(client, "HttpTransport", lambda **_: httpx2.MockTransport(respond))
        file = tmp_path / "policy.yaml"
        file.write_text(
            "{apiVersion: nodewise.io/v1alpha1, kind: ClusterPlacementPolicy, metadata: {name: a}, "
            f"spec: {{{spec}}}}}"
        )
        urls = [f"--prometheus-url=http://{host}" for host in hosts]
        return CliRunner().invoke(main.command, ["policy", "lint", str(file), *urls])

    return run


def vector(*result: object) -> httpx2.Response:
    return httpx2.Response(
        200, json={"status": "success", "data": {"resultType": "vector", "result": result}}
    )


SELECTORS = "podSelector: {}, namespaceSelector: {}"


def test_a_gateway_without_names_of_metrics_does_not_prevent_lint(lint: Lint) -> None:
    def respond(request: httpx2.Request) -> httpx2.Response:
        if request.url.path != "/api/v1/query":
            return httpx2.Response(403, text="forbidden")
        return vector()

    rules = "avoid: [{query: up, above: 1}, {metric: other, above: 1}]"
    done = lint(respond, f"{SELECTORS}, {rules}", "prometheus.example")
    assert done.exit_code == 0, done.stderr
    assert "Warning: the names of metrics are not known" in done.stderr


@pytest.mark.parametrize("is_reachable", [False, True])
def test_policy_without_queries_is_not_checked_without_prometheus(lint: Lint, is_reachable: bool) -> None:
    def respond(request: httpx2.Request) -> httpx2.Response:
        if is_reachable:
            return httpx2.Response(503, text="overloaded")
        raise httpx2.ConnectError("refused", request=request)

    done = lint(respond, f"{SELECTORS}, avoid: [{{metric: other, above: 1}}]", "prometheus.example")
    assert (done.exit_code, done.stdout) == (1, ""), done.stdout
    assert "names of metrics of http://prometheus.example" in str(done.exception)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("max by (node) (xid)", ["spec.deviceTaints[0].query"]),
        ("max by (node, UUID) (xid)", []),
        ("xid > 0", []),
    ],
)
def test_query_of_a_device_rule_keeps_the_label_of_the_device(query: str, expected: list[str]) -> None:
    spec = {"deviceTaints": [{"query": query, "above": 0, "deviceLabel": "UUID"}]}
    assert [note.field for note in query_lint.check_queries(spec).notes] == expected


def test_results_of_a_query_are_requested_once_for_all_device_labels(lint: Lint) -> None:
    queries: list[str] = []

    def respond(request: httpx2.Request) -> httpx2.Response:
        if request.url.path != "/api/v1/query":
            return httpx2.Response(403, text="forbidden")
        queries.append(str(request.url.params.get("query") or request.read()))
        return vector({"metric": {"node": "a", "UUID": "0"}, "value": [1_700_000_000, "1"]})

    rule = "metric: xid, above: 0, driver: gpu.example.com, deviceLabel:"
    rules = ", ".join(f"{{{rule} {label}}}" for label in ("UUID", "gpu", "UUID"))
    done = lint(respond, f"deviceTaints: [{rules}]", "prometheus.example")
    assert [text.count("topk") for text in queries].count(1) == 1, queries
    assert done.stdout.count("deviceLabel: found") == 1, done.stdout


@pytest.mark.parametrize("is_known", [True, False])
def test_label_that_a_second_prometheus_may_have_is_not_noted(lint: Lint, is_known: bool) -> None:
    """The second one does not answer the queries for labels."""

    def respond(request: httpx2.Request) -> httpx2.Response:
        if request.url.path != "/api/v1/query":
            return httpx2.Response(403, text="forbidden")
        if request.url.host == "second" and not is_known:
            return httpx2.Response(
                422, json={"status": "error", "errorType": "execution", "error": "too many"}
            )
        return vector({"metric": {"node": "a", "gpu": "0"}, "value": [1_700_000_000, "1"]})

    rule = "{metric: xid, above: 0, driver: gpu.example.com, deviceLabel: UUID}"
    done = lint(respond, f"deviceTaints: [{rule}]", "first", "second")
    assert done.exit_code == 0, done.stderr
    assert ("deviceLabel: found" in done.stdout) == is_known
