"""The page of the alerts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from tools.reference.markdown_formatting import MADE, table

SET_RUNBOOK_URL: Final = (
    "sed 's|runbook: docs/runbooks/|runbook_url: https://example.com/runbooks/|'"
    " deploy/metrics/alert-rules.yaml"
)
RULES: Final = Path(__file__).parents[2] / "deploy/metrics/alert-rules.yaml"


def alerts_page() -> str:
    """Every alert with its severity, expression and runbook."""
    rules = [
        rule for group in yaml.load(RULES.read_text(), yaml.CSafeLoader)["groups"] for rule in group["rules"]
    ]
    return "".join(
        [
            MADE,
            "# Alerts\n\n",
            "[`deploy/metrics/alert-rules.yaml`](../../deploy/metrics/alert-rules.yaml) is a file of rules for\n",
            "Prometheus. For the Prometheus operator, set `prometheusRule.enabled` of the chart, or apply\n",
            "[`prometheus-rule.yaml`](../../deploy/metrics/prometheus-rule.yaml) with the same alerts.\n",
            "Each alert has a runbook. The annotation `runbook` is the path of its page. If you publish the pages,\n",
            "the chart's value `prometheusRule.runbookUrl` replaces it by `runbook_url` with their address;\n",
            "for the files, this command does:\n\n",
            f"```sh\n{SET_RUNBOOK_URL}\n```\n\n",
            table(("alert", "severity", "meaning", "after"), map(_row, rules)),
            "\n## Expressions\n\n```promql\n",
            "\n".join(_expressions(rules)),
            "```\n",
        ]
    )


def _row(rule: dict[str, Any]) -> tuple[str, str, str, str]:
    name = rule["alert"]
    link = f"[{name}](../runbooks/{name}.md)"
    return link, rule["labels"]["severity"], rule["annotations"]["summary"], rule["for"]


def _expressions(rules: list[dict[str, Any]]) -> Iterator[str]:
    for rule in rules:
        yield f"# {rule['alert']}\n{rule['expr']}\n"
