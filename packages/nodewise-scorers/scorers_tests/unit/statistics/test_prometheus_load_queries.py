"""The Prometheus queries for the load of nodes."""

from nodewise.metrics.prometheus import source as prometheus
from nodewise_scorers.statistics import prometheus_load_queries
from nodewise_scorers.statistics.prometheus_load_queries import StatisticsOptions


def test_one_window_for_cpu_and_memory():
    requests = prometheus_load_queries.metric_requests(StatisticsOptions(statistics_window_s=600.0))
    assert (
        requests.cpu_mean.query
        == f"avg_over_time(({prometheus_load_queries.cpu_usage_query(120.0)})[600s:30s])"
    )
    assert (
        requests.cpu_deviation.query
        == f"stddev_over_time(({prometheus_load_queries.cpu_usage_query(120.0)})[600s:30s])"
    )
    assert (
        requests.memory_mean.query
        == f"avg_over_time(({prometheus_load_queries.memory_usage_query()})[600s:30s])"
    )
    assert (
        requests.memory_deviation.query
        == f"stddev_over_time(({prometheus_load_queries.memory_usage_query()})[600s:30s])"
    )
    assert {metric_request.max_age_s for metric_request in requests} == {3600.0}


def test_a_short_window_has_short_rates():
    requests = prometheus_load_queries.metric_requests(StatisticsOptions(statistics_window_s=10.0))
    assert (
        requests.cpu_mean.query
        == f"avg_over_time(({prometheus_load_queries.cpu_usage_query(2.0)})[10s:500ms])"
    )
    assert '{mode="idle"}[2s]' in requests.cpu_mean.query


def test_a_query_of_ones_own_gets_the_window_put_in():
    options = StatisticsOptions(
        cpu_mean_query="avg_over_time(used{x=~'{}'}[{window}])", statistics_window_s=90.0
    )
    assert (
        prometheus_load_queries.metric_requests(options).cpu_mean.query == "avg_over_time(used{x=~'{}'}[90s])"
    )
    assert prometheus_load_queries.metric_requests(options).cpu_mean.metric == "cpu_used_mean"


def test_none_of_them_is_a_selector_whose_samples_would_be_asked_for():
    for metric_request in prometheus_load_queries.metric_requests(StatisticsOptions()):
        assert not prometheus.is_selector(metric_request.query)


def test_matchers_choose_among_several_exporters():
    requests = prometheus_load_queries.metric_requests(StatisticsOptions(exporter_matchers='job="node"'))
    assert 'node_cpu_seconds_total{mode="idle", job="node"}' in requests.cpu_mean.query
    assert requests.memory_mean.query.count('{job="node"}') == 2
