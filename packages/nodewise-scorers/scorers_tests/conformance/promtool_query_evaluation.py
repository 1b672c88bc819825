"""Evaluates a query on given series with Prometheus's own engine, by promtool."""

import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml
from tests.cluster import debian_packages, skip_conditions
from tests.cluster.go_toolchain import MissingError

from nodewise_scorers.statistics import node_usage_reader
from nodewise_scorers.statistics.node_usage_reader import WindowOptions

_NOBODYS: Final = -1.0
"""A value that no query has: promtool's check fails, and its message contains the actual value."""


def deviation(arguments: Mapping[str, float]) -> float:
    """The result of nodewise's query for the deviation of the cores in use.

    The node has one CPU, which is idle for `idle_share` of each second and is scraped every `scrape_s` seconds.
    """
    window_s = 300
    query = node_usage_reader.metric_requests(WindowOptions(statistics_window_s=window_s)).cpu_deviation.query
    scrape_s = int(arguments["scrape_s"])
    scrapes = 4 * window_s // scrape_s
    counter = {
        "series": 'node_cpu_seconds_total{instance="a", cpu="0", mode="idle"}',
        "values": f"0+{arguments['idle_share'] * scrape_s}x{scrapes}",
    }
    return _value(query, counter, scrape_s, scrapes * scrape_s)


def _value(query: str, series: Mapping[str, str], interval_s: int, at_s: int) -> float:
    expected = [{"labels": '{instance="a"}', "value": _NOBODYS}]
    sought = {"expr": query, "eval_time": f"{at_s}s", "exp_samples": expected}
    test = {"interval": f"{interval_s}s", "input_series": [dict(series)], "promql_expr_test": [sought]}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "test.yaml")
        file.write_text(yaml.safe_dump({"tests": [test]}))
        done = subprocess.run(
            [_promtool(), "test", "rules", file], capture_output=True, text=True, check=False
        )
    match = re.search(
        r'got:\[?\s*(?:Labels:)?\{instance="a"\}\s+(?:Value:)?(\S+?)\]?$',
        done.stderr + done.stdout,
        re.MULTILINE,
    )
    assert match, done.stdout + done.stderr
    return float(match[1])


def _promtool() -> Path:
    try:
        return debian_packages.get().prometheus.parent / "promtool"
    except MissingError as missing:
        why = str(missing)
    return skip_conditions.not_run(why)
