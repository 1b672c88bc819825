"""Policies with recorded metrics have the verdicts of the original ones, on a Prometheus that evaluates the rules."""

import json
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from nodewise.base import clock
from nodewise.base.errors import NodewiseError
from tests.cluster import debian_packages, read_only_commands
from tests.cluster.changing_exporter import ChangingExporter
from tests.cluster.namespace_sandboxes import wait
from tests.cluster.prometheus_process import PrometheusProcess
from tests.unit.metrics.prometheus_suite import fetch, values

MAX_AGE = "9s"
"""With evaluations every second."""
RULES: Mapping[str, dict[str, Any]] = {
    "max": {"metric": "temp", "aggregate": "max"},
    "min": {"metric": "temp", "aggregate": "min"},
    "sum": {"metric": "ends", "aggregate": "sum"},
    "plain": {"metric": "one"},
    "other values of one node": {"metric": "differ"},
    "selector": {"query": 'temp{cpu="0"}'},
    "no number": {"metric": "unknown"},
    "ended": {"metric": "ends", "aggregate": "max"},
    "expression": {"query": "temp / 2 # half", "aggregate": "max"},
    "expression of one series": {"query": "max by (node, instance) (ends) * 2"},
    "division by zero": {"query": "one / (one - 1)", "aggregate": "min"},
    "healthy": {"query": "errors > 0", "aggregate": "max", "emptyMeans": "Healthy"},
    "healthy selector": {"query": "failures", "emptyMeans": "Healthy"},
    "only by metric": {"metric": "never_there"},
}
ALIVE = """\
temp{node="a",cpu="0"} 50
temp{node="a",cpu="1"} 70
temp{instance="10.0.0.2:9100",cpu="0"} 81.5
temp{instance="10.0.0.2:9400",cpu="1"} 40
temp{instance="c.example:9100",cpu="0"} 30
temp{instance="c.example:9100",cpu="1"} +Inf
temp{instance="c.example:9100",cpu="2"} NaN
one{node="a"} 1
one{instance="[fd00::2]:9100"} 2
one{node="c",zone="x"} 5
one{node="c",zone="y"} 5
differ{node="a",zone="x"} 80
differ{node="a",zone="y"} 90
differ{node="b"} 3
unknown{node="a"} NaN
unknown{node="b"} +Inf
unknown{node="c"} 7
ends{node="a",pod="old"} 97
ends{node="a",pod="other"} 3
ends{node="b",pod="old"} 10
errors{node="a"} 0
errors{node="b"} 4
failures{node="b"} 1
"""
CHANGED = (
    "".join(line + "\n" for line in ALIVE.splitlines() if "old" not in line) + 'ends{node="a",pod="new"} 5\n'
)


NODES = [
    {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"addresses": [{"type": "InternalIP", "address": address}]},
    }
    for name, address in {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}.items()
]


class RecordedRule(NamedTuple):
    original: dict[str, Any]
    changed: dict[str, Any]


class Recording(NamedTuple):
    exporter: ChangingExporter
    prometheus: PrometheusProcess
    original: Path
    changed: Path

    @property
    def rules(self) -> dict[str, RecordedRule]:
        """By name, as in `RULES`."""
        files = (yaml.safe_load(file.read_text()) for file in (self.original, self.changed))
        before, after = (file["spec"]["avoid"] for file in files)
        return dict(zip(RULES, map(RecordedRule, before, after), strict=True))


@pytest.fixture(scope="module")
def recording(
    prometheus_programs: debian_packages.PrometheusPrograms, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Recording]:
    folder = tmp_path_factory.mktemp("recording")
    original, changed, rules = (folder / name for name in ("policy.yaml", "recorded.yaml", "rules.yaml"))
    original.write_text(yaml.safe_dump(policy(list(RULES.values()))))
    for file, output in ((rules, "rules"), (changed, "policies")):
        file.write_text(record(original, output))
    check_rules(prometheus_programs, rules)
    exporter = ChangingExporter(ALIVE)
    config = {**exporter.scrape_configuration(), "rule_files": [rules.name]}
    server = PrometheusProcess(prometheus_programs, folder, config)
    try:
        server.start()
        yield Recording(exporter, server, original, changed)
    finally:
        server.stop()
        exporter.close()


