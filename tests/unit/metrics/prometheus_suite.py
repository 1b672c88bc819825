"""Tests of the Prometheus source that run with the double and with a real Prometheus.

A subclass defines the fixture `prometheus`: a function from series (`fake_prometheus.SeriesSamples`) to the URL of a
Prometheus that has exactly these series.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from nodewise.base.errors import BadInput, Unavailable
from nodewise.metrics.metrics_source import MetricRequest, NoValues
from nodewise.metrics.node_attributes import NodeAllocatable, NodeAttributes
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.prometheus.source import PrometheusSettings, PrometheusSource
from nodewise.metrics.series import Series
from nodewise.observe.metrics_registry import MetricsRegistry
from tests.unit.metrics.fake_prometheus import SeriesSamples

NANO = 10**9
PATIENCE_S = 60.0
Holding = Callable[[SeriesSamples], str]
NO_OPTIONS: Mapping[str, object] = MappingProxyType({})

NODES = NodeAttributes(
    {name: NodeAllocatable(None, None) for name in ("a", "b", "c")},
    {"10.0.0.2": "b", "fd00::2": "b", "c.example": "c", "a": "a", "b": "b", "c": "c"},
)


async def fetch_node_attributes() -> NodeAttributes:
    return NODES


def source(url: str, **options: object) -> PrometheusSource:
    prometheus_options = PrometheusOptions(
        **{"prometheus_url": (url,), "prometheus_timeout_s": PATIENCE_S} | options
    )  # type: ignore[arg-type]
    return PrometheusSource(
        url, PrometheusSettings(prometheus_options, 60.0), fetch_node_attributes, MetricsRegistry()
    )


def fetch(
    url: str, metric: str = "temp", *, options: Mapping[str, object] = NO_OPTIONS, **more: Any
) -> Series:
    """Fetch a metric once. `options` are those of Prometheus, and `more` are further fields of `MetricRequest`."""

    async def once() -> Series:
        metric_source = source(url, **options)
        try:
            return await metric_source.fetch(MetricRequest(metric, **more), time.time())
        finally:
            await metric_source.close()

    return asyncio.run(once())


def values(series: Series) -> dict[str, float]:
    return {node: sample.value / NANO for node, sample in series.samples.items()}


SELECTORS = {
    "the metric's name": "",
    "a selector": "temp",
    "a selector with a matcher": 'temp{job="n"}',
    "a selector without a name": '{job="n"}',
}

EXPRESSIONS = {"arithmetic": ("temp * 2", 162.0), "an aggregation": ("max by (instance) (temp)", 81.0)}

NUMBERS = {
    "81.5": 81_500_000_000,
    "0.1": 100_000_000,
    "1e+06": 1_000_000 * NANO,
    "-3": -3 * NANO,
    "2.5e-09": 3,
    "1.8446744073709552e+19": 18_446_744_073_709_552_000 * NANO,
}

NO_NUMBERS = ("NaN", "+Inf", "-Inf", "1e+300")


class PrometheusSuite:
    @pytest.mark.parametrize("query", SELECTORS.values(), ids=SELECTORS)
    def test_a_selector_gives_each_value_with_its_own_time(self, prometheus: Holding, query: str) -> None:
        began_s = time.time()
        url = prometheus({'temp{instance="a",job="n"}': ("81", 30.0)})
        sample = fetch(url, query=query).samples["a"]
        assert (sample.value, sample.window_s) == (81 * NANO, 0.0)
        assert sample.at is not None
        assert began_s - 31.0 <= sample.at <= time.time() - 29.0

    @pytest.mark.parametrize(("query", "value"), EXPRESSIONS.values(), ids=EXPRESSIONS)
    def test_the_age_of_an_expressions_value_is_unknown(
        self, prometheus: Holding, query: str, value: float
    ) -> None:
        series = fetch(prometheus({'temp{instance="a"}': ("81", 30.0)}), query=query)
        assert (values(series), series.samples["a"].at) == ({"a": value}, None)

    def test_sample_older_than_the_max_age_is_missing(self, prometheus: Holding) -> None:
        url = prometheus({'temp{instance="a"}': ("1", 120.0), 'temp{instance="b"}': "2"})
        assert values(fetch(url)) == {"b": 2.0}
        assert values(fetch(url, max_age_s=300.0)) == {"a": 1.0, "b": 2.0}

    def test_a_node_is_known_by_name_address_and_hostname(self, prometheus: Holding) -> None:
        url = prometheus(
            {
                'temp{instance="a:9100"}': "1",
                'temp{instance="10.0.0.2:9100"}': "2",
                'temp{instance="c.example:9100"}': "3",
                'temp{instance="10.0.0.9:9100"}': "4",
            }
        )
        assert values(fetch(url)) == {"a": 1.0, "b": 2.0, "c": 3.0}

    def test_a_node_is_known_by_the_host_of_a_probed_url(self, prometheus: Holding) -> None:
        url = prometheus(
            {
                'temp{instance="https://a:6443/healthz"}': "1",
                'temp{instance="http://10.0.0.2"}': "2",
                'temp{instance="http://C.example/?module=http#top"}': "3",
                'temp{instance="https://example.org/a:9100"}': "4",
            }
        )
        assert values(fetch(url)) == {"a": 1.0, "b": 2.0, "c": 3.0}

    @pytest.mark.parametrize("ages_s", [(0.0, 0.0), (40.0, 5.0)], ids=["of one time", "of two times"])
    def test_series_of_a_node_that_differ_are_no_value(
        self, prometheus: Holding, ages_s: tuple[float, float]
    ) -> None:
        """A node with two sensors at 97 °C and 41 °C has neither the value 41 nor a missing value: it is invalid."""
        url = prometheus(
            {
                'temp{instance="a",sensor="cpu"}': ("97", ages_s[0]),
                'temp{instance="a",sensor="inlet"}': ("41", ages_s[1]),
            }
        )
        series = fetch(url)
        assert series.samples == {}
        assert series.invalid == {
            "a": '2 series of one node differ in label "sensor": set aggregate: max or use a query'
        }
        values_of_node = series.differing["a"]
        assert (values_of_node.lowest, values_of_node.highest) == (41 * NANO, 97 * NANO)
        assert values_of_node.oldest is not None
        assert time.time() - values_of_node.oldest == pytest.approx(ages_s[0], abs=20.0)
        assert values(fetch(url, aggregate="max")) == {"a": 97.0}
        assert values(fetch(url, aggregate="min")) == {"a": 41.0}
        assert values(fetch(url, aggregate="sum")) == {"a": 138.0}
        assert values(fetch(url, aggregate="avg")) == {"a": 69.0}

    @pytest.mark.parametrize("label", ["exported_node", "node_name", "subject"])
    def test_label_that_names_other_nodes_names_the_node(self, prometheus: Holding, label: str) -> None:
        """An exporter on node b reports about all nodes."""
        url = prometheus(
            {
                f'temp{{node="b",instance="10.0.0.2:1",{label}="{node}"}}': value
                for node, value in (("a", "91"), ("b", "40"), ("c", "41"), ("deleted", "99"))
            }
        )
        assert values(fetch(url)) == {"a": 91.0, "b": 40.0, "c": 41.0}
        assert values(fetch(url, aggregate="max")) == {"a": 91.0, "b": 40.0, "c": 41.0}

    def test_exported_label_names_the_node_of_a_single_series(self, prometheus: Holding) -> None:
        url = prometheus({'temp{node="b",exported_node="a"}': "91"})
        assert values(fetch(url)) == {"a": 91.0}
        assert values(fetch(url, options={"prometheus_node_label": ("node", "instance")})) == {"a": 91.0}

    @pytest.mark.parametrize("aggregate", ["", "max", "sum"])
    def test_measurements_between_nodes_need_a_label_or_a_query(
        self, prometheus: Holding, aggregate: str
    ) -> None:
        pairs = [(source, target) for source in "abc" for target in "abc" if source != target]
        url = prometheus(
            {
                f'temp{{node="{source}",target="{target}"}}': str(number)
                for number, (source, target) in enumerate(pairs)
            }
        )
        series = fetch(url, aggregate=aggregate)
        assert series.samples == {}
        assert series.invalid["a"] == (
            'series of one node differ in label "target", which names nodes as "node" does: use a query such as'
            " max by (node) (…), or give --prometheus-node-label target"
        )
        assert values(fetch(url, query="max by (node) (temp)")) == {"a": 1.0, "b": 3.0, "c": 5.0}
        chosen = fetch(url, aggregate="max", options={"prometheus_node_label": ("target",)})
        assert values(chosen) == {"a": 4.0, "b": 5.0, "c": 3.0}

    def test_label_with_few_nodes_names_none(self, prometheus: Holding) -> None:
        """The servers of a file system, which every node uses, are nodes themselves."""
        series = {
            f'temp{{node="{node}",server="{server}"}}': "1"
            for node, servers in (("a", "cx"), ("b", "cx"), ("c", "cx"))
            for server in servers
        }
        assert values(fetch(prometheus(series), aggregate="sum")) == {"a": 2.0, "b": 2.0, "c": 2.0}

    @pytest.mark.parametrize("aggregate", ["", "max"])
    def test_series_of_several_clusters_need_a_query(self, prometheus: Holding, aggregate: str) -> None:
        url = prometheus(
            {
                'temp{node="a",cluster="east"}': "91",
                'temp{node="a",cluster="west"}': "40",
                'temp{node="b",cluster="west"}': "41",
            }
        )
        series = fetch(url, aggregate=aggregate)
        assert values(series) == {"b": 41.0}
        assert series.invalid == {
            "a": 'series of one node differ in label "cluster": use a query that selects one cluster'
        }
        assert (series.differing["a"].lowest, series.differing["a"].highest) == (40 * NANO, 91 * NANO)
        assert fetch(url, aggregate="sum").differing == {}
        assert values(fetch(url, query='temp{cluster="east"}')) == {"a": 91.0}

    @pytest.mark.parametrize(
        "label", ["prometheus_replica", "replica", "__replica__", "receive_replica", "shard_copy"]
    )
    def test_replicas_of_a_series_count_once(self, prometheus: Holding, label: str) -> None:
        url = prometheus(
            {
                f'temp{{node="a",core="0",{label}="x"}}': ("40", 5.0),
                f'temp{{node="a",core="0",{label}="y"}}': ("97", 40.0),
                f'temp{{node="a",core="1",{label}="x"}}': ("41", 40.0),
                f'temp{{node="a",core="1",{label}="y"}}': ("42", 5.0),
                f'temp{{node="b",{label}="x"}}': ("50.5", 40.0),
                f'temp{{node="b",{label}="y"}}': ("51", 5.0),
            }
        )
        options = {"prometheus_replica_label": ("shard_copy",)}
        assert values(fetch(url, aggregate="sum", options=options)) == {"a": 82.0, "b": 51.0}
        assert values(fetch(url, options=options)) == {"b": 51.0}

    def test_replicas_in_the_result_of_a_query_count_once(self, prometheus: Holding) -> None:
        url = prometheus({'temp{node="a",replica="1"}': "91", 'temp{node="a",replica="2"}': "90.5"})
        assert values(fetch(url, query="temp * 1")) == {"a": 91.0}

    def test_added_label_comes_before_the_default_labels(self, prometheus: Holding) -> None:
        url = prometheus({'temp{node="b",rack_host="a"}': "1", 'temp{instance="c"}': "2"})
        options = {"prometheus_node_label": ("rack_host",)}
        assert values(fetch(url, options=options)) == {"a": 1.0, "c": 2.0}

    @pytest.mark.parametrize(
        "label",
        [
            *("Hostname", "hostname", "node_name", "k8s_node_name", "host_name"),
            *("exported_node", "exported_instance", "exported_host_name"),
        ],
    )
    def test_labels_of_common_exporters_name_nodes(self, prometheus: Holding, label: str) -> None:
        url = prometheus({f'temp{{instance="10.9.9.9:9400",{label}="c"}}': "1"})
        assert values(fetch(url)) == {"c": 1.0}

    def test_case_of_names_does_not_matter(self, prometheus: Holding) -> None:
        url = prometheus({'temp{instance="A:9182"}': "1", 'temp{instance="C.EXAMPLE"}': "2"})
        assert values(fetch(url)) == {"a": 1.0, "c": 2.0}

    def test_names_of_hosts_in_unmatched_series_are_kept(self, prometheus: Holding) -> None:
        url = prometheus(
            {
                'temp{instance="a:1"}': "1",
                'temp{instance="a1.example.org:1"}': "2",
                'temp{instance="10.7.7.7:1"}': "3",
                'temp{instance="[fd00::9]:1"}': "3",
            }
        )
        assert fetch(url).unmatched == ("a1.example.org",)

    def test_kubernetes_name_of_the_collector_comes_before_its_host_name(self, prometheus: Holding) -> None:
        url = prometheus({'temp{instance="10.9.9.9:1",host_name="a",k8s_node_name="c"}': "1"})
        assert values(fetch(url)) == {"c": 1.0}

    @pytest.mark.parametrize("metric", ["node:load1:ratio", "k8s.node.cpu.usage"])
    def test_names_with_colons_and_dots(self, prometheus: Holding, metric: str) -> None:
        with pytest.raises(NoValues, match="no series"):
            fetch(prometheus({'temp{node="a"}': "1"}), metric)

    def test_recording_rule_is_a_metric(self, prometheus: Holding) -> None:
        assert values(fetch(prometheus({'room:temp:max{node="a"}': "3"}), "room:temp:max")) == {"a": 3.0}

    def test_series_of_a_node_that_are_equal_are_one_value(self, prometheus: Holding) -> None:
        url = prometheus(
            {'temp{instance="a",pod="x"}': ("2", 40.0), 'temp{instance="a",pod="y"}': ("2", 5.0)}
        )
        assert values(fetch(url)) == {"a": 2.0}

    @pytest.mark.parametrize("aggregate", ["", "max", "sum", "avg"])
    def test_a_series_that_has_ended_does_not_count_beside_one_that_has_not(
        self, prometheus: Holding, aggregate: str
    ) -> None:
        """This occurs when an exporter restarts. Prometheus drops the old series after at most five minutes."""
        url = prometheus(
            {
                'temp{instance="a",pod="old"}': ("97", 400.0),
                'temp{instance="a",pod="new"}': ("2", 5.0),
                'temp{instance="b",pod="old"}': ("3", 400.0),
            }
        )
        assert values(fetch(url, max_age_s=600.0, aggregate=aggregate)) == {"a": 2.0, "b": 3.0}

    def test_an_aggregated_value_is_as_old_as_its_oldest_part(self, prometheus: Holding) -> None:
        began_s = time.time()
        url = prometheus({'temp{instance="a",x="1"}': ("1", 40.0), 'temp{instance="a",x="2"}': "2"})
        sample = fetch(url, aggregate="sum").samples["a"]
        assert sample.at is not None
        assert began_s - 41.0 <= sample.at <= time.time() - 39.0

    @pytest.mark.parametrize(
        ("aggregate", "value"), [("max", {"a": 2.0}), ("min", {"a": 2.0}), ("sum", {}), ("avg", {})]
    )
    def test_max_and_min_ignore_invalid_values(
        self, prometheus: Holding, aggregate: str, value: dict[str, float]
    ) -> None:
        url = prometheus({'temp{instance="a",x="1"}': "NaN", 'temp{instance="a",x="2"}': "2"})
        assert values(fetch(url, aggregate=aggregate)) == value

    def test_an_empty_result_is_an_answer_only_where_that_is_healthy(self, prometheus: Holding) -> None:
        url = prometheus({'temp{instance="a"}': "1"})
        query = 'temp{instance="b"} * 1'
        with pytest.raises(NoValues) as caught:
            fetch(url, query=query)
        assert caught.value.cause.reason == "NoSeries"
        assert caught.value.cause.text == "Prometheus gives no series for the query"
        assert "emptyMeans: Healthy" in caught.value.cause.remedy
        series = fetch(url, query=query, empty_is_healthy=True)
        assert (series.samples, series.invalid) == ({}, {})

    def test_series_of_no_node_are_no_empty_result(self, prometheus: Holding) -> None:
        url = prometheus({'temp{instance="x:1"}': "1"})
        with pytest.raises(NoValues) as caught:
            fetch(url, query="temp * 1", empty_is_healthy=True)
        assert caught.value.cause.reason == "NoSeriesOfNodes"

    def test_series_that_disagree_at_one_time_spoil_their_own_node_only(self, prometheus: Holding) -> None:
        url = prometheus(
            {
                'temp{instance="a",core="0"}': "1",
                'temp{instance="a",core="1"}': "2",
                'temp{instance="b"}': "3",
            }
        )
        series = fetch(url, query="temp * 1")
        assert values(series) == {"b": 3.0}
        assert series.invalid == {
            "a": '2 series of one node differ in label "core": set aggregate: max or use a query'
        }
        assert values(fetch(url, query="temp * 1", aggregate="max")) == {"a": 2.0, "b": 3.0}

    @pytest.mark.parametrize(("text", "nano"), NUMBERS.items(), ids=NUMBERS)
    def test_values_are_exact(self, prometheus: Holding, text: str, nano: int) -> None:
        assert fetch(prometheus({'temp{instance="a"}': text})).samples["a"].value == nano

    @pytest.mark.parametrize("text", NO_NUMBERS)
    def test_invalid_value_affects_only_its_node(self, prometheus: Holding, text: str) -> None:
        series = fetch(prometheus({'temp{instance="a"}': text, 'temp{instance="b"}': "1"}))
        assert values(series) == {"b": 1.0}
        assert series.invalid == {"a": f"{text} is no number that a rule can compare"}

    @pytest.mark.parametrize("metric", ["absent", "gpu-temp", "9lives", "nan"])
    def test_a_metric_that_is_not_there_says_so(self, prometheus: Holding, metric: str) -> None:
        with pytest.raises(Unavailable, match=r"no series.*correct the name"):
            fetch(prometheus({'temp{instance="a"}': "1"}), metric)

    def test_series_of_no_node_are_no_answer(self, prometheus: Holding) -> None:
        with pytest.raises(
            Unavailable, match=r'1 series, none of a node, such as instance="x:1".*node-label'
        ):
            fetch(prometheus({'temp{instance="x:1"}': "1"}))

    def test_it_lists_the_names_of_metrics(self, prometheus: Holding) -> None:
        url = prometheus({'temp{instance="a"}': "1", 'temp{instance="b"}': "1", "load": "1"})

        async def once() -> list[str]:
            metric_source = source(url)
            try:
                return await metric_source.metric_names()
            finally:
                await metric_source.close()

        assert asyncio.run(once()) == ["load", "temp"]

    def test_metrics_that_have_series_are_selected(self, prometheus: Holding) -> None:
        """The index also has the names of series that have ended."""
        url = prometheus({'temp{instance="a"}': ("1", 400.0), 'room:temp{instance="a"}': "1", "load": "1"})

        async def once() -> list[str]:
            metric_source = source(url)
            try:
                return await metric_source.existing_metrics(["room:temp", 'te"mp\\', "temp", "load"])
            finally:
                await metric_source.close()

        assert asyncio.run(once()) == ["room:temp", "load"]

    def test_a_label_that_names_nodes_is_suggested(self, prometheus: Holding) -> None:
        with pytest.raises(NoValues) as caught:
            fetch(prometheus({'temp{instance="x:1",host="a"}': "1"}))
        assert "has a node's name or address in label node, kubernetes_node, " in caught.value.cause.text
        assert caught.value.cause.remedy == "give --prometheus-node-label host"

    def test_invalid_query_has_the_message_of_prometheus(self, prometheus: Holding) -> None:
        with pytest.raises(BadInput, match=r"query temp\{ to http://127.*400: bad_data: .*parse error"):
            fetch(prometheus({}), query="temp{")

    def test_a_number_is_no_series(self, prometheus: Holding) -> None:
        with pytest.raises(BadInput, match="scalar; expected series"):
            fetch(prometheus({}), query="1")

    def test_a_long_query_is_asked_too(self, prometheus: Holding) -> None:
        url = prometheus({'temp{instance="a"}': "1"})
        assert values(fetch(url, query=f"max by (instance, {'x' * 3000}) (temp)")) == {"a": 1.0}
