"""The page of the dashboards: every panel, and what it is drawn from."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tools.reference.text import MADE, code, table

FOLDER: Final = Path(__file__).parents[2] / "deploy/chart/nodewise/dashboards"
_METRIC: Final = re.compile(r"\bnodewise_\w+")


def dashboards_page() -> str:
    """Every dashboard of the Helm chart."""
    dashboards = [(path, json.loads(path.read_text())) for path in sorted(FOLDER.glob("*.json"))]
    return "".join(
        [
            MADE,
            "# Dashboards\n\n",
            "For Grafana, in the Helm chart; `dashboards.enabled` puts them into ConfigMaps that Grafana's sidecar\n",
            "finds. What the metrics mean: [metrics](observability.md#metrics).\n",
            *(_dashboard(path, found) for path, found in dashboards),
        ]
    )


def _dashboard(path: Path, found: Mapping[str, Any]) -> str:
    title = found["title"].removeprefix("nodewise: ").capitalize()
    link = f"[`{path.name}`](../../deploy/chart/nodewise/dashboards/{path.name})"
    return f"\n## {title}\n\n{link}\n\n" + table(
        ("panel", "what it says", "metrics"), _panels(found["panels"])
    )


def _panels(panels: list[Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    for panel in panels:
        if panel.get("type") == "row":
            continue
        asked = " ".join(target.get("expr", "") for target in panel.get("targets", ()))
        metrics = dict.fromkeys(_METRIC.findall(asked))
        yield panel["title"], panel.get("description", ""), ", ".join(map(code, metrics))
