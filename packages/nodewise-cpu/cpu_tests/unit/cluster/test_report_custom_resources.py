"""The definitions of reports; `tests/cluster/test_cpu_node_commands.py` uses a real API server."""

from pathlib import Path

import yaml

from nodewise_cpu.cluster import api_server, report_custom_resources

FILE = Path(__file__).parents[5] / "deploy" / "crds" / "cmk-reports.yaml"


def test_the_definitions_to_apply_are_those_of_the_program() -> None:
    wanted = [
        report_custom_resources.definition(kind, api_server.TABLE[-1])
        for kind in report_custom_resources.KINDS
    ]
    assert list(yaml.load_all(FILE.read_text(), yaml.CSafeLoader)) == wanted


def test_each_kind_of_api_server_has_its_form() -> None:
    forms = {
        row.reports: report_custom_resources.definition(report_custom_resources.NODE_REPORT, row)[
            "apiVersion"
        ]
        for row in api_server.TABLE
    }
    assert forms == {
        "third-party": "extensions/v1beta1",
        "v1beta1": "apiextensions.k8s.io/v1beta1",
        "v1": "apiextensions.k8s.io/v1",
    }
