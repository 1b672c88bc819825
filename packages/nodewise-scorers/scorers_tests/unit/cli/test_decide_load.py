"""`nodewise decide --agents load` with the usage of nodes and pods from files."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nodewise.cli import main
from nodewise_scorers.load.agent import PLACEMENTS
from scorers_tests.unit.load.load_clusters import pod_body

AT = "2026-11-30T08:00:00Z"


def node(name: str) -> dict[str, Any]:
    status = {
        "allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


def node_metrics(name: str, cpu: str) -> dict[str, Any]:
    return {
        "apiVersion": "metrics.k8s.io/v1beta1",
        "kind": "NodeMetrics",
        "metadata": {"name": name},
        "timestamp": AT,
        "window": "15s",
        "usage": {"cpu": cpu, "memory": "2Gi"},
    }


def decide(folder: Path, *options: str) -> dict[str, Any]:
    pod = {"apiVersion": "v1", "kind": "Pod", **pod_body("web")}
    items = [
        *map(node, ("busy", "calm", "unknown")),
        *(node_metrics(name, cpu) for name, cpu in (("busy", "7"), ("calm", "500m"))),
        pod,
    ]
    file = folder / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    done = CliRunner().invoke(main.command, ["decide", "--agents=load", "-o", "json", str(file), *options])
    assert done.exit_code == 0, done.output
    decision: dict[str, Any] = json.loads(done.stdout)["decisions"][0]
    return decision


def test_the_usage_in_files_decides(tmp_path: Path) -> None:
    decision = decide(tmp_path)
    assert decision["scores"] == {"busy": 0, "calm": 10, "unknown": 0}
    assert decision["rejected"] == {}
    assert decision["details"]["busy"]["load"] == "cpu 88 % expected; memory 12 % expected"
    assert decision["details"]["unknown"]["load"] == "cpu: no statistics; memory: no statistics"


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_each_placement_gives_a_node_without_usage_the_score_of_the_option(
    placement: str, tmp_path: Path
) -> None:
    scores = decide(tmp_path, f"--load-placement={placement}", "--score-missing=4")["scores"]
    assert scores["unknown"] == 4
    assert max(scores["busy"], scores["calm"]) > 0
