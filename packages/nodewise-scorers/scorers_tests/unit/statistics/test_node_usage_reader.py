"""The load of nodes, from annotations and from metrics."""

import json

import msgspec
import numpy as np
import pytest

from nodewise.agent import ClusterState, NodeIndex
from nodewise.base import clock, cooperative_scheduling
from nodewise.kube import struct_type_merge
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.prometheus import source as prometheus
from nodewise.metrics.series import Sample, Series
from nodewise_scorers.scoring_agent import StatisticStatus
from nodewise_scorers.statistics import node_usage_reader
from nodewise_scorers.statistics.load_annotations import ANNOTATED_AT
from nodewise_scorers.statistics.node_usage_reader import LoadReader, StatisticsOptions, UsageNode

NODE = struct_type_merge.merge("Node", UsageNode)
GIB = 2**30
NOW = 1_800_000_000.0
NAN = np.nan


def node(name, allocatable=None, **annotations):
    renamed = {key.replace("_", "-"): value for key, value in annotations.items()}
    if "at" in renamed:
        renamed[ANNOTATED_AT] = renamed.pop("at")
    body = {
        "metadata": {"name": name, "annotations": renamed or None},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi"} if allocatable is None else allocatable},
    }
    return msgspec.json.decode(json.dumps(body), type=NODE)


def cluster_state(*nodes, snapshot=None, now=NOW, index=None):
    index = index or NodeIndex([node_object.metadata.name for node_object in nodes])
    return ClusterState(
        index,
        {},
        snapshot or MetricsSnapshot(),
        now,
        {("", node_object.metadata.name): node_object for node_object in nodes},
    )


def read_loads(cluster, reader=None, **options):
    return cooperative_scheduling.run_without_pauses(
        (reader or LoadReader(StatisticsOptions(**options))).read(cluster)
    )


def test_used_is_allocatable_less_free():
    load = read_loads(
        cluster_state(node("a", mean_free_cpu="2500", std_free_cpu="4e2", forcasted_free_cpu="1000"))
    )
    np.testing.assert_array_equal(load.used, [[1500, NAN], [NAN, NAN]])
    np.testing.assert_array_equal(load.deviation, [[400, NAN], [NAN, NAN]])
    np.testing.assert_array_equal(load.forecast, [[3000, NAN], [NAN, NAN]])
    np.testing.assert_array_equal(load.capacity, [[4000, 0], [8 * GIB, 0]])
    np.testing.assert_array_equal(
        load.missing, [[StatisticStatus.PRESENT, StatisticStatus.ABSENT], [StatisticStatus.ABSENT] * 2]
    )


@pytest.mark.parametrize("text", ["", " 2000 ", "2000m", "nan", "abc", "N/A"])
def test_a_text_that_is_not_a_number_is_no_statistic(text):
    load = read_loads(cluster_state(node("a", mean_free_cpu=text)))
    assert load.missing[0, 0] == StatisticStatus.ABSENT
    assert np.isnan(load.used[0, 0])


@pytest.mark.parametrize("allocatable", [{}, {"cpu": "0"}, {"cpu": "x"}, [], {"cpu": "-1"}])
def test_a_node_that_has_nothing_of_a_resource_has_no_statistic_of_it(allocatable):
    load = read_loads(cluster_state(node("a", allocatable=allocatable, mean_free_cpu="100")))
    assert load.missing[0, 0] == StatisticStatus.NO_CAPACITY
    assert np.isnan(load.used[0, 0])


@pytest.mark.parametrize(
    ("seconds", "state"),
    [
        (0, StatisticStatus.PRESENT),
        (3600, StatisticStatus.PRESENT),
        (3601, StatisticStatus.STALE),
        (-3601, StatisticStatus.STALE),
    ],
)
def test_annotations_are_too_old_after_an_hour_or_if_they_are_of_a_time_to_come(seconds, state):
    stamp = clock.format_rfc3339(NOW - seconds)
    load = read_loads(cluster_state(node("a", mean_free_cpu="100", at=stamp)))
    assert load.missing[0, 0] == state
    assert load.ages_s[0] == max(seconds, 0)


@pytest.mark.parametrize("stamp", [{}, {"at": ""}, {"at": "noon"}])
def test_without_a_time_annotations_are_fresh_and_of_unknown_age(stamp):
    load = read_loads(cluster_state(node("a", mean_free_cpu="100", **stamp)))
    assert load.missing[0, 0] == StatisticStatus.PRESENT
    assert np.isnan(load.ages_s[0])


def test_the_age_that_counts_can_be_set():
    cluster = cluster_state(node("a", mean_free_cpu="100", at=clock.format_rfc3339(NOW - 100)))
    assert read_loads(cluster, statistics_max_age_s=99.0).missing[0, 0] == StatisticStatus.STALE
    assert read_loads(cluster, statistics_max_age_s=101.0).missing[0, 0] == StatisticStatus.PRESENT


def test_only_nodes_that_changed_are_read_again():
    reader = LoadReader(StatisticsOptions())
    a, b, c = (node(name, mean_free_cpu=str(n)) for n, name in enumerate("abc"))
    first = read_loads(cluster_state(a, b), reader)
    np.testing.assert_array_equal(first.used[0], [4000, 3999, NAN])
    second = read_loads(cluster_state(c, a), reader)
    np.testing.assert_array_equal(second.used[0], [3998, 4000, NAN])
    newer = node("a", mean_free_cpu="1000")
    third = read_loads(cluster_state(c, newer), reader)
    np.testing.assert_array_equal(third.used[0], [3998, 3000, NAN])
    np.testing.assert_array_equal(second.used[0], [3998, 4000, NAN])
    np.testing.assert_array_equal(read_loads(cluster_state(), reader).used, [[NAN], [NAN]])


