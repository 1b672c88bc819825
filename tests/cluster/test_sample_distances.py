"""Rules with `for` over scrapes of 15 s and 60 s reject the same nodes, with each metric back end.

The history is imported, and the running program is played over it: each query is evaluated at the time of a clock.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from nodewise.base.clock import format_rfc3339
from nodewise.metrics.prometheus.client import PrometheusClient, PrometheusConnection
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.prometheus.query_responses import QueryResponse
from nodewise.observe.metrics_registry import MetricsRegistry
from tests.cluster import read_only_commands
from tests.cluster.metric_back_ends import MetricBackEnd
from tests.manual_clock import ManualClock
from tests.unit.metrics.refreshed_policy import PERIOD_S, rejections

NODES: Final = [f"rack-{number}" for number in range(12)]
FOR_S: Final = 90
WINDOW_S: Final = 480
"""How long the program is played."""
RULE: Final = {"metric": "inlet_temp", "above": 45, "for": f"{FOR_S}s"}


class PastClient:
    """Sends each query to a server, evaluated at the time of a clock."""

    def __init__(self, url: str, clock: ManualClock) -> None:
        options = PrometheusOptions(prometheus_url=(url,))
        self._client = PrometheusClient(PrometheusConnection(url, options, MetricsRegistry()), 60.0)
        self._clock = clock

    async def query(self, query: str, before_body: Any = None) -> QueryResponse:
        return await self._client.query(query, before_body, at=self._clock.now())


def history(now: float, distance_s: int, failed: int | None = None) -> list[str]:
    """Samples of all nodes, each with its own offset, which are hot all the time except for the last node.

    `failed` is the number of a scrape that failed on every node.
    """
    lines = []
    for number, node in enumerate(NODES):
        value = 40 if node == NODES[-1] else 50 + number
        first = now - WINDOW_S - 600 + number * distance_s / len(NODES)
        for scrape in range(int((now - first) // distance_s) + 1):
            if scrape != failed:
                at = first + scrape * distance_s
                lines.append(f'inlet_temp{{node="{node}"}} {value} {at:.3f}')
    return lines


@pytest.mark.parametrize(
    ("distance_s", "failed"), [(15, None), (60, None), (60, 13)], ids=["15s", "60s", "a failed scrape"]
)
def test_a_rule_with_for_rejects_every_node_that_meets_it(
    metric_back_end: MetricBackEnd, distance_s: int, failed: int | None
) -> None:
    now = round(time.time()) - 60.0
    server = metric_back_end.start(samples=history(now, distance_s, failed))
    clock = ManualClock(now - WINDOW_S)
    steps = int(WINDOW_S // PERIOD_S)
    rejected = rejections(PastClient(server.url, clock), clock, NODES, RULE, steps)
    hot = set(NODES[:-1])
    begun = next(step for step, nodes in enumerate(rejected) if nodes)
    assert begun * PERIOD_S >= FOR_S
    due = int((FOR_S + 2 * distance_s) // PERIOD_S)
    assert all(nodes <= hot for nodes in rejected)
    assert [step for step, nodes in enumerate(rejected) if step >= due and nodes != hot] == []


def backtest_report(
    folder: Path, url: str, rule: Mapping[str, Any], now: float, step_s: float
) -> Mapping[str, Any]:
    """The report of a backtest over the time for which the program is played."""
    spec = {"podSelector": {}, "avoid": [rule]}
    policy = {"apiVersion": "nodewise.io/v1alpha1", "kind": "PlacementPolicy", "spec": spec}
    policy["metadata"] = {"name": "cool", "namespace": "racks"}
    nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}} for node in NODES]
    objects = folder / "objects.yaml"
    objects.write_text(yaml.safe_dump_all([policy, *nodes]))
    command = ["policy", "backtest", str(objects), f"--prometheus-url={url}", "--output=json"]
    times = [f"--until={format_rfc3339(now)}", f"--since={WINDOW_S}s", f"--step={step_s:g}s"]
    report: Mapping[str, Any] = read_only_commands.parse_report(read_only_commands.run(*command, *times))
    return report


def test_a_backtest_rejects_the_same_nodes_for_the_whole_time(
    metric_back_end: MetricBackEnd, tmp_path: Path
) -> None:
    now = round(time.time()) - 60.0
    reports = []
    for distance_s in (15, 60):
        server = metric_back_end.start(samples=history(now, distance_s))
        report = backtest_report(tmp_path, server.url, RULE, now, 10)
        [rule] = report["policies"][0]["rules"]
        reports.append([(entry["node"], entry["from"], entry["to"]) for entry in rule["rejections"]])
    assert sorted(reports[0]) == sorted(reports[1])
    assert sorted(node for node, _, _ in reports[0]) == sorted(NODES[:-1])


def two_exporters(now: float) -> list[str]:
    """Samples of two exporters of each node, every 15 s at different times: on the first node both are hot in the
    middle, on the second node one of them, on the others none.
    """
    lines = []
    for number, node in enumerate(NODES[:4]):
        for exporter, offset_s in (("ipmi", 2.0), ("redfish", 9.5)):
            is_ever_hot = number == 0 or (number == 1 and exporter == "ipmi")
            for age_s in range(WINDOW_S + 600, 0, -15):
                is_hot = is_ever_hot and WINDOW_S / 4 < age_s < WINDOW_S * 3 / 4
                # a metric whose values differ on every node counts as never fetched
                value = (51 if is_hot else 40) + (offset_s / 10 if number < 2 else 0)
                at = now - age_s + offset_s
                lines.append(f'inlet_temp{{node="{node}",job="{exporter}"}} {value} {at:.3f}')
    return lines


def test_a_backtest_rejects_nodes_with_differing_values_when_the_program_does(
    metric_back_end: MetricBackEnd, tmp_path: Path
) -> None:
    now = round(time.time()) // 60 * 60 - 60.0
    server = metric_back_end.start(samples=two_exporters(now))
    rule = {"metric": "inlet_temp", "above": 45}
    clock = ManualClock(now - WINDOW_S + PERIOD_S)
    rejected = rejections(PastClient(server.url, clock), clock, NODES[:4], rule, int(WINDOW_S // PERIOD_S))
    steps = [step for step, nodes in enumerate(rejected) if nodes]
    assert {node for nodes in rejected for node in nodes} == {NODES[0]}
    report = backtest_report(tmp_path, server.url, rule, now, PERIOD_S)
    [entry] = report["policies"][0]["rules"][0]["rejections"]
    times = [format_rfc3339(now - WINDOW_S + (step + 1) * PERIOD_S) for step in (steps[0], steps[-1] + 1)]
    assert (entry["node"], entry["from"], entry["to"]) == (NODES[0], *times)
