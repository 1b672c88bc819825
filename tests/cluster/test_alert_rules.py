"""The alerts with Prometheus's own engine, by promtool."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.helm_chart_generator import ALERT_RULES
from tools.reference.alerts import SET_RUNBOOK_URL

from tests.cluster.alert_rule_cases import CASES, AlertCase
from tests.cluster.debian_packages import PrometheusPrograms

pytestmark = pytest.mark.cluster

FILE = Path(__file__).parents[2] / ALERT_RULES
RULES: dict[str, Any] = {
    rule["alert"]: rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]
}


def test_each_alert_fires_in_its_case_only(prometheus_programs: PrometheusPrograms, tmp_path: Path) -> None:
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(FILE)], "tests": list(map(_promtool_test, CASES))}))
    promtool = prometheus_programs.prometheus.parent / "promtool"
    completed = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr


def test_the_address_of_the_runbooks_can_be_set(
    prometheus_programs: PrometheusPrograms, tmp_path: Path
) -> None:
    done = subprocess.run(SET_RUNBOOK_URL, shell=True, check=True, capture_output=True, cwd=FILE.parents[2])
    rules = [rule for group in yaml.safe_load(done.stdout)["groups"] for rule in group["rules"]]
    urls = [rule["annotations"]["runbook_url"] for rule in rules]
    assert urls == [f"https://example.com/runbooks/{name}.md" for name in RULES]
    file = tmp_path / "rules.yaml"
    file.write_bytes(done.stdout)
    promtool = prometheus_programs.prometheus.parent / "promtool"
    subprocess.run([promtool, "check", "rules", file], check=True, capture_output=True)


def _promtool_test(case: AlertCase) -> dict[str, Any]:
    return {
        "name": f"{case.alert} fires" if case.fires is not None else f"{case.alert} does not fire",
        "interval": "1m",
        "input_series": [{"series": series, "values": values} for series, values in case.series.items()],
        "alert_rule_test": [
            {"eval_time": case.at, "alertname": case.alert, "exp_alerts": list(_expected_alerts(case))}
        ],
    }


def _expected_alerts(case: AlertCase) -> list[dict[str, Any]]:
    rule = RULES[case.alert]
    if case.fires is None:
        return []
    annotations = {**rule["annotations"], "description": case.description}
    return [{"exp_labels": {**rule["labels"], **case.fires}, "exp_annotations": annotations}]
