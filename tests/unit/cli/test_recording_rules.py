"""Names of recording rules (`level:metric:operation`) wherever an author uses a metric."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from nodewise.cli import main
from nodewise.metrics.custom_metrics_api import CustomMetricsSource
from nodewise.metrics.metrics_source import MetricRequest

NAMES = ("instance:node_load1_per_cpu:ratio", "node_namespace_pod:kube_pod_info:", ":cluster:cpu")
OBJECTS = """
{apiVersion: v1, kind: Node, metadata: {name: a}}
---
{apiVersion: v1, kind: Node, metadata: {name: b}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web-1, namespace: web}, spec: {containers: []}}
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main.command, arguments)


@pytest.mark.parametrize("metric", NAMES)
def test_new_policy_of_a_recording_rule_is_valid_tested_and_decides(tmp_path: Path, metric: str) -> None:
    (tmp_path / "objects.yaml").write_text(OBJECTS)
    (tmp_path / "values.csv").write_text(f"a,{metric},1\nb,{metric},3\n")
    inputs = (str(tmp_path / "objects.yaml"), str(tmp_path / "values.csv"))
    folder = tmp_path / "policy"
    options = ("--namespace=web", "--above=2", "--mode=Enforce", "--selector={}", f"--folder={folder}")
    done = run("policy", "new", *inputs, f"--metric={metric}", *options)
    assert done.exit_code == 0, done.exception
    policy = yaml.load((folder / "policy.yaml").read_text(), yaml.CSafeLoader)
    assert policy["spec"]["avoid"][0]["metric"] == metric
    assert policy["metadata"]["name"].strip("-") == policy["metadata"]["name"]
    assert run("policy", "lint", str(folder / "policy.yaml")).exit_code == 0
    assert run("policy", "test", str(folder)).exit_code == 0
    decided = run("decide", *inputs, str(folder / "policy.yaml"), "--agents=telemetry", "-o", "json")
    assert json.loads(decided.output)["decisions"][0]["feasible"] == ["a"]
    changed = tmp_path / "changed.yaml"
    changed.write_text((folder / "policy.yaml").read_text().replace("above: 2", "above: 4"))
    differs = run("policy", "diff", str(folder / "policy.yaml"), str(changed), *inputs)
    assert f"rejected: placement policy web/{policy['metadata']['name']}: {metric} above 2" in differs.output


def test_path_of_the_custom_metrics_api_has_the_name_escaped() -> None:
    requests = []

    class Api:
        async def get(self, path: str, *_: Any, **__: Any) -> bytes:
            requests.append(path)
            if path.endswith("metrics.k8s.io"):
                return b'{"preferredVersion": {"version": "v1beta2"}}'
            item = '{"describedObject": {"name": "a"}, "metric": {"name": "m"}, "value": "3"}'
            return f'{{"items": [{item}]}}'.encode()

    api: Any = Api()
    series = asyncio.run(CustomMetricsSource(api).fetch(MetricRequest(NAMES[0]), 1.0))
    assert (list(series.samples), series.metric) == (["a"], NAMES[0])
    assert requests[-1].endswith("/v1beta2/nodes/%2A/instance%3Anode_load1_per_cpu%3Aratio")


def test_a_taspolicy_says_where_such_a_name_is_accepted(tmp_path: Path) -> None:
    rule = {"metricname": NAMES[0], "operator": "GreaterThan", "target": 1}
    policy = {
        "apiVersion": "telemetry.intel.com/v1alpha1",
        "kind": "TASPolicy",
        "metadata": {"name": "load", "namespace": "web"},
        "spec": {"strategies": {"dontschedule": {"rules": [rule]}}},
    }
    file = tmp_path / "policy.yaml"
    file.write_text(yaml.safe_dump(policy))
    done = run("policy", "lint", str(file))
    assert done.exit_code == 3
    assert "expected letters, digits, _ and - (a PlacementPolicy also accepts : and .)\n" in done.output
