"""A metric with a series per core, queried by nodewise as it is and recorded by node, with a real Prometheus.

The rule is that of `nodewise policy recording-rules`. The processor times are those of Prometheus and of the source in
nodewise, for one request of the metric, and of Prometheus for one evaluation of the rule. The samples are written
before, one every 15 s.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from tests.cluster import debian_packages
from tests.cluster.prometheus_process import PrometheusProcess

from bench import benchmark_servers
from bench.alternating_rounds import of_rounds
from bench.progress_lines import report_progress_line
from bench.results import Measurement
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.node_attributes import NodeAllocatable, NodeAttributes
from nodewise.metrics.prometheus.node_matching import series_labels
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.prometheus.source import PrometheusSettings, PrometheusSource
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.policy_tools.recording_rules import RecordedSource, RecordingSettings, rule_expression

CORES: Final = 40
"""Series of a node."""
METRIC: Final = "core_temp_celsius"
SOURCE: Final = RecordedSource(METRIC, aggregate="max")
_SAMPLE_S: Final = 15
_BEFORE_S, _AFTER_S = 90, 240
"""The samples around the beginning of the measurement: the rounds take place within this time."""


class _Times(NamedTuple):
    """Processor times in milliseconds of a request, or of an evaluation."""

    prometheus_ms: float
    nodewise_ms: float


def measure(context: benchmark_servers.BenchContext) -> Measurement:
    """Alternating rounds of both requests and the evaluation. MissingError without Prometheus."""
    nodes = context.scale.nodes
    programs = debian_packages.get()
    server = PrometheusProcess(programs, context.folder / "prometheus", {})
    report_progress_line(f"writing {nodes * CORES:,} series (a minute)")
    # promtool takes about a minute, and the samples must be around the time of the rounds
    server.hold_samples(_samples(nodes, time.time() + nodes / 100))
    try:
        server.start()
        times = asyncio.run(_rounds(server, nodes, context.scale.rounds))
    finally:
        server.stop()
    raw, recorded, rule = times["raw"], times["recorded"], times["rule"]
    ratios = [sum(after) / sum(before) for before, after in zip(raw, recorded, strict=True)]
    figures = {
        "recording_raw_prometheus_ms": of_rounds((each.prometheus_ms for each in raw), 1),
        "recording_raw_nodewise_ms": of_rounds((each.nodewise_ms for each in raw), 1),
        "recording_prometheus_ms": of_rounds((each.prometheus_ms for each in recorded), 1),
        "recording_nodewise_ms": of_rounds((each.nodewise_ms for each in recorded), 1),
        "recording_ratio": of_rounds(ratios, 3),
        "recording_rule_ms": of_rounds((each.prometheus_ms for each in rule), 1),
    }
    return Measurement(figures, {}, "")


def _samples(nodes: int, now: float) -> Iterator[str]:
    times = range(int(now) - _BEFORE_S, int(now) + _AFTER_S, _SAMPLE_S)
    for node in range(nodes):
        name = f"node-{node:05d}"
        for core in range(CORES):
            labels = f'job="node",node="{name}",instance="{name}:9100",core="{core}"'
            for at in times:
                yield f"{METRIC}{{{labels}}} {40 + (node + core + at) % 50} {at}"
    for node in range(nodes):
        name = f"node-{node:05d}"
        for at in times:
            yield f'{SOURCE.record}{{node="{name}",instance="{name}:9100"}} {89 - (node + at) % 10} {at}'


async def _rounds(server: PrometheusProcess, nodes: int, count: int) -> dict[str, list[_Times]]:
    """The times of each round by kind, after one round that fills the caches."""
    names = [f"node-{node:05d}" for node in range(nodes)]
    attributes = NodeAttributes(
        dict.fromkeys(names, NodeAllocatable(None, None)), {name: name for name in names}
    )

    async def fetch_attributes() -> NodeAttributes:
        return attributes

    options = PrometheusOptions(prometheus_url=(server.url,), prometheus_timeout_s=60.0)
    source = PrometheusSource(
        server.url, PrometheusSettings(options, 60.0), fetch_attributes, MetricsRegistry()
    )
    expression = rule_expression(SOURCE, RecordingSettings(series_labels(options)))

    async def time_round(kind: str) -> _Times:
        before = benchmark_servers.cpu_s(server.process), time.process_time()
        if kind == "rule":
            await asyncio.to_thread(server.ask, expression)
        else:
            metric = SOURCE.record if kind == "recorded" else METRIC
            series = await source.fetch(MetricRequest(metric, aggregate="max"), time.time())
            if len(series.samples) != nodes:
                raise RuntimeError(f"found values of {len(series.samples)} nodes, expected {nodes}")
        return _Times(
            1000 * (benchmark_servers.cpu_s(server.process) - before[0]),
            1000 * (time.process_time() - before[1]),
        )

    times: dict[str, list[_Times]] = {"raw": [], "recorded": [], "rule": []}
    try:
        for number in range(count + 1):
            for kind in times if number % 2 else reversed(times):
                times[kind].append(await time_round(kind))
            report_progress_line(f"round {number} of {count}")
    finally:
        await source.close()
    return {kind: rounds[1:] for kind, rounds in times.items()}
