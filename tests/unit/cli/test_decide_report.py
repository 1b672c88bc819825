"""The tables of `nodewise decide`."""

from pathlib import Path

from click.testing import CliRunner

from nodewise.cli import main

OBJECTS = """
apiVersion: v1
kind: Node
metadata: {name: fan-1}
---
apiVersion: v1
kind: Node
metadata: {name: fan-2}
---
apiVersion: v1
kind: Node
metadata: {name: fan-3}
---
apiVersion: nodewise.io/v1alpha1
kind: PlacementPolicy
metadata: {name: fans, namespace: web}
spec:
  podSelector: {}
  avoid: [{metric: fan_errors, above: 3}]
---
apiVersion: v1
kind: Pod
metadata: {name: shop, namespace: web}
spec: {containers: [{name: shop, image: shop}]}
"""
METRICS = """
apiVersion: custom.metrics.k8s.io/v1beta2
kind: MetricValueList
metadata: {}
items:
- describedObject: {kind: Node, name: fan-1}
  metric: {name: fan_errors}
  timestamp: "2026-05-01T10:00:00Z"
  value: "2"
- describedObject: {kind: Node, name: fan-2}
  metric: {name: fan_errors}
  timestamp: "2026-05-01T09:55:30Z"
  value: "9"
"""


def test_wide_table_marks_values_that_no_rule_compares(tmp_path: Path) -> None:
    (tmp_path / "objects.yaml").write_text(OBJECTS)
    (tmp_path / "metrics.yaml").write_text(METRICS)
    files = [str(tmp_path / name) for name in ("objects.yaml", "metrics.yaml")]
    done = CliRunner().invoke(main.command, ["decide", *files, "--agents", "telemetry", "-o", "wide"])
    measured = {line[1]: " ".join(line[3:-1]) for line in map(str.split, done.output.splitlines()[1:])}
    assert measured == {
        "fan-1": "fan_errors=2",
        "fan-2": "fan_errors=9 (stale, 4m30s old)",
        "fan-3": "fan_errors=missing",
    }
