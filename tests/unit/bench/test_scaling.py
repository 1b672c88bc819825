"""Detection of measurements that grow faster than the number of nodes."""

import pytest
from bench import node_count_scaling, plots

PLAIN = {
    "filter_ms": 1.0,
    "prioritize_ms": 1.0,
    "refresh_cpu_ms": 1.0,
    "ready_s": 1.0,
    "rss_mib": 1.0,
    "sampled_filter_ms": 1.0,
}


def rows(**last: float) -> list[node_count_scaling.Row]:
    """The rows of 5,000 nodes, where each measurement is 1, and of 20,000 nodes, with the measurements in `last`."""
    return [{"nodes": 5000, **PLAIN}, {"nodes": 20_000, **PLAIN, **last}]


@pytest.mark.parametrize(
    ("value", "exponent", "per_node"),
    [
        pytest.param(1.0, 0.0, 0.25, id="stays"),
        pytest.param(4.0, 1.0, 1.0, id="as the nodes"),
        pytest.param(16.0, 2.0, 4.0, id="as their square"),
    ],
)
def test_growth_is_reported_as_a_power_and_per_node(value, exponent, per_node):
    growth = rows(filter_ms=value)
    assert node_count_scaling.exponent(growth, "filter_ms") == pytest.approx(exponent)
    assert node_count_scaling.per_node(growth, "filter_ms") == pytest.approx(per_node)


def test_a_figure_that_grows_faster_than_the_nodes_is_named():
    assert node_count_scaling.faster(rows(filter_ms=4.0, rss_mib=5.0, ready_s=16.0)) == ["ready_s", "rss_mib"]


def test_a_little_more_is_noise():
    assert node_count_scaling.faster(rows(filter_ms=4.4)) == []


def test_lines_begin_at_one():
    assert plots.lines(rows(filter_ms=6.0))["filter_ms"] == [1.0, 6.0]
