"""The deployed manifests: the numbered cases 114, 116 to 118, 123 and 124."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodewise.base import cooperative_scheduling
from nodewise.policies import node_labels
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.policy_objects import PolicyObject
from nodewise.policies.state import TelemetryStateBuilder
from tests.conformance.configure.case_numbers import case
from tests.unit.policies.policy_snapshot_builders import (
    cluster_state,
    metrics_snapshot,
    policy,
    rejected,
    rule,
    scores,
    series,
    snapshot,
)

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
EXTENDERS = ("tas", "gas", "tas-gas")


@case(114, "not rebuilt: `nodewise configure` does its work")
def test_no_script_ships() -> None:
    assert list(DEPLOY.rglob("*.sh")) == []


def shipped_objects(name: str) -> list[dict[str, Any]]:
    text = (DEPLOY / "kustomize" / name / "nodewise.yaml").read_text()
    return [manifest for manifest in yaml.load_all(text, yaml.CSafeLoader) if manifest]


def single_object(manifests: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    [manifest] = [candidate for candidate in manifests if candidate["kind"] == kind]
    return manifest


@case(
    116, "the files are mounted read-only and by item, with probes and two replicas, on no particular nodes"
)
@pytest.mark.parametrize("name", EXTENDERS)
def test_the_extenders_deployment(name: str) -> None:
    manifests = shipped_objects(name)
    deployment, service = single_object(manifests, "Deployment"), single_object(manifests, "Service")
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert [(port["port"], port["targetPort"]) for port in service["spec"]["ports"]] == [(9001, "https")]
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    assert {port["name"]: port["containerPort"] for port in container["ports"]}["https"] == 9001
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert {mount["readOnly"] for mount in container["volumeMounts"]} == {True}
    secret = {volume["name"]: volume.get("secret") for volume in pod["volumes"]}["tls"]
    assert [item["key"] for item in secret["items"]] == ["tls.crt", "tls.key"]
    flags = {word.partition("=")[0] for word in container["args"]}
    assert flags >= {"--cert", "--key", "--client-ca", "--client-name"}
    assert {"readinessProbe", "livenessProbe"} <= set(container)
    assert ":" in container["image"]
    assert deployment["metadata"]["namespace"] == service["metadata"]["namespace"] == "nodewise"


def rule_schema() -> tuple[dict[str, Any], dict[str, Any]]:
    """The schemas of a strategy and of a rule."""
    definition = yaml.load((DEPLOY / "crds" / "taspolicies.yaml").read_text(), yaml.CSafeLoader)
    [version] = definition["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    strategy = spec["properties"]["strategies"]["additionalProperties"]
    return strategy, strategy["properties"]["rules"]["items"]


@case(117)
@case(118)
def test_the_definition_of_policies() -> None:
    """tests/cluster/test_taspolicy_crd_cases.py checks them with a real API server."""
    strategy, rule = rule_schema()
    fields = rule["properties"]
    assert "operator" in rule["required"]
    assert not re.search(fields["metricname"]["pattern"], "a/b")
    assert "Foo" not in fields["operator"]["enum"]
    assert strategy["properties"]["logicalOperator"]["enum"] == ["allOf", "anyOf"]
    assert not {"target", "labels"} & set(rule["required"])
    refusals = yaml.load((ROOT / "tests" / "conformance" / "tas" / "crd.yaml").read_text(), yaml.CSafeLoader)[
        "rows"
    ]
    assert {row["number"] for row in refusals if "number" in row} >= {"X2", "X3", "X4", "X7", "X9"}


@case(123, "nodes are known by the label `node`")
def test_the_adapters_rule_for_metrics_of_nodes() -> None:
    """tests/cluster/test_metrics_pipeline.py checks it with a real adapter."""
    values = yaml.load((DEPLOY / "metrics" / "prometheus-adapter.yaml").read_text(), yaml.CSafeLoader)
    [custom] = values["rules"]["custom"]
    assert custom["resources"] == {"overrides": {"node": {"resource": "node"}}}
    name = "node_health_metric"
    assert re.search(re.search(r'__name__=~"([^"]*)"', custom["seriesQuery"])[1], name)  # type: ignore[index]
    assert 'node!=""' in custom["seriesQuery"]
    replaced = custom["name"]["as"].replace("$1", r"\1")
    assert re.sub(custom["name"]["matches"], replaced, name) == "health_metric"
    filled = {"<<.Series>>": name, "<<.LabelMatchers>>": 'node="n1"', "<<.GroupBy>>": "node"}
    query = custom["metricsQuery"]
    for hole, text in filled.items():
        query = query.replace(hole, text)
    assert query == 'max(node_health_metric{node="n1"}) by (node)'


METRICS = (
    series("filter1_metric", worker=10, worker2=20, worker3=10),
    series("filter2_metric", worker=0, worker2=0, worker3=0),
    series("prioritize1_metric", worker=1000, worker2=9999, worker3=0),
    series("deschedule1_metric", worker2=9),
    series("labeling1_metric", worker=10, worker2=10),
    series("labeling2_metric", worker=-10, worker2=71, worker3=10),
)
NODES = "worker worker2 worker3"
A, B = "labeling1_metric", "labeling2_metric"
LABELS: dict[str, tuple[list[tuple[str, str, int, list[str]]], dict[str, set[str]]]] = {
    "labeling1": ([(A, "LessThan", 8, ["card0=true"])], {}),
    "labeling2": ([(B, "LessThan", 8, ["card1=true"])], {"worker": {"card1=true"}}),
    "labeling3": ([(B, "Equals", 71, ["card0=false"])], {"worker2": {"card0=false"}}),
    "labeling4": ([(B, "Equals", 10, ["card1=true"])], {"worker3": {"card1=true"}}),
    "labeling5": (
        [(A, "GreaterThan", 8, ["card0=true"]), (B, "Equals", -10, ["card1=true"])],
        {"worker": {"card0=true", "card1=true"}, "worker2": {"card0=true"}},
    ),
    "labeling6": (
        [(B, "GreaterThan", -12, ["card1=true"])],
        {name: {"card1=true"} for name in NODES.split()},
    ),
    "labeling7": (
        [(B, "GreaterThan", 70, ["card0=false", "card1=true"])],
        {"worker2": {"card0=false", "card1=true"}},
    ),
    "labeling8": ([(A, "LessThan", 8, ["foo=1"]), (B, "LessThan", 8, ["foo=2"])], {"worker": {"foo=2"}}),
    "labeling9": (
        [(A, "GreaterThan", 8, ["foo=1"]), (B, "GreaterThan", 8, ["foo=2"])],
        {"worker": {"foo=1"}, "worker2": {"foo=2"}, "worker3": {"foo=2"}},
    ),
}


def node_labels_of(policy_object: PolicyObject) -> dict[str, set[str]]:
    state = cluster_state([policy_object], metrics_snapshot(*METRICS), NODES)
    builder = TelemetryStateBuilder(TelemetryOptions(trust_all_namespaces=True), 60.0)
    agent_state = cooperative_scheduling.run_without_pauses(builder.build(state))
    columns = node_labels.merge_label_columns(
        column for decided in agent_state.policies.values() for column in decided.labels
    )
    desired = cooperative_scheduling.run_without_pauses(node_labels.desired_labels(columns, state.nodes, {}))
    return {
        node: {f"{key.rpartition('/')[2]}={value}" for key, value in labels.items()}
        for node, labels in desired.items()
    }


def rules(rows: list[tuple[str, str, int, list[str]]]) -> Iterator[dict[str, Any]]:
    return (rule(metric, operator, target, labels=texts) for metric, operator, target, texts in rows)


@case(124)
def test_the_fields_that_the_end_to_end_tests_examined() -> None:
    """The policies with labels; the test below has the others."""
    labels = {name: node_labels_of(policy(labeling=list(rules(rows)))) for name, (rows, _) in LABELS.items()}
    assert labels == {name: wanted for name, (_, wanted) in LABELS.items()}


def test_where_the_end_to_end_tests_pods_go() -> None:
    def seen(**strategies: Any) -> Any:
        return snapshot(cluster_state([policy(**strategies)], metrics_snapshot(*METRICS), NODES))

    first = seen(dontschedule=[rule("filter1_metric", "LessThan", 20)])
    assert set(rejected(first, NODES) or {}) == {"worker", "worker3"}
    second = seen(dontschedule=[rule("filter2_metric", "Equals")])
    assert set(rejected(second, NODES) or {}) == set(NODES.split())
    third = scores(seen(scheduleonmetric=[rule("prioritize1_metric", "GreaterThan")]), NODES) or {}
    assert max(third, key=lambda name: third[name]) == "worker2"
    moved = policy(name="deschedule1", deschedule=[rule("deschedule1_metric", "GreaterThan", 8)])
    assert node_labels_of(moved) == {"worker2": {"deschedule1=violating"}}
