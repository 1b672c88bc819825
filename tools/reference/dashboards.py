"""The page of the dashboards: all panels with their queries."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tools.reference.markdown_formatting import MADE, code, table

FOLDER: Final = Path(__file__).parents[2] / "deploy/chart/nodewise/dashboards"
_METRIC: Final = re.compile(r"\bnodewise_\w+")


def dashboards_page() -> str:
    """Every dashboard of the Helm chart."""
    dashboards = [(path, json.loads(path.read_text())) for path in sorted(FOLDER.glob("*.json"))]
    return "".join(
        [
            MADE,
            "# Dashboards\n\n",
            "The Helm chart contains these dashboards for Grafana. `dashboards.enabled` creates ConfigMaps that\n",
            "the sidecar of Grafana loads. Grafana shows the description of a panel beside its title, and\n",
            "[Metrics](observability.md#metrics) describes the metrics.\n\n",
            "The figure shows the panels of `decisions.json` while the demo runs: one node fails, then all nodes,\n",
            "then all recover. matplotlib draws the plots from the responses of Prometheus to the queries of the\n",
            "panels, over seconds. It is not a screenshot of Grafana, which draws them otherwise. The machine was\n",
            "busy with other work; the [measurements](../../bench/README.md) have response times of a quiet one.\n\n",
            "![The ten panels of the dashboard decisions, drawn with matplotlib](../pictures/dashboard.svg)\n",
            *(_dashboard(path, dashboard) for path, dashboard in dashboards),
        ]
    )


def _dashboard(path: Path, dashboard: Mapping[str, Any]) -> str:
    title = dashboard["title"].removeprefix("nodewise: ")
    heading = title[:1].upper() + title[1:]
    link = f"[`{path.name}`](../../deploy/chart/nodewise/dashboards/{path.name})"
    return f"\n## {heading}\n\n{link}\n\n" + table(("panel", "metrics"), _panels(dashboard["panels"]))


def _panels(panels: list[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for panel in panels:
        if panel.get("type") == "row":
            continue
        expressions = " ".join(target.get("expr", "") for target in panel.get("targets", ()))
        metrics = dict.fromkeys(_METRIC.findall(expressions))
        yield panel["title"], ", ".join(map(code, metrics))