def policy(rules: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": "nodewise.io/v1alpha1",
        "kind": "ClusterPlacementPolicy",
        "metadata": {"name": "all"},
        "spec": {
            "namespaceSelector": {},
            "podSelector": {},
            "avoid": [{"above": 75, "maxAge": MAX_AGE, **rule} for rule in rules],
        },
    }


def record(file: Path, output: str, *options: str, code: int = 0) -> str:
    """The output of the command for rules that are evaluated every second."""
    done = read_only_commands.run(
        "policy", "recording-rules", str(file), f"-o{output}", "--interval=1s", *options
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def check_rules(programs: debian_packages.PrometheusPrograms, rules: Path) -> None:
    promtool = programs.prometheus.with_name("promtool")
    checked = subprocess.run([promtool, "check", "rules", rules], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def verdict_inputs(url: str, rule: Mapping[str, Any]) -> Any:
    """What a rule's verdicts follow from: values, nodes without a valid one, the range of values that differ."""
    more: dict[str, Any] = {"aggregate": rule.get("aggregate", ""), "query": rule.get("query", "")}
    more["empty_is_healthy"] = "emptyMeans" in rule
    try:
        series = fetch(
            url, rule.get("metric", "query"), max_age_s=clock.parse_duration(rule["maxAge"]), **more
        )
    except NodewiseError as error:
        return type(error).__name__
    differing = {node: (entry.lowest, entry.highest) for node, entry in series.differing.items()}
    return values(series), sorted(series.invalid), differing


def both(url: str, rules: Mapping[str, RecordedRule]) -> dict[str, tuple[Any, Any]]:
    return {
        name: (verdict_inputs(url, rule.original), verdict_inputs(url, rule.changed))
        for name, rule in rules.items()
    }


def wait_equal(recording: Recording, what: str) -> dict[str, Any]:
    """What all original rules see, as soon as the recorded ones see the same."""
    url, rules = recording.prometheus.url, recording.rules

    def equal() -> dict[str, Any] | None:
        seen = both(url, rules)
        is_equal = all(before == after for before, after in seen.values())
        return {name: before for name, (before, _) in seen.items()} if is_equal else None

    def differences() -> dict[str, tuple[Any, Any]]:
        return {name: pair for name, pair in both(url, rules).items() if pair[0] != pair[1]}

    return wait(what, equal, 60, differences)


def feasible_nodes(recording: Recording, file: Path) -> list[str]:
    """The nodes that `decide` leaves for a pod with a policy."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "c"}]},
    }
    objects = file.with_name("objects.yaml")
    objects.write_text(yaml.safe_dump_all([*NODES, pod]))
    options = ("--metrics=prometheus", f"--prometheus-url={recording.prometheus.url}", "-o", "json")
    done = read_only_commands.run("decide", str(objects), str(file), *options)
    nodes: list[str] = json.loads(done.stdout)["decisions"][0]["feasible"]
    return nodes


def test_recorded_metrics_give_the_same_verdicts(recording: Recording) -> None:
    exporter, server, rules = recording.exporter, recording.prometheus, recording.rules
    wait("the exporter is scraped", lambda: server.ask("temp") or None)
    seen = wait_equal(recording, "all rules see the same")
    assert seen["max"] == ({"a": 70.0, "b": 81.5, "c": 30.0}, [], {})
    assert seen["selector"][0] == {"a": 50.0, "b": 81.5, "c": 30.0}
    assert seen["plain"][0] == {"a": 1.0, "b": 2.0, "c": 5.0}
    assert seen["other values of one node"] == ({"b": 3.0}, ["a"], {"a": (80 * 10**9, 90 * 10**9)})
    assert seen["no number"] == ({"c": 7.0}, ["a", "b"], {})
    assert seen["healthy"][0] == {"b": 4.0}
    assert seen["healthy selector"][0] == {"b": 1.0}
    assert seen["only by metric"] == "NoValues"
    assert [rule for name, rule in RULES.items() if rules[name].original == rules[name].changed] == []
    # series that have ended do not count for a node that has others
    exporter.text = CHANGED
    wait("the series have ended", lambda: len(server.ask("ends")) == 2 or None)
    seen = wait_equal(recording, "all rules see that series have ended")
    assert seen["ended"][0]["a"] == 5.0
    assert seen["sum"][0]["a"] == 8.0
    # a healthy exporter has no failures
    exporter.text = "".join(f"{line}\n" for line in CHANGED.splitlines() if line[:4] not in ("erro", "fail"))
    url, healthy = server.url, rules["healthy selector"]
    wait("no node has a failure", lambda: verdict_inputs(url, healthy.original) == ({}, [], {}) or None)
    seen = wait_equal(recording, "no recorded rule sees errors")
    assert seen["healthy"] == seen["healthy selector"] == ({}, [], {})
    # values are missing as early as without recording
    exporter.status = 500
    for name in ("max", "plain", "selector"):
        original, changed = rules[name]
        wait(f"{name} is missing", lambda rule=original: verdict_inputs(url, rule) == "NoValues" or None)
        assert verdict_inputs(url, changed) == "NoValues"
    wait_equal(recording, "no rule has values, except healthy ones")


def test_decide_rejects_the_same_nodes(recording: Recording, tmp_path: Path) -> None:
    recording.exporter.text, recording.exporter.status = ALIVE, 200
    wait("the exporter is scraped", lambda: recording.prometheus.ask("temp") or None)
    wait_equal(recording, "all rules see the same")
    for names, expected in ((["max", "selector"], ["a", "c"]), (["other values of one node"], ["b", "c"])):
        for form in RecordedRule._fields:
            file = tmp_path / f"{form}.yaml"
            file.write_text(yaml.safe_dump(policy([getattr(recording.rules[name], form) for name in names])))
            assert sorted(feasible_nodes(recording, file)) == expected, (names, form)


def test_healthy_nodes_are_not_assumed_while_no_rule_is_evaluated(
    recording: Recording, tmp_path: Path
) -> None:
    other = {"query": "other_errors > 0", "emptyMeans": "Healthy"}
    file = tmp_path / "policy.yaml"
    file.write_text(yaml.safe_dump(policy([other])))
    [rule] = yaml.safe_load(record(file, "policies"))["spec"]["avoid"]
    url = recording.prometheus.url
    assert verdict_inputs(url, {**other, "maxAge": MAX_AGE}) == ({}, [], {})
    assert verdict_inputs(url, rule) == "NoValues"


def test_rules_that_prometheus_cannot_evaluate_are_not_recorded(recording: Recording, tmp_path: Path) -> None:
    rules = [
        {"metric": "one"},
        {"metric": "misspelt"},
        {"query": "rate(temp) > 0"},
        {"metric": "temp", "aggregate": "avg"},
        {"query": "temp[5m]"},
    ]
    file = tmp_path / "policy.yaml"
    file.write_text(yaml.safe_dump(policy(rules)))
    wait("the exporter is scraped", lambda: recording.prometheus.ask("temp") or None)
    options = (f"--prometheus-url={recording.prometheus.url}",)
    done = read_only_commands.run("policy", "recording-rules", str(file), "--interval=1s", *options)
    assert done.returncode == 3
    assert [group["name"] for group in yaml.safe_load(done.stdout)["groups"]] == ["node:one:nodewise_last"]
    messages = done.stderr.splitlines()
    assert len(messages) == 4
    assert "spec.avoid[1]: 'misspelt': Prometheus has no series of it" in messages[0]
    assert 'expected type range vector in call to function "rate"' in messages[1]
    assert "a mean needs all series" in messages[2]
    assert "expected type instant vector" in messages[3]
    changed = yaml.safe_load(record(file, "policies", *options, code=3))["spec"]["avoid"]
    assert [rule.get("metric") for rule in changed] == [
        "node:one:nodewise_last",
        "misspelt",
        None,
        "temp",
        None,
    ]


def test_the_maximum_age_follows_from_the_samples_of_prometheus(
    prometheus_programs: debian_packages.PrometheusPrograms, tmp_path: Path
) -> None:
    lines = [f'slow{{node="a"}} 1 {time.time() - 120 * number:.3f}' for number in range(20, -1, -1)]
    server = PrometheusProcess(prometheus_programs, tmp_path / "data", {})
    server.hold_samples(lines)
    file = tmp_path / "policy.yaml"
    document = policy([{"metric": "slow"}])
    del document["spec"]["avoid"][0]["maxAge"]
    file.write_text(yaml.safe_dump(document))
    try:
        server.start()
        known = yaml.safe_load(record(file, "policies", f"--prometheus-url={server.url}"))
        ages = [
            policy["spec"]["avoid"][0]["maxAge"]
            for policy in (known, yaml.safe_load(record(file, "policies")))
        ]
    finally:
        server.stop()
    # 2.5 distances of 120 s and of --scrape-interval, less two intervals
    assert ages == ["4m58s", "1m13s"]


GPUS = """\
DCGM_TEMP{node="a",UUID="GPU-0",gpu="0"} 95
DCGM_TEMP{node="a",UUID="GPU-1",gpu="1"} 40
DCGM_TEMP{node="b",UUID="GPU-2",gpu="0"} 91.5
DCGM_TEMP{UUID="GPU-9",gpu="0"} 7
errors{node="a",UUID="GPU-1",gpu="1"} 4
errors{node="a",UUID="GPU-0",gpu="0"} 0
"""
DEVICE_RULES = (
    {"metric": "DCGM_TEMP", "aggregate": "max", "deviceLabel": "UUID"},
    {"metric": "DCGM_TEMP", "deviceLabel": "gpu"},
    {"query": "errors > 0", "emptyMeans": "Healthy", "deviceLabel": "UUID"},
)


def test_recorded_metrics_of_devices_give_the_same_values(
    prometheus_programs: debian_packages.PrometheusPrograms, tmp_path: Path
) -> None:
    policies, rules = tmp_path / "policy.yaml", tmp_path / "rules.yaml"
    document = policy([])
    common = {"above": 90, "maxAge": MAX_AGE, "driver": "gpu.example.com"}
    document["spec"] = {"deviceTaints": [common | rule for rule in DEVICE_RULES]}
    policies.write_text(yaml.safe_dump(document))
    rules.write_text(record(policies, "rules"))
    check_rules(prometheus_programs, rules)
    changed = yaml.safe_load(record(policies, "policies"))["spec"]["deviceTaints"]
    assert [rule.get("metric") for rule in changed[:2]] == [
        "device:DCGM_TEMP:nodewise_max:UUID",
        "device:DCGM_TEMP:nodewise_last:gpu",
    ]
    assert [rule["deviceLabel"] for rule in changed] == ["UUID", "gpu", "UUID"]
    exporter = ChangingExporter(GPUS)
    server = PrometheusProcess(
        prometheus_programs, tmp_path, {**exporter.scrape_configuration(), "rule_files": [rules.name]}
    )
    try:
        server.start()

        def device_values(rule: Mapping[str, Any]) -> Any:
            more: dict[str, Any] = {name: rule.get(name, "") for name in ("aggregate", "query")}
            more |= {"empty_is_healthy": "emptyMeans" in rule, "device_label": rule["deviceLabel"]}
            try:
                series = fetch(server.url, rule.get("metric", "query"), max_age_s=9.0, **more)
            except NodewiseError as error:
                return type(error).__name__
            return values(series), sorted(series.invalid)

        def both_sides() -> list[tuple[Any, Any]]:
            pairs = zip(document["spec"]["deviceTaints"], changed, strict=True)
            return [(device_values(before), device_values(after)) for before, after in pairs]

        wait("scraped", lambda: server.ask("DCGM_TEMP") or None)
        wait(
            "all rules see the same", lambda: not any(a != b for a, b in both_sides()) or None, 60, both_sides
        )
        [(by_uuid, _), _, (errors, _)] = both_sides()
        assert by_uuid[0] == {"a/GPU-0": 95.0, "a/GPU-1": 40.0, "b/GPU-2": 91.5, "127.0.0.1/GPU-9": 7.0}
        assert errors[0] == {"a/GPU-1": 4.0}
    finally:
        server.stop()
        exporter.close()
