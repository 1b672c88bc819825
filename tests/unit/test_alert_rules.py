"""The alerts of `deploy/metrics` agree with the metrics of the program, the documentation and their cases."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.helm_chart_generator import ALERT_RULES, PROMETHEUS_RULE

from nodewise.observe.metrics_registry import METRICS, PREFIX
from tests.cluster.alert_rule_cases import CASES

ROOT = Path(__file__).parents[2]
GROUPS: list[Any] = yaml.load((ROOT / ALERT_RULES).read_text(), yaml.CSafeLoader)["groups"]
RULES: list[Any] = [rule for group in GROUPS for rule in group["rules"]]
TARGET = {"namespace", "job", "pod", "le"}
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])


def _metric(series: str) -> str:
    return series.removeprefix(PREFIX).removesuffix("_bucket")


@each_rule
def test_each_alert_reads_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    names = [_metric(name) for name in re.findall(rf"{PREFIX}\w+", rule["expr"])]
    assert names
    labels = {label for name in names for label in METRICS[name].labels} | TARGET
    grouped = [label for group in re.findall(r"by \(([^)]*)\)", rule["expr"]) for label in group.split(",")]
    selected = re.findall(r"(\w+)=~?\"", rule["expr"])
    assert {label.strip() for label in (*grouped, *selected)} <= labels


@each_rule
def test_each_alert_has_a_case_that_fires_and_one_that_does_not(rule: dict[str, Any]) -> None:
    cases = [case for case in CASES if case.alert == rule["alert"]]
    assert {case.fires is None for case in cases} == {True, False}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.alert}-{case.fires is not None}")
def test_cases_have_the_series_that_the_program_exports(case: Any) -> None:
    for series in case.series:
        name, _, labels = series.partition("{")
        metric = METRICS[_metric(name)]
        bucket = {"le"} if metric.buckets else set()
        assert {*re.findall(r"(\w+)=", labels)} - {"namespace", "job", "pod"} == {*metric.labels} | bucket


@each_rule
def test_each_alert_has_a_runbook(rule: dict[str, Any]) -> None:
    assert rule["annotations"].keys() == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"] == f"docs/runbooks/{rule['alert']}.md"
    text = (ROOT / rule["annotations"]["runbook"]).read_text()
    assert text.startswith(f"# {rule['alert']}\n\n{rule['annotations']['summary'].rstrip('.')}")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Impact", "Diagnosis", "Remedy"]


def test_each_runbook_has_an_alert() -> None:
    pages = {page.stem for page in (ROOT / "docs/runbooks").glob("*.md")}
    assert pages == {rule["alert"] for rule in RULES}


def test_the_operator_gets_the_same_alerts() -> None:
    assert yaml.load((ROOT / PROMETHEUS_RULE).read_text(), yaml.CSafeLoader)["spec"] == {"groups": GROUPS}
