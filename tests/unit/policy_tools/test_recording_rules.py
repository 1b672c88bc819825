"""Recording rules: names, expressions, and policies with recorded metrics."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from nodewise.base import clock
from nodewise.cli import main
from nodewise.metrics.prometheus.node_matching import series_labels
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policy_tools import policy_lint, policy_writer, recording_rules
from nodewise.policy_tools.recording_rules import PolicyRecorder, RecordedSource, RecordingSettings

SETTINGS = RecordingSettings(series_labels())
NAMESPACED = PolicyKey("PlacementPolicy", "web", "cool")
CLUSTER = PolicyKey("ClusterPlacementPolicy", "", "cool")
TAS = PolicyKey("TASPolicy", "web", "cool")


def change(
    spec: Mapping[str, Any],
    key: PolicyKey = CLUSTER,
    settings: RecordingSettings = SETTINGS,
    **more: Any,
) -> tuple[Any, PolicyRecorder]:
    recorder = PolicyRecorder(settings, **more)
    rules = [*spec.get("avoid", []), *spec.get("prefer", []), *spec.get("nodeLabels", [])]
    rules += [rule for strategy in spec.get("strategies", {}).values() for rule in strategy["rules"]]
    parts = [part for rule in rules for part in rule.get("all", [rule])]
    usable = [source for part in parts if (source := recording_rules.source_of_rule(part))]
    return recorder.change(key, spec, usable), recorder


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (RecordedSource("temp", aggregate="max"), "node:temp:nodewise_max"),
        (RecordedSource("temp"), "node:temp:nodewise_last"),
        (RecordedSource("instance:temp:rate5m"), r"node:instance_temp_rate5m:nodewise_last_[0-9a-f]{16}"),
        (RecordedSource("temp.cpu-0", aggregate="sum"), r"node:temp_cpu_0:nodewise_sum_[0-9a-f]{16}"),
        (RecordedSource("0temp"), r"node:_0temp:nodewise_last_[0-9a-f]{16}"),
        (RecordedSource("", "secret > 0", "max"), r"node:query:nodewise_max_[0-9a-f]{16}"),
        (RecordedSource("x" * 253, aggregate="max"), r"node:x{80}:nodewise_max_[0-9a-f]{16}"),
    ],
)
def test_names_are_valid_and_do_not_reveal_queries(source: RecordedSource, expected: str) -> None:
    assert re.fullmatch(expected, source.record)
    assert re.fullmatch("[a-zA-Z_:][a-zA-Z0-9_:]*", source.record)


def test_names_of_different_rules_differ() -> None:
    """Also where a tenant names a metric after the recorded metric of others."""
    query = RecordedSource("", "secret > 0", "max")
    digest = query.record.rpartition("_")[2]
    sources = [
        query,
        RecordedSource("", "secret  > 0", "max"),
        RecordedSource("", "secret > 0", "max", empty_is_healthy=True),
        RecordedSource("", "secret > 0", "min"),
        RecordedSource("secret > 0", "", "max"),
        RecordedSource("query", aggregate="max"),
        RecordedSource(f"query_nodewise_max_{digest}"),
        RecordedSource(f"query:nodewise_max_{digest}"),
        RecordedSource(query.record, aggregate="max"),
        RecordedSource("a.b"),
        RecordedSource("a:b"),
        RecordedSource("a_b"),
    ]
    assert len({source.record for source in sources}) == len(sources)


@pytest.mark.parametrize("aggregate", ["", "max", "min", "sum"])
def test_the_source_of_a_recorded_metric_follows_from_its_name(aggregate: str) -> None:
    source = RecordedSource("temp", aggregate=aggregate)
    assert recording_rules.original_source(source.record) == source


def test_recorded_series_keep_the_labels_that_nodes_are_found_by() -> None:
    options = PrometheusOptions(
        prometheus_node_label=("my.host", "rack"), prometheus_replica_label=("receiver",)
    )
    settings = RecordingSettings(series_labels(options))
    by = settings.by().split(", ")
    assert by[:4] == ['"exported_my.host"', '"my.host"', "exported_rack", "rack"]
    assert {"instance", "node", "cluster", "replica", "receiver"} <= set(by)
    assert '"k8s.node.name"' not in SETTINGS.by(), "Prometheus 2 refuses a file with it"
    assert '"k8s.node.name"' in SETTINGS._replace(has_quoted_labels=True).by()


def test_changed_policies_have_the_other_fields_and_no_problem() -> None:
    spec = {
        "namespaceSelector": {},
        "podSelector": {"matchLabels": {"metric": "temp", "query": "x"}},
        "guard": {"maxRejectedShare": "0.5"},
        "avoid": [
            {"metric": "temp", "aggregate": "max", "above": "80.5", "release": 70, "for": "1m", "maxAge": "2m"},
            {"all": [{"metric": "temp", "aggregate": "max", "between": [1, 2]}, {"query": "load # a ) b", "above": 1}]},
            {"query": "errors > 0", "emptyMeans": "Healthy", "above": 0},
        ],
        "prefer": [{"metric": "temp", "aggregate": "max", "order": "Ascending", "weight": 3}],
        "nodeLabels": [{"query": 'temp{a="b"}', "above": 1, "labels": {"a.nodewise.io/metric": "temp"}}],
    }  # fmt: skip
    changed, recorder = change(spec)
    for section in ("namespaceSelector", "podSelector", "guard"):
        assert changed[section] == spec[section]
    recorded = "node:temp:nodewise_max"
    assert changed["avoid"][0] == {
        "metric": recorded, "aggregate": "max", "above": "80.5", "release": 70, "for": "1m", "maxAge": "1m30s",
    }  # fmt: skip
    assert changed["avoid"][1]["all"][0] == {
        "metric": recorded, "aggregate": "max", "between": [1, 2], "maxAge": "45s",
    }  # fmt: skip
    assert changed["prefer"][0]["weight"] == 3
    assert changed["nodeLabels"][0]["labels"] == {"a.nodewise.io/metric": "temp"}
    assert len(recorder.sources) == 4
    assert [rule for rule in recorder.rules if rule.why_not] == []
    document = {
        "apiVersion": "nodewise.io/v1alpha1",
        "kind": "ClusterPlacementPolicy",
        "metadata": {"name": "cool"},
        "spec": changed,
    }
    written = yaml.load(policy_writer.format_policy(document), yaml.CSafeLoader)
    assert written == document
    assert policy_lint.lint(msgspec.json.encode(written), "ClusterPlacementPolicy") == []
    assert policy_lint.notes(msgspec.json.encode(written), "ClusterPlacementPolicy", 5.0) == []


def test_recording_again_changes_nothing_and_keeps_the_rules() -> None:
    spec = {"avoid": [{"metric": "temp", "aggregate": "max", "above": 80}, {"query": "load", "above": 1}]}
    changed, recorder = change(spec)
    again, second = change(changed)
    assert again == changed
    assert RecordedSource("temp", aggregate="max") in second.sources
    # the digest of a query does not tell it
    [rule] = second.rules
    assert "keep the recording rule" in rule.why_not
    assert len(recorder.sources) == 2


def test_a_metric_with_a_recorded_name_that_no_run_prints_needs_no_rule() -> None:
    spec = {"avoid": [{"metric": "node:temp:nodewise_avg"}, {"metric": "node:cpu_usage:nodewise_max"}]}
    changed, recorder = change(spec)
    assert changed == spec
    assert recorder.sources == set()
    assert all("keep the recording rule" in rule.why_not for rule in recorder.rules)


@pytest.mark.parametrize(
    ("rule", "key", "expected"),
    [
        ({"metric": "temp", "aggregate": "avg"}, NAMESPACED, "a mean needs all series"),
        ({"metric": "cpu_usage"}, NAMESPACED, "metrics-server"),
        ({"metric": "predicted_cpu_share"}, CLUSTER, "nodewise computes its values"),
        ({"query": '{job="node"}'}, CLUSTER, "series of several metrics"),
        ({"metric": "temp", "maxAge": "30s"}, NAMESPACED, "age of 30s is less than 1m7.5s: give --interval 6.6s"),
        ({"metricname": "temp"}, TAS, "convert it with nodewise policy convert"),
        ({"metric": "temp"}, NAMESPACED, "unknown to Prometheus"),
    ],
)  # fmt: skip
def test_rules_that_cannot_be_recorded_stay_and_say_why(
    rule: dict[str, Any], key: PolicyKey, expected: str
) -> None:
    spec = {"strategies": {"dontschedule": {"rules": [rule]}}} if key is TAS else {"avoid": [rule]}
    refusals = {RecordedSource("temp"): "unknown to Prometheus"} if "unknown" in expected else {}
    changed, recorder = change(spec, key, refusals=refusals)
    assert changed == spec
    assert recorder.sources == set()
    [unchanged] = recorder.rules
    assert expected in unchanged.why_not


def test_a_proposed_interval_is_short_enough() -> None:
    spec = {"avoid": [{"metric": "temp", "maxAge": "30s"}]}
    _, recorder = change(spec)
    proposed = clock.parse_duration(recorder.rules[0].why_not.rpartition(" ")[2])
    _, recorder = change(spec, settings=SETTINGS._replace(interval_s=proposed))
    assert recorder.rules[0].why_not == ""


def test_queries_of_a_taspolicy_are_recorded() -> None:
    rule = {"metricname": "temp", "query": "temp", "operator": "GreaterThan", "target": 1, "max_age": "5m"}
    changed, _ = change({"strategies": {"dontschedule": {"rules": [rule]}}}, TAS)
    [recorded] = changed["strategies"]["dontschedule"]["rules"]
    assert recorded["metricname"] == "temp"
    assert re.fullmatch(r"node:query:nodewise_last_[0-9a-f]{16}", recorded["query"])
    assert recorded["max_age"] == "4m30s"


def test_rules_that_are_not_evaluated_are_not_recorded() -> None:
    spec = {"avoid": [{"metric": "temp"}, "no rule", {"metric": 5}, {}]}
    recorder = PolicyRecorder(SETTINGS)
    assert recorder.change(NAMESPACED, spec, ()) == spec
    assert recorder.sources == set()


def test_policies_share_recording_rules_and_each_has_its_group() -> None:
    recorder = PolicyRecorder(SETTINGS)
    source = RecordedSource("temp", aggregate="max")
    for namespace in ("a", "b"):
        spec = {"avoid": [{"metric": "temp", "aggregate": "max", "above": 80}]}
        recorder.change(PolicyKey("PlacementPolicy", namespace, "cool"), spec, [source])
    other = RecordedSource("", "load\n# comment (")
    [first, second] = recording_rules.recording_groups({*recorder.sources, other}, SETTINGS)
    assert first["name"] == first["rules"][0]["record"] != second["name"]
    assert second["interval"] == "15s"
    assert recording_rules.rule_expression(other, SETTINGS) == "(\nload\n# comment (\n)"


def run(file: Path, **spec: Any) -> Result:
    """The command for one policy, without Prometheus."""
    metadata = {"name": "cool"}
    api_version = "nodewise.io/v1alpha1"
    document = {"apiVersion": api_version, "kind": "ClusterPlacementPolicy", "metadata": metadata}
    selectors = {"namespaceSelector": {}, "podSelector": {}}
    file.write_text(yaml.safe_dump({**document, "spec": {**selectors, **spec}}))
    return CliRunner().invoke(main.command, ["policy", "recording-rules", str(file)])


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"avoid": [{"metric": "temp", "above": 1, "maxAge": "x"}]}, "spec.avoid[0].maxAge: 'x';"),
        ({"avoid": [{"metric": "a"}, {"metric": "temp", "above": 1}]}, "spec.avoid[0]: no operator;"),
        ({"avoid": 5}, "spec.avoid: 5;"),
    ],
)
def test_policies_that_are_not_evaluated_are_named(
    tmp_path: Path, spec: dict[str, Any], expected: str
) -> None:
    done = run(tmp_path / "policy.yaml", **spec)
    assert done.exit_code == 3
    assert yaml.load(done.stdout, yaml.CSafeLoader) == {"groups": []}
    assert (
        f"not recorded: cluster placement policy cool: rules that are not evaluated: {expected}"
        in done.stderr
    )


@pytest.mark.parametrize(
    "query",
    ['{"my.metric"}', 'temp{a="b", "k.l"=~"x"} * 2', 'max by ("k.l", node) (temp)', "a * on (node, 'b.c') b"],
)
def test_names_in_quotes_are_recorded_only_if_prometheus_parses_them(tmp_path: Path, query: str) -> None:
    """Version 2 would refuse the whole file."""
    done = run(tmp_path / "policy.yaml", avoid=[{"query": f"{query} + 0", "above": 1}])
    assert done.exit_code == 3
    assert "give --prometheus-url" in done.stderr


def test_queries_that_prometheus_has_not_parsed_are_warned_of(tmp_path: Path) -> None:
    query = {"query": "label_replace(temp, 'a', '$1', \"b\", '(.*)') + c{d='e'}", "above": 1}
    done = run(tmp_path / "policy.yaml", avoid=[query])
    assert done.exit_code == 0
    assert "Warning: Prometheus has not parsed the queries" in done.stderr
    assert run(tmp_path / "policy.yaml", avoid=[{"metric": "temp", "above": 1}]).stderr == ""


@pytest.mark.parametrize(
    "text",
    [
        "a\nb",
        "a\n\nb",
        " a\nb",
        "a\nb ",
        "a\n\x00b",
        "a\n\u2028b",
        "a\n\x85b",
        "a\n",
        "- a\n? b: c #\n'\"",
        "\ta\nb",
    ],
)
def test_texts_of_several_lines_survive_yaml(text: str) -> None:
    actual = yaml.load(policy_writer.format_policy({"a": {"b": text}, "c": [text]}), yaml.CSafeLoader)
    assert actual == {"a": {"b": text}, "c": [text]}
