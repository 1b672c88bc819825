"""The queries of the dashboards with Prometheus's own parser, by promtool."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from tools.reference.dashboards import FOLDER

from tests.cluster.debian_packages import PrometheusPrograms

pytestmark = pytest.mark.cluster


def test_prometheus_parses_the_queries_of_all_panels(
    prometheus_programs: PrometheusPrograms, tmp_path: Path
) -> None:
    panels = [
        panel for path in sorted(FOLDER.glob("*.json")) for panel in json.loads(path.read_text())["panels"]
    ]
    queries = [
        target["expr"].replace("$__rate_interval", "1m") for panel in panels for target in panel["targets"]
    ]
    assert len(queries) > 40
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    promtool = prometheus_programs.prometheus.parent / "promtool"
    completed = subprocess.run(
        [promtool, "check", "rules", file], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
