"""`make pictures`: draws docs/pictures/dashboard.svg, the panels of the dashboard `decisions` with values of the demo.

A real Prometheus scrapes the extender of the demo while a simulated kube-scheduler calls it, and responds to the
queries of the panels. The plots are matplotlib's, in the places of the panels; Grafana draws them otherwise.
"""

import contextlib
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2
import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tests.cluster import debian_packages
from tests.cluster.prometheus_process import PrometheusProcess

from nodewise.cli import demo
from nodewise.cli.demo import DemoCluster, ExtenderProcess, create_example_pod, demo_cluster
from nodewise.cli.policy_backtest.html_page import STYLE
from nodewise.scheduling_model.simulated_cluster import Cluster

_ROOT: Final = Path(__file__).parents[1]
DASHBOARD: Final = _ROOT / "deploy/chart/nodewise/dashboards/decisions.json"
PICTURE: Final = _ROOT / "docs/pictures/dashboard.svg"
NOTE: Final = (
    "Responses of Prometheus to the panels' queries, drawn with matplotlib; not a screenshot of Grafana."
)
_SCRAPE_S: Final = 2
_STEP_S: Final = 4
_RATE_INTERVAL: Final = f"{4 * _SCRAPE_S}s"  # what Grafana inserts for `$__rate_interval`: four scrapes
_PHASES: Final[Sequence[tuple[float, Mapping[str, int]]]] = (
    (40.0, {"rack1-a": 0, "rack1-b": 2, "rack2-a": 0}),
    (50.0, {"rack1-a": 1, "rack1-b": 2, "rack2-a": 1}),
    (40.0, {"rack1-a": 0, "rack1-b": 0, "rack2-a": 0}),
)
"""Seconds, and the values of the nodes' metric: one node fails, all fail, all recover."""
_MOST_WAITING: Final = 5
_UNITS: Final = {"reqps": "calls per second", "ops": "per second", "s": "seconds", "short": ""}
_LABEL: Final = re.compile(r"{{(\w+)}}")
_COLUMNS: Final = 24  # width of a dashboard


class Series(NamedTuple):
    """A line of a panel: seconds since the start, and values."""

    label: str
    times_s: Sequence[float]
    values: Sequence[float]


def main() -> int:
    """Write the picture. The exit code is 0."""
    with (
        tempfile.TemporaryDirectory(prefix="nodewise-picture-") as folder,
        demo_cluster(Path(folder)) as stage,
        demo.run_demo_extender(stage) as served,
        _prometheus(Path(folder, "prometheus"), served) as prometheus,
    ):
        begin_s = time.time()
        _run_phases(stage, served)
        dashboard = json.loads(DASHBOARD.read_text())
        series = {
            panel["title"]: _query(prometheus, panel, begin_s, time.time()) for panel in dashboard["panels"]
        }
    _draw(dashboard, series)
    print(PICTURE)
    return 0


@contextlib.contextmanager
def _prometheus(folder: Path, served: ExtenderProcess) -> Iterator[PrometheusProcess]:
    """A Prometheus that scrapes the extender."""
    target = served.health_url.removeprefix("http://")
    scrape = {"job_name": "nodewise", "static_configs": [{"targets": [target]}]}
    config = {"global": {"scrape_interval": f"{_SCRAPE_S}s"}, "scrape_configs": [scrape]}
    server = PrometheusProcess(debian_packages.get(), folder, config)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _run_phases(stage: DemoCluster, served: ExtenderProcess) -> None:
    """Let the simulated kube-scheduler place pods, ten per second, while the values of the metric change."""
    number, waiting = 0, list[str]()
    with Cluster(stage.nodes, [demo.entry(served)]) as cluster:
        for duration_s, values in _PHASES:
            stage.measure(values)
            end_s = time.monotonic() + duration_s
            while time.monotonic() < end_s:
                number += 1
                pod = create_example_pod(f"web-{number}")
                placed = cluster.submit(pod)
                if placed.node is None and len(waiting) < _MOST_WAITING:
                    waiting.append(pod["metadata"]["name"])
                    stage.put_unschedulable_pod(pod, placed.message)
                elif placed.node and waiting:
                    stage.remove_pod(waiting.pop())
                cluster.delete(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}")
                time.sleep(0.1)


def _query(
    prometheus: PrometheusProcess, panel: Mapping[str, Any], begin_s: float, end_s: float
) -> list[Series]:
    """The lines of a panel."""
    lines: list[Series] = []
    for target in panel["targets"]:
        parameters = {
            "query": target["expr"].replace("$__rate_interval", _RATE_INTERVAL),
            "start": begin_s,
            "end": end_s,
            "step": _STEP_S,
        }
        response = httpx2.get(f"{prometheus.url}/api/v1/query_range", params=parameters, trust_env=False)
        for result in response.raise_for_status().json()["data"]["result"]:
            label = _LABEL.sub(_label_value(result["metric"]), target["legendFormat"])
            times_s = [sample[0] - begin_s for sample in result["values"]]
            lines.append(Series(label, times_s, [float(sample[1]) for sample in result["values"]]))
    return lines


def _label_value(labels: Mapping[str, str]) -> Callable[[re.Match[str]], str]:
    return lambda match: labels.get(match[1], "")


def _draw(dashboard: Mapping[str, Any], series: Mapping[str, Sequence[Series]]) -> None:
    """Draw each panel at its place."""
    panels = dashboard["panels"]
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, rows / 3), layout="constrained")
        figure.suptitle(dashboard["title"], fontsize=12)
        figure.supxlabel(NOTE, fontsize=8, color="#555555")
        grid = figure.add_gridspec(rows, _COLUMNS)
        for panel in panels:
            place = panel["gridPos"]
            axes = figure.add_subplot(
                grid[place["y"] : place["y"] + place["h"], place["x"] : place["x"] + place["w"]]
            )
            _draw_panel(axes, panel, series[panel["title"]])
        figure.savefig(PICTURE, format="svg", metadata={"Date": None, "Creator": None})


def _draw_panel(axes: Axes, panel: Mapping[str, Any], lines: Sequence[Series]) -> None:
    axes.set_title(panel["title"], loc="left", fontsize=9, fontweight="bold")
    for line in lines:
        axes.plot(line.times_s, line.values, label=line.label, linewidth=1.2)
    axes.set_ylabel(_UNITS[panel["fieldConfig"]["defaults"]["unit"]])
    axes.set_xlim(0, sum(duration_s for duration_s, _ in _PHASES))
    axes.set_ylim(bottom=0)
    axes.locator_params(nbins=5)
    if lines:
        axes.legend(frameon=False, fontsize=7)
    else:
        axes.text(0.5, 0.5, "No data", transform=axes.transAxes, ha="center", color="#777777")


if __name__ == "__main__":
    sys.exit(main())
