"""`ClusterState.metric_values`: a metric as an agent of another package reads it."""

import math

import pytest

from nodewise.agent import ClusterState, MetricRequest, NodeIndex
from nodewise.base.cooperative_scheduling import run_without_pauses
from nodewise.base.quantity import NANO
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.series import Sample, Series

NOW = 1_000.0
NODES = NodeIndex(["fresh", "old", "invalid", "missing"])


@pytest.mark.parametrize(
    ("max_age_s", "expected"),
    [(0.0, [1.5, math.nan, math.nan, math.nan, math.nan]), (200.0, [1.5, 2.0, math.nan, math.nan, math.nan])],
)
def test_nodes_without_a_fresh_value_are_nan(max_age_s: float, expected: list[float]) -> None:
    request = MetricRequest("loudness", max_age_s=max_age_s)
    samples = {"fresh": Sample(3 * NANO // 2, NOW - 10), "old": Sample(2 * NANO, NOW - 100)}
    series = Series(request.key, "files", NOW, samples, invalid={"invalid": "several values"})
    state = ClusterState(NODES, {}, MetricsSnapshot({request.key: series}), NOW)
    values = run_without_pauses(state.metric_values(request))
    assert values.tolist() == pytest.approx(expected, nan_ok=True)


def test_metric_that_was_never_fetched_has_no_values() -> None:
    state = ClusterState(NODES, {}, MetricsSnapshot(), NOW)
    values = run_without_pauses(state.metric_values(MetricRequest("loudness")))
    assert [math.isnan(value) for value in values] == [True] * 5