def test_a_node_that_went_and_came_back_without_annotations_has_none():
    reader = LoadReader(StatisticsOptions())
    read_loads(cluster_state(node("a", mean_free_cpu="1")), reader)
    read_loads(cluster_state(node("b")), reader)
    assert np.isnan(read_loads(cluster_state(node("a")), reader).used).all()


def measured(now=NOW, at=None, **by_metric):
    metric_requests = node_usage_reader.metric_requests(StatisticsOptions(statistics="metrics"))
    keys = {metric_request.metric: metric_request.key for metric_request in metric_requests}
    series = {
        keys[metric]: Series(keys[metric], "prometheus", now, {n: Sample(v, at) for n, v in values.items()})
        for metric, values in by_metric.items()
    }
    return MetricsSnapshot(series)


def test_metrics_are_cores_and_bytes():
    nano = 10**9
    snapshot = measured(
        cpu_used_mean={"a": nano * 3 // 2},
        cpu_used_deviation={"a": nano // 4},
        memory_used_mean={"a": nano * 64 * GIB, "strange": 1},
        memory_used_deviation={},
    )
    load = read_loads(cluster_state(node("a"), node("b"), snapshot=snapshot), statistics="metrics")
    np.testing.assert_array_equal(load.used, [[1500, NAN, NAN], [64 * GIB, NAN, NAN]])
    np.testing.assert_array_equal(load.deviation, [[250, NAN, NAN], [NAN, NAN, NAN]])
    np.testing.assert_array_equal(load.forecast, np.full((2, 3), NAN))
    np.testing.assert_array_equal(
        load.missing[:, :2], [[StatisticStatus.PRESENT, StatisticStatus.ABSENT]] * 2
    )


def test_the_answer_to_an_expression_is_as_old_as_the_asking():
    snapshot = measured(cpu_used_mean={"a": 10**9})
    fresh = read_loads(cluster_state(node("a"), snapshot=snapshot, now=NOW + 3600), statistics="metrics")
    assert (fresh.missing[0, 0], fresh.ages_s[0]) == (StatisticStatus.PRESENT, 3600)
    old = read_loads(cluster_state(node("a"), snapshot=snapshot, now=NOW + 3601), statistics="metrics")
    assert old.missing[0, 0] == StatisticStatus.STALE


def test_a_sample_with_a_time_is_as_old_as_that():
    snapshot = measured(cpu_used_mean={"a": 10**9}, at=NOW - 5000)
    load = read_loads(cluster_state(node("a"), snapshot=snapshot), statistics="metrics")
    assert load.missing[0, 0] == StatisticStatus.STALE


def test_annotations_do_not_count_where_metrics_are_asked():
    load = read_loads(cluster_state(node("a", mean_free_cpu="1000")), statistics="metrics")
    assert load.missing[0, 0] == StatisticStatus.ABSENT


def test_nothing_is_asked_where_annotations_count():
    assert LoadReader(StatisticsOptions()).metric_requests == frozenset()
    assert len(LoadReader(StatisticsOptions(statistics="metrics")).metric_requests) == 4


def test_one_window_for_cpu_and_memory():
    requests = node_usage_reader.metric_requests(StatisticsOptions(statistics_window_s=600.0))
    assert requests.cpu_mean.query == f"avg_over_time(({node_usage_reader.cpu_usage_query(120.0)})[600s:30s])"
    actual = requests.cpu_deviation.query
    assert actual == f"stddev_over_time(({node_usage_reader.cpu_usage_query(120.0)})[600s:30s])"
    assert (
        requests.memory_mean.query == f"avg_over_time(({node_usage_reader.memory_usage_query()})[600s:30s])"
    )
    actual = requests.memory_deviation.query
    assert actual == f"stddev_over_time(({node_usage_reader.memory_usage_query()})[600s:30s])"
    assert {metric_request.max_age_s for metric_request in requests} == {3600.0}


def test_a_short_window_has_short_rates():
    requests = node_usage_reader.metric_requests(StatisticsOptions(statistics_window_s=10.0))
    assert requests.cpu_mean.query == f"avg_over_time(({node_usage_reader.cpu_usage_query(2.0)})[10s:500ms])"
    assert '{mode="idle"}[2s]' in requests.cpu_mean.query


def test_a_query_of_ones_own_gets_the_window_put_in():
    options = StatisticsOptions(
        cpu_mean_query="avg_over_time(used{x=~'{}'}[{window}])", statistics_window_s=90.0
    )
    assert node_usage_reader.metric_requests(options).cpu_mean.query == "avg_over_time(used{x=~'{}'}[90s])"
    assert node_usage_reader.metric_requests(options).cpu_mean.metric == "cpu_used_mean"


def test_none_of_them_is_a_selector_whose_samples_would_be_asked_for():
    for metric_request in node_usage_reader.metric_requests(StatisticsOptions()):
        assert not prometheus.is_selector(metric_request.query)


def test_matchers_choose_among_several_exporters():
    requests = node_usage_reader.metric_requests(StatisticsOptions(exporter_matchers='job="node"'))
    assert 'node_cpu_seconds_total{mode="idle", job="node"}' in requests.cpu_mean.query
    assert requests.memory_mean.query.count('{job="node"}') == 2
