"""What `policy lint` says about queries holds on a real Prometheus: valid syntax, values, labels, and parse errors."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from nodewise.base import quantity
from nodewise.metrics.prometheus.options import NODE_LABELS
from nodewise.policies.rule_operators import OPERATORS, RANGE_OPERATORS
from tests.cluster import child_processes, debian_packages, prometheus_process, read_only_commands
from tests.cluster.prometheus_process import PrometheusProcess
from tests.unit.policy_tools.query_cases import CASES, METRICS, NEVER, NO_NODE, NO_RESULT, QueryCase

VALUES = (-7.5, -1, 0, 0.3, 1, 3, 5, 7, 9.5, 10, 20, 100, 250, 9000)


@pytest.fixture(scope="module")
def prometheus(
    prometheus_programs: debian_packages.PrometheusPrograms, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrometheusProcess]:
    """Every metric has all of these values; those of a node differ by metric."""
    series = {
        f'{metric}{{node="n{node}",instance="n{node}:9100",job="node",cpu="{cpu}",le="{cpu}",device="sda"}}': (
            str(VALUES[(node + cpu * position) % len(VALUES)]),
            1.0,
        )
        for position, metric in enumerate(METRICS)
        for node in range(len(VALUES))
        for cpu in (1, 2)
    }
    series |= {f'{metric}{{node="single",job="one"}}': ("1", 1.0) for metric in METRICS}
    folder: Path = tmp_path_factory.mktemp("queries")
    with prometheus_process.prometheus_with_series(prometheus_programs, folder, series) as server:
        yield server


def meets_rule(case: QueryCase, value: float) -> bool:
    rules = [(name, case.rule[name]) for name in OPERATORS if name in case.rule]
    for name, entry in RANGE_OPERATORS.items():
        rules += zip(entry.parts, case.rule.get(name, ()), strict=False)
    return all(
        OPERATORS[name].compare(value, quantity.parse(str(target)) / quantity.NANO) for name, target in rules
    )


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.is_promql is not None], ids=lambda case: case.query[:80]
)
def test_findings_about_a_query_hold(prometheus: PrometheusProcess, case: QueryCase) -> None:
    answer = prometheus.client.get(f"{prometheus.url}/api/v1/query", params={"query": case.query})
    assert answer.status_code == (200 if case.is_promql else 400), answer.text
    data = answer.json().get("data", {})
    if data.get("resultType") != "vector":
        return
    values = [float(item["value"][1]) for item in data["result"]]
    labels = {name for item in data["result"] for name in item["metric"]}
    if case.finding == NO_RESULT:
        assert values == []
    elif case.finding == NEVER:
        assert not any(meets_rule(case, value) for value in values)
    elif case.finding == NO_NODE:
        assert labels.isdisjoint(NODE_LABELS)
    elif values:
        assert not labels.isdisjoint(NODE_LABELS)


QUERIES = ("rate(x[5m)", "x > ", "sum(rate(x))", "x >< 5", "up == 0", 'x{node="n1"} # (')
POLICY = """\
apiVersion: nodewise.io/v1alpha1
kind: ClusterPlacementPolicy
metadata: {name: queries}
spec:
  namespaceSelector: {}
  podSelector: {}
  avoid:
"""


def test_errors_of_the_parser_of_prometheus_have_file_and_line(
    prometheus: PrometheusProcess, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY + "".join(f"  - {{query: '{query}', above: 0}}\n" for query in QUERIES))
    arguments = ("policy", "lint", str(file), f"--prometheus-url={prometheus.url}")
    done = read_only_commands.run(*arguments)
    assert done.returncode == 3, done.stderr
    texts = [line.removeprefix(f"{file}:") for line in done.stdout.splitlines()]
    expected = (
        "8: queries: spec.avoid[0].query: found 1:10: parse error: ",
        "9: queries: spec.avoid[1].query: found 1:5: parse error: ",
        "10: queries: spec.avoid[2].query: found 1:10: parse error: expected type range vector",
        "11: queries: spec.avoid[3].query: found 1:4: parse error: ",
        "12: queries: spec.avoid[4].query: found only results == 0",
        "1 policy, 1 with problems",
    )
    for text, beginning in zip(texts, expected, strict=True):
        assert text.startswith(beginning)
    assert all("expected a query that Prometheus can parse" in text for text in texts[:4])
    document = json.loads(read_only_commands.run(*arguments, "-o", "json").stdout)
    assert [problem["line"] for problem in document["policies"][0]["problems"]] == [8, 9, 10, 11, 12]


def test_a_note_names_metrics_that_prometheus_does_not_have(
    prometheus: PrometheusProcess, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    known = METRICS[0]
    rules = [
        {"metric": known, "above": 0},
        {"all": [{"metric": f"{known}s", "above": 0}]},
        {"query": known, "above": 0},
    ]
    labels = {"podSelector": {"matchLabels": {"metric": "web"}}}
    policy = yaml.safe_load(POLICY)
    policy["spec"] |= {"avoid": rules, **labels}
    file.write_text(yaml.safe_dump(policy))
    done = read_only_commands.run("policy", "lint", str(file), f"--prometheus-url={prometheus.url}")
    assert done.returncode == 0, done.stderr
    [note] = [line for line in done.stdout.splitlines() if "metric" in line]
    expected = f"spec.avoid[1].all[0].metric: found '{known}s', expected a metric that Prometheus has"
    assert expected in note
    assert f'did you mean "{known}"' in note


@pytest.mark.parametrize(
    ("rule", "label", "expected"),
    [
        ({"metric": METRICS[0]}, "devcie", ["'devcie'"]),
        ({"metric": METRICS[0]}, "device", []),
        ({"query": f"max by (node, cpu) ({METRICS[0]}) # )"}, "device", ["'device'"]),
        ({"query": f"max by (node, device) ({METRICS[0]})"}, "device", []),
        ({"metric": "absent"}, "device", []),
    ],
)
def test_a_note_names_labels_of_devices_that_no_series_has(
    prometheus: PrometheusProcess, tmp_path: Path, rule: dict[str, str], label: str, expected: list[str]
) -> None:
    file = tmp_path / "policy.yaml"
    policy = yaml.safe_load(POLICY)
    own = {"above": 0, "driver": "gpu.example.com", "deviceLabel": label}
    policy["spec"] = {"deviceTaints": [rule | own]}
    file.write_text(yaml.safe_dump(policy))
    done = read_only_commands.run("policy", "lint", str(file), f"--prometheus-url={prometheus.url}")
    assert done.returncode == 0, done.stderr
    notes = [line for line in done.stdout.splitlines() if "deviceLabel: found" in line]
    assert [note.partition("found ")[2].partition(",")[0] for note in notes] == expected
    assert all("a label of the results in Prometheus, which are " in note for note in notes)
    assert all('did you mean "device"?' in note for note in notes if "devcie" in note)


def test_a_prometheus_that_does_not_respond_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY + "  - {query: x, above: 0}\n")
    url = f"http://127.0.0.1:{child_processes.free_port()}"
    done = read_only_commands.run("policy", "lint", str(file), f"--prometheus-url={url}")
    assert (done.returncode, done.stdout) == (1, "")
    assert "start Prometheus, or correct --prometheus-url" in done.stderr
